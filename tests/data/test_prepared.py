"""Promises of texts made ready: parts that share nothing, a tokenizer beside them, all of it or nothing; and of what
the commands show of running text."""

from pathlib import Path

import numpy as np
import pytest

from numerate import catalogue
from numerate.cli import main
from numerate.data.prepared import keep_tokenizer, prepare, prepare_texts
from numerate.errors import Mistake
from numerate.tokens.pieces import pieces
from numerate.tokens.tokenizer_files import CHARACTERS

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

WORDS = [first + rest for first in "bdlmr" for rest in ("ake", "ig", "oat", "un")]
STORIES = [
    f"Once upon a {WORDS[n % 20]} there was a {WORDS[n // 20 % 20]} with a {WORDS[(n * 7 + n // 9) % 20]}. Story {n}."
    for n in range(600)
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMERATE_DATA", str(tmp_path / "data"))
    return tmp_path / "cache" / "numerate" / "corpora"


def read(corpus: object, known: object) -> set[str]:
    return {known.decode(one) for shard in corpus.shards for one in known.documents(shard.ids)}  # type: ignore[attr-defined]


def test_a_document_is_in_one_part_and_the_same_ones_are_held_out_whatever_stands_beside_them(tmp_path: Path) -> None:
    made = prepare_texts([*STORIES, *STORIES[:50], "  "], tmp_path / "a", size=310, processes=1)
    assert made.validation is not None
    train, held = read(made.train, made.pieces), read(made.validation, made.pieces)
    assert train | held == set(STORIES)
    assert not train & held
    assert 10 < len(held) < 60
    assert made.train.documents == len(train), "one that comes again is left out"
    less = prepare_texts(STORIES[:300], tmp_path / "b", tokenizer=str(tmp_path / "a"), processes=1)
    assert less.validation is not None
    assert read(less.validation, less.pieces) == held & set(STORIES[:300])
    assert less.pieces.fingerprint == made.pieces.fingerprint
    assert made.pieces.size == 310


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="leaves none for validation; more documents"):
        prepare_texts(STORIES[:1], tmp_path / "a", tokenizer=CHARACTERS)
    with pytest.raises(Mistake, match=r"held_out: 2 is no share"):
        prepare_texts(STORIES, tmp_path / "a", tokenizer=CHARACTERS, held_out=2)
    with pytest.raises(Mistake, match="either size= of a new vocabulary or tokenizer="):
        prepare_texts(STORIES, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_kept_tokenizer_reads_the_same(tmp_path: Path) -> None:
    known = pieces(str(Path(__file__).parents[1] / "tokens" / "tiny"))
    keep_tokenizer(known, tmp_path / "kept")
    again = pieces(str(tmp_path / "kept"))
    assert (again.fingerprint, again.begin) == (known.fingerprint, known.begin)


def test_what_is_missing_is_told_with_the_command_that_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Mistake, match="`numerate data fetch tinystories_excerpts gpt2_tokenizer` gets it"):
        prepare("tiny_stories_2048")
    with pytest.raises(Mistake, match="`numerate data fetch tinystories` gets it"):
        prepare("tiny_stories")
    assert main(["data", "prepare", "tiny_storys"]) == 2
    assert "Did you mean 'tiny_stories'?" in capsys.readouterr().err
    assert main(["data", "write", "tiny_stories", "out=x"]) == 2
    assert "running text is tokens already; `numerate data tokenise` writes it" in capsys.readouterr().err
    assert main(["data", "prepare"]) == 2
    assert "the corpus is missing; there are: tiny_stories" in capsys.readouterr().err
    assert main(["data", "prepare", "tiny_stories", "size=3"]) == 2
    assert "size: is of texts of your own" in capsys.readouterr().err


def test_tiny_stories_2048_is_whole_stories_of_which_some_are_held_out(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERATE_DATA", str(shared / "data"))
    made = prepare("tiny_stories_2048", processes=1)
    assert made.validation is not None
    assert (made.train.documents, made.validation.documents) == (5946, 289)
    assert (made.pieces.size, made.train.tokens, made.validation.tokens) == (2048, 1_323_093, 65_242)
    task = catalogue.made("Task", "tiny_stories_2048")
    assert task.examples("train", 0, 0, 3).tokens.ids.shape == (3, 513)
    before = (made.folder / "train/train.bin").stat().st_mtime_ns
    assert prepare("tiny_stories_2048").folder == made.folder
    assert (made.folder / "train/train.bin").stat().st_mtime_ns == before


def test_texts_of_ones_own_are_prepared_counted_and_shown(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("\n---\n".join(STORIES))
    words = ["data", "prepare", str(tmp_path / "mine.txt"), "out=mine", "size=310", "separator=\\n---\\n"]
    assert main([*words, "held_out=0.1", "processes=1"]) == 0
    said = capsys.readouterr().out
    assert f"{cache / 'mine'}: 310 pieces" in said
    assert "task.train=mine/train task.validation=mine/validation" in said
    assert main(words) == 2
    assert "is there already and is not overwritten" in capsys.readouterr().err
    settings = ["train=mine/train", "validation=mine/validation", "context=24"]
    assert main(["data", "stats", "LanguageModelling", *settings]) == 0
    said = capsys.readouterr().out
    made = sum(int(line.split()[2].replace(",", "")) for line in said.splitlines() if line[:5] in ("train", "valid"))
    assert made == len(STORIES)
    assert "310 pieces, chunks of 24 tokens" in said
    assert "most frequent in validation: '" in said
    assert main(["data", "stats", str(cache / "mine/train"), "count=3"]) == 2
    assert "count: running text is looked at as it stands" in capsys.readouterr().err
    assert main(["sample", "LanguageModelling", *settings, "order=sequential", "count=2"]) == 0
    said = capsys.readouterr().out
    assert "chunk 1 of " in said
    assert ", 24 tokens:\n<s> Once upon a bake there was a bake with" in said


def test_frequencies_of_a_large_corpus_are_those_of_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from numerate.commands import running_text
    from numerate.tasks.corpus_files import Corpus, Shard

    ids = np.random.default_rng(0).choice(4, 200_000, p=(0.1, 0.2, 0.3, 0.4)).astype("<u2")
    ids.tofile(tmp_path / "a.bin")
    corpus = Corpus((Shard(tmp_path / "a.bin", np.dtype("<u2"), 0, None),))
    monkeypatch.setattr(running_text, "_COUNTED", 20_000)
    counts, looked_at = running_text._counts(corpus, 4)
    assert 19_000 < looked_at <= 20_000
    assert np.abs(counts / looked_at - (0.1, 0.2, 0.3, 0.4)).max() < 0.02

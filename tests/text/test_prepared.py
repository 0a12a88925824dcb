"""Promises of texts made ready: parts that share nothing, a tokenizer beside them, all of it or nothing; and of what
the commands show of text."""

import json
from pathlib import Path

import numpy as np
import pytest

from numerate import catalogue
from numerate.cli import main
from numerate.errors import UserError
from numerate.text.data import documents
from numerate.text.data.documents import SEPARATOR, FileSpan, detect_file_span
from numerate.text.data.prepared import prepare, prepare_texts
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER

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


def written(path: Path, texts: list[str]) -> list[FileSpan]:
    """Documents in a file."""
    path.write_text(SEPARATOR.join(texts), encoding="utf-8")
    return [detect_file_span(path)]


def read(corpus: object, known: object) -> set[str]:
    return {known.decode(one) for shard in corpus.shards for one in known.split_documents(shard.ids)}  # type: ignore[attr-defined]


def test_a_document_is_in_one_part_and_the_same_ones_are_held_out_whatever_stands_beside_them(tmp_path: Path) -> None:
    texts = written(tmp_path / "all.txt", [*STORIES, *STORIES[:50], "  "])
    made = prepare_texts(texts, tmp_path / "a", vocabulary_size=310, processes=1)
    assert made.validation is not None
    train, held = read(made.train, made.tokenizer), read(made.validation, made.tokenizer)
    assert train | held == set(STORIES)
    assert not train & held
    assert 10 < len(held) < 60
    assert made.train.num_documents == len(train), "one that comes again is left out"
    half = written(tmp_path / "half.txt", STORIES[:300])
    less = prepare_texts(half, tmp_path / "b", tokenizer=str(tmp_path / "a"), processes=1)
    assert less.validation is not None
    assert read(less.validation, less.tokenizer) == held & set(STORIES[:300])
    assert less.tokenizer.fingerprint == made.tokenizer.fingerprint
    assert made.tokenizer.size == 310


def test_texts_are_read_where_they_are_from_several_files_of_any_form(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.jsonl"
    written(first, STORIES[:250])
    second.write_text("".join(json.dumps({"text": story}) + "\n" for story in STORIES[200:]))
    texts = [detect_file_span(first), detect_file_span(second)]
    one = prepare_texts(texts, tmp_path / "one", tokenizer=CHARACTER_TOKENIZER, processes=1)
    cut = prepare_texts(texts, tmp_path / "cut", tokenizer=CHARACTER_TOKENIZER, processes=1, shard_bytes=9000)
    whole = prepare_texts(
        written(tmp_path / "all.txt", STORIES), tmp_path / "all", tokenizer=CHARACTER_TOKENIZER, processes=1
    )
    assert [shard.path.name for shard in one.train.shards] == ["train.bin"]
    assert one.train.fingerprint == whole.train.fingerprint
    assert len(cut.train.shards) > 2
    assert np.array_equal(*(np.concatenate([s.ids for s in made.train.shards]) for made in (one, cut)))
    kept = [path.name for path in (tmp_path / "one").rglob("*") if path.is_file() and path.name != "lock"]
    parts = ["train.bin", "train.bin.head", "validation.bin", "validation.bin.head"]
    assert sorted(kept) == sorted([*["corpus.json"] * 2, "tokenizer.json", "tokenizer_config.json", *parts])
    head = json.loads((tmp_path / "one" / "train" / "train.bin.head").read_text())
    assert head["tokenizer_name"] == "one"
    assert [source["file"] for source in head["sources"]] == ["a.txt", "b.jsonl"]


PLAY = "\n\n".join(
    f"{who}:\nWhat {verb} you, my {noun}? The {noun} of caf\u00e9 {n} {verb}s no more."
    for n, (who, verb, noun) in enumerate(
        (who, verb, noun)
        for who in ("ROMEO", "JULIET", "NURSE")
        for verb in ("see", "hear", "seek", "know")
        for noun in ("lord", "lady", "night", "light", "rose", "sword")
    )
)


def test_a_text_without_separators_is_divided_by_position_trained_on_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.txt").write_text(PLAY, encoding="utf-8")
    assert main(["data", "prepare", "one.txt", "out=one", "tokenizer=characters", "processes=1"]) == 0
    output = capsys.readouterr().out
    cut = round(0.95 * len(PLAY))
    assert f"split by position: the last {len(PLAY[cut:].encode()):,} bytes are held out" in output
    known = load_tokenizer("one")
    assert "\u00e9" in known.symbols, "every character of the text is in the vocabulary"
    task = "LanguageModeling(train=one/train,validation=one/validation,context_length=24)"
    settings = (
        f"task={task} training.steps=2 training.batch_size=4 training.evaluate_every=2 model.hidden_size=32 "
        "model.mixer.num_heads=2 model.backbone.num_layers=1 evaluation.grid=null name=play"
    )
    assert main(["train", "tiny_stories_laptop_width", *settings.split()]) == 0
    assert main(["generate", "play", "ROMEO:", "max_new_tokens=5"]) == 0
    assert "ROMEO:" in capsys.readouterr().out


def test_documents_too_few_to_hold_one_out_are_each_divided_by_position(tmp_path: Path) -> None:
    made = prepare_texts(
        written(tmp_path / "two.txt", [PLAY, PLAY.upper()]),
        tmp_path / "two",
        tokenizer=CHARACTER_TOKENIZER,
        validation_fraction=0.2,
    )
    assert made.validation is not None
    assert made.is_split_by_position
    cut = round(0.8 * len(PLAY))
    assert read(made.train, made.tokenizer) == {PLAY[:cut].strip(), PLAY[:cut].upper().strip()}
    assert read(made.validation, made.tokenizer) == {PLAY[cut:].strip(), PLAY[cut:].upper().strip()}


def test_a_text_of_any_size_is_divided_by_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_SIZE", 1000)
    monkeypatch.setattr(documents, "_CHUNK_BYTES", 300)
    texts = written(tmp_path / "one.txt", [PLAY])
    made = prepare_texts(texts, tmp_path / "one", tokenizer=CHARACTER_TOKENIZER, validation_fraction=0.1, processes=1)
    assert made.validation is not None
    assert made.is_split_by_position
    train, held = read(made.train, made.tokenizer), read(made.validation, made.tokenizer)
    assert len(train) > len(PLAY) // 1000, "in pieces"
    end = "".join("".join(held).split())
    whole = "".join(PLAY.split())
    assert len(end) == pytest.approx(0.1 * len(whole), rel=0.02)
    assert sorted("".join("".join(train).split())) == sorted(whole[: -len(end)])
    assert sorted(end) == sorted(whole[-len(end) :]), "the end of the whole text"


def test_a_vocabulary_has_as_many_pieces_as_a_short_text_gives_or_is_refused_with_the_number(tmp_path: Path) -> None:
    texts = written(tmp_path / "one.txt", [PLAY])
    made = prepare_texts(texts, tmp_path / "any", processes=1)
    assert 275 < made.tokenizer.size < 600
    with pytest.raises(UserError, match=rf"too short for 600 ids; they give {made.tokenizer.size}, .*size="):
        prepare_texts(texts, tmp_path / "more", vocabulary_size=600, processes=1)
    assert not (tmp_path / "more").exists()


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    texts = written(tmp_path / "all.txt", STORIES)
    with pytest.raises(UserError, match="of 1 different document leaves no text for validation; use more text"):
        prepare_texts(written(tmp_path / "x.txt", ["x"]), tmp_path / "a", tokenizer=CHARACTER_TOKENIZER)
    with pytest.raises(UserError, match=r"held_out: must be between 0 and 1 \(exclusive\), such as 0.05, not 2"):
        prepare_texts(texts, tmp_path / "a", tokenizer=CHARACTER_TOKENIZER, validation_fraction=2)
    with pytest.raises(UserError, match=r"set either size= \(train a new vocabulary\) or tokenizer="):
        prepare_texts(texts, tmp_path / "a", vocabulary_size=300, tokenizer=CHARACTER_TOKENIZER)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.txt", "x.txt"]


def test_what_is_missing_is_reported_with_the_command_that_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="download it with `numerate data fetch tinystories_excerpts gpt2_tokenizer`"):
        prepare("tiny_stories_2048")
    with pytest.raises(UserError, match="download it with `numerate data fetch tinystories`"):
        prepare("tiny_stories")
    assert main(["data", "prepare", "tiny_storys"]) == 2
    assert "Did you mean 'tiny_stories'?" in capsys.readouterr().err
    assert main(["data", "write", "tiny_stories", "out=x"]) == 2
    assert "language modeling data is tokenized already; `numerate data tokenise` writes it" in capsys.readouterr().err
    assert main(["data", "prepare"]) == 2
    assert "missing; for example: numerate data prepare tiny_stories_2048" in capsys.readouterr().err
    assert main(["data", "prepare", "tiny_stories", "size=3"]) == 2
    assert "size: is for your own texts" in capsys.readouterr().err


def test_tiny_stories_2048_is_whole_stories_of_which_some_are_held_out(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERATE_DATA", str(shared / "data"))
    made = prepare("tiny_stories_2048", processes=1)
    assert made.validation is not None
    assert (made.train.num_documents, made.validation.num_documents) == (5946, 289)
    assert (made.tokenizer.size, made.train.num_tokens, made.validation.num_tokens) == (2048, 1_323_093, 65_242)
    task = catalogue.get_part("Task", "tiny_stories_2048")
    assert task.examples("train", 0, 0, 3).tokens.ids.shape == (3, 513)
    before = (made.folder / "train/train.bin").stat().st_mtime_ns
    assert prepare("tiny_stories_2048").folder == made.folder
    assert (made.folder / "train/train.bin").stat().st_mtime_ns == before


def test_texts_of_ones_own_are_prepared_and_shown(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("\n---\n".join(STORIES))
    words = ["data", "prepare", str(tmp_path / "mine.txt"), "out=mine", "size=310", "separator=\\n---\\n"]
    assert main([*words, "held_out=0.1", "processes=1"]) == 0
    output = capsys.readouterr().out
    assert f"{cache / 'mine'}: 310 pieces" in output
    assert "task.train=mine/train task.validation=mine/validation" in output
    assert main(words) == 2
    assert "already exists and is not overwritten" in capsys.readouterr().err
    settings = ["train=mine/train", "validation=mine/validation", "context_length=24"]
    assert main(["sample", "LanguageModeling", *settings, "order=sequential", "count=2"]) == 0
    output = capsys.readouterr().out
    assert "chunk 1 of " in output
    assert ", 24 tokens:\n<s> Once upon a bake there was a bake with" in output
    task = f"task=LanguageModeling({','.join([*settings, 'order=sequential'])})"
    assert main(["sample", "tiny_stories_laptop_dual", task, "count=1"]) == 0
    labels = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [first for first, _ in labels] == ["inputs", "targets", "token"]

"""Promises of writing corpora: every document once, the same from any number of processes, and nothing half."""

import json
from pathlib import Path

import numpy as np
import pytest

from numerate.errors import UserError
from numerate.tasks.corpus_files import Corpus, open_corpus
from numerate.text.data import corpora
from numerate.text.data.corpora import write_corpus
from numerate.text.data.documents import FileSpan
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, load_tokenizer
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

STORIES = [f"Story {number}: there were {number} cats.\n\nThe end." for number in range(60)]


@pytest.fixture(scope="module")
def characters() -> PretrainedTokenizer:
    return load_tokenizer(CHARACTER_TOKENIZER)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "stories.txt"
    path.write_text("\n<|endoftext|>\n".join(STORIES))
    return path


def shards(tmp_path: Path, count: int = 3) -> Path:
    """A folder like that of Tiny Stories."""
    folder = tmp_path / "TinyStories_all_data"
    folder.mkdir()
    for number in range(count):
        records = [{"story": f"\n\n{story} ", "source": "GPT-4"} for story in STORIES[number * 10 : number * 10 + 10]]
        (folder / f"data{number:02d}.json").write_text(json.dumps(records))
    return folder


def ids(corpus: Corpus) -> list[int]:
    return [i for shard in corpus.shards for i in shard.ids.tolist()]


def expected(known: PretrainedTokenizer, stories: list[str]) -> list[int]:
    return [i for story in stories for i in (known.document_start_id, *known.encode([story])[0].tolist())]


def test_shards_of_tiny_stories_become_shards_of_tokens(tmp_path: Path, characters: PretrainedTokenizer) -> None:
    corpus = write_corpus([shards(tmp_path)], tmp_path / "out", CHARACTER_TOKENIZER, processes=1)
    assert [shard.path.name for shard in corpus.shards] == ["data00.bin", "data01.bin", "data02.bin"]
    assert ids(corpus) == expected(characters, STORIES[:30])
    assert (corpus.num_documents, corpus.text_bytes) == (30, sum(map(len, STORIES[:30])))
    raw = np.fromfile(tmp_path / "out" / "data01.bin", dtype="<u2")
    assert raw.tolist() == expected(characters, STORIES[10:20]), "as llama2.c reads it"


def test_any_number_of_processes_and_any_portion_write_the_same_tokens(
    texts: Path, characters: PretrainedTokenizer
) -> None:
    whole = write_corpus([texts], texts.parent / "one", CHARACTER_TOKENIZER, processes=1)
    cut = write_corpus([texts], texts.parent / "two", CHARACTER_TOKENIZER, processes=2, shard_bytes=700)
    assert (len(whole.shards), len(cut.shards)) == (1, 5)
    assert ids(whole) == ids(cut) == expected(characters, STORIES)
    heads = [json.loads(path.read_text()) for path in sorted((texts.parent / "two").glob("*.head"))]
    assert heads[0]["sources"][0]["sha256"] != heads[1]["sources"][0]["sha256"]
    assert sum(source["end"] - source["begin"] for head in heads for source in head["sources"]) == texts.stat().st_size


def test_of_a_folder_of_texts_that_were_fetched_the_texts_are_taken(texts: Path) -> None:
    (texts.parent / "fetched.json").write_text('{"stories.txt": {"bytes": 1}}')
    assert corpora.source_files([texts.parent]) == [texts]


def test_a_vocabulary_beyond_uint16_is_written_wider(
    texts: Path, characters: PretrainedTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = PretrainedTokenizer(characters.file)
    large.size = 70_000
    monkeypatch.setattr(corpora, "load_tokenizer", lambda _: large)
    corpus = write_corpus([texts], texts.parent / "out", CHARACTER_TOKENIZER, processes=1)
    assert corpus.shards[0].ids.dtype == np.uint32
    assert ids(open_corpus(texts.parent / "out", large)) == expected(characters, STORIES)


def test_what_is_whole_is_not_written_again_and_what_is_not_is(
    texts: Path, monkeypatch: pytest.MonkeyPatch, characters: PretrainedTokenizer
) -> None:
    out = texts.parent / "out"
    write_corpus([texts], out, CHARACTER_TOKENIZER, processes=1, shard_bytes=700)
    (out / "stories-0001.bin.head").unlink()
    (out / "stories-0002.bin").write_bytes(b"torn")
    (out / ".tmp-stories-0003.bin-1-x").write_bytes(b"half")
    written: list[FileSpan] = []
    wanted = corpora.read_documents
    monkeypatch.setattr(corpora, "read_documents", lambda part, read: (written.append(part), wanted(part, read))[1])
    progress: list[tuple[int, ...]] = []
    corpus = write_corpus(
        [texts],
        out,
        CHARACTER_TOKENIZER,
        processes=1,
        shard_bytes=700,
        on_progress=lambda *update: progress.append(update),
    )
    assert len(written) == 2
    assert ids(corpus) == expected(characters, STORIES)
    assert not [*out.glob(".tmp-*")]
    assert progress[-1] == (texts.stat().st_size,) * 2
    texts.write_text(texts.read_text().replace("cats", "dogs"))
    changed = write_corpus([texts], out, CHARACTER_TOKENIZER, processes=1, shard_bytes=700)
    assert ids(changed) == expected(characters, [story.replace("cats", "dogs") for story in STORIES])


def test_a_failing_shard_is_reported_with_its_record_and_the_others_are_kept(
    tmp_path: Path, characters: PretrainedTokenizer
) -> None:
    folder, out = shards(tmp_path), tmp_path / "out"
    good = (folder / "data01.json").read_bytes()
    (folder / "data01.json").write_bytes(good[: len(good) // 2])
    for processes in (1, 2):
        with pytest.raises(UserError, match=r"data01\.json, record \d+: is incomplete JSON"):
            write_corpus([folder], out, CHARACTER_TOKENIZER, processes=processes)
    assert (out / "data00.bin.head").is_file()
    assert not (out / "data01.bin").exists()
    with pytest.raises(UserError, match="is not finished"):
        open_corpus(out, characters)
    (folder / "data01.json").write_bytes(good)
    assert ids(write_corpus([folder], out, CHARACTER_TOKENIZER, processes=1)) == expected(characters, STORIES[:30])


def test_a_text_without_separator_is_one_document_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    path.write_text("\n".join(STORIES))
    with pytest.warns(UserWarning, match=r"stories\.txt: does not contain the separator .* so it is one document"):
        assert write_corpus([path], tmp_path / "out", CHARACTER_TOKENIZER, processes=1).num_documents == 1
    assert (
        write_corpus([path], tmp_path / "lines", CHARACTER_TOKENIZER, separator="\n\n", processes=1).num_documents == 61
    )


def test_characters_that_the_tokenizer_does_not_know_are_counted_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("caf\u00e9<|endoftext|>na\u00efve \u00e9", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"maps 3 of 13 tokens to its unknown token"):
        write_corpus([path], tmp_path / "out", CHARACTER_TOKENIZER, processes=1)


def test_another_corpus_is_not_overwritten(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_corpus([texts], out, CHARACTER_TOKENIZER, processes=1)
    with pytest.raises(UserError, match="contains another corpus \\(its shards differs\\)"):
        write_corpus([texts], out, CHARACTER_TOKENIZER, processes=1, shard_bytes=700)
    with pytest.raises(UserError, match="contains another corpus \\(its tokenizer differs\\)"):
        write_corpus([texts], out, str(Path(__file__).parents[1] / "text" / "tiny"), processes=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"contains letter\.txt and no unfinished corpus"):
        write_corpus([texts], tmp_path / "mine", CHARACTER_TOKENIZER, processes=1)
    with pytest.raises(UserError, match=r"out: .* contains the source stories\.txt"):
        write_corpus([texts], tmp_path, CHARACTER_TOKENIZER, processes=1)


def test_what_cannot_become_a_corpus_is_refused(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match="processes: must be at least 1, not 0"):
        write_corpus([texts], out, CHARACTER_TOKENIZER, processes=0)
    with pytest.raises(UserError, match=r"nothing\.txt: cannot be read"):
        write_corpus([tmp_path / "nothing.txt"], out, CHARACTER_TOKENIZER)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: must contain \.json"):
        write_corpus([tmp_path / "empty"], out, CHARACTER_TOKENIZER)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "stories.txt").write_text("x")
    with pytest.raises(UserError, match=r"two files would become stories\.bin"):
        write_corpus([texts, tmp_path / "b" / "stories.txt"], out, CHARACTER_TOKENIZER)
    blank = tmp_path / "blank.txt"
    blank.write_text("\n \n")
    with pytest.raises(UserError, match=r"blank\.txt: contains no document"):
        write_corpus([blank], out, CHARACTER_TOKENIZER, processes=1)

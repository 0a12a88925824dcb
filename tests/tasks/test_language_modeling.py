"""Promises of language modeling: chunks equal the files' tokens, in the requested order, and damaged files are refused
before training."""

from pathlib import Path

import numpy as np
import pytest

from numerate import catalogue
from numerate.errors import UserError
from numerate.tasks.chunk_orders import PublishedChunks
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.questions import Questions
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER
from numerate.tokenizers.layout import NextToken
from numerate.tokenizers.tokenizer import Characters
from numerate.training.data_stream import BatchStream

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

from text_corpus import STORIES, raw_ids, write_shards


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache and data, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMERATE_DATA", str(tmp_path / "data"))
    return tmp_path / "cache"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder of ours with some shards."""
    return write_shards(tmp_path, 600)


def ids(questions: Questions) -> list[list[int]]:
    assert questions.tokens is not None
    rows = questions.tokens
    return [row[: length + 1].tolist() for row, length in zip(rows.ids, rows.lengths.tolist(), strict=True)]


def task_of(folder: Path, **settings: object) -> LanguageModeling:
    return LanguageModeling(**{"train": str(folder), "tokenizer": CHARACTER_TOKENIZER, "context_length": 16} | settings)


@pytest.mark.parametrize("order", ["shuffled", "published", "sequential"])
def test_an_example_does_not_depend_on_the_portions(written: Path, order: str) -> None:
    task = task_of(written, order=order)
    count = task.num_chunks("train") + 30  # into the second pass
    whole = ids(task.examples("train", 3, 0, count))
    again = task_of(written, order=order)
    assert ids(again.examples("train", 3, count - 5, 5)) == whole[-5:]
    portions = [again.examples("train", 3, start, 7) for start in (0, 7, 14)]
    assert ids(Questions.concatenate(portions)) == whole[:21]
    assert (ids(task.examples("train", 4, 0, 20)) != whole[:20]) == (order == "shuffled")


def test_what_is_held_out_comes_once_and_may_be_read_as_a_whole_without_being_in_memory(written: Path) -> None:
    task = task_of(written)
    count, whole = task.num_chunks("test"), task.all_questions("test")
    assert whole is not None
    assert len(whole) == count == len(task.examples("test", 0, 0, 10**6))
    assert ids(whole.take(slice(3, 5))) == ids(task.examples("validation", 0, 3, 2))
    assert "ids" not in vars(whole.tokens), "a part was read, and not the rest"
    assert ids(whole) == ids(task.examples("test", 9, 0, count))
    assert len(task.examples("test", 0, count, 5)) == 0
    targets = sum(len(chunk) - 1 for chunk in ids(whole))
    assert targets == task.corpus("test").num_tokens - 1
    assert task.all_questions("train") is None
    assert {shard.path.name for shard in task.corpus("test").shards} == {"stories-0000.bin"}, "as llama2.c has it"


def test_validation_of_its_own_is_read_and_a_context_may_be_fixed(written: Path, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.mkdir()
    own = raw_ids(load_tokenizer(CHARACTER_TOKENIZER), STORIES[:5])
    own.tofile(held / "a.bin")
    task = task_of(written, validation=str(held))
    assert len(task.corpus("train").shards) == len(list(written.glob("*.bin")))
    assert ids(task.examples("test", 0, 0, 1)) == [own[:17].tolist()]
    assert task.axes() == ("context_length",)
    fixed = task.at_cell(context_length=64)
    assert len(ids(fixed.examples("test", 0, 0, 1))[0]) == 65
    assert fixed.examples("test", 0, 0, 1).metadata["context_length"].tolist() == [64]
    assert len(ids(fixed.longest_questions())[0]) == 65
    assert fixed.training_spans()["context_length"].high == 64
    assert task.num_questions() == task.num_chunks("train"), "which training.epochs counts"
    assert task.is_held_out("test")


def test_a_run_reads_its_order_and_goes_on_exactly_where_it_stopped(written: Path) -> None:
    task = task_of(written)

    def batches(places: list[int]) -> list[list[list[int]]]:
        stream = BatchStream(task_of(written), TokenIds(), NextToken(), seed=5, batch_size=8, window=4)
        return [stream.batch(8 * place).tokens.ids.tolist() for place in places]

    whole = batches([*range(20)])
    assert batches([13, 14, 2]) == [whole[13], whole[14], whole[2]]
    drawn = [one[:-1] for one in ids(task.examples("train", 5, 0, 8))]
    assert [row[: len(one)] for row, one in zip(whole[0], drawn, strict=True)] == drawn
    stream = BatchStream(task, TokenIds(), NextToken(), seed=5, batch_size=8)
    parts = [stream.batch(16, rank, 2, part, 2) for rank in (0, 1) for part in (0, 1)]
    assert [row for part in parts for row in part.tokens.example_indices.tolist()] == list(range(16, 24))
    together = stream.batch(16)
    assert [row for part in parts for row in part.targets.tolist()] == together.targets.tolist()


def test_in_the_published_order_each_process_follows_its_own(written: Path) -> None:
    task = task_of(written, order="published")
    stream = BatchStream(task, TokenIds(), NextToken(), seed=5, batch_size=8)
    corpus = task.corpus("train")
    for rank in (0, 1):
        orders = PublishedChunks(corpus.shard_sizes, 16, rank=rank).locations(range(8, 12))  # Random(42 + 1337 rank)
        expected = corpus.token_rows(orders, 16).ids
        got = [stream.batch(16, rank, 2, part, 2) for part in (0, 1)]
        assert [row for batch in got for row in batch.tokens.ids.tolist()] == expected[:, :-1].tolist()
        assert [row for batch in got for row in batch.targets.tolist()] == expected[:, 1:].tolist()
    held = PublishedChunks(task.corpus("test").shard_sizes, 16)
    assert task.num_chunks("validation") == held.chunks_per_epoch
    assert (
        ids(task.examples("validation", 0, 0, 3))[0][:-1]
        == task.corpus("test").token_rows(held.locations([0]), 16).ids[0, :-1].tolist()
    )
    assert task.num_chunks("test") > held.chunks_per_epoch, "the last whole chunk and the rest are read in the end"


@pytest.mark.parametrize("form", ["txt", "jsonl", "json"])
def test_texts_are_tokenised_once_and_anew_when_they_change(tmp_path: Path, form: str, cache: Path) -> None:
    import json

    def write(path: Path, stories: list[str]) -> None:
        path.write_text(
            {
                "txt": "<|endoftext|>".join(stories),
                "jsonl": "\n".join(json.dumps({"text": story}) for story in stories),
                "json": json.dumps([{"story": story} for story in stories]),
            }[form]
        )

    write(tmp_path / f"a.{form}", STORIES)
    write(tmp_path / f"b.{form}", STORIES[:9])
    task = task_of(tmp_path / f"a.{form}", validation=str(tmp_path / f"b.{form}"))
    with pytest.raises(
        UserError, match=r"train: .*must be tokenized first, with `numerate data tokenise .*out=.*tokenizer=char"
    ):
        task.examples("train", 0, 0, 1)
    task.prepare_files()
    known = task.load_tokenizer()
    assert np.array_equal(task.corpus("train").shards[0].ids, raw_ids(known, STORIES))
    assert task.corpus("test").num_documents == 9
    stamps = [path.stat().st_mtime_ns for path in sorted(cache.rglob("*.bin"))]
    task.prepare_files()
    assert [path.stat().st_mtime_ns for path in sorted(cache.rglob("*.bin"))] == stamps
    write(tmp_path / f"a.{form}", STORIES[:30])
    with pytest.raises(UserError, match="must be tokenized first"):
        task_of(tmp_path / f"a.{form}", validation=str(tmp_path / f"b.{form}")).examples("train", 0, 0, 1)


def test_the_tokenizer_beside_the_tokens_is_taken_where_none_is_named(written: Path) -> None:
    with pytest.raises(UserError, match=r"^task\.tokenizer: must be set, since .* has none"):
        task_of(written, tokenizer="").examples("train", 0, 0, 1)
    from numerate.text.data.vocabularies import save_tokenizer

    save_tokenizer(load_tokenizer(str(Path(__file__).parents[1] / "text" / "tiny")), written.parent)
    assert task_of(written, tokenizer="").load_tokenizer().size == load_tokenizer(str(written.parent)).size


# What is wrong with files ---------------------------------------------------------------------------------------------


def refused(task: LanguageModeling, *messages: str) -> None:
    with pytest.raises(UserError) as raised:
        task.examples("train", 0, 0, 1)
    for one in messages:
        assert one in str(raised.value)


def test_missing_and_damaged_files_are_refused_with_the_command_that_makes_them(written: Path) -> None:
    for name in ("tiny_stories", "tiny_stories_2048"):
        refused(catalogue.get_part("Task", name), f"does not exist yet; create it with `numerate data prepare {name}`")
    refused(LanguageModeling("tinystories"), "download it with `numerate data fetch tinystories`")
    refused(LanguageModeling("nowhere/at_all"), "train: there is no nowhere/at_all here or in")
    refused(LanguageModeling("tiny_storys"), "Did you mean 'tiny_stories'")
    (written / "stories-0001.bin").write_bytes(b"")
    refused(task_of(written), "stories-0001.bin: is empty")
    refused(LanguageModeling(), "train: must be a folder of tokens", "numerate data prepare tiny_stories_2048")
    (mine := written.parent / "mine").mkdir()
    written.rename(mine / "train")
    refused(LanguageModeling(str(mine)), f"is a folder of `numerate data prepare`; set train={mine}/train")


def test_a_corpus_shorter_than_a_context_is_refused_and_a_lone_shard_needs_a_validation(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    raw_ids(load_tokenizer(CHARACTER_TOKENIZER), STORIES[:1]).tofile(path)
    refused(task_of(path), "no shard is left for training")
    size = path.stat().st_size // 2
    task = task_of(path, validation=str(path), context_length=size)
    refused(task, f"context_length: {size} must be at most {size - 1}", "or use more text")
    refused(
        task_of(path, validation=str(path), context_length=size, order="published"), "order=published needs at least"
    )
    assert len(task.examples("test", 0, 0, 9)) == 1, "held-out text may be shorter: its chunk is"
    assert len(task_of(path, validation=str(path), context_length=size - 1).examples("train", 0, 0, 9)) == 9


def test_another_tokenizer_is_refused_with_what_is_right(written: Path) -> None:
    task = task_of(written)
    with pytest.raises(UserError, match="the tokenizer must be TokenIds and the layout NextToken"):
        Characters().build_vocabulary(task)
    with pytest.raises(UserError, match="the tokenizer must be TokenIds and the layout NextToken"):
        Characters().encode_examples(task.examples("train", 0, 0, 1), TokenIds().build_vocabulary(task))

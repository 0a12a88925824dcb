"""Promises of corpora in files: what is read is what was written, and what is not whole or not ours is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numerate.errors import UserError
from numerate.tasks.chunk_orders import SequentialChunks
from numerate.tasks.corpus_files import Corpus, open_corpus, split_validation_shards
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, load_tokenizer
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

from text_corpus import STORIES, raw_ids, write_shards


@pytest.fixture(scope="module")
def characters() -> PretrainedTokenizer:
    return load_tokenizer(CHARACTER_TOKENIZER)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder of ours with four shards."""
    return write_shards(tmp_path, 600)


def test_raw_shards_are_read_in_the_order_of_their_names(tmp_path: Path, characters: PretrainedTokenizer) -> None:
    for name, texts in (("data01.bin", STORIES[:3]), ("data00.bin", STORIES[3:9])):
        raw_ids(characters, texts).tofile(tmp_path / name)
    corpus = open_corpus(tmp_path, characters)
    assert [shard.path.name for shard in corpus.shards] == ["data00.bin", "data01.bin"]
    assert np.array_equal(corpus.shards[1].ids, raw_ids(characters, STORIES[:3]))
    assert (corpus.num_tokens, corpus.num_documents, corpus.text_bytes) == (sum(corpus.shard_sizes), None, None)


@pytest.mark.parametrize("kind", ["<u2", "<u4"])
def test_arrays_of_numpy_are_read(tmp_path: Path, characters: PretrainedTokenizer, kind: str) -> None:
    ids = raw_ids(characters, STORIES).astype(kind)
    np.save(tmp_path / "edufineweb_val_000000.npy", ids[:200])
    np.save(tmp_path / "edufineweb_train_000001.npy", ids)
    train, validation = split_validation_shards(open_corpus(tmp_path, characters))
    assert np.array_equal(train.shards[0].ids, ids)
    assert np.array_equal(validation.shards[0].ids, ids[:200])


def test_rows_are_chunks_with_what_follows_them(written: Path, characters: PretrainedTokenizer) -> None:
    corpus = open_corpus(written, characters)
    order = SequentialChunks(corpus.shard_sizes, 16)
    rows = corpus.token_rows(order.locations(range(order.chunks_per_epoch)), 16)
    assert rows.ids.shape == (order.chunks_per_epoch, 17)
    assert int(rows.lengths.sum()) == corpus.num_tokens - len(corpus.shards), "each token but the first of a shard"
    there = np.arange(16) < rows.lengths[:, None]
    assert not rows.ids[np.arange(17) > rows.lengths[:, None]].any()
    assert np.array_equal(rows.ids[:, 1:][there], np.concatenate([shard.ids[1:] for shard in corpus.shards]))
    assert np.array_equal(rows.ids[:, :-1][there], np.concatenate([shard.ids[:-1] for shard in corpus.shards]))


def test_a_corpus_larger_than_the_memory_given_is_read(tmp_path: Path) -> None:
    """1.2 GB (a file with a hole) in a process whose heap may have 0.6 GB: what is read does not stay."""
    path = tmp_path / "large.bin"
    with open(path, "wb") as file:
        file.truncate(1_200_000_000)
    program = f"""
import mmap, resource
import numpy as np
from pathlib import Path
from numerate.tasks.chunk_orders import ShuffledChunks
from numerate.tasks.corpus_files import Corpus, Shard
corpus = Corpus((Shard(Path({str(path)!r}), np.dtype("<u2"), 0, None),))
resource.setrlimit(resource.RLIMIT_DATA, (600_000_000,) * 2)
order = ShuffledChunks(corpus.shard_sizes, 512, seed=0)
largest = 0
for step in range(3):
    corpus.token_rows(order.locations(range(step * 5000, step * 5000 + 5000)), 512)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    largest = max(largest, pages * resource.getpagesize())
    corpus.release_memory()
print(largest)
"""
    if not Path("/proc/self/statm").is_file():
        pytest.skip("the size of a process is read from /proc")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 600_000_000


def refused(place: Path, known: PretrainedTokenizer, *messages: str) -> None:
    with pytest.raises(UserError) as raised:
        open_corpus(place, known)
    for one in messages:
        assert one in str(raised.value)


def test_a_shard_that_is_corrupted_or_changed_is_refused(written: Path, characters: PretrainedTokenizer) -> None:
    shard = written / "stories-0001.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2])
    refused(written, characters, "stories-0001.bin", "it is corrupted")
    shard.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    refused(written, characters, "stories-0001.bin", "checksum mismatch")
    shard.write_bytes(b"")
    refused(written, characters, "stories-0001.bin", "is empty")
    shard.unlink()
    refused(written, characters, "stories-0001.bin", "cannot be read")


def test_a_shard_of_ours_without_its_head_is_not_taken_for_a_raw_one(
    written: Path, characters: PretrainedTokenizer
) -> None:
    head = written / "stories-0001.bin.head"
    content = head.read_text()
    head.unlink()
    refused(written, characters, "stories-0001.bin", "is not finished")
    head.write_text(content[:50])
    refused(written, characters, "stories-0001.bin.head", "cannot be read")
    head.write_text(json.dumps(json.loads(content) | {"complete": False}))
    refused(written, characters, "must be the metadata of a complete shard")


def test_a_folder_that_is_not_finished_is_refused(written: Path, characters: PretrainedTokenizer) -> None:
    content = json.loads((written / "corpus.json").read_text())
    (written / "corpus.json").write_text(json.dumps(content | {"complete": False}))
    refused(written, characters, "is not finished", "resumes it")


def test_shards_of_another_tokenizer_are_refused(written: Path) -> None:
    other = load_tokenizer(str(Path(__file__).parents[1] / "text" / "tiny"))
    refused(written, other, "stories-0000.bin was written with (characters")


def test_a_raw_shard_without_the_start_of_a_document_warns(tmp_path: Path, characters: PretrainedTokenizer) -> None:
    ids = raw_ids(characters, STORIES)
    ids[ids != characters.document_start_id].tofile(tmp_path / "a.bin")
    with pytest.warns(
        UserWarning, match=r"a\.bin: id 2, with which a document begins, is not in its first [\d,]+ tokens"
    ):
        assert open_corpus(tmp_path, characters).num_tokens == len(ids) - len(STORIES)


def test_ids_beyond_the_vocabulary_are_refused_with_their_place(
    tmp_path: Path, characters: PretrainedTokenizer
) -> None:
    ids = raw_ids(characters, STORIES)
    ids[777] = 60_000
    ids.tofile(tmp_path / "a.bin")
    refused(tmp_path, characters, "a.bin: token 777 has id 60,000", f"ids below {characters.size}")


def test_raw_files_that_cannot_be_whole_are_refused(tmp_path: Path, characters: PretrainedTokenizer) -> None:
    path = tmp_path / "a.bin"
    ids = raw_ids(characters, STORIES)
    path.write_bytes(ids.tobytes()[:-1])
    refused(tmp_path, characters, "a.bin", "not a multiple of 2")
    path.write_bytes(ids.tobytes() + bytes(10_000))
    refused(tmp_path, characters, "a.bin", "zeros", "interrupted download")
    path.write_bytes(b"")
    refused(tmp_path, characters, "a.bin: is empty")
    path.unlink()
    refused(tmp_path, characters, "must contain .bin or .npy shards")
    refused(path, characters, "cannot be read")
    (tmp_path / "a.txt").write_text("text")
    refused(tmp_path / "a.txt", characters, "must be a .bin or .npy file")


def test_arrays_that_cannot_be_read_are_refused(tmp_path: Path, characters: PretrainedTokenizer) -> None:
    path = tmp_path / "a.npy"
    np.save(path, raw_ids(characters, STORIES))
    path.write_bytes(path.read_bytes()[:-50])
    refused(tmp_path, characters, "a.npy: is not a complete .npy file")
    path.write_bytes(b"\x93NUMPY")
    refused(tmp_path, characters, "a.npy: is not a complete .npy file")
    np.save(path, raw_ids(characters, STORIES).astype(np.float32))
    refused(tmp_path, characters, "a.npy: must be", "not float32")
    np.save(path, np.zeros((2, 3), dtype=np.uint16))
    refused(tmp_path, characters, "shape (2, 3)")
    raw_ids(characters, STORIES).tofile(tmp_path / "a.bin")
    refused(tmp_path, characters, "either .bin or .npy files, not both")


def test_published_ids_of_tiny_stories_are_read(shared: Path) -> None:
    """GPT-2's ids as somebody else wrote them, each story closed by <|endoftext|>."""
    gpt2 = load_tokenizer(str(shared / "data/tokenizers/gpt2"))
    file = shared / "data/tinystories/czhou578_train-gpt2/val.bin"
    corpus: Corpus = open_corpus(file, gpt2)
    assert corpus.shard_sizes == (622_159,)
    stories = (file.parent / "val.decoded.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    found = gpt2.split_documents(corpus.shards[0].ids[:2000])
    assert [gpt2.decode(one) for one in found[:3]] == stories[:3]
    with pytest.raises(UserError, match=r"val\.bin: token \d+ has id"):
        open_corpus(file, load_tokenizer(str(shared / "data/tokenizers/t5-small")))
    small = np.fromfile(file, dtype="<u2")[:3000] % 32_000
    assert not load_tokenizer(str(shared / "data/tokenizers/mistral/tokenizer.model.v1")).can_reproduce(small)

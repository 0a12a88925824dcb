"""Tokenized corpora in files: each shard is one long row of ids, memory-mapped.

Three formats are supported: raw uint16 `.bin` files, as written by llama2.c and nanoGPT; `.npy` files with one row of
ids, as common for FineWeb-Edu; and the output of `numerate data tokenise`, a `.bin` of uint16 (uint32 for more than
65,536 ids) with metadata in `.bin.head`. The metadata is written last and the `corpus.json` of the folder first, so
that an incomplete `.bin` is never mistaken for a complete one.
"""

import hashlib
import json
import mmap
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError, raise_first
from numerate.tasks.chunk_orders import ChunkLocations
from numerate.tasks.token_rows import TokenRows

FORMAT = "numerate tokens 1"
METADATA_SUFFIX = ".head"
CORPUS_FILE = "corpus.json"
"""The file that describes a folder written by numerate, and whether it is complete."""

_CHECKSUM_BLOCK_BYTES = 1 << 20
_MAX_CHECKSUM_BLOCKS = 64
_CHUNK_TOKENS = 1 << 23
_MAX_TRAILING_ZEROS = 4096
_NUM_CHECKED_TOKENS = 1 << 14
_ROWS_PER_RELEASE = 1024


class TokenizerProtocol(Protocol):
    """The interface of `numerate.text.tokenizers.stored_tokenizer.PretrainedTokenizer`, which tasks do not import."""

    size: int

    @property
    def document_start_id(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str: ...

    def can_reproduce(self, ids: NDArray[np.integer]) -> bool: ...


class Shard:
    """A file of tokens: `ids` (memory-mapped, uint16 or uint32), and its metadata, if any.

    `num_documents` and `text_bytes` (bytes of UTF-8) are None if unknown.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], offset: int, metadata: dict[str, Any] | None) -> None:
        self.path, self.metadata = path, metadata
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.ids: NDArray[np.unsignedinteger[Any]] = np.frombuffer(self._map, dtype=dtype, offset=offset)
        self.num_documents: int | None = None if metadata is None else int(metadata["documents"])
        self.text_bytes: int | None = None if metadata is None else int(metadata["text_bytes"])

    def __len__(self) -> int:
        return len(self.ids)

    def release_memory(self) -> None:
        """Releases the memory of pages read so far; they are read from the file again when needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A tokenized corpus: its shards in order.

    For example:

        corpus = open_corpus("stories", load_tokenizer("tokenizer.model"))
        train, validation = split_validation_shards(corpus)
        order = ShuffledChunks(train.shard_sizes, 512, seed=1)
        train.token_rows(order.locations(range(64)), 512).ids.shape  # (64, 513)
    """

    shards: tuple[Shard, ...]
    _num_rows_read: list[int] = field(default_factory=lambda: [0], init=False, repr=False)
    """Number of chunks read since memory was last released."""

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Number of tokens of each shard."""
        return tuple(map(len, self.shards))

    @property
    def num_tokens(self) -> int:
        return sum(self.shard_sizes)

    @property
    def num_documents(self) -> int | None:
        """Number of documents; None if the metadata of a shard lacks it."""
        return _sum_or_none(shard.num_documents for shard in self.shards)

    @property
    def text_bytes(self) -> int | None:
        """Size of the texts in bytes of UTF-8; None if the metadata of a shard lacks it."""
        return _sum_or_none(shard.text_bytes for shard in self.shards)

    def token_rows(self, locations: ChunkLocations, context_length: int) -> TokenRows:
        """The chunks at these locations, each with its next token, truncated to the longest. Memory use is bounded."""
        ids = np.zeros((len(locations.shards), context_length + 1), dtype=np.int64)
        chunks = zip(locations.shards.tolist(), locations.offsets.tolist(), locations.lengths.tolist(), strict=True)
        for row, (shard, offset, length) in enumerate(chunks):
            ids[row, : length + 1] = self.shards[shard].ids[offset : offset + length + 1]
            self._num_rows_read[0] += 1
            if self._num_rows_read[0] >= _ROWS_PER_RELEASE:
                self.release_memory()
        return TokenRows(ids[:, : int(locations.lengths.max(initial=-1)) + 1], locations.lengths)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokens in 16 characters, independent of file names; for large shards of their size and sample
        blocks."""
        parts = [f"{len(shard)} {shard.ids.dtype} {file_checksum(shard.path)}" for shard in self.shards]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def release_memory(self) -> None:
        """Releases the memory of what was read; call it regularly in long reads."""
        self._num_rows_read[0] = 0
        for shard in self.shards:
            shard.release_memory()

    def select_shards(self, shards: Iterable[int]) -> "Corpus":
        """The corpus of some of the shards."""
        return Corpus(tuple(self.shards[number] for number in shards))


class ChunkRows(TokenRows):
    """Chunks at locations of a corpus, whose `ids` are read lazily."""

    def __init__(self, corpus: Corpus, locations: ChunkLocations, context_length: int) -> None:
        for name, value in (
            ("corpus", corpus),
            ("locations", locations),
            ("context_length", context_length),
            ("lengths", locations.lengths),
        ):
            object.__setattr__(self, name, value)

    corpus: Corpus
    locations: ChunkLocations
    context_length: int

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        return self.corpus.token_rows(self.locations, self.context_length).ids

    def take(self, rows: "NDArray[Any] | slice") -> TokenRows:
        return ChunkRows(self.corpus, ChunkLocations(*(part[rows] for part in self.locations)), self.context_length)


def validation_shard_indices(corpus: Corpus) -> list[int]:
    """The shards for validation: those with `val` in their name, otherwise the first one."""
    return [number for number, shard in enumerate(corpus.shards) if "val" in shard.path.name.lower()] or [0]


def split_validation_shards(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """Training and validation shards: those with `val` in their name are for validation, as in FineWeb-Edu; if there
    are none, the first shard is, as in llama2.c. Raises `UserError` if no shard is left to train on."""
    validation_indices = validation_shard_indices(corpus)
    train_indices = [number for number in range(len(corpus.shards)) if number not in validation_indices]
    if not train_indices:
        raise UserError(
            f"corpus: {corpus.shards[0].path} is the validation set and no shard is left for training; use two or more "
            "shards, or a separate validation corpus; `numerate data prepare mine.txt out=mine` makes both from a text"
        )
    return corpus.select_shards(train_indices), corpus.select_shards(validation_indices)


def open_corpus(source: str | Path | Sequence[str | Path], tokenizer: TokenizerProtocol) -> Corpus:
    """The shards of a folder in the order of their names, or the given files. All of them are checked.

    Raises `UserError` with the file name if one is empty, truncated, incomplete, written with another tokenizer than
    `tokenizer`, or has ids outside its vocabulary. (The length of raw shards without metadata is unknown: truncation
    between two tokens is not detected. Another tokenizer is usually detected by decoding the first documents.)
    """
    paths = [Path(source)] if isinstance(source, str | Path) else [Path(one) for one in source]
    paths = [path.expanduser() for path in paths]
    if len(paths) == 1 and paths[0].is_dir():
        paths = _shard_paths(paths[0])
    if not paths:
        raise UserError("corpus: must be a folder of .bin or .npy files, or such files")
    shards = tuple(open_shard(path, tokenizer) for path in paths)
    if all(len(shard) < 2 for shard in shards):
        raise UserError(f"{paths[0].parent}: at least one shard must have two tokens")
    return Corpus(shards)


def is_complete(folder: Path) -> bool:
    """Whether a folder written by `numerate data tokenise` is complete."""
    return (folder / CORPUS_FILE).is_file() and _read_json(folder / CORPUS_FILE).get("complete") is True


def _shard_paths(folder: Path) -> list[Path]:
    corpus_file = folder / CORPUS_FILE
    if corpus_file.is_file():
        header = _read_json(corpus_file)
        if not header.get("complete"):
            raise UserError(f"{folder}: is not finished; the same `numerate data tokenise` resumes it")
        return [folder / name for name in header["shards"]]
    bin_paths, npy_paths = sorted(folder.glob("*.bin")), sorted(folder.glob("*.npy"))
    if bool(bin_paths) == bool(npy_paths):
        what = (
            "either .bin or .npy files, not both; or name the files"
            if bin_paths
            else ".bin or .npy shards (`numerate data tokenise` writes them)"
        )
        raise UserError(f"{folder}: must contain {what}")
    return bin_paths or npy_paths


def open_shard(path: Path, tokenizer: TokenizerProtocol) -> Shard:
    """Opens and checks a shard. Raises `UserError` as `open_corpus` does."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    if not size:
        raise UserError(f"{path}: is empty (disk full, or download interrupted?)")
    metadata_path = path.with_name(path.name + METADATA_SUFFIX)
    if path.suffix == ".npy":
        shard = _open_npy_shard(path)
    elif metadata_path.is_file():
        shard = _open_shard_with_metadata(path, _read_json(metadata_path), tokenizer)
    else:
        raise_first(_raw_shard_problems(path, size))
        shard = Shard(path, np.dtype("<u2"), 0, None)
    _check_ids(shard, tokenizer)
    if shard.metadata is None:
        _check_shard_without_metadata(shard, tokenizer)
    shard.release_memory()
    return shard


def _raw_shard_problems(path: Path, size: int) -> Iterator[str]:
    """What is wrong with a shard without metadata by its name and size."""
    if (path.parent / CORPUS_FILE).is_file():
        yield f"{path}: is not finished; the same `numerate data tokenise` resumes it"
    if path.suffix != ".bin":
        yield f"{path}: must be a .bin or .npy file"
    if size % 2:
        yield f"{path}: has {size:,} bytes, not a multiple of 2; is it truncated?"


def _open_shard_with_metadata(path: Path, metadata: dict[str, Any], tokenizer: TokenizerProtocol) -> Shard:
    """Opens a shard with metadata."""
    raise_first(_shard_problems(path, metadata, tokenizer))
    return Shard(path, np.dtype(metadata["kind"]), 0, metadata)


def _shard_problems(path: Path, metadata: dict[str, Any], tokenizer: TokenizerProtocol) -> Iterator[str]:
    """What is wrong with a shard by its metadata."""
    if metadata.get("format") != FORMAT or not metadata.get("complete"):
        yield f"{path}{METADATA_SUFFIX}: must be the metadata of a complete shard ({FORMAT}); write the shard again"
    dtype, num_tokens, size = np.dtype(metadata["kind"]), int(metadata["tokens"]), path.stat().st_size
    if size != num_tokens * dtype.itemsize:
        yield (
            f"{path}: has {size:,} bytes, and its head says {num_tokens:,} tokens of {dtype.itemsize} bytes; it is "
            "corrupted: remove it and run `numerate data tokenise` again"
        )
    if metadata["tokenizer"] != tokenizer.fingerprint:
        yield (
            f"tokenizer: must be the one that {path} was written with ({metadata.get('tokenizer_name', 'unnamed')}, "
            f"{metadata['vocabulary']:,} ids, {metadata['tokenizer'][:8]}), not one with {tokenizer.size:,} ids "
            f"({tokenizer.fingerprint[:8]})"
        )
    if file_checksum(path) != metadata["sum"]:
        yield (
            f"{path}: has changed since it was written (checksum mismatch); remove it and repeat the same `numerate "
            "data tokenise`"
        )


def _open_npy_shard(path: Path) -> Shard:
    """Opens a `.npy` shard."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(
            f"{path}: is not a complete .npy file ({str(error).splitlines()[0]}); download it again"
        ) from error
    if array.ndim != 1 or array.dtype not in (np.uint16, np.uint32) or not array.dtype.isnative:
        raise UserError(f"{path}: must be one-dimensional uint16 or uint32, not {array.dtype} of shape {array.shape}")
    if not len(array):
        raise UserError(f"{path}: has no tokens")
    return Shard(path, array.dtype, int(array.offset), None)


def _check_ids(shard: Shard, tokenizer: TokenizerProtocol) -> None:
    """Raises `UserError` for ids outside the tokenizer's vocabulary."""
    for start in range(0, len(shard), _CHUNK_TOKENS):
        chunk = shard.ids[start : start + _CHUNK_TOKENS]
        largest = int(chunk.max())
        if largest >= tokenizer.size:
            position = start + int(np.argmax(chunk >= tokenizer.size))
            raise UserError(
                f"{shard.path}: token {position:,} has id {int(shard.ids[position]):,}, and the tokenizer has ids "
                f"below {tokenizer.size:,}; use the tokenizer it was written with, or an undamaged file"
            )
        if shard.metadata is None and start + _CHUNK_TOKENS < len(shard):
            shard.release_memory()


def _check_shard_without_metadata(shard: Shard, tokenizer: TokenizerProtocol) -> None:
    """Rejects a shard without metadata that looks truncated or was written with another tokenizer."""
    end = shard.ids[-_MAX_TRAILING_ZEROS:]
    if len(end) == _MAX_TRAILING_ZEROS and not end.any():
        raise UserError(
            f"{shard.path}: ends in {_MAX_TRAILING_ZEROS:,} zeros or more, as after an interrupted download; "
            "download it again"
        )
    first_ids = shard.ids[:_CHUNK_TOKENS]
    if tokenizer.document_start_id not in first_ids:
        absence = f"is not in its first {len(first_ids):,} tokens"
        warnings.warn(
            f"{shard.path}: id {tokenizer.document_start_id}, with which a document begins, {absence}; "
            "is the tokenizer the one that it was written with?",
            stacklevel=4,
        )
    first_ids = first_ids[:_NUM_CHECKED_TOKENS]
    if not tokenizer.can_reproduce(first_ids):
        text = tokenizer.decode(first_ids[:16])
        raise UserError(
            f"tokenizer: {shard.path} was written with another one than that given, with which it begins {text!r}; "
            "use the one it was written with"
        )


def file_checksum(path: Path) -> int:
    """A checksum of a file; above 64 MB, of blocks sampled from it."""
    size, checksum = path.stat().st_size, 0
    blocks = -(-size // _CHECKSUM_BLOCK_BYTES)
    block_indices = (
        range(blocks)
        if blocks <= _MAX_CHECKSUM_BLOCKS
        else np.linspace(0, blocks - 1, _MAX_CHECKSUM_BLOCKS).astype(int).tolist()
    )
    with open(path, "rb") as file:
        for block in block_indices:
            file.seek(block * _CHECKSUM_BLOCK_BYTES)
            checksum = zlib.crc32(file.read(_CHECKSUM_BLOCK_BYTES), checksum)
    return checksum


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); remove it and write the tokens again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: is not token metadata; remove it and write the tokens again")
    return content


def _sum_or_none(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total

"""Corpora of tokens in files: one long row of ids to a shard, mapped into memory.

Three forms are read. Raw ones of uint16, `.bin`, are what llama2.c and nanoGPT write; `.npy` with one row of ids is
what FineWeb-Edu is mostly cut into; and what `numerate data tokenise` writes is a `.bin` of uint16 (of uint32 for more
than 65,536 ids) with a head beside it, `.bin.head`, that says what it is. The head comes last, so that a `.bin` of ours
without one is never taken for whole: its folder has a `corpus.json` from the first moment on.
"""

import hashlib
import json
import mmap
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.tasks.chunk_orders import Places
from numerate.tasks.token_rows import TokenRows

FORMAT = "numerate tokens 1"
HEAD = ".head"
CORPUS = "corpus.json"
"""The file of a folder of ours that says what is in it, and whether all of it is there."""

_BLOCK = 1 << 20
_MOST_BLOCKS = 64
_PORTION = 1 << 23
_ZEROS = 4096
_LOOKED_AT = 1 << 14
_ROWS_KEPT = 1024


class TokenizerProtocol(Protocol):
    """The interface of `numerate.text.tokenizers.stored_tokenizer.StoredTokenizer`, which tasks do not import."""

    size: int

    @property
    def begin(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str: ...

    def agrees(self, ids: NDArray[np.integer]) -> bool: ...


class ChunkArrays(NamedTuple):
    """Chunks as rows: `inputs` and `targets` int64 `[rows, time]`, and `lengths` int64 `[rows]`. The targets are the
    inputs one token later; behind its length a row has 0 in both."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    lengths: NDArray[np.int64]


class Shard:
    """A file of tokens: `ids` (mapped, uint16 or uint32), and what its head says of it, if it has one.

    `documents` and `text_bytes` (bytes of UTF-8) are None if unknown.
    """

    def __init__(self, path: Path, kind: np.dtype[Any], begin: int, head: dict[str, Any] | None) -> None:
        self.path, self.head = path, head
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.ids: NDArray[np.unsignedinteger[Any]] = np.frombuffer(self._map, dtype=kind, offset=begin)
        self.documents: int | None = None if head is None else int(head["documents"])
        self.text_bytes: int | None = None if head is None else int(head["text_bytes"])

    def __len__(self) -> int:
        return len(self.ids)

    def release(self) -> None:
        """Releases the memory of pages read so far; they are read from the file again when needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A tokenized corpus: its shards in order.

    >>> corpus = open_corpus("stories", pieces("tokenizer.model"))
    >>> train, validation = published_split(corpus)
    >>> order = ShuffledChunks(train.sizes, 512, seed=1)
    >>> train.rows(order.places(range(64)), 512).inputs.shape
    (64, 512)
    """

    shards: tuple[Shard, ...]
    _read: list[int] = field(default_factory=lambda: [0], init=False, repr=False)
    """How many chunks were read since the last release of memory."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many tokens each shard has."""
        return tuple(map(len, self.shards))

    @property
    def tokens(self) -> int:
        return sum(self.sizes)

    @property
    def documents(self) -> int | None:
        """How many documents there are; None where a shard does not say."""
        return _sum(shard.documents for shard in self.shards)

    @property
    def text_bytes(self) -> int | None:
        """How many bytes of UTF-8 the texts have; None where a shard does not say."""
        return _sum(shard.text_bytes for shard in self.shards)

    def rows(self, places: Places, context: int) -> ChunkArrays:
        """The chunks at places, as rows of `context` tokens."""
        found = self.token_rows(places, context)
        ids = np.pad(found.ids, ((0, 0), (0, context + 1 - found.ids.shape[1])))
        behind = np.arange(context) >= found.lengths[:, None]
        return ChunkArrays(np.where(behind, 0, ids[:, :-1]), np.where(behind, 0, ids[:, 1:]), found.lengths)

    def token_rows(self, places: Places, context: int) -> TokenRows:
        """The chunks at places, each with its next token, cut to the longest. Memory use is bounded."""
        ids = np.zeros((len(places.shards), context + 1), dtype=np.int64)
        chunks = zip(places.shards.tolist(), places.offsets.tolist(), places.lengths.tolist(), strict=True)
        for row, (shard, offset, length) in enumerate(chunks):
            ids[row, : length + 1] = self.shards[shard].ids[offset : offset + length + 1]
            self._read[0] += 1
            if self._read[0] >= _ROWS_KEPT:
                self.release()
        return TokenRows(ids[:, : int(places.lengths.max(initial=-1)) + 1], places.lengths)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokens in 16 characters, whatever the file names; of large shards, of their size and blocks."""
        parts = [f"{len(shard)} {shard.ids.dtype} {block_sum(shard.path)}" for shard in self.shards]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def release(self) -> None:
        """Releases the memory of what was read; call it regularly in long reads."""
        self._read[0] = 0
        for shard in self.shards:
            shard.release()

    def part(self, shards: Iterable[int]) -> "Corpus":
        """The corpus of some of the shards."""
        return Corpus(tuple(self.shards[number] for number in shards))


class ChunkRows(TokenRows):
    """Chunks at places of a corpus, whose `ids` are read lazily."""

    def __init__(self, corpus: Corpus, places: Places, context: int) -> None:
        for name, value in (("corpus", corpus), ("places", places), ("context", context), ("lengths", places.lengths)):
            object.__setattr__(self, name, value)

    corpus: Corpus
    places: Places
    context: int

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        return self.corpus.token_rows(self.places, self.context).ids

    def take(self, rows: "NDArray[Any] | slice") -> TokenRows:
        return ChunkRows(self.corpus, Places(*(part[rows] for part in self.places)), self.context)


def held_out_shards(corpus: Corpus) -> list[int]:
    """Which shards are for validation: those with `val` in their name, else the first one."""
    return [number for number, shard in enumerate(corpus.shards) if "val" in shard.path.name.lower()] or [0]


def published_split(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """Training and validation shards: those with `val` in their name are for validation, as FineWeb-Edu's are; where
    none has, the first one is, as in llama2.c. Raises `UserError` where nothing is left to train on."""
    named = held_out_shards(corpus)
    rest = [number for number in range(len(corpus.shards)) if number not in named]
    if not rest:
        raise UserError(
            f"corpus: {corpus.shards[0].path} is the validation set, and there is nothing beside it to train on; two "
            "shards or more, or a corpus of its own for validation, are right; `numerate data prepare mine.txt "
            "out=mine` makes both of a text"
        )
    return corpus.part(rest), corpus.part(named)


def open_corpus(place: str | Path | Sequence[str | Path], pieces: TokenizerProtocol) -> Corpus:
    """The shards of a folder in the order of their names, or those that are named. All of them are looked through.

    Raises `UserError` that names the file where one is empty, torn, not finished, written with another tokenizer than
    `pieces`, or has ids beyond it. (Raw shards without a head have no known length: one that was cut between two tokens
    is not noticed. A different tokenizer is mostly noticed by decoding the first documents.)
    """
    paths = [Path(place)] if isinstance(place, str | Path) else [Path(one) for one in place]
    paths = [path.expanduser() for path in paths]
    if len(paths) == 1 and paths[0].is_dir():
        paths = _shards_of(paths[0])
    if not paths:
        raise UserError("corpus: no shard is named; a folder of .bin or .npy, or such files, are right")
    shards = tuple(open_shard(path, pieces) for path in paths)
    if all(len(shard) < 2 for shard in shards):
        raise UserError(f"{paths[0].parent}: its shards have no two tokens; a text that is not empty is right")
    return Corpus(shards)


def is_whole(folder: Path) -> bool:
    """Whether a folder of `numerate data tokenise` says that it is finished."""
    return (folder / CORPUS).is_file() and _read_json(folder / CORPUS).get("complete") is True


def _shards_of(folder: Path) -> list[Path]:
    head = folder / CORPUS
    if head.is_file():
        header = _read_json(head)
        if not header.get("complete"):
            raise UserError(f"{folder}: is not finished; the same `numerate data tokenise` resumes it")
        return [folder / name for name in header["shards"]]
    bins, arrays = sorted(folder.glob("*.bin")), sorted(folder.glob("*.npy"))
    if bins and arrays:
        raise UserError(f"{folder}: has .bin and .npy; a folder with one of them, or the files by name, are right")
    if not bins and not arrays:
        raise UserError(f"{folder}: has no shard; .bin or .npy are right (`numerate data tokenise` writes them)")
    return bins or arrays


def open_shard(path: Path, pieces: TokenizerProtocol) -> Shard:
    """One shard, looked through. Raises `UserError` as `open_corpus` does."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); a .bin or .npy file is right") from error
    if not size:
        raise UserError(f"{path}: is empty; a file with tokens is right (was its disk full, or its download stopped?)")
    beside = path.with_name(path.name + HEAD)
    if path.suffix == ".npy":
        shard = _array(path)
    elif beside.is_file():
        shard = _ours(path, _read_json(beside), pieces)
    elif (path.parent / CORPUS).is_file():
        raise UserError(f"{path}: is not finished; the same `numerate data tokenise` resumes it")
    elif path.suffix != ".bin":
        raise UserError(f"{path}: is no file of tokens; .bin or .npy is right")
    elif size % 2:
        raise UserError(f"{path}: has {size:,} bytes, no whole number of tokens of 2 bytes; is its end missing?")
    else:
        shard = Shard(path, np.dtype("<u2"), 0, None)
    _check_ids(shard, pieces)
    if shard.head is None:
        _check_raw(shard, pieces)
    shard.release()
    return shard


def _ours(path: Path, head: dict[str, Any], pieces: TokenizerProtocol) -> Shard:
    """A shard with a head."""
    beside = f"{path}{HEAD}"
    if head.get("format") != FORMAT or not head.get("complete"):
        raise UserError(f"{beside}: is no head of a whole shard ({FORMAT}); write the shard anew")
    kind, tokens, size = np.dtype(head["kind"]), int(head["tokens"]), path.stat().st_size
    if size != tokens * kind.itemsize:
        raise UserError(
            f"{path}: has {size:,} bytes, and its head says {tokens:,} tokens of {kind.itemsize} bytes; it is torn: "
            "remove it, and the same `numerate data tokenise` writes it anew"
        )
    if head["tokenizer"] != pieces.fingerprint:
        raise UserError(
            f"tokenizer: {path} was written with another one ({head.get('tokenizer_name', 'unnamed')}, "
            f"{head['vocabulary']:,} ids, {head['tokenizer'][:8]}) than that given ({pieces.size:,} ids, "
            f"{pieces.fingerprint[:8]}); the one that it was written with is right"
        )
    if block_sum(path) != head["sum"]:
        raise UserError(
            f"{path}: is not what was written (its checksum is another); remove it, and the same `numerate data "
            "tokenise` writes it anew"
        )
    return Shard(path, kind, 0, head)


def _array(path: Path) -> Shard:
    """A shard that numpy wrote."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: is no whole .npy file ({str(error).splitlines()[0]}); fetch it anew") from error
    if found.ndim != 1 or found.dtype not in (np.uint16, np.uint32) or not found.dtype.isnative:
        raise UserError(f"{path}: holds {found.dtype} of shape {found.shape}; one row of uint16 or uint32 is right")
    if not len(found):
        raise UserError(f"{path}: has no tokens; a file with tokens is right")
    return Shard(path, found.dtype, int(found.offset), None)


def _check_ids(shard: Shard, pieces: TokenizerProtocol) -> None:
    """Refuses ids beyond the tokenizer's."""
    for start in range(0, len(shard), _PORTION):
        portion = shard.ids[start : start + _PORTION]
        largest = int(portion.max())
        if largest >= pieces.size:
            at = start + int(np.argmax(portion >= pieces.size))
            raise UserError(
                f"{shard.path}: token {at:,} has id {int(shard.ids[at]):,}, and the tokenizer has ids below "
                f"{pieces.size:,}; the tokenizer that it was written with, or a file that is not damaged, is right"
            )
        if shard.head is None and start + _PORTION < len(shard):
            shard.release()


def _check_raw(shard: Shard, pieces: TokenizerProtocol) -> None:
    """Refuses a shard without a head that looks truncated, or tokenized by another tokenizer."""
    end = shard.ids[-_ZEROS:]
    if len(end) == _ZEROS and not end.any():
        raise UserError(
            f"{shard.path}: ends in {_ZEROS:,} zeros or more, as files do whose download stopped; fetch it anew"
        )
    begin = shard.ids[:_PORTION]
    if pieces.begin not in begin:
        among = f"is not in its first {len(begin):,} tokens"
        warnings.warn(
            f"{shard.path}: id {pieces.begin}, with which a document begins, {among}; "
            "is the tokenizer the one that it was written with?",
            stacklevel=4,
        )
    begin = begin[:_LOOKED_AT]
    if not pieces.agrees(begin):
        read = pieces.decode(begin[:16])
        raise UserError(
            f"tokenizer: {shard.path} was written with another one than that given, with which it begins {read!r}; "
            "the one that it was written with is right"
        )


def block_sum(path: Path) -> int:
    """A checksum of a file: of all of it, or of blocks spread over it where it is larger than 64 MB."""
    size, check = path.stat().st_size, 0
    blocks = -(-size // _BLOCK)
    chosen = range(blocks) if blocks <= _MOST_BLOCKS else np.linspace(0, blocks - 1, _MOST_BLOCKS).astype(int).tolist()
    with open(path, "rb") as file:
        for block in chosen:
            file.seek(block * _BLOCK)
            check = zlib.crc32(file.read(_BLOCK), check)
    return check


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); remove it, and write the tokens anew") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: is no head of tokens; remove it, and write the tokens anew")
    return found


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total

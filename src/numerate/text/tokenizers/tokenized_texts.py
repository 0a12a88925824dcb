"""A cache of tokenized questions: in memory for small files, else in memory-mapped files.

The cache folder is `$NUMERATE_CACHE/tokenised`, else `~/.cache/numerate/tokenised`; it may be deleted at any time. An
entry is named by a hash of the texts, the tokenizer's content and the number format. Entries are written atomically,
resumed if that was interrupted, and a damaged one is written again.
"""

import hashlib
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from numerate.errors import OperationalError, UserError
from numerate.tasks.folders import cache_folder
from numerate.tasks.texts import TextSource
from numerate.text.tasks.columns import ColumnWriter, open_column, read_verified_head
from numerate.text.tokenizers.hf_vocabulary import FastTokenizer
from numerate.tokenizers.number_formats import Ids, id_dtype
from numerate.training import disk

MAX_IN_MEMORY = 20_000
"""Up to this many questions are cached in memory only."""

_CHUNK_SIZE = 8192
_USED_CHUNK_TOKENS = 1 << 22
_VERSION = 3
_FORMAT = "numerate tokenized texts 1"


@dataclass(frozen=True, eq=False)
class TokenizedTexts:
    """The tokens of a source's questions, concatenated, each followed by its answer.

    - `ids` `[tokens]`: token ids; `number_values` float32 `[tokens]`: the number of each, or None.
    - `starts` int64 `[questions + 1]`: where each question starts, and where the last answer ends.
    - `prompt_lengths` int32 `[questions]`: the number of tokens of each question without its answer.
    - `used_ids` int64: the ids that occur, sorted.
    """

    ids: Ids
    starts: NDArray[np.int64]
    prompt_lengths: NDArray[np.int32]
    used_ids: NDArray[np.int64]
    number_values: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def num_tokens(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of tokens of these questions, and of their answers."""
        prompt_lengths = self.prompt_lengths[indices].astype(np.int64)
        return prompt_lengths, (self.starts[1:][indices] - self.starts[:-1][indices]) - prompt_lengths


_cache: "OrderedDict[str, TokenizedTexts]" = OrderedDict()
_fingerprints: "WeakKeyDictionary[TextSource, str]" = WeakKeyDictionary()


def tokenize_texts(source: TextSource, tokenizer: FastTokenizer, answer_prefix: str = "") -> TokenizedTexts:
    """The tokens of all questions of a source, made on first use.

    `answer_prefix` is prepended to every answer. Raises `OperationalError` if the cache folder cannot be written.
    """
    key = _cache_key(source, tokenizer, answer_prefix)
    if key not in _cache:
        tokenized = (
            _open_or_create(source, tokenizer, answer_prefix, key) if source.num_examples > MAX_IN_MEMORY else None
        )
        _cache[key] = _tokenize_in_memory(source, tokenizer, answer_prefix) if tokenized is None else tokenized
    _cache.move_to_end(key)
    while len(_cache) > 32:
        _cache.popitem(last=False)
    return _cache[key]


def tokenized_folder() -> Path:
    """The cache folder."""
    return cache_folder() / "tokenised"


def _cache_key(source: TextSource, tokenizer: FastTokenizer, answer_prefix: str) -> str:
    source_fingerprint = _fingerprints.get(source)
    if source_fingerprint is None:
        source_fingerprint = _fingerprints[source] = source.fingerprint
    key_fields = [
        _VERSION,
        source_fingerprint,
        source.num_examples,
        tokenizer.file.fingerprint,
        repr(tokenizer.number_format),
        answer_prefix,
    ]
    return hashlib.blake2b(json.dumps(key_fields).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _tokenize(
    source: TextSource, tokenizer: FastTokenizer, answer_prefix: str, first: int = 0, num_tokens: int = 0
) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """The columns of `TokenizedTexts` but the last, chunk by chunk, each with the number of questions up to its end;
    from question `first` on, before which there are `num_tokens` tokens."""
    dtype = id_dtype(tokenizer.vocabulary)
    if not first:
        yield 0, {"starts": np.zeros(1, np.int64)}
    for start in range(first, source.num_examples, _CHUNK_SIZE):
        end = min(start + _CHUNK_SIZE, source.num_examples)
        examples = source.read_examples(np.arange(start, end))
        encoded = tokenizer.encode([text for one in examples for text in (one.question, answer_prefix + one.answer)])
        prompt_lengths, answer_lengths = encoded.lengths[0::2], encoded.lengths[1::2]
        columns = {
            "ids": encoded.ids.astype(dtype),
            "starts": num_tokens + (prompt_lengths + answer_lengths).cumsum(),
            "prompts": prompt_lengths.astype(np.int32),
        }
        yield end, columns if encoded.number_values is None else {**columns, "values": encoded.number_values}
        num_tokens += len(encoded.ids)


def _used_ids(ids: Ids, tokenizer: FastTokenizer) -> NDArray[np.int64]:
    """The ids that occur, sorted."""
    is_used = np.zeros(tokenizer.vocabulary.size, dtype=np.bool_)
    for start in range(0, len(ids), _USED_CHUNK_TOKENS):
        is_used[ids[start : start + _USED_CHUNK_TOKENS]] = True
    return np.flatnonzero(is_used)


def _column_dtypes(tokenizer: FastTokenizer) -> dict[str, type[np.generic]]:
    ids = id_dtype(tokenizer.vocabulary)
    return {"ids": ids, "starts": np.int64, "prompts": np.int32, "used": np.int64, "values": np.float32}


def _from_columns(columns: Mapping[str, NDArray[Any]]) -> TokenizedTexts:
    values = columns["values"] if len(columns["values"]) else None
    return TokenizedTexts(columns["ids"], columns["starts"], columns["prompts"], columns["used"], values)


def _tokenize_in_memory(source: TextSource, tokenizer: FastTokenizer, answer_prefix: str) -> TokenizedTexts:
    chunks = {name: [np.zeros(0, dtype)] for name, dtype in _column_dtypes(tokenizer).items()}
    for _, columns in _tokenize(source, tokenizer, answer_prefix):
        for name, array in columns.items():
            chunks[name].append(array)
    arrays = {name: np.concatenate(parts) for name, parts in chunks.items()}
    return _from_columns(arrays | {"used": _used_ids(arrays["ids"], tokenizer)})


# Files ---------------------------------------------------------------------------------------------------------------


def _open_or_create(source: TextSource, tokenizer: FastTokenizer, answer_prefix: str, key: str) -> TokenizedTexts:
    folder = tokenized_folder() / key
    tokenized = _open_folder(folder, tokenizer)
    if tokenized is not None:
        return tokenized
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _folder_lock(folder):
            tokenized = _open_folder(folder, tokenizer)  # another process may have made it meanwhile
            if tokenized is None:
                _write_folder(folder, source, tokenizer, answer_prefix)
                tokenized = _open_folder(folder, tokenizer)
    except OSError as error:
        raise OperationalError(
            f"{folder.parent}: the tokens of {source.num_examples:,} questions cannot be kept there ({error}); "
            "NUMERATE_CACHE names another folder"
        ) from error
    if tokenized is None:
        raise OperationalError(f"{folder}: the cache entry cannot be read back; check the disk")
    return tokenized


def _write_folder(folder: Path, source: TextSource, tokenizer: FastTokenizer, answer_prefix: str) -> None:
    """Writes a folder that becomes `folder` when it is complete; resumes one that was interrupted."""
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(exist_ok=True)
    try:
        with ColumnWriter(partial, resume=True) as writer:
            starts = open_column(partial / "starts", np.int64)
            num_tokens = int(starts[-1]) if len(starts) else 0
            for num_done, columns in _tokenize(source, tokenizer, answer_prefix, writer.num_done, num_tokens):
                for name, array in columns.items():
                    writer.append(name, array)
                writer.save_progress(num_done)
            writer.append("used", _used_ids(open_column(partial / "ids", id_dtype(tokenizer.vocabulary)), tokenizer))
            writer.write_head({"format": _FORMAT})
    except UserError:  # a question that cannot be read; its file will be another
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)  # a damaged one
    os.replace(partial, folder)
    disk.fsync(folder.parent)


def _open_folder(folder: Path, tokenizer: FastTokenizer) -> TokenizedTexts | None:
    """The memory-mapped content of a cache folder; None if it is missing or damaged."""
    dtypes = _column_dtypes(tokenizer)
    try:
        read_verified_head(folder, _FORMAT, dtypes)
    except UserError:
        return None
    return _from_columns({name: open_column(folder / name, dtype) for name, dtype in dtypes.items()})


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Locks the folder against other processes of this machine, if the file system supports locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(folder.parent / f".{folder.name}.lock", "w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

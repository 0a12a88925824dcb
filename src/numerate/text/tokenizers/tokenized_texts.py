"""A cache of tokenized questions: in memory for small files, else in memory-mapped files.

The cache folder is `$NUMERATE_CACHE/tokenised`, else `~/.cache/numerate/tokenised`; it may be deleted at any time. An
entry is named by a hash of the texts, the tokenizer's content and the number format. Entries are written atomically;
a damaged one is written again.
"""

import hashlib
import io
import json
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from numerate.errors import OperationalError
from numerate.tasks.corpus_files import file_checksum
from numerate.tasks.folders import cache_folder
from numerate.tasks.texts import TextSource
from numerate.text.tokenizers.hf_vocabulary import FastTokenizer
from numerate.tokenizers.number_formats import Ids, id_dtype

MAX_IN_MEMORY = 20_000
"""Up to this many questions are cached in memory only."""

_CHUNK_SIZE = 8192
_VERSION = 3


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


def _write_tokens(
    source: TextSource, tokenizer: FastTokenizer, answer_prefix: str, ids_file: IO[bytes], values_file: IO[bytes]
) -> dict[str, NDArray[Any]]:
    """Writes the token ids of a source, and the numbers that they carry, chunk by chunk; returns the other arrays."""
    used_mask = np.zeros(tokenizer.vocabulary.size, dtype=np.bool_)
    lengths, prompt_lengths = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
    for start in range(0, source.num_examples, _CHUNK_SIZE):
        examples = source.read_examples(np.arange(start, min(start + _CHUNK_SIZE, source.num_examples)))
        encoded = tokenizer.encode([text for one in examples for text in (one.question, answer_prefix + one.answer)])
        used_mask[encoded.ids] = True
        ids_file.write(encoded.ids.astype(id_dtype(tokenizer.vocabulary)).tobytes())
        lengths.append(encoded.lengths[0::2] + encoded.lengths[1::2])
        prompt_lengths.append(encoded.lengths[0::2].astype(np.int32))
        if encoded.number_values is not None:
            values_file.write(encoded.number_values.tobytes())
    return {
        "starts": np.concatenate(lengths).cumsum(),
        "prompts": np.concatenate(prompt_lengths),
        "used": np.flatnonzero(used_mask),
    }


def _tokenize_in_memory(source: TextSource, tokenizer: FastTokenizer, answer_prefix: str) -> TokenizedTexts:
    ids_file, values_file = io.BytesIO(), io.BytesIO()
    arrays = _write_tokens(source, tokenizer, answer_prefix, ids_file, values_file)
    ids = np.frombuffer(ids_file.getvalue(), id_dtype(tokenizer.vocabulary))
    values = np.frombuffer(values_file.getvalue(), np.float32)
    return TokenizedTexts(ids, arrays["starts"], arrays["prompts"], arrays["used"], values if len(values) else None)


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
    """Writes a temporary folder and renames it once it is complete on disk."""
    temporary_folder = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with open(temporary_folder / "ids", "wb") as ids_file, open(temporary_folder / "values", "wb") as values_file:
            arrays = _write_tokens(source, tokenizer, answer_prefix, ids_file, values_file)
        for name, array in arrays.items():
            (temporary_folder / name).write_bytes(array.tobytes())
        files = sorted(temporary_folder.iterdir())
        checksums = {file.name: [file.stat().st_size, file_checksum(file)] for file in files}
        (temporary_folder / "sums.json").write_text(json.dumps(checksums), encoding="utf-8")
        for file in temporary_folder.iterdir():
            with open(file, "rb") as written:
                os.fsync(written.fileno())
        temporary_folder.chmod(0o755)
        with suppress(FileNotFoundError):
            os.replace(folder, temporary_folder / "damaged")
        os.replace(temporary_folder, folder)
        shutil.rmtree(folder / "damaged", ignore_errors=True)
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)


def _open_folder(folder: Path, tokenizer: FastTokenizer) -> TokenizedTexts | None:
    """The memory-mapped content of a cache folder; None if it is missing or damaged."""
    dtypes = {"ids": id_dtype(tokenizer.vocabulary), "starts": np.int64, "prompts": np.int32, "used": np.int64}
    try:
        checksums = json.loads((folder / "sums.json").read_text(encoding="utf-8"))
        for name, (size, checksum) in checksums.items():
            if (folder / name).stat().st_size != size or file_checksum(folder / name) != checksum:
                return None
        arrays = [_memory_map(folder / name, dtype) for name, dtype in dtypes.items()]
        values = _memory_map(folder / "values", np.float32)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    ids, starts, prompt_lengths, used_ids = arrays
    if len(starts) != len(prompt_lengths) + 1 or int(starts[-1]) != len(ids):
        return None
    return TokenizedTexts(ids, starts, prompt_lengths, used_ids, values if len(values) else None)


def _memory_map(file: Path, dtype: Any) -> NDArray[Any]:
    return np.memmap(file, dtype=dtype, mode="r") if file.stat().st_size else np.zeros(0, dtype=dtype)


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

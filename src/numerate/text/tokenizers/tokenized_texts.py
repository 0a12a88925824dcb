"""A cache of tokenized questions: in memory for small files, else in memory-mapped files.

The cache folder is `$NUMERATE_CACHE/tokenised`, else `~/.cache/numerate/tokenised`; it may be deleted at any time. An
entry is named by a hash of the texts, the tokenizer's content and the number format. Entries are written atomically;
a damaged one is written again.
"""

import hashlib
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
from numerate.tasks.corpus_files import block_sum
from numerate.tasks.folders import numerate_cache
from numerate.tasks.texts import TextSource
from numerate.text.tokenizers.hf_vocabulary import Speller
from numerate.tokenizers.number_formats import Ids, id_type

SMALL = 20_000
"""Up to this many questions are cached in memory only."""

_PORTION = 8192
_VERSION = 2


@dataclass(frozen=True, eq=False)
class Tokenised:
    """The tokens of a source's questions, concatenated, each followed by its answer.

    - `ids` `[tokens]`: token ids; `values` float32 `[tokens]`: the number of each, or None.
    - `starts` int64 `[questions + 1]`: where each question starts, and where the last answer ends.
    - `prompts` int32 `[questions]`: the number of tokens of each question without its answer.
    - `used` int64: the ids that occur, sorted.
    """

    ids: Ids
    starts: NDArray[np.int64]
    prompts: NDArray[np.int32]
    used: NDArray[np.int64]
    values: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.prompts)

    def sizes(self, rows: NDArray[np.int64] | slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of tokens of these questions, and of their answers."""
        prompts = self.prompts[rows].astype(np.int64)
        return prompts, (self.starts[1:][rows] - self.starts[:-1][rows]) - prompts


_known: "OrderedDict[str, Tokenised]" = OrderedDict()
_fingerprints: "WeakKeyDictionary[TextSource, str]" = WeakKeyDictionary()


def tokenised(source: TextSource, speller: Speller, before_answer: str = "") -> Tokenised:
    """The tokens of all questions of a source, made on first use.

    `before_answer` is prepended to every answer. Raises `OperationalError` if the cache folder cannot be written.
    """
    key = _key(source, speller, before_answer)
    if key not in _known:
        made = _kept(source, speller, before_answer, key) if source.count > SMALL else None
        _known[key] = _in_memory(source, speller, before_answer) if made is None else made
    _known.move_to_end(key)
    while len(_known) > 32:
        _known.popitem(last=False)
    return _known[key]


def cache_folder() -> Path:
    """The cache folder."""
    return numerate_cache() / "tokenised"


def _key(source: TextSource, speller: Speller, before_answer: str) -> str:
    texts = _fingerprints.get(source)
    if texts is None:
        texts = _fingerprints[source] = source.fingerprint
    parts = [_VERSION, texts, source.count, speller.file.fingerprint, repr(speller.number_format), before_answer]
    return hashlib.blake2b(json.dumps(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True)
class _Portion:
    ids: Ids
    lengths: NDArray[np.int64]
    prompts: NDArray[np.int32]
    values: NDArray[np.float32] | None


def _portions(source: TextSource, speller: Speller, before_answer: str) -> Iterator[_Portion]:
    for start in range(0, source.count, _PORTION):
        pairs = source.pairs(np.arange(start, min(start + _PORTION, source.count)))
        texts = [text for pair in pairs for text in (pair.question, before_answer + pair.answer)]
        encoded = speller.encode(texts)
        prompts = encoded.lengths[0::2]
        yield _Portion(encoded.ids, prompts + encoded.lengths[1::2], prompts.astype(np.int32), encoded.values)


def _in_memory(source: TextSource, speller: Speller, before_answer: str) -> Tokenised:
    portions = [*_portions(source, speller, before_answer)]
    kind = id_type(speller.vocabulary)
    ids = np.concatenate([np.zeros(0, kind), *(portion.ids for portion in portions)])
    values = [portion.values for portion in portions if portion.values is not None]
    lengths = np.concatenate([np.zeros(1, np.int64), *(portion.lengths for portion in portions)])
    prompts = np.concatenate([np.zeros(0, np.int32), *(portion.prompts for portion in portions)])
    used = np.unique(ids).astype(np.int64)
    return Tokenised(ids, lengths.cumsum(), prompts, used, np.concatenate(values) if values else None)


# Files ---------------------------------------------------------------------------------------------------------------


def _kept(source: TextSource, speller: Speller, before_answer: str, key: str) -> Tokenised:
    folder = cache_folder() / key
    found = _opened(folder, speller)
    if found is not None:
        return found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            found = _opened(folder, speller)  # another process may have made it meanwhile
            if found is None:
                _make(folder, source, speller, before_answer)
                found = _opened(folder, speller)
    except OSError as error:
        raise OperationalError(
            f"{folder.parent}: the tokens of {source.count:,} questions cannot be kept there ({error}); "
            "NUMERATE_CACHE names another folder"
        ) from error
    if found is None:
        raise OperationalError(f"{folder}: what was written there cannot be read again; is the disk sound?")
    return found


def _make(folder: Path, source: TextSource, speller: Speller, before_answer: str) -> None:
    """Writes a temporary folder and renames it once it is complete on disk."""
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        used = np.zeros(speller.vocabulary.size, dtype=np.bool_)
        lengths = [np.zeros(1, np.int64)]
        prompts = [np.zeros(0, np.int32)]
        carries = False
        with open(beside / "ids", "wb") as ids, open(beside / "values", "wb") as values:
            for portion in _portions(source, speller, before_answer):
                used[portion.ids] = True
                ids.write(portion.ids.astype(id_type(speller.vocabulary)).tobytes())
                lengths.append(portion.lengths)
                prompts.append(portion.prompts)
                if portion.values is not None:
                    carries = True
                    values.write(portion.values.tobytes())
            _to_disk(ids)
            _to_disk(values)
        if not carries:
            (beside / "values").unlink()
        rest = {"starts": np.concatenate(lengths).cumsum(), "prompts": np.concatenate(prompts)}
        for name, array in (rest | {"used": np.flatnonzero(used)}).items():
            with open(beside / name, "wb") as file:
                file.write(np.ascontiguousarray(array).tobytes())
                _to_disk(file)
        sums = {file.name: [file.stat().st_size, block_sum(file)] for file in sorted(beside.iterdir())}
        with open(beside / "sums.json", "wb") as file:
            file.write(json.dumps(sums).encode())
            _to_disk(file)
        beside.chmod(0o755)
        with suppress(FileNotFoundError):
            os.replace(folder, beside / "damaged")
        os.replace(beside, folder)
        shutil.rmtree(folder / "damaged", ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _to_disk(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _opened(folder: Path, speller: Speller) -> Tokenised | None:
    """The memory-mapped content of a cache folder; None if it is missing or damaged."""
    try:
        sums = json.loads((folder / "sums.json").read_text(encoding="utf-8"))
        for name, (size, check) in sums.items():
            if (folder / name).stat().st_size != size or block_sum(folder / name) != check:
                return None
        ids, starts = _mapped(folder / "ids", id_type(speller.vocabulary)), _mapped(folder / "starts", np.int64)
        prompts, used = _mapped(folder / "prompts", np.int32), _mapped(folder / "used", np.int64)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    if len(starts) != len(prompts) + 1 or int(starts[-1]) != len(ids):
        return None
    return Tokenised(ids, starts, prompts, used, _mapped(folder / "values", np.float32) if "values" in sums else None)


def _mapped(file: Path, kind: Any) -> NDArray[Any]:
    return np.memmap(file, dtype=kind, mode="r") if file.stat().st_size else np.zeros(0, dtype=kind)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
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

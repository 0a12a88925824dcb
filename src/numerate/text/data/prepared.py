"""Prepares texts for language modelling: splits off validation documents, trains a vocabulary, tokenizes both parts.

Texts are read in place, several times, and not copied.
"""

import hashlib
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError, did_you_mean
from numerate.tasks.corpus_files import Corpus, is_whole, open_corpus
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.tasks.language_modeling import PREPARED, LanguageModeling
from numerate.text.data.corpora import PORTION, Taken, write_corpus, write_taken
from numerate.text.data.documents import FileSpan, ReadSoFar, documents, parts_of
from numerate.text.data.new_folder import new_folder, refuse_taken
from numerate.text.data.vocabularies import keep_tokenizer, library, tokenizer_file, train_vocabulary
from numerate.text.tokenizers.stored_tokenizer import StoredTokenizer, pieces
from numerate.text.tokenizers.tokenizer_files import CHARACTERS, characters
from numerate.training.lock import Locked
from numerate.training.progress import ProgressBar

HELD_OUT = 0.05
"""The default share of documents held out for validation."""

SIZE = 4096
"""Default size of a new vocabulary; fewer where the texts do not give as many."""

EXCERPTS = ("czhou578_train-gpt2/val.bin", "czhou578_train-gpt2/test.bin")
"""The files of `tinystories_excerpts`: ids of GPT-2, of which 50256 ends each story."""

LLAMA = ("llama2", "llama")
"""Folders searched for Llama's tokenizer, whose licence does not allow redistribution."""

_WAITING = 0.5

ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus: its folder, tokenizer and splits. `validation` is None where the shards of
    `train` hold their own."""

    folder: Path
    pieces: StoredTokenizer
    train: Corpus
    validation: Corpus | None

    @property
    def by_position(self) -> bool:
        """Whether the end of each document is held out, as there are too few documents."""
        head = None if self.validation is None else self.validation.shards[0].head
        return head is not None and any(source["share"] != [0.0, 1.0] for source in head.get("sources", ()))


def prepare(name: str, *, processes: int | None = None, on_progress: ProgressCallback | None = None) -> Prepared:
    """Prepares a built-in corpus in the user's cache, or opens it.

    `tiny_stories_2048`: 6,235 stories (5 MB) of TinyStories, of which one in twenty is held out, with a vocabulary of
    2,048 pieces learned from the others; a few seconds. `tiny_stories`: all 50 official shards, with Llama's tokenizer
    where the user has it (`tokenizers/llama2/tokenizer.model` in the user's data), else Mistral's first one, which has
    as many pieces and a free licence; many minutes; the same call resumes it.

    Raises `UserError` that says how to get what is missing, and for an unknown name.
    """
    out = corpora_folder() / name
    if name == "tiny_stories_2048":
        if out.exists():
            return opened(out)
        texts = data_folder() / "tinystories"
        vocabulary = data_folder() / "tokenizers" / "gpt2" / "vocab.json"
        _refuse_missing([*(texts / file for file in EXCERPTS), vocabulary], "tinystories_excerpts gpt2_tokenizer")
        parts = [
            FileSpan(texts / file, "gpt2", str(vocabulary), end=(texts / file).stat().st_size) for file in EXCERPTS
        ]
        return prepare_texts(parts, out, size=2048, processes=processes, on_progress=on_progress)
    if name == "tiny_stories":
        texts = data_folder() / "tinystories"
        _refuse_missing([texts / f"data{shard:02d}.json" for shard in range(50)], "tinystories")
        known = pieces(_tokenizer_of_tiny_stories())
        _refuse_another(out, known)
        keep_tokenizer(known, out)
        write_corpus([texts], out / "tokens", str(out), processes=processes, on_progress=on_progress)
        return opened(out)
    raise UserError(
        f"prepare: no corpus is named {name!r}; there are: {', '.join(PREPARED)}; texts of your own want out="
        + did_you_mean(name, PREPARED)
    )


def prepare_texts(
    texts: Sequence[FileSpan],
    out: Path,
    *,
    size: int | None = None,
    tokenizer: str | None = None,
    held_out: float = HELD_OUT,
    processes: int | None = None,
    portion: int = PORTION,
    on_progress: ProgressCallback | None = None,
) -> Prepared:
    """Prepares documents of files as a new folder with `train`, `validation` and a tokenizer, atomically.

    A document is held out where its own hash falls below `held_out`: the same ones whatever stands beside them, and
    none that is in both parts. One that comes again is left out. Where there are so few that one of the parts would be
    empty, such as a single one, each document is divided by position instead: its last `held_out` is held out.

    The tokenizer is a new one of `size` pieces, learned from the training part (without `size`, of 4,096 or as many as
    the texts give), or the one of `tokenizer`; `characters` has here every character of the texts.

    Raises `UserError` for a folder that is there, for texts too short to hold anything out, and as `train_vocabulary`
    does.
    """
    if size is not None and tokenizer is not None:
        raise UserError("tokenizer: either size= of a new vocabulary or tokenizer= of one that there is, is right")
    if not 0 < held_out < 1:
        raise UserError(f"held_out: {held_out} is no share; above 0 and below 1, such as 0.05, is right")
    refuse_taken(out)
    library()
    given = None if tokenizer in (None, CHARACTERS) else pieces(str(tokenizer))
    used: set[str] | None = set() if tokenizer == CHARACTERS else None
    with new_folder(out) as beside:
        taken = _divided([part for text in texts for part in parts_of(text, portion)], held_out, used)
        if used is not None:
            known = StoredTokenizer(characters(frozenset(used)))
        elif given is not None:
            known = given
        else:
            made = train_vocabulary(lambda: _texts(taken["train"]), size or SIZE, fewer=size is None)
            known = StoredTokenizer(tokenizer_file(made))
        keep_tokenizer(known, beside)
        for name, some in taken.items():
            write_taken(
                some, beside / name, known, out.name, processes=processes, portion=portion, on_progress=on_progress
            )
    return opened(out)


def opened(folder: Path) -> Prepared:
    """Opens a prepared corpus. Raises `UserError` where it is damaged."""
    known = pieces(str(folder))
    if (folder / "tokens").is_dir():
        return Prepared(folder, known, open_corpus(folder / "tokens", known), None)
    return Prepared(folder, known, open_corpus(folder / "train", known), open_corpus(folder / "validation", known))


def ready(task: object, *, shown: bool = False) -> None:
    """Tokenises the texts of a task of language modelling that are not tokenised yet; of other tasks does nothing.

    Of several processes one does it, with a bar where it is `shown`, and the others wait. Raises as `write_corpus`
    does.
    """
    if not isinstance(task, LanguageModeling):
        if is_dataclass(task):
            for field in fields(task):
                value = getattr(task, field.name)
                for part in value if isinstance(value, tuple) else (value,):
                    if is_dataclass(part):
                        ready(part, shown=shown)
        return
    for text, folder in task.sources():
        while not is_whole(folder):
            try:
                with Kilobytes() as bar:
                    on_progress = bar.on_progress if shown else None
                    write_corpus([text], folder, task.tokenizer_name(), on_progress=on_progress)
            except Locked:  # another process is at it
                time.sleep(_WAITING)


_AGAIN, _TRAIN, _HELD = range(3)


def _divided(parts: Sequence[FileSpan], held_out: float, used: set[str] | None) -> dict[str, list[Taken]]:
    """The documents of training and of validation. All their characters are added to `used`, unless None."""
    seen: set[bytes] = set()
    found: list[tuple[FileSpan, NDArray[np.uint8], str]] = []
    spans: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for part in parts:
        read, which, sizes, records, split = ReadSoFar(), bytearray(), array("q"), array("q"), _TRAIN
        for text in documents(part, read):
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if not records or read.records != records[-1]:  # further pieces of a long document stay with the first
                split = _HELD if int.from_bytes(digest[:8], "little") < held_out * 2**64 else _TRAIN
            sizes.append(len(text))
            records.append(read.records)
            if not text or digest in seen:
                which.append(_AGAIN)
                continue
            seen.add(digest)
            which.append(split)
            if used is not None:
                used.update(text)
        found.append((part, np.frombuffer(bytes(which), np.uint8), read.sum.hexdigest()))
        spans.append(_spans(np.array(sizes), np.array(records), 1.0 - held_out))
    if all(any((which == one).any() for _, which, _ in found) for one in (_TRAIN, _HELD)):
        chosen = {"train": _TRAIN, "validation": _HELD}
        return {
            name: [Taken(part, which == one, sha256=sha256) for part, which, sha256 in found]
            for name, one in chosen.items()
        }
    shares = {"train": (0.0, 1.0 - held_out), "validation": (1.0 - held_out, 1.0)}
    taken = {
        name: [
            Taken(part, which != _AGAIN, span[number], share, sha256)
            for (part, which, sha256), span in zip(found, spans, strict=True)
        ]
        for number, (name, share) in enumerate(shares.items())
    }
    for name, some in taken.items():
        if not any(map(len, _texts(some))):
            raise UserError(
                f"held_out: {held_out} of {len(seen)} different document{'s' * (len(seen) != 1)} leaves no text for "
                f"{name}; more text (is the separator right?) or another share is right"
            )
    return taken


def _spans(
    sizes: NDArray[np.int64], records: NDArray[np.int64], share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each piece of text the characters before that share of its whole document, and those behind it."""
    before = np.cumsum(sizes) - sizes
    first = np.searchsorted(records, records)
    whole = np.bincount(records, sizes)[records] if len(records) else sizes
    cut = np.clip(np.rint(share * whole).astype(np.int64) - (before - before[first]), 0, sizes)
    return np.stack([np.zeros_like(cut), cut], axis=1), np.stack([cut, sizes], axis=1)


def _texts(taken: Iterable[Taken]) -> Iterator[str]:
    for one in taken:
        yield from one.documents(ReadSoFar())


def _refuse_missing(files: Sequence[Path], name: str) -> None:
    if missing := [file for file in files if not file.is_file()]:
        raise UserError(f"prepare: {missing[0]} is not there; `numerate data fetch {name}` gets it")


def _tokenizer_of_tiny_stories() -> str:
    folder = data_folder() / "tokenizers"
    for name in (*LLAMA, "mistral"):
        for file in ("tokenizer.json", "tokenizer.model", "tokenizer.model.v1"):
            if (folder / name / file).is_file():
                return str(folder / name)
    raise UserError(
        f"prepare: neither Llama's tokenizer ({folder / LLAMA[0] / 'tokenizer.model'}) nor Mistral's is there; "
        "`numerate data fetch mistral_tokenizer` gets the latter, which has as many pieces"
    )


def _refuse_another(out: Path, known: StoredTokenizer) -> None:
    """Raises `UserError` where a corpus was started with another tokenizer."""
    if (out / "tokenizer.json").is_file() and pieces(str(out)).fingerprint != known.fingerprint:
        raise UserError(
            f"prepare: {out} was begun with another tokenizer than {_tokenizer_of_tiny_stories()}; remove the folder "
            "to start over, or that tokenizer to resume"
        )


class Kilobytes:
    """A progress bar over the bytes of all texts."""

    def __init__(self) -> None:
        self._bar: ProgressBar | None = None
        self._done = 0

    def on_progress(self, done: int, total: int) -> None:
        if self._bar is not None and (total // 1000 != self._bar.total or done < self._done):  # the next corpus
            self._bar.close()
            self._bar = None
        self._done = done
        if self._bar is None:
            self._bar = ProgressBar(total // 1000, label="tokenise, kB")
        self._bar.step(done // 1000)

    def __enter__(self) -> "Kilobytes":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

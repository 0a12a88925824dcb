"""Prepares texts for language modeling: splits off validation documents, trains a vocabulary, tokenizes both parts.

Texts are read in place, several times, and not copied.
"""

import hashlib
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError, check_choice
from numerate.tasks.corpus_files import Corpus, is_complete, open_corpus
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.tasks.language_modeling import PREPARED_CORPORA, LanguageModeling
from numerate.text.data.corpora import SHARD_BYTES, DocumentSelection, write_corpus, write_selections
from numerate.text.data.documents import FileSpan, ReadProgress, read_documents, split_file_span
from numerate.text.data.new_folder import atomic_folder, check_not_existing
from numerate.text.data.vocabularies import save_tokenizer, train_vocabulary
from numerate.text.tasks.input_errors import file_error
from numerate.text.tokenizers.fast_tokenizers import check_tokenizers_installed
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, load_tokenizer
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER, build_character_tokenizer, tokenizer_from_json
from numerate.training.lock import LockedError
from numerate.training.progress import ProgressBars

VALIDATION_FRACTION = 0.05
"""The default share of documents held out for validation."""

VOCABULARY_SIZE = 4096
"""Default size of a new vocabulary; fewer where the texts do not give as many."""

EXCERPT_FILES = ("czhou578_train-gpt2/val.bin", "czhou578_train-gpt2/test.bin")
"""The files of `tinystories_excerpts`: ids of GPT-2, of which 50256 ends each story."""

LLAMA_FOLDERS = ("llama2", "llama")
"""Folders searched for Llama's tokenizer, whose license does not allow redistribution."""

_POLL_SECONDS = 0.5

ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus: its folder, tokenizer and splits. `validation` is None where the shards of
    `train` hold their own."""

    folder: Path
    tokenizer: PretrainedTokenizer
    train: Corpus
    validation: Corpus | None

    @property
    def is_split_by_position(self) -> bool:
        """Whether the end of each document is held out, as there are too few documents."""
        head = None if self.validation is None else self.validation.shards[0].metadata
        return head is not None and any(source["share"] != [0.0, 1.0] for source in head.get("sources", ()))


def prepare(name: str, *, processes: int | None = None, on_progress: ProgressCallback | None = None) -> PreparedCorpus:
    """Prepares a built-in corpus in the user's cache, or opens it.

    `tiny_stories_2048`: 6,235 stories (5 MB) of TinyStories, of which one in twenty is held out, with a vocabulary of
    2,048 pieces learned from the others; a few seconds. `tiny_stories`: all 50 official shards, with Llama's tokenizer
    where the user has it (`tokenizers/llama2/tokenizer.model` in the user's data), else Mistral's first one, which has
    as many pieces and a free license; takes many minutes, and the same call resumes it.

    Raises `UserError` that says how to get what is missing, and for an unknown name.
    """
    check_choice("prepare", name, PREPARED_CORPORA)
    out, texts = corpora_folder() / name, data_folder() / "tinystories"
    if name == "tiny_stories":
        _check_files_exist([texts / f"data{shard:02d}.json" for shard in range(50)], "tinystories")
        stored_tokenizer = load_tokenizer(_tokenizer_of_tiny_stories())
        _check_same_tokenizer(out, stored_tokenizer)
        save_tokenizer(stored_tokenizer, out)
        write_corpus([texts], out / "tokens", str(out), processes=processes, on_progress=on_progress)
        return open_prepared(out)
    if out.exists():
        return open_prepared(out)
    files = [texts / file for file in EXCERPT_FILES]
    vocabulary = data_folder() / "tokenizers" / "gpt2" / "vocab.json"
    _check_files_exist([*files, vocabulary], "tinystories_excerpts gpt2_tokenizer")
    file_spans = [FileSpan(file, "gpt2", str(vocabulary), end=file.stat().st_size) for file in files]
    return prepare_texts(file_spans, out, vocabulary_size=2048, processes=processes, on_progress=on_progress)


def prepare_texts(
    file_spans: Sequence[FileSpan],
    out: Path,
    *,
    vocabulary_size: int | None = None,
    tokenizer: str | None = None,
    validation_fraction: float = VALIDATION_FRACTION,
    processes: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    on_progress: ProgressCallback | None = None,
) -> PreparedCorpus:
    """Prepares documents of files as a new folder with `train`, `validation` and a tokenizer, atomically.

    A document is held out where its own hash falls below `validation_fraction`: the same ones whatever stands beside
    them, and none that is in both parts. One that comes again is left out. Where there are so few that one of the parts
    would be empty, such as a single one, each document is divided by position instead: its last `validation_fraction`
    is held out.

    The tokenizer is a new one of `vocabulary_size` pieces, learned from the training part (without `vocabulary_size`,
    of 4,096 or as many as the texts give), or the one of `tokenizer`; `characters` has here every character of the
    texts.

    Raises `UserError` for a folder that is there, for texts too short to hold anything out, and as `train_vocabulary`
    does.
    """
    if vocabulary_size is not None and tokenizer is not None:
        raise UserError(
            "tokenizer: set either size= (train a new vocabulary) or tokenizer= (use an existing one), not both"
        )
    if not 0 < validation_fraction < 1:
        raise UserError(f"held_out: must be between 0 and 1 (exclusive), such as 0.05, not {validation_fraction}")
    check_not_existing(out)
    check_tokenizers_installed()
    existing_tokenizer = None if tokenizer in (None, CHARACTER_TOKENIZER) else load_tokenizer(str(tokenizer))
    characters_used: set[str] | None = set() if tokenizer == CHARACTER_TOKENIZER else None
    with atomic_folder(out) as temporary:
        selections = _split_documents(
            [part for text in file_spans for part in split_file_span(text, shard_bytes)],
            validation_fraction,
            characters_used,
        )
        if characters_used is not None:
            stored_tokenizer = PretrainedTokenizer(build_character_tokenizer(frozenset(characters_used)))
        elif existing_tokenizer is not None:
            stored_tokenizer = existing_tokenizer
        else:
            tokenizer_json = train_vocabulary(
                lambda: _iterate_texts(selections["train"]),
                vocabulary_size or VOCABULARY_SIZE,
                allow_fewer=vocabulary_size is None,
            )
            stored_tokenizer = PretrainedTokenizer(tokenizer_from_json(tokenizer_json))
        save_tokenizer(stored_tokenizer, temporary)
        for name, selected in selections.items():
            write_selections(
                selected,
                temporary / name,
                stored_tokenizer,
                out.name,
                processes=processes,
                shard_bytes=shard_bytes,
                on_progress=on_progress,
            )
    return open_prepared(out)


def open_prepared(folder: Path) -> PreparedCorpus:
    """Opens a prepared corpus. Raises `UserError` where it is damaged."""
    tokenizer = load_tokenizer(str(folder))
    if (folder / "tokens").is_dir():
        return PreparedCorpus(folder, tokenizer, open_corpus(folder / "tokens", tokenizer), None)
    return PreparedCorpus(
        folder, tokenizer, open_corpus(folder / "train", tokenizer), open_corpus(folder / "validation", tokenizer)
    )


def tokenize_texts(task: LanguageModeling, *, show_progress: bool = False) -> None:
    """Tokenizes the texts of a language modeling task that are not tokenized yet.

    Of several processes one does it, with a bar where it is `show_progress`, and the others wait. Raises as
    `write_corpus` does.
    """
    for text, folder in task.text_token_folders():
        while not is_complete(folder):
            try:
                with ProgressBars("tokenize", unit="kB") as bar:
                    on_progress = bar.on_progress if show_progress else None
                    write_corpus([text], folder, task.tokenizer_name(), on_progress=on_progress)
            except LockedError:  # another process is tokenizing it
                time.sleep(_POLL_SECONDS)


_DUPLICATE, _TRAIN, _VALIDATION = range(3)


def _split_documents(
    file_spans: Sequence[FileSpan], validation_fraction: float, characters_used: set[str] | None
) -> dict[str, list[DocumentSelection]]:
    """The documents of training and of validation. All their characters are added to `characters_used`, unless None."""
    digests: set[bytes] = set()
    labeled_spans: list[tuple[FileSpan, NDArray[np.uint8], str]] = []
    spans: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for part in file_spans:
        progress, labels, sizes, records, split = ReadProgress(), bytearray(), array("q"), array("q"), _TRAIN
        for text in read_documents(part, progress):
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if (
                not records or progress.num_records != records[-1]
            ):  # further pieces of a long document stay with the first
                split = _VALIDATION if int.from_bytes(digest[:8], "little") < validation_fraction * 2**64 else _TRAIN
            sizes.append(len(text))
            records.append(progress.num_records)
            if not text or digest in digests:
                labels.append(_DUPLICATE)
                continue
            digests.add(digest)
            labels.append(split)
            if characters_used is not None:
                characters_used.update(text)
        labeled_spans.append((part, np.frombuffer(bytes(labels), np.uint8), progress.hasher.hexdigest()))
        spans.append(_split_character_spans(np.array(sizes), np.array(records), 1.0 - validation_fraction))
    if all(any((which == label).any() for _, which, _ in labeled_spans) for label in (_TRAIN, _VALIDATION)):
        label_of_split = {"train": _TRAIN, "validation": _VALIDATION}
        return {
            name: [DocumentSelection(part, which == one, sha256=sha256) for part, which, sha256 in labeled_spans]
            for name, one in label_of_split.items()
        }
    fractions = {"train": (0.0, 1.0 - validation_fraction), "validation": (1.0 - validation_fraction, 1.0)}
    selections = {
        name: [
            DocumentSelection(part, which != _DUPLICATE, span[number], share, sha256)
            for (part, which, sha256), span in zip(labeled_spans, spans, strict=True)
        ]
        for number, (name, share) in enumerate(fractions.items())
    }
    for name, selected in selections.items():
        if not any(map(len, _iterate_texts(selected))):
            raise UserError(
                f"held_out: {validation_fraction} of {len(digests)} different document{'s' * (len(digests) != 1)} "
                f"leaves no text for {name}; use more text (check the separator) or another fraction"
            )
    return selections


def _split_character_spans(
    sizes: NDArray[np.int64], records: NDArray[np.int64], fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each piece of text the characters before that share of its whole document, and those behind it."""
    before = np.cumsum(sizes) - sizes
    first = np.searchsorted(records, records)
    document_sizes = np.bincount(records, sizes)[records] if len(records) else sizes
    cut = np.clip(np.rint(fraction * document_sizes).astype(np.int64) - (before - before[first]), 0, sizes)
    return np.stack([np.zeros_like(cut), cut], axis=1), np.stack([cut, sizes], axis=1)


def _iterate_texts(selections: Iterable[DocumentSelection]) -> Iterator[str]:
    for one in selections:
        yield from one.read_documents(ReadProgress())


def _check_files_exist(files: Sequence[Path], name: str) -> None:
    if missing := [file for file in files if not file.is_file()]:
        raise file_error(missing[0], f"does not exist; download it with `numerate data fetch {name}`")


def _tokenizer_of_tiny_stories() -> str:
    folder = data_folder() / "tokenizers"
    for name in (*LLAMA_FOLDERS, "mistral"):
        for file in ("tokenizer.json", "tokenizer.model", "tokenizer.model.v1"):
            if (folder / name / file).is_file():
                return str(folder / name)
    raise UserError(
        f"prepare: neither Llama's tokenizer ({folder / LLAMA_FOLDERS[0] / 'tokenizer.model'}) nor Mistral's is there; "
        "`numerate data fetch mistral_tokenizer` gets the latter, which has as many pieces"
    )


def _check_same_tokenizer(out: Path, tokenizer: PretrainedTokenizer) -> None:
    """Raises `UserError` where a corpus was started with another tokenizer."""
    if (out / "tokenizer.json").is_file() and load_tokenizer(str(out)).fingerprint != tokenizer.fingerprint:
        raise file_error(
            out,
            f"was started with another tokenizer than {_tokenizer_of_tiny_stories()}; remove the folder to start over, "
            "or that tokenizer to resume",
        )

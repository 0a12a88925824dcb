"""Texts made ready for language modelling: stories held out, a vocabulary learned, and both parts tokenised."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np

from numerate.data.corpora import write_corpus
from numerate.data.new_folder import new_folder
from numerate.data.vocabularies import library, save_vocabulary, train_vocabulary
from numerate.errors import Mistake, did_you_mean
from numerate.tasks.corpora_by_name import PREPARED
from numerate.tasks.corpus_files import Corpus, is_whole, open_corpus
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.tasks.language_modelling import LanguageModelling
from numerate.tokens.pieces import Pieces, pieces
from numerate.training import disk
from numerate.training.lock import Locked
from numerate.training.progress import Progress

HELD_OUT = 0.05
"""The share of stories that are held out for validation, unless somebody says."""

EXCERPTS = ("czhou578_train-gpt2/val.bin", "czhou578_train-gpt2/test.bin")
"""The files of `tinystories_excerpts`: ids of GPT-2, of which 50256 ends each story."""

LLAMA = ("llama2", "llama")
"""The folders of the user's tokenizers that Llama's is looked for in; it may not be given away, so nobody else has."""

_GPT2_END = 50256
_WAITING = 0.5

Heard = Callable[[int, int], None]


@dataclass(frozen=True)
class Prepared:
    """A corpus that is ready: its folder, its tokenizer, and its parts. `validation` is None where the shards of
    `train` hold their own."""

    folder: Path
    pieces: Pieces
    train: Corpus
    validation: Corpus | None


def prepare(name: str, *, processes: int | None = None, heard: Heard | None = None) -> Prepared:
    """Makes one of the corpora that tasks name, in the user's cache; one that is there is opened.

    `tiny_stories_2048`: 6,235 stories (5 MB) of TinyStories, of which one in twenty is held out, with a vocabulary of
    2,048 pieces learned from the others; a few seconds. `tiny_stories`: all 50 official shards, with Llama's tokenizer
    where the user has it (`tokenizers/llama2/tokenizer.model` in the user's data), else Mistral's first one, which has
    as many pieces and may be given away; many minutes, and it goes on where it stopped.

    Raises `Mistake` that says how to get what is missing, and for an unknown name.
    """
    out = corpora_folder() / name
    if name == "tiny_stories_2048":
        if out.exists():
            return opened(out)
        texts = data_folder() / "tinystories"
        vocabulary = data_folder() / "tokenizers" / "gpt2" / "vocab.json"
        _refuse_missing([*(texts / file for file in EXCERPTS), vocabulary], "tinystories_excerpts gpt2_tokenizer")
        library()
        stories = [story for file in EXCERPTS for story in of_gpt2(texts / file, vocabulary)]
        return prepare_texts(stories, out, size=2048, processes=processes, heard=heard)
    if name == "tiny_stories":
        texts = data_folder() / "tinystories"
        _refuse_missing([texts / f"data{shard:02d}.json" for shard in range(50)], "tinystories")
        known = pieces(_tokenizer_of_tiny_stories())
        _refuse_another(out, known)
        keep_tokenizer(known, out)
        write_corpus([texts], out / "tokens", str(out), processes=processes, heard=heard)
        return opened(out)
    raise Mistake(
        f"prepare: no corpus is named {name!r}; there are: {', '.join(PREPARED)}; texts of your own want out="
        + did_you_mean(name, PREPARED)
    )


def prepare_texts(
    texts: Iterable[str],
    out: Path,
    *,
    size: int | None = None,
    tokenizer: str | None = None,
    held_out: float = HELD_OUT,
    processes: int | None = None,
    heard: Heard | None = None,
) -> Prepared:
    """Documents as a new folder with `train`, `validation`, `texts` and a tokenizer: all of it or nothing.

    A document is held out where its own hash falls below `held_out`: the same ones whatever stands beside them, and
    none that is in both parts. One that comes again is left out. The tokenizer is a new one of `size` pieces, learned
    from the training part, or the one of `tokenizer`.

    Raises `Mistake` for a folder that is there, a share that leaves a part empty, and as `train_vocabulary` does.
    """
    if (size is None) == (tokenizer is None):
        raise Mistake("tokenizer: either size= of a new vocabulary or tokenizer= of one that there is, is right")
    if not 0 < held_out < 1:
        raise Mistake(f"held_out: {held_out} is no share; above 0 and below 1, such as 0.05, is right")
    with new_folder(out) as beside:
        (beside / "texts").mkdir()
        kept = _divided(texts, beside / "texts", held_out)
        for part, count in kept.items():
            if not count:
                raise Mistake(
                    f"held_out: {held_out} of {sum(kept.values())} different documents leaves none for {part}; more "
                    "documents (is the separator right?) or another share is right"
                )
        if size is None:
            keep_tokenizer(pieces(str(tokenizer)), beside)
        else:
            made = save_vocabulary(
                train_vocabulary(lambda: _stories(beside / "texts" / "train.jsonl"), size), beside / "made"
            )
            for file in made.iterdir():
                file.rename(beside / file.name)
            made.rmdir()
        for part in kept:
            text = beside / "texts" / f"{part}.jsonl"
            write_corpus([text], beside / part, str(beside), processes=processes, heard=heard)
    return opened(out)


def opened(folder: Path) -> Prepared:
    """A corpus that was prepared. Raises `Mistake` where it is damaged."""
    known = pieces(str(folder))
    if (folder / "tokens").is_dir():
        return Prepared(folder, known, open_corpus(folder / "tokens", known), None)
    return Prepared(folder, known, open_corpus(folder / "train", known), open_corpus(folder / "validation", known))


def of_gpt2(file: Path, vocabulary: Path) -> Iterator[str]:
    """The stories of a file of ids of GPT-2, uint16, each closed by its end of text. Raises `Mistake` for others."""
    from tokenizers import decoders

    names = {i: name for name, i in json.loads(vocabulary.read_text(encoding="utf-8")).items()}
    ids = np.fromfile(file, dtype="<u2")
    if not len(ids) or int(ids.max()) > _GPT2_END or ids[-1] != _GPT2_END:
        raise Mistake(f"{file}: holds no stories in ids of GPT-2, or not all of them; fetch it anew")
    decode = decoders.ByteLevel().decode
    for story in np.split(ids, np.flatnonzero(ids == _GPT2_END) + 1)[:-1]:
        yield decode([names[i] for i in story[:-1].tolist()])


def keep_tokenizer(known: Pieces, folder: Path) -> None:
    """Writes a tokenizer to a folder as tokenizer.json and tokenizer_config.json, whatever it was read from."""
    told = {f"{role}_token": name for role, name in known.file.roles}
    with disk.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        disk.replace(folder / "tokenizer_config.json", json.dumps(told, indent=1, ensure_ascii=False).encode())
        disk.replace(folder / "tokenizer.json", known.file.text.encode())
    if pieces(str(folder)).fingerprint != known.fingerprint:
        raise Mistake(f"tokenizer: it does not read the same from {folder}; a folder with a tokenizer.json is right")


def ready(task: object, *, shown: bool = False) -> None:
    """Tokenises the texts of a task of language modelling that are not tokenised yet; of other tasks does nothing.

    Of several processes one does it, with a bar where it is `shown`, and the others wait. Raises as `write_corpus`
    does.
    """
    if not isinstance(task, LanguageModelling):
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
                    heard = bar.heard if shown else None
                    write_corpus([text], folder, task.tokenizer_name(), heard=heard)
            except Locked:  # another process is at it
                time.sleep(_WAITING)


def _divided(texts: Iterable[str], folder: Path, held_out: float) -> dict[str, int]:
    """Writes documents to `train.jsonl` and `validation.jsonl`, and says how many each has."""
    counts, seen = {"train": 0, "validation": 0}, set()
    with disk.explained(folder), open(folder / "train.jsonl", "w", encoding="utf-8") as train:
        with open(folder / "validation.jsonl", "w", encoding="utf-8") as validation:
            files = {"train": train, "validation": validation}
            for text in texts:
                stripped = text.strip()
                digest = hashlib.blake2b(stripped.encode(), digest_size=16).digest()
                if not stripped or digest in seen:
                    continue
                seen.add(digest)
                part = "validation" if int.from_bytes(digest[:8], "little") < held_out * 2**64 else "train"
                files[part].write(json.dumps({"text": stripped}, ensure_ascii=False) + "\n")
                counts[part] += 1
    return counts


def _stories(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def _refuse_missing(files: Sequence[Path], name: str) -> None:
    if missing := [file for file in files if not file.is_file()]:
        raise Mistake(f"prepare: {missing[0]} is not there; `numerate data fetch {name}` gets it")


def _tokenizer_of_tiny_stories() -> str:
    folder = data_folder() / "tokenizers"
    for name in (*LLAMA, "mistral"):
        for file in ("tokenizer.json", "tokenizer.model", "tokenizer.model.v1"):
            if (folder / name / file).is_file():
                return str(folder / name)
    raise Mistake(
        f"prepare: neither Llama's tokenizer ({folder / LLAMA[0] / 'tokenizer.model'}) nor Mistral's is there; "
        "`numerate data fetch mistral_tokenizer` gets the latter, which has as many pieces"
    )


def _refuse_another(out: Path, known: Pieces) -> None:
    """Raises `Mistake` where a corpus was begun with another tokenizer."""
    if (out / "tokenizer.json").is_file() and pieces(str(out)).fingerprint != known.fingerprint:
        raise Mistake(
            f"prepare: {out} was begun with another tokenizer than {_tokenizer_of_tiny_stories()}; remove the folder "
            "to begin anew, or that tokenizer to go on"
        )


class Kilobytes:
    """A bar over the bytes of all texts."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def heard(self, done: int, total: int) -> None:
        if self._bar is not None and total // 1000 != self._bar.total:  # the next corpus
            self._bar.close()
            self._bar = None
        if self._bar is None:
            self._bar = Progress(total // 1000, label="tokenise, kB")
        self._bar.step(done // 1000)

    def __enter__(self) -> "Kilobytes":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

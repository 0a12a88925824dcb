"""`numerate data tokenise` and `numerate tokens train-vocabulary`: texts to tokens, and tokenizers from texts."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from numerate.commands.words import options
from numerate.data.corpora import source_files, write_corpus
from numerate.data.documents import SEPARATOR, Read, documents, part_of
from numerate.data.vocabularies import KINDS, save_vocabulary, train_vocabulary
from numerate.errors import Mistake, did_you_mean
from numerate.tasks.folders import data_folder
from numerate.tokens.pieces import pieces
from numerate.training import disk
from numerate.training.progress import Progress

_SHOWN = 10
_TRAINED_ON = 10
"""Of so many shards a vocabulary is trained, unless `files` says: as published."""


def tokenise(words: list[str]) -> int:
    """Writes the documents of files to a folder of tokens; given again, it goes on where it stopped."""
    names, own = options(words, {"out": str, "tokenizer": str, "field": str, "separator": _separator, "processes": int})
    sources = _sources(names, ("out", "tokenizer", "field", "separator", "processes"))
    if not own.get("out"):
        raise Mistake("out: the folder is missing; for example: out=stories")
    if not own.get("tokenizer"):
        raise Mistake("tokenizer: is missing; a tokenizer.json, a SentencePiece model, or a folder with one is right")
    with _Kilobytes() as shown:
        corpus = write_corpus(
            sources,
            own["out"],
            own["tokenizer"],
            field=own.get("field"),
            separator=own.get("separator", SEPARATOR),
            processes=own.get("processes"),
            heard=shown.heard,
        )
    for shard in corpus.shards[:_SHOWN]:
        print(f"{shard.path}  {len(shard):,} tokens, {shard.documents:,} documents")
    if (more := len(corpus.shards) - _SHOWN) > 0:
        print(f"... and {more} more")
    text = corpus.text_bytes or 0
    print(
        f"{own['out']}: {corpus.tokens:,} tokens, {corpus.documents:,} documents, {disk.size(text)} of text, "
        f"{text / corpus.tokens:.2f} bytes a token"
    )
    return 0


def train(words: list[str]) -> int:
    """Learns a vocabulary of `size` ids from files of texts: a new folder with a tokenizer.json."""
    known = ("size", "out", "kind", "files", "field", "separator")
    names, own = options(
        words, {"size": int, "out": str, "kind": _kind, "files": int, "field": str, "separator": _separator}
    )
    sources = _sources(names, known)
    if "size" not in own:
        raise Mistake("size: is missing; for example: size=4096")
    out = Path(own.get("out") or data_folder() / "tokenizers" / f"tok{own['size']}").expanduser()
    if out.exists():
        raise Mistake(f"out: {out} is there already and is not overwritten; another folder is right")
    files = source_files(sources)[: own.get("files", _TRAINED_ON)]
    parts = [part_of(file, own.get("field"), own.get("separator", SEPARATOR)) for file in files]

    def texts() -> Iterator[str]:
        for part in parts:
            yield from documents(part, Read())

    found = train_vocabulary(texts, own["size"], own.get("kind", "characters"))
    made = pieces(str(save_vocabulary(found, out)))
    looked_at = [*islice(texts(), 200)]
    tokens = len(made.encode(looked_at)[0])
    size = sum(len(text.encode()) for text in looked_at)
    print(
        f"{out}: {made.size:,} ids from {len(files)} file{'s' * (len(files) > 1)}, {size / max(tokens, 1):.2f} bytes a "
        f"token; tokenizer={out} takes it"
    )
    return 0


def _sources(names: list[str], known: tuple[str, ...]) -> list[str]:
    """The files and folders among the words; the dataset of Tiny Stories where it is named."""
    for name in names:
        key, equals, _ = name.partition("=")
        if equals and not Path(name).exists():
            told = ", ".join(f"{one}=" for one in known)
            raise Mistake(f"{name!r} is not understood here; options are {told}.{did_you_mean(key, known)}")
    if not names:
        raise Mistake("the texts are missing; for example: numerate data tokenise tinystories out=tokens tokenizer=tok")
    places = []
    for name in names:
        fetched = data_folder() / name
        places.append(str(fetched) if not Path(name).expanduser().exists() and fetched.is_dir() else name)
    return places


def _separator(text: str) -> str:
    """What stands between documents, with `\\n` for a line's end."""
    return text.replace("\\n", "\n")


def _kind(text: str) -> str:
    if text not in KINDS:
        raise ValueError(f"there are: {', '.join(KINDS)}.{did_you_mean(text, KINDS)}")
    return text


class _Kilobytes:
    """A bar over the bytes of all texts."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def heard(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = Progress(total // 1000, label="tokenise, kB")
        self._bar.step(done // 1000)

    def __enter__(self) -> "_Kilobytes":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

"""`numerate data tokenise` and `numerate tokens train-vocabulary`: texts to tokens, and tokenizers from texts."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from numerate.commands.words import options
from numerate.errors import UserError, did_you_mean
from numerate.tasks.corpus_files import published_split
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.tasks.language_modeling import PREPARED
from numerate.text.data import prepared
from numerate.text.data.corpora import source_files, write_corpus
from numerate.text.data.documents import SEPARATOR, ReadSoFar, documents, part_of
from numerate.text.data.prepared import HELD_OUT, Kilobytes, Prepared, prepare_texts
from numerate.text.data.vocabularies import KINDS, save_vocabulary, train_vocabulary
from numerate.text.tokenizers.stored_tokenizer import pieces
from numerate.training import disk

_SHOWN = 10
_TRAINED_ON = 10
"""Shards that a vocabulary is trained on by default, as published."""


def tokenise(words: list[str]) -> int:
    """Tokenizes the documents of files into a folder of shards; the same command again resumes."""
    names, own = options(words, {"out": str, "tokenizer": str, "field": str, "separator": _separator, "processes": int})
    sources = _sources(names, ("out", "tokenizer", "field", "separator", "processes"))
    if not own.get("out"):
        raise UserError("out: the folder is missing; for example: out=stories")
    if not own.get("tokenizer"):
        raise UserError("tokenizer: is missing; a tokenizer.json, a SentencePiece model, or a folder with one is right")
    with Kilobytes() as shown:
        corpus = write_corpus(
            sources,
            own["out"],
            own["tokenizer"],
            field=own.get("field"),
            separator=own.get("separator", SEPARATOR),
            processes=own.get("processes"),
            on_progress=shown.on_progress,
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


def prepare(words: list[str]) -> int:
    """Prepares a built-in corpus, or one of the user's texts: held-out split, vocabulary, tokens."""
    known = ("out", "size", "tokenizer", "held_out", "field", "separator", "processes")
    names, own = options(
        words,
        {
            "out": str,
            "size": int,
            "tokenizer": str,
            "held_out": float,
            "field": str,
            "separator": _separator,
            "processes": int,
        },
    )
    if not names:
        raise UserError(
            f"prepare: the corpus is missing; there are: {', '.join(PREPARED)}; or texts of your own with out=NAME"
        )
    with Kilobytes() as shown:
        if "out" not in own:
            for option in known[1:-1]:
                if option in own:
                    raise UserError(f"{option}: is of texts of your own, which want out= too; for example: out=mine")
            found = [one_of_ours(name, own, shown.on_progress) for name in names]
        else:
            texts = [
                part_of(file, own.get("field"), own.get("separator", SEPARATOR))
                for file in source_files(_sources(names, known))
            ]
            out = Path(own["out"]).expanduser()
            made = prepare_texts(
                texts,
                out if len(out.parts) > 1 else corpora_folder() / out,
                size=own.get("size"),
                tokenizer=own.get("tokenizer"),
                held_out=own.get("held_out", HELD_OUT),
                processes=own.get("processes"),
                on_progress=shown.on_progress,
            )
            found = [(own["out"], made)]
    for name, made in found:
        print(_summary(name, made))
    return 0


def one_of_ours(name: str, own: dict[str, Any], on_progress: Callable[[int, int], None]) -> tuple[str, Prepared]:
    """Prepares a built-in corpus."""
    return name, prepared.prepare(name.replace("-", "_"), processes=own.get("processes"), on_progress=on_progress)


def _summary(name: str, made: Prepared) -> str:
    train, held = (made.train, made.validation) if made.validation is not None else published_split(made.train)
    lines = [f"{made.folder}: {made.pieces.size:,} pieces"]
    for what, corpus in (("train", train), ("validation", held)):
        text = corpus.text_bytes or 0
        lines.append(
            f"  {what:<10} {corpus.tokens:,} tokens, {corpus.documents or 0:,} documents, {disk.size(text)} of text, "
            f"{text / corpus.tokens:.2f} bytes a token"
        )
    if made.by_position:
        lines.append(
            f"  so few documents are divided by position: the last {held.text_bytes or 0:,} bytes are held out "
            "(separator= names what stands between documents)"
        )
    task = (
        f"task={name}"
        if name in PREPARED
        else f"task=LanguageModeling task.train={name}/train task.validation={name}/validation"
    )
    lines.append(f"{task} tokenizer=TokenIds layout=NextToken takes it")
    return "\n".join(lines)


def train(words: list[str]) -> int:
    """Trains a tokenizer with `size` ids on text files: a new folder with a tokenizer.json."""
    known = ("size", "out", "kind", "files", "field", "separator")
    names, own = options(
        words, {"size": int, "out": str, "kind": _kind, "files": int, "field": str, "separator": _separator}
    )
    sources = _sources(names, known)
    if "size" not in own:
        raise UserError("size: is missing; for example: size=4096")
    out = Path(own.get("out") or data_folder() / "tokenizers" / f"tok{own['size']}").expanduser()
    if out.exists():
        raise UserError(f"out: {out} is there already and is not overwritten; another folder is right")
    files = source_files(sources)[: own.get("files", _TRAINED_ON)]
    parts = [part_of(file, own.get("field"), own.get("separator", SEPARATOR)) for file in files]

    def texts() -> Iterator[str]:
        for part in parts:
            yield from documents(part, ReadSoFar())

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
    """The files and folders in `names`; the name of a fetched dataset stands for its folder."""
    for name in names:
        key, equals, _ = name.partition("=")
        if equals and not Path(name).exists():
            options_text = ", ".join(f"{one}=" for one in known)
            raise UserError(f"{name!r} is not understood here; options are {options_text}.{did_you_mean(key, known)}")
    if not names:
        raise UserError(
            "the texts are missing; for example: numerate data tokenise tinystories out=tokens tokenizer=tok"
        )
    paths = []
    for name in names:
        fetched = data_folder() / name
        paths.append(str(fetched) if not Path(name).expanduser().exists() and fetched.is_dir() else name)
    return paths


def _separator(text: str) -> str:
    """The separator of documents, with `\\n` for a newline."""
    return text.replace("\\n", "\n")


def _kind(text: str) -> str:
    if text not in KINDS:
        raise ValueError(f"there are: {', '.join(KINDS)}.{did_you_mean(text, KINDS)}")
    return text

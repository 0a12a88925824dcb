"""`numerate data tokenise` and `numerate tokens train-vocabulary`: texts to tokens, and tokenizers from texts."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from numerate.commands.words import parse_options
from numerate.errors import UserError, did_you_mean
from numerate.tasks.corpus_files import split_validation_shards
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.tasks.language_modeling import PREPARED_CORPORA
from numerate.text.data import prepared
from numerate.text.data.corpora import source_files, write_corpus
from numerate.text.data.documents import SEPARATOR, ReadProgress, detect_file_span, read_documents
from numerate.text.data.prepared import VALIDATION_FRACTION, KilobyteProgressBar, PreparedCorpus, prepare_texts
from numerate.text.data.vocabularies import VOCABULARY_KINDS, save_vocabulary, train_vocabulary
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer
from numerate.training import disk

_MAX_SHOWN_SHARDS = 10
_DEFAULT_NUM_FILES = 10
"""Default number of shards that a vocabulary is trained on, as published."""


def tokenize(words: list[str]) -> int:
    """Tokenizes the documents of files into a folder of shards; the same command again resumes."""
    names, option_values = parse_options(
        words, {"out": str, "tokenizer": str, "field": str, "separator": _parse_separator, "processes": int}
    )
    sources = _sources(names, ("out", "tokenizer", "field", "separator", "processes"))
    if not option_values.get("out"):
        raise UserError("out: the folder is missing; for example: out=stories")
    if not option_values.get("tokenizer"):
        raise UserError("tokenizer: is missing; must be a tokenizer.json, a SentencePiece model, or a folder with one")
    with KilobyteProgressBar() as progress:
        corpus = write_corpus(
            sources,
            option_values["out"],
            option_values["tokenizer"],
            field=option_values.get("field"),
            separator=option_values.get("separator", SEPARATOR),
            processes=option_values.get("processes"),
            on_progress=progress.on_progress,
        )
    for shard in corpus.shards[:_MAX_SHOWN_SHARDS]:
        print(f"{shard.path}  {len(shard):,} tokens, {shard.num_documents:,} documents")
    if (more := len(corpus.shards) - _MAX_SHOWN_SHARDS) > 0:
        print(f"... and {more} more")
    text_bytes = corpus.text_bytes or 0
    print(
        f"{option_values['out']}: {corpus.num_tokens:,} tokens, {corpus.num_documents:,} documents, "
        f"{disk.format_bytes(text_bytes)} of text, {text_bytes / corpus.num_tokens:.2f} bytes a token"
    )
    return 0


def prepare(words: list[str]) -> int:
    """Prepares a built-in corpus, or one of the user's texts: held-out split, vocabulary, tokens."""
    option_names = ("out", "size", "tokenizer", "held_out", "field", "separator", "processes")
    names, option_values = parse_options(
        words,
        {
            "out": str,
            "size": int,
            "tokenizer": str,
            "held_out": float,
            "field": str,
            "separator": _parse_separator,
            "processes": int,
        },
    )
    if not names:
        raise UserError(
            f"prepare: the corpus is missing; there are: {', '.join(PREPARED_CORPORA)}; or texts of your own with "
            "out=NAME"
        )
    with KilobyteProgressBar() as progress:
        if "out" not in option_values:
            for option in option_names[1:-1]:
                if option in option_values:
                    raise UserError(f"{option}: is for your own texts, which need out= too; for example: out=mine")
            prepared_corpora = [prepare_builtin(name, option_values, progress.on_progress) for name in names]
        else:
            texts = [
                detect_file_span(file, option_values.get("field"), option_values.get("separator", SEPARATOR))
                for file in source_files(_sources(names, option_names))
            ]
            out = Path(option_values["out"]).expanduser()
            corpus = prepare_texts(
                texts,
                out if len(out.parts) > 1 else corpora_folder() / out,
                vocabulary_size=option_values.get("size"),
                tokenizer=option_values.get("tokenizer"),
                validation_fraction=option_values.get("held_out", VALIDATION_FRACTION),
                processes=option_values.get("processes"),
                on_progress=progress.on_progress,
            )
            prepared_corpora = [(option_values["out"], corpus)]
    for name, corpus in prepared_corpora:
        print(_summary(name, corpus))
    return 0


def prepare_builtin(
    name: str, option_values: dict[str, Any], on_progress: Callable[[int, int], None]
) -> tuple[str, PreparedCorpus]:
    """Prepares a built-in corpus."""
    return name, prepared.prepare(
        name.replace("-", "_"), processes=option_values.get("processes"), on_progress=on_progress
    )


def _summary(name: str, prepared_corpus: PreparedCorpus) -> str:
    train, validation = (
        (prepared_corpus.train, prepared_corpus.validation)
        if prepared_corpus.validation is not None
        else split_validation_shards(prepared_corpus.train)
    )
    lines = [f"{prepared_corpus.folder}: {prepared_corpus.tokenizer.size:,} pieces"]
    for what, split_corpus in (("train", train), ("validation", validation)):
        text = split_corpus.text_bytes or 0
        lines.append(
            f"  {what:<10} {split_corpus.num_tokens:,} tokens, {split_corpus.num_documents or 0:,} documents, "
            f"{disk.format_bytes(text)} of text, {text / split_corpus.num_tokens:.2f} bytes a token"
        )
    if prepared_corpus.is_split_by_position:
        lines.append(
            f"  too few documents: split by position: the last {validation.text_bytes or 0:,} bytes are held out "
            "(separator= sets the text between documents)"
        )
    task = (
        f"task={name}"
        if name in PREPARED_CORPORA
        else f"task=LanguageModeling task.train={name}/train task.validation={name}/validation"
    )
    lines.append(f"{task} tokenizer=TokenIds layout=NextToken uses it")
    return "\n".join(lines)


def train(words: list[str]) -> int:
    """Trains a tokenizer with `size` ids on text files: a new folder with a tokenizer.json."""
    option_names = ("size", "out", "kind", "files", "field", "separator")
    names, option_values = parse_options(
        words, {"size": int, "out": str, "kind": _parse_kind, "files": int, "field": str, "separator": _parse_separator}
    )
    sources = _sources(names, option_names)
    if "size" not in option_values:
        raise UserError("size: is missing; for example: size=4096")
    out = Path(option_values.get("out") or data_folder() / "tokenizers" / f"tok{option_values['size']}").expanduser()
    if out.exists():
        raise UserError(f"out: {out} already exists; out= must be a new folder")
    files = source_files(sources)[: option_values.get("files", _DEFAULT_NUM_FILES)]
    parts = [
        detect_file_span(file, option_values.get("field"), option_values.get("separator", SEPARATOR)) for file in files
    ]

    def texts() -> Iterator[str]:
        for part in parts:
            yield from read_documents(part, ReadProgress())

    tokenizer = train_vocabulary(texts, option_values["size"], option_values.get("kind", "characters"))
    loaded_tokenizer = load_tokenizer(str(save_vocabulary(tokenizer, out)))
    sample_texts = [*islice(texts(), 200)]
    tokens = len(loaded_tokenizer.encode(sample_texts)[0])
    size = sum(len(text.encode()) for text in sample_texts)
    print(
        f"{out}: {loaded_tokenizer.size:,} ids from {len(files)} file{'s' * (len(files) > 1)}, "
        f"{size / max(tokens, 1):.2f} bytes a token; use it with tokenizer={out}"
    )
    return 0


def _sources(names: list[str], option_names: tuple[str, ...]) -> list[str]:
    """The files and folders in `names`; the name of a fetched dataset stands for its folder."""
    for name in names:
        key, equals, _ = name.partition("=")
        if equals and not Path(name).exists():
            options_text = ", ".join(f"{one}=" for one in option_names)
            raise UserError(
                f"{name!r} is not a known option; options are {options_text}.{did_you_mean(key, option_names)}"
            )
    if not names:
        raise UserError(
            "the texts are missing; for example: numerate data tokenise tinystories out=tokens tokenizer=tok"
        )
    paths = []
    for name in names:
        fetched = data_folder() / name
        paths.append(str(fetched) if not Path(name).expanduser().exists() and fetched.is_dir() else name)
    return paths


def _parse_separator(text: str) -> str:
    """The separator of documents, with `\\n` for a newline."""
    return text.replace("\\n", "\n")


def _parse_kind(text: str) -> str:
    if text not in VOCABULARY_KINDS:
        raise ValueError(f"there are: {', '.join(VOCABULARY_KINDS)}.{did_you_mean(text, VOCABULARY_KINDS)}")
    return text

"""`data tokenise`, `data prepare` and `tokens train-vocabulary`; samples of tokenized texts."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from numerate.errors import UserError
from numerate.tasks.corpus_files import Corpus, split_validation_shards
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.tasks.language_modeling import PREPARED_CORPORA, LanguageModeling
from numerate.text.data import prepared
from numerate.text.data.corpora import source_files, write_corpus
from numerate.text.data.documents import SEPARATOR, FileSpan, ReadProgress, detect_file_span, read_documents
from numerate.text.data.new_folder import check_not_existing
from numerate.text.data.prepared import (
    VALIDATION_FRACTION,
    PreparedCorpus,
    prepare_texts,
)
from numerate.text.data.vocabularies import save_vocabulary, train_vocabulary
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer
from numerate.training import disk
from numerate.training.progress import ProgressBars

_MAX_SHOWN_SHARDS = 10


def tokenize(
    *names: str,
    out: str,
    tokenizer: str,
    field: str | None = None,
    separator: str | None = None,
    processes: int | None = None,
) -> None:
    """Tokenizes the documents of files into a folder of shards; the same command again resumes."""
    with ProgressBars("tokenize", unit="kB") as progress:
        corpus = write_corpus(
            _sources(names),
            out,
            tokenizer,
            field=field,
            separator=_unescape(separator),
            processes=processes,
            on_progress=progress.on_progress,
        )
    for shard in corpus.shards[:_MAX_SHOWN_SHARDS]:
        print(f"{shard.path}  {len(shard):,} tokens, {shard.num_documents:,} documents")
    if (more := len(corpus.shards) - _MAX_SHOWN_SHARDS) > 0:
        print(f"... and {more} more")
    print(f"{out}: {_size_text(corpus)}")


def _size_text(corpus: Corpus) -> str:
    text_bytes, tokens = corpus.text_bytes or 0, corpus.num_tokens
    sizes = f"{tokens:,} tokens, {corpus.num_documents or 0:,} documents, {disk.format_bytes(text_bytes)} of text"
    return f"{sizes}, {text_bytes / tokens:.2f} bytes a token"


def prepare(
    *names: str,
    out: str | None = None,
    size: int | None = None,
    tokenizer: str | None = None,
    held_out: float | None = None,
    field: str | None = None,
    separator: str | None = None,
    processes: int | None = None,
) -> None:
    """Prepares built-in corpora, or with `out` one of the user's texts: held-out split, vocabulary, tokens."""
    with ProgressBars("tokenize", unit="kB") as progress:
        if out is None:
            own = {"size": size, "tokenizer": tokenizer, "held_out": held_out, "field": field, "separator": separator}
            if given := [name for name, value in own.items() if value is not None]:
                raise UserError(f"{given[0]}: is for your own texts, which need out= too; for example: out=mine")
            corpora = [
                (name, prepared.prepare(name.replace("-", "_"), processes=processes, on_progress=progress.on_progress))
                for name in names
            ]
        else:
            folder = Path(out).expanduser()
            corpus = prepare_texts(
                [*_file_spans(names, field, separator)],
                folder if len(folder.parts) > 1 else corpora_folder() / folder,
                vocabulary_size=size,
                tokenizer=tokenizer,
                validation_fraction=VALIDATION_FRACTION if held_out is None else held_out,
                processes=processes,
                on_progress=progress.on_progress,
            )
            corpora = [(out, corpus)]
    for name, corpus in corpora:
        print(_prepared_text(name, corpus))


def _prepared_text(name: str, corpus: PreparedCorpus) -> str:
    train, validation = corpus.train, corpus.validation
    if validation is None:
        train, validation = split_validation_shards(corpus.train)
    lines = [f"{corpus.folder}: {corpus.tokenizer.size:,} pieces"]
    lines += [f"  train      {_size_text(train)}", f"  validation {_size_text(validation)}"]
    if corpus.is_split_by_position:
        lines.append(
            f"  too few documents: split by position: the last {validation.text_bytes or 0:,} bytes are held out "
            "(separator= sets the text between documents)"
        )
    own = f"LanguageModeling task.train={name}/train task.validation={name}/validation"
    task = name if name in PREPARED_CORPORA else own
    return "\n".join([*lines, f"task={task} tokenizer=TokenIds layout=NextToken uses it"])


def train(
    *names: str,
    size: int,
    out: str | None = None,
    files: int = 10,
    field: str | None = None,
    separator: str | None = None,
) -> None:
    """Trains a tokenizer with `size` ids on text files, 10 of them as published: a new folder with a tokenizer.json."""
    spans = [*islice(_file_spans(names, field, separator), files)]
    folder = Path(out or data_folder() / "tokenizers" / f"tok{size}").expanduser()
    check_not_existing(folder)

    def texts() -> Iterator[str]:
        for span in spans:
            yield from read_documents(span, ReadProgress())

    loaded = load_tokenizer(str(save_vocabulary(train_vocabulary(texts, size), folder)))
    sample_texts = [*islice(texts(), 200)]
    tokens = len(loaded.encode(sample_texts)[0])
    text_bytes = sum(len(text.encode()) for text in sample_texts)
    print(
        f"{folder}: {loaded.size:,} ids from {len(spans)} file{'s' * (len(spans) > 1)}, "
        f"{text_bytes / max(tokens, 1):.2f} bytes a token; use it with tokenizer={folder}"
    )


def _sources(names: Sequence[str]) -> list[str]:
    """Files and folders; the name of a fetched dataset stands for its folder."""
    folders = {name: data_folder() / name for name in names if not Path(name).expanduser().exists()}
    return [str(folders[name]) if name in folders and folders[name].is_dir() else name for name in names]


def _file_spans(names: Sequence[str], field: str | None, separator: str | None) -> Iterator[FileSpan]:
    for file in source_files(_sources(names)):
        yield detect_file_span(file, field, _unescape(separator))


def _unescape(separator: str | None) -> str:
    """The separator of documents, with `\\n` for a newline."""
    return SEPARATOR if separator is None else separator.replace("\\r\\n", "\\n").replace("\\n", "\n")


def sample_chunks(task: LanguageModeling, split: str, seed: int, count: int) -> str:
    """Chunks of a corpus, each below a line with its number."""
    task.prepare_files()
    rows = task.examples(split, seed, 0, count).tokens
    tokenizer, num_chunks, start = (
        task.load_tokenizer(),
        task.num_chunks(split),
        task.load_tokenizer().document_start_id,
    )
    lines = []
    for row, (ids, length) in enumerate(zip(rows.ids, rows.lengths.tolist(), strict=True) if rows is not None else ()):
        lines.append(f"chunk {row + 1} of {num_chunks:,}, {length:,} tokens:")
        chunk = ids[: length + 1]  # each document starts on a new line with the BOS token
        for part in filter(len, np.split(chunk, np.flatnonzero(chunk == start))):
            bos = f"{tokenizer.symbols[start]} " if part[0] == start else ""
            lines.append(f"{bos}{tokenizer.decode(part[1:] if bos else part)}")
        lines.append("")
    return "\n".join(lines)

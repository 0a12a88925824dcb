"""Tokenizes texts into a corpus: in several processes, shard by shard, each written atomically.

`corpus.json` lists the planned shards before the first one is written. A shard is written to a temporary file, and its
metadata afterwards, so that the same command resumes after any interruption and keeps complete shards.
"""

import json
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import compress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import OperationalError, UserError, check_positive
from numerate.tasks.corpus_files import CORPUS_FILE, FORMAT, METADATA_SUFFIX, Corpus, file_checksum, open_corpus
from numerate.text.data.documents import (
    SEPARATOR,
    FileSpan,
    ReadProgress,
    detect_file_span,
    read_documents,
    split_file_span,
)
from numerate.text.tasks.fetched_files import RECORD_FILE
from numerate.text.tasks.input_errors import file_error
from numerate.text.tokenizers.fast_tokenizers import TokenizerFile
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, load_tokenizer, open_tokenizer
from numerate.training import disk
from numerate.training.lock import Lock

SHARD_BYTES = 1 << 27
"""Approximate size of the text of a shard in bytes, as in TinyStories."""

_MAX_BATCH_DOCUMENTS = 512
_MAX_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True, eq=False)
class DocumentSelection:
    """A selection of the documents of a part, read in place: those that are `document_mask` (None: all), and of each
    its `character_spans` (None: all), the first character that is taken and the one behind the last.

    `share` is what the spans are of a whole document; one that is read in pieces has a span in each. `sha256` of the
    bytes of the part, where it has been read before: what has changed since is refused.
    """

    file_span: FileSpan
    document_mask: NDArray[np.bool_] | None = None
    character_spans: NDArray[np.int64] | None = None
    share: tuple[float, float] = (0.0, 1.0)
    sha256: str | None = None

    @property
    def approximate_bytes(self) -> float:
        """The approximate number of bytes."""
        chosen = 1.0 if self.document_mask is None else float(self.document_mask.mean())
        return self.file_span.size * chosen * (self.share[1] - self.share[0])

    def read_documents(self, progress: ReadProgress) -> Iterator[str]:
        """The documents, or their spans that are not empty.

        Raises `UserError` as `read_documents` does, and if the file has changed."""
        texts = read_documents(self.file_span, progress)
        if self.character_spans is not None:
            texts = (text[begin:end].strip() for text, (begin, end) in zip(texts, self.character_spans, strict=False))
        for text in texts if self.document_mask is None else compress(texts, self.document_mask.tolist()):
            if text or self.character_spans is None:
                yield text
        if self.sha256 not in (None, progress.hasher.hexdigest()):
            raise file_error(self.file_span.path, "changed while it was read; run the same command again")

    def source_metadata(self) -> dict[str, Any]:
        """Its entry in the metadata of a shard."""
        part, stat = self.file_span, self.file_span.path.stat()
        return {
            "file": part.path.name,
            "size": stat.st_size,
            "changed": stat.st_mtime_ns,
            "begin": part.start,
            "end": part.end,
            "form": part.form,
            "field": part.field if part.form in ("list", "lines") else "",
            "separator": part.separator if part.form == "text" else "",
            "share": list(self.share),
        }


@dataclass(frozen=True, eq=False)
class _ShardJob:
    """A shard to be written: its sources, its path, and its metadata."""

    selections: tuple[DocumentSelection, ...]
    path: Path
    metadata: dict[str, Any]

    @property
    def size(self) -> int:
        return sum(taken.file_span.size for taken in self.selections)


def write_corpus(
    sources: Sequence[str | Path],
    out: str | Path,
    tokenizer: str,
    *,
    field: str | None = None,
    separator: str = SEPARATOR,
    processes: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    on_progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Writes the documents of files, or of all files of folders, to a folder of shards, and opens it.

    A document is stripped of white space at its ends; each is preceded by the tokenizer's BOS id and not followed by
    EOS, as in llama2.c. A list in JSON becomes a shard; larger files of text or of JSON lines become one for each
    `shard_bytes` bytes. `field` is what the text of a record is called (`story` in lists, `text` in lines). As many
    `processes` as there are processors by default; each takes less than 300 MB of memory however large the files are.
    `on_progress` gets the bytes done and the total. The same call resumes an earlier one.

    Raises `UserError` with file and record if one cannot be read, and if `out` contains other files; `OperationalError`
    if a process dies or the disk is full.
    """
    out = Path(out).expanduser()
    check_positive("shard_bytes", shard_bytes)
    stored_tokenizer = load_tokenizer(tokenizer)
    files = source_files(sources)
    if source_in_out := next((file for file in files if file.resolve().parent == out.resolve()), None):
        raise file_error(f"out: {out}", f"contains the source {source_in_out.name}; choose another folder")
    shards = {}
    for file in files:
        parts = split_file_span(detect_file_span(file, field, separator), shard_bytes)
        for number, part in enumerate(parts):
            shard = file.stem + (f"-{number:04d}" if len(parts) > 1 else "")
            if shard in shards:
                raise UserError(f"corpus: two files would become {shard}.bin; file names must be different")
            shards[shard] = (DocumentSelection(part),)
    heads = write_shards(
        shards, out, stored_tokenizer, Path(tokenizer).name, processes=processes, on_progress=on_progress
    )
    _warn_single_document(shards, heads)
    return open_corpus(out, stored_tokenizer)


def write_selections(
    selections: Sequence[DocumentSelection],
    out: Path,
    tokenizer: PretrainedTokenizer,
    tokenizer_name: str,
    *,
    processes: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes documents of several files, one after the other, to shards of about `shard_bytes` bytes of text each:
    `out` is the folder, and what they are called; `tokenizer_name` that of the tokenizer. Raises as `write_corpus`
    does."""
    groups: list[list[DocumentSelection]] = []
    remaining_bytes = 0.0
    for selection in selections:
        if selection.document_mask is None or selection.document_mask.any():
            if not groups or selection.approximate_bytes > remaining_bytes:
                groups.append([])
                remaining_bytes = shard_bytes
            groups[-1].append(selection)
            remaining_bytes -= selection.approximate_bytes
    shards = {out.name + (f"-{n:04d}" if len(groups) > 1 else ""): tuple(group) for n, group in enumerate(groups)}
    write_shards(shards, out, tokenizer, tokenizer_name, processes=processes, on_progress=on_progress)


def write_shards(
    shards: Mapping[str, tuple[DocumentSelection, ...]],
    out: Path,
    tokenizer: PretrainedTokenizer,
    tokenizer_name: str,
    *,
    processes: int | None,
    on_progress: Callable[[int, int], None] | None,
) -> list[dict[str, Any]]:
    """Writes a shard for each name, from its `shards` documents, and returns their metadata; complete shards are kept.
    Raises as `write_corpus` does."""
    check_positive("processes", processes)
    common_metadata = {
        "format": FORMAT,
        "kind": "<u2" if tokenizer.size <= 1 << 16 else "<u4",
        "vocabulary": tokenizer.size,
        "begin": tokenizer.document_start_id,
        "tokenizer": tokenizer.fingerprint,
        "tokenizer_name": tokenizer_name,
    }
    jobs = [
        _ShardJob(
            selections,
            out / f"{shard}.bin",
            common_metadata | {"sources": [one.source_metadata() for one in selections]},
        )
        for shard, selections in shards.items()
    ]
    plan = {"format": FORMAT, "tokenizer": tokenizer.fingerprint, "shards": [job.path.name for job in jobs]}
    disk.make_folder(out, place="out")
    with disk.convert_os_errors(out, "What is written is kept, and the same command resumes.", place="out"):
        with Lock(out / "lock").hold("tokenise"):
            _check_output_folder(out, plan)
            _write_corpus_file(out, plan | {"complete": False})
            for leftover in out.glob(f"{disk.TEMPORARY_PREFIX}*"):
                leftover.unlink()
            shard_metadata = _write_missing_shards(jobs, tokenizer, processes or os.cpu_count() or 1, on_progress)
            totals = {
                count: sum(head[count] for head in shard_metadata) for count in ("documents", "tokens", "text_bytes")
            }
            _write_corpus_file(out, plan | {"complete": True} | totals)
    if num_unknown := sum(head.get("unknown", 0) for head in shard_metadata):
        warnings.warn(
            f"{out}: the tokenizer ({tokenizer_name}) maps {num_unknown:,} of "
            f"{sum(head['tokens'] for head in shard_metadata):,} tokens to its unknown token; `numerate data prepare` "
            "trains one that covers a text",
            stacklevel=3,
        )
    return shard_metadata


def source_files(sources: Sequence[str | Path]) -> list[Path]:
    """The files that are named, and those of folders: of one that has several kinds, shards of TinyStories
    (`data*.json`) before JSON lines, other JSON, and text. Raises `UserError` where there is none."""
    result: list[Path] = []
    for source in map(Path, sources):
        path = source.expanduser()
        if not path.is_dir():
            result.append(path)
            continue
        files_by_kind = [sorted(path.glob(pattern)) for pattern in ("data*.json", "*.jsonl", "*.json", "*.txt")]
        texts = [
            [file for file in files if file.name != RECORD_FILE and not _is_license_or_readme(file)]
            for files in files_by_kind
        ]
        folder_files = next((files for files in texts if files), [])
        if not folder_files:
            raise file_error(path, "must contain .json, .jsonl or .txt files")
        result += folder_files
    if not result:
        raise UserError("corpus: no text is given; name text files, JSON lines or TinyStories shards")
    return result


def _is_license_or_readme(file: Path) -> bool:
    """Whether a file is a licence or a readme."""
    return file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "CDLA", "README"))


def _check_output_folder(out: Path, plan: dict[str, Any]) -> None:
    """Raises `UserError` for a folder that holds other files or another corpus."""
    if (out / CORPUS_FILE).is_file():
        try:
            existing_plan = json.loads((out / CORPUS_FILE).read_text(encoding="utf-8"))
        except ValueError:
            existing_plan = {}
        if differing := [name for name in plan if existing_plan.get(name) != plan[name]]:
            raise file_error(f"out: {out}", f"contains another corpus (its {differing[0]} differs); choose another")
    elif other_files := [path.name for path in out.iterdir() if path.name != "lock"]:
        raise file_error(f"out: {out}", f"contains {other_files[0]} and no unfinished corpus; choose a new folder")


def _write_corpus_file(out: Path, data: dict[str, Any]) -> None:
    disk.write_atomically(out / CORPUS_FILE, json.dumps(data, indent=1, ensure_ascii=False).encode() + b"\n")


def _warn_single_document(
    shards: Mapping[str, tuple[DocumentSelection, ...]], shard_metadata: Sequence[dict[str, Any]]
) -> None:
    """Warns about texts without a separator, which become single documents."""
    for (one,), head in zip(shards.values(), shard_metadata, strict=True):
        part = one.file_span
        if part.form == "text" and part.size == head["sources"][0]["size"] and head["records"] == 1:
            warnings.warn(
                f"{part.path}: does not contain the separator {part.separator!r}, so it is one document of "
                f"{head['tokens']:,} tokens; set another with separator=",
                stacklevel=3,
            )


# A shard --------------------------------------------------------------------------------------------------------------


def _write_missing_shards(
    jobs: Sequence[_ShardJob],
    tokenizer: PretrainedTokenizer,
    processes: int,
    on_progress: Callable[[int, int], None] | None,
) -> list[dict[str, Any]]:
    """The metadata of every shard, existing or newly written."""
    total, done = sum(job.size for job in jobs), 0
    metadata: dict[int, dict[str, Any]] = {}

    def on_shard_done(number: int, head: dict[str, Any]) -> None:
        nonlocal done
        metadata[number] = head
        done += jobs[number].size
        if on_progress is not None:
            on_progress(done, total)

    for number, job in enumerate(jobs):
        if (head := _read_complete_metadata(job)) is not None:
            on_shard_done(number, head)
    pending = [number for number in range(len(jobs)) if number not in metadata]
    if min(processes, len(pending)) <= 1:
        for number in pending:
            on_shard_done(number, _write_shard(jobs[number], tokenizer))
        return [metadata[number] for number in range(len(jobs))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(pending)), context, _initialize_worker) as pool:
        try:
            futures = {pool.submit(_write_shard_in_worker, jobs[number], tokenizer.file): number for number in pending}
            for future in as_completed(futures):
                on_shard_done(futures[future], future.result())
        except BaseException as error:
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise OperationalError(
                    "tokenize: a worker process died, perhaps out of memory; complete shards are kept and the same "
                    "command resumes (processes=1 needs the least memory)"
                ) from error
            raise
    return [metadata[number] for number in range(len(jobs))]


def _initialize_worker() -> None:
    """Initializes a worker process, which exits when its parent has ended."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _write_shard_in_worker(job: _ShardJob, file: TokenizerFile) -> dict[str, Any]:
    return _write_shard(job, open_tokenizer(file))


def _read_complete_metadata(job: _ShardJob) -> dict[str, Any] | None:
    """The metadata of a complete shard; None if it has to be written."""
    metadata_path = job.path.with_name(job.path.name + METADATA_SUFFIX)
    try:
        saved = json.loads(metadata_path.read_text(encoding="utf-8"))
        sources = [{name: value for name, value in one.items() if name != "sha256"} for one in saved["sources"]]
        is_complete = (
            saved["complete"] is True
            and (saved | {"sources": sources}).items() >= job.metadata.items()
            and job.path.stat().st_size == saved["tokens"] * np.dtype(saved["kind"]).itemsize
            and file_checksum(job.path) == saved["sum"]
        )
        return saved if is_complete else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write_shard(job: _ShardJob, tokenizer: PretrainedTokenizer) -> dict[str, Any]:
    """Writes a shard, then its metadata."""
    temporary_path, metadata_path = disk.temporary_path(job.path), job.path.with_name(job.path.name + METADATA_SUFFIX)
    dtype, progresses = np.dtype(job.metadata["kind"]), [ReadProgress() for _ in job.selections]
    document_texts = (
        text for taken, read in zip(job.selections, progresses, strict=True) for text in taken.read_documents(read)
    )
    num_tokens = num_documents = text_bytes = num_unknown = 0
    with disk.convert_os_errors(job.path, "What is written is kept, and the same command resumes."):
        try:
            metadata_path.unlink(missing_ok=True)
            with open(temporary_path, "xb") as file:
                for batch in _batches(document_texts):
                    ids, lengths = tokenizer.encode(batch)
                    starts = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()[:-1]])
                    row = np.insert(ids, starts, tokenizer.document_start_id)
                    file.write(row.astype(dtype).tobytes())
                    num_tokens += len(row)
                    num_unknown += int((ids == tokenizer.special_token_ids.get("unk")).sum())
                    num_documents += len(batch)
                    text_bytes += sum(len(text) if text.isascii() else len(text.encode()) for text in batch)
                file.flush()
                os.fsync(file.fileno())
            if not num_documents:
                raise file_error(job.selections[0].file_span.path, "contains no document")
            checksum = file_checksum(temporary_path)
            os.replace(temporary_path, job.path)
        finally:
            temporary_path.unlink(missing_ok=True)
        record = job.metadata | {
            "sources": [
                source | {"sha256": read.hasher.hexdigest()}
                for source, read in zip(job.metadata["sources"], progresses, strict=True)
            ],
            "complete": True,
            "records": sum(read.num_records for read in progresses),
            "documents": num_documents,
            "tokens": num_tokens,
            "text_bytes": text_bytes,
            "unknown": num_unknown,
            "sum": checksum,
        }
        disk.write_atomically(metadata_path, json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")
    return record


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Batches of texts, limited in number and in characters."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == _MAX_BATCH_DOCUMENTS or characters >= _MAX_BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch

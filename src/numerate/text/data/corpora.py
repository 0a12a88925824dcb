"""Tokenizes texts into a corpus: in several processes, shard by shard, each written atomically.

`corpus.json` lists the planned shards before the first one is written. A shard is written to a temporary file and its
head after it, so the same command resumes after any interruption, and complete shards are kept.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import compress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import OperationalError, UserError
from numerate.tasks.corpus_files import CORPUS, FORMAT, HEAD, Corpus, block_sum, open_corpus
from numerate.text.data.documents import SEPARATOR, FileSpan, ReadSoFar, documents, part_of, parts_of
from numerate.text.tasks.fetched_files import RECORD
from numerate.text.tokenizers.stored_tokenizer import StoredTokenizer, pieces
from numerate.text.tokenizers.tokenizer_files import TokenizerFile
from numerate.training import disk
from numerate.training.lock import Lock

PORTION = 1 << 27
"""Approximate bytes of text in a shard, as in TinyStories."""

_DOCUMENTS = 512
_CHARACTERS = 1 << 20


@dataclass(frozen=True, eq=False)
class Taken:
    """A selection of the documents of a part, read in place: those that are `chosen` (None: all), and of each its
    `spans` (None: all), the first character that is taken and the one behind the last.

    `share` is what the spans are of a whole document; one that is read in pieces has a span in each. `sha256` of the
    bytes of the part, where it has been read before: what has changed since is refused.
    """

    part: FileSpan
    chosen: NDArray[np.bool_] | None = None
    spans: NDArray[np.int64] | None = None
    share: tuple[float, float] = (0.0, 1.0)
    sha256: str | None = None

    @property
    def size(self) -> float:
        """The approximate number of bytes."""
        chosen = 1.0 if self.chosen is None else float(self.chosen.mean())
        return self.part.size * chosen * (self.share[1] - self.share[0])

    def documents(self, read: ReadSoFar) -> Iterator[str]:
        """The documents, or their spans that are not empty.

        Raises `UserError` as `documents` does, and where the file has changed."""
        found = documents(self.part, read)
        if self.spans is not None:
            found = (text[begin:end].strip() for text, (begin, end) in zip(found, self.spans, strict=False))
        for text in found if self.chosen is None else compress(found, self.chosen.tolist()):
            if text or self.spans is None:
                yield text
        if self.sha256 not in (None, read.sum.hexdigest()):
            raise UserError(f"{self.part.path}: has changed while it was read; give the same command again")

    def source(self) -> dict[str, Any]:
        """Its entry in the head of a shard."""
        part, stamp = self.part, self.part.path.stat()
        return {
            "file": part.path.name,
            "size": stamp.st_size,
            "changed": stamp.st_mtime_ns,
            "begin": part.begin,
            "end": part.end,
            "form": part.form,
            "field": part.field if part.form in ("list", "lines") else "",
            "separator": part.separator if part.form == "text" else "",
            "share": list(self.share),
        }


@dataclass(frozen=True, eq=False)
class _Job:
    """A shard to be written: its sources, its path, and its head."""

    taken: tuple[Taken, ...]
    path: Path
    head: dict[str, Any]

    @property
    def size(self) -> int:
        return sum(taken.part.size for taken in self.taken)


def write_corpus(
    sources: Sequence[str | Path],
    out: str | Path,
    tokenizer: str,
    *,
    field: str | None = None,
    separator: str = SEPARATOR,
    processes: int | None = None,
    portion: int = PORTION,
    on_progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Writes the documents of files, or of all files of folders, to a folder of shards, and opens it.

    A document is stripped of white space at its ends; before each stands the tokenizer's `begin` id, and nothing behind
    it, as in llama2.c. A list in JSON becomes a shard; larger files of text or of JSON lines become one for each
    `portion` bytes. `field` is what the text of a record is called (`story` in lists, `text` in lines). As many
    `processes` as there are processors by default; each takes less than 300 MB of memory however large the files are.
    `on_progress` gets the bytes done and the total. The same call resumes an earlier one.

    Raises `UserError` that names file and record where one cannot be read, and where `out` holds something else;
    `OperationalError` where a process dies, or the disk is full.
    """
    out = Path(out).expanduser()
    if portion < 1:
        raise UserError(f"portion: {portion} bytes are none; 1 or more is right")
    known = pieces(tokenizer)
    files = source_files(sources)
    if inside := next((file for file in files if file.resolve().parent == out.resolve()), None):
        raise UserError(f"out: {out} is where {inside.name} is; another folder is right")
    taken = {}
    for file in files:
        parts = parts_of(part_of(file, field, separator), portion)
        for number, part in enumerate(parts):
            shard = file.stem + (f"-{number:04d}" if len(parts) > 1 else "")
            if shard in taken:
                raise UserError(f"corpus: two files would become {shard}.bin; files with different names are right")
            taken[shard] = (Taken(part),)
    heads = write_shards(taken, out, known, Path(tokenizer).name, processes=processes, on_progress=on_progress)
    _warn_of_one(taken, heads)
    return open_corpus(out, known)


def write_taken(
    taken: Sequence[Taken],
    out: Path,
    known: StoredTokenizer,
    name: str,
    *,
    processes: int | None = None,
    portion: int = PORTION,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes documents of several files, one after the other, to shards of about `portion` bytes of text each: `out` is
    the folder, and what they are called; `name` that of the tokenizer. Raises as `write_corpus` does."""
    groups: list[list[Taken]] = []
    room = 0.0
    for one in taken:
        if one.chosen is None or one.chosen.any():
            if not groups or one.size > room:
                groups.append([])
                room = portion
            groups[-1].append(one)
            room -= one.size
    named = {out.name + (f"-{n:04d}" if len(groups) > 1 else ""): tuple(group) for n, group in enumerate(groups)}
    write_shards(named, out, known, name, processes=processes, on_progress=on_progress)


def write_shards(
    taken: Mapping[str, tuple[Taken, ...]],
    out: Path,
    known: StoredTokenizer,
    name: str,
    *,
    processes: int | None,
    on_progress: Callable[[int, int], None] | None,
) -> list[dict[str, Any]]:
    """Writes a shard for each name, from its `taken` documents, and returns their heads; complete shards are
    kept. Raises as `write_corpus` does."""
    if processes is not None and processes < 1:
        raise UserError(f"processes: {processes} processes do nothing; 1 or more is right")
    common = {
        "format": FORMAT,
        "kind": "<u2" if known.size <= 1 << 16 else "<u4",
        "vocabulary": known.size,
        "begin": known.begin,
        "tokenizer": known.fingerprint,
        "tokenizer_name": name,
    }
    jobs = [
        _Job(several, out / f"{shard}.bin", common | {"sources": [one.source() for one in several]})
        for shard, several in taken.items()
    ]
    plan = {"format": FORMAT, "tokenizer": known.fingerprint, "shards": [job.path.name for job in jobs]}
    with disk.explained(out, "What is written is kept, and the same command resumes."):
        out.mkdir(parents=True, exist_ok=True)
        with Lock(out / "lock").hold("tokenise"):
            _refuse_others(out, plan)
            _keep(out, plan | {"complete": False})
            for rest in out.glob(f"{disk.BESIDE}*"):
                rest.unlink()
            heads = _written(jobs, known, processes or os.cpu_count() or 1, on_progress)
            sums = {count: sum(head[count] for head in heads) for count in ("documents", "tokens", "text_bytes")}
            _keep(out, plan | {"complete": True} | sums)
    if unknown := sum(head.get("unknown", 0) for head in heads):
        warnings.warn(
            f"{out}: the tokenizer ({name}) does not know {unknown:,} of {sums['tokens']:,} tokens, which stand "
            "there as its unknown token; `numerate data prepare` makes one that knows all of a text",
            stacklevel=3,
        )
    return heads


def source_files(sources: Sequence[str | Path]) -> list[Path]:
    """The files that are named, and those of folders: of one that has several kinds, shards of TinyStories
    (`data*.json`) before JSON lines, other JSON, and text. Raises `UserError` where there is none."""
    found: list[Path] = []
    for source in map(Path, sources):
        path = source.expanduser()
        if not path.is_dir():
            found.append(path)
            continue
        kinds = [sorted(path.glob(pattern)) for pattern in ("data*.json", "*.jsonl", "*.json", "*.txt")]
        texts = [[file for file in files if file.name != RECORD and not _is_licence(file)] for files in kinds]
        inside = next((files for files in texts if files), [])
        if not inside:
            raise UserError(f"{path}: has no .json, .jsonl or .txt; files of texts are right")
        found += inside
    if not found:
        raise UserError("corpus: no text is named; files of text, of JSON lines, or shards of TinyStories are right")
    return found


def _is_licence(file: Path) -> bool:
    """Whether a file is a licence or a readme."""
    return file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "CDLA", "README"))


def _refuse_others(out: Path, plan: dict[str, Any]) -> None:
    """Raises `UserError` for a folder that holds other files or another corpus."""
    if (out / CORPUS).is_file():
        try:
            there = json.loads((out / CORPUS).read_text(encoding="utf-8"))
        except ValueError:
            there = {}
        if differing := [name for name in plan if there.get(name) != plan[name]]:
            raise UserError(f"out: {out} holds another corpus (its {differing[0]} differ); another folder is right")
    elif others := [path.name for path in out.iterdir() if path.name != "lock"]:
        raise UserError(f"out: {out} has {others[0]}, and is no corpus that was begun; an empty or new folder is right")


def _keep(out: Path, data: dict[str, Any]) -> None:
    disk.replace(out / CORPUS, json.dumps(data, indent=1, ensure_ascii=False).encode() + b"\n")


def _warn_of_one(taken: Mapping[str, tuple[Taken, ...]], heads: Sequence[dict[str, Any]]) -> None:
    """Warns of texts without a separator, each of which is a single document."""
    for (one,), head in zip(taken.values(), heads, strict=True):
        part = one.part
        if part.form == "text" and part.size == head["sources"][0]["size"] and head["records"] == 1:
            warnings.warn(
                f"{part.path}: {part.separator!r} stands nowhere in it, so that it is one document of "
                f"{head['tokens']:,} tokens; separator= names another",
                stacklevel=3,
            )


# A shard --------------------------------------------------------------------------------------------------------------


def _written(
    jobs: Sequence[_Job], known: StoredTokenizer, processes: int, on_progress: Callable[[int, int], None] | None
) -> list[dict[str, Any]]:
    """The head of every shard, existing or written now."""
    total, done = sum(job.size for job in jobs), 0
    heads: dict[int, dict[str, Any]] = {}

    def finished(number: int, head: dict[str, Any]) -> None:
        nonlocal done
        heads[number] = head
        done += jobs[number].size
        if on_progress is not None:
            on_progress(done, total)

    for number, job in enumerate(jobs):
        if (head := _whole(job)) is not None:
            finished(number, head)
    left = [number for number in range(len(jobs)) if number not in heads]
    if min(processes, len(left)) <= 1:
        for number in left:
            finished(number, _write(jobs[number], known))
        return [heads[number] for number in range(len(jobs))]
    with _backend(min(processes, len(left)), known.file) as backend:
        try:
            futures: dict[Future[dict[str, Any]], int] = {
                backend.submit(_write_there, jobs[number]): number for number in left
            }
            for future in as_completed(futures):
                finished(futures[future], future.result())
        except BrokenProcessPool as error:
            raise OperationalError(
                "tokenise: a process died (killed, perhaps for want of memory); what is whole is kept, and the same "
                "command resumes, processes=1 with the least memory"
            ) from error
    return [heads[number] for number in range(len(jobs))]


@contextlib.contextmanager
def _backend(processes: int, file: TokenizerFile) -> Iterator[ProcessPoolExecutor]:
    """Worker processes with an open tokenizer. Jobs that have not started are cancelled on any error."""
    backend = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, (file,))
    try:
        yield backend
    except BaseException:
        backend.shutdown(wait=True, cancel_futures=True)
        raise
    backend.shutdown()


_opened: list[StoredTokenizer] = []
"""The tokenizer of a worker process."""


def _begin(file: TokenizerFile) -> None:
    """Initializes a worker process, which exits when its parent has ended."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _opened[:] = [StoredTokenizer(file)]


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _write_there(job: _Job) -> dict[str, Any]:
    return _write(job, _opened[0])


def _whole(job: _Job) -> dict[str, Any] | None:
    """The head of a complete shard; None where it has to be written."""
    head = job.path.with_name(job.path.name + HEAD)
    try:
        saved = json.loads(head.read_text(encoding="utf-8"))
        there = saved | {"sources": [{**one, "sha256": None} for one in saved["sources"]]}
        wanted = job.head | {"sources": [{**one, "sha256": None} for one in job.head["sources"]]}
        if any(there.get(name) != value for name, value in wanted.items()) or saved.get("complete") is not True:
            return None
        if job.path.stat().st_size != saved["tokens"] * np.dtype(saved["kind"]).itemsize:
            return None
        return saved if block_sum(job.path) == saved["sum"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(job: _Job, known: StoredTokenizer) -> dict[str, Any]:
    """Writes a shard, then its head."""
    beside, head = disk.beside(job.path), job.path.with_name(job.path.name + HEAD)
    kind, reads = np.dtype(job.head["kind"]), [ReadSoFar() for _ in job.taken]
    found = (text for taken, read in zip(job.taken, reads, strict=True) for text in taken.documents(read))
    tokens = texts = size = unknown = 0
    with disk.explained(job.path, "What is written is kept, and the same command resumes."):
        try:
            head.unlink(missing_ok=True)
            with open(beside, "xb") as file:
                for batch in _batches(found):
                    ids, lengths = known.encode(batch)
                    starts = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()[:-1]])
                    row = np.insert(ids, starts, known.begin)
                    file.write(row.astype(kind).tobytes())
                    tokens += len(row)
                    unknown += int((ids == known.roles.get("unk")).sum())
                    texts += len(batch)
                    size += sum(len(text) if text.isascii() else len(text.encode()) for text in batch)
                file.flush()
                os.fsync(file.fileno())
            if not texts:
                raise UserError(f"{job.taken[0].part.path}: has no document; a file of texts is right")
            check = block_sum(beside)
            os.replace(beside, job.path)
        finally:
            beside.unlink(missing_ok=True)
        record = job.head | {
            "sources": [
                source | {"sha256": read.sum.hexdigest()}
                for source, read in zip(job.head["sources"], reads, strict=True)
            ],
            "complete": True,
            "records": sum(read.records for read in reads),
            "documents": texts,
            "tokens": tokens,
            "text_bytes": size,
            "unknown": unknown,
            "sum": check,
        }
        disk.replace(head, json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")
    return record


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Batches of texts, limited in number and in characters."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == _DOCUMENTS or characters >= _CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch

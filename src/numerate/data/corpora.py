"""Texts to corpora of tokens: in several processes, shard by shard, each whole or not at all.

The folder says in `corpus.json` what it shall hold, before the first shard. A shard is written beside its place, and
its head after it; so whoever stops the work anywhere gives the same command again, and what is whole is not made anew.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from numerate.data.documents import SEPARATOR, Part, Read, documents, part_of, parts_of
from numerate.data.fetching import RECORD
from numerate.errors import Fault, Mistake
from numerate.tasks.corpus_files import CORPUS, FORMAT, HEAD, Corpus, block_sum, open_corpus
from numerate.tokens.pieces import Pieces, pieces
from numerate.tokens.tokenizer_files import TokenizerFile
from numerate.training import disk
from numerate.training.lock import Lock

PORTION = 1 << 27
"""So many bytes of a text file, nearly, become a shard: about as many as a shard of TinyStories has."""

_DOCUMENTS = 512
_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class _Job:
    """A shard to be written: what of which file, where, and what its head shall say of both."""

    part: Part
    path: Path
    head: dict[str, Any]


def write_corpus(
    sources: Sequence[str | Path],
    out: str | Path,
    tokenizer: str,
    *,
    field: str | None = None,
    separator: str = SEPARATOR,
    processes: int | None = None,
    portion: int = PORTION,
    heard: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Writes the documents of files, or of all files of folders, to a folder of shards, and opens it.

    A document is stripped of white space at its ends; before each stands the tokenizer's `begin` id, and nothing behind
    it, as in llama2.c. A list in JSON becomes a shard; larger files of text or of JSON lines become one for each
    `portion` bytes. `field` is what the text of a record is called (`story` in lists, `text` in lines). As many
    `processes` as there are processors, unless told; each takes less than 300 MB of memory however large the files are.
    `heard` is told how many bytes of how many are done. The same call goes on where an earlier one stopped.

    Raises `Mistake` that names file and record where one cannot be read, and where `out` holds something else; `Fault`
    where a process dies, or the disk is full.
    """
    out = Path(out).expanduser()
    if processes is not None and processes < 1:
        raise Mistake(f"processes: {processes} processes do nothing; 1 or more is right")
    if portion < 1:
        raise Mistake(f"portion: {portion} bytes are none; 1 or more is right")
    known = pieces(tokenizer)
    files = source_files(sources)
    if inside := next((file for file in files if file.resolve().parent == out.resolve()), None):
        raise Mistake(f"out: {out} is where {inside.name} is; another folder is right")
    jobs = _jobs(files, out, known, Path(tokenizer).name, field, separator, portion)
    plan = {"format": FORMAT, "tokenizer": known.fingerprint, "shards": [job.path.name for job in jobs]}
    with disk.explained(out, "What is written is kept, and the same command goes on."):
        out.mkdir(parents=True, exist_ok=True)
        with Lock(out / "lock").hold("tokenise"):
            _refuse_others(out, plan)
            _keep(out, plan | {"complete": False})
            for rest in out.glob(f"{disk.BESIDE}*"):
                rest.unlink()
            heads = _written(jobs, known, processes or os.cpu_count() or 1, heard)
            _warn_of_one(jobs, heads, separator)
            sums = {name: sum(head[name] for head in heads) for name in ("documents", "tokens", "text_bytes")}
            _keep(out, plan | {"complete": True} | sums)
    return open_corpus(out, known)


def source_files(sources: Sequence[str | Path]) -> list[Path]:
    """The files that are named, and those of folders: of one that has several kinds, shards of TinyStories
    (`data*.json`) before JSON lines, other JSON, and text. Raises `Mistake` where there is none."""
    found: list[Path] = []
    for source in map(Path, sources):
        place = source.expanduser()
        if not place.is_dir():
            found.append(place)
            continue
        kinds = [sorted(place.glob(pattern)) for pattern in ("data*.json", "*.jsonl", "*.json", "*.txt")]
        texts = [[file for file in files if file.name != RECORD and not _is_licence(file)] for files in kinds]
        inside = next((files for files in texts if files), [])
        if not inside:
            raise Mistake(f"{place}: has no .json, .jsonl or .txt; files of texts are right")
        found += inside
    if not found:
        raise Mistake("corpus: no text is named; files of text, of JSON lines, or shards of TinyStories are right")
    return found


def _is_licence(file: Path) -> bool:
    """Whether a file says what may be done with those beside it."""
    return file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "CDLA", "README"))


def _jobs(
    files: Sequence[Path], out: Path, known: Pieces, name: str, field: str | None, separator: str, portion: int
) -> list[_Job]:
    jobs: list[_Job] = []
    for file in files:
        whole = part_of(file, field, separator)
        parts = parts_of(whole, portion)
        stamp = file.stat()
        for number, part in enumerate(parts):
            shard = file.stem + (f"-{number:04d}" if len(parts) > 1 else "") + ".bin"
            source = {
                "file": file.name,
                "size": stamp.st_size,
                "changed": stamp.st_mtime_ns,
                "begin": part.begin,
                "end": part.end,
                "form": part.form,
                "field": part.field,
                "separator": part.separator if part.form == "text" else "",
            }
            head = {
                "format": FORMAT,
                "kind": "<u2" if known.size <= 1 << 16 else "<u4",
                "vocabulary": known.size,
                "begin": known.begin,
                "tokenizer": known.fingerprint,
                "tokenizer_name": name,
                "source": source,
            }
            jobs.append(_Job(part, out / shard, head))
    names = [job.path.name for job in jobs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Mistake(f"corpus: two files would become {twice}; files with different names are right")
    return jobs


def _refuse_others(out: Path, plan: dict[str, Any]) -> None:
    """Raises `Mistake` for a folder that holds something else."""
    if (out / CORPUS).is_file():
        try:
            there = json.loads((out / CORPUS).read_text(encoding="utf-8"))
        except ValueError:
            there = {}
        if differing := [name for name in plan if there.get(name) != plan[name]]:
            raise Mistake(f"out: {out} holds another corpus (its {differing[0]} differ); another folder is right")
    elif others := [path.name for path in out.iterdir() if path.name != "lock"]:
        raise Mistake(f"out: {out} has {others[0]}, and is no corpus that was begun; an empty or new folder is right")


def _keep(out: Path, told: dict[str, Any]) -> None:
    disk.replace(out / CORPUS, json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n")


def _warn_of_one(jobs: Sequence[_Job], heads: Sequence[dict[str, Any]], separator: str) -> None:
    """Says which texts have no separator: each is then one document, which may not be what was meant."""
    for job, head in zip(jobs, heads, strict=True):
        if job.part.form == "text" and job.part.size == head["source"]["size"] and head["records"] == 1:
            warnings.warn(
                f"{job.part.path}: {separator!r} stands nowhere in it, so that it is one document of "
                f"{head['tokens']:,} tokens; separator= names another",
                stacklevel=3,
            )


# A shard --------------------------------------------------------------------------------------------------------------


def _written(
    jobs: Sequence[_Job], known: Pieces, processes: int, heard: Callable[[int, int], None] | None
) -> list[dict[str, Any]]:
    """The head of every shard, of those that are there and of those that are written now."""
    total, done = sum(job.part.size for job in jobs), 0
    heads: dict[int, dict[str, Any]] = {}

    def over(number: int, head: dict[str, Any]) -> None:
        nonlocal done
        heads[number] = head
        done += jobs[number].part.size
        if heard is not None:
            heard(done, total)

    for number, job in enumerate(jobs):
        if (head := _whole(job)) is not None:
            over(number, head)
    left = [number for number in range(len(jobs)) if number not in heads]
    if min(processes, len(left)) <= 1:
        for number in left:
            over(number, _write(jobs[number], known))
        return [heads[number] for number in range(len(jobs))]
    with _crew(min(processes, len(left)), known.file) as crew:
        try:
            futures: dict[Future[dict[str, Any]], int] = {
                crew.submit(_write_there, jobs[number]): number for number in left
            }
            for future in as_completed(futures):
                over(futures[future], future.result())
        except BrokenProcessPool as error:
            raise Fault(
                "tokenise: a process died (killed, perhaps for want of memory); what is whole is kept, and the same "
                "command goes on, processes=1 with the least memory"
            ) from error
    return [heads[number] for number in range(len(jobs))]


@contextlib.contextmanager
def _crew(processes: int, file: TokenizerFile) -> Iterator[ProcessPoolExecutor]:
    """Processes that have opened a tokenizer. What they have not begun is let go of when anything goes wrong."""
    crew = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, (file,))
    try:
        yield crew
    except BaseException:
        crew.shutdown(wait=True, cancel_futures=True)
        raise
    crew.shutdown()


_opened: list[Pieces] = []
"""In a process of the crew: its tokenizer."""


def _begin(file: TokenizerFile) -> None:
    """Makes a process ready. It ends when the one that began it has ended, in whatever way."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _opened[:] = [Pieces(file)]


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _write_there(job: _Job) -> dict[str, Any]:
    return _write(job, _opened[0])


def _whole(job: _Job) -> dict[str, Any] | None:
    """The head of a shard that is there, and what was written; None where it has to be written."""
    head = job.path.with_name(job.path.name + HEAD)
    try:
        told = json.loads(head.read_text(encoding="utf-8"))
        there = told | {"source": {name: told["source"][name] for name in job.head["source"]}}
        if any(there.get(name) != said for name, said in job.head.items()) or told.get("complete") is not True:
            return None
        if job.path.stat().st_size != told["tokens"] * np.dtype(told["kind"]).itemsize:
            return None
        return told if block_sum(job.path) == told["sum"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(job: _Job, known: Pieces) -> dict[str, Any]:
    """Writes a shard, then its head."""
    beside, head = disk.beside(job.path), job.path.with_name(job.path.name + HEAD)
    kind, read = np.dtype(job.head["kind"]), Read()
    tokens = texts = size = 0
    with disk.explained(job.path, "What is written is kept, and the same command goes on."):
        try:
            head.unlink(missing_ok=True)
            with open(beside, "xb") as file:
                for batch in _batches(documents(job.part, read)):
                    ids, lengths = known.encode(batch)
                    starts = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()[:-1]])
                    row = np.insert(ids, starts, known.begin)
                    file.write(row.astype(kind).tobytes())
                    tokens += len(row)
                    texts += len(batch)
                    size += sum(len(text) if text.isascii() else len(text.encode()) for text in batch)
                file.flush()
                os.fsync(file.fileno())
            if not texts:
                raise Mistake(f"{job.part.path}: has no document; a file of texts is right")
            check = block_sum(beside)
            os.replace(beside, job.path)
        finally:
            beside.unlink(missing_ok=True)
        told = job.head | {
            "source": job.head["source"] | {"sha256": read.sum.hexdigest()},
            "complete": True,
            "records": read.records,
            "documents": texts,
            "tokens": tokens,
            "text_bytes": size,
            "sum": check,
        }
        disk.replace(head, json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n")
    return told


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in lists that are neither long nor large."""
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

"""Downloading datasets: checked, atomic and resumable.

A file is written to a name that ends in `.part`, and renamed when its size and sha256 are right. `fetched.json`
records the address, size and sha256 of each file; without a pinned hash, later downloads are compared with these.
"""

import contextlib
import hashlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.tasks.contents import sha256_of
from numerate.tasks.folders import data_folder
from numerate.text.data.archives import PART, PORTION, Limits, ProgressCallback, has_size, pour, unpack
from numerate.text.data.datasets import Dataset, Remote
from numerate.text.tasks.fetched_files import RECORD, Noted, noted_files, record_of
from numerate.training import disk

_SHOWN = 5
_TRIES = 4
_PATIENCE = 60.0
"""Timeout of a connection, in seconds."""


def fetch(
    dataset: Dataset,
    mirror: Path | None = None,
    on_progress: ProgressCallback | None = None,
    pause: float = 2.0,
    limits: Limits = Limits(),
) -> list[str]:
    """Puts a dataset into the user's data folder, and returns a line of status for each file.

    With `mirror` the files are copied from there, a folder of datasets as the data folder is one, or the folder of this
    dataset itself, which need not have the texts of licences; without, from their official addresses, resuming an
    earlier attempt. A connection that breaks is opened again a few times, with `pause` seconds between.
    Archives are unpacked within `limits`.

    Raises `OperationalError` where the network or a server fails, and where size or sha256 are not what is pinned, or
    what came before; `UserError` for a mirror that has not the files, and for a folder that may not be written.
    """
    folder = data_folder() / dataset.folder
    source = None if mirror is None else _folder_in(mirror, dataset)
    lines = []
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            record = record_of(folder)
            for remote in dataset.files:
                if _is_there(folder, remote, record):
                    _remove_archive(folder, remote)
                    came = record.get(remote.name, {}).get("url", "elsewhere")
                    lines.append(f"{_named(folder, remote)}: is there, from {came}")
                    continue
                if remote.licence and source is not None and not (source / remote.name).is_file():
                    lines.append(f"{source} has no {remote.name}; {remote.url} is its text")
                    continue
                _refuse_another(folder, remote, record)
                if source is None:
                    noted = _from_address(folder, remote, record, on_progress, pause)
                else:
                    noted = _from_mirror(source, folder, remote, on_progress, dataset.folder)
                apart = "files" in noted
                if remote.unpack is not None and not apart:
                    sizes = unpack(folder / remote.name, folder, remote, on_progress, limits)
                    noted |= {"files": sizes, "sums": {name: sha256_of(folder / name) for name in sizes}}
                record[remote.name] = noted
                disk.replace(folder / RECORD, json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")
                _remove_archive(folder, remote)
                lines.append(f"{_named(folder, remote)}: {_status(noted, remote, apart)}")
    return lines


def is_fetched(dataset: Dataset) -> bool:
    """Whether all files of a dataset are in the user's data folder, except the text of its licence."""
    folder = data_folder() / dataset.folder
    return all((folder / name).exists() for remote in dataset.files for name in remote.files if not remote.licence)


def _named(folder: Path, remote: Remote) -> str:
    """The paths of a file, or of the members of an archive."""
    shown = ", ".join(remote.files[:_SHOWN]) + (", ..." if len(remote.files) > _SHOWN else "")
    return f"{folder}{os.sep}{shown}"


def _status(noted: dict[str, Any], remote: Remote, apart: bool) -> str:
    files = noted.get("files", {remote.name: noted["bytes"]})
    size, sha256 = disk.size(sum(files.values())), str(noted["sha256"])[:16]
    if remote.unpack is None:
        end = f"sha256 {sha256}"
    elif not apart:
        end = f"out of {remote.name}, whose sha256 {sha256}"
    else:
        which = "that may be others than those of the archive" if remote.sha256 else f"with sha256 {sha256} together"
        return f"{size}, {len(files)} file{'s' * (len(files) != 1)} {which}"
    pinned = noted["sha256"] == remote.sha256
    return f"{size}, {end} is {'the pinned one' if pinned else 'noted; none is pinned'}"


def _is_there(folder: Path, remote: Remote, record: Mapping[str, Any]) -> bool:
    """Whether a file is there, downloaded or not, with the expected size and sha256."""
    noted = _noted(remote, record)
    if remote.unpack is None and remote.sha256 is not None:
        noted = {remote.name: Noted(remote.size or -1, remote.sha256)}
    there = bool(noted) and all((folder / name).exists() for name in remote.files)
    return there and all(one.is_there(folder / name) for name, one in noted.items())


def _noted(remote: Remote, record: Mapping[str, Any]) -> dict[str, Noted]:
    """The recorded size and sha256 of each file."""
    return noted_files(record[remote.name], remote.name) if remote.name in record else {}


def _refuse_another(folder: Path, remote: Remote, record: Mapping[str, Any]) -> None:
    """Raises `UserError` where a file that was not fetched, or was edited since, would be overwritten.
    (Where its archive is there, it has come out of that. What came out of one and was cut is made anew.)"""
    archive = folder / remote.name if remote.unpack is not None else None
    if archive is not None and archive.is_file() and remote.sha256 in (None, sha256_of(archive)):
        return
    noted = _noted(remote, record)
    sound = {name for name, one in noted.items() if remote.unpack is not None and one.is_there(folder / name)}
    edited = [name for name, one in noted.items() if name not in sound and has_size(folder / name, one.size)]
    for name in (remote.name, *remote.holds, *edited):
        if (folder / name).is_file() and name not in sound:
            raise UserError(
                f"{folder / name}: is there, and is not the file that is fetched; move it away, or name another place "
                "for datasets by NUMERATE_DATA"
            )


# From an address -----------------------------------------------------------------------------------------------------


def _from_address(
    folder: Path, remote: Remote, record: dict[str, Any], on_progress: ProgressCallback | None, pause: float
) -> dict[str, Any]:
    path = folder / remote.name
    if path.is_file():
        sha256 = remote.sha256 or sha256_of(path)  # `_refuse_another` has compared it
    else:
        part = path.with_name(path.name + PART)
        tries, have = 0, _size(part)
        while True:
            try:
                _download(remote, part, on_progress)
                break
            except _Broken as error:
                tries, have = (tries + 1 if _size(part) <= have else 1), _size(part)
                if tries == _TRIES:
                    kept = f"; {disk.size(have)} are kept, and the same command resumes from there" if have else ""
                    raise OperationalError(
                        f"{remote.url}: {error}{kept}. --from DIR takes it from a folder that has the files"
                    ) from error
                time.sleep(pause * tries)
        sha256 = _checked(part, remote, record)
        _into_place(part, path)
    return {"url": remote.url, "bytes": path.stat().st_size, "sha256": sha256}


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


class _Broken(Exception):
    """A connection that failed or ended early, and is retried."""


def _download(remote: Remote, part: Path, on_progress: ProgressCallback | None) -> None:
    """Downloads the rest of a partial file. Raises `_Broken` where that ends early."""
    have, tag = _size(part), _tag(part)
    if (remote.size is not None and have > remote.size) or not (tag or remote.sha256):
        have = 0  # without a tag the part may be of another version than the server has now
    if have and remote.size == have:
        return
    request = urllib.request.Request(remote.url, headers={"User-Agent": "numerate", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if tag:
            request.add_header("If-Range", tag)
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
            _append(answer, remote, part, have, on_progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # what there is goes beyond the file, or is all of it, which the sha256 tells
            if remote.sha256 is None:
                part.unlink()
                raise _Broken("the server has another file than before") from error
            return
        if error.code in (408, 429) or error.code >= 500:
            raise _Broken(f"the server answers {error.code} {error.reason}") from error
        raise OperationalError(f"{remote.url}: the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _Broken(f"cannot be reached ({error.reason})") from error
    except (HTTPException, TimeoutError, ConnectionError) as error:
        raise _Broken(f"the connection broke ({error or type(error).__name__})") from error


def _append(answer: HTTPResponse, remote: Remote, part: Path, have: int, on_progress: ProgressCallback | None) -> None:
    resumes = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
    begin = have if resumes else 0
    length = answer.headers.get("Content-Length")
    total = begin + int(length) if length and length.isdecimal() else remote.size
    if remote.size is not None and total != remote.size:
        raise OperationalError(
            f"{remote.url}: the server has {total:,} bytes instead of {remote.size:,}: not the file that is meant"
        )
    _note_tag(part, answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")
    with open(part, "ab" if resumes else "wb") as file:
        done = begin
        while portion := answer.read(PORTION):
            file.write(portion)
            done += len(portion)
            if on_progress is not None:
                on_progress(remote.name, done, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done < total:
        raise _Broken(f"the connection ended after {disk.size(done)} of {disk.size(total)}")


def _tag_path(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _tag(part: Path) -> str:
    try:
        return _tag_path(part).read_text(encoding="utf-8")
    except OSError:
        return ""


def _note_tag(part: Path, tag: str) -> None:
    """Records the version (ETag) of a partial file, so that it is not resumed with another."""
    if tag.startswith("W/"):
        tag = ""
    if tag != _tag(part):
        disk.replace(_tag_path(part), tag.encode())


def _checked(part: Path, remote: Remote, record: dict[str, Any]) -> str:
    """The sha256 of what came. Raises `OperationalError` for a file that is not the one that is pinned, or that came
    before; it is not kept."""
    size, sha256 = part.stat().st_size, sha256_of(part)
    noted = record.get(remote.name, {})
    wanted = remote.sha256 or (noted.get("sha256") if noted.get("url") == remote.url else None)
    if (remote.size is None or size == remote.size) and wanted in (None, sha256):
        return sha256
    part.unlink()
    _tag_path(part).unlink(missing_ok=True)
    if remote.size is not None and size != remote.size:
        raise OperationalError(f"{remote.url}: what came has {size:,} bytes instead of {remote.size:,}; it is not kept")
    pinned = "the pinned one" if remote.sha256 else f"what came before (see {RECORD}, which may be removed)"
    raise OperationalError(f"{remote.url}: what came has sha256 {sha256}, {pinned} is {wanted}; it is not kept")


def _into_place(part: Path, path: Path) -> None:
    disk.sync(part)
    os.replace(part, path)
    _tag_path(part).unlink(missing_ok=True)
    disk.sync(path.parent)


# From a mirror -------------------------------------------------------------------------------------------------------


def _folder_in(mirror: Path, dataset: Dataset) -> Path:
    """The folder of a dataset in a mirror: the mirror itself where it has its files and no such folder."""
    wanted = [remote for remote in dataset.files if not remote.licence]
    itself = all(
        (mirror / remote.name).is_file() or all((mirror / name).exists() for name in remote.files) for remote in wanted
    )
    return mirror if itself and not (mirror / dataset.folder).is_dir() else mirror / dataset.folder


def _from_mirror(
    mirror: Path, folder: Path, remote: Remote, on_progress: ProgressCallback | None, called: str
) -> dict[str, Any]:
    """Copies a file, or the members of an archive. Raises `UserError` that says which folder is right, one that
    is `called` so or has that one, where it is not there."""
    if (mirror / remote.name).is_file():
        return _copy(mirror / remote.name, folder / remote.name, remote, on_progress)
    lacking = [name for name in remote.holds if not (mirror / name).exists()]
    if remote.unpack is None or lacking:
        what = mirror / (lacking[0] if lacking and len(lacking) < len(remote.holds) else remote.name)
        raise UserError(
            f"--from: {what} is not there; the folder that has {called}/ with all its files is right, or {called}/ "
            "itself"
        )
    files: dict[str, int] = {}
    sums: dict[str, str] = {}
    for name in remote.holds:
        found = (
            sorted(path for path in (mirror / name).rglob("*") if path.is_file()) if (mirror / name).is_dir() else []
        )
        for path in found or [mirror / name]:
            member = path.relative_to(mirror).as_posix()
            noted = _copy(path, folder / member, None, on_progress)
            files[member], sums[member] = noted["bytes"], noted["sha256"]
    together = hashlib.sha256("".join(f"{sum}  {member}\n" for member, sum in sums.items()).encode()).hexdigest()
    size = sum(files.values())
    return {"url": str(mirror), "bytes": size, "sha256": together, "files": files, "sums": sums}


def _copy(source: Path, path: Path, remote: Remote | None, on_progress: ProgressCallback | None) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PART)
    _tag_path(part).unlink(missing_ok=True)
    total = source.stat().st_size
    with open(source, "rb") as read, open(part, "wb") as written:
        pour(read, written, source.name, total, on_progress)
    sha256 = sha256_of(part) if remote is None else _checked(part, replace(remote, url=str(source)), {})
    _into_place(part, path)
    return {"url": str(source), "bytes": total, "sha256": sha256}


def _remove_archive(folder: Path, remote: Remote) -> None:
    if remote.unpack is not None:
        (folder / remote.name).unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Locks a folder, so that one process at a time downloads into it."""
    import fcntl

    with open(folder / ".lock", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{folder}: another process is fetching it; wait for it, or end it") from error
        yield


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (1, 13, 30):
            raise UserError(
                f"{folder}: cannot be written ({error.strerror}); NUMERATE_DATA names another place for datasets"
            ) from error
        raise disk.explain(error, folder, "What came is kept, and the same command resumes.") from error

"""Downloading datasets: checked, atomic and resumable.

A file is written to a name that ends in `.part`, and renamed when its size and sha256 are verified. `fetched.json`
records the address, size and sha256 of each file; without an expected hash, later downloads are compared with these.
"""

import contextlib
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
from numerate.tasks.contents import file_sha256
from numerate.tasks.folders import data_folder
from numerate.text.data.archives import CHUNK_BYTES, PARTIAL_SUFFIX, ProgressCallback, copy_stream, unpack
from numerate.text.data.datasets import Dataset, RemoteFile
from numerate.text.tasks.fetched_files import RECORD_FILE, FileRecord, file_records, read_record
from numerate.text.tasks.input_errors import file_error
from numerate.training import disk

_MAX_LISTED_FILES = 5
_MAX_ATTEMPTS = 4
_TIMEOUT_SECONDS = 60.0
"""Timeout of a connection, in seconds."""


def fetch(
    dataset: Dataset,
    mirror: Path | None = None,
    on_progress: ProgressCallback | None = None,
    retry_delay: float = 2.0,
) -> list[str]:
    """Puts a dataset into the user's data folder, and returns a line of status for each file.

    With `mirror` the files are copied from there, a folder laid out like the data folder, or the folder of this dataset
    itself; license texts may be missing; without, from their official addresses, resuming an earlier attempt. A
    connection that breaks is opened again a few times, with `retry_delay` seconds between.

    Raises `OperationalError` if the network or a server fails, or if size or sha256 differ from the expected or earlier
    ones; `UserError` for a mirror without the files, and for a folder that is not writable.
    """
    folder = data_folder() / dataset.folder
    source = None if mirror is None else _dataset_folder_in(mirror, dataset)
    lines = []
    with disk.convert_os_errors(folder, "The partial download is kept; the same command resumes it.", place="data"):
        folder.mkdir(parents=True, exist_ok=True)
        with _lock_folder(folder):
            record = read_record(folder)
            for remote in dataset.files:
                names = ", ".join(remote.files[:_MAX_LISTED_FILES])
                paths = f"{folder}{os.sep}{names}{', ...' * (len(remote.files) > _MAX_LISTED_FILES)}"
                if _is_present(folder, remote, record):
                    lines.append(f"{paths}: is there, from {record.get(remote.name, {}).get('url', 'elsewhere')}")
                elif remote.is_license and source is not None and not (source / remote.name).is_file():
                    lines.append(f"{source} has no {remote.name}; {remote.url} is its text")
                else:
                    _check_no_foreign_file(folder, remote, record)
                    if source is None:
                        entry = _download_file(folder, remote, record, on_progress, retry_delay)
                    else:
                        entry = _copy_from_mirror(source, folder, remote, on_progress, dataset.folder)
                    copied_unpacked = "files" in entry
                    if remote.archive_format is not None and not copied_unpacked:
                        sizes = unpack(folder / remote.name, folder, remote, on_progress)
                        entry |= {"files": sizes, "sums": {name: file_sha256(folder / name) for name in sizes}}
                    record[remote.name] = entry
                    content = json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n"
                    disk.write_atomically(folder / RECORD_FILE, content)
                    lines.append(f"{paths}: {_status_text(entry, remote, copied_unpacked)}")
                if remote.archive_format is not None:
                    (folder / remote.name).unlink(missing_ok=True)
    return lines


def is_fetched(dataset: Dataset) -> bool:
    """Whether all files of a dataset are in the user's data folder, except the text of its licence."""
    folder = data_folder() / dataset.folder
    return all((folder / name).exists() for remote in dataset.files for name in remote.files if not remote.is_license)


def _status_text(entry: dict[str, Any], remote: RemoteFile, copied_unpacked: bool) -> str:
    files = entry.get("files", {remote.name: entry["bytes"]})
    size = disk.format_bytes(sum(files.values()))
    if copied_unpacked:
        return f"{size}, {len(files)} file{'s' * (len(files) != 1)} that may be others than those of the archive"
    sha256 = entry["sha256"][:16]
    origin = "" if remote.archive_format is None else f"out of {remote.name}, whose "
    is_pinned = entry["sha256"] == remote.sha256
    return (
        f"{size}, {origin}sha256 {sha256} ({'matches the pinned hash' if is_pinned else 'recorded; no hash is pinned'})"
    )


def _is_present(folder: Path, remote: RemoteFile, record: Mapping[str, Any]) -> bool:
    """Whether a file is there, downloaded or not, with the expected size and sha256."""
    recorded = _recorded_files(remote, record)
    if remote.archive_format is None and remote.sha256 is not None:
        recorded = {remote.name: FileRecord(remote.size or -1, remote.sha256)}
    exists = bool(recorded) and all((folder / name).exists() for name in remote.files)
    return exists and all(one.matches(folder / name) for name, one in recorded.items())


def _recorded_files(remote: RemoteFile, record: Mapping[str, Any]) -> dict[str, FileRecord]:
    """The recorded size and sha256 of each file."""
    return file_records(record[remote.name], remote.name) if remote.name in record else {}


def _check_no_foreign_file(folder: Path, remote: RemoteFile, record: Mapping[str, Any]) -> None:
    """Raises `UserError` where a file that was not fetched, or was edited since, would be overwritten. Members of an
    archive that is there, and cut members, are made anew."""
    is_archive, recorded = remote.archive_format is not None, _recorded_files(remote, record)
    if is_archive and (folder / remote.name).is_file() and remote.sha256 in (None, file_sha256(folder / remote.name)):
        return
    unchanged = {name for name, one in recorded.items() if is_archive and one.matches(folder / name)}
    edited = [name for name, one in recorded.items() if _file_size(folder / name) == one.size]
    for name in (remote.name, *remote.members, *edited):
        if (folder / name).is_file() and name not in unchanged:
            raise file_error(
                folder / name,
                "exists and is not the downloaded file; move it away, or set NUMERATE_DATA to another data folder",
            )


# From an address -----------------------------------------------------------------------------------------------------


def _download_file(
    folder: Path, remote: RemoteFile, record: dict[str, Any], on_progress: ProgressCallback | None, retry_delay: float
) -> dict[str, Any]:
    path = folder / remote.name
    if path.is_file():
        sha256 = remote.sha256 or file_sha256(path)  # `_check_no_foreign_file` has compared it
    else:
        partial_path = path.with_name(path.name + PARTIAL_SUFFIX)
        attempts, num_bytes = 0, _file_size(partial_path)
        while True:
            try:
                _download_rest(remote, partial_path, on_progress)
                break
            except _RetryableError as error:
                attempts = attempts + 1 if _file_size(partial_path) <= num_bytes else 1
                num_bytes = _file_size(partial_path)
                if attempts == _MAX_ATTEMPTS:
                    kept = f"; {disk.format_bytes(num_bytes)} are kept; the same command resumes the download"
                    hint = f"{kept * bool(num_bytes)}. Use --from DIR to copy the files from a folder"
                    raise OperationalError(f"{remote.url}: {error}{hint}") from error
                time.sleep(retry_delay * attempts)
        sha256 = _verified_sha256(partial_path, remote, record)
        _move_into_place(partial_path, path)
    return {"url": remote.url, "bytes": path.stat().st_size, "sha256": sha256}


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


class _RetryableError(Exception):
    """A connection that failed or ended early, and is retried."""


def _download_rest(remote: RemoteFile, partial_path: Path, on_progress: ProgressCallback | None) -> None:
    """Downloads the rest of a partial file. Raises `_RetryableError` where that ends early."""
    etag_path = _etag_path(partial_path)
    bytes_downloaded, etag = _file_size(partial_path), etag_path.read_text("utf-8") if etag_path.is_file() else ""
    if (remote.size is not None and bytes_downloaded > remote.size) or not (etag or remote.sha256):
        bytes_downloaded = 0  # without a tag the part may be of another version than the server has now
    if bytes_downloaded and remote.size == bytes_downloaded:
        return
    request = urllib.request.Request(remote.url, headers={"User-Agent": "numerate", "Accept-Encoding": "identity"})
    if bytes_downloaded:
        request.add_header("Range", f"bytes={bytes_downloaded}-")
        if etag:
            request.add_header("If-Range", etag)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            _append_response(response, remote, partial_path, bytes_downloaded, on_progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and bytes_downloaded:  # the part is the whole file or of another, which the sha256 tells
            if remote.sha256 is None:
                partial_path.unlink()
                raise _RetryableError("the server has another file than before") from error
            return
        if error.code in (408, 429) or error.code >= 500:
            raise _RetryableError(f"the server answers {error.code} {error.reason}") from error
        raise OperationalError(f"{remote.url}: the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _RetryableError(f"cannot be reached ({error.reason})") from error
    except (HTTPException, TimeoutError, ConnectionError) as error:
        raise _RetryableError(f"the connection broke ({error or type(error).__name__})") from error


def _append_response(
    response: HTTPResponse, remote: RemoteFile, part: Path, bytes_downloaded: int, on_progress: ProgressCallback | None
) -> None:
    is_resumed = response.status == 206 and (response.headers.get("Content-Range") or "").startswith(
        f"bytes {bytes_downloaded}-"
    )
    start = bytes_downloaded if is_resumed else 0
    length = response.headers.get("Content-Length")
    total = start + int(length) if length and length.isdecimal() else remote.size
    if remote.size is not None and total != remote.size:
        raise OperationalError(
            f"{remote.url}: the server has {total:,} bytes instead of {remote.size:,}: not the expected file"
        )
    etag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
    disk.write_atomically(_etag_path(part), b"" if etag.startswith("W/") else etag.encode())
    with open(part, "ab" if is_resumed else "wb") as file:
        bytes_written = start
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            bytes_written += len(chunk)
            if on_progress is not None:
                on_progress(remote.name, bytes_written, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and bytes_written < total:
        raise _RetryableError(
            f"the connection ended after {disk.format_bytes(bytes_written)} of {disk.format_bytes(total)}"
        )


def _etag_path(part: Path) -> Path:
    """The file with the version (ETag) of a partial file, so that it is not resumed with another."""
    return part.with_name(part.name + ".tag")


def _verified_sha256(part: Path, remote: RemoteFile, record: dict[str, Any]) -> str:
    """The sha256 of what came. Raises `OperationalError` for a file that is not the one that is pinned, or that came
    before; it is not kept."""
    size, sha256 = part.stat().st_size, file_sha256(part)
    entry = record.get(remote.name, {})
    expected_sha256 = remote.sha256 or (entry.get("sha256") if entry.get("url") == remote.url else None)
    if (remote.size is None or size == remote.size) and expected_sha256 in (None, sha256):
        return sha256
    part.unlink()
    _etag_path(part).unlink(missing_ok=True)
    if remote.size is not None and size != remote.size:
        raise OperationalError(
            f"{remote.url}: the download has {size:,} bytes, expected {remote.size:,}; it was removed"
        )
    pinned = "the pinned one" if remote.sha256 else f"what came before (see {RECORD_FILE}, which may be removed)"
    raise OperationalError(
        f"{remote.url}: what came has sha256 {sha256}, {pinned} is {expected_sha256}; it is not kept"
    )


def _move_into_place(part: Path, path: Path) -> None:
    disk.fsync(part)
    os.replace(part, path)
    _etag_path(part).unlink(missing_ok=True)
    disk.fsync(path.parent)


# From a mirror -------------------------------------------------------------------------------------------------------


def _dataset_folder_in(mirror: Path, dataset: Dataset) -> Path:
    """The folder of a dataset in a mirror: the mirror itself where it has its files and no such folder."""
    required = [remote for remote in dataset.files if not remote.is_license]
    is_dataset_folder = all(
        (mirror / remote.name).is_file() or all((mirror / name).exists() for name in remote.files)
        for remote in required
    )
    return mirror if is_dataset_folder and not (mirror / dataset.folder).is_dir() else mirror / dataset.folder


def _copy_from_mirror(
    mirror: Path, folder: Path, remote: RemoteFile, on_progress: ProgressCallback | None, folder_name: str
) -> dict[str, Any]:
    """Copies a file, or the members of an archive. Raises `UserError` where it is not in `mirror`, naming the folder
    that is needed: `folder_name`, or one that contains it."""
    if (mirror / remote.name).is_file():
        return _copy_file(mirror / remote.name, folder / remote.name, remote, on_progress)
    missing = [name for name in remote.members if not (mirror / name).exists()]
    if remote.archive_format is None or missing:
        what = mirror / (missing[0] if missing and len(missing) < len(remote.members) else remote.name)
        raise UserError(
            f"--from: {what} does not exist; DIR must be {folder_name}/ with all its files, or the folder that "
            "contains it"
        )
    files: dict[str, int] = {}
    sums: dict[str, str] = {}
    for path in (path for name in remote.members for path in (mirror / name, *sorted((mirror / name).rglob("*")))):
        if path.is_file():
            member = path.relative_to(mirror).as_posix()
            entry = _copy_file(path, folder / member, None, on_progress)
            files[member], sums[member] = entry["bytes"], entry["sha256"]
    return {"url": str(mirror), "bytes": sum(files.values()), "files": files, "sums": sums}


def _copy_file(
    source: Path, path: Path, remote: RemoteFile | None, on_progress: ProgressCallback | None
) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PARTIAL_SUFFIX)
    _etag_path(part).unlink(missing_ok=True)
    total = source.stat().st_size
    with open(source, "rb") as source_file, open(part, "wb") as target_file:
        copy_stream(source_file, target_file, source.name, total, on_progress)
    sha256 = file_sha256(part) if remote is None else _verified_sha256(part, replace(remote, url=str(source)), {})
    _move_into_place(part, path)
    return {"url": str(source), "bytes": total, "sha256": sha256}


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Locks a folder, so that one process at a time downloads into it."""
    import fcntl

    with open(folder / ".lock", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{folder}: another process is downloading it; wait until it ends") from error
        yield

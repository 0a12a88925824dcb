"""The folder of a run, `runs/<recipe>/<id>/`: what is in it, and who may write it. docs/runs.md lists its files.

Files contain no paths of other folders and nothing depends on the clock, so a folder can be copied anywhere.
"""

import contextlib
import functools
import glob
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from numerate.config import approve_imported, user_files, yaml_text
from numerate.errors import OperationalError, UserError, did_you_mean
from numerate.plain_yaml import load_plain_yaml
from numerate.records import heads
from numerate.records.kinds import RUN_FILE_SCHEMAS
from numerate.records.reading import FORMAT, parse_lines, read_bytes, read_records
from numerate.records.schema import CHECKSUM_KEY, checksum
from numerate.training import checkpoint, disk
from numerate.training.lock import Lock

STARTS_FILE = ".starts"
"""The file of a folder of runs that names each run at each start, in order."""

_START_KEYS = ("command", "git", "hardware", "versions", "times")


class RunFolder:
    """The folder of one run. Reading requires no lock; writing requires `lock()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock(path / "lock")

    @classmethod
    def create(cls, runs: Path, recipe_name: str, run_id: str, metadata: Mapping[str, Any]) -> "RunFolder":
        """Creates the folder of a run, unless it exists. It is created with its `recipe.yaml` by one rename, so that no
        run is ever without one. Raises `UserError` if it cannot be written or the path is not a run folder,
        `OperationalError` on a full disk.
        """
        recipe_name = folder_name(recipe_name)
        path = runs / recipe_name / folder_name(run_id)
        approve_imported()
        if not (path / "recipe.yaml").exists():
            disk.make_folder(path.parent)
            new_path = path if cls._was_never_started(path) else disk.temporary_path(path)
            head = header_yaml({"name": None, "id": run_id, **metadata} | {"id": run_id})
            try:
                cls._write_new(new_path, head)
                if new_path != path:
                    with disk.convert_os_errors(path):
                        os.rename(new_path, path)
                        disk.fsync(path.parent)
            except (UserError, OperationalError):
                if not (path / "recipe.yaml").exists():  # which another process may have made meanwhile
                    if new_path != path and cls._was_never_started(path):  # or how it failed
                        cls._write_new(path, head)
                    elif path.exists():
                        raise UserError(
                            f"{path}: exists but has no recipe.yaml; move it, or set another runs_dir=."
                        ) from None
                    else:
                        raise
            finally:
                if new_path != path:
                    shutil.rmtree(new_path, ignore_errors=True)
        with contextlib.suppress(UserError, OperationalError):  # only `latest` is affected
            disk.append_text(runs / STARTS_FILE, f"\n{recipe_name}/{path.name}\n")  # the first ends a corrupted line
        return cls(path)

    @staticmethod
    def _was_never_started(path: Path) -> bool:
        """Whether a folder holds no more than how its run failed before it was started."""
        names = {file.name for file in path.iterdir()} if path.is_dir() else {""}
        return all(name in ("end.json", "lock", "parts") or name.startswith(disk.TEMPORARY_PREFIX) for name in names)

    @staticmethod
    def _write_new(path: Path, head: bytes) -> None:
        with disk.convert_os_errors(path):
            path.mkdir(exist_ok=True)
            for file in user_files():
                if file.sha256.encode() in head:
                    file.copy_to(path / "parts" / file.sha256[:12])
            disk.write_atomically(path / "recipe.yaml", head)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Opens the folder of an existing run. Raises `UserError` if there is none."""
        if not (path / "recipe.yaml").is_file():
            what = "is not a run: it has no recipe.yaml" if path.is_dir() else "there is no such folder"
            raise UserError(f"{path}: {what}.{did_you_mean(path.name, folders_of_runs(path.parent))}")
        return cls(path)

    @property
    def id(self) -> str:
        return self.path.absolute().name

    @functools.cached_property
    def run_id(self) -> str:
        """The id in its `recipe.yaml`, which its records repeat; a renamed folder keeps it."""
        return read_metadata_entry(self, "id") or self.id

    @property
    def recipe_name(self) -> str:
        return self.path.absolute().parent.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def file(self, name: str) -> Path:
        return self.path / name

    def check_no_links(self) -> None:
        """Raises `UserError` for a link among the files of the run: what it names may be no part of the run."""
        for path in (*self.path.glob("*"), *self.checkpoints.rglob("*")):
            if path.is_symlink():
                raise UserError(f"{path}: must not be a link, which is not followed here; put a copy in its place")

    def metadata(self) -> dict[str, Any]:
        """The contents of `recipe.yaml`. Raises `UserError` if it is corrupted or from a later version."""
        return heads.read_header(self.file(heads.RECIPE_FILE))

    def record_start(self, metadata: Mapping[str, Any]) -> None:
        """Records the start of a training session, under the lock: a line in `starts.jsonl`, and `metadata` as the new
        metadata.

        Entries that only the old metadata has, and the time of creation, are kept; how it ended is not.
        """
        old = self.metadata()
        old.pop("ended", None)
        disk.append_records(self.file("starts.jsonl"), [{key: metadata.get(key) for key in _START_KEYS}], durable=True)
        times = {**old.get("times", {}), **metadata.get("times", {})}
        times["created"] = old.get("times", {}).get("created", times.get("created", times.get("started")))
        entries = {key: value for key, value in metadata.items() if value is not None}
        self._write_metadata({**old, **entries, "times": times, "id": old["id"]})

    def update_metadata(self, **changes: Any) -> None:
        """Sets entries of the metadata, under the lock. `times` is merged with the existing times."""
        old = self.metadata()
        if "times" in changes:
            changes["times"] = {**old.get("times", {}), **changes["times"]}
        self._write_metadata({**old, **changes})

    def _write_metadata(self, head: Mapping[str, Any]) -> None:
        disk.write_atomically(self.file(heads.RECIPE_FILE), header_yaml(head), "The run itself is intact.")

    def append(self, name: str, *records: Mapping[str, Any], durable: bool = False) -> None:
        """Appends records to one of the run's `.jsonl` files: all of them, or none when the disk is full."""
        disk.append_records(
            self.file(name), records, durable=durable, unharmed_note="What was written before is intact."
        )

    def records(self, name: str) -> list[dict[str, Any]]:
        """The records of one of the run's `.jsonl` files, or of a shard's; none if there is no such file.

        Corrupted lines raise `UserError` or warn, depending on the kind of record: see `numerate.records.kinds`.
        """
        return read_records(self.file(name), RUN_FILE_SCHEMAS[Path(name).name], run_id=self.run_id)

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file of the folder atomically."""
        raw = content.encode() if isinstance(content, str) else content
        disk.write_atomically(self.file(name), raw, unharmed_note="The previous file is intact.")

    def truncate_metrics(self, step: int, *, is_evaluated: bool = True) -> int:
        """Removes the records of steps after `step` from `metrics.jsonl`, since a resumed run will write them again,
        and the evaluations of `step` itself unless `is_evaluated`. They are moved to `metrics-undone.jsonl`. An
        incomplete last line is removed; other corrupted lines stay. Returns the number of moved records.
        """

        def keep(record: Mapping[str, Any]) -> bool:
            return record["step"] < step or (record["step"] == step and (is_evaluated or "split" not in record))

        kept_lines, moved = self.split_records("metrics.jsonl", keep)
        if moved:
            self.append("metrics-undone.jsonl", *moved, durable=True)
        if kept_lines != read_bytes(self.file("metrics.jsonl")):
            self.write("metrics.jsonl", kept_lines)
        return len(moved)

    def split_records(self, name: str, keep: Callable[[Mapping[str, Any]], bool]) -> tuple[bytes, list[dict[str, Any]]]:
        """The unchanged lines to keep of a file of records, including corrupted ones, and the records of the other
        lines. An incomplete last line is in neither."""
        path = self.file(name)
        kept, others = [], []
        schema = RUN_FILE_SCHEMAS[Path(name).name]
        for line in parse_lines(read_bytes(path), path, schema, run_id=self.run_id):
            if line.record is not None and not keep(line.record):
                others.append(line.record)
            elif not line.is_truncated:
                kept.append(line.text + b"\n")
        return b"".join(kept), others

    @contextlib.contextmanager
    def lock(self, activity: str = "training") -> Iterator[None]:
        """Holds the folder for writing, as `Lock.hold` does. Unfinished writes of an earlier holder are cleaned up."""
        with self._lock.hold(activity) as is_outermost:
            if is_outermost:
                with disk.convert_os_errors(self.path):
                    self._clean_up()
            yield

    def _clean_up(self) -> None:
        """Removes what killed processes left unfinished; one that is making the same run just now removes its own."""
        beside = self.path.parent.glob(f"{disk.TEMPORARY_PREFIX}{glob.escape(self.path.name)}-*")
        for leftover in (*self.path.glob(f"{disk.TEMPORARY_PREFIX}*"), *beside):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()
        checkpoint.clean_up(self.checkpoints)


def header_yaml(head: Mapping[str, Any]) -> bytes:
    """The contents of a `recipe.yaml`: its format, what `head` has, and a checksum."""
    data = disk.to_plain_data({"format": None} | dict(head) | {"format": FORMAT})
    return yaml_text(data | {CHECKSUM_KEY: checksum(data)}, width=1000).encode()


def earlier_metadata(path: Path) -> dict[str, Any]:
    """The metadata that earlier sessions of a run wrote; empty for a new run."""
    is_new = not (path / "recipe.yaml").is_file() and not (path / "checkpoints").is_dir()
    return {} if is_new else RunFolder.open(path).metadata()


def read_metadata_entry(run: RunFolder, key: str) -> str | None:
    """One entry of a run's metadata without parsing all of it, so that a thousand runs can be searched quickly."""
    try:
        found = re.search(rf"^{key}: (.+)$", run.file("recipe.yaml").read_text(encoding="utf-8"), re.MULTILINE)
        value = load_plain_yaml(found[1]) if found else None
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return None if value is None else str(value)


def folder_name(text: str) -> str:
    """A text as one folder's name: `folder_name("my.py:small add")` is `"my.py-small-add"`."""
    name = re.sub(r"[^\w.+=-]+", "-", text).lstrip(".-")
    if not name:
        raise UserError(f"{text!r} must contain letters or digits to name a folder.")
    return name[:100]


def resolve_runs_dir(runs_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where runs are: `runs_dir` (the setting runs_dir=), else NUMERATE_RUNS, else `./runs`.

    Raises `UserError` for a file, and for an empty text.
    """
    if runs_dir is not None and not os.fspath(runs_dir).strip():
        raise UserError("runs_dir: must not be empty; leave it out for NUMERATE_RUNS or ./runs")
    runs = Path(os.path.expanduser(runs_dir or os.environ.get("NUMERATE_RUNS") or "runs"))
    if runs.is_file():
        raise UserError(f"runs_dir: must be a folder, not the file {runs} (set runs_dir= or NUMERATE_RUNS)")
    return runs


def folders_of_runs(folder: Path) -> list[str]:
    """The names of the folders of runs in a folder."""
    return [head.parent.name for head in folder.glob("*/recipe.yaml")]

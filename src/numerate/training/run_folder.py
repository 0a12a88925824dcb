"""The folder of a run: where it is, what is in it, who may write it.

    runs/<recipe>/<id>/
      recipe.yaml      the metadata: recipe, name, id, command, git, hardware, versions, times
      parts/<hash>/    copies of the user's files that define its parts, to be read: what runs is only the user's own
      starts.jsonl     one line per training session: its command, git, hardware, versions, time
      metrics.jsonl    one line per logged step; lines that a resumed run writes again are moved to metrics-undone.jsonl
      checkpoints/     see `numerate.training.checkpoint`
      log.txt          the output of the run
      lock             held while a process writes

Runs are under `runs_dir=` if given, else the environment's NUMERATE_RUNS, else `./runs`. Files contain no paths of
other folders and nothing depends on the clock, so a folder can be copied anywhere.
"""

import contextlib
import errno
import glob
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from numerate import catalogue
from numerate.config import approve_imported, user_files
from numerate.errors import OperationalError, UserError, did_you_mean
from numerate.plain_yaml import load_plain_yaml
from numerate.records import heads
from numerate.records.kinds import RUN_FILE_SCHEMAS
from numerate.records.reading import FORMAT, parse_lines, read_bytes, read_records
from numerate.records.schema import CHECKSUM_KEY, checksum
from numerate.training import checkpoint, disk
from numerate.training.lock import Lock

_STARTS_FILE = ".starts"
_PATH_TAKEN_ERRNOS = {errno.ENOTEMPTY, errno.EEXIST}
_START_KEYS = ("command", "git", "hardware", "versions", "times")


class RunFolder:
    """The folder of one run. Reading requires no lock; writing requires `lock()`. For example:

    run = RunFolder.create(resolve_runs_dir(), "addition_abacus", "3f2a9c01b7de", {"recipe": tree})
    with run.lock():
        run.record_start(metadata)
        run.append("metrics.jsonl", {"step": 500, "loss": 0.0123})
    """

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
            content = header_yaml({"name": None, "id": run_id, **metadata} | {"id": run_id})
            temporary_path = disk.temporary_path(path)
            try:
                disk.make_folder(path.parent)
                with disk.convert_os_errors(path):
                    temporary_path.mkdir()
                    for file in user_files():
                        if file.sha256.encode() in content:
                            file.copy_to(temporary_path / "parts" / file.sha256[:12])
                    disk.write_atomically(temporary_path / "recipe.yaml", content)
                    os.rename(temporary_path, path)
                    disk.fsync(path.parent)
            except BaseException as error:
                shutil.rmtree(temporary_path, ignore_errors=True)
                made_by_another = isinstance(error, UserError | OperationalError) and (path / "recipe.yaml").exists()
                if not made_by_another:
                    if isinstance(error.__cause__, OSError) and error.__cause__.errno in _PATH_TAKEN_ERRNOS:
                        raise UserError(
                            f"{path}: exists but has no recipe.yaml; move it, or set another runs_dir=."
                        ) from error
                    raise
        with contextlib.suppress(UserError, OperationalError):  # only `latest` is affected
            disk.append_text(
                runs / _STARTS_FILE, f"\n{recipe_name}/{path.name}\n"
            )  # the first line end is for a corrupted line
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Opens the folder of an existing run. Raises `UserError` if there is none."""
        if not (path / "recipe.yaml").is_file():
            what = "is not a run: it has no recipe.yaml" if path.is_dir() else "there is no such folder"
            raise UserError(f"{path}: {what}.{did_you_mean(path.name, _runs_in(path.parent))}")
        return cls(path)

    @property
    def id(self) -> str:
        return self.path.absolute().name

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

    def _write_metadata(self, head: dict[str, Any]) -> None:
        content = header_yaml(head)
        disk.write_atomically(self.file(heads.RECIPE_FILE), content, unharmed_note="The run itself is intact.")

    def append(self, name: str, *records: Mapping[str, Any], durable: bool = False) -> None:
        """Appends records to one of the run's `.jsonl` files: all of them, or none when the disk is full."""
        disk.append_records(
            self.file(name), records, durable=durable, unharmed_note="What was written before is intact."
        )

    def records(self, name: str) -> list[dict[str, Any]]:
        """The records of one of the run's `.jsonl` files, or of a shard's; none if there is no such file.

        Corrupted lines raise `UserError` or warn, depending on the kind of record: see `numerate.records.kinds`.
        """
        return read_records(self.file(name), RUN_FILE_SCHEMAS[Path(name).name])

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
        for line in parse_lines(read_bytes(path), path, RUN_FILE_SCHEMAS[Path(name).name]):
            if line.record is not None and not keep(line.record):
                others.append(line.record)
            elif not line.is_truncated:
                kept.append(line.text + b"\n")
        return b"".join(kept), others

    @contextlib.contextmanager
    def lock(self, activity: str = "training") -> Iterator[None]:
        """Holds the folder for writing; may be nested. Raises `UserError` that names the process that holds it already.

        The lock is released when the process ends, even by `kill -9`. Unfinished writes of an earlier holder are
        cleaned up first.
        """
        with self._lock.hold(activity) as is_outermost:
            if is_outermost:
                with disk.convert_os_errors(self.path):
                    self._clean_up()
            yield

    def _clean_up(self) -> None:
        name = glob.escape(self.path.name)
        for leftover in (
            *self.path.glob(f"{disk.TEMPORARY_PREFIX}*"),
            *self.path.parent.glob(f"{disk.TEMPORARY_PREFIX}{name}-*"),
        ):
            with contextlib.suppress(FileNotFoundError):  # another process that has lost the race removes its own
                shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink(
                    missing_ok=True
                )
        checkpoint.clean_up(self.checkpoints)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Plain data only; strings that a YAML reader could parse as a number, a boolean or a date are quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_AMBIGUOUS = re.compile(
    r"[-+.]?[\d_.:]+([eE][-+]?\d+)?|0[xob]\w+|[-+]?\.(inf|nan)|y|n|true|false|yes|no|on|off|null|~|", re.IGNORECASE
)


def _represent_text(dumper: Any, value: str) -> Any:
    style = '"' if _AMBIGUOUS.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)


def header_yaml(head: Mapping[str, Any]) -> bytes:
    """The contents of a `recipe.yaml`: its format, what `head` has, and a checksum."""
    data = disk.to_plain_data({"format": None} | dict(head) | {"format": FORMAT})
    data |= {CHECKSUM_KEY: checksum(data)}
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return str(text).encode()


def earlier_metadata(path: Path) -> dict[str, Any]:
    """The metadata that earlier sessions of a run wrote; empty for a new run."""
    is_new = not (path / "recipe.yaml").is_file() and not (path / "checkpoints").is_dir()
    return {} if is_new else RunFolder.open(path).metadata()


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


def all_runs(runs: Path) -> list[RunFolder]:
    """All runs in a folder of runs, by recipe and id."""
    with disk.convert_os_errors(runs):
        heads = sorted(runs.glob("[!.]*/[!.]*/recipe.yaml"))
    return [RunFolder(head.parent) for head in heads]


def latest_run(runs: Path) -> RunFolder | None:
    """The run that was created or resumed last (by the order of sessions, not by a clock) of those with a checkpoint,
    or of all if none has one. Warns if a later one has none yet."""
    newest = None
    for run in _newest_first(runs):
        if checkpoint.list_steps(run.checkpoints):
            if newest is not None:
                message = f"latest: {newest.path} has no checkpoint yet; taking {run.path}, the newest run that has one"
                warnings.warn(message, stacklevel=3)
            return run
        newest = newest or run
    return newest


def _newest_first(runs: Path) -> Iterator[RunFolder]:
    try:
        lines = (runs / _STARTS_FILE).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    known_paths = [runs / name for name in dict.fromkeys(reversed(lines)) if name]
    yield from (RunFolder(path) for path in known_paths if os.path.isfile(path / "recipe.yaml"))
    others = [run for run in all_runs(runs) if run.path not in known_paths]
    yield from sorted(others, key=lambda run: (_read_metadata_entry(run, "  started") or "", run.path), reverse=True)


def find_run(address: str | os.PathLike[str], runs: Path) -> RunFolder:
    """Finds a run by its path, `latest`, a `name=`, an id or the beginning of one, or a recipe with one run. Raises
    `UserError` that lists the matches if there are several, or the nearest name if there is none.
    """
    text = os.fspath(address)
    path = Path(os.path.expanduser(text))
    if os.path.isfile(path / "recipe.yaml"):
        return RunFolder(path)
    if path.name == "recipe.yaml" and os.path.isfile(path):
        return RunFolder(path.parent)
    if os.path.isfile(runs / text / "recipe.yaml") and text.strip("./"):
        return RunFolder(runs / text)
    runs_found = all_runs(runs)
    if text == "latest":
        if (newest_run := latest_run(runs)) is None:
            raise UserError(f"{runs}: there is no run here yet; `numerate train RECIPE` creates one.")
        return newest_run
    name_by_path = {run.path: _read_metadata_entry(run, "name") for run in runs_found}
    for matches in (
        [run for run in runs_found if run.id == text],
        [run for run in runs_found if name_by_path[run.path] == text],
        [run for run in runs_found if text and run.id.startswith(text)],
        [run for run in runs_found if run.recipe_name == text.rstrip("/")],
        [run for run in runs_found if "/" in text and f"{run.recipe_name}/{run.id}".startswith(text)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            runs_text = ", ".join(f"{run.recipe_name}/{run.id}" for run in matches[:8]) + (
                ", ..." if len(matches) > 8 else ""
            )
            raise UserError(
                f"{text!r} may mean {len(matches)} runs in {runs}: {runs_text}. Use one of these, or a path."
            )
    if os.path.isdir(path):
        raise UserError(f"{path}: is no run: it has no recipe.yaml.{_suggest_path(path)}")
    if os.sep in text:
        raise UserError(f"{path}: there is no such folder.{did_you_mean(path.name, _runs_in(path.parent))}")
    if catalogue.is_recipe(text):
        is_study = text.replace("-", "_") in catalogue.parts_by_kind()["Study"]
        kind, command = ("study", "run") if is_study else ("recipe", "train")
        raise UserError(
            f"{text} is a {kind}, and there is no run of it in {runs}; `numerate {command} {text}` makes one"
        )
    known = [run.id for run in runs_found] + [name for name in name_by_path.values() if name] + ["latest"]
    raise UserError(f"no run in {runs} has the id, name or path {text!r}.{did_you_mean(text, known)}")


def _suggest_path(path: Path) -> str:
    """Advice for a path that is part of a run, or that contains other weights."""
    here = path.absolute()
    if here.name == "checkpoints" and (here.parent / "recipe.yaml").is_file():
        return f" Its run is {path.parent if path.parent.name else here.parent}."
    run = here.parent.parent
    if here.parent.name == "checkpoints" and (run / "recipe.yaml").is_file():
        run_path = path.parent.parent if len(path.parts) > 2 else run
        step = re.fullmatch(r"step-0*(\d+)", here.name)
        if step is None:
            return f" Its run is {run_path}."
        return (
            f" It is a checkpoint of the run {run_path}: give that, and which one where a checkpoint is expected, as "
            f"in `numerate evaluate {run_path} checkpoint={step[1]}`."
        )
    if inside := sorted(path.glob("*/recipe.yaml")):
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        return f" There are runs inside: {inside[0].parent}{more}."
    if (config := path / "config.json").is_file():
        if b'"model_type": "numerate"' in config.read_bytes():
            return f" It holds a run that was exported for Hugging Face: `numerate import {path}` imports it as a run."
        return (
            f" It holds weights of Hugging Face, which `numerate evaluate hf:{path} task=gsm8k` evaluates, and "
            f"`numerate train hf:{path} task=gsm8k` trains."
        )
    return ""


def _runs_in(folder: Path) -> list[str]:
    return [head.parent.name for head in folder.glob("*/recipe.yaml")]


def _read_metadata_entry(run: RunFolder, key: str) -> str | None:
    """One entry of a run's metadata without parsing all of it, so that a thousand runs can be searched quickly."""
    try:
        found = re.search(rf"^{key}: (.+)$", run.file("recipe.yaml").read_text(encoding="utf-8"), re.MULTILINE)
        value = load_plain_yaml(found[1]) if found else None
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return None if value is None else str(value)

"""Checkpoints: what a run needs to resume, written as a whole or not at all.

    checkpoints/step-000500/
      weights.safetensors  optimizer.safetensors  ...   one file per group of tensors
      state.json           position in the data, shapes, and the sha256 of every file and of itself

A checkpoint is written beside its place, flushed to the disk, and renamed. One that was cut short or garbled later is
recognised by its checksums; it is set aside as `torn-000500`, never deleted. No pickle is written or read.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.errors import OperationalError, UserError
from numerate.records.reading import record_of
from numerate.training import disk

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
"""Of state.json. A later format is refused rather than taken for a torn one."""

_OLD = ".old-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose `state.json` is sound: `state` as given to `write`, and the best step known at the time."""

    path: Path
    step: int
    best: int | None
    state: dict[str, Any]

    def read(self, only: Collection[str] | None = None, device: str = "cpu") -> "dict[str, dict[str, Tensor]]":
        """Its tensors by group and name; `only=["weights"]` leaves the other files alone. See `read`."""
        return read(self.path, only, device)[0]


def write(
    folder: Path,
    step: int,
    groups: "Mapping[str, Mapping[str, Tensor]]",
    state: Mapping[str, Any],
    *,
    keep_last: int | None = 2,
    best: int | None = None,
) -> Checkpoint:
    """Writes the checkpoint of a step, then removes those no longer wanted. Under the run's lock.

    `groups` is `{"weights": {name: tensor}, "optimizer": {...}}`, one file each; a tensor that stands under two names
    is stored once. `state` is anything that JSON keeps as it is (no tuples, text as keys). Kept are the last
    `keep_last` (None: all), the step `best`, and what each of these knew as the best, so that resuming from one
    of them finds it. Nothing is removed before the new checkpoint is safe. Raises `OperationalError` on a full disk,
    with the old checkpoints unharmed.
    """
    if keep_last is not None and keep_last < 1:
        raise UserError(f"keep_last: {keep_last} checkpoints cannot be kept; at least 1, or null for all.")
    there = steps(folder)
    safe = f"The checkpoints of step {there[-1]} and before are safe." if there else "No earlier checkpoint was harmed."
    place = folder / name_of(step)
    new = disk.beside(place)
    with disk.explained(place, safe):
        try:
            new.mkdir(parents=True)
            _fill(new, step, groups, state, best)
            _put(new, place)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        if keep_last is not None:
            _remove_old(folder, step, keep_last, best)
    return Checkpoint(place, step, best, dict(state))


def _fill(
    new: Path, step: int, groups: "Mapping[str, Mapping[str, Tensor]]", state: Mapping[str, Any], best: int | None
) -> None:
    from safetensors.torch import save_file

    files: dict[str, Any] = {}
    listed: dict[str, Any] = {}
    for group, tensors in groups.items():
        stored, listed[group] = _once(tensors)
        path = new / f"{group}.safetensors"
        save_file(stored, path, metadata={"format": "pt"})
        disk.sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _digest_of(path)}
    content: dict[str, Any] = {"format": FORMAT, "step": step, "best": best, "files": files, "tensors": listed}
    content["state"] = dict(state)
    content["sha256"] = _own_digest(content)
    disk.replace(new / "state.json", json.dumps(content, indent=1).encode() + b"\n")
    for name in files:  # safetensors makes files readable by the owner only; apply the user's umask
        os.chmod(new / name, (new / "state.json").stat().st_mode)
    disk.sync(new)


def _once(tensors: "Mapping[str, Tensor]") -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Deduplicated tensors, on the CPU and each with its own memory; and for every name its dtype, its shape and the
    name that it is stored under."""
    stored: dict[str, Tensor] = {}
    listed: dict[str, Any] = {}
    first: dict[Any, str] = {}
    for name, value in tensors.items():
        value = value.detach()
        where = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else name
        under = first.setdefault(where, name)
        listed[name] = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "under": under}
        if under == name:
            value = value.cpu().contiguous()
            stored[name] = value if value.untyped_storage().nbytes() == value.nbytes else value.clone()
    return stored, listed


def _put(new: Path, place: Path) -> None:
    """Renames a finished checkpoint to its place. An older one there is then removed if it is sound, and kept under
    another name if it is not."""
    old = None
    if place.exists():
        if torn(place) is None:
            old = place.with_name(f"{_OLD}{place.name}")
            shutil.rmtree(old, ignore_errors=True)
            os.rename(place, old)
        else:
            set_aside(place)
    os.rename(new, place)
    disk.sync(place.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _remove_old(folder: Path, step: int, keep_last: int, best: int | None) -> None:
    before = [at for at in steps(folder) if at <= step]
    kept = set(before[-keep_last:])
    bests = {best}
    for at in kept:
        with contextlib.suppress(OperationalError, UserError):
            bests.add(open_checkpoint(folder / name_of(at)).best)
    for at in before:
        if at not in kept | bests:
            path = folder / name_of(at)
            gone = disk.beside(path)
            os.rename(path, gone)  # so that no half of it ever bears the name
            shutil.rmtree(gone, ignore_errors=True)


def name_of(step: int) -> str:
    """`name_of(500)` is `"step-000500"`."""
    return f"step-{step:06d}"


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, sound or not, in order; none if there is no such folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise disk.explain(error, folder) from error
    found = (re.fullmatch(r"step-(\d{6,})", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def open_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint by its folder, from its `state.json` alone. Raises `OperationalError` if that is missing or
    garbled."""
    content = _content(path)
    return Checkpoint(path, content["step"], content["best"], content["state"])


def last_state(folder: Path) -> dict[str, Any]:
    """The state of the last checkpoint whose `state.json` is sound; {} where there is none. No tensor is read."""
    for step in reversed(steps(folder)):
        with contextlib.suppress(OperationalError):
            return open_checkpoint(folder / name_of(step)).state
    return {}


def _content(path: Path) -> dict[str, Any]:
    where = path / "state.json"
    try:
        raw = where.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise OperationalError(f"{path}: this checkpoint is not whole: state.json is missing.") from error
    except OSError as error:
        raise disk.explain(error, where) from error
    content = record_of(raw)
    if content is None or content.pop("sha256", None) != _own_digest(content):
        raise OperationalError(f"{path}: this checkpoint is not whole: state.json does not have its checksum.")
    if content.get("format") != FORMAT:
        raise UserError(f"{path}: is of format {content.get('format')}, this version reads {FORMAT}; update numerate.")
    return content


def _own_digest(content: Mapping[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        return ""


def _digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, name: str, wanted: Mapping[str, Any]) -> None:
    file = path / name
    try:
        if (size := file.stat().st_size) != wanted["bytes"]:
            raise OperationalError(
                f"{path}: this checkpoint is not whole: {name} has {size} bytes of {wanted['bytes']}."
            )
        if _digest_of(file) != wanted["sha256"]:
            raise OperationalError(f"{path}: this checkpoint is not whole: {name} does not have its checksum.")
    except FileNotFoundError as error:
        raise OperationalError(f"{path}: this checkpoint is not whole: {name} is missing.") from error
    except OSError as error:
        raise disk.explain(error, file) from error


def read(
    path: Path, only: Collection[str] | None = None, device: str = "cpu"
) -> "tuple[dict[str, dict[str, Tensor]], dict[str, Any]]":
    """The tensors of a checkpoint by group and name, and its state. Every file read is checked against its checksum.

    `only=["weights"]` reads one group. Raises `OperationalError` for a checkpoint that is not whole, `UserError` for a
    group that it does not have.
    """
    from safetensors.torch import load_file

    content = _content(path)
    groups = {}
    for group in content["tensors"] if only is None else only:
        name = f"{group}.safetensors"
        if name not in content["files"]:
            raise UserError(f"{path}: has no {group!r}; there are: {', '.join(content['tensors'])}.")
        _check(path, name, content["files"][name])
        tensors = load_file(path / name, device=device)
        groups[group] = {name: tensors[entry["under"]] for name, entry in content["tensors"][group].items()}
    return groups, content["state"]


def torn(path: Path) -> str | None:
    """Why a checkpoint cannot be used, or None if it is sound. Reads all of it.

    Raises `OperationalError` or `UserError` where it cannot be judged: no permission, a failing disk, a later format.
    """
    try:
        for name, wanted in _content(path)["files"].items():
            _check(path, name, wanted)
    except OperationalError as fault:
        missing = isinstance(fault.__cause__, FileNotFoundError | NotADirectoryError)
        if isinstance(fault.__cause__, OSError) and not missing:
            raise
        return str(fault)
    return None


def latest_good(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The last sound checkpoint, with a warning for each later one that is not. Changes nothing."""
    warnings: list[str] = []
    for step in reversed(steps(folder)):
        path = folder / name_of(step)
        if (reason := torn(path)) is None:
            return open_checkpoint(path), warnings
        warnings.append(f"{reason} The one before is taken.")
    return None, warnings


def resume(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to resume from, under the run's lock: as `latest_good`, and sets aside every one that is torn, so
    that none of them is counted as kept."""
    warnings: list[str] = []
    for step in steps(folder):
        path = folder / name_of(step)
        if (reason := torn(path)) is not None:
            warnings.append(f"{reason} It was set aside as {set_aside(path).name}.")
    return latest_good(folder)[0], warnings


def set_aside(path: Path) -> Path:
    """Renames a torn checkpoint to `torn-000500`, out of the way and not lost."""
    name = path.name.replace("step-", "torn-")
    places = (path.with_name(name + suffix) for suffix in ("", *(f"-{i}" for i in range(2, 10_000))))
    new = next(place for place in places if not place.exists())
    with disk.explained(path):
        os.rename(path, new)
    return new


def by_name(folder: Path, name: str) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints meant by `final` (the last sound one), `best`, `all` or a step such as `500`, with warnings.

    Raises `UserError` for one that is not there, with those that are; `OperationalError` for a named one that is not
    whole.
    """
    there = steps(folder)
    shown = ", ".join(map(str, there)) or "none yet"
    if name == "all":
        sound = [(at, torn(folder / name_of(at))) for at in there]
        good = [open_checkpoint(folder / name_of(at)) for at, reason in sound if reason is None]
        warnings = [f"{reason} It is left out." for _, reason in sound if reason is not None]
    elif name in ("final", "best"):
        last, warnings = latest_good(folder)
        good = [last] if last else []
        if last and name == "best":
            if last.best is None:
                raise UserError(
                    f"{folder}: no best checkpoint was chosen in this run; there are final, all and {shown}."
                )
            good = [open_checkpoint(_existing(folder, last.best, shown))]
    elif re.fullmatch(r"(step-)?\d+", name):
        good, warnings = [open_checkpoint(_existing(folder, int(name.removeprefix("step-")), shown))], []
    else:
        raise UserError(f"checkpoint: {name!r} is none of final, best, all or a step ({shown}).")
    if not good:
        raise UserError(f"{folder}: holds no sound checkpoint (steps: {shown}); train the run first.")
    return good, warnings


def _existing(folder: Path, step: int, shown: str) -> Path:
    path = folder / name_of(step)
    if not path.exists():
        raise UserError(f"{folder}: has no checkpoint of step {step}; there are: {shown}.")
    return path


def tidy(folder: Path) -> None:
    """Puts right what a killed writer left, under the run's lock: removes unfinished folders, and puts a checkpoint
    back that was about to be replaced."""
    for left in sorted(folder.glob(".*")):
        if left.name.startswith(disk.BESIDE):
            shutil.rmtree(left, ignore_errors=True)
        elif left.name.startswith(_OLD):
            place = folder / left.name.removeprefix(_OLD)
            if place.exists():
                shutil.rmtree(left, ignore_errors=True)
            else:
                os.rename(left, place)

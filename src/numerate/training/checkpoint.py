"""Checkpoints: what a run needs to resume, written atomically.

    checkpoints/step-000500/
      weights.safetensors  optimizer.safetensors  ...   one file per group of tensors
      state.json           position in the data, shapes, and the sha256 of every file and of itself

A checkpoint is written to a temporary folder, flushed to disk, and renamed. A truncated or corrupted one is detected by
its checksum; it is renamed to `torn-000500`, never deleted. No pickle is written or read.
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

from numerate.errors import OperationalError, UserError, check_positive, did_you_mean
from numerate.records.reading import FORMAT, check_format, parse_record
from numerate.training import disk

if TYPE_CHECKING:
    from torch import Tensor

_REPLACED_PREFIX = ".old-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with a valid `state.json`: `state` as passed to `write`, and the best step at that time."""

    path: Path
    step: int
    best: int | None
    state: dict[str, Any]

    @property
    def is_pretrained(self) -> bool:
        """Whether it stands for the pretrained weights that its recipe names, without a copy of them."""
        return bool(self.state.get("is_pretrained", False))

    def read(self, only: Collection[str] | None = None) -> "dict[str, dict[str, Tensor]]":
        """Its tensors by group and name; `only=["weights"]` reads one group. Every file read is checked against its
        checksum. Raises `OperationalError` for an incomplete or corrupted checkpoint, `UserError` for a group that it
        does not have.
        """
        from safetensors.torch import load_file

        content = _read_state_file(self.path)
        if self.is_pretrained:
            raise UserError(f"{self.path}: has no weights; it stands for those that the recipe of its run names")
        groups = {}
        for group in content["tensors"] if only is None else only:
            name = f"{group}.safetensors"
            if name not in content["files"]:
                raise UserError(f"{self.path}: has no {group!r}; available: {', '.join(content['tensors'])}.")
            _check_file(self.path, name, content["files"][name])
            tensors = load_file(self.path / name)
            groups[group] = {name: tensors[entry["under"]] for name, entry in content["tensors"][group].items()}
        return groups


def write(
    folder: Path,
    step: int,
    tensors: "Mapping[str, Mapping[str, Tensor]]",
    state: Mapping[str, Any],
    *,
    keep_last: int | None = 2,
    best: int | None = None,
) -> Checkpoint:
    """Writes the checkpoint of a step, then removes old ones. Requires the run's lock.

    `tensors` is `{"weights": {name: tensor}, "optimizer": {...}}`, one file each; a tensor with two names is stored
    once. `state` must survive a round trip through JSON (no tuples, strings as keys). The last `keep_last` checkpoints
    (None: all) are kept, the step `best`, and the best step stored in each of them, so that it exists after resuming
    from one of them. Nothing is removed before the new checkpoint is on disk. Raises `OperationalError` on a full disk;
    the old checkpoints are then intact.
    """
    check_positive("keep_last", keep_last)
    existing_steps = list_steps(folder)
    unharmed_note = (
        f"The checkpoints up to step {existing_steps[-1]} are intact."
        if existing_steps
        else "There was no earlier checkpoint."
    )
    path = folder / step_folder(step)
    temporary_path = disk.temporary_path(path)
    with disk.convert_os_errors(path, unharmed_note):
        try:
            temporary_path.mkdir(parents=True)
            _write_files(temporary_path, step, tensors, state, best)
            _move_into_place(temporary_path, path)
        except BaseException:
            shutil.rmtree(temporary_path, ignore_errors=True)
            raise
        if keep_last is not None:
            _remove_old(folder, step, keep_last, best)
    return Checkpoint(path, step, best, dict(state))


def write_pretrained(folder: Path, state: Mapping[str, Any]) -> Checkpoint:
    """Writes the checkpoint of step 0 of a run whose recipe names pretrained weights, without a copy of them."""
    return write(folder, 0, {}, {**state, "is_pretrained": True})


def _write_files(
    folder: Path,
    step: int,
    tensors_by_group: "Mapping[str, Mapping[str, Tensor]]",
    state: Mapping[str, Any],
    best: int | None,
) -> None:
    from safetensors.torch import save_file

    files: dict[str, Any] = {}
    tensor_index: dict[str, Any] = {}
    for group, tensors in tensors_by_group.items():
        stored, tensor_index[group] = _deduplicate(tensors)
        path = folder / f"{group}.safetensors"
        save_file(stored, path, metadata={"format": "pt"})
        disk.fsync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _file_digest(path)}
    content: dict[str, Any] = {
        "format": FORMAT,
        "step": step,
        "best": best,
        "files": files,
        "tensors": tensor_index,
    }
    content["state"] = dict(state)
    content["sha256"] = _state_digest(content)
    disk.write_atomically(folder / "state.json", json.dumps(content, indent=1).encode() + b"\n")
    for name in files:  # safetensors makes files readable by the owner only; apply the user's umask
        os.chmod(folder / name, (folder / "state.json").stat().st_mode)
    disk.fsync(folder)


def _deduplicate(tensors: "Mapping[str, Tensor]") -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Deduplicated tensors, each with its own CPU memory; and for every name its dtype, shape and stored name."""
    stored: dict[str, Tensor] = {}
    tensor_index: dict[str, Any] = {}
    name_by_memory: dict[Any, str] = {}
    for name, value in tensors.items():
        value = value.detach()
        memory_key = (
            (value.device, value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else name
        )
        under = name_by_memory.setdefault(memory_key, name)
        tensor_index[name] = {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "under": under,
        }
        if under == name:
            value = value.cpu().contiguous()
            stored[name] = value if value.untyped_storage().nbytes() == value.nbytes else value.clone()
    return stored, tensor_index


def _move_into_place(temporary_path: Path, path: Path) -> None:
    """Renames a finished checkpoint to its final path. An existing checkpoint there is removed if it is valid,
    otherwise renamed."""
    replaced_path = None
    if path.exists():
        if find_corruption(path) is None:
            replaced_path = path.with_name(f"{_REPLACED_PREFIX}{path.name}")
            shutil.rmtree(replaced_path, ignore_errors=True)
            os.rename(path, replaced_path)
        else:
            rename_corrupt(path)
    os.rename(temporary_path, path)
    disk.fsync(path.parent)
    if replaced_path is not None:
        shutil.rmtree(replaced_path, ignore_errors=True)


def _remove_old(folder: Path, step: int, keep_last: int, best: int | None) -> None:
    earlier_steps = [earlier_step for earlier_step in list_steps(folder) if earlier_step <= step]
    kept_steps = set(earlier_steps[-keep_last:])
    best_steps = {best}
    for at in kept_steps:
        with contextlib.suppress(OperationalError, UserError):
            best_steps.add(read_checkpoint(folder / step_folder(at)).best)
    for at in earlier_steps:
        if at not in kept_steps | best_steps:
            path = folder / step_folder(at)
            doomed_path = disk.temporary_path(path)
            os.rename(path, doomed_path)  # so that no partly removed folder has the name of a checkpoint
            shutil.rmtree(doomed_path, ignore_errors=True)


def step_folder(step: int) -> str:
    """`step_folder(500)` is `"step-000500"`."""
    return f"step-{step:06d}"


def list_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, valid or not, in order; empty if the folder does not exist."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise disk.convert_os_error(error, folder) from error
    found = (re.fullmatch(r"step-(\d{6,})", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def last_step(folder: Path) -> int:
    """The step of the last checkpoint in a folder, 0 if there is none."""
    return max(list_steps(folder), default=0)


def read_checkpoint(path: Path) -> Checkpoint:
    """Loads a checkpoint's `state.json`. Raises `OperationalError` if it is missing or corrupted."""
    content = _read_state_file(path)
    return Checkpoint(path, content["step"], content["best"], content["state"])


def last_state(folder: Path) -> dict[str, Any]:
    """The state of the last checkpoint with a valid `state.json`; {} if there is none. No tensor is read."""
    for step in reversed(list_steps(folder)):
        with contextlib.suppress(OperationalError):
            return read_checkpoint(folder / step_folder(step)).state
    return {}


def _read_state_file(path: Path) -> dict[str, Any]:
    state_path = path / "state.json"
    try:
        raw = state_path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise OperationalError(f"{path}: this checkpoint is incomplete: state.json is missing.") from error
    except OSError as error:
        raise disk.convert_os_error(error, state_path) from error
    content = parse_record(raw)
    if content is None or content.pop("sha256", None) != _state_digest(content):
        raise OperationalError(f"{path}: this checkpoint is corrupt: the checksum of state.json does not match.")
    check_format(path, content.get("format"))
    return content


def _state_digest(content: Mapping[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        return ""


def _file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(path: Path, name: str, expected: Mapping[str, Any]) -> None:
    file = path / name
    try:
        if (size := file.stat().st_size) != expected["bytes"]:
            was_cut = "is empty" if size == 0 else f"has {size:,} bytes"
            raise OperationalError(
                f"{path}: this checkpoint is incomplete: {name} {was_cut}, and was written with {expected['bytes']:,}."
            )
        if _file_digest(file) != expected["sha256"]:
            raise OperationalError(f"{path}: this checkpoint is corrupt: the checksum of {name} does not match.")
    except FileNotFoundError as error:
        raise OperationalError(f"{path}: this checkpoint is incomplete: {name} is missing.") from error
    except OSError as error:
        raise disk.convert_os_error(error, file) from error


def find_corruption(path: Path, *, weights_only: bool = False) -> str | None:
    """Why a checkpoint, or its weights, cannot be used, or None if it is valid. Reads all of it, or the weights.

    Raises `OperationalError` or `UserError` if it cannot be checked: no permission, a failing disk, a later format.
    """
    try:
        for name, expected in _read_state_file(path)["files"].items():
            if not weights_only or name == "weights.safetensors":
                _check_file(path, name, expected)
    except OperationalError as error:
        missing = isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
        if isinstance(error.__cause__, OSError) and not missing:
            raise
        return str(error)
    return None


def latest_valid(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The last valid checkpoint, with a warning for each later one that is not. Changes nothing."""
    reasons: list[str] = []
    for step in reversed(list_steps(folder)):
        path = folder / step_folder(step)
        if (reason := find_corruption(path)) is None:
            return read_checkpoint(path), [f"{reason} That of step {step} is used." for reason in reasons]
        reasons.append(reason)
    return None, reasons


def resume(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to resume from, under the run's lock: as `latest_valid`, but renames every corrupted checkpoint,
    so that `keep_last` does not count it."""
    warnings: list[str] = []
    for step in list_steps(folder):
        path = folder / step_folder(step)
        if (reason := find_corruption(path)) is not None:
            warnings.append(f"{reason} It was renamed to {rename_corrupt(path).name}.")
    return latest_valid(folder)[0], warnings


def rename_corrupt(path: Path) -> Path:
    """Renames a corrupted checkpoint to `torn-000500`."""
    name = path.name.replace("step-", "torn-")
    candidates = (path.with_name(name + suffix) for suffix in ("", *(f"-{i}" for i in range(2, 10_000))))
    new_path = next(candidate for candidate in candidates if not candidate.exists())
    with disk.convert_os_errors(path):
        os.rename(path, new_path)
    return new_path


def select_checkpoints(folder: Path, selector: str) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints selected by `final` (the last valid one), `best`, `all` or a step such as `500`, with warnings.
    For all but `final` intact weights are enough, and for that too if no checkpoint is valid.

    Raises `UserError` for a missing one, listing those that exist; `OperationalError` for a selected one that is
    incomplete or corrupted, with the file, what is wrong with it, and the checkpoints that can be used.
    """
    steps = list_steps(folder)
    if not re.fullmatch(r"final|best|all|(step-)?\d+", selector):
        steps_text = ", ".join(map(str, steps)) or "none yet"
        hint = did_you_mean("final" if selector in ("last", "latest") else selector, ("final", "best", "all"))
        raise UserError(f"checkpoint: {selector!r} must be final, best, all or a step ({steps_text}).{hint}")
    if not steps:
        renamed = ", ".join(path.name for path in sorted(folder.glob("torn-*")))
        damaged_text = f"; {renamed} cannot be used" if renamed else ""
        raise UserError(f"{folder}: has no checkpoint yet{damaged_text}; train the run first.")
    if selector == "all":
        reasons = {at: find_corruption(folder / step_folder(at), weights_only=True) for at in steps}
        selected = [read_checkpoint(folder / step_folder(at)) for at, reason in reasons.items() if reason is None]
        warnings = [f"{reason} It is skipped." for reason in reasons.values() if reason is not None]
        return selected or [_valid_checkpoint(folder, steps[-1])], warnings  # which raises why there is none
    if selector not in ("final", "best"):
        return [_valid_checkpoint(folder, int(selector.removeprefix("step-")))], []
    last, warnings = latest_valid(folder)
    found = last or _valid_checkpoint(folder, steps[-1])
    if selector == "best" and found.best is None:
        raise UserError(
            f"{folder}: no best checkpoint was chosen in this run; there are final, all and "
            f"{', '.join(map(str, steps))}."
        )
    if selector == "best" and found.best not in (None, found.step):
        found = _valid_checkpoint(folder, found.best)
    return [found], warnings


def _valid_checkpoint(folder: Path, step: int) -> Checkpoint:
    path, existing_steps = folder / step_folder(step), list_steps(folder)
    if step not in existing_steps:
        raise UserError(
            f"{folder}: has no checkpoint of step {step}; there are: {', '.join(map(str, existing_steps))}."
        )
    if (reason := find_corruption(path, weights_only=True)) is None:
        return read_checkpoint(path)
    others = [str(at) for at in existing_steps if find_corruption(folder / step_folder(at), weights_only=True) is None]
    if others:
        raise OperationalError(f"{reason} Checkpoints that can be used: {', '.join(others)}.")
    raise OperationalError(f"{reason} No other checkpoint of the run can be used; train it again.")


def clean_up(folder: Path) -> None:
    """Cleans up after a killed writer: removes unfinished folders, and restores a checkpoint that was being replaced.
    Requires the run's lock."""
    for leftover in sorted(folder.glob(".*")):
        if leftover.name.startswith(disk.TEMPORARY_PREFIX):
            shutil.rmtree(leftover, ignore_errors=True)
        elif leftover.name.startswith(_REPLACED_PREFIX):
            path = folder / leftover.name.removeprefix(_REPLACED_PREFIX)
            if path.exists():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                os.rename(leftover, path)

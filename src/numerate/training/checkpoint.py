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
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.errors import OperationalError, UserError
from numerate.records.reading import FORMAT, check_format, parse_record
from numerate.training import disk

if TYPE_CHECKING:
    from torch import Tensor


class DamagedError(OperationalError):
    """A checkpoint is incomplete or corrupt."""


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
        """Its tensors by group and name; `only=["weights"]` reads one group. Raises `DamagedError` if a file is not as
        it was written, `UserError` if it has no weights of its own."""
        from safetensors.torch import load_file

        content, groups = _checked_content(self.path, only), dict[str, dict[str, Any]]()
        if self.is_pretrained:
            raise UserError(f"{self.path}: has no weights; it stands for those that the recipe of its run names")
        for group in content["tensors"] if only is None else only:
            stored = load_file(self.path / f"{group}.safetensors")
            groups[group] = {name: stored[entry["under"]] for name, entry in content["tensors"][group].items()}
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
    once. `state` must be what JSON returns (no tuples, strings as keys). The last `keep_last` checkpoints (at least 1;
    None: all) are kept, the step `best`, and the best step of each of them. Raises `OperationalError` on a full disk;
    the old checkpoints are then intact.
    """
    path, steps = folder / step_folder(step), list_steps(folder)
    temporary_path, replaced_path = disk.temporary_path(path), path.with_name(f".old-{path.name}")
    intact = f"The checkpoints up to step {steps[-1]} are intact." if steps else "There was no earlier checkpoint."
    with disk.convert_os_errors(path, intact):
        try:
            temporary_path.mkdir(parents=True)
            _write_files(temporary_path, tensors, {"step": step, "best": best, "state": dict(state)})
            if path.exists():
                resume(folder)  # which renames a damaged one
            if path.exists():
                os.rename(path, replaced_path)
            os.rename(temporary_path, path)
            disk.fsync(folder)
        except BaseException:
            shutil.rmtree(temporary_path, ignore_errors=True)
            raise
        shutil.rmtree(replaced_path, ignore_errors=True)
        if keep_last is not None:
            _remove_old(folder, step, keep_last, best)
    return Checkpoint(path, step, best, dict(state))


def _write_files(folder: Path, groups: "Mapping[str, Mapping[str, Tensor]]", content: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    files, index = dict[str, Any](), dict[str, Any]()
    for group, tensors in groups.items():
        path = folder / f"{group}.safetensors"
        stored, index[group] = _without_copies(tensors)
        save_file(stored, path, metadata={"format": "pt"})
        disk.fsync(path)
        files[path.name] = {"sha256": _file_digest(path)}
    content = {"format": FORMAT, "files": files, "tensors": index, **content}
    content["sha256"] = _state_digest(content)
    disk.write_atomically(folder / "state.json", json.dumps(content, indent=1).encode() + b"\n")
    for name in files:  # safetensors makes files readable by the owner only; apply the user's umask
        os.chmod(folder / name, (folder / "state.json").stat().st_mode)
    disk.fsync(folder)


def _without_copies(tensors: "Mapping[str, Tensor]") -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """The tensors to store, each with its own CPU memory; and for every name its dtype, shape and stored name."""
    stored: dict[str, Tensor] = {}
    index, name_by_memory = dict[str, Any](), dict[Any, str]()
    for name, tensor in tensors.items():
        value = tensor.detach()
        memory = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else name
        under = name_by_memory.setdefault(memory, name)
        index[name] = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "under": under}
        if under == name:
            value = value.cpu().contiguous()
            stored[name] = value if value.untyped_storage().nbytes() == value.nbytes else value.clone()
    return stored, index


def _remove_old(folder: Path, step: int, keep_last: int, best: int | None) -> None:
    steps = [earlier_step for earlier_step in list_steps(folder) if earlier_step <= step]
    kept_steps = {*steps[-keep_last:], best}
    for at in steps[-keep_last:]:
        with contextlib.suppress(OperationalError, UserError):
            kept_steps.add(read_checkpoint(folder / step_folder(at)).best)
    for path in (folder / step_folder(at) for at in steps if at not in kept_steps):
        doomed_path = disk.temporary_path(path)
        os.rename(path, doomed_path)  # no partly removed folder has the name of a checkpoint
        shutil.rmtree(doomed_path, ignore_errors=True)


def clean_up(folder: Path) -> None:
    """Restores what a killed writer was replacing, and removes what it left unfinished. Requires the run's lock."""
    for replaced_path in folder.glob(".old-*"):
        if not (path := folder / replaced_path.name.removeprefix(".old-")).exists():
            os.rename(replaced_path, path)
    for leftover in (*folder.glob(".old-*"), *folder.glob(f"{disk.TEMPORARY_PREFIX}*")):
        shutil.rmtree(leftover, ignore_errors=True)


def step_folder(step: int) -> str:
    """`step_folder(500)` is `"step-000500"`."""
    return f"step-{step:06d}"


def list_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, valid or not, in order; empty if the folder does not exist."""
    with disk.convert_os_errors(folder):
        names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d{6,}", name))


def read_checkpoint(path: Path) -> Checkpoint:
    """Loads a checkpoint's `state.json`. Raises `DamagedError` if it is missing or corrupted."""
    content = _checked_content(path, only=())
    return Checkpoint(path, content["step"], content["best"], content["state"])


def last_state(folder: Path) -> dict[str, Any]:
    """The state of the last checkpoint with a valid `state.json`; {} if there is none. No tensor is read."""
    for step in reversed(list_steps(folder)):
        with contextlib.suppress(DamagedError):
            return read_checkpoint(folder / step_folder(step)).state
    return {}


def find_corruption(path: Path, only: Collection[str] | None = None) -> str | None:
    """Why a checkpoint, or its groups `only`, cannot be used; None if they are valid. Raises what prevents checking."""
    try:
        _checked_content(path, only)
    except DamagedError as error:
        return str(error)
    return None


def _checked_content(path: Path, only: Collection[str] | None) -> dict[str, Any]:
    """The content of `state.json`. It, and the files of all groups or those of `only`, are compared with checksums."""
    with disk.convert_os_errors(path):
        if not (path / "state.json").exists():
            raise DamagedError(f"{path}: this checkpoint is incomplete: state.json is missing.")
        content = parse_record((path / "state.json").read_bytes())
        if content is None or content.pop("sha256", None) != _state_digest(content):
            raise DamagedError(f"{path}: this checkpoint is corrupt: the checksum of state.json does not match.")
        check_format(path, content.get("format"))
        for name, written in content["files"].items():
            if only is not None and name.removesuffix(".safetensors") not in only:
                continue
            if not (path / name).exists():
                raise DamagedError(f"{path}: this checkpoint is incomplete: {name} is missing.")
            if _file_digest(path / name) != written["sha256"]:
                raise DamagedError(f"{path}: this checkpoint is corrupt: the checksum of {name} does not match.")
    return content


def _state_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def latest_valid(folder: Path, only: Collection[str] | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The last checkpoint that is valid, or of which the groups `only` are; with a warning for each later one."""
    reasons: list[str] = []
    for step in reversed(list_steps(folder)):
        path = folder / step_folder(step)
        reason = find_corruption(path, only)
        with contextlib.suppress(DamagedError):
            if reason is None:
                return read_checkpoint(path), [f"{reason} That of step {step} is used." for reason in reasons]
        if not path.exists():  # its run has removed it meanwhile, after it wrote another
            return latest_valid(folder, only)
        reasons.append(reason or f"{path}: this checkpoint has changed while it was read.")
    return None, reasons


def resume(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to resume from, under the run's lock: as `latest_valid`, but renames every corrupted checkpoint,
    so that `keep_last` does not count it."""
    last, warnings = None, []
    for step in list_steps(folder):
        path = folder / step_folder(step)
        if (reason := find_corruption(path)) is None:
            last = read_checkpoint(path)
            continue
        names = (f"torn-{step:06d}{'' if number == 1 else f'-{number}'}" for number in count(1))
        new_path = next(folder / name for name in names if not (folder / name).exists())
        with disk.convert_os_errors(path):
            os.rename(path, new_path)
        warnings.append(f"{reason} It was renamed to {new_path.name}.")
    return last, warnings

"""Weights in files of other programs, and reference logits to check them with.

Reference logits are two tensors: `ids` (rows x tokens, integers: rows of the embedding) and `logits` (rows x tokens x
vocabulary). They stand in a safetensors file of their own, in a folder as `logits.safetensors`, or in a file of weights
beside `model`, or beside the weights themselves.

>>> save_file({"ids": ids, "logits": theirs(ids)}, "logits.safetensors")
"""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from numerate.batch import Model, Tokens
from numerate.errors import OperationalError, UserError
from numerate.training import disk

TOLERANCE = 1e-3
"""By how much a logit may differ from its reference."""

_FILES = ("model.safetensors", "pytorch_model.bin", "ckpt.pt")
_PARTS = tuple(f"{name}.index.json" for name in _FILES[:2])
_LOGITS = "logits.safetensors"


@dataclass(frozen=True)
class LogitCheck:
    """Reference logits, and by how much those of a model may differ."""

    ids: Tensor
    logits: Tensor
    where: Path
    tolerance: float = TOLERANCE

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], where: Path, tolerance: float) -> "LogitCheck":
        """Raises `UserError` where `ids` or `logits` are missing or of shapes that do not belong together."""
        if not 0 < tolerance < float("inf"):
            raise UserError(f"tolerance: {tolerance} must be above 0; {TOLERANCE} is usual for float32")
        given = {name: tensors.get(name) for name in ("ids", "logits")}
        shapes = {name: tuple(value.shape) for name, value in given.items() if isinstance(value, Tensor)}
        ids, logits = shapes.get("ids", ()), shapes.get("logits", ())
        if len(ids) != 2 or len(logits) != 3 or logits[:2] != ids or not tensors["ids"].numel():
            raise UserError(
                f"check: {where} needs ids (rows x tokens) and logits (rows x tokens x vocabulary); it has "
                f"{', '.join(f'{name} {shape}' for name, shape in shapes.items()) or 'neither'}"
            )
        if tensors["ids"].is_floating_point():
            raise UserError(f"check: {where}: ids must be integers, not {tensors['ids'].dtype}")
        return cls(tensors["ids"].long(), tensors["logits"], where, tolerance)

    @torch.no_grad()
    def compare(self, model: Model, vocabulary: int) -> None:
        """Raises `UserError` where a logit of the model, which has so many tokens, differs by more than the
        tolerance."""
        (rows, time), size, lowest, highest = self.ids.shape, self.logits.shape[2], *map(int, self.ids.aminmax())
        if size != vocabulary or lowest < 0 or highest >= vocabulary:
            raise UserError(
                f"check: {self.where} has {size} logits per token and ids from {lowest} to {highest}; the model has "
                f"{vocabulary} tokens"
            )
        found = model.eval()(Tokens(self.ids, torch.full((rows,), time), torch.arange(rows))).logits
        apart = (found.double() - self.logits.double()).abs().nan_to_num(nan=float("inf"))
        largest = float(apart.max())
        if largest > self.tolerance:
            row, token, _ = torch.unravel_index(apart.argmax(), apart.shape)
            raise UserError(
                f"check: logits differ from {self.where} by up to {largest:.3g} (row {int(row)}, token {int(token)}); "
                f"{self.tolerance:g} is allowed (tolerance=). The weights fit the model by name and shape, so another "
                "setting is wrong: heads, activation, positions or the order of norms, for example"
            )


@dataclass(frozen=True)
class WeightFile:
    """The tensors of a file or folder in single precision, and the reference logits that came with them."""

    weights: dict[str, Tensor]
    logits: dict[str, Tensor]
    where: Path

    def checked_by(self, check: str | Path | None, tolerance: float) -> LogitCheck | None:
        """What to compare with: the reference logits of the file `check`, else the file's own; None without both."""
        if check is None:
            return LogitCheck.of(self.logits, self.where, tolerance) if self.logits else None
        path = Path(check).expanduser()
        return LogitCheck.of(_tensors_in(path), path, tolerance)


def read_weights(path: Path) -> WeightFile:
    """The weights of a file (.safetensors, or of torch.save) or folder, whole or in parts.

    Raises `UserError` where there are none, or where the file cannot be read as tensors alone: nothing that a pickle
    could run is run.
    """
    found: dict[str, Any] = {}
    for file in _files_of(path):
        more = _tensors_in(file)
        if twice := sorted(found.keys() & more.keys()):
            raise UserError(f"{file}: {twice[0]} stands in another part of these weights too")
        found |= more
    logits = {str(name): found.pop(name) for name in ("ids", "logits") if name in found}
    if path.is_dir() and (path / _LOGITS).is_file():
        logits = _tensors_in(path / _LOGITS)
    state_dict: Mapping[str, Any] = inner if isinstance(inner := found.get("model"), Mapping) else found
    tensors = {name: tensor for name, tensor in state_dict.items() if isinstance(tensor, Tensor)}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
            kind = f"{tensor.dtype}, {tensor.layout}".replace("torch.", "")
            raise UserError(f"{path}: {name} is a tensor of another kind ({kind}); dense real numbers are right")
    weights = {name: tensor.float() for name, tensor in tensors.items()}
    if not weights:
        raise UserError(f"{path}: holds no weights; a file of named tensors, or of a model's under 'model', is right")
    return WeightFile(weights, logits, path)


def _files_of(path: Path) -> list[Path]:
    """The file itself, or those in a folder."""
    if not path.is_dir():
        return [path]
    for name in (*_FILES, *_PARTS):
        if not (file := path / name).is_file():
            continue
        if name not in _PARTS:
            return [file]
        try:
            parts = sorted(set(map(Path, json.loads(file.read_text(encoding="utf-8"))["weight_map"].values())))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{file}: is damaged ({error}); a folder that was saved whole is right") from error
        if any(part.name != str(part) for part in parts):
            raise UserError(f"{file}: names a file outside its folder; nothing of it is read")
        return [path / part for part in parts]
    raise UserError(f"{path}: holds no weights; {', '.join(_FILES)} is right")


def _tensors_in(file: Path) -> dict[str, Any]:
    try:
        with disk.explained(file):
            if file.suffix == ".safetensors":
                return load_file(file)
            found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except (UserError, OperationalError):
        raise
    except Exception as error:  # of many kinds: a pickle of more than weights, a torn file
        # What torch says of a pickle of more than weights is how to run it nevertheless.
        torn = isinstance(error, pickle.UnpicklingError)
        reason = "it is none of torch.save, or has more than weights" if torn else str(error).partition("\n")[0]
        raise UserError(f"{file}: holds no weights that can be read ({reason})") from error
    if not isinstance(found, Mapping):
        raise UserError(f"{file}: holds a {type(found).__name__}; tensors by name are right")
    return dict(found)

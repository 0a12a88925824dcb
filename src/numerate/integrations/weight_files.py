"""Loading weights written by other programs, and reference logits to check them.

Reference logits are two tensors: `ids` (rows x tokens, integers: rows of the embedding) and `logits` (rows x tokens x
vocabulary). They are in a separate safetensors file, in a folder as `logits.safetensors`, or in a file of weights next
to `model` or next to the weights themselves.

    save_file({"ids": ids, "logits": reference_model(ids)}, "logits.safetensors")
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

DEFAULT_TOLERANCE = 1e-3
"""Maximum difference between a logit and its reference."""

_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "ckpt.pt")
_INDEX_FILES = tuple(f"{name}.index.json" for name in _WEIGHT_FILES[:2])
_LOGITS_FILE = "logits.safetensors"


@dataclass(frozen=True)
class LogitCheck:
    """Reference logits, and the tolerance for those of a model."""

    ids: Tensor
    logits: Tensor
    source: Path
    tolerance: float = DEFAULT_TOLERANCE

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], source: Path, tolerance: float) -> "LogitCheck":
        """Raises `UserError` if `ids` or `logits` are missing or their shapes do not match."""
        if not 0 < tolerance < float("inf"):
            raise UserError(f"tolerance: must be above 0, not {tolerance}; {DEFAULT_TOLERANCE} is usual for float32")
        ids_and_logits = {name: tensors.get(name) for name in ("ids", "logits")}
        shapes = {name: tuple(value.shape) for name, value in ids_and_logits.items() if isinstance(value, Tensor)}
        ids, logits = shapes.get("ids", ()), shapes.get("logits", ())
        if len(ids) != 2 or len(logits) != 3 or logits[:2] != ids or not tensors["ids"].numel():
            raise UserError(
                f"check: {source} needs ids (rows x tokens) and logits (rows x tokens x vocabulary); it has "
                f"{', '.join(f'{name} {shape}' for name, shape in shapes.items()) or 'neither'}"
            )
        if tensors["ids"].is_floating_point():
            raise UserError(f"check: {source}: ids must be integers, not {tensors['ids'].dtype}")
        return cls(tensors["ids"].long(), tensors["logits"], source, tolerance)

    @torch.no_grad()
    def check(self, model: Model, vocabulary_size: int) -> None:
        """Raises `UserError` if a logit of the model differs by more than the tolerance."""
        (rows, time), size, lowest, highest = self.ids.shape, self.logits.shape[2], *map(int, self.ids.aminmax())
        if size != vocabulary_size or lowest < 0 or highest >= vocabulary_size:
            raise UserError(
                f"check: {self.source} has {size} logits per token and ids from {lowest} to {highest}; the model has "
                f"{vocabulary_size} tokens"
            )
        model_logits = model.eval()(Tokens(self.ids, torch.full((rows,), time), torch.arange(rows))).logits
        difference = (model_logits.double() - self.logits.double()).abs().nan_to_num(nan=float("inf"))
        largest = float(difference.max())
        if largest > self.tolerance:
            row, token, _ = torch.unravel_index(difference.argmax(), difference.shape)
            raise UserError(
                f"check: logits differ from {self.source} by up to {largest:.3g} (row {int(row)}, token {int(token)}); "
                f"{self.tolerance:g} is allowed (tolerance=). The weights fit the model by name and shape, so another "
                "setting is wrong: heads, activation, positions or the order of norms, for example"
            )


@dataclass(frozen=True)
class WeightFile:
    """The tensors of a file or folder in single precision, and the reference logits that came with them."""

    weights: dict[str, Tensor]
    logits: dict[str, Tensor]
    path: Path

    def logit_check(self, check: str | Path | None, tolerance: float) -> LogitCheck | None:
        """The reference logits: those of the file `check`, otherwise those of the weight file; None without either."""
        if check is None:
            return LogitCheck.from_tensors(self.logits, self.path, tolerance) if self.logits else None
        path = Path(check).expanduser()
        return LogitCheck.from_tensors(_load_tensors(path), path, tolerance)


def read_weights(path: Path) -> WeightFile:
    """The weights of a file (.safetensors, or of torch.save) or folder, in one file or sharded.

    Raises `UserError` if there are none, or if the file contains anything but tensors: no code in pickles is executed.
    """
    stored: dict[str, Any] = {}
    for file in _weight_files(path):
        more = _load_tensors(file)
        if duplicates := sorted(stored.keys() & more.keys()):
            raise UserError(f"{file}: {duplicates[0]} occurs in more than one shard of these weights")
        stored |= more
    logits = {str(name): stored.pop(name) for name in ("ids", "logits") if name in stored}
    if path.is_dir() and (path / _LOGITS_FILE).is_file():
        logits = _load_tensors(path / _LOGITS_FILE)
    state_dict: Mapping[str, Any] = inner if isinstance(inner := stored.get("model"), Mapping) else stored
    tensors = {name: tensor for name, tensor in state_dict.items() if isinstance(tensor, Tensor)}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
            kind = f"{tensor.dtype}, {tensor.layout}".replace("torch.", "")
            raise UserError(f"{path}: {name} must be a dense real tensor, not {kind}")
    weights = {name: tensor.float() for name, tensor in tensors.items()}
    if not weights:
        raise UserError(f"{path}: has no weights; must contain named tensors, or a state dict under 'model'")
    return WeightFile(weights, logits, path)


def _weight_files(path: Path) -> list[Path]:
    """The file itself, or those in a folder."""
    if not path.is_dir():
        return [path]
    for name in (*_WEIGHT_FILES, *_INDEX_FILES):
        if not (file := path / name).is_file():
            continue
        if name not in _INDEX_FILES:
            return [file]
        try:
            parts = sorted(set(map(Path, json.loads(file.read_text(encoding="utf-8"))["weight_map"].values())))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{file}: is damaged ({error}); must be a complete checkpoint folder") from error
        if any(part.name != str(part) for part in parts):
            raise UserError(f"{file}: names a file outside its folder; nothing was read")
        return [path / part for part in parts]
    raise UserError(f"{path}: has no weights; must contain one of: {', '.join(_WEIGHT_FILES)}")


def _load_tensors(file: Path) -> dict[str, Any]:
    try:
        with disk.convert_os_errors(file):
            if file.suffix == ".safetensors":
                return load_file(file)
            loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except (UserError, OperationalError):
        raise
    except Exception as error:  # many kinds of errors: a pickle with other objects, a truncated file
        # The message of torch for a pickle with other objects explains how to load it anyway.
        is_unpickling_error = isinstance(error, pickle.UnpicklingError)
        reason = (
            "not written by torch.save, or contains more than weights"
            if is_unpickling_error
            else str(error).partition("\n")[0]
        )
        raise UserError(f"{file}: cannot be read as weights ({reason})") from error
    if not isinstance(loaded, Mapping):
        raise UserError(f"{file}: must be a dict of tensors, not a {type(loaded).__name__}")
    return dict(loaded)

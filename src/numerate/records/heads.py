"""The head of a run, `recipe.yaml`, with its checksum; and whether the metrics beside it are all there."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.records.kinds import METRICS
from numerate.records.reading import Warn, damaged, read

FORMAT = 2
"""Of recipe.yaml. A folder of a later format is refused rather than misread; format 1 had no checksum."""

HEAD, CHECKSUM = "recipe.yaml", "checksum"

_REMEDY = "Restore it from a copy, or move the run's folder away and train it again; nothing was changed."


def checksum(head: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal characters of a head's contents, however it is written in YAML."""
    content = {key: value for key, value in head.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_head(path: Path) -> dict[str, Any]:
    """What the `recipe.yaml` at `path` holds.

    Raises `UserError` where it was damaged or changed, or a later version wrote it; `OperationalError` where it cannot
    be read.
    """
    head = read_checked(path, FORMAT, _REMEDY)
    if not isinstance(head.get("recipe"), dict):
        raise UserError(damaged(path, "it holds no recipe", _REMEDY))
    return head


def read_checked(path: Path, format: int, remedy: str) -> dict[str, Any]:
    """What a file of YAML holds that ends with its checksum, as those of a format from 2 on do.

    Raises `UserError` where it was damaged or changed, or a later version wrote it; `OperationalError` where it cannot
    be read.
    """
    import yaml

    try:
        text = path.read_bytes()
    except OSError as error:
        raise OperationalError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        head = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else path
        raise UserError(damaged(where, "cannot be read as YAML", remedy)) from error
    if not isinstance(head, dict):
        raise UserError(damaged(path, "it holds no settings", remedy))
    written = head.get("format", 1)
    if not isinstance(written, int) or written > format:
        raise UserError(f"{path}: is of format {written}, this version reads up to {format}; update numerate.")
    if CHECKSUM in head or written >= 2:
        if CHECKSUM not in head:
            raise UserError(damaged(path, "it was cut: the checksum at its end is missing", remedy))
        if head.pop(CHECKSUM) != checksum(head):
            raise UserError(damaged(path, "it was changed after it was written: its checksum is another", remedy))
    return head


def is_head(path: Path) -> bool:
    """Whether a file is the head of a run and no recipe saved by itself: by its name and its first bytes."""
    try:
        with open(path, "rb") as file:
            return path.name == HEAD and file.read(7) == b"format:"
    except OSError:
        return False


def read_metrics(
    folder: Path, head: Mapping[str, Any], warn: Callable[[str], None], cut: Warn = None
) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` of a run; `warn` is called for damage, and for missing lines of trained steps."""
    path = folder / "metrics.jsonl"
    found = read(path, METRICS, warn, cut)
    if (what := lacking(path, found, head)) is not None:
        warn(what)
    return found


def lacking(path: Path, metrics: list[dict[str, Any]], head: Mapping[str, Any]) -> str | None:
    """A message where metrics lack steps that the head of their run records as trained; else None."""
    ended = head.get("ended")
    if not isinstance(ended, Mapping) or ended.get("why") not in ("budget", "target") or not ended.get("step"):
        return None
    last = max((line["step"] for line in metrics), default=None)
    if last is not None and last >= ended["step"]:
        return None
    what = (
        f"it ends at step {last:,}"
        if last is not None
        else "it holds no whole line"
        if path.is_file()
        else "it is missing"
    )
    return damaged(path, f"{what}, and the run was trained to step {ended['step']:,}", METRICS.remedy)

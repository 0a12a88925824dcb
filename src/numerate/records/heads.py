"""The header of a run (`recipe.yaml`) and its checksum; checks that the run's metrics are complete."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.plain_yaml import load_plain_yaml
from numerate.records.kinds import METRICS
from numerate.records.reading import MessageCallback, check_format, damage_message, read_records
from numerate.records.schema import CHECKSUM_KEY, checksum

RECIPE_FILE = "recipe.yaml"

_REMEDY = "Restore it from a copy, or move the run's folder away and train it again; nothing was changed."


def read_header(path: Path) -> dict[str, Any]:
    """The content of the `recipe.yaml` at `path`.

    Raises `UserError` if it was damaged or modified, or written by another version; `OperationalError` if it cannot be
    read.
    """
    import yaml

    try:
        content = load_plain_yaml(path.read_bytes())
    except OSError as error:
        raise OperationalError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else path
        reason = f" ({problem})" if (problem := getattr(error, "problem", None)) else ""
        raise UserError(damage_message(where, f"cannot be read as YAML{reason}", _REMEDY)) from error
    if not isinstance(content, dict):
        raise UserError(damage_message(path, "it must be a mapping", _REMEDY))
    check_format(path, content.get("format", 1))
    if (stored := content.pop(CHECKSUM_KEY, None)) != checksum(content):
        problem = "it is truncated: the checksum at the end is missing"
        problem = problem if stored is None else "it was modified: the checksum does not match"
        raise UserError(damage_message(path, problem, _REMEDY))
    if not isinstance(content.get("recipe"), dict):
        raise UserError(damage_message(path, "it has no recipe", _REMEDY))
    return content


def is_run_header(path: Path) -> bool:
    """Whether a file is the header of a run rather than a saved recipe, by its name and its first bytes."""
    try:
        with open(path, "rb") as file:
            return path.name == RECIPE_FILE and file.read(7) == b"format:"
    except OSError:
        return False


def read_metrics(
    folder: Path, header: Mapping[str, Any], warn: Callable[[str], None], on_truncated_line: MessageCallback = None
) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` of a run; `warn` is called for damage, and where they lack steps that the header
    records as trained."""
    path = folder / "metrics.jsonl"
    records = read_records(path, METRICS, warn, on_truncated_line)
    ended, last = header.get("ended") or {}, max((line["step"] for line in records), default=0)
    if ended.get("stop_reason") in ("budget", "target") and last < ended.get("step", 0):
        missing = "" if path.exists() else "it is missing, so "
        problem = f"{missing}it ends at step {last:,}, and the run was trained to step {ended['step']:,}"
        warn(damage_message(path, problem, METRICS.remedy))
    return records

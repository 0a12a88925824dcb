"""The failures on purpose of `tests/training`, for searches."""

import importlib.util
from pathlib import Path

_place = Path(__file__).parents[1] / "training" / "conftest.py"
_spec = importlib.util.spec_from_file_location("failures_on_purpose", _place)
assert _spec is not None
assert _spec.loader is not None
_failures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_failures)
small_disk, killed_at_every_moment = _failures.small_disk, _failures.killed_at_every_moment

"""A study of made-up runs."""

from pathlib import Path

import pytest

from run_records import Studies


@pytest.fixture
def study(tmp_path: Path) -> Studies:
    return Studies(tmp_path / "runs")

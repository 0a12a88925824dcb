"""Promises of the table of what recipes would take on a GPU (`benchmarks/estimates.py`), and of the page with it."""

from pathlib import Path
from types import ModuleType

import pytest

from import_file import import_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def estimates() -> ModuleType:
    return import_file(ROOT / "benchmarks" / "estimates.py")


@pytest.mark.parametrize("name", ["addition_abacus", "tiny_stories_laptop_dual"])
def test_the_page_has_the_rows_that_are_printed(estimates: ModuleType, name: str) -> None:
    header, row = estimates.table([name])
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert header in page
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `") and f"`{name}`" in line]
    assert row.split("|")[2:] in [shown[2:] for shown in rows]


def test_data_that_must_be_fetched_has_a_stand_in_of_its_shape(estimates: ModuleType) -> None:
    sizes = estimates.sizes_of("fineweb_edu_dual_343m")
    assert tuple(sizes.longest.tokens.ids.shape) == (16, 1024)
    assert sizes.num_parameters == pytest.approx(343e6, rel=0.02)
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    sizes = estimates.sizes_of("rjokes_t5_regression_head")
    assert sizes.longest.source is not None
    assert sizes.tokens_per_example == pytest.approx(150, abs=2)
    assert sizes.num_parameters == pytest.approx(60.5e6, rel=0.01)

"""How large the code base is: lines and files by folder, and what a reader meets in it, beside the budgets.

    python benchmarks/size.py

A row per folder of `src/numerate`, then the sums: all of the source; the core, which is what the import contract "The
core imports nothing of the shelf" lists, and the single files below it; and the tests. `errors` counts
`raise UserError`, `checks` counts `__post_init__`. Lines are all lines, as `ruff format` leaves them. The budgets of
source and tests are in `budgets.toml`; a test holds them.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[1]
SOURCE = TOP / "src" / "numerate"
BUDGETS = TOP / "benchmarks" / "budgets.toml"


class Size(NamedTuple):
    """The size of some files."""

    lines: int
    files: int
    errors: int
    checks: int

    @classmethod
    def of(cls, paths: Iterable[Path]) -> "Size":
        texts = [path.read_text(encoding="utf-8") for path in paths]
        return cls(
            sum(text.count("\n") for text in texts),
            len(texts),
            sum(len(re.findall(r"\braise UserError\b", text)) for text in texts),
            sum(len(re.findall(r"\bdef __post_init__\b", text)) for text in texts),
        )


def core_modules() -> set[str]:
    """The first names of the modules of the core, from the import contract."""
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (core,) = (contract for contract in contracts if contract["name"] == "The core imports nothing of the shelf")
    return {name.split(".")[1] for name in core["source_modules"]} | {"catalogue", "errors", "number_tables"}


def sizes() -> Iterator[tuple[str, Size]]:
    """The size of each folder of the source, and of its sums."""
    files = sorted(SOURCE.rglob("*.py"))
    folders = sorted({path.relative_to(SOURCE).parts[0] for path in files if path.parent != SOURCE})
    for folder in folders:
        yield folder, Size.of(path for path in files if SOURCE / folder in path.parents)
    yield "single files", Size.of(path for path in files if path.parent == SOURCE)
    yield "source", Size.of(files)
    core = core_modules()
    yield "core", Size.of(path for path in files if path.relative_to(SOURCE).with_suffix("").parts[0] in core)
    yield "tests", Size.of((TOP / "tests").rglob("*.py"))


def budgets() -> dict[str, int]:
    """The largest allowed numbers of lines, of source and tests."""
    return tomllib.loads(BUDGETS.read_text())


def main() -> None:
    limits = budgets()
    print(f"{'':14} {'lines':>7} {'budget':>7} {'files':>6} {'errors':>7} {'checks':>7}")
    for name, size in sizes():
        budget = f"{limits[name]:,}" if name in limits else ""
        print(f"{name:14} {size.lines:7,} {budget:>7} {size.files:6} {size.errors:7} {size.checks:7}")


if __name__ == "__main__":
    main()

"""What the tests of the pages `docs/coming-from-*.md` have in common: their tables, the commands in them, and where
these are run."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

import numerate
from numerate import catalogue
from numerate.cli import main
from numerate.config import override
from numerate.training.recipe import Recipe

DOCS = Path(__file__).parents[1] / "docs"


class Row(NamedTuple):
    """A line of a table: its section, what is typed there, what is typed here."""

    section: str
    theirs: str
    ours: str


@dataclass(frozen=True)
class Page:
    """A page of tables with the columns theirs, ours, and what is different."""

    name: str

    @cached_property
    def rows(self) -> list[Row]:
        found, section = [], ""
        for line in (DOCS / self.name).read_text(encoding="utf-8").splitlines():
            if line.startswith("## "):
                section = line.removeprefix("## ")
            if line.startswith("|") and not line.startswith(("| theirs", "|---")):
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                assert len(cells) == 3, line
                found.append(Row(section, cells[0], cells[1]))
        return found

    def commands(self) -> list[str]:
        """Every command of the middle columns, from behind `numerate` on."""
        shown = [text for row in self.rows for text in told(row.ours)]
        found = [
            re.fullmatch(r"(?:\w+=\S+ |torchrun .* -m |nohup )*numerate (.+?)(?: >\S+ &)?", text) for text in shown
        ]
        return list(dict.fromkeys(match[1] for match in found if match))

    def settings(self, *sections: str) -> list[str]:
        """Every setting of the middle columns of some sections."""
        shown = [text for row in self.rows if row.section in sections for text in told(row.ours)]
        return [text for text in shown if re.match(r"[a-z][\w.]*=", text)]

    def shown_recipes(self) -> set[str]:
        """The recipes that are trained or run on it."""
        return {line.split()[1] for line in self.commands() if line.startswith(("train", "run"))}

    def unanswered(self) -> list[Row]:
        """Lines whose middle column is neither a command, a setting, a link nor `none`."""
        return [row for row in self.rows if not told(row.ours) and not row.ours.startswith(("none", "see [", "["))]


def stand_in(folder: Path, runs: Path, patch: pytest.MonkeyPatch, data: Path | None = None) -> Path:
    """Goes to an empty folder, from where `latest` is the last of `runs`; parts that a command loads are forgotten."""
    patch.chdir(folder)
    patch.setenv("NUMERATE_RUNS", str(runs))
    if data is not None:
        patch.setenv("NUMERATE_DATA", str(data))
    patch.setattr(catalogue, "_user_classes", {})
    return folder


def run_here(words: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs a command that `in_small` made small; one that trains leaves a run in the folder `elsewhere`."""
    status = main(list(words))
    said = capsys.readouterr()
    assert status == 0, said.err
    if words[0] in ("train", "run") and "--dry-run" not in words:
        assert list(folder.glob("elsewhere/*/*/recipe.yaml"))


def set_one(text: str, name: str) -> Recipe:
    """The recipe of a name with what a cell says: one setting or several."""
    words = [word for word in shlex.split(text) if not word.startswith("runs_dir=")]
    assert {word.partition("=")[0].partition(".")[0] for word in words} <= {field.name for field in fields(Recipe)}
    recipe = override(numerate.recipe(name), words)
    assert isinstance(recipe, Recipe)
    return recipe


def told(cell: str) -> list[str]:
    """What stands in `...` in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def in_small(line: str, tiny: Mapping[str, str], more: Sequence[str] = ()) -> list[str]:
    """The words of a command as on the page, with what makes it small: trackers, which need an account, are left out,
    many seeds are two, and what is trained goes to the folder `elsewhere`. `tiny` is by the command's first word."""
    words = [word for word in shlex.split(line) if not word.startswith("trackers=")]
    words = [re.sub(r"^seeds=\d+$", "seeds=2", word) for word in words]
    words = [",".join(word.split(",")[:2]) if word.startswith("seed=") else word for word in words]
    trained = ["runs_dir=elsewhere"] if words[0] in ("train", "run") else []
    return [*words, *tiny.get(words[0], "").split(), *more, *trained]

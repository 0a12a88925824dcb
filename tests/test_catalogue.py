"""Promises of the catalogue: every name leads to a described class, and listing imports none of them."""

import ast
import importlib
import inspect
import subprocess
import sys
from abc import ABC
from pathlib import Path

import pytest

import numerate
from numerate import catalogue
from numerate.errors import Mistake

NAMED = [(kind, name) for kind, parts in catalogue.kinds().items() for name in parts]
FUNCTIONS = {"Recipe", "Study"}


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_every_name_is_there_with_a_first_line(kind: str, name: str) -> None:
    part = catalogue.find(kind, name)
    assert part.__name__ == name
    assert part.__module__ == catalogue.kinds()[kind][name]
    described = catalogue.describe(kind, name)
    assert described == inspect.getdoc(part).split("\n")[0]
    assert 20 < len(described) <= 130
    assert described[-1] in ".:"


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, n in NAMED if k not in FUNCTIONS])
def test_every_part_is_a_final_class_of_its_kind(kind: str, name: str) -> None:
    part = catalogue.find(kind, name)
    assert not inspect.isabstract(part)
    ancestors = {ancestor.__name__: ancestor for ancestor in part.__mro__[1:]}
    assert kind in ancestors
    assert issubclass(ancestors[kind], ABC)
    part()  # every setting has a default


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_every_name_can_be_imported_from_its_room(kind: str, name: str) -> None:
    module = catalogue.kinds()[kind][name]
    room = importlib.import_module(module.rpartition(".")[0])
    assert getattr(room, name) is catalogue.find(kind, name)
    with pytest.raises(AttributeError, match="has no 'Nothing'"):
        room.Nothing  # noqa: B018


def test_every_concrete_part_of_the_house_is_listed() -> None:
    """A class that derives from the abstract class of a kind, in any file of a room, is in that room's catalogue."""
    kinds = {kind: set(parts) for kind, parts in catalogue.kinds().items() if kind not in FUNCTIONS}
    folder = Path(numerate.__file__).parent
    missing = []
    for room in catalogue.ROOMS:
        for file in (folder / room).glob("*.py"):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    for parent in (parent.id for parent in node.bases if isinstance(parent, ast.Name)):
                        if parent in kinds and node.name not in kinds[parent]:
                            missing.append(f"{file.name}: {node.name}({parent})")
    assert not missing


def test_a_wrong_name_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(Mistake) as told:
        catalogue.find("Mixer", "LTSM", "model.mixer")
    words = str(told.value)
    assert words.startswith("model.mixer: no Mixer is named 'LTSM'; there are: Attention, LSTM")
    assert words.endswith("Did you mean 'LSTM'?")


def test_a_class_of_ones_own_is_found_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_added", {})

    class Mine:
        """Says nothing.

        At length.
        """

    catalogue.add("Mixer", Mine)
    assert catalogue.find("Mixer", "Mine") is Mine
    assert catalogue.describe("Mixer", "Mine") == "Says nothing."
    assert Mine in list(catalogue.variants("Mixer"))


def test_describing_everything_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\n"
        "from numerate import catalogue\n"
        "lines = [catalogue.describe(kind, name) for kind, parts in catalogue.kinds().items() for name in parts]\n"
        "assert all(lines)\n"
        "heavy = [name for name in ('torch', 'numpy', 'jaxtyping', 'matplotlib') if name in sys.modules]\n"
        "print(len(lines), heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(NAMED)), "[]"]

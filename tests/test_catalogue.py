"""Promises of the catalogue: every name leads to a described class, and listing imports none of them."""

import ast
import importlib
import inspect
from abc import ABC
from importlib import resources
from pathlib import Path

import pytest

import numerate
from cases import case
from numerate import catalogue
from numerate.cli import main

FUNCTIONS = {"Recipe", "Study"}


def test_a_typed_program_finds_the_types_of_the_package() -> None:
    assert resources.files("numerate").joinpath("py.typed").is_file()


every_kind = pytest.mark.parametrize("kind", catalogue.parts_by_kind())


@every_kind
def test_every_name_is_there_with_a_first_line(kind: str) -> None:
    for name, module in catalogue.parts_by_kind()[kind].items():
        with case(name):
            part = catalogue.get_class(kind, name)
            assert part.__name__ == name
            assert part.__module__ == module
            described = catalogue.part_summary(kind, name)
            assert described == (inspect.getdoc(part) or "").split("\n")[0]
            assert 20 < len(described) <= 130
            assert described[-1] in ".:"


@every_kind
def test_every_part_is_a_final_class_of_its_kind(kind: str) -> None:
    for part in catalogue.all_classes(kind) if kind not in FUNCTIONS else ():
        with case(part):
            assert not inspect.isabstract(part)
            ancestors = {ancestor.__name__: ancestor for ancestor in part.__mro__[1:]}
            assert kind in ancestors
            assert issubclass(ancestors[kind], ABC)
            part()  # every setting has a default


@every_kind
def test_every_name_can_be_imported_from_its_room(kind: str) -> None:
    folders = [importlib.import_module(f"numerate.{folder}") for folder in catalogue.PART_PACKAGES]
    for name in catalogue.parts_by_kind()[kind]:
        with case(name):
            (room,) = (folder for folder in folders if name in folder.CATALOGUE.get(kind, {}))
            assert getattr(room, name) is catalogue.get_class(kind, name)
            with pytest.raises(AttributeError, match="has no 'Nothing'"):
                room.Nothing  # noqa: B018


def for_others(node: ast.ClassDef) -> bool:
    """Whether a class is only what others derive from: a private one, an `ABC`, or one with an abstract method."""
    if node.name.startswith("_") or "ABC" in map(ast.unparse, node.bases):
        return True
    made = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    return any("abstractmethod" in map(ast.unparse, part.decorator_list) for part in made)


def test_every_concrete_part_of_the_house_is_listed() -> None:
    """A class that derives from the abstract class of a kind, in any file of a room, is in that room's catalogue."""
    kinds = {kind: set(parts) for kind, parts in catalogue.parts_by_kind().items() if kind not in FUNCTIONS}
    folder = Path(numerate.__file__).parent
    missing = []
    for room in catalogue.PART_PACKAGES:
        for file in (folder / room).glob("*.py"):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not for_others(node):
                    for parent in (parent.id for parent in node.bases if isinstance(parent, ast.Name)):
                        if parent in kinds and node.name not in kinds[parent]:
                            missing.append(f"{file.name}: {node.name}({parent})")
    assert not missing


# Names that follow a pattern -----------------------------------------------------------------------------------------

FAMILIES = [(kind, pattern) for kind in catalogue.parts_by_kind() for pattern in catalogue.family_modules(kind)]


@pytest.mark.parametrize(("kind", "pattern"), FAMILIES)
def test_a_family_has_many_names_with_a_line_each(kind: str, pattern: str) -> None:
    rows = importlib.import_module(catalogue.family_modules(kind)[pattern]).family()
    names = {name: row.summary for name, row in rows.items()}
    assert len(names) > 12
    prefix = pattern[: next(i for i, letter in enumerate(pattern) if letter.isupper())]
    assert all(name.startswith(prefix) and 20 < len(line) <= 130 and line[-1] == "." for name, line in names.items())
    assert names.items() <= catalogue.family_names(kind).items()


@pytest.mark.parametrize(("kind", "pattern"), FAMILIES)
def test_a_name_of_a_family_is_found_and_another_is_none(kind: str, pattern: str) -> None:
    name = next(iter(importlib.import_module(catalogue.family_modules(kind)[pattern]).family()))
    assert catalogue.family_row(kind, name).build(name) is not None
    for other in (f"{name}s", "addition_abacus", ""):
        assert catalogue.family_row(kind, other) is None


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["list", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_list_has_one_line_for_a_family_and_says_how_to_see_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "recipes")
    assert len(lines) == 1 + len(catalogue.parts_by_kind()["Recipe"]) + len(catalogue.family_modules("Recipe"))
    assert lines[-1].split()[0] == "counting_TASK_MODEL"
    assert lines[-1].endswith("See `numerate list recipes counting_`.")
    assert listed(capsys, "tasks")[-1].endswith("See `numerate list tasks counting_`.")


def test_the_list_of_a_part_of_a_name_has_every_name_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "recipes", "counting-samesymbol-mod10bos")
    assert [line.split()[0] for line in lines] == [
        "recipes",
        *(name for name in catalogue.family_names("Recipe") if "counting_samesymbol_mod10bos" in name),
    ]
    assert len(lines) == 13
    of_both = [line.split()[0] for line in listed(capsys, "recipes", "tasks", "mod10bos") if line]
    assert of_both.index("tasks") == 15  # twelve of the family, two of the list
    assert of_both[16:] == ["counting_samesymbol_mod10bos"]


def test_a_part_of_no_name_and_no_kind_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes", "addition_abakus"]) == 2
    assert "recipes contains 'addition_abakus'. Did you mean 'addition_abacus'?" in capsys.readouterr().err
    assert main(["list", "recipez"]) == 2
    assert "there is no kind 'recipez'" in capsys.readouterr().err
    assert main(["list", "recipez", "mod10"]) == 2
    assert "there is no kind 'recipez'" in capsys.readouterr().err


def test_commands_know_the_names_of_a_family(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "counting_samesymbol_mod10bos_lstm"
    assert main(["show", name]) == 0
    assert main(["sample", name.replace("_", "-"), "count=1"]) == 0
    assert main(["data", "write", name, "count=5", "out=rows"]) == 0
    capsys.readouterr()
    assert main(["status", name]) == 2
    assert f"`numerate run {name}` makes" in capsys.readouterr().err
    for command in (["show"], ["sample"], ["data", "write", "out=x"]):
        assert main([*command, f"{name}s"]) == 2, command
    assert capsys.readouterr().err.count(f"Did you mean '{name}'") == 3

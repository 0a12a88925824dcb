"""Promises of a user's own parts: classes in a file of theirs."""

import re
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import pytest

from numerate import catalogue
from numerate.config import (
    as_text,
    from_tree,
    identity,
    load_user_parts,
    override,
    parse_yaml,
    setting,
    to_tree,
    user_object,
    user_parts,
    yaml_text,
)
from numerate.errors import Mistake


class Blend(ABC):
    @abstractmethod
    def blend(self) -> int: ...


@dataclass(frozen=True)
class Soft(Blend):
    heads: int = setting(4, "how many heads")

    def blend(self) -> int:
        return self.heads


@dataclass(frozen=True)
class Maker:
    blend: Blend = setting(Soft(), "how places are blended")


@pytest.fixture(autouse=True)
def catalogue_of_made_up_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "ROOMS", ())
    monkeypatch.setattr(catalogue, "_added", {})
    catalogue.add("Blend", Soft)
    catalogue.add("Maker", Maker)


PARTS = '''
from dataclasses import dataclass
from {home} import Blend
from numerate.config import setting
from numerate.errors import Mistake

@dataclass(frozen=True)
class Bitter(Blend):
    """Blends bitterly."""
    strength: int = setting(3, "how bitter")
    def blend(self):
        return self.strength

def recipe():
    return Bitter(5)
'''


def written(folder: Path, name: str = "my.py", more: str = "") -> Path:
    file = folder / name
    file.write_text(PARTS.format(home=__name__) + more)
    return file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_parts, "_named", set())
    monkeypatch.setattr(user_parts, "_by_file", set())  # which workers of later tests would read
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    return tmp_path


def test_a_users_part_is_reachable_by_name_by_file_and_from_disk(folder: Path) -> None:
    written(folder)
    assert override(Maker(), ["blend=my.py:Bitter(strength=9)"]).blend.strength == 9  # type: ignore[attr-defined]
    made = override(Maker(), ["blend=Bitter", "blend.strength=7"])
    tree = to_tree(made)["blend"]
    assert re.fullmatch("[0-9a-f]{64}", tree["source"])
    assert (tree["kind"], tree["strength"]) == ("my.py:Bitter", 7)
    assert from_tree(parse_yaml(yaml_text(to_tree(made)))) == made
    assert override(Maker(), [f"blend={as_text(made.blend)}"]) == made
    assert load_user_parts("my.py") is load_user_parts(folder / "my.py")
    assert user_object("my.py:recipe")() == user_object("my.py:Bitter")(5)


def test_a_users_file_is_found_from_the_saved_recipe_upwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder)
    made = override(Maker(), ["blend=my.py:Bitter"])
    tree, same = to_tree(made), identity(made)
    (folder / "elsewhere").mkdir()
    (folder / "runs" / "a").mkdir(parents=True)
    monkeypatch.chdir(folder / "elsewhere")
    assert from_tree(tree, folder / "runs" / "a" / "recipe.yaml") == made
    assert identity(made) == same, "the current folder is no part of an experiment"
    with pytest.raises(Mistake, match=r"my\.py: there is no such file"):
        from_tree(tree, folder / ".." / "recipe.yaml")


def test_a_users_file_that_changed_is_warned_about_and_is_another_experiment(folder: Path) -> None:
    written(folder)
    made = override(Maker(), ["blend=my.py:Bitter"])
    tree = to_tree(made)
    (folder / "new").mkdir()
    written(folder / "new", more="# changed\n")
    del catalogue._added["Blend"]["Bitter"]  # as in a new process
    changed = override(Maker(), ["blend=new/my.py:Bitter"])
    assert identity(changed) != identity(made)
    tree["blend"]["kind"] = "new/my.py:Bitter"
    with pytest.warns(UserWarning, match=r"new/my\.py has changed since this was saved"):
        from_tree(tree)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("def broken(:\n", r"my\.py, line 16: SyntaxError: invalid syntax"),
        ("x = 1\nboom\n", r"my\.py, line 17: NameError: name 'boom' is not defined"),
        ("raise SystemExit(3)\n", r"my\.py, line 16: SystemExit: 3"),
        ("raise Mistake('heads: 0')\n", r"my\.py, line 16: heads: 0"),
        (
            "class Bare(Blend):\n    x: int = 3\n    def blend(self): ...\n",
            r"my\.py: Bare is no dataclass; write @dataclass",
        ),
        (
            "@dataclass(frozen=True)\nclass Empty(Blend):\n    size: int\n    def blend(self): ...\n",
            r"my\.py: Empty\.size has no default; every setting needs one",
        ),
        (
            "@dataclass(frozen=True)\nclass Soft(Blend):\n    size: int = 3\n    def blend(self): ...\n",
            r"my\.py: there already is a Blend named 'Soft'; give yours another name",
        ),
    ],
)
def test_what_is_wrong_in_a_users_file_is_said_with_file_and_line(folder: Path, more: str, message: str) -> None:
    written(folder, more=more)
    with pytest.raises(Mistake) as refused:
        load_user_parts("my.py")
    assert re.match(message, str(refused.value)), refused.value
    assert to_tree(Soft())["kind"] == "Soft"


def test_what_a_users_file_does_not_hold_is_said(folder: Path) -> None:
    written(folder)
    with pytest.raises(Mistake, match=r"my\.py has no 'recipes'; it has: .* Did you mean 'recipe'\?"):
        user_object("my.py:recipes")
    with pytest.raises(Mistake, match=r"mine\.py: there is no such file\. Did you mean 'my\.py'\?"):
        user_object("mine.py:recipe")
    with pytest.raises(Mistake, match=r"blend: my\.py:recipe is no Blend"):
        override(Maker(), ["blend=my.py:recipe"])


def test_a_class_that_nothing_could_find_again_is_not_saved() -> None:
    @dataclass(frozen=True)
    class Inner(Blend):
        def blend(self) -> int:
            return 0

    with pytest.raises(Mistake, match=r"Inner stands inside another"):
        to_tree(Maker(blend=Inner()))


def test_a_part_of_an_imported_file_needs_no_registration(folder: Path) -> None:
    written(folder, "neighbour.py")
    sys.path.insert(0, str(folder))
    neighbour = __import__("neighbour")
    try:
        made = Maker(blend=neighbour.Bitter())
        assert from_tree(to_tree(made)) == made
        assert to_tree(made)["blend"]["kind"] == "neighbour.py:Bitter"
    finally:
        del sys.modules["neighbour"]

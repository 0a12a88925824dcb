"""Promises of a user's own parts: classes in a file of theirs."""

import hashlib
import importlib
import json
import pickle
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from newcomers import forget_parts_of_users
from numerate import catalogue
from numerate.config import (
    add_packaged_parts,
    format_value,
    from_tree,
    identity,
    load_user_object,
    load_user_parts,
    override,
    packaged_parts,
    parse_yaml,
    refuse_while_loading,
    setting,
    to_tree,
    user_code,
    user_parts,
    yaml_text,
)
from numerate.config.approvals import approve
from numerate.errors import UserError
from numerate.training.run_folder import RunFolder


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
    forget_parts_of_users(monkeypatch)
    monkeypatch.setattr(catalogue, "PART_PACKAGES", ())
    catalogue.register("Blend", Soft)
    catalogue.register("Maker", Maker)


PARTS = '''
from dataclasses import dataclass
from {home} import Blend
from numerate.config import setting
from numerate.errors import UserError

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
    monkeypatch.setattr(user_parts, "_files_from_parent", {})
    monkeypatch.setenv("NUMERATE_CONFIG", str(tmp_path / "configuration"))
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
    assert override(Maker(), [f"blend={format_value(made.blend)}"]) == made
    assert load_user_parts("my.py") is load_user_parts(folder / "my.py")
    assert load_user_object("my.py:recipe")() == load_user_object("my.py:Bitter")(5)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    forget_parts_of_users(monkeypatch)
    catalogue.register("Blend", Soft)
    catalogue.register("Maker", Maker)


def test_a_file_that_was_named_once_opens_its_recipes_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder)
    made = override(Maker(), ["blend=my.py:Bitter(strength=9)"])
    tree, same = to_tree(made), identity(made)
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert identity(made) == same, "the current folder is no part of an experiment"
    forget(monkeypatch)
    again = from_tree(tree)
    assert again.blend.strength == 9
    assert identity(again) == same
    assert [file.reason for file in user_parts.user_files()] == ["approved"]


@pytest.mark.parametrize("text", [False, True], ids=["node", "text"])
def test_what_only_a_saved_recipe_names_is_refused_before_anything_of_it_runs(folder: Path, text: bool) -> None:
    file = written(folder, "evil.py", more="from pathlib import Path\nPath('ran').touch()\n")
    blend = {"kind": "evil.py:Bitter", "source": hashlib.sha256(file.read_bytes()).hexdigest(), "strength": 3}
    tree = {"kind": "Maker", "blend": "evil.py:Bitter(strength=3)" if text else blend}
    with pytest.raises(UserError, match=r"blend: evil\.py: no file that you have named .*--parts FILE") as refused:
        from_tree(tree)
    assert "It was not run" in str(refused.value)
    assert not (folder / "ran").exists()
    (folder / "configuration").mkdir()
    (folder / "configuration" / "approved_parts.jsonl").write_text('{"sha256": null, "file": "evil.py"}\n[]\nno json\n')
    with pytest.raises(UserError, match="It was not run"):
        from_tree(tree)
    assert not (folder / "ran").exists()
    load_user_parts("evil.py")
    assert from_tree(tree) == Maker(load_user_object("evil.py:Bitter")(3))


def test_a_file_that_is_named_with_other_contents_is_another_experiment_and_not_used_for_a_saved_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = override(Maker(), [f"blend={written(folder)}:Bitter"])
    tree, before = to_tree(made), identity(made)
    forget(monkeypatch)
    (folder / "my.py").rename(folder / "copy.py")
    written(folder, more="# changed\n")
    assert identity(override(Maker(), ["blend=my.py:Bitter"])) != before
    with pytest.raises(UserError, match=rf"had the contents .* a copy in parts/{tree['blend']['source'][:12]}"):
        from_tree(tree)
    forget(monkeypatch)
    load_user_parts("copy.py")
    assert identity(from_tree(tree)) == before


def test_approval_is_remembered_line_by_line_and_said_where_it_cannot_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder, "a.py")
    (folder / "b.py").write_text("x = 1\n")
    there = folder / "configuration" / "approved_parts.jsonl"
    there.parent.mkdir()
    there.write_text('{"sha256": "torn')
    for name in ("a.py", "b.py", "a.py"):
        load_user_parts(name)
    lines = [json.loads(line) for line in there.read_text().splitlines()[1:] if line]
    assert [line["file"] for line in lines] == [str(folder / "a.py"), str(folder / "b.py")]
    assert lines[1]["sha256"] == hashlib.sha256(b"x = 1\n").hexdigest()
    monkeypatch.delenv("NUMERATE_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "a.py"))
    (folder / "c.py").write_text("x = 1\n")
    message = r"a\.py/numerate/approved_parts\.jsonl: could not be written .*--parts .*c\.py"
    with pytest.warns(UserWarning, match=message):
        load_user_parts("c.py")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("def broken(:\n", r"my\.py, line 16: SyntaxError: invalid syntax"),
        ("x = 1\nboom\n", r"my\.py, line 17: NameError: name 'boom' is not defined"),
        ("raise SystemExit(3)\n", r"my\.py, line 16: SystemExit: 3"),
        ("raise UserError('heads: 0')\n", r"my\.py, line 16: heads: 0"),
        ("x = '\0'\n", r"my\.py: (SyntaxError|ValueError): source code string cannot contain null bytes"),  # by Python
        (
            "@dataclass(frozen=True)\nclass Listed(Blend):\n    x: list = []\n",
            r"my\.py, line 16: ValueError: .* for field x can be changed in place; use a tuple",
        ),
        (
            "@dataclass(frozen=True)\nclass Half(Blend):\n    x: int = 3\n",
            r"my\.py: Half has no blend, which a Blend needs",
        ),
        (
            "class Bare(Blend):\n    x: int = 3\n    def blend(self): ...\n",
            r"my\.py: Bare must be a dataclass: add @dataclass",
        ),
        (
            "@dataclass(frozen=True)\nclass Empty(Blend):\n    size: int\n    def blend(self): ...\n",
            r"my\.py: Empty\.size has no default; every setting needs one",
        ),
        (
            "@dataclass(frozen=True)\nclass Soft(Blend):\n    size: int = 3\n    def blend(self): ...\n",
            r"my\.py: a Blend named 'Soft' already exists; rename this class",
        ),
    ],
)
def test_what_is_wrong_in_a_users_file_is_said_with_file_and_line(folder: Path, more: str, message: str) -> None:
    written(folder, more=more)
    with pytest.raises(UserError) as refused:
        load_user_parts("my.py")
    assert re.match(message, str(refused.value)), refused.value
    assert to_tree(Soft())["kind"] == "Soft"


def test_what_a_users_file_does_not_hold_is_said(folder: Path) -> None:
    written(folder, more="class Half(Blend):\n    x: int = 3\n")
    with pytest.raises(UserError, match=r"my\.py has no 'recipes'; it has: .* Did you mean 'recipe'\?"):
        load_user_object("my.py:recipes")
    with pytest.raises(UserError, match=r"mine\.py: there is no such file\. Did you mean 'my\.py'\?"):
        load_user_object("mine.py:recipe")
    with pytest.raises(UserError, match=r"blend: my\.py:recipe must be a Blend"):
        override(Maker(), ["blend=my.py:recipe"])
    with pytest.raises(UserError, match=r"blend: my\.py:Half has no blend, which a Blend needs"):
        override(Maker(), ["blend=my.py:Half"])


def test_a_class_that_nothing_could_find_again_is_not_saved() -> None:
    @dataclass(frozen=True)
    class Inner(Blend):
        def blend(self) -> int:
            return 0

    with pytest.raises(UserError, match=r"Inner must be defined at the top level of its module"):
        to_tree(Maker(blend=Inner()))


# What identifies a file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [None, "<stdin>"])
def test_a_part_of_a_notebook_is_refused_with_the_way_out(
    file: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ModuleType("__main__")
    session.__file__ = file
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", session)
        exec(PARTS.format(home=__name__), vars(session))
        for act in (identity, to_tree):
            with pytest.raises(UserError, match=r"Bitter: .* notebook.s cell .* %%writefile my\.py, .* from my import"):
                act(Maker(blend=session.Bitter()))


def test_a_run_has_copies_of_the_files_of_its_parts_which_nothing_executes(
    neighbors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = override(Maker(), ["blend=my.py:Bitter"])
    (neighbors / "other.py").write_text("x = 1\n")
    load_user_parts("other.py")
    run = RunFolder.create(neighbors, "sums", identity(made), {"recipe": (tree := to_tree(made))})
    copies = run.path / "parts" / tree["blend"]["source"][:12]
    assert sorted(file.relative_to(copies).as_posix() for file in run.path.glob("parts/**/*.py")) == [
        "inner/__init__.py",
        "inner/deep.py",
        "my.py",
        "near.py",
    ]
    assert (copies / "my.py").read_bytes() == (neighbors / "my.py").read_bytes()
    forget_neighbors(monkeypatch, neighbors)
    (neighbors / "my.py").unlink()
    with pytest.raises(UserError, match="It was not run"):
        from_tree(run.metadata()["recipe"])
    assert not (neighbors / "ran").exists()


def test_a_part_in_a_package_beside_a_script_is_identified_by_the_modules_of_the_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = folder / "lab"
    lab.mkdir()
    (lab / "__init__.py").touch()
    (lab / "scales.py").write_text("SCALE = 2\n")
    (folder / "unrelated.py").touch()
    (lab / "mixers.py").write_text(PARTS.format(home=__name__) + "import unrelated\nfrom .scales import SCALE\n")
    monkeypatch.syspath_prepend(folder)

    def source() -> str:
        for name in ("lab", "lab.mixers", "lab.scales", "unrelated"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        monkeypatch.setattr(user_parts, "_files", {})
        made = Maker(blend=importlib.import_module("lab.mixers").Bitter())
        tree = to_tree(made)
        assert from_tree(tree) == made
        assert tree["blend"]["kind"] == "lab.mixers:Bitter"
        return str(tree["blend"]["source"])

    before = source()
    (folder / "unrelated.py").write_text("x = 1\n")
    assert source() == before
    (lab / "scales.py").write_text("SCALE = 3\n")
    assert source() != before
    with pytest.raises(UserError, match=r"blend: lab\.mixers:Bitter: its modules have changed since this was saved"):
        from_tree({"kind": "Maker", "blend": {"kind": "lab.mixers:Bitter", "source": before}})


def test_a_part_of_an_imported_file_needs_no_registration_and_loaded_again_it_has_its_new_contents(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    written(folder, "neighbour.py")
    importlib.invalidate_caches()
    neighbour = importlib.import_module("neighbour")
    made = Maker(blend=neighbour.Bitter())
    assert from_tree(to_tree(made)) == made
    assert to_tree(made)["blend"]["kind"] == "neighbour.py:Bitter"
    before = identity(made)
    written(folder, "neighbour.py", more="CHANGED = True\n")
    importlib.invalidate_caches()
    assert identity(Maker(blend=importlib.reload(neighbour).Bitter())) != before
    del sys.modules["neighbour"]


# Modules of its folder ------------------------------------------------------------------------------------------------


@pytest.fixture
def neighbors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`my.py` imports `near`, which imports `inner.deep`; each leaves a trace where it runs."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    trace = "import pathlib\npathlib.Path('ran').touch()\n"
    (folder / "inner").mkdir()
    (folder / "inner" / "__init__.py").touch()
    (folder / "inner" / "deep.py").write_text(f"{trace}SCALE = 2\n")
    (folder / "near.py").write_text(f"{trace}def scale():\n    from inner.deep import SCALE\n    return SCALE\n")
    file = written(folder, more="import near, os\n")
    file.write_text(file.read_text().replace("return self.strength", "return near.scale()"))
    yield folder
    for name in ("near", "inner", "inner.deep"):
        sys.modules.pop(name, None)


def forget_neighbors(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    forget(monkeypatch)
    for name in ("near", "inner", "inner.deep"):
        sys.modules.pop(name, None)
    sys.path.remove(str(folder))
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, user_code._NeighborImporter)]
    (folder / "ran").unlink(missing_ok=True)


def test_what_a_file_imports_of_its_folder_belongs_to_it(neighbors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = override(Maker(), ["blend=my.py:Bitter"])
    tree, before, sent = to_tree(made), identity(made), pickle.loads(pickle.dumps(user_parts.user_files()))
    forget_neighbors(monkeypatch, neighbors)
    assert identity(from_tree(tree)) == before
    forget_neighbors(monkeypatch, neighbors)
    deep = neighbors / "inner" / "deep.py"
    deep.write_text(deep.read_text().replace("2", "3"))
    with pytest.raises(UserError, match=r"my\.py had the contents .* is gone or has changed"):
        from_tree(tree)
    assert not (neighbors / "ran").exists(), "nothing runs before its hash is checked"
    monkeypatch.setenv("NUMERATE_CONFIG", str(neighbors / "of another machine"))
    user_parts.load_user_files(sent)
    assert from_tree(tree).blend.blend() == 2, "a worker has the contents of the command"
    assert not (neighbors / "of another machine").exists(), "approvals travel with the work"
    forget_neighbors(monkeypatch, neighbors)
    assert identity(override(Maker(), ["blend=my.py:Bitter"])) != before


def test_two_neighbors_of_one_name_are_not_mistaken_for_each_other(neighbors: Path) -> None:
    override(Maker(), ["blend=my.py:Bitter"])
    (neighbors / "other").mkdir()
    (neighbors / "other" / "near.py").touch()
    (neighbors / "other" / "mine.py").write_text("import near\n")
    with pytest.raises(UserError, match=r"mine\.py: imports .*other/near\.py, but another near is in use; rename it"):
        load_user_parts("other/mine.py")
    (neighbors / "near.py").write_text("edited = True\n")
    (neighbors / "more.py").write_text("import near\n")
    with pytest.raises(UserError, match=r"more\.py: imports .*/near\.py, .* start a new process if it was edited"):
        load_user_parts("more.py")


# Scripts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("if __name__ == '__main__':\n    boom\nimport sys\nassert sys.argv[1:] == []\n", None),
        ("boom\n", r"NameError: .* It is executed for its parts, without a command line; keep only .* `if __name__ =="),
        (
            "from numerate.config import refuse_while_loading as refuse; refuse('train')\n",
            r"my\.py, line 16: calls train where it is loaded for its parts; keep only",
        ),
    ],
)
def test_a_script_is_loaded_for_its_parts_without_its_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, more: str, message: str | None
) -> None:
    file = written(folder, more="")
    file.write_text(file.read_text() + more)
    monkeypatch.setattr(sys, "argv", ["numerate", "evaluate", "latest"])
    approve(hashlib.sha256(file.read_bytes()).hexdigest(), str(file))
    tree = {"kind": "Maker", "blend": {"kind": "my.py:Bitter", "source": hashlib.sha256(file.read_bytes()).hexdigest()}}
    with pytest.raises(UserError, match=message) if message else nullcontext():
        from_tree(tree)
    assert sys.argv == ["numerate", "evaluate", "latest"]
    refuse_while_loading("train")


# Parts of installed packages ------------------------------------------------------------------------------------------

RECIPES = '''
def bitter_sums():
    """Sums, bitterly."""
    from numerate.training.recipe import Recipe
    return Recipe()

def bitter_study() -> "Study":
    """Several of them."""
'''


@pytest.fixture
def acme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that declares one of its two parts."""
    site = folder / "site"
    (site / "acme").mkdir(parents=True)
    (site / "acme" / "__init__.py").touch()
    written(site / "acme", "mixers.py", more="@dataclass(frozen=True)\nclass Sour(Bitter):\n    pass\n" + RECIPES)
    (site / "acme-1.0.dist-info").mkdir()
    (site / "acme-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (site / "acme-1.0.dist-info" / "entry_points.txt").write_text(
        "[numerate.parts]\nBitter = acme.mixers:Bitter\nGone = acme.gone:Gone\nAll = acme.mixers\n"
        "bitter_sums = acme.mixers:bitter_sums\nbitter_study = acme.mixers:bitter_study\n"
    )
    sys.path.insert(0, str(site))
    packaged_parts.declared_entry_points.cache_clear()
    yield site
    packaged_parts.declared_entry_points.cache_clear()
    for name in ("acme", "acme.mixers"):
        sys.modules.pop(name, None)


def test_a_part_that_an_installed_package_declares_is_found_by_name_by_address_and_from_disk(acme: Path) -> None:
    tree = {"kind": "Maker", "blend": {"kind": "acme.mixers:Bitter", "strength": 5}}
    assert "acme" not in sys.modules
    made = from_tree(tree)
    assert made.blend.strength == 5
    assert to_tree(made)["blend"] == {**tree["blend"], "source": "acme.mixers 1.0"}
    assert from_tree(to_tree(made)) == made
    for text in ("Bitter(5)", "acme.mixers:Bitter(strength=5)", format_value(made.blend)):
        assert override(Maker(), [f"blend={text}"]) == made


@pytest.mark.parametrize("kind", ["acme.mixers:Sour", "antigravity:Flight", "acme.other:Bitter", "acme:__init__"])
def test_a_module_that_no_package_declares_is_not_imported_for_a_recipe(acme: Path, kind: str) -> None:
    with pytest.raises(UserError, match=rf"blend: {kind}: no installed package declares such a part"):
        from_tree({"kind": "Maker", "blend": {"kind": kind}})
    assert not {"acme", "antigravity"} & sys.modules.keys()


def test_a_declared_part_that_cannot_be_loaded_is_told_with_its_package(acme: Path) -> None:
    with pytest.raises(UserError, match=r"acme\.gone:Gone: the package acme declares .*ModuleNotFoundError"):
        override(Maker(), ["blend=Gone"])


def test_parts_recipes_and_studies_of_a_package_are_listed_though_others_of_it_cannot_be_loaded(acme: Path) -> None:
    with pytest.warns(UserWarning, match=r"acme\.gone:Gone: the package acme"):
        add_packaged_parts()
    kinds = catalogue.parts_by_kind()
    assert kinds["Blend"]["Bitter"] == "acme.mixers"
    assert (kinds["Recipe"], kinds["Study"]) == ({"bitter_sums": "acme.mixers"}, {"bitter_study": "acme.mixers"})
    assert catalogue.part_summary("Recipe", "bitter_sums") == "Sums, bitterly."

"""The folder of a study lists its runs, whatever happened to it, and finds it by name."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numerate.config import from_tree, identity, override, to_tree
from numerate.errors import UserError
from numerate.mixers.recurrent import LSTM
from numerate.recipes.study import Study, content_key
from numerate.records.reading import FORMAT
from numerate.results.runs import results_of
from numerate.runs.status import study_status
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.training.finding import all_runs, find_run, latest_run
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder

# The runs -------------------------------------------------------------------------------------------------------------


def requested(*recipes: Recipe) -> list[StudyRun]:
    return [StudyRun.of(f"{one.title}/{identity(one)}", content_key(one), to_tree(one)) for one in recipes]


def trees(folder: StudyFolder) -> list[Any]:
    return [run.recipe_tree() for run in folder.read().plan()]


def test_a_recipe_with_any_task_comes_back(any_task: Any, tiny: Recipe, tmp_path: Path) -> None:
    recipes = [tiny, replace(tiny, task=any_task, seed=1), override(tiny, ["seed=2", "optimizer.max_grad_norm=inf"])]
    folder = StudyFolder(tmp_path / "study")
    folder.update(requested(*recipes))
    assert [from_tree(tree, "study", expected_class=Recipe) for tree in trees(folder)] == recipes


def test_seeds_share_a_label_and_variants_are_distinguished_by_what_differs(tiny: Recipe, tmp_path: Path) -> None:
    runs = Study("s", "?", [tiny]).sweep(["model.hidden_size=16,32", "seeds=2"]).recipes
    recurrent = replace(tiny, title="lstm", model=replace(tiny.model, mixer=LSTM(), positions=()))
    named = override(tiny, ["name=mine", "group=all", "device=cpu", "training.log_every=1", "seed=7"])
    plan = StudyFolder(tmp_path / "s").update(requested(*runs, recurrent, named), labels={"rotary": "Rotary"})
    assert [one.display_name for one in plan] == [
        "Rotary (hidden_size=16)",
        "Rotary (hidden_size=16) seed 1",
        "Rotary (hidden_size=32)",
        "Rotary (hidden_size=32) seed 1",
        "lstm",
        "Rotary (hidden_size=16) seed 7",
    ]
    both = [override(one, ["name=mine"]) for one in (tiny, recurrent)]
    assert [one.label for one in StudyFolder(tmp_path / "t").update(requested(both[0]))] == ["mine"]
    plan = StudyFolder(tmp_path / "u").update(requested(*both))
    assert [one.label for one in plan] == ["mine", "mine, lstm"], "recipes of one name are told apart"


def test_two_commands_may_plan_at_the_same_time(tiny: Recipe, tmp_path: Path) -> None:
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            try:
                for one in requested(*(override(tiny, [f"seed={10 * number + seed}"]) for seed in range(10))):
                    (tmp_path / one.run).mkdir(parents=True)
                    StudyFolder(tmp_path / "study").update([one])
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    content = StudyFolder(tmp_path / "study").read()
    assert (sorted(one.seed for one in content.runs), len(content.plan())) == (list(range(40)), 1)


# Whatever is there ----------------------------------------------------------------------------------------------------


def first_run(text: str) -> str:
    return json.dumps(json.loads(text)["runs"][0], separators=(",", ":"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-40], "damaged: .*truncated"),
        (lambda text: text.replace('"runs":', '"runs":[],"runs":'), "damaged: it was edited"),
        (lambda text: text.replace('"seed":1,', '"seed":"1",'), "damaged: Expected `int`"),
        (lambda text: text.replace('"run":"', '"run":"../'), r"damaged: .*regex.*runs\[0\]\.run"),
        (lambda text: text.replace('"runs":[', f'"runs":[{first_run(text)},'), "a run is listed twice"),
        (lambda text: text.replace('"title"', '"name"', 1), "damaged: .*unknown field `name`"),
        (lambda text: text.replace(f'"format":{FORMAT}', '"format":99,"new":[1]'), r"format 99.*update numerate"),
        (lambda text: text.replace(f'"format":{FORMAT}', '"format":3'), "by an earlier version of numerate"),
    ],
)
def test_a_damaged_study_is_refused_and_left_as_it_is(change: Any, message: str, tiny: Recipe, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    planned = folder.update(requested(*(override(tiny, [f"seed={seed}"]) for seed in range(3))))
    path = folder.path / "study.json"
    path.write_text(text := change(path.read_text()))
    for read in (
        lambda: study_status(folder),
        lambda: results_of(folder.path),
        lambda: folder.update(requested(tiny)),
    ):
        with pytest.raises(UserError, match=rf"study\.json: .*{message}") as error:
            read()
        assert "\n" not in str(error.value)
    assert path.read_text() == text
    path.unlink()
    assert folder.update(requested(tiny))[0].run == planned[0].run


def test_a_study_is_found_by_its_title_or_its_path_and_a_near_name_is_reported(tiny: Recipe, tmp_path: Path) -> None:
    StudyFolder.from_title("my study", tmp_path).update(requested(tiny))
    StudyFolder.from_title("abacus_laptop", tmp_path).update(requested(tiny))
    assert StudyFolder.find("abacus-laptop", tmp_path).title == "abacus_laptop"
    assert StudyFolder.find("my-study", tmp_path).path == tmp_path / "my-study"
    assert StudyFolder.find(f"{tmp_path}/abacus_laptop/", Path("elsewhere")).title == "abacus_laptop"
    with pytest.raises(UserError, match=r"there are: abacus_laptop, my-study.*Did you mean 'abacus_laptop'"):
        StudyFolder.find("abacus_labtop", tmp_path)
    with pytest.raises(UserError, match="`numerate run abacus_laptop` makes that of a recipe or study"):
        StudyFolder.find("abacus_laptop", tmp_path / "nothing")


def test_the_files_of_a_study_are_taken_for_no_runs(tiny: Recipe, tmp_path: Path) -> None:
    """A sweep of one recipe is a study with the recipe's title: its runs lie beside the study's files."""
    StudyFolder.from_title("rotary", tmp_path).update(requested(tiny))
    run = RunFolder.create(tmp_path, "rotary", requested(tiny)[0].run.partition("/")[2], {"recipe": to_tree(tiny)})
    assert [one.path for one in all_runs(tmp_path)] == [run.path]
    assert find_run("rotary", tmp_path).path == run.path
    found = latest_run(tmp_path)
    assert found is not None
    assert found.path == run.path


def test_neither_the_folder_nor_the_status_of_a_study_needs_torch() -> None:
    code = (
        "import sys; import numerate.runs.study_folder, numerate.runs.status, numerate.commands.status; "
        "print([name for name in ('torch', 'numpy', 'matplotlib', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""The folder of a study: the plan, the results that workers append, and reading both whatever happened to them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.config import from_tree, identity, override, to_tree
from numerate.errors import UserError
from numerate.executors.executor import MAX_DEATHS, FailureKind
from numerate.mixers.recurrent import LSTM
from numerate.records.reading import FORMAT
from numerate.runs.patch import apply_diff, tree_diff
from numerate.studies.folder import RequestedRun, StudyFolder, content_key, is_failed
from numerate.studies.status import study_status
from numerate.studies.study import Study
from numerate.tables.results import results_of
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, all_runs, find_run, latest_run

# What differs ---------------------------------------------------------------------------------------------------------

LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 0.5]) | st.sampled_from("ab")
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "a.b", ""]), inner, max_size=3)
        | st.fixed_dictionaries({"kind": st.sampled_from(["LSTM", "Attention"])}, optional={"a": inner, "b": inner})
    ),
    max_leaves=12,
)


@given(TREES, TREES)
def test_a_tree_is_put_together_again_from_another_and_what_differs(base: Any, tree: Any) -> None:
    before = json.dumps([base, tree])
    found = apply_diff(base, json.loads(json.dumps(tree_diff(base, tree))))
    assert json.dumps(found) == json.dumps(tree), "the same text, so that True stays True and 1.0 stays 1.0"
    assert json.dumps([base, tree]) == before


def test_only_what_differs_is_reported() -> None:
    base = {"kind": "A", "seed": 0, "model": {"kind": "D", "hidden_size": 8, "positions": [{"kind": "P", "base": 1}]}}
    other = {"kind": "A", "seed": 1, "model": {"kind": "D", "hidden_size": 8, "positions": [{"kind": "P", "base": 2}]}}
    assert tree_diff(base, base) == {}
    assert tree_diff(base, other) == {"seed": 1, "model.positions.0.base": 2}
    assert tree_diff(base, {**base, "model": {"kind": "E"}}) == {"model": {"kind": "E"}}
    assert tree_diff({"a": [1]}, {"a": [1, 2]}) == {"a": [1, 2]}


# The plan -------------------------------------------------------------------------------------------------------------


def requested(*recipes: Recipe) -> list[RequestedRun]:
    return [RequestedRun(f"{one.title}/{identity(one)}", content_key(one), to_tree(one)) for one in recipes]


def test_a_recipe_with_any_model_comes_back_from_the_plan(any_model: Any, tiny: Recipe, tmp_path: Path) -> None:
    recipes = [tiny, replace(tiny, model=any_model, seed=1)]
    StudyFolder(tmp_path / "study").update_plan(requested(*recipes))
    assert [planned.tree for planned in StudyFolder(tmp_path / "study").plan()] == list(map(to_tree, recipes))


def test_a_recipe_with_any_task_comes_back_from_the_plan(any_task: Any, tiny: Recipe, tmp_path: Path) -> None:
    recipes = [tiny, replace(tiny, task=any_task, seed=1)]
    StudyFolder(tmp_path / "study").update_plan(requested(*recipes))
    plan = StudyFolder(tmp_path / "study").plan()
    assert [from_tree(planned.tree, "plan", expected_class=Recipe) for planned in plan] == recipes


def test_numbers_that_json_has_no_word_for_come_back_too(tiny: Recipe, tmp_path: Path) -> None:
    endless = override(tiny, ["optimizer.max_grad_norm=inf"])
    folder = StudyFolder(tmp_path / "study")
    folder.update_plan(requested(tiny, endless))
    (tmp_path / "study/plan.jsonl").read_text().encode("ascii")
    for line in (tmp_path / "study/plan.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert from_tree(folder.plan()[1].tree, "plan", expected_class=Recipe) == endless


def test_a_recipe_is_written_once_and_each_run_as_what_differs(tiny: Recipe, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.update_plan(requested(*(override(tiny, [f"seed={seed}"]) for seed in range(5))), question="Why?")
    lines = [json.loads(line) for line in (folder.path / "plan.jsonl").read_text().splitlines()]
    assert (lines[0]["runs"], sorted(lines[0])) == (5, ["format", "runs", "sha256"])
    assert [sorted(line) for line in lines[1:]] == [
        ["base", "key", "label", "recipe", "run", "seed"],
        *[["base", "diff", "key", "label", "run", "seed"]] * 4,
    ]
    assert [line.get("diff") for line in lines[2:]] == [{"seed": seed} for seed in range(1, 5)]
    assert folder.metadata()["question"] == "Why?"


def test_a_new_plan_replaces_the_old_one_which_is_kept_and_marked(tiny: Recipe, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.update_plan(requested(tiny, override(tiny, ["seed=1"])), labels={"rotary": "R"})
    longer = override(tiny, ["training.steps=8"])
    wider = override(tiny, ["model.hidden_size=32"])
    planned = folder.update_plan(requested(longer, wider))
    assert [one.run for one in folder.plan()] == [requested(one)[0].run for one in (tiny, wider)]
    assert [(one.run, one.current) for one in folder.all_runs()[2:]] == [
        (requested(override(tiny, ["seed=1"]))[0].run, False)
    ]
    assert folder.plan()[0].key == content_key(longer) != content_key(tiny)
    assert [one.tree for one in planned] == [to_tree(longer), to_tree(wider)]
    assert folder.metadata()["labels"] == {"rotary": "R"}


def test_seeds_share_a_label_and_variants_are_distinguished_by_what_differs(tiny: Recipe, tmp_path: Path) -> None:
    runs = Study("s", "?", [tiny]).sweep(["model.hidden_size=16,32", "seeds=2"]).recipes
    recurrent = replace(tiny, title="lstm", model=replace(tiny.model, mixer=LSTM(), positions=()))
    named = override(tiny, ["name=mine", "group=all", "device=cpu", "training.log_every=1", "seed=7"])
    plan = StudyFolder(tmp_path / "s").update_plan(requested(*runs, recurrent, named), labels={"rotary": "Rotary"})
    assert [planned.label for planned in plan] == [
        *["Rotary (model.hidden_size=16)"] * 2,
        *["Rotary (model.hidden_size=32)"] * 2,
        "lstm",
        "Rotary (model.hidden_size=16)",
    ]
    assert [planned.display_name for planned in plan][:2] == [
        "Rotary (model.hidden_size=16)",
        "Rotary (model.hidden_size=16) seed 1",
    ]
    alone = StudyFolder(tmp_path / "t").update_plan(requested(override(tiny, ["name=mine"])))
    assert alone[0].label == "mine"
    both = [override(one, ["name=mine"]) for one in (tiny, recurrent)]
    plan = StudyFolder(tmp_path / "u").update_plan(requested(*both))
    assert [planned.label for planned in plan] == ["mine", "mine, lstm"], "recipes of one name are told apart"


def test_a_plan_of_an_older_version_is_made_anew_from_recipes_that_know_more(tiny: Recipe, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    runs = requested(*(override(tiny, [f"seed={seed}"]) for seed in range(3)))
    older = [replace(one, tree={key: value for key, value in one.tree.items() if key != "paper"}) for one in runs]
    folder.update_plan(older)
    folder.update_plan(runs[:1])
    assert [planned.tree for planned in folder.all_runs()] == [runs[0].tree, older[1].tree, older[2].tree]
    folder.update_plan(runs)
    assert [planned.diff for planned in folder.plan()] == [{}, {"seed": 1}, {"seed": 2}]


def test_two_commands_may_plan_at_the_same_time(tiny: Recipe, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            try:
                for seed in range(number * 10, number * 10 + 10):
                    StudyFolder(tmp_path / "study").update_plan(requested(override(tiny, [f"seed={seed}"])))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert sorted(planned.seed for planned in folder.all_runs()) == list(range(40))
    assert len(folder.plan()) == 1


def test_planning_without_writing_writes_nothing_and_the_same_again_leaves_the_files_as_they_are(
    tiny: Recipe, tmp_path: Path
) -> None:
    folder = StudyFolder(tmp_path / "study")
    assert (folder.plan(), folder.results(), folder.states()) == ([], {}, [])
    assert [planned.run for planned in folder.update_plan(requested(tiny), write=False)] == [requested(tiny)[0].run]
    assert list(tmp_path.iterdir()) == []
    folder.update_plan(requested(tiny), question="Why?")
    before = {path.name: path.stat().st_ino for path in folder.path.iterdir()}
    folder.update_plan(requested(tiny), question="Why?")
    assert {path.name: path.stat().st_ino for path in folder.path.iterdir()} == before


# The key --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "name=mine",
        "group=mine",
        "device=cpu",
        "title=other",
        "paper=abacus",
        "trackers=[wandb]",
        "tracking.project=sums",
        "training.minutes=5",
        "training.threads=2",
        "training.log_every=7",
        "training.checkpoint_every=7",
        "training.checkpoint_minutes=7",
        "training.keep_checkpoints=7",
        "training.parallel=ddp",
    ],
)
def test_what_changes_no_result_changes_no_key(change: str, tiny: Recipe) -> None:
    assert content_key(override(tiny, [change])) == content_key(tiny)


@pytest.mark.parametrize(
    "change",
    [
        "seed=1",
        "model.hidden_size=32",
        "training.steps=8",
        "training.evaluate_every=1",
        "training.target_accuracy=0.5",
        "evaluation.grid=1:3x1:3",
        "evaluation.examples_per_cell=5",
        "init_from=3f2a9c01b7de",
        "model.positions.0.base=500",
    ],
)
def test_what_may_change_a_result_changes_the_key(change: str, tiny: Recipe) -> None:
    assert content_key(override(tiny, [change])) != content_key(tiny)


# Results --------------------------------------------------------------------------------------------------------------


def line(run: str, status: str, at: float, **more: Any) -> dict[str, Any]:
    return {"run": run, "key": "k", "status": status, "timing": {"ended": at}, **more}


def test_done_is_worth_more_than_failed_and_later_more_than_earlier(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.add_results(
        "b",
        [
            line("x", "failed", 3, failure="operational error"),
            line("y", "done", 1),
            line("z", "failed", 2, failure="a"),
        ],
    )
    folder.add_results("a", [line("x", "done", 1), line("y", "failed", 5), line("z", "failed", 4, failure="b")])
    folder.add_results("c", [line("z", "failed", 3, failure="c"), line("y", "done", 2, step=7)])
    found = StudyFolder(tmp_path).results()
    assert found["x", "k"]["status"] == "done"
    assert found["y", "k"]["step"] == 7
    assert found["z", "k"]["failure"] == "b"


def test_what_was_read_is_not_read_again_and_a_line_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.add_results("a", [line("x", "done", 1)])
    assert set(folder.results()) == {("x", "k")}
    file = tmp_path / "results" / "a.jsonl"
    text = json.dumps(line("y", "done", 1))
    with open(file, "a") as open_file:
        open_file.write(text[:20])
    assert set(folder.results()) == {("x", "k")}
    with open(file, "a") as open_file:
        open_file.write(text[20:])
    assert set(folder.results()) == {("x", "k"), ("y", "k")}
    with open(file, "a") as open_file:
        open_file.write("\n" + json.dumps(line("z", "done", 1)) + "\n")
    assert set(folder.results()) == {("x", "k"), ("y", "k"), ("z", "k")}


def test_a_torn_last_line_of_a_killed_worker_is_cut_before_the_next_is_written(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.add_results("a", [line("x", "done", 1)])
    with open(tmp_path / "results" / "a.jsonl", "a") as file:
        file.write('{"run": "y", "ke')
    reader = StudyFolder(tmp_path)
    assert set(reader.results()) == {("x", "k")}
    folder.add_results("a", [line("z", "done", 1)])
    assert set(reader.results()) == {("x", "k"), ("z", "k")}


def test_a_run_is_done_only_while_its_folder_is_there(tiny: Recipe, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    (planned,) = folder.update_plan(requested(tiny))
    folder.add_results("a", [{"run": planned.run, "key": planned.key, "status": "done", "timing": {}}])
    assert folder.done_results([planned]) == {}
    (tmp_path / planned.run).mkdir(parents=True)
    assert list(folder.done_results([planned])) == [planned.run]
    (other,) = folder.update_plan(requested(override(tiny, ["training.steps=8"])))
    assert folder.done_results([other]) == {}, "the same folder, but another budget"


# Whatever is there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[1:], "its first line must give the number of runs"),
        (lambda lines: lines[:-1], "it has 2 of 3 runs"),
        (lambda lines: [*lines[:2], lines[3], lines[2]], "its checksum differs"),
        (lambda lines: [*lines[:3], lines[3].replace('"seed": 2', '"seed": 7')], "its checksum differs"),
        (lambda lines: [*lines[:2], lines[2][:40], lines[3]], "no JSON object"),
        (
            lambda lines: [*lines[:2], lines[2].replace('"seed": 1', '"seed": "1"'), lines[3]],
            "`seed` must be an integer",
        ),
        (
            lambda lines: [*lines[:2], lines[2].replace('"run": "', '"run": "../'), lines[3]],
            "a path below the runs folder",
        ),
    ],
)
def test_a_damaged_plan_is_refused_and_left_as_it_is(change: Any, message: str, tiny: Recipe, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.update_plan(requested(*(override(tiny, [f"seed={seed}"]) for seed in range(3))))
    plan = folder.path / "plan.jsonl"
    plan.write_text("".join(f"{line}\n" for line in change(plan.read_text().splitlines())))
    before = plan.read_bytes()
    for action in (
        folder.plan,
        lambda: study_status(folder),
        lambda: results_of(folder.path),
        lambda: folder.update_plan(requested(tiny)),
    ):
        with pytest.raises(UserError, match=rf"plan\.jsonl.*damaged: .*{message}.*numerate run") as error:
            action()
        assert "\n" not in str(error.value)
    assert plan.read_bytes() == before


def test_what_would_fail_again_is_failed_and_what_may_simply_go_on_is_not() -> None:
    failed = {
        kind
        for kind in get_args(FailureKind)
        if is_failed({"status": "failed", "failure": kind}) and not is_failed({"status": "done", "failure": kind})
    }
    assert failed == {"user error", "operational error", "error", "out of memory", "timeout"}
    assert is_failed({"status": "failed", "failure": "died", "worker_deaths": MAX_DEATHS})


def test_a_damaged_line_of_results_is_refused_by_its_number_and_of_a_damaged_state_is_warned(tmp_path: Path) -> None:
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "a.json").write_text('{"worker": "a", "ho')
    (tmp_path / "states" / ".b.json").write_text("")
    with pytest.warns(UserWarning, match=r"states/a\.json: damaged: no JSON object"):
        assert StudyFolder(tmp_path).states() == []
    folder = StudyFolder(tmp_path)
    folder.add_results("a", [line("x", "done", 1)])
    assert set(folder.results()) == {("x", "k")}
    with open(tmp_path / "results" / "a.jsonl", "a") as file:
        file.write("nonsense\n")
    for reader in (folder, StudyFolder(tmp_path)):
        with pytest.raises(
            UserError, match=r"results/a\.jsonl, line 2: damaged: no JSON object\. The runs are unharmed"
        ):
            reader.results()


def test_a_study_is_found_by_its_title_or_its_path_and_a_near_name_is_reported(tiny: Recipe, tmp_path: Path) -> None:
    StudyFolder.from_title("my study", tmp_path).update_plan(requested(tiny))
    StudyFolder.from_title("abacus_laptop", tmp_path).update_plan(requested(tiny))
    assert StudyFolder.find("abacus-laptop", tmp_path).title == "abacus_laptop"
    assert StudyFolder.find("my-study", tmp_path).path == tmp_path / "my-study"
    assert StudyFolder.find(f"{tmp_path}/abacus_laptop/", Path("elsewhere")).title == "abacus_laptop"
    with pytest.raises(UserError, match=r"there are: abacus_laptop, my-study.*Did you mean 'abacus_laptop'"):
        StudyFolder.find("abacus_labtop", tmp_path)
    with pytest.raises(UserError, match="numerate run quickstart"):
        StudyFolder.find("abacus_laptop", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(f"format: {FORMAT}", "format: 99"), r"format 99.*update numerate"),
        (lambda text: text.replace(f"format: {FORMAT}", "format: 3"), r"was written by numerate 0\.2 or earlier"),
        (lambda text: text.replace("title: study", "title: other"), "damaged: it was modified.*Remove the file"),
        (lambda text: text[: text.index("checksum")], "damaged: it is truncated"),
        (lambda text: "{" + text, "damaged: cannot be read as YAML"),
    ],
)
def test_a_study_whose_head_is_damaged_or_of_a_later_format_is_refused(
    change: Callable[[str], str], message: str, tiny: Recipe, tmp_path: Path
) -> None:
    folder = StudyFolder(tmp_path / "study")
    planned = folder.update_plan(requested(tiny))
    path = folder.path / "study.yaml"
    path.write_text(change(path.read_text()))
    for read in (folder.metadata, lambda: folder.update_plan(requested(tiny))):
        with pytest.raises(UserError, match=message):
            read()
    path.unlink()
    assert folder.update_plan(requested(tiny)) == planned
    assert folder.metadata()["title"] == "study"


def test_the_files_of_a_study_are_taken_for_no_runs(tiny: Recipe, tmp_path: Path) -> None:
    """A sweep of one recipe is a study with the recipe's title: its runs lie beside the study's files."""
    folder = StudyFolder.from_title("rotary", tmp_path)
    folder.update_plan(requested(tiny))
    folder.add_results("a", [line("x", "done", 1)])
    (folder.path / "states").mkdir()
    run = RunFolder.create(tmp_path, "rotary", requested(tiny)[0].run.partition("/")[2], {"recipe": to_tree(tiny)})
    assert [one.path for one in all_runs(tmp_path)] == [run.path]
    assert find_run("rotary", tmp_path).path == run.path
    found = latest_run(tmp_path)
    assert found is not None
    assert found.path == run.path


def test_neither_the_folder_nor_the_status_of_a_study_needs_torch() -> None:
    code = (
        "import sys; import numerate.studies.folder, numerate.studies.status, numerate.commands.status; "
        "print([name for name in ('torch', 'numpy', 'matplotlib', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_moment_of_being_killed_leaves_a_plan_that_cannot_be_read(
    killed_at_every_moment: Callable[..., int], tiny: Recipe, tmp_path: Path
) -> None:
    second = override(tiny, ["seed=1"])

    def prepare(place: Path) -> None:
        StudyFolder(place / "study").update_plan(requested(tiny), question="Why?")

    def check(place: Path, whole: bool) -> None:
        folder = StudyFolder(place / "study")
        found = [planned.seed for planned in folder.plan()]
        assert found == [1] if whole else found in ([0], [1])
        assert folder.metadata()["question"] in ("Why?", "And then?")
        folder.update_plan(requested(second))
        assert [planned.seed for planned in folder.all_runs()] == [1, 0]

    def work(place: Path) -> Any:
        return StudyFolder(place / "study").update_plan(requested(second), question="And then?")

    assert killed_at_every_moment(tmp_path, prepare, work, check) > 5

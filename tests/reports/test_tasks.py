"""Promises of reports on several tasks: each is shown by itself, and nothing is compared between them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from numerate.config import to_tree
from numerate.reports.compare import comparison_text, write_comparison
from numerate.reports.groups import Group, group_runs
from numerate.reports.matplotlib_writer import draw_figure
from numerate.reports.page import comparison_page
from numerate.reports.pairs import compare_pairs
from numerate.reports.plots import compare_figure
from numerate.reports.records import read_runs
from numerate.reports.tasks import group_by_task
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counting import Counting
from numerate.tasks.mixture import Mixture
from numerate.tasks.number_line import NumberLine
from numerate.tasks.selective import SelectiveCounting
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import Task
from run_records import cell_record, write_run

MODULAR, SHIFTED = Counting(modulus=10), Counting(count=50, start_number="before")
ITEMS = SelectiveCounting(num_symbols=10)

Make = Callable[..., Group]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("LSTM", task, shares of each seed) -> their group: counts 1 to 4 trained, 5 and 6 evaluated too."""

    def made(label: str, task: Task | Mapping[str, Any] | None, shares: Sequence[float] = (1.0,), **more: Any) -> Group:
        tree = to_tree(task) if isinstance(task, Task) else task
        axes, folders = task.axes() if isinstance(task, Task) else ("count",), []
        for seed, share in enumerate(shares):
            folder = tmp_path / f"{len(list(tmp_path.iterdir()))}" / f"{seed}"
            recipe = {"task": tree, "model": {"kind": label}, "seed": seed, "title": label}
            cells = []
            for n in range(1, 7):
                region = "in_distribution" if n <= 4 else "ood_validation" if n == 5 else "ood_test"
                correct = 1000 if n <= 4 else round(1000 * share)
                cells.append(cell_record(dict.fromkeys(axes, n), correct, 1000, region, seed=seed, **more))
            folders.append(write_run(folder, recipe, cells))
        (group,) = group_runs(read_runs(folders), {folders[0].parent.name: label})
        return group

    return made


@pytest.fixture
def laptop(make: Make) -> list[Group]:
    """Two schemes of one task, three of another, with significant differences in each."""
    low, high = [0.1 + seed / 100 for seed in range(6)], [0.8 + seed / 100 for seed in range(6)]
    return [
        make("modulo 10: RNN", MODULAR, low),
        make("shifted: RNN", SHIFTED, low),
        make("modulo 10: LSTM", MODULAR, high),
        make("shifted: LSTM", SHIFTED, high),
        make("shifted: NoPE", SHIFTED, low[::-1]),
    ]


def folders_of(groups: Sequence[Group]) -> list[Path]:
    return [run.folder for group in groups for run in group.runs]


def test_pairs_are_tested_and_corrected_within_their_task_alone(laptop: list[Group]) -> None:
    page, text = comparison_page(laptop), comparison_text(laptop)
    for task in (laptop[0::2][:2], [laptop[1], *laptop[3:]]):
        for pair in compare_pairs(task):
            assert f">{pair.label}</td>" in page
            assert pair.label in text
        alone = comparison_text(task)
        assert alone in text, "the tables, tests and finding of a task are those it has without the others"
    assert "modulo 10: RNN / shifted" not in page + text
    assert page.count("Significant differences") == 2
    assert "corrected for the pairs of that task alone" in page


def test_a_page_of_several_tasks_says_what_was_found_of_each_and_then_shows_each(laptop: list[Group]) -> None:
    page = comparison_page(laptop, "Which of them count on?")
    finding_at, modular, shifted = (page.index(f">{name}</h") for name in ("modulo 10", "modulo 10", "shifted"))
    assert page.count('<p class="summary">') == 2
    shown = [page.index(f'class="part">{name}</h1>') for name in ("modulo 10", "shifted")]
    assert finding_at == modular < shifted < shown[0] < shown[1]
    part = page[shown[0] : shown[1]]
    assert "modulo 10: LSTM" in part
    assert "shifted: LSTM" not in part
    assert page.count("<h2>To run it again</h2>") == page.count("<h1>") == 1
    assert "modulus=10" in page[: shown[0]], "what each task is stands before them"


def test_a_comparison_of_one_task_has_no_parts(laptop: list[Group], tmp_path: Path) -> None:
    page = write_comparison(folders_of(laptop[0::2][:2]), tmp_path / "page.html").read_text()
    assert page.count('<p class="summary">') == 1
    assert 'class="part"' not in page
    assert "===" not in comparison_text(laptop[0::2][:2])


def test_the_figure_has_a_panel_for_each_task_with_its_own_lines(laptop: list[Group], tmp_path: Path) -> None:
    panels = [axes for axes in draw_figure(compare_figure(laptop)).axes if axes.get_lines()]
    assert [axes.get_title() for axes in panels] == ["modulo 10", "shifted"]
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in panels]
    assert [len(legend) for legend in legends] == [2, 3]
    assert all(label.startswith("shifted") for label in legends[1])
    assert write_comparison(folders_of(laptop), tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MODULAR, Counting(modulus=10, count=30, held_out_starts=2)),
        (MODULAR, Counting(modulus=10, prefix="<bos>", helper="blank")),
        (SHIFTED, Mixture((SHIFTED, NumberLine()), auxiliary=True, weights=(9, 1))),
        (Arithmetic(), {name: value for name, value in to_tree(Arithmetic(digits=3)).items() if name != "no_carry"}),
        (Sorting(items=5), Sorting(items=9)),
        (MODULAR, None),
    ],
)
def test_what_is_trained_on_and_how_it_is_written_is_no_other_task(make: Make, one: Any, other: Any) -> None:
    groups = [make("a", one), make("b", other)]
    (task,) = group_by_task(groups)
    assert list(task.groups) == groups


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        (MODULAR, SHIFTED, ["Counting(start_number=none, modulus=10)", "Counting(start_number=before)"]),
        (
            ITEMS,
            SelectiveCounting(num_symbols=5),
            ["SelectiveCounting(num_symbols=10)", "SelectiveCounting(num_symbols=5)"],
        ),
        (Arithmetic("+"), Arithmetic("-"), ["Arithmetic(operator=+)", "Arithmetic(operator=-)"]),
        (MODULAR, Arithmetic(), ["Counting", "Arithmetic"]),
        (Mixture((Arithmetic("+"), Arithmetic("-"))), Arithmetic("+"), ["Mixture", "Arithmetic"]),
    ],
)
def test_a_task_is_named_by_what_its_groups_share(make: Make, one: Task, other: Task, names: list[str]) -> None:
    groups = [make("a", one), make("b", other), make("c", one), make("d", other)]
    found = group_by_task(groups)
    assert [task.name for task in found] == names
    assert [list(task.groups) for task in found] == [groups[::2], groups[1::2]]
    assert [task.name for task in group_by_task(groups[:2])] == ["a", "b"], "single groups lend their labels"


def test_an_evaluation_may_select_one_of_several_tasks(make: Make) -> None:
    both = Mixture((Arithmetic("+"), Arithmetic("-")))
    groups = [
        make("plus", both, settings={"task.task_index": 0}),
        make("minus", both, settings={"task.task_index": 1}),
        make("alone", Arithmetic("-")),
    ]
    assert [task.groups for task in group_by_task(groups)] == [(groups[0],), (groups[1], groups[2])]

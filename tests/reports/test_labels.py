"""Promises of reports on labels: the curve by count, the floor beside every number beyond training, and no claim where
a model looks ahead."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from numerate.config import to_tree
from numerate.errors import Mistake
from numerate.evaluation.labels import METRICS, Labels
from numerate.evaluation.statistics import wilson
from numerate.mixers.alternating import Alternating
from numerate.mixers.attention import Attention
from numerate.mixers.recurrent import LSTM
from numerate.models.decoder import Decoder
from numerate.models.trunk import Loop
from numerate.positions.added import Learned
from numerate.positions.bias import ALiBi
from numerate.positions.rotary import Rotary
from numerate.reports.claims import same_everywhere
from numerate.reports.compare import comparison_text, write_comparison
from numerate.reports.counts import by_count, counted
from numerate.reports.finding import finding
from numerate.reports.groups import Group, by_metric, grouped
from numerate.reports.page import run_page
from numerate.reports.plots import write_plot
from numerate.reports.records import read, read_each
from numerate.reports.success import success_rows
from numerate.tasks.counting import Counting
from numerate.tokens.words import Words

TRAINED, LONGEST = 5, 12
RECIPE: dict[str, Any] = {
    "kind": "Recipe",
    "task": to_tree(Counting(count=TRAINED, modulus=3)),
    "tokenizer": to_tree(Words()),
    "model": to_tree(Decoder(mixer=LSTM())),
}

Make = Callable[..., Path]


def cell(count: int, knows: int, **more: Any) -> dict[str, Any]:
    """Two rows of `count` symbols, of which the first is counted right up to `knows` and the second to one less."""
    places = np.arange(count)
    right = np.stack([places < knows, places < knows - 1])
    answers = np.broadcast_to((places % 3 + 1).astype(str), right.shape)
    labels = Labels.of(right, np.ones_like(right), answers, TRAINED)
    low, high = wilson(labels.exact, 2)
    region = "trained" if count <= TRAINED else "band" if count <= TRAINED + 1 else "beyond"
    record = {"cell": {"count": count}, "correct": labels.exact, "count": 2, "low": low, "high": high, "seed": 0}
    record |= {"checkpoint": "final", "step": 100, "placement": 0, "region": region, "seen": region == "trained"}
    return record | {"method": "one pass", "first_wrong": [], "labels": labels.record()} | more


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("lstm", knows=12, seed=0, placements=..., recipe=...) -> the folder of a run that counts so far."""

    def run(name: str, knows: int | Sequence[int], seed: int = 0, recipe: Any = RECIPE, **more: Any) -> Path:
        folder = tmp_path / "runs" / name / f"{name}{seed}"
        folder.mkdir(parents=True)
        head = {"recipe": recipe | {"seed": seed, "title": name}, "id": folder.name}
        (folder / "recipe.yaml").write_text(yaml.safe_dump(head))
        each = [knows] if isinstance(knows, int) else knows
        cells = [
            cell(count, far, placement=placement, seed=seed, **more)
            for placement, far in enumerate(each)
            for count in range(1, LONGEST + 1)
        ]
        (folder / "evaluation.jsonl").write_text("".join(json.dumps(one) + "\n" for one in cells))
        metrics = [
            {"step": step, "split": "beyond-development", "exact": 0.0, "accuracy": step / 200} for step in (50, 100)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in metrics))
        return folder

    return run


def group_of(*folders: Path) -> Group:
    (group,) = grouped(read_each(folders))
    return group


def test_labels_are_measured_on_unseen_counts_unless_another_metric_is_chosen(make: Make) -> None:
    """Known up to 8 and 7: of the labels 6 to 12 of 7 lengths in two rows, those up to these are right."""
    group = group_of(make("lstm", 8))
    assert group.measure == "unseen"
    (regions,) = group.regions
    right = sum(min(8, n) - 5 + min(7, n) - 5 for n in range(6, 13))
    asked = sum(2 * (n - 5) for n in range(6, 13))
    assert regions["untrained"].share.value == pytest.approx(right / asked)
    assert regions["trained"].share.value == 1.0
    assert group.diagonal[12].value == pytest.approx((3 + 2) / 14)
    for metric in METRICS:
        chosen = replace(group, metric=metric)
        share = regions["untrained"].labels.share(metric) if regions["untrained"].labels else None
        assert chosen.regions[0]["untrained"].share.value == pytest.approx(share)
    with pytest.raises(Mistake, match="there is no 'fist'; there are: exact, unseen"):
        by_metric([group], "fist")  # type: ignore[arg-type]


def test_runs_without_labels_have_exact_match_alone(make: Make, make_run: Make) -> None:
    group = group_of(make_run("abacus", lambda n: 1.0))
    assert (group.measure, group.floor, group.labels) == ("exact", None, [])
    assert by_count([group]) == ""
    with pytest.raises(Mistake, match="abacus has no labels of which accuracy on unseen counts is known"):
        by_metric([group], "unseen")


def test_the_floor_stands_beside_every_number_beyond_training(make: Make) -> None:
    """Of the labels beyond 5 those of the 7 lengths are 3 (the 6th) to 3 (the 12th), of which 1 is most common."""
    folder = make("lstm", 8)
    group = group_of(folder)
    wanted = [(t - 1) % 3 + 1 for n in range(6, 13) for t in range(6, n + 1)]
    floor = max(wanted.count(answer) for answer in (1, 2, 3)) / len(wanted)
    assert group.floor == pytest.approx(floor)
    page = run_page(read(folder))
    assert f"floor {100 * floor:.1f}" in page
    assert f", floor {100 * floor:.1f} %" in finding([group]) or f"(floor {100 * floor:.1f} %)" in finding([group])
    facts = page[page.index('class="facts"') :].split("</dl>")[0]
    assert facts.count("floor") == 3, "next lengths, further beyond and all untrained; not what was trained"
    header, rows = success_rows([group])
    assert rows[-1][0] == "floor, %"
    assert [bool(text) for text in rows[-1][3:]] == [int(name.removeprefix("n=")) > TRAINED for name in header[3:]]


def test_the_curve_has_a_place_for_each_count_and_the_spread_of_seeds(make: Make) -> None:
    folders = [make("lstm", knows, seed) for seed, knows in enumerate((8, 12, 10))]
    found = counted(group_of(*folders))
    assert found is not None
    assert list(found.t) == list(range(1, LONGEST + 1))
    ninth = [0.0, 1.0, 1.0]
    assert (found.value[8], found.low[8], found.high[8]) == (1.0, min(ninth), max(ninth))
    page = by_count([group_of(*folders)])
    assert page.count('class="floor"') == 2, "the line and its key"
    assert "what memorising gives" in page
    assert ">trained</text>" in page


def test_means_over_placements_are_taken_and_said(make: Make) -> None:
    folder = make("sine", [12, 5])
    group = group_of(folder)
    alone = [group_of(make(f"alone{knows}", knows)).diagonal[12].value for knows in (12, 5)]
    assert group.diagonal[12].value == pytest.approx(sum(alone) / 2)
    page = run_page(read(folder))
    assert "means over 2 fixed placements" in page
    assert ">mean of 2</td>" in page
    for metric in METRICS:
        assert replace(group, metric=metric).diagonal[12].count == 2, "two rows, however often they are asked"


def test_a_model_that_looks_ahead_has_no_claim_on_any_page(make: Make, tmp_path: Path) -> None:
    why = "its positions see the length of the row"
    zoomed = [make("zoom", 12, seed, looks_ahead=why) for seed in (0, 1)]
    plain = [make("lstm", 12, seed) for seed in (0, 1)]
    assert finding([group_of(*zoomed)]) == f"no claim of zoom: {why}."
    assert f"no claim of zoom: {why}" in run_page(read(zoomed[0]))
    text = comparison_text(grouped(read_each([*plain, *zoomed])))
    assert f"no claim of zoom: {why}" in text
    assert "lstm / zoom" not in text, "no test of a pair"
    _, rows = success_rows(grouped(read_each([*plain, *zoomed])))
    found = {row[0]: row[3] for row in rows}
    assert found["zoom"] == f"no claim: {why}"
    assert found["lstm"].startswith("2/2")
    path = write_comparison([*plain, *zoomed], tmp_path / "page.html")
    assert f"<strong>no claim of zoom: {why}</strong>" in path.read_text()


def test_a_comparison_has_the_curve_the_floor_and_all_measures(make: Make, tmp_path: Path) -> None:
    folders = [make("lstm", 12, seed) for seed in (0, 1)] + [make("nope", 5, seed) for seed in (0, 1)]
    page = write_comparison(folders, tmp_path / "page.html").read_text()
    for words in ("Accuracy per count", "correct prefix, %", "floor", "accuracy on unseen counts"):
        assert words in page
    assert write_comparison(folders, tmp_path / "again.html").read_text() == page
    last = write_comparison(folders, tmp_path / "last.html", metric="last").read_text()
    assert "last label right" in last


def test_a_figure_of_counts_is_drawn_twice_the_same_and_refused_without_labels(
    make: Make, make_run: Make, tmp_path: Path
) -> None:
    folders = [make("lstm", 8, seed) for seed in (0, 1)]
    first = write_plot("counts", folders, tmp_path / "a.svg").read_bytes()
    assert b"floor" in first
    assert write_plot("counts", folders, tmp_path / "b.svg").read_bytes() == first
    with pytest.raises(Mistake, match="are no labels"):
        write_plot("counts", [make_run("abacus", lambda n: 1.0)], tmp_path / "c.svg")


ALIKE = Counting(count=TRAINED, modulus=3)
BLIND = Decoder()


@pytest.mark.parametrize(
    ("model", "task", "tokenizer", "theorem"),
    [
        (BLIND, ALIKE, Words(), True),
        (replace(BLIND, positions=(Rotary(),)), ALIKE, Words(), True),
        (replace(BLIND, positions=(ALiBi(),)), ALIKE, Words(), True),
        (replace(BLIND, trunk=Loop()), ALIKE, Words(), True),
        (replace(BLIND, mixer=Alternating(mixers=(Attention(), Attention(heads=2)))), ALIKE, Words(), True),
        (replace(BLIND, trunk=Loop(state="noise")), ALIKE, Words(), False),
        (replace(BLIND, positions=(Learned(),)), ALIKE, Words(), False),
        (replace(BLIND, positions=(Rotary(), Learned())), ALIKE, Words(), False),
        (replace(BLIND, mixer=LSTM()), ALIKE, Words(), False),
        (replace(BLIND, mixer=Alternating(mixers=(Attention(), LSTM()))), ALIKE, Words(), False),
        (BLIND, replace(ALIKE, begin="0"), Words(), False),
        (BLIND, replace(ALIKE, symbol="different"), Words(), False),
        (BLIND, replace(ALIKE, helper="pad"), Words(), False),
        (BLIND, Counting(number="before"), Words(), False),
        (BLIND, ALIKE, Words(begin=True), False),
    ],
)
def test_chance_is_a_theorem_where_every_place_has_the_same_state(
    model: Decoder, task: Counting, tokenizer: Words, theorem: bool
) -> None:
    """And it is one: the model itself, with any weights, says the same at every place of a row, or it does not."""
    import torch

    from numerate.evaluation.evaluator import Exam
    from numerate.tokens.layout import Aligned

    recipe = {"task": to_tree(task), "model": to_tree(model), "tokenizer": to_tree(tokenizer)}
    assert same_everywhere(recipe) is theorem
    exam = Exam(task, tokenizer, Aligned())
    batch = exam.batch(task.pinned(count=7).examples("test", 0, 0, 1))
    built = replace(model, width=16).build(exam.vocabulary, 0).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(std=0.3)
        said = built(batch.tokens, asked=batch.asked).logits
    assert bool((said - said[:, :1]).abs().max() < 1e-9) is theorem


def test_the_finding_says_where_chance_is_a_theorem(make: Make) -> None:
    blind = RECIPE | {"model": to_tree(BLIND)}
    assert "of nope chance is a theorem and no result of learning" in finding([group_of(make("nope", 1, recipe=blind))])
    assert "theorem" not in finding([group_of(make("lstm", 1))])

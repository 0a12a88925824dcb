"""The sentence that a study ends with says what the records show, and no more."""

import json

import pytest

from numerate.reports.groups import group_runs
from numerate.reports.records import read_run
from numerate.reports.settings import differing_settings, flatten_settings, shortest_texts
from numerate.reports.strata import strata_table
from numerate.reports.summary import group_result, headline
from run_records import cell_record

LABELS = {"addition_abacus": "Abacus", "addition_rotary": "rotary"}


def step(last, inside=1.0, outside=0.0):
    return lambda n: inside if n <= last else outside


@pytest.fixture
def say(make_run):
    def sentence(*runs):
        return headline(group_runs([read_run(make_run(kind, share, **more)) for kind, share, more in runs], LABELS))

    return sentence


BOTH = ", both numbers n digits long"
ONE_SEED = "so the variation over seeds is unknown (brackets: 95 % intervals over questions)."


def test_the_headline_says_how_far_each_reaches_with_intervals_and_that_there_is_one_seed(say):
    assert say(("abacus", step(7, outside=0.4), {}), ("rotary", step(5), {})) == (
        f"Trained on 1 to 5 digits, Abacus stays at 90 % or more up to 7+7 digits{BOTH} (100 % [96.3, 100] there); "
        f"rotary falls to 0 % [0, 3.7] at 6+6 digits. One seed each, {ONE_SEED}"
    )
    assert say(("abacus", step(8), {"seed": 1})) == (
        f"Trained on 1 to 5 digits, Abacus stays at 90 % or more up to 8+8 digits{BOTH} (100 % [96.3, 100] there). "
        f"One seed, {ONE_SEED}"
    )


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (
            step(5, inside=0.98),
            "Abacus did not converge (98 % [97.4, 98.5] in distribution, 0 % [0, 3.7] at 6+6 digits)",
        ),
        (step(5, inside=0.99), "Abacus falls to 0 % [0, 3.7] at 6+6 digits"),
        (lambda n: 0.2 if n == 7 else 1.0, "Abacus stays at 90 % or more up to 6+6 digits"),
    ],
)
def test_a_scheme_that_did_not_converge_is_reported_as_that_and_a_gap_ends_how_far_it_goes(say, share, words):
    text = say(("abacus", share, {}), ("rotary", step(5), {}))
    assert words in text
    assert "8+8" not in text


@pytest.mark.parametrize(
    ("size", "correct", "words"),
    [
        (8, 0, f"up to 7+7 digits{BOTH} (100 % [96.3, 100] there; then 0 % [0, 79.3] on 99...9 + 1 with n = 8)"),
        (6, 0, "Abacus converged (100 % [99.8, 100] in distribution) but has 0 % [0, 79.3] on 99...9 + 1 with n = 6"),
        (3, 0, "Abacus converged (100 % [99.8, 100] in distribution) but has 0 % [0, 79.3] on 99...9 + 1 with n = 3"),
        (7, 1, f"up to 8+8 digits{BOTH} (100 % [96.3, 100] there)"),
        (9, 0, f"up to 8+8 digits{BOTH} (100 % [96.3, 100] there)"),
    ],
)
def test_a_headline_never_reaches_a_length_at_which_a_stratum_fails(make_run, size, correct, words):
    folder = make_run("abacus", step(8))
    region = "in_distribution" if size <= 5 else "ood_test"
    cell = {"first_digits": size, "second_digits": 1}
    with (folder / "cells.jsonl").open("a") as file:
        file.write(json.dumps(cell_record(cell, correct, 1, region, stratum="nines_plus_one")) + "\n")
    (group,) = group_runs([read_run(folder)], LABELS)
    assert words in headline([group])
    assert len(group.points) == 64, "a stratum is in no map"
    reach = group_result(group).farthest_point
    assert correct or reach is None or reach.length < size
    assert ("90 %" in group_result(group).reach_text) == (reach is not None)
    (text,) = strata_table([group]).rows
    assert text == ["99...9 + 1", "100 [20.7, 100]" if correct else "0 [0, 79.3]"]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (range(1, 9), "Trained on 1 to 5 digits, "),
        (range(5, 9), "Evaluated in distribution on 5 digits only, "),
        (range(3, 9), "Evaluated in distribution on 3 to 5 digits only, "),
        ((1, 2, 6), "Evaluated in distribution on 1 to 2 digits only, "),
    ],
)
def test_the_sizes_of_training_are_only_told_where_they_were_evaluated(make_run, sizes, words):
    folder = make_run("abacus", step(8))
    path = folder / "cells.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if set(json.loads(line)["cell"].values()) <= set(sizes)))
    assert headline(group_runs([read_run(folder)], LABELS)).startswith(words)


def test_several_seeds_are_medians_with_extremes(say):
    text = say(
        *[("abacus", step(last), {"seed": seed}) for seed, last in enumerate((7, 5, 8))],
        *[("rotary", step(5), {"seed": seed}) for seed in range(3)],
    )
    assert f"up to 7+7 digits{BOTH} (100 % [0, 100] there)" in text
    assert text.endswith(" Medians of 3 seeds each (brackets: range over seeds).")


def test_seeds_that_did_not_converge_are_counted_and_not_held_against_the_others(say):
    failing = [("abacus", step(7, inside=inside), {"seed": seed}) for seed, inside in enumerate((0.3, 1.0, 0.3))]
    text = say(*failing, ("rotary", step(5), {}))
    assert f"up to 7+7 digits{BOTH} (100 % [96.3, 100] there, in the 1 of 3 seeds that converged)" in text
    assert "Medians of 1 to 3 seeds each (brackets: range over seeds; for one seed: 95 % intervals over" in text


def test_nothing_beyond_and_nothing_at_all_are_named(say, make_run):
    assert "Abacus converged (100 % [99.8, 100] in distribution), nothing beyond was evaluated" in say(
        ("abacus", step(5), {"high": 5}), ("rotary", step(5), {"high": 5})
    )
    unknown = say(("abacus", step(8), {"trained": False, "seed": 1}))
    assert unknown.startswith("No trained cell was evaluated, so low scores may be slow learning: Abacus stays")
    empty = make_run("abacus", step(5), seed=9)
    (empty / "cells.jsonl").unlink()
    assert headline(group_runs([read_run(empty)])) == "Nothing has been evaluated yet."
    done = make_run("rotary", step(7), seed=9)
    assert "; Abacus is not evaluated yet." in headline(group_runs([read_run(done), read_run(empty)], LABELS))


def test_of_parts_only_what_tells_them_apart_is_shown():
    rotary = {"kind": "Rotary", "ids": {"kind": "Sequential", "own": 1}, "base": 2}
    learned = {"kind": "Learned", "ids": {"kind": "my.py:Own", "source": "0f", "own": 1}, "size": 3}
    other = {**learned, "ids": {"kind": "Digits", "own": 1}}
    assert shortest_texts([[rotary, learned], [rotary]]) == ["[Rotary, Learned]", "[Rotary]"]
    assert shortest_texts([rotary, learned, other]) == ["Rotary", "Learned(ids=Own)", "Learned(ids=Digits)"]
    assert shortest_texts([learned, {**other, "size": 4}])[1] == "Learned(ids=Digits, size=4)"
    assert shortest_texts([rotary, {**rotary, "base": 5}, None, 8]) == ["Rotary(base=2)", "Rotary(base=5)", "None", "8"]
    assert shortest_texts([[], []]) == ["[]", "[]"]


def test_differing_settings_are_found_leaf_by_leaf():
    one = {"kind": "R", "seed": 1, "model": {"kind": "D", "hidden_size": 64, "parts": [{"kind": "A", "x": 1}]}}
    two = {"kind": "R", "seed": 2, "model": {"kind": "D", "hidden_size": 128, "parts": [{"kind": "A", "x": 2}]}}
    assert differing_settings([one, two]) == {"model.hidden_size": [64, 128], "model.parts.0.x": [1, 2]}
    assert flatten_settings(one) == {
        "": "R", "seed": "1", "model": "D", "model.hidden_size": "64", "model.parts.0": "A", "model.parts.0.x": "1",
    }  # fmt: skip

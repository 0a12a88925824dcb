"""The sentence that a study ends with says what the records show, and no more."""

import json

import pytest

from numerate.reports.groups import differing_settings, flatten_settings, group_runs
from numerate.reports.records import read_run
from numerate.reports.summary import summary_sentence

LABELS = {"addition_abacus": "Abacus", "addition_rotary": "rotary"}


def step(last, inside=1.0, outside=0.0):
    return lambda n: inside if n <= last else outside


@pytest.fixture
def say(make_run):
    def sentence(*runs):
        return summary_sentence(
            group_runs([read_run(make_run(kind, share, **more)) for kind, share, more in runs], LABELS)
        )

    return sentence


def test_the_contrast_of_the_quickstart_has_intervals_and_names_one_seed(say):
    text = say(("abacus", step(7, outside=0.4), {}), ("rotary", step(5), {}))
    assert text == (
        "Both converged in distribution, 1 to 5 digits (Abacus 100 % [99.8, 100], rotary 100 % [99.8, 100]), "
        "but only Abacus goes beyond: it stays at 90 % or more up to 7+7 digits (100 % [96.3, 100] there), "
        "while rotary falls to 0 % [0, 3.7] at 6+6 digits; one seed each, so the variation over seeds is unknown "
        "(brackets: 95 % intervals over questions, 100 per cell)."
    )


def test_it_does_not_solve_what_the_mean_does_not_show(say):
    text = say(("abacus", step(5, inside=0.98), {}), ("rotary", step(5), {}))
    assert text.startswith("Only rotary converged in distribution")
    assert "converged means a mean of at least 99 %" in text
    assert (
        "Abacus has 0 % [0, 3.7] at 6+6 digits, which says little about generalization, as it did not converge" in text
    )


def test_the_threshold_itself_solves(say):
    assert say(("abacus", step(5, inside=0.99), {}), ("rotary", step(5), {})).startswith("Both converged")


def test_neither_solving_comes_first(say):
    text = say(("abacus", step(5, inside=0.5), {}), ("rotary", step(5, inside=0.2), {}))
    assert text.startswith("Neither converged in distribution, 1 to 5 digits (Abacus 50 %")
    assert "neither goes beyond at 90 % or more" in text
    assert text.count("says little") == 2


def test_both_going_beyond_is_no_contrast(say):
    text = say(("abacus", step(8), {}), ("rotary", step(6), {}))
    assert "both go beyond: Abacus stays at 90 % or more up to 8+8 digits, the end of the grid" in text
    assert "rotary stays at 90 % or more up to 6+6 digits (" in text
    assert " but " not in text
    assert "only" not in text


def test_neither_going_beyond_is_no_contrast(say):
    text = say(("abacus", step(5, outside=0.5), {}), ("rotary", step(5), {}))
    assert "neither goes beyond at 90 % or more: Abacus falls to 50 % [40.4, 59.6] at 6+6 digits" in text
    assert " but " not in text


def test_a_gap_on_the_way_ends_how_far_it_goes(say):
    text = say(("abacus", lambda n: 0.2 if n == 7 else 1.0, {}), ("rotary", step(5), {}))
    assert "up to 6+6 digits" in text
    assert "8+8" not in text


def test_a_contrast_that_may_be_chance_is_called_so(say):
    close = say(("abacus", step(5, outside=0.91), {}), ("rotary", step(5, outside=0.89), {}))
    assert "only Abacus goes beyond" in close
    assert "a difference that is not significant" in close
    clear = say(("abacus", step(5, outside=0.99), {"seed": 1}), ("rotary", step(5, outside=0.6), {"seed": 1}))
    assert "significant" not in clear


def test_several_seeds_are_medians_with_extremes_and_each_seeds_reach(say):
    text = say(
        *[("abacus", step(last), {"seed": seed}) for seed, last in enumerate((7, 5, 8))],
        *[("rotary", step(5), {"seed": seed}) for seed in range(3)],
    )
    assert "up to 7+7 digits (100 % [0, 100] there; by seed up to 7, none and 8)" in text
    assert text.endswith("medians of 3 seeds each (brackets: range over seeds).")
    assert "one seed" not in text


def test_a_seed_that_fails_to_learn_is_counted(say):
    text = say(
        *[("abacus", step(7), {"seed": seed}) for seed in range(3)],
        *[("rotary", step(5, inside=inside), {"seed": seed}) for seed, inside in enumerate((1.0, 0.3, 1.0))],
    )
    assert text.startswith("Only Abacus converged")
    assert "rotary 100 % [30, 100], 2 of 3 seeds converged" in text
    assert "in the 2 of 3 seeds that converged" in text


def test_a_seed_that_fails_to_learn_is_not_held_against_how_far_the_others_go(say):
    failing = [("abacus", step(7, inside=inside), {"seed": seed}) for seed, inside in enumerate((0.3, 1.0, 0.3))]
    text = say(*failing, ("rotary", step(5), {}))
    assert "up to 7+7 digits (100 % [96.3, 100] there, in the 1 of 3 seeds that converged" in text


def test_unequal_numbers_of_seeds_are_named(say):
    text = say(("abacus", step(7), {}), ("abacus", step(7), {"seed": 1}), ("rotary", step(5), {}))
    assert "seeds: Abacus 2, rotary 1 (" in text


def test_one_run_alone_is_spoken_of_alone(say):
    assert say(("abacus", step(7), {})).startswith("Abacus converged in distribution, 1 to 5 digits (100 % ")
    assert "and generalizes: it stays" in say(("abacus", step(7), {"seed": 1}))
    assert "and does not go beyond: it falls to 0 %" in say(("abacus", step(5), {"seed": 2}))


def test_a_name_at_the_start_keeps_its_small_letter(say):
    assert say(("rotary", step(5), {})).startswith("rotary converged")


def test_a_weak_cell_under_a_high_mean_is_named(make_run):
    folder = make_run("abacus", step(5), count=1000)
    text = (folder / "evaluation.jsonl").read_text().splitlines()
    weak = '"first_digits": 5, "second_digits": 5}, "correct": '
    lines = [
        json.dumps(json.loads(line) | {"correct": 850, "low": 0.83, "high": 0.87}) if weak in line else line
        for line in text
    ]
    (folder / "evaluation.jsonl").write_text("\n".join(lines) + "\n")
    assert "converged in distribution" in summary_sentence(group_runs([read_run(folder)]))
    assert "weakest 5+5 digits: 85 %" in summary_sentence(group_runs([read_run(folder)]))


def test_nothing_beyond_and_nothing_at_all_are_named(say, make_run):
    assert "and nothing beyond it was evaluated" in say(
        ("abacus", step(5), {"high": 5}), ("rotary", step(5), {"high": 5})
    )
    unknown = say(("abacus", step(8), {"trained": False, "seed": 1}))
    assert unknown.startswith("No trained cell was evaluated, so low scores may be due to slow learning")
    assert "Abacus generalizes: it stays" in unknown
    empty = make_run("abacus", step(5), seed=9)
    (empty / "evaluation.jsonl").unlink()
    assert summary_sentence(group_runs([read_run(empty)])) == "Nothing has been evaluated yet."


def test_a_run_that_was_not_evaluated_is_named_in_the_sentence_about_the_others(make_run):
    done, missing = make_run("abacus", step(7)), make_run("rotary", step(5))
    (missing / "evaluation.jsonl").unlink()
    text = summary_sentence(group_runs([read_run(done), read_run(missing)], LABELS))
    assert text.endswith("not evaluated yet: rotary.")


def test_runs_that_differ_in_the_seed_alone_are_one_group(make_run):
    runs = [read_run(make_run(kind, step(5), seed=seed)) for seed in (1, 0) for kind in ("abacus", "rotary")]
    assert [(group.label, group.seeds) for group in group_runs(runs)] == [
        ("addition_abacus", [0, 1]),
        ("addition_rotary", [0, 1]),
    ]


def test_groups_of_one_name_are_labelled_by_what_differs(make_run):
    runs = [read_run(make_run(kind, step(5), name="mine")) for kind in ("abacus", "rotary")]
    first, second = (group.label for group in group_runs(runs))
    assert first == "mine (model.positions.0=Learned(position_ids=DigitIndex(max_offset=10)))"
    assert second == "mine (model.positions.0=Rotary(base=10000.0))"


def test_differing_settings_are_found_leaf_by_leaf():
    one = {"kind": "R", "seed": 1, "model": {"kind": "D", "hidden_size": 64, "parts": [{"kind": "A", "x": 1}]}}
    two = {"kind": "R", "seed": 2, "model": {"kind": "D", "hidden_size": 128, "parts": [{"kind": "A", "x": 2}]}}
    assert differing_settings([one, two]) == {"model.hidden_size": ("64", "128"), "model.parts.0.x": ("1", "2")}
    assert flatten_settings(one) == {
        "": "R", "seed": "1", "model": "D", "model.hidden_size": "64", "model.parts.0": "A", "model.parts.0.x": "1",
    }  # fmt: skip

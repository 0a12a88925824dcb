"""Promises of summaries: shares weigh cells equally, seeds are medians, only shared cells are compared."""

from typing import Any

import numpy as np
import pytest
from pandas import DataFrame

import numerate
from numerate.errors import UserError
from numerate.evaluation.labels import LabelCounts
from numerate.evaluation.likelihoods import Likelihoods
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.statistics import holm, interquartile_mean, permutation_test, region_mean, wilson_interval
from numerate.results.headline import headline, reach
from numerate.results.rows import cells
from numerate.results.summary import converged, diagonal, differences, reported, scores, shared_cells, summary
from results_records import done, recipe, sums
from run_records import Studies, cell_record


def frame_of(study: Studies, **variants: list[list[dict[str, Any]]]) -> DataFrame:
    """The cells of variants, each given by the cells of its seeds."""
    runs = [
        (recipe(title, seed=seed), done(cells=lines))
        for title, each in variants.items()
        for seed, lines in enumerate(each)
    ]
    study(runs, title="-".join(variants))
    return cells("-".join(variants), study.runs)


def row_of(table: DataFrame, **values: Any) -> Any:
    for name, value in values.items():
        table = table[table[name] == value]
    (row,) = (one for _, one in table.iterrows())
    return row


def test_a_region_weighs_its_cells_equally_without_those_that_overlap_with_training(study: Studies) -> None:
    frame = frame_of(study, a=[sums(lambda n: 1.0 if n <= 3 else 0.5 if n == 4 else 0.1)])
    found = numerate.summary(frame)
    trained, beyond = row_of(found, region="in_distribution"), row_of(found, region="ood")
    assert (trained["value"], trained["cells"], trained["excluded"]) == (1.0, 8, 1)
    expected = region_mean([(50, 100)] * 7 + [(10, 100)] * 20)
    assert (beyond["value"], beyond["low"], beyond["high"]) == (expected.value, expected.low, expected.high)
    assert found["region"].tolist() == ["in_distribution", "ood_validation", "ood_test", "ood"]


def test_seeds_are_a_median_with_the_lowest_and_the_highest_or_a_bootstrap_interval(study: Studies) -> None:
    values = (0.1, 0.2, 0.3, 0.5, 0.9)
    frame = frame_of(study, a=[sums(lambda n, share=share: share) for share in values])  # type: ignore[misc]
    row = row_of(summary(frame, threshold=0.3), region="ood_test")
    assert (row["seeds"], row["value"], row["low"], row["high"]) == (5, 0.3, 0.1, 0.9)
    assert (row["success"], row["success.low"], row["success.high"]) == (0.6, *wilson_interval(3, 5))
    row = row_of(summary(frame, statistic="iqm", bootstrap=True), region="ood_test")
    assert row["value"] == interquartile_mean(values)
    assert 0.1 < row["low"] < row["value"] < row["high"] < 0.9


def test_regions_are_over_the_cells_that_all_runs_have(study: Studies) -> None:
    frame = frame_of(study, a=[sums(lambda n: 1 / n, high=6)], b=[sums(lambda n: 1 / n, high=5)])
    assert len(shared_cells(frame)) == 50
    found = summary(frame)
    far = found[found["region"] == "ood_test"]
    assert far["cells"].tolist() == [9, 9]
    assert far["value"].tolist() == [0.2, 0.2]
    assert row_of(summary(frame, by=["variant", "length"]), variant="a", length=6)["value"] == 0.17


def test_the_final_checkpoint_is_reported_and_the_best_without_the_cells_that_chose_it(study: Studies) -> None:
    early = sums(lambda n: 0.25, checkpoint="best", step=50)
    frame = frame_of(study, a=[[*early, *sums(lambda n: 0.5)]])
    assert set(reported(frame)["step"]) == {100}
    best = summary(frame, checkpoint="best")
    assert (best["region"].tolist(), set(best["value"])) == (["in_distribution", "ood_test"], {0.25})


def test_strata_are_in_no_region_and_on_no_diagonal(study: Studies) -> None:
    stratum = [{**line, "stratum": "complement", "correct": 0, "low": 0.0} for line in sums(lambda n: 0.5)]
    frame = frame_of(study, a=[[*sums(lambda n: 0.5), *stratum]])
    assert set(summary(frame)["value"]) == {0.5}
    assert len(diagonal(frame)) == 6


def labels(right: int, *, offset: int = 0) -> dict[str, Any]:
    """Two rows of 4 labels, trained on 2: `right` of them correct in each."""
    correct = np.array([[t < right for t in range(4)]] * 2)
    counts = LabelCounts.from_arrays(correct, np.ones((2, 4), bool), max_training_labels=2)
    return cell_record({"count": 4}, counts.exact_match, 2, "ood_test", labels=counts.record(), position_offset=offset)


def test_labels_are_merged_over_position_offsets_and_shown_beside_the_score_of_memorizing(study: Studies) -> None:
    frame = frame_of(study, a=[[labels(3), labels(4, offset=1)]])
    row = row_of(summary(frame), region="ood_test")
    assert (row["metric"], row["value"], row["baseline"], row["cells"]) == ("ood_accuracy", 0.75, 0.0, 1)
    assert (row["low"], row["high"]) == pytest.approx(wilson_interval(1.5, 2))
    assert row_of(summary(frame, metric="accuracy"), region="ood_test")["baseline"] == 0.5
    assert row_of(summary(frame, metric="exact_match"), region="ood_test")["value"] == 0.5


def test_numbers_are_pooled_over_questions_and_text_over_tokens(study: Studies) -> None:
    numbers = [NumberScores.from_texts(*texts).to_record() for texts in ((["3"], ["1"]), (["5", "6"], ["5", "6"]))]
    lines = [cell_record({"module": i}, 0, 2, "ood_test", numbers=one) for i, one in enumerate(numbers)]
    frame = frame_of(study, a=[lines])
    assert row_of(summary(frame, metric="mae"), region="ood_test")["value"] == pytest.approx(2 / 3)
    assert row_of(summary(frame, metric="mae (mean of modules)"), region="ood_test")["value"] == 1.0
    portions = [Likelihoods(nll=2.0, tokens=10, chunks=5), Likelihoods(nll=40.0, tokens=10, chunks=5)]
    text = [
        {name: value for name, value in cell_record({"context_length": 16, "chunk": i * 5}, 0, 5, region).items()
         if name != "correct"} | one.record() | {"language": one.sums()}
        for i, (one, region) in enumerate(zip(portions, ["in_distribution"] * 2, strict=True))
    ]  # fmt: skip
    row = row_of(summary(frame_of(study, b=[text])), region="in_distribution")
    assert (row["metric"], row["value"], row["questions"]) == ("loss", 2.1, 10)


def test_differences_are_over_converged_seeds_and_corrected_for_all_pairs(study: Studies) -> None:
    def seed(share: float, trained: float = 1.0) -> list[dict[str, Any]]:
        return sums(lambda n: trained if n <= 3 else share)

    frame = frame_of(
        study,
        a=[seed(0.9), seed(0.8), seed(0.7)],
        b=[seed(0.1), seed(0.2), seed(0.0, trained=0.5)],
        c=[seed(0.4), seed(0.5), seed(0.6)],
    )
    assert converged(frame)["run"].nunique() == 8
    found = differences(frame)
    far = found[found["measure"] == "ood_test"]
    assert far[["first", "second"]].to_numpy().tolist() == [["a", "b"], ["a", "c"], ["b", "c"]]
    first = far.iloc[0]
    assert first["difference"] == pytest.approx(0.8 - 0.15)
    assert first["p"] == permutation_test((0.9, 0.8, 0.7), (0.1, 0.2), "report")
    assert far["p_holm"].tolist() == holm(far["p"].tolist())
    assert found[["low", "high"]].isna().all(axis=None), "of fewer than five seeds there is no interval"
    five = frame_of(study, d=[seed(0.5 + i / 10) for i in range(5)], e=[seed(0.1 + i / 50) for i in range(5)])
    (row,) = (row for _, row in differences(five).iterrows() if row["measure"] == "ood_test")
    assert row["low"] < row["difference"] < row["high"]
    assert found["measure"].unique().tolist() == ["converged", "ood_validation", "ood_test", "ood"]
    many = frame_of(study, **{name: [seed(0.1), seed(0.2)] for name in "vwxyz"})
    assert set(differences(many)["second"]) == {"v"}, "of many variants each is compared with the first"


def test_what_no_cell_has_is_refused_with_what_there_is(study: Studies) -> None:
    frame = frame_of(study, a=[sums(lambda n: 1.0)])
    with pytest.raises(UserError, match=r"metric: there is no 'exact_mach'.*Did you mean 'exact_match'"):
        summary(frame, metric="exact_mach")
    with pytest.raises(UserError, match="metric: no cell has mae; numerate evaluate RUN method=decoding computes it"):
        summary(frame, metric="mae")
    with pytest.raises(UserError, match="by: there is no column 'lenght'"):
        summary(frame, by=["lenght"])
    with pytest.raises(UserError, match="statistic: must be one of median, iqm, mean"):
        summary(frame, statistic="mode")
    with pytest.raises(UserError, match="by: questions is measured, and groups nothing"):
        summary(frame, by=["questions"])
    assert summary(frame, by="region").equals(summary(frame, by=["region"]))
    assert (len(scores(frame.iloc[:0])), len(summary(frame.iloc[:0]))) == (0, 0)


# The headline ---------------------------------------------------------------------------------------------------------


def test_how_far_a_variant_reaches_counts_from_its_own_training(study: Studies) -> None:
    longer = [
        line | {"region": "in_distribution"} if line["region"] == "ood_validation" else line
        for line in sums(lambda n: 1.0)
    ]
    frame = frame_of(study, short=[sums(lambda n: 1.0)], longer=[longer])
    found = reach(frame)
    assert [one.first["length"] for one in found.values() if one.first is not None] == [4, 5]
    assert headline(frame, "+").startswith("short stays"), "there are no sizes of training that all share"


def test_a_headline_reaches_no_farther_than_every_length_up_to_there(study: Studies) -> None:
    gap = {4: 0.95, 5: 0.5, 6: 1.0}
    frame = frame_of(study, a=[sums(lambda n: gap.get(n, 1.0))])
    assert [one.farthest["length"] for one in reach(frame).values() if one.farthest is not None] == [4]
    assert headline(frame, "+").startswith(
        "With 1 to 3 digits in distribution, a stays at 90 % or more up to 4+4 digits (95 % [88.8, 97.8] there)."
    )


def test_a_headline_says_that_a_stratum_fails_before_it_says_how_far_a_model_gets(study: Studies) -> None:
    cell = {"first_digits": 5, "second_digits": 5}
    fails = cell_record(cell, 0, 100, "ood_test", stratum="complement")
    frame = frame_of(study, a=[[*sums(lambda n: 1.0), fails]])
    assert "up to 4+4 digits" in headline(frame, "+")
    assert "then 0 % [0, 3.7] on a + (10^n - a) with n = 5" in headline(frame, "+")


def test_a_headline_says_what_the_brackets_of_a_single_converged_seed_are(study: Studies) -> None:
    seeds = [sums(lambda n: 1.0 if n < 5 else 0.5), sums(lambda n: 0.5)]
    assert "lowest and highest seed, of a single one 95 % intervals over questions" in headline(
        frame_of(study, a=seeds), "+"
    )
    assert "of a single one" not in headline(frame_of(study, b=[seeds[0], seeds[0]]), "+")


def test_a_model_that_did_not_learn_its_task_is_not_said_to_fail_beyond_it(study: Studies) -> None:
    frame = frame_of(study, a=[sums(lambda n: 0.4)], b=[sums(lambda n: float(n <= 3))])
    text = headline(frame, "+")
    assert "a did not converge (40 % [36.7, 43.4] in distribution" in text
    assert "b falls to 0 % [0, 3.7] at 4+4 digits" in text
    assert "best of many" in headline(frame_of(study, **{name: [sums(lambda n: 1.0)] for name in "uvwxyz"}))


def test_what_was_not_evaluated_and_what_only_memorized_is_called_so(study: Studies) -> None:
    frame = frame_of(study, a=[[labels(2)]])
    assert headline(frame.iloc[:0]) == "Nothing has been evaluated yet."
    assert "memorizing 0 %" in headline(frame)
    cell = cell_record({"first_digits": 9, "second_digits": 1}, 0, 100, "ood_test", stratum="nines_plus_one")
    assert "b: only strata or smaller sizes" in headline(frame_of(study, a=[sums(lambda n: 1.0)], b=[[cell]]))
    causal = frame_of(study, b=[sums(lambda n: 1.0, non_causal_reason="it reads the answer")])
    assert "b: not comparable (non-causal): it reads the answer" in headline(causal)

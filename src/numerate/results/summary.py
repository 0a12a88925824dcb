"""What is computed of a table of cells: scores of runs over regions and cells, summaries over seeds, differences.

    frame = numerate.cells("abacus_laptop")
    numerate.summary(frame)                                        # by variant and region
    numerate.summary(frame, by=["variant", "length"])              # by length

Every number that people see is made here, by `numerate.evaluation.statistics` and the sums of `numerate.evaluation`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.errors import UserError, check_choice, did_you_mean
from numerate.evaluation.answer_metrics import (
    ANSWER_METRICS,
    LOWER_IS_BETTER,
    METRIC_NAMES,
    base_metric,
    pooled_metrics,
)
from numerate.evaluation.labels import METRICS, LabelCounts
from numerate.evaluation.likelihoods import CHUNK_AXIS, Likelihoods, merge_portions
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.statistics import (
    fisher_exact,
    holm,
    interquartile_mean,
    min_p_value,
    paired_permutation_test,
    permutation_test,
    probability_of_improvement,
    region_mean,
    stratified_bootstrap_interval,
    success_rate,
    wilson_interval,
)
from numerate.evaluation.text_metrics import TextScores
from numerate.results.rows import LANGUAGE_METRICS, REGIONS, SCORE_PREFIX, axes

if TYPE_CHECKING:
    from pandas import DataFrame, Series

CONVERGED = 0.99
"""The exact match in distribution from which on a seed has converged."""

SUCCESS = 0.99
"""The score from which on a seed succeeded, unless another threshold is given."""

ALL_OOD = "ood"
"""The region of all cells out of distribution, where several such regions were evaluated."""

STATISTICS: dict[str, Callable[[Any], Any]] = {
    "median": lambda rows: np.median(rows, axis=-1),
    "iqm": interquartile_mean,
    "mean": lambda rows: np.mean(rows, axis=-1),
}
"""Statistics over seeds, along the last axis: median, interquartile mean, mean."""

MIN_SEEDS = 5
"""A bootstrap interval over fewer seeds is much too narrow."""

# Which cells ----------------------------------------------------------------------------------------------------------


def reported(frame: "DataFrame", checkpoint: str | None = None) -> "DataFrame":
    """The cells that stand for their runs: of each run and each choice of settings those of one checkpoint ("final"
    where it was evaluated, else the latest) and the first position offset; of labels at all offsets, to be averaged.

    With `checkpoint="best"` without the cells of OOD validation, on which the best checkpoint was chosen. Cells of
    strata and those below all of training stay: see `of_map`.
    """
    if not len(frame):
        return frame
    if checkpoint is None:
        rank = frame["step"] + (frame["checkpoint"] == "final") * (frame["step"].max() + 1.0)
        rank = rank - 0.5 * (frame["checkpoint"] == "best")  # of one step, another name is reported
        frame = frame[rank == rank.groupby([frame["run"], frame["settings"]], dropna=False).transform("max")]
    else:
        frame = frame[frame["checkpoint"] == checkpoint]
    frame = frame[(frame["checkpoint"] != "best") | (frame["region"] != "ood_validation")]
    if "accuracy" in frame and frame["accuracy"].notna().all():
        return frame
    offsets = frame.groupby(["run", "settings"], dropna=False)["position_offset"]
    return frame[frame["position_offset"] == offsets.transform("min")]


def of_map(frame: "DataFrame") -> "DataFrame":
    """The cells of the grid, without those of strata."""
    return frame[frame["stratum"].isna()] if "stratum" in frame else frame


def of_strata(frame: "DataFrame") -> "DataFrame":
    """The cells of strata alone."""
    return frame[frame["stratum"].notna()] if "stratum" in frame else frame.iloc[:0]


def grid_axes(frame: "DataFrame") -> list[str]:
    """The axes of the cells of the map."""
    inside = of_map(frame)
    return [axis for axis in axes(frame) if axis != CHUNK_AXIS and inside[axis].notna().any()]


def shared_cells(frame: "DataFrame") -> "DataFrame":
    """The cells that every run and every choice of settings has, so that their means are comparable; all of them if
    they have none in common."""
    if not len(frame):
        return frame
    of_place = [*axes(frame), *(name for name in ("stratum", "region") if name in frame)]
    place, evaluation = (
        frame.groupby(names, sort=False, dropna=False).ngroup() for names in (of_place, ["run", "settings"])
    )
    counts = evaluation.groupby(place).nunique()
    shared = counts.index[counts == evaluation.nunique()]
    return frame[place.isin(shared)] if len(shared) else frame


def diagonal(frame: "DataFrame") -> "DataFrame":
    """The cells of the map where all axes have the same size, with it as the column `length`."""
    inside, names = of_map(frame), grid_axes(frame)
    equal = inside[names].eq(inside[names[0]], axis=0).all(axis=1) if names else inside["step"] < 0
    return inside[equal].assign(length=inside.loc[equal, names[0]] if names else 0)


def by_context(frame: "DataFrame") -> "DataFrame":
    """The cells of text with a region for each other length of context, `context 128`: the text is the same in all."""
    if "context_length" not in frame:
        return frame
    is_other = frame["context_length"].notna() & (frame["region"] != "in_distribution")
    return frame.assign(region=frame["region"].mask(is_other, "context " + frame["context_length"].astype(str)))


def has_parts(frame: "DataFrame") -> bool:
    """Whether the cells are named parts, such as modules or test sets, which have no length."""
    names = grid_axes(frame)
    named = "names" in frame and bool(of_map(frame)["names"].notna().all())
    return len(names) == 1 and len(frame) > 0 and (named or names[0] in ("module", "test"))


def part_names(frame: "DataFrame") -> dict[int, str]:
    """The names of parts by their number, such as modules; nothing for other cells."""
    if not has_parts(frame) or "names" not in frame:
        return {}
    (axis,) = grid_axes(frame)
    return {int(row[axis]): row["names"][axis] for _, row in frame.drop_duplicates(axis).iterrows() if row["names"]}


def with_all_ood(frame: "DataFrame") -> "DataFrame":
    """The cells with those out of distribution a second time, as the region `ood`, if they are of several regions."""
    import pandas

    inside = by_context(frame[frame["region"].isin(REGIONS)])
    beyond = inside[inside["region"].isin([name for name in REGIONS if name != "in_distribution"])]
    if beyond["region"].nunique() < 2:
        return inside
    several = beyond.groupby([beyond["run"], beyond["settings"].fillna("")])["region"].transform("nunique") > 1
    return pandas.concat([inside, beyond[several].assign(region=ALL_OOD)])


def converged(frame: "DataFrame") -> "DataFrame":
    """The cells of the runs that have converged, or were not measured in distribution; all of text and of parts, which
    are never right throughout."""
    inside = of_map(reported(frame))
    metric, trained = default_metric(inside), inside[inside["region"] == "in_distribution"]
    if metric in LANGUAGE_METRICS or has_parts(frame):
        return frame
    found = scores(trained, by=["region"], metric=metric)
    return frame[~frame["run"].isin(found.loc[found["value"] < CONVERGED, "run"])]


# Scores of runs -------------------------------------------------------------------------------------------------------


def default_metric(frame: "DataFrame") -> str:
    """The loss of text, or bits per byte where tokenizers differ; accuracy on labels at positions beyond training where
    these are known and asked for; else exact match."""
    if "nats" in frame and frame["nats"].notna().all():
        return "bits_per_byte" if "tokenizer" in frame and frame["tokenizer"].nunique() > 1 else "loss"
    if "accuracy" in frame and len(frame) and "sums" in frame:
        labels = [(sums or {}).get("labels") or {} for sums in frame["sums"]]
        if all(one.get("max_training_labels") is not None for one in labels):
            return "ood_accuracy" if "ood_accuracy" in frame and frame["ood_accuracy"].notna().any() else "accuracy"
    return "exact_match"


def is_lower_better(metric: str) -> bool:
    """Whether less of a metric is better."""
    return base_metric(metric) in LOWER_IS_BETTER or metric in LANGUAGE_METRICS[:3]


def check_metric(frame: "DataFrame", metric: str) -> None:
    """Raises `UserError` for a metric that no cell has."""
    known = [*METRICS, *METRIC_NAMES, *LANGUAGE_METRICS, *(name for name in frame if name.startswith(SCORE_PREFIX))]
    if metric not in known:
        raise UserError(
            f"metric: there is no {metric!r}; there are: {', '.join(known[:12])}.{did_you_mean(metric, known)}"
        )
    if base_metric(metric) not in frame:
        hint = "; numerate evaluate RUN method=decoding computes it" if base_metric(metric) in ANSWER_METRICS else ""
        raise UserError(f"metric: no cell has {metric}{hint}")


@dataclass(frozen=True)
class Measured:
    """A metric of some cells of one run: its 95 % interval over questions, if it has one, and the score of memorizing
    or of one constant answer. `questions` were asked in `cells`; `excluded` cells may overlap with training."""

    value: float
    low: float = np.nan
    high: float = np.nan
    baseline: float = np.nan
    questions: int = 0
    cells: int = 0
    excluded: int = 0


class Measures:
    """The metrics of some of the cells of a frame, of one run, by their places in it."""

    def __init__(self, frame: "DataFrame") -> None:
        self.region: list[str] = frame["region"].tolist()
        self.overlaps: Any = frame["overlaps_training"].to_numpy(bool)
        self.offset: Any = frame["position_offset"].to_numpy()
        self.questions: Any = frame["questions"].to_numpy("int64")
        self.correct: Any = frame["correct"].to_numpy("float64") if "correct" in frame else np.full(len(frame), np.nan)
        self.sums: list[Any] = frame["sums"].tolist() if "sums" in frame else [None] * len(frame)
        self.chunk: list[int] = (frame[CHUNK_AXIS].fillna(0) if CHUNK_AXIS in frame else frame["step"] * 0).tolist()
        self.own: Any = {name: frame[name].to_numpy("float64") for name in frame if name.startswith(SCORE_PREFIX)}

    def score(self, index: Any, metric: str) -> Measured | None:
        """A metric of the cells at these places, or the one that stands for it in their region; None if they do not
        have it. There is no baseline in distribution."""
        region = self.region[index[0]]
        found = self.measures(index, metric)
        if metric == "ood_accuracy" and (region == "in_distribution" or metric not in found):
            metric = "accuracy"
        score = found.get(metric)
        return score and (replace(score, baseline=np.nan) if region in ("in_distribution", "below") else score)

    def measures(self, index: Any, metric: str | None = None) -> dict[str, Measured]:
        """All metrics of the cells at these places, or at least one of them. Cells that may overlap with training are
        left out unless all do; all cells weigh the same in exact match, all labels, questions or tokens in others."""
        held_out = index[~self.overlaps[index]]
        at = held_out if len(held_out) else index
        repeats = len({*self.offset[at].tolist()})
        sums = [self.sums[i] for i in at if self.sums[i] is not None]
        found: dict[str, Any] = {}
        if not np.isnan(self.correct[at]).any():
            pairs = zip(self.correct[at].astype(int).tolist(), self.questions[at].tolist(), strict=True)
            mean = region_mean(list(pairs), num_repeats=repeats)
            labels = _labels(sums, repeats) if len(sums) == len(at) else {}
            of_labels = labels.get("exact_match", ())[3:]
            found = labels | {"exact_match": (mean.value, mean.low, mean.high, *of_labels)}
            if sums and metric != "exact_match":
                found |= _answers(sums)
        elif sums:
            found = _language([(self.chunk[i], Likelihoods.from_sums(self.sums[i]["language"])) for i in at])
        for name, values in self.own.items():
            if len(scored := at[~np.isnan(values[at])]):
                found[name] = self._own_score(name, scored)
        questions, cells = int(self.questions[at].sum()) // repeats, len(at) // repeats
        size = {"questions": questions, "cells": cells, "excluded": len(index) // repeats - cells}
        return {name: Measured(*ends, **size) for name, ends in found.items()}

    def _own_score(self, name: str, at: Any) -> Sequence[float]:
        """A score of a kind of one's own: the mean over questions; of records without answers over cells."""
        if np.isnan(self.correct[at]).any():
            return (fmean(self.own[name][at]),)
        total = sum(self.sums[i]["scores"][name.removeprefix(SCORE_PREFIX)] for i in at)
        count = int(self.questions[at].sum())
        return (total / count, *wilson_interval(total, count))


def _labels(sums: Sequence[Any], repeats: int) -> dict[str, Sequence[float]]:
    """The metrics of labels with their baselines, each row once for all of its position offsets."""
    parts = [one for one in map(LabelCounts.from_record, sums) if one is not None]
    if len(parts) < len(sums):
        return {}
    labels = LabelCounts.merge(parts)
    found = {name: (labels.score(name), labels.interval(name, repeats), labels.baseline(name)) for name in METRICS}
    return {
        name: (score, *interval, np.nan if baseline is None else baseline)
        for name, (score, interval, baseline) in found.items()
        if score is not None and interval is not None
    }


def _answers(sums: Sequence[Any]) -> dict[str, Sequence[float]]:
    """The metrics of number and text answers, over all questions and as means over cells."""
    pooled: Any = pooled_metrics(map(NumberScores.from_record, sums), map(TextScores.from_record, sums))
    known = [name for name in METRIC_NAMES if pooled.get(name) is not None]
    return {name: (pooled[name], *(pooled.get(f"{name}.{end}", np.nan) for end in ("low", "high"))) for name in known}


def _language(portions: Sequence[tuple[int, Likelihoods]]) -> dict[str, Sequence[float]]:
    """The metrics of text, over all its tokens."""
    merged = merge_portions(portions)
    ends = {"loss": merged.loss_interval(), "bits_per_byte": merged.bits_per_byte_interval()}
    known = {name: getattr(merged, name) for name in LANGUAGE_METRICS}
    return {name: (value, *(ends.get(name) or ())) for name, value in known.items() if value is not None}


def scores(frame: "DataFrame", by: Sequence[str] = ("variant", "region"), metric: str | None = None) -> "DataFrame":
    """One row for each run and each value of the columns `by`: the metric of the run's cells there, with the columns of
    `Measured`.

    `metric` is exact match, a metric of labels, numbers, texts or text (`numerate list metrics`), or `score.NAME`;
    `default_metric` if not given. Of number and text answers, `mae (mean of modules)` is the mean over cells.
    """
    from pandas import DataFrame

    metric = metric or default_metric(frame)
    rows, keys = Measures(frame), [*dict.fromkeys([*by, "variant", "seed", "run"])]
    found = [key | vars(one) for key, i in groups_of(frame, keys) if (one := rows.score(i, metric)) is not None]
    table = DataFrame(found, columns=[*keys, *Measured.__dataclass_fields__])
    return table.astype({name: frame[name].dtype for name in keys if len(table)}).assign(metric=metric)


def groups_of(frame: "DataFrame", keys: Sequence[str]) -> Iterator[tuple[dict[str, Any], Any]]:
    """The groups of rows with equal values of some columns, in order of appearance, each with its rows' places."""
    if not len(frame):
        return
    number = frame.groupby(list(keys), sort=False, dropna=False).ngroup().to_numpy()
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(number[order]) > 0])
    columns = {name: frame[name].tolist() for name in keys}
    for index in np.split(order, starts[1:]):
        yield {name: column[index[0]] for name, column in columns.items()}, index


# Seeds ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seeds:
    """Values of one metric over seeds. `single` is the interval over questions of a single one. Several `variants` are
    resampled apart."""

    values: tuple[float, ...]
    statistic: str = "median"
    single: tuple[float, float] = (np.nan, np.nan)
    variants: tuple[object, ...] = ()

    @cached_property
    def value(self) -> float:
        """The statistic, kept among the values where rounding would put it a last digit outside."""
        return float(np.clip(STATISTICS[self.statistic](np.array(self.values)), min(self.values), max(self.values)))

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest seed; of a single one its interval over questions."""
        return (min(self.values), max(self.values)) if len(self.values) > 1 else self.single

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval over seeds; the range of fewer than `MIN_SEEDS`."""
        if len(self.values) < MIN_SEEDS or len({*self.values}) == 1:
            return self.range
        samples: dict[object, list[float]] = {}
        for variant, value in zip(self.variants or [None] * len(self.values), self.values, strict=True):
            samples.setdefault(variant, []).append(value)
        return stratified_bootstrap_interval(list(samples.values()), "report", statistic=STATISTICS[self.statistic])


def summary(
    frame: "DataFrame",
    by: str | Sequence[str] = ("variant", "region"),
    *,
    metric: str | None = None,
    checkpoint: str | None = None,
    statistic: str = "median",
    threshold: float = SUCCESS,
    bootstrap: bool = False,
) -> "DataFrame":
    """One row for each value of the columns `by`: the statistic over seeds of the metric of each run.

    Columns: `seeds`, `value`; `low` and `high`, the lowest and the highest seed, or with `bootstrap` the 95 % interval
    of the statistic over five seeds and more, or the 95 % interval over questions of a single seed; `baseline`, the
    score of memorizing; `questions` and `cells` of the first seed, `excluded` cells that may overlap with training;
    `success`, `success.low`, `success.high`: the share of seeds with at least `threshold`, with Wilson's interval.

        numerate.summary(frame, by=["variant", "region"], statistic="iqm", bootstrap=True)

    By `region`, the cells are those of the map that every run has (`shared_cells`), and several regions out of
    distribution are also one, `ood`. Raises `UserError` for a metric or a column that no cell has.
    """
    by = [by] if isinstance(by, str) else [*by]
    check_choice("statistic", statistic, STATISTICS)
    if metric is not None:
        check_metric(frame, metric)
    if taken := [name for name in by if name in Measured.__dataclass_fields__]:
        raise UserError(f"by: {taken[0]} is measured, and groups nothing")
    if missing := [name for name in by if name not in frame and name != "length"]:
        raise UserError(f"by: there is no column {missing[0]!r}; there are: {', '.join(map(str, frame.columns[:20]))}")
    chosen = reported(frame, checkpoint)
    if "length" in by and "length" not in frame:
        chosen = diagonal(chosen)
    if "region" in by:
        chosen = with_all_ood(shared_cells(of_map(chosen)))
    return over_seeds(scores(chosen, by, metric), [*by, "metric"], statistic, threshold, bootstrap)


def over_seeds(
    found: "DataFrame",
    by: Sequence[str],
    statistic: str = "median",
    threshold: float = SUCCESS,
    bootstrap: bool = False,
) -> "DataFrame":
    """One row for each value of the columns `by` of scores of runs, with the columns of `summary`."""
    from pandas import DataFrame

    of_first = ("questions", "cells", "excluded")
    columns = {name: found[name].tolist() for name in ("value", "low", "high", "variant", *of_first)}
    baseline = found["baseline"].to_numpy("float64")
    rows = []
    for key, index in groups_of(found, by):
        first, each = index[0], {name: tuple(columns[name][i] for i in index) for name in ("value", "variant")}
        seeds = Seeds(each["value"], statistic, (columns["low"][first], columns["high"][first]), each["variant"])
        low, high = seeds.interval if bootstrap else seeds.range
        rate = success_rate(seeds.values, threshold)
        known = baseline[index][~np.isnan(baseline[index])]
        rows.append(
            key
            | {"seeds": len(index), "value": seeds.value, "low": low, "high": high}
            | {"baseline": max(known, default=np.nan), **{name: columns[name][first] for name in of_first}}
            | {"success": rate.value, "success.low": rate.low, "success.high": rate.high}
        )
    names = [*by, "seeds", "value", "low", "high", "baseline", *of_first, "success", "success.low", "success.high"]
    return DataFrame(rows, columns=names)


# Differences ----------------------------------------------------------------------------------------------------------

MAX_ALL_PAIRS = 4
"""Up to this number of variants all pairs are compared; of more each with the first, to keep the correction small."""

SIGNIFICANT = 0.05


def differences(frame: "DataFrame", *, metric: str | None = None, baseline: str | None = None) -> "DataFrame":
    """Pairs of variants with several seeds by the score of each seed: over the regions, and how many converge.

    Without a `metric` the regions beyond training are compared over the converged seeds, and `converged` is Fisher's
    exact test of how many converge; with one, all regions and seeds are. The cells are those that all runs have.
    Columns: `measure`, `first`, `second`, `first_mean`, `second_mean`, `difference` with its 95 % bootstrap interval
    over at least five seeds `low`, `high`; `better`, how often a seed of the first beats one of the second; `p`,
    `p_holm`, corrected by Holm's method for the pairs of a measure; `p_min`, the smallest `p` of so many seeds; `test`.

    All pairs of up to four variants are compared, of more each with the first, or with the `baseline`.
    """
    from pandas import DataFrame

    chosen = of_map(reported(frame))
    if "non_causal_reason" in chosen:
        chosen = chosen[chosen["non_causal_reason"].isna()]
    name, lower = metric or default_metric(chosen), metric is not None and is_lower_better(metric)
    seeds = chosen.groupby("variant", sort=False)["run"].nunique()
    variants = sorted(seeds.index[seeds > 1], key=lambda variant: variant != baseline)
    is_few = len(variants) <= MAX_ALL_PAIRS
    pairs = list(combinations(variants, 2)) if is_few else [(other, variants[0]) for other in variants[1:]]
    measured, regions = {}, [*REGIONS, ALL_OOD]
    if metric is None:
        trained = scores(chosen[chosen["region"] == "in_distribution"])
        measured["converged"] = trained.assign(value=(trained["value"] >= CONVERGED).astype(float))
        kept = converged(chosen)
        chosen, regions = kept[~kept["overlaps_training"].astype(bool)], regions[1:]
    found = scores(with_all_ood(shared_cells(chosen)), metric=name)
    measured |= {region: found[found["region"] == region] for region in regions}
    rows: list[dict[str, Any]] = []
    for measure, inside in measured.items():
        each = inside.drop_duplicates(["variant", "seed"], keep="last").set_index("seed")
        values = {variant: own["value"] for variant, own in each.groupby("variant") if len(own) > 1}
        both = [pair for pair in pairs if {*pair} <= {*values}]
        tested = [_test(measure, values[one], values[two], len(both), lower) for one, two in both]
        for (one, two), row, p in zip(both, tested, holm([row["p"] for row in tested]), strict=True):
            rows.append({"measure": measure, "first": one, "second": two, "pairs": len(both), **row, "p_holm": p})
    names = ["measure", "first", "second", "first_mean", "second_mean", "difference", "low", "high", "better"]
    return DataFrame(rows, columns=[*names, "p", "p_holm", "p_min", "pairs", "test"]).assign(metric=name)


def _test(measure: str, first: "Series[float]", second: "Series[float]", num_pairs: int, lower: bool) -> dict[str, Any]:
    """The test of the scores of two variants by seed: of counts Fisher's; of scores the sign-flip test where they have
    the same seeds, and enough for significance after the correction, else the permutation test."""
    one, two, count = first.tolist(), second.tolist(), len(first)
    is_paired, lowest = {*first.index} == {*second.index}, min_p_value(count, len(two))
    if measure == "converged":
        p, name = fisher_exact((round(sum(one)), count), (round(sum(two)), len(two))), "Fisher's exact test"
    elif is_paired and (least := min_p_value(count, count, paired=True)) * num_pairs < SIGNIFICANT:
        pairs = [each[sorted(first.index, key=str)].tolist() for each in (first, second)]
        p, name, lowest = paired_permutation_test(*pairs, "report"), "sign-flip test, seed by seed", least
    else:
        p, name = permutation_test(one, two, "report"), "permutation test"

    def gap(rows: Any) -> Any:
        return rows.mean(-1) if is_paired else rows[:, :count].mean(-1) - rows[:, count:].mean(-1)

    samples = [[first[seed] - second[seed] for seed in first.index]] if is_paired else [one, two]
    is_few = min(map(len, samples)) < MIN_SEEDS
    low, high = (np.nan,) * 2 if is_few else stratified_bootstrap_interval(samples, "difference", statistic=gap)
    ends = {"low": low, "high": high, "better": probability_of_improvement(*((two, one) if lower else (one, two)))}
    means = {"first_mean": fmean(one), "second_mean": fmean(two), "difference": fmean(one) - fmean(two)}
    return means | ends | {"p": p, "p_min": lowest, "test": name}

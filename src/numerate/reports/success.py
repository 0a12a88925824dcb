"""The success table of a study: which seeds converged, and to which lengths those generalize.

A seed that did not learn its training task is listed as not converged within its budget, not as a failure to
generalize: rates are over the converged seeds. Where a symmetry keeps every seed from converging, all are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import success_rate, wilson_interval
from numerate.reports.comparable import NOT_COMPARABLE
from numerate.reports.content import Bullets, Content, Folded
from numerate.reports.counts import MEMORIZATION_NOTE, common_metric_label
from numerate.reports.grid import baseline_ranges, format_interval, format_percent
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group
from numerate.reports.limits import MAX_NAMES
from numerate.reports.records import Records
from numerate.reports.table import TextTable

SUCCESS_THRESHOLD = 0.99
"""The minimum accuracy of a successful seed at a length."""

MAX_LENGTHS = 7
"""Maximum number of length columns in a table."""

CHECKPOINTS = ("final", "best")
"""The reported checkpoints: the last one, and the one selected on OOD validation."""


SYMMETRY = "by a symmetry"
"""Label of a group that cannot converge with any weights."""


@dataclass(frozen=True)
class ConvergenceResult:
    """One group at one checkpoint. `unconverged_runs` are the unconverged seeds with their accuracy in
    distribution."""

    group: Group
    checkpoint: str
    converged_runs: Sequence[Records]
    unconverged_runs: Sequence[tuple[Records, float]]

    @property
    def cannot_converge(self) -> bool:
        """Whether no seed converged because of a symmetry."""
        return self.group.is_limited_by_symmetry and not self.converged_runs

    @property
    def scored_runs(self) -> Sequence[Records]:
        """The seeds shown by length: those that converged, or all if none can."""
        return [run for run, _ in self.unconverged_runs] if self.cannot_converge else self.converged_runs

    @cached_property
    def text_by_length(self) -> dict[int, str]:
        """By length the successes of `scored_runs` with Wilson's interval in per cent, and on a second line their
        median accuracy."""
        group = self.group.converged_group
        if len(group.runs) != len(self.scored_runs):
            group = replace(group, runs=tuple(self.scored_runs))
        texts = {}
        for n, point in group.diagonal.items() if self.scored_runs else ():
            rate = success_rate(point.seed_scores, SUCCESS_THRESHOLD)
            counts = f"{round(rate.value * rate.count)}/{rate.count}"
            interval = format_interval(rate.low, rate.high, 0)
            texts[n] = f"{counts} {interval}\n{format_percent(median(point.seed_scores))} %"
        return texts

    @property
    def converged_text(self) -> str:
        """`4/5 [38, 96]`: the converged seeds with Wilson's interval in per cent; no interval if none can
        converge: `0/5 by a symmetry`."""
        count = len(self.converged_runs)
        seeds = count + len(self.unconverged_runs)
        interval = SYMMETRY if self.cannot_converge else format_interval(*wilson_interval(count, seeds), 0)
        return f"{count}/{seeds} {interval}"

    @property
    def note(self) -> str:
        """A sentence on the seeds that did not converge."""
        scores = ", ".join(f"{format_percent(score)} % (seed {run.seed})" for run, score in self.unconverged_runs)
        what = "has seeds that did not converge" if self.converged_runs else "did not converge in this budget"
        what = f"cannot converge, {SYMMETRY}" if self.cannot_converge else what
        return f"{self.group.label} ({self.checkpoint}) {what}: {scores} correct in distribution"


@dataclass(frozen=True)
class LengthCurve:
    """One line of a figure by length: the seeds drawn; `suffix` is their number, out of all seeds."""

    group: Group
    suffix: str

    @property
    def label(self) -> str:
        """`rotary (4 of 5 seeds)`."""
        return f"{self.group.label} ({self.suffix})" if self.suffix else self.group.label


def length_curves(groups: Sequence[Group]) -> tuple[list[LengthCurve], str]:
    """The curves by length, and a sentence about omitted groups. In a study only converged seeds are drawn, and no
    group without any; if every group has one seed, or nothing converged, all are drawn and labeled accordingly."""
    curves, unconverged_labels = [], []
    converged_groups = [group.converged_group for group in groups]
    study = any(len(group.evaluated_cells) > 1 for group in groups) and any(
        one.evaluated_cells for one in converged_groups
    )
    for group, one in zip(groups, converged_groups, strict=True):
        seeds, count = len(group.evaluated_cells), len(one.evaluated_cells)
        suffix = [f"{seeds} seeds"] * (seeds > 1)
        if group.is_limited_by_symmetry:
            curves.append(LengthCurve(group, ", ".join(suffix + [f"at chance {SYMMETRY}"] * (seeds > 0))))
        elif study and seeds and not count:
            unconverged_labels.append(f"{group.label} (0 of {seeds})")
        elif study:
            curves.append(LengthCurve(one, "".join(suffix) if count == seeds else f"{count} of {seeds} seeds"))
        else:
            curves.append(LengthCurve(group, ", ".join(suffix + ["did not converge"] * (seeds > 0 and not count))))
    return curves, f"Not drawn, as no seed converged: {', '.join(unconverged_labels)}." if unconverged_labels else ""


def convergence_results(groups: Sequence[Group]) -> list[ConvergenceResult]:
    """One result per evaluated group and checkpoint, including groups with changed settings."""
    found = []
    for group in groups:
        evaluated = {cell.checkpoint for run in group.runs for cell in run.cells}
        for name in CHECKPOINTS:
            # Reuse the cached results of the default checkpoint.
            is_same = all(cells[0].checkpoint == name == "final" for cells in group.evaluated_cells)
            one = group if is_same else replace(group, checkpoint=name)
            if name in evaluated and one.in_distribution_scores:
                scores = one.in_distribution_scores
                converged = [run for run, score in scores if score >= CONVERGENCE_THRESHOLD]
                unconverged = [(run, score) for run, score in scores if score < CONVERGENCE_THRESHOLD]
                found.append(ConvergenceResult(one, name, converged, unconverged))
    return found


def table_lengths(results: Sequence[ConvergenceResult]) -> list[int]:
    """The lengths with a column: the longest trained one, the next two, and 1.5, 2, 2.5, 3 and 4 times it, where
    evaluated; beyond `MAX_LENGTHS` the second next, 2.5 and 3 times are dropped in this order.

    Trained on 1 to 6 digits and evaluated on 1 to 18: 6, 7, 8, 9, 12, 15, 18; on 50 and up to 200: 50, 51, 75, 100,
    125, 150, 200. Lengths at which memorizing alone succeeds have no column.
    """
    baselines = baseline_ranges(one.group.diagonal for one in results)
    lengths = {n for one in results for n in one.group.diagonal}
    evaluated = sorted(n for n in lengths if n not in baselines or baselines[n][0] < SUCCESS_THRESHOLD)
    longest = _longest_trained(results)
    wanted = {longest, longest + 1, longest + 2, *(longest * half // 2 for half in (3, 4, 5, 6, 8)), *evaluated[-1:]}
    lengths_shown = [n for n in evaluated if n in wanted]
    for less in (longest + 2, longest * 5 // 2, longest * 3):
        if len(lengths_shown) > MAX_LENGTHS and less != evaluated[-1]:
            lengths_shown = [n for n in lengths_shown if n != less]
    return lengths_shown


def _longest_trained(results: Sequence[ConvergenceResult]) -> int:
    points = [pair for one in results for pair in one.group.diagonal.items()]
    return max((n for n, point in points if point.region == "in_distribution"), default=0)


def success_content(groups: Sequence[Group]) -> Content:
    """The table of a page with its notes; empty if every group has one seed, or no length was evaluated."""
    table, notes = success_table(groups), Bullets([f"{note}." for note in unconverged_notes(groups)])
    if not table.rows or all(len(group.evaluated_cells) < 2 for group in groups):
        return []
    folded = Folded(f"{len(notes.items)} with seeds that did not converge", [notes])
    return [table, *[folded if len(notes.items) > MAX_NAMES else notes] * bool(notes.items)]


def success_table(groups: Sequence[Group]) -> TextTable:
    """Group, checkpoint, number of converged seeds, then their results by length; no rows without lengths."""
    results = convergence_results(groups)
    lengths, trained = table_lengths(results), _longest_trained(results)
    rows = []
    for one in results if lengths else ():
        cells = [one.text_by_length.get(n, "") for n in lengths]
        if one.group.non_causal_reason is not None:
            cells = [f"{NOT_COMPARABLE}: {one.group.non_causal_reason}", *[""] * (len(lengths) - 1)]
        elif not one.scored_runs:
            cells = ["did not converge", *cells[1:]]
        rows.append([one.group.label, one.checkpoint, one.converged_text, *cells])
    for label, baselines in _baselines(results) if lengths else ():
        rows.append([label, "", "", *(f"{format_percent(baselines[n])} %" if n in baselines else "" for n in lengths)])
    header = ["group", "checkpoint", "converged", *(f"n={n}{' (in distribution)' * (n <= trained)}" for n in lengths)]
    return TextTable(header, rows, caption=_caption(groups), style="tight")


def _baselines(results: Sequence[ConvergenceResult]) -> list[tuple[str, dict[int, float]]]:
    """The baselines by length: one row if they are equal for all groups, otherwise one row per group."""
    baselines_by_label: dict[str, dict[int, float]] = {}
    for one in results:
        baselines = {n: point.baseline for n, point in one.group.diagonal.items() if point.baseline is not None}
        baselines_by_label[one.group.label] = baselines | baselines_by_label.get(one.group.label, {})
    together = baseline_ranges(one.group.diagonal for one in results)
    if together and all(low == high for low, high in together.values()):
        return [("baseline", {n: low for n, (low, _) in together.items()})]
    return [(f"baseline of {label}", baselines) for label, baselines in baselines_by_label.items() if baselines]


def unconverged_notes(groups: Sequence[Group]) -> list[str]:
    """Sentences on the seeds that did not converge, by group and checkpoint."""
    return [one.note for one in convergence_results(groups) if one.unconverged_runs]


def _caption(groups: Sequence[Group]) -> str:
    metric = common_metric_label(groups)
    baselines = any(group.baseline is not None for group in groups)
    best = any(cell.checkpoint == "best" for group in groups for run in group.runs for cell in run.cells)
    names = {METRICS["ood_accuracy"]: METRICS["accuracy"], METRICS["exact_match"]: "held-out questions"}
    within = names.get(metric, metric)
    return (
        f"A seed has converged with at least {format_percent(CONVERGENCE_THRESHOLD)} % in distribution ({within}); "
        "the number of converged seeds has Wilson's 95 % interval in per cent. By length n: the number of converged "
        f"seeds with at least {format_percent(SUCCESS_THRESHOLD)} %, with Wilson's 95 % interval in per cent, and the "
        f"median of the converged seeds' {metric} in per cent. Seeds that did not converge are not counted."
        + f" “{SYMMETRY}” marks groups that cannot converge with any budget; all their seeds are shown."
        * any(group.is_limited_by_symmetry for group in groups)
        + " “best” is the checkpoint with the best score on OOD validation, which is excluded from its results." * best
        + f" {MEMORIZATION_NOTE}" * baselines
    )

"""The success table of a study: which seeds converged, and to which lengths those generalize.

A seed that did not learn its training task is listed as not converged within its budget, not as a failure to
generalize: rates are over the converged seeds. Where a symmetry keeps every seed from converging, all are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from statistics import median

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import Proportion, success_rate, wilson_interval
from numerate.reports.comparable import NOT_COMPARABLE, comparable_groups, not_comparable_notes, symmetry_notes
from numerate.reports.counts import MEMORIZATION_NOTE, common_metric_label
from numerate.reports.grid import baseline_ranges, format_interval, format_percent, is_clearly_above
from numerate.reports.groups import CONVERGENCE_THRESHOLD, Group
from numerate.reports.limits import MAX_NAMES, join_names
from numerate.reports.records import Records

SUCCESS_THRESHOLD = 0.99
"""The minimum accuracy of a successful seed at a length."""

MAX_LENGTHS = 7
"""Maximum number of length columns in a table."""

CHECKPOINTS = ("final", "best")
"""The reported checkpoints: the last one, and the one selected on OOD validation."""


@dataclass(frozen=True)
class LengthResult:
    """The converged seeds at one length: how many succeed, and their median accuracy; `baseline` is that of
    memorization."""

    rate: Proportion
    median: float
    baseline: float | None = None

    @property
    def text(self) -> str:
        """`3/5 [23, 88] 97.2`: successes of seeds, Wilson's interval about the seeds in %, median exact match in %."""
        successes = round(self.rate.value * self.rate.count)
        return (
            f"{successes}/{self.rate.count} {format_interval(self.rate.low, self.rate.high, 0)} "
            f"{format_percent(self.median)}"
        )


@dataclass(frozen=True)
class ConvergenceResult:
    """One group at one checkpoint. `unconverged_runs` are the unconverged seeds with their accuracy in
    distribution."""

    group: Group
    checkpoint: str
    converged_runs: Sequence[Records]
    unconverged_runs: Sequence[tuple[Records, float]]

    @property
    def num_seeds(self) -> int:
        return len(self.converged_runs) + len(self.unconverged_runs)

    @property
    def cannot_converge(self) -> bool:
        """Whether no seed converged because of a symmetry."""
        return self.group.is_limited_by_symmetry and not self.converged_runs

    @property
    def scored_runs(self) -> Sequence[Records]:
        """The seeds shown by length: those that converged, or all if none can."""
        return [run for run, _ in self.unconverged_runs] if self.cannot_converge else self.converged_runs

    @cached_property
    def results_by_length(self) -> dict[int, LengthResult]:
        """The results of `scored_runs` by length."""
        group = self.group.converged_group
        if len(group.runs) != len(self.scored_runs):
            group = replace(group, runs=tuple(self.scored_runs))
        diagonal = group.diagonal if self.scored_runs else {}
        return {
            n: LengthResult(
                success_rate(point.seed_scores, SUCCESS_THRESHOLD), median(point.seed_scores), point.baseline
            )
            for n, point in diagonal.items()
        }

    @property
    def converged_text(self) -> str:
        """`4/5 [38, 96]`: the converged seeds with Wilson's interval in per cent; no interval if none can
        converge: `0/5 by a symmetry`."""
        if self.cannot_converge:
            return f"0/{self.num_seeds} {SYMMETRY}"
        return (
            f"{len(self.converged_runs)}/{self.num_seeds} "
            f"{format_interval(*wilson_interval(len(self.converged_runs), self.num_seeds), 0)}"
        )


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
        names = [
            name for name in CHECKPOINTS if any(cell.checkpoint == name for run in group.runs for cell in run.cells)
        ]
        for name in names:
            # Reuse the cached results of the default checkpoint.
            same = all(cells[0].checkpoint == name == "final" for cells in group.evaluated_cells)
            one = group if same else replace(group, checkpoint=name)
            if one.in_distribution_scores:
                converged_runs = [run for run, share in one.in_distribution_scores if share >= CONVERGENCE_THRESHOLD]
                unconverged_runs = [
                    (run, share) for run, share in one.in_distribution_scores if share < CONVERGENCE_THRESHOLD
                ]
                found.append(ConvergenceResult(one, name, converged_runs, unconverged_runs))
    return found


def table_lengths(results: Sequence[ConvergenceResult]) -> list[int]:
    """The lengths with a column: the longest trained one, the next two, and 1.5, 2, 2.5, 3 and 4 times it, where
    evaluated; beyond `MAX_LENGTHS` the second next, 2.5 and 3 times are dropped in this order.

    Trained on 1 to 6 digits and evaluated on 1 to 18: 6, 7, 8, 9, 12, 15, 18; on 50 and up to 200: 50, 51, 75, 100,
    125, 150, 200. Lengths at which memorizing alone succeeds have no column.
    """
    points = [point for one in results for point in one.group.diagonal.items()]
    memorized_lengths = {
        n
        for n, (baseline, _) in baseline_ranges(one.group.diagonal for one in results).items()
        if baseline >= SUCCESS_THRESHOLD
    }
    evaluated = sorted({n for n, _ in points} - memorized_lengths)
    longest = max((n for n, point in points if point.region == "in_distribution"), default=0)
    candidate_lengths = {
        longest,
        longest + 1,
        longest + 2,
        *(longest * half // 2 for half in (3, 4, 5, 6, 8)),
        *evaluated[-1:],
    }
    lengths = [n for n in evaluated if n in candidate_lengths]
    for less in (longest + 2, longest * 5 // 2, longest * 3):
        if len(lengths) > MAX_LENGTHS and less != evaluated[-1]:
            lengths = [n for n in lengths if n != less]
    return lengths


def success_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table as text: group, checkpoint, number of converged seeds, then their results by length."""
    results = convergence_results(groups)
    lengths = table_lengths(results)
    header = ["group", "checkpoint", "converged", *(f"n={n}" for n in lengths)]
    rows = []
    for one in results:
        at = one.results_by_length
        cells = [at[n].text if n in at else "" for n in lengths]
        if one.group.non_causal_reason is not None:
            cells = (
                [f"{NOT_COMPARABLE}: {one.group.non_causal_reason}", *([""] * (len(lengths) - 1))] if lengths else []
            )
        elif not one.scored_runs:
            cells = ["did not converge", *([""] * (len(lengths) - 1))] if lengths else []
        rows.append([one.group.label, one.checkpoint, one.converged_text, *cells])
    for label, baselines in _baselines(results):
        rows.append([label, "", "", *(format_percent(baselines[n]) if n in baselines else "" for n in lengths)])
    return header, rows


def _baselines(results: Sequence[ConvergenceResult]) -> list[tuple[str, dict[int, float]]]:
    """The baselines by length: one row if they are equal for all groups, otherwise one row per group."""
    baselines_by_label: dict[str, dict[int, float]] = {}
    for one in results:
        baselines = {n: point.baseline for n, point in one.group.diagonal.items() if point.baseline is not None}
        baselines_by_label[one.group.label] = baselines | baselines_by_label.get(one.group.label, {})
    together = baseline_ranges(one.group.diagonal for one in results)
    if together and all(low == high for low, high in together.values()):
        return [("baseline, %", {n: low for n, (low, _) in together.items()})]
    return [(f"baseline of {label}, %", baselines) for label, baselines in baselines_by_label.items() if baselines]


def _max_trained_length(results: Sequence[ConvergenceResult]) -> int:
    """The longest trained length of all groups."""
    return max(
        (n for one in results for n, p in one.group.diagonal.items() if p.region == "in_distribution"), default=0
    )


def unconverged_notes(groups: Sequence[Group]) -> list[str]:
    """Sentences on the seeds that did not converge, by group and checkpoint."""
    return [_sentence(one) for one in convergence_results(groups) if one.unconverged_runs]


SYMMETRY = "by a symmetry"
"""Label of a group that cannot converge with any weights."""


def success_caption(groups: Sequence[Group]) -> str:
    """The caption of the table."""
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


def success_table(groups: Sequence[Group]) -> str:
    """The table as HTML; "" if every group has one seed."""
    if all(len(group.evaluated_cells) < 2 for group in groups):
        return ""
    results = convergence_results(groups)
    lengths = table_lengths(results)
    if not lengths:
        return ""
    longest = _max_trained_length(results)
    head = "".join(f'<th class="num">n = {n}{" (in distribution)" * (n <= longest)}</th>' for n in lengths)
    rows, before = [], ""
    for one in results:
        label = escape(one.group.label) if one.group.label != before else ""
        before = one.group.label
        count, interval = one.converged_text.split(" ", 1)
        interval_text = interval.replace(" ", "\N{NO-BREAK SPACE}")
        converged = f'{count} <span class="quiet">{interval_text}</span>'
        start = f'<td>{label}</td><td>{one.checkpoint}</td><td class="num">{converged}</td>'
        if one.group.non_causal_reason is not None:
            why = escape(f"{NOT_COMPARABLE}: {one.group.non_causal_reason}")
            body = f'<td class="quiet" colspan="{len(lengths)}">{why}</td>'
        elif one.scored_runs:
            at = one.results_by_length
            body = "".join(f'<td class="num">{_cell(at[n])}</td>' if n in at else "<td></td>" for n in lengths)
        else:
            text = f"did not converge in this budget: {_unconverged_text(one)}"
            body = f'<td class="quiet" colspan="{len(lengths)}">{text}</td>'
        rows.append(f"<tr>{start}{body}</tr>")
    for label, baselines in _baselines(results):
        texts = (f"{format_percent(baselines[n])} %" if n in baselines else "" for n in lengths)
        cells = "".join(f'<td class="num quiet">{text}</td>' for text in texts)
        rows.append(f'<tr><td class="quiet">{escape(label)}</td><td></td><td></td>{cells}</tr>')
    some = [_sentence(one) for one in results if one.scored_runs and one.unconverged_runs]
    notes = f'<ul class="reading">{"".join(f"<li>{escape(line)}.</li>" for line in some)}</ul>' if some else ""
    if len(some) > MAX_NAMES:
        notes = f"<details><summary>{len(some)} with seeds that did not converge</summary>{notes}</details>"
    return (
        '<div class="scroll"><table class="data tight"><thead><tr><th>group</th><th>checkpoint</th>'
        f'<th class="num">converged</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f"<figcaption>{escape(success_caption(groups))}</figcaption>{notes}"
    )


def _cell(at: LengthResult) -> str:
    """The count and its interval, the median below."""
    count, interval = at.text.split(" ", 1)
    quiet = interval[: interval.index("]") + 1].replace(" ", "\N{NO-BREAK SPACE}")
    return f'<b>{count}</b> <span class="quiet">{quiet}</span><br>{format_percent(at.median)} %'


def _unconverged_text(one: ConvergenceResult) -> str:
    """`0.9 % (seed 0), 12 % (seed 3)`."""
    return ", ".join(f"{format_percent(share)} % (seed {run.seed})" for run, share in one.unconverged_runs)


def _sentence(one: ConvergenceResult) -> str:
    if one.cannot_converge:
        return f"{one.group.label} ({one.checkpoint}) cannot converge, {SYMMETRY}: {_unconverged_text(one)} correct"
    who = "has seeds that did not converge" if one.converged_runs else "did not converge in this budget"
    return f"{one.group.label} ({one.checkpoint}) {who}: {_unconverged_text(one)} correct in distribution"


def study_summary(groups: Sequence[Group]) -> str:
    """The summary of a study of many groups and seeds in a few clauses; "" for fewer than four groups.

    "5 of 6 groups converged in at least one seed (converged seeds: Abacus 5/5, looped 4/5, ...); ..."
    """
    all_groups, groups = groups, comparable_groups(groups)
    results = convergence_results(groups)
    results = [one for one in results if one.checkpoint == "final"] or results
    if len(groups) < 4 or all(one.num_seeds < 2 for one in results):
        return ""
    converged = [one for one in results if one.converged_runs]
    unconverged = [one for one in results if not one.scored_runs]
    symmetry_limited = [one.group.label for one in results if one.cannot_converge]
    clauses = []
    if converged:
        counts = _join_texts([f"{one.group.label} {len(one.converged_runs)}/{one.num_seeds}" for one in converged])
        everyone = f"all {len(results)}" if len(converged) == len(results) else f"{len(converged)} of {len(results)}"
        clauses.append(f"{everyone} groups converged in at least one seed (converged seeds: {counts})")
    if unconverged:
        names = join_names([one.group.label for one in unconverged])
        clauses.append(f"{names} did not converge in this budget, so how far they would generalize is unknown")
    if symmetry_limited:
        clauses.append(f"{join_names(symmetry_limited)} cannot converge, {SYMMETRY}")
    farthest_by_label = {one.group.label: (_farthest_length(one), one) for one in converged}
    generalizing = sorted(
        (pair for pair in farthest_by_label.values() if pair[0] is not None), key=lambda pair: -(pair[0] or 0)
    )
    if generalizing:
        lengths = _join_texts(
            [
                f"{one.group.label} up to n = {n} ({one.results_by_length[n].text.split(' ')[0]} seeds)"
                for n, one in generalizing
                if n
            ]
        )
        clauses.append(
            f"most converged seeds have {format_percent(SUCCESS_THRESHOLD)} % or more at every evaluated length up to "
            f"n: {lengths}"
        )
    not_generalizing = [one.group.label for n, one in farthest_by_label.values() if n is None]
    if not_generalizing:
        verb = "does" if len(not_generalizing) == 1 else "do"
        clauses.append(f"{join_names(not_generalizing)} {verb} not reach this at the first OOD length")
    text = "; ".join([*clauses, *not_comparable_notes(all_groups), *symmetry_notes(all_groups)])
    # Do not capitalize the name of a run.
    starts_with_name = any(text.startswith(one.group.label) for one in results)
    return (text if starts_with_name else text[:1].upper() + text[1:]) + "."


def _farthest_length(one: ConvergenceResult) -> int | None:
    """The last OOD n such that most converged seeds succeed at each OOD length up to it."""
    regions_at = {n: point.region for n, point in one.group.diagonal.items()}
    longest, farthest = max((n for n, region in regions_at.items() if region == "in_distribution"), default=0), None
    for n, at in one.results_by_length.items():
        if n > longest:
            if at.rate.value <= 0.5:
                break
            farthest = n if is_clearly_above(SUCCESS_THRESHOLD, at.baseline) else farthest
    return farthest


def _join_texts(texts: Sequence[str]) -> str:
    return ", ".join(texts) if len(texts) <= MAX_NAMES else join_names(texts)

"""The success table of a study: which seeds converged, and to which lengths those generalize.

A seed that did not learn its training task is listed as not converged within its budget, not as a failure to
generalize: rates are over the converged seeds.
"""

from collections.abc import Sequence
from statistics import median

from numerate.evaluation.labels import METRICS
from numerate.evaluation.statistics import success_rate
from numerate.reports.content import Content
from numerate.reports.grid import baseline_ranges, format_counts, format_interval, format_percent, join_names
from numerate.reports.groups import CONVERGENCE_THRESHOLD, NOT_COMPARABLE, Group, common_metric_label
from numerate.reports.table import TextTable

SUCCESS_THRESHOLD = 0.99
"""The minimum accuracy of a successful seed at a length."""

MAX_LENGTHS = 7
"""Maximum number of length columns in a table."""

MAX_NAMED_SEEDS = 3
"""Seeds that did not converge that a row names; beyond it the others are counted."""


def length_curves(groups: Sequence[Group]) -> tuple[list[tuple[Group, str]], str]:
    """The groups drawn by length, each with a suffix of its label ("4 of 5 seeds"), and a sentence about omitted ones.

    In a study only converged seeds are drawn, and no group without any; if every group has one seed, or nothing
    converged, all are drawn and labeled accordingly."""
    curves, unconverged_labels = [], []
    converged_groups = [group.converged_group for group in groups]
    study = any(len(group.evaluated_cells) > 1 for group in groups) and any(
        one.evaluated_cells for one in converged_groups
    )
    for group, one in zip(groups, converged_groups, strict=True):
        seeds, count = len(group.evaluated_cells), len(one.evaluated_cells)
        suffix = [f"{seeds} seeds"] * (seeds > 1)
        if study and seeds and not count:
            unconverged_labels.append(f"{group.label} (0 of {seeds})")
        elif study:
            curves.append((one, "".join(suffix) if count == seeds else f"{count} of {seeds} seeds"))
        else:
            curves.append((group, ", ".join(suffix + ["did not converge"] * (seeds > 0 and not count))))
    return curves, f"Not drawn, as no seed converged: {', '.join(unconverged_labels)}." if unconverged_labels else ""


def table_lengths(groups: Sequence[Group]) -> list[int]:
    """The lengths with a column: the longest trained one, the next two, and 1.5, 2, 2.5, 3, 4, 10, 100 and 1,000 times
    it, where evaluated; beyond `MAX_LENGTHS` the second next, 2.5, 3 and 1.5 times and the next are dropped in this
    order.

    Trained on 1 to 6 digits and evaluated on 1 to 18: 6, 7, 8, 9, 12, 15, 18; on 50 and up to 200: 50, 51, 75, 100,
    125, 150, 200. Lengths at which memorizing alone succeeds have no column.
    """
    baselines = baseline_ranges(group.diagonal for group in groups)
    lengths = {n for group in groups for n in group.diagonal}
    evaluated = sorted(n for n in lengths if n not in baselines or baselines[n][0] < SUCCESS_THRESHOLD)
    longest = _longest_trained(groups)
    wanted = {longest, longest + 1, longest + 2, *(longest * half // 2 for half in (3, 4, 5, 6, 8)), *evaluated[-1:]}
    wanted |= {longest * factor for factor in (10, 100, 1000)}
    lengths_shown = [n for n in evaluated if n in wanted]
    for less in (longest + 2, longest * 5 // 2, longest * 3, longest * 3 // 2, longest + 1):
        if len(lengths_shown) > MAX_LENGTHS and less != evaluated[-1]:
            lengths_shown = [n for n in lengths_shown if n != less]
    return lengths_shown


def _longest_trained(groups: Sequence[Group]) -> int:
    points = [pair for group in groups for pair in group.diagonal.items()]
    return max((n for n, point in points if point.region == "in_distribution"), default=0)


def success_content(groups: Sequence[Group]) -> Content:
    """The success table; empty if every group has one seed."""
    return [success_table(groups)] if any(len(group.evaluated_cells) > 1 for group in groups) else []


def success_table(groups: Sequence[Group]) -> TextTable:
    """Group, checkpoint, converged seeds, then by length how many of these succeed; no rows without lengths."""
    results = [one for group in groups for one in group.at_checkpoints if one.in_distribution_scores]
    lengths, trained = table_lengths(results), _longest_trained(results)
    rows = []
    for one in results if lengths else ():
        texts = _texts_by_length(one)
        cells = [texts.get(n, "") for n in lengths]
        if one.non_causal_reason is not None:
            cells = [f"{NOT_COMPARABLE}: {one.non_causal_reason}", *[""] * (len(lengths) - 1)]
        elif not one.converged_group.evaluated_cells:
            cells = ["did not converge", *cells[1:]]
        rows.append([one.label, one.checkpoint_label, _converged_text(one), *cells])
    if (baselines := baseline_ranges(one.diagonal for one in results)) and lengths:
        texts = {n: " to ".join(dict.fromkeys(map(format_percent, ends))) + " %" for n, ends in baselines.items()}
        rows.append(["baseline", "", "", *(texts.get(n, "") for n in lengths)])
    header = ["group", "checkpoint", "converged", *(f"n={n:,}{' (in distribution)' * (n <= trained)}" for n in lengths)]
    return TextTable(header, rows, caption=_caption(groups), style="tight")


def _texts_by_length(group: Group) -> dict[int, str]:
    """By length the successes of the converged seeds, in every stratum of that length too, with Wilson's interval;
    below them their median accuracy."""
    texts = {}
    for n, point in group.converged_group.diagonal.items():
        scores = list(point.seed_scores)
        for one in group.converged_group.strata:
            if group.stratum_size(one) == n and len(one.seed_scores) == len(scores):
                scores = list(map(min, scores, one.seed_scores))
        rate = success_rate(scores, SUCCESS_THRESHOLD)
        interval = format_interval(rate.low, rate.high, 0)
        texts[n] = f"{format_counts(rate)} {interval}\n{format_percent(median(point.seed_scores))} %"
    return texts


def _converged_text(group: Group) -> str:
    """`4/5 [38, 96]`: the converged seeds with Wilson's interval in per cent; below them the others by their
    accuracy in distribution, as far as there is room."""
    rate = group.convergence_rate
    failed = [
        f"seed {run.seed}: {format_percent(score)} %"
        for run, score in group.in_distribution_scores
        if score < CONVERGENCE_THRESHOLD
    ]
    text = "" if rate is None else f"{format_counts(rate)} {format_interval(rate.low, rate.high, 0)}"
    return "\n".join([text, join_names(failed, MAX_NAMED_SEEDS)]) if failed else text


def _caption(groups: Sequence[Group]) -> str:
    metric = common_metric_label(groups)
    best = any(cell.checkpoint == "best" for group in groups for run in group.runs for cell in run.cells)
    strata = " and in every stratum measured there" * any(group.strata for group in groups)
    names = {METRICS["ood_accuracy"]: METRICS["accuracy"], METRICS["exact_match"]: "held-out questions"}
    within = names.get(metric, metric)
    return (
        f"A seed has converged with at least {format_percent(CONVERGENCE_THRESHOLD)} % in distribution ({within}); the "
        "number of converged seeds has Wilson's 95 % interval in per cent, and below it are the other seeds. By length "
        f"n: the number of converged seeds with at least {format_percent(SUCCESS_THRESHOLD)} %{strata}, with Wilson's "
        f"95 % interval in per cent, and their median {metric} in per cent. Seeds that did not converge are not "
        "counted."
        + " “best” is the checkpoint with the best score on OOD validation, which is excluded from its results."
        * best
    )

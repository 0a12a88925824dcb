"""Tables of the numbers of parts: one for each metric and region, to fit on a page."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from numerate.evaluation.sums import CELL_MEAN_SUFFIX
from numerate.reports.drawing import collapsible
from numerate.reports.figure import assign_styles
from numerate.reports.groups import Group, part_axis, region_labels
from numerate.reports.limits import MAX_POINT_GROUPS, groups_to_draw
from numerate.reports.metrics import (
    CHECKPOINTS,
    EXACT_MATCH,
    METRIC_LABELS,
    SAME_CHECKPOINT,
    GroupAtCheckpoint,
    MetricKey,
    charted_metrics,
    computed_metrics,
    format_median,
    groups_at_checkpoints,
    is_proportion,
    metric_title,
    named_parts,
)
from numerate.reports.svg_writer import breakable_html, inline_marker
from numerate.reports.table import text_table

MAX_COLUMNS = 6
"""Maximum number of columns; wider tables are split."""

MAX_TERMINAL_GROUPS = 4
"""Maximum number of groups side by side in a terminal."""

_BEST_CHECKPOINT_NOTE = "The best checkpoint has the highest validation accuracy in distribution."


def metric_tables(groups: Sequence[Group]) -> str:
    """The numbers of tasks whose cells are parts, as HTML: a table for each metric with a row per group; of a single
    group a row per part. "" if nothing was evaluated."""
    groups_at_checkpoint = [one for one in groups_at_checkpoints(groups) if one.metrics_by_seed]
    if not groups_at_checkpoint:
        return ""
    named = named_parts(groups)
    words = region_labels(groups)
    metrics = computed_metrics(groups_at_checkpoint)
    if len(groups) == 1:
        body = _table_of_group(groups_at_checkpoint, named, words, metrics)
    else:
        body = "".join(_tables_of_metric(groups_at_checkpoint, name, named, words, groups) for name in metrics)
    return f"{body}<figcaption>{escape(metric_tables_caption(groups_at_checkpoint, groups))}</figcaption>"


def metric_tables_caption(groups_at_checkpoint: Sequence[GroupAtCheckpoint], groups: Sequence[Group]) -> str:
    """The caption of the tables."""
    axis = part_axis(groups)
    counts = {len(one.metrics_by_seed) for one in groups_at_checkpoint}
    parts = [f"All: over all questions of the {axis}s together. Mean: over the {axis}s with equal weight."]
    if counts != {1}:
        parts.append("Medians over seeds; in brackets the lowest and the highest seed.")
    elif any(
        one.interval(key, "exact_match")
        for one in groups_at_checkpoint
        for _, metrics in one.metrics_by_seed
        for key in metrics
    ):
        parts.append("In brackets the 95 % interval over questions.")
    there = computed_metrics(groups_at_checkpoint)
    if len(groups) == 1:
        parts.append("; ".join(f"{name}: {METRIC_LABELS[name]}" for name in there if name != EXACT_MATCH) + ".")
    if "missing" in there:
        parts.append(
            "An answer without a number is wrong and has no error: it is excluded from errors, R² and correlations, "
            "and counts as missing or invalid."
        )
    if "clipped" in there:
        parts.append("Clipped numbers count in errors and correlations as 1e10, or ten times the target, in size.")
    if {one.checkpoint for one in groups_at_checkpoint} == {SAME_CHECKPOINT}:
        parts.append("The final checkpoint is the best one too, on held-out questions of what is trained.")
    elif any(one.checkpoint != CHECKPOINTS[0] for one in groups_at_checkpoint):
        parts.append(_BEST_CHECKPOINT_NOTE)
    return " ".join(parts)


def _tables_of_metric(
    groups_at_checkpoint: Sequence[GroupAtCheckpoint],
    metric: str,
    named: Mapping[str, list[tuple[MetricKey, str]]],
    words: Mapping[str, str],
    groups: Sequence[Group],
) -> str:
    """The tables of a metric, one for each region; folded unless it has a chart."""
    styled = assign_styles([group.label for group in groups_to_draw(groups, MAX_POINT_GROUPS)])
    tables = []
    for region, parts in named.items():
        columns = [("all", MetricKey(region), metric), ("mean", MetricKey(region), f"{metric}{CELL_MEAN_SUFFIX}")]
        columns = [*((name, key, metric) for key, name in parts), *(columns if len(parts) > 1 else [])]
        for begin, end in _column_ranges(len(columns)):
            cut = columns[begin:end]
            head = "".join(f'<th class="num">{breakable_html(name)}</th>' for name, _, _ in cut)
            evaluated = [one for one in groups_at_checkpoint if any(one.values(key, name) for _, key, name in cut)]
            has_several_checkpoints = len({one.checkpoint for one in evaluated}) > 1
            head = "<th></th>" + '<th class="when"></th>' * has_several_checkpoints + head
            rows, before = [], ""
            for one in evaluated:
                cells = "".join(_cell(one, key, name) for _, key, name in cut)
                first = ""
                if one.group.label != before:
                    style = styled.get(one.group.label)
                    first = f"{inline_marker(style) if style else ''}{escape(one.group.label)}"
                before = one.group.label
                quiet = f'<td class="quiet">{one.checkpoint}</td>' * has_several_checkpoints
                rows.append(f'<tr><td class="marked">{first}</td>{quiet}{cells}</tr>')
            tables.append(_table(words[region], head, rows))
    title, body = escape(metric_title(metric)), f'<div class="tables">{"".join(tables)}</div>'
    if metric in charted_metrics(groups_at_checkpoint):
        return f'<h3 class="measure">{title}</h3>{body}'
    return f"<details><summary>{title}</summary>{body}</details>"


def _table_of_group(
    several: Sequence[GroupAtCheckpoint],
    named: Mapping[str, list[tuple[MetricKey, str]]],
    words: Mapping[str, str],
    there: Sequence[str],
) -> str:
    """The table of one group: a row per part and per region, a column per metric."""
    lines: list[tuple[str, MetricKey, str]] = []
    for region, parts in named.items():
        region_lines = [
            (f"all {words[region]}", MetricKey(region), ""),
            (f"mean of {words[region]}", MetricKey(region), CELL_MEAN_SUFFIX),
        ]
        lines += [(name, key, "") for key, name in parts] + (region_lines if len(parts) > 1 else [])
    tables = []
    for begin, end in _column_ranges(len(there)):
        cut = there[begin:end]
        head = "".join(
            f'<th class="num"><span title="{escape(METRIC_LABELS[name])}">{_head(name)}</span></th>' for name in cut
        )
        has_several_checkpoints = len(several) > 1
        head = "<th></th>" + "<th>checkpoint</th>" * has_several_checkpoints + head
        rows = []
        for name, key, suffix in lines:
            for i, one in enumerate(several):
                cells = "".join(_cell(one, key, f"{metric}{suffix}") for metric in cut)
                label = escape(name) if suffix or key.part is None else breakable_html(name)
                kind = ' class="whole"' * (key.part is None)
                quiet = f'<td class="quiet">{one.checkpoint}</td>' * has_several_checkpoints
                rows.append(f"<tr{kind}><td>{label if i == 0 else ''}</td>{quiet}{cells}</tr>")
        tables.append(_table("", head, rows))
    return "".join(tables)


def _head(metric: str) -> str:
    """The column header of a metric: its name in commands."""
    words = METRIC_LABELS[metric] if metric == EXACT_MATCH else metric
    return breakable_html(words) + ", %" * is_proportion(metric)


def _column_ranges(count: int) -> list[tuple[int, int]]:
    """Ranges of about equal length, at most `MAX_COLUMNS` each.

    >>> _column_ranges(8)
    [(0, 4), (4, 8)]
    """
    pieces = -(-count // MAX_COLUMNS)
    return list(pairwise(count * i // pieces for i in range(pieces + 1)))


def _cell(one: GroupAtCheckpoint, key: MetricKey, metric: str) -> str:
    middle, ends = format_median(one, key, metric)
    return f'<td class="num">{middle}{f"<br><span class=quiet>{ends}</span>" if ends else ""}</td>'


def _table(title: str, head: str, rows: Sequence[str]) -> str:
    body = f'<table class="data tight parts"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    above = f"<h4>{escape(title)}</h4>" if title else ""
    return (
        f'<div>{above}{collapsible(f"""<div class="scroll">{body}</div>""", len(rows), f"All {len(rows)} lines")}</div>'
    )


def metric_tables_text(groups: Sequence[Group]) -> str:
    """The tables of parts for a terminal, for each metric with a chart and every few groups."""
    tables = []
    for metric in charted_metrics(groups_at_checkpoints(groups)):
        for begin in range(0, len(groups), MAX_TERMINAL_GROUPS):
            text = text_table(*metric_rows(groups[begin : begin + MAX_TERMINAL_GROUPS], metric))
            tables.append(f"{metric_title(metric)}\n{text}")
    return "\n\n".join(tables)


def metric_rows(groups: Sequence[Group], metric: str = "exact_match") -> tuple[list[str], list[list[str]]]:
    """A metric as text: a row per part and per region, a column per group."""
    several = [one for one in groups_at_checkpoints(groups) if one.metrics_by_seed and one.checkpoint != "best"]
    named, words = named_parts(groups), region_labels(groups)
    header = [part_axis(groups), "region", *(f"{one.group.label}" for one in several)]
    rows = []
    for region, parts in named.items():
        lines = [(name, key, metric) for key, name in parts]
        if len(parts) > 1:
            lines += [("all", MetricKey(region), metric), ("mean", MetricKey(region), f"{metric}{CELL_MEAN_SUFFIX}")]
        for name, key, what in lines:
            rows.append(
                [name, words[region], *(" ".join(filter(None, format_median(one, key, what))) for one in several)]
            )
    return header, rows

"""Tables of the numbers of parts: one for each metric and region, to fit on a page."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from numerate.evaluation.sums import BY_MODULE
from numerate.reports.charts import styles
from numerate.reports.drawing import folded, mark, wrapping
from numerate.reports.groups import Group, part_axis, region_words
from numerate.reports.limits import MOST_POINTS, drawn
from numerate.reports.measures import (
    CHECKPOINTS,
    EXACT,
    SAME,
    WORDS,
    GroupAtCheckpoint,
    MeasureKey,
    is_share,
    measures_drawn,
    measures_there,
    median_texts,
    parts_of,
    shown,
    title_of,
)
from numerate.reports.table import text_table

MOST_COLUMNS = 6
"""Maximum number of columns; wider tables are split."""

MOST_GROUPS = 4
"""Maximum number of groups side by side in a terminal."""

_CHANCE = "The best checkpoint is the one that did best on held-out questions of what is trained."


def measure_tables(groups: Sequence[Group]) -> str:
    """The numbers of tasks whose cells are parts, as HTML: a table for each metric with a row per group; of a single
    group a row per part. "" where nothing was evaluated."""
    several = [one for one in shown(groups) if one.seeds]
    if not several:
        return ""
    named = parts_of(groups)
    words = region_words(groups)
    there = measures_there(several)
    if len(groups) == 1:
        body = _of_one(several, named, words, there)
    else:
        body = "".join(_of_measure(several, name, named, words, groups) for name in there)
    return f"{body}<figcaption>{escape(note(several, groups))}</figcaption>"


def note(several: Sequence[GroupAtCheckpoint], groups: Sequence[Group]) -> str:
    """The caption of the tables."""
    axis = part_axis(groups)
    counts = {len(one.seeds) for one in several}
    parts = [f"All: over all questions of the {axis}s together. Mean: over the {axis}s with equal weight."]
    if counts != {1}:
        parts.append("Medians over seeds; in brackets the lowest and the highest seed.")
    elif any(one.interval(key, "exact") for one in several for _, measures in one.seeds for key in measures):
        parts.append("In brackets the 95 % interval over questions.")
    there = measures_there(several)
    if len(groups) == 1:
        parts.append("; ".join(f"{name}: {WORDS[name]}" for name in there if name != EXACT) + ".")
    if "missing" in there:
        parts.append(
            "An answer without a number is wrong and has no error: it is excluded from errors, R² and correlations, "
            "and counts as missing or invalid."
        )
    if "clipped" in there:
        parts.append("Clipped numbers count in errors and correlations as 1e10, or ten times the target, in size.")
    if {one.checkpoint for one in several} == {SAME}:
        parts.append("The final checkpoint is the best one too, on held-out questions of what is trained.")
    elif any(one.checkpoint != CHECKPOINTS[0] for one in several):
        parts.append(_CHANCE)
    return " ".join(parts)


def _of_measure(
    several: Sequence[GroupAtCheckpoint],
    measure: str,
    named: Mapping[str, list[tuple[MeasureKey, str]]],
    words: Mapping[str, str],
    groups: Sequence[Group],
) -> str:
    """The tables of a metric, one for each region; folded unless it has a chart."""
    styled = styles([group.label for group in drawn(groups, MOST_POINTS)])
    tables = []
    for region, parts in named.items():
        columns = [("all", MeasureKey(region), measure), ("mean", MeasureKey(region), f"{measure}{BY_MODULE}")]
        columns = [*((name, key, measure) for key, name in parts), *(columns if len(parts) > 1 else [])]
        for begin, end in _cuts(len(columns)):
            cut = columns[begin:end]
            head = "".join(f'<th class="num">{wrapping(name)}</th>' for name, _, _ in cut)
            evaluated = [one for one in several if any(one.values(key, name) for _, key, name in cut)]
            several_there = len({one.checkpoint for one in evaluated}) > 1
            head = "<th></th>" + '<th class="when"></th>' * several_there + head
            rows, before = [], ""
            for one in evaluated:
                cells = "".join(_cell(one, key, name) for _, key, name in cut)
                first = ""
                if one.group.label != before:
                    style = styled.get(one.group.label)
                    first = f"{mark(style) if style else ''}{escape(one.group.label)}"
                before = one.group.label
                quiet = f'<td class="quiet">{one.checkpoint}</td>' * several_there
                rows.append(f'<tr><td class="marked">{first}</td>{quiet}{cells}</tr>')
            tables.append(_table(words[region], head, rows))
    title, body = escape(title_of(measure)), f'<div class="tables">{"".join(tables)}</div>'
    if measure in measures_drawn(several):
        return f'<h3 class="measure">{title}</h3>{body}'
    return f"<details><summary>{title}</summary>{body}</details>"


def _of_one(
    several: Sequence[GroupAtCheckpoint],
    named: Mapping[str, list[tuple[MeasureKey, str]]],
    words: Mapping[str, str],
    there: Sequence[str],
) -> str:
    """The table of one group: a row per part and per region, a column per metric."""
    lines: list[tuple[str, MeasureKey, str]] = []
    for region, parts in named.items():
        whole = [
            (f"all {words[region]}", MeasureKey(region), ""),
            (f"mean of {words[region]}", MeasureKey(region), BY_MODULE),
        ]
        lines += [(name, key, "") for key, name in parts] + (whole if len(parts) > 1 else [])
    tables = []
    for begin, end in _cuts(len(there)):
        cut = there[begin:end]
        head = "".join(f'<th class="num"><span title="{escape(WORDS[name])}">{_head(name)}</span></th>' for name in cut)
        several_there = len(several) > 1
        head = "<th></th>" + "<th>checkpoint</th>" * several_there + head
        rows = []
        for name, key, way in lines:
            for i, one in enumerate(several):
                cells = "".join(_cell(one, key, f"{measure}{way}") for measure in cut)
                label = escape(name) if way or key.part is None else wrapping(name)
                kind = ' class="whole"' * (key.part is None)
                quiet = f'<td class="quiet">{one.checkpoint}</td>' * several_there
                rows.append(f"<tr{kind}><td>{label if i == 0 else ''}</td>{quiet}{cells}</tr>")
        tables.append(_table("", head, rows))
    return "".join(tables)


def _head(measure: str) -> str:
    """The column header of a metric: its name in commands."""
    words = WORDS[measure] if measure == EXACT else measure
    return wrapping(words) + ", %" * is_share(measure)


def _cuts(count: int) -> list[tuple[int, int]]:
    """Ranges of about equal length, at most `MOST_COLUMNS` each.

    >>> _cuts(8)
    [(0, 4), (4, 8)]
    """
    pieces = -(-count // MOST_COLUMNS)
    return list(pairwise(count * i // pieces for i in range(pieces + 1)))


def _cell(one: GroupAtCheckpoint, key: MeasureKey, measure: str) -> str:
    middle, ends = median_texts(one, key, measure)
    return f'<td class="num">{middle}{f"<br><span class=quiet>{ends}</span>" if ends else ""}</td>'


def _table(title: str, head: str, rows: Sequence[str]) -> str:
    body = f'<table class="data tight parts"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    above = f"<h4>{escape(title)}</h4>" if title else ""
    return f'<div>{above}{folded(f"""<div class="scroll">{body}</div>""", len(rows), f"All {len(rows)} lines")}</div>'


def part_text(groups: Sequence[Group]) -> str:
    """The tables of parts for a terminal, for each metric with a chart and every few groups."""
    tables = []
    for measure in measures_drawn(shown(groups)):
        for begin in range(0, len(groups), MOST_GROUPS):
            text = text_table(*measure_rows(groups[begin : begin + MOST_GROUPS], measure))
            tables.append(f"{title_of(measure)}\n{text}")
    return "\n\n".join(tables)


def measure_rows(groups: Sequence[Group], measure: str = "exact") -> tuple[list[str], list[list[str]]]:
    """A metric as text: a row per part and per region, a column per group."""
    several = [one for one in shown(groups) if one.seeds and one.checkpoint != "best"]
    named, words = parts_of(groups), region_words(groups)
    header = [part_axis(groups), "region", *(f"{one.group.label}" for one in several)]
    rows = []
    for region, parts in named.items():
        lines = [(name, key, measure) for key, name in parts]
        if len(parts) > 1:
            lines += [("all", MeasureKey(region), measure), ("mean", MeasureKey(region), f"{measure}{BY_MODULE}")]
        for name, key, what in lines:
            rows.append(
                [name, words[region], *(" ".join(filter(None, median_texts(one, key, what))) for one in several)]
            )
    return header, rows

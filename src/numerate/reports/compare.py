"""Comparison of several runs and seeds: differences of recipes and of results."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from numerate.errors import UserError, did_you_mean
from numerate.evaluation.statistics import difference
from numerate.reports import overview, sections
from numerate.reports.answers import (
    answer_pair_rows,
    answer_pair_sentences,
    answer_pairs,
    answers,
    lacking,
    pairs_by,
    part_pairs,
    split_metric,
)
from numerate.reports.claims import no_claims
from numerate.reports.colour import TerminalStyle
from numerate.reports.counts import MEMORISED, by_count
from numerate.reports.curve import length_curve
from numerate.reports.drawing import chart_svg, folded, heat_map, table
from numerate.reports.finding import finding, outcome
from numerate.reports.forest import forest
from numerate.reports.grid import PlotGrid, bracket, floors_along, percent, place_words
from numerate.reports.groups import Group, by_metric, by_parts, differing, grouped, region_words
from numerate.reports.heat_map import heat_map as terminal_map
from numerate.reports.heat_map import legend
from numerate.reports.how_to_read import reading
from numerate.reports.language import language_text
from numerate.reports.language_page import comparison_body, running
from numerate.reports.limits import (
    MOST_BESIDE,
    MOST_SEED_CELLS,
    MOST_SEED_MAPS,
    drawn,
    left_out,
)
from numerate.reports.measure_tables import measure_tables, part_text
from numerate.reports.missing import missing_words
from numerate.reports.page import write_text
from numerate.reports.pairs import SIGNIFICANCE_NOTE, pair_rows, pair_sentences, pair_table, pairs_of
from numerate.reports.records import Records, read_each
from numerate.reports.sheet import page
from numerate.reports.small_map import small_map
from numerate.reports.success import by_length, note_of, study_finding, success_rows, success_table, unconverged
from numerate.reports.table import beside, text_table, text_width
from numerate.reports.tasks import by_task


def write_comparison(
    folders: Sequence[str | Path],
    path: str | Path,
    *,
    title: str = "",
    labels: Mapping[str, str] | None = None,
    baseline: str | None = None,
    failed: Sequence[tuple[str, str]] = (),
    absent: Sequence[str] = (),
    metric: str | None = None,
) -> Path:
    """Writes one offline HTML page about several runs and returns its path.

    Runs that differ in the seed alone form a group, shown by median, range and success rate. `labels` renames groups
    (`{"addition_abacus": "Abacus"}`). `baseline` is the label of the group listed first, with which all others are
    compared where they are many (default: the first one). `failed` are failed runs with their errors, and `absent`
    variants without any run; the page starts with them. `metric` is the metric of the page (default: `Group.metric`);
    one of numbers or texts, such as `log_mae`, adds tests, the rest of the page stays on exact match. Raises
    `UserError` for no folders, a folder that is no run, a baseline that is no group, or a metric that they lack.
    """
    measure, answer = split_metric(metric)
    groups = with_baseline(by_metric(grouped(_read(folders), labels), measure), baseline)
    lacking(groups, answer)
    return write_text(Path(path), comparison_page(groups, title, failed=failed, absent=absent, answer=answer))


def write_figure(
    folders: Sequence[str | Path],
    path: str | Path,
    *,
    labels: Mapping[str, str] | None = None,
    metric: str | None = None,
) -> Path:
    """Writes the figure of a comparison for a paper, .png, .svg or .pdf by its suffix, and returns its path.

    A heat map per group of runs, the training square marked, and all groups by length with their intervals. Raises
    `UserError` for another ending, no folders, or runs that were not evaluated on a grid.
    """
    from numerate.reports.figures import save
    from numerate.reports.plots import compare_figure

    measure, answer = split_metric(metric)
    if answer is not None:
        raise UserError(f"metric: {answer} has no figure; out=compare.html has its tests")
    return save(compare_figure(by_metric(grouped(_read(folders), labels), measure)), path)


def with_baseline(groups: Sequence[Group], baseline: str | None) -> list[Group]:
    """The groups with the baseline first. Raises `UserError` where none is called so."""
    if baseline is None:
        return list(groups)
    labels = [group.label for group in groups]
    if baseline not in labels:
        known = f"there are: {', '.join(labels)}.{did_you_mean(baseline, labels)}"
        raise UserError(f"baseline: no group is called {baseline!r}; {known}")
    first = groups[labels.index(baseline)]
    return [first, *(group for group in groups if group is not first)]


def comparison_page(
    groups: Sequence[Group],
    title: str = "",
    *,
    failed: Sequence[tuple[str, str]] = (),
    absent: Sequence[str] = (),
    answer: str | None = None,
) -> str:
    """The page as text; `failed` and `absent` as in `write_comparison`, `answer` a metric of numbers or texts."""
    # One run may be in several groups, evaluated with other settings; it counts once.
    runs = list({str(run.folder): run for group in groups for run in group.runs}.values())
    title = title or " and ".join(group.label for group in groups[:4]) + (" ..." if len(groups) > 4 else "")
    seeds = sorted({len(group.runs) for group in groups})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    what = f"{len(runs)} run{'s' * (len(runs) != 1)}, {number} seed{'s' * (seeds != [1])} each"
    body = [
        f'<p class="over">numerate · a comparison · {what}</p><h1>{escape(title)}</h1>',
        sections.warning(missing_words(len(runs), failed, absent)),
        sections.warning("; ".join(no_claims(groups))),
        *_by_task(groups, answer),
        sections.heading("To run it again", sections.reproduce(runs)),
        sections.heading("Left out of this report", sections.warnings(runs)),
    ]
    return page(title, "\n".join(part for part in body if part))


def _by_task(groups: Sequence[Group], answer: str | None) -> list[str]:
    """The sections of all groups; for several tasks the finding of each first, then its sections."""
    if texts := running(groups):
        others = [group for group in groups if group not in texts]
        different = sections.heading("What differs between the recipes", _differences(texts))
        rest = f'<h1 style="margin-top:4rem">{escape(_names(others))}</h1>'
        return [*comparison_body(texts), different, *([rest, *_by_task(others, answer)] if others else [])]
    tasks = by_task(groups)
    if len(tasks) == 1:
        return [sections.sentence(study_finding(groups) or finding(groups)), *_sections(groups, answer)]
    findings = [
        f"<h3>{escape(task.name)}</h3>{sections.sentence(study_finding(task.groups) or finding(task.groups))}"
        for task in tasks
    ]
    rows = [[escape(task.name), f"{len(task.groups)}", escape(task.words)] for task in tasks]
    note = (
        "Tasks are not compared with each other: each has its own figures, tables and tests below, corrected for the "
        "pairs of that task alone."
    )
    summary = f"{table(['task', 'groups', 'as trained'], rows, numbers=[1], mono=[2])}<figcaption>{note}</figcaption>"
    shown = [
        f'<section><h1 style="margin-top:4rem">{escape(task.name)}</h1>'
        f"{''.join(_sections(task.groups, answer))}</section>"
        for task in tasks
    ]
    return [*findings, sections.heading(f"{len(tasks)} tasks", summary), *shown]


def _names(groups: Sequence[Group]) -> str:
    """The labels of the first groups."""
    return ", ".join(group.label for group in groups[:4]) + ", ..." * (len(groups) > 4)


def _sections(groups: Sequence[Group], answer: str | None) -> list[str]:
    parts = by_parts(groups)
    return [
        sections.heading(f"Which groups differ in {answer}", answer_pairs(groups, answer)),
        sections.heading("Accuracy per count", by_count(groups)),
        sections.lengths(groups),
        sections.heading("The numbers", measure_tables(groups) if parts else ""),
        sections.heading("Which seeds converged, and how far those go", success_table(groups)),
        sections.heading("Over seeds", forest(groups)),
        sections.heading(
            "Which groups differ by more than chance", part_pairs(groups) if parts else pair_table(groups)
        ),
        sections.heading("What differs between the recipes", _differences(groups)),
        sections.heading("How to read this", reading(groups)),
        sections.heading("Regions", "" if parts else sections.region_table(groups)),
        sections.heading("Numbers and texts in the answers", "" if parts else answers(groups)),
        sections.heading("Length by length", _gaps(groups)),
        sections.heading("Seed by seed", _seeds(groups)),
        sections.heading("Training", sections.training(groups)),
        sections.heading("Samples", _samples(groups)),
    ]


def comparison_text(groups: Sequence[Group], look: TerminalStyle | None = None, answer: str | None = None) -> str:
    """The comparison for a terminal: heat maps side by side, the diagonal, the table of regions, the finding; of
    several tasks one after the other."""
    if texts := running(groups):
        others = [group for group in groups if group not in texts]
        if not others:
            return language_text(texts)
        parts = [(_names(texts), language_text(texts)), (_names(others), comparison_text(others, look, answer))]
        return "\n\n\n".join(f"{name}\n{'=' * text_width(name)}\n\n{text}" for name, text in parts)
    look, tasks = look or TerminalStyle(), by_task(groups)
    if len(tasks) == 1:
        return _text(groups, look, answer)
    return "\n\n\n".join(
        f"{task.name}\n{'=' * text_width(task.name)}\n\n{_text(task.groups, look, answer)}" for task in tasks
    )


def _text(groups: Sequence[Group], look: TerminalStyle, answer: str | None) -> str:
    shown = drawn(groups)
    squares = [_titled(grid, group.label) for group in shown for grid in group.grids if grid.row_axis]
    maps = [terminal_map(grid, look) for grid in squares]
    header, rows = sections.region_rows(shown)
    parts = [beside(maps, look.width) + "\n" + legend(look, squares)] if maps else []
    along = {group.label: group.diagonal for group in shown if group.diagonal}
    if along and not maps:
        curve = length_curve(along, look, axis="length")
        parts += [curve] if max(map(text_width, curve.splitlines())) <= max(look.width, 100) else []
    if by_parts(shown):
        parts.append(part_text(shown))
    else:
        parts += [text_table(header, rows)] if rows else []
    parts += [left_out(groups, shown)] if len(shown) < len(groups) else []
    if any(len(group.evaluated) > 1 for group in groups):
        header, rows = success_rows(groups)
        success = [text_table(header, rows), "\n".join([note_of(groups), *unconverged(groups)])]
        parts += success if rows and header[3:] else []
    found = pairs_of(groups)
    if found.pairs and not by_parts(groups):
        parts += [text_table(*pair_rows(found)), "\n".join([*pair_sentences(found), SIGNIFICANCE_NOTE])]
    parts += _answer_text(groups, answer) if answer is not None else []
    return "\n\n".join([*parts, study_finding(groups) or finding(groups)])


def _answer_text(groups: Sequence[Group], answer: str) -> list[str]:
    """The tests by a metric of numbers or texts."""
    pairs = pairs_by(groups, answer)
    if not pairs:
        return []
    return [
        text_table(*answer_pair_rows(pairs, answer)),
        "\n".join([*answer_pair_sentences(pairs, answer), SIGNIFICANCE_NOTE]),
    ]


def _titled(grid: PlotGrid, label: str) -> PlotGrid:
    title = f"{label}, {grid.title}" if grid.title else label
    return PlotGrid(grid.row_axis, grid.column_axis, grid.rows, grid.columns, grid.points, title)


def _read(folders: Sequence[str | Path]) -> list[Records]:
    if not folders:
        raise UserError("compare: no runs are named; for example numerate compare runs/a/1 runs/b/2")
    return read_each(folders)


def _differences(groups: Sequence[Group]) -> str:
    groups = sections.trained_once(groups)
    if len(groups) < 2:
        return ""
    recipes = [group.runs[0].recipe for group in groups]
    different = differing(recipes, short=len(groups) > 2)
    if not different:
        return ""
    whole = differing(recipes)
    rows = [
        [escape(path), *(_shortened(text, full) for text, full in zip(texts, whole[path], strict=True))]
        for path, texts in different.items()
    ]
    header = ["setting", *(escape(group.label) for group in groups)]
    if len(groups) > MOST_BESIDE:  # a row for each group
        lines = list(zip(*[header, *rows], strict=True))
        header, rows = ["group", *lines[0][1:]], [list(line) for line in lines[1:]]
    one = "They differ in this one setting; all others are equal." if len(different) == 1 else ""
    count = one or f"They differ in {len(different)} settings: a difference in the results may come from any of them."
    body = table(header, rows, mono=range(len(header)))
    return folded(body, len(rows), f"The settings of {len(groups)} groups") + f"<figcaption>{count}</figcaption>"


def _shortened(text: str, whole: str) -> str:
    """A shortened setting with the whole one as tooltip."""
    return escape(text) if text == whole else f'<span title="{escape(whole)}">{escape(text)}</span>'


def _gaps(groups: Sequence[Group]) -> str:
    """The accuracy of each drawn group by length; of two groups with one seed the difference with its interval."""
    shown = drawn(groups, MOST_BESIDE)
    curves, missed = by_length(shown)
    along = [curve.group.diagonal for curve in curves]
    lengths = sorted(set().union(*along))
    if not lengths:
        return ""
    floors = floors_along(along)
    pair = len(groups) == len(curves) == 2 and all(len(group.regions) == 1 for group in groups)
    rows = []
    for n in lengths:
        found = [points.get(n) for points in along]
        first = next(point for point in found if point is not None)
        row = [escape(place_words(first.at, groups[0].operator))]
        row += ["" if p is None else f"{percent(p.value)} {bracket(p.low, p.high)}" for p in found]
        if pair and found[0] is not None and found[1] is not None:
            one, other = ((round(p.value * p.count), p.count) for p in found if p is not None)
            gap = difference(one, other)
            row.append(f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]")
        elif pair:
            row.append("")
        region = region_words(groups).get(first.region, first.region)
        row += [_span(floors[n]) if n in floors else ""] * bool(floors)
        rows.append([*row, region.replace(" ", "\N{NO-BREAK SPACE}")])
    labels = [f"{escape(curve.label)}, %" for curve in curves]
    header = ["length", *labels, *(["difference, points"] * pair), *(["floor, %"] * bool(floors)), "region"]
    notes = ["Differences carry Newcombe's 95 % interval, for each length by itself."] * pair
    notes += [MEMORISED] * bool(floors)
    notes += [missed] * bool(missed)
    notes += [left_out(groups, shown)] * (len(shown) < len(groups))
    caption = f"<figcaption>{escape(' '.join(notes))}</figcaption>" if notes else ""
    shares = table(header, rows, numbers=range(1, len(header) - 1)) + caption
    return folded(shares, len(rows), f"All {len(rows)} lengths")


def _span(floors: tuple[float, float]) -> str:
    """The floor of a length, or the range where groups differ."""
    return " to ".join(map(percent, dict.fromkeys(floors)))


def _seeds(groups: Sequence[Group]) -> str:
    """A small map for each of several seeds, up to `MOST_SEED_MAPS`."""
    if all(len(group.runs) == 1 for group in groups) or by_parts(groups):
        return ""
    singles = [[replace(group, runs=(run,)) for run in group.runs] for group in groups]
    large = sum(len(single.points) for each in singles for single in each) > MOST_SEED_CELLS
    parts, maps = [], 0
    for group, each in zip(groups, singles, strict=True):
        panels = []
        for single in each:
            reach = f"<span class='quiet'>{escape(overview.reach_words(outcome(single)))}</span>"
            for grid in single.grids:
                maps += 1
                if maps <= MOST_SEED_MAPS:
                    drawing = _seed_map(single, grid, large)
                    panels.append(f"<figure><h3>seed {single.runs[0].seed}<br>{reach}</h3>{drawing}</figure>")
        if panels:
            parts.append(f'<h3>{escape(group.label)}</h3><div class="panels small">{"".join(panels)}</div>')
    if maps > MOST_SEED_MAPS:
        missing = f"{maps - MOST_SEED_MAPS} of {maps} maps are left out"
        parts.append(f'<p class="quiet">{missing}, which would make this page too long; each run has a report.</p>')
    return "".join(parts)


def _seed_map(single: Group, grid: PlotGrid, large: bool) -> str:
    if not grid.row_axis:
        return _strip(single)
    return small_map(grid) if large else heat_map(grid, single.operator, numbers=False)


def _strip(group: Group) -> str:
    return chart_svg(overview.length_chart([group])) if group.diagonal else ""


def _samples(groups: Sequence[Group]) -> str:
    """Predictions of all groups on shared questions; without any, the samples of each group."""
    groups = drawn(groups, 4)
    by_question = [{sample.question: sample for sample in group.runs[0].samples} for group in groups]
    shared = (
        [question for question in by_question[0] if all(question in table for table in by_question)] if groups else []
    )
    if shared:
        rows = []
        for question in shared[: sections.MOST_SAMPLES]:
            first = by_question[0][question]
            predictions = [sections.marked_prediction(table[question]) for table in by_question]
            rows.append(
                [
                    escape(place_words(first.at, groups[0].operator, first.names)),
                    escape(question),
                    escape(first.gold),
                    *predictions,
                ]
            )
        header = ["cell", "question", "truth", *(f"{escape(group.label)}" for group in groups)]
        return table(header, rows, mono=range(1, len(header)))
    parts = [
        f"<details><summary>{escape(group.label)}</summary>{found}</details>"
        for group in groups
        if (found := sections.samples(group.runs[0]))
    ]
    return "".join(parts)

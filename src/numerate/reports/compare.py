"""The comparison of several runs and seeds: what differs between the recipes, and what between the results."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import combinations
from pathlib import Path

from numerate.errors import Mistake
from numerate.evaluation.statistics import difference, fisher_exact
from numerate.reports import sections
from numerate.reports.colour import Look
from numerate.reports.curve import length_curve
from numerate.reports.drawing import heat_map, table
from numerate.reports.finding import REACHED, SOLVED, finding, outcome, solving
from numerate.reports.grid import Grid, bracket, diagonal, percent, place_words
from numerate.reports.groups import Group, differing, grouped
from numerate.reports.heat_map import heat_map as terminal_map
from numerate.reports.heat_map import legend
from numerate.reports.page import write_text
from numerate.reports.records import Records, read_each
from numerate.reports.sheet import page
from numerate.reports.success import NOTE, study_finding, success_rows, success_table, unconverged
from numerate.reports.table import beside, text_table, text_width


def write_comparison(
    folders: Sequence[str | Path], path: str | Path, *, title: str = "", labels: Mapping[str, str] | None = None
) -> Path:
    """Writes one offline HTML page about several runs and returns its path.

    Runs that differ in the seed alone are taken together: their median, the lowest and the highest, and how many
    succeed. `labels` renames them (`{"addition_abacus": "Abacus"}`). Raises `Mistake` for no folders or a folder that
    is no run.
    """
    groups = grouped(_read(folders), labels)
    return write_text(Path(path), comparison_page(groups, title))


def write_figure(folders: Sequence[str | Path], path: str | Path, *, labels: Mapping[str, str] | None = None) -> Path:
    """Writes the figure of a comparison, for a paper: .png, .svg or .pdf as its name ends. Returns its path.

    A heat map per group of runs, the training square marked, and all groups by length with their intervals. Raises
    `Mistake` for another ending, no folders, or runs that were not evaluated on a grid.
    """
    from numerate.reports.figures import save
    from numerate.reports.plots import compare_figure

    return save(compare_figure(grouped(_read(folders), labels)), path)


def comparison_page(groups: Sequence[Group], title: str = "") -> str:
    """The page as text."""
    # Ways in which the same runs were evaluated are groups of their own; each run counts once.
    runs = list({str(run.folder): run for group in groups for run in group.runs}.values())
    title = title or " and ".join(group.label for group in groups[:4]) + (" ..." if len(groups) > 4 else "")
    seeds = sorted({len(group.runs) for group in groups})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    what = f"{len(runs)} run{'s' * (len(runs) != 1)}, {number} seed{'s' * (seeds != [1])} each"
    body = [
        f'<p class="over">numerate · a comparison · {what}</p><h1>{escape(title)}</h1>',
        sections.sentence(study_finding(groups) or finding(groups)),
        sections.maps_and_lengths(groups),
        sections.heading("Which seeds converged, and how far those go", success_table(groups)),
        sections.heading("What differs between the recipes", _differences(groups)),
        sections.heading("How to read this", _reading(groups)),
        sections.heading("Regions", sections.region_table(groups)),
        sections.heading("Length by length", _gaps(groups)),
        sections.heading("Seed by seed", _seeds(groups)),
        sections.heading("Training", sections.training(groups)),
        sections.heading("Samples", _samples(groups)),
        sections.heading("To run it again", sections.reproduce(runs)),
        sections.heading("Left out of this report", sections.warnings(runs)),
    ]
    return page(title, "\n".join(part for part in body if part))


def comparison_text(groups: Sequence[Group], look: Look | None = None) -> str:
    """The comparison for a terminal: heat maps side by side, the diagonal, the table of regions, the finding."""
    look = look or Look()
    maps = [terminal_map(_titled(grid, group.label), look) for group in groups for grid in group.grids if grid.row_axis]
    header, rows = sections.region_rows(groups)
    parts = [beside(maps, look.width) + "\n" + legend(look)] if maps else []
    along = {group.label: group.diagonal for group in groups if group.diagonal}
    if along and not maps:
        curve = length_curve(along, look, axis="length")
        parts += [curve] if max(map(text_width, curve.splitlines())) <= max(look.width, 100) else []
    parts += [text_table(header, rows)] if rows else []
    if any(len(group.evaluated) > 1 for group in groups):
        header, rows = success_rows(groups)
        parts += [text_table(header, rows), "\n".join([NOTE, *unconverged(groups)])] if rows and header[3:] else []
    return "\n\n".join([*parts, study_finding(groups) or finding(groups)])


def _titled(grid: Grid, label: str) -> Grid:
    title = f"{label}, {grid.title}" if grid.title else label
    return Grid(grid.row_axis, grid.column_axis, grid.rows, grid.columns, grid.points, title)


def _read(folders: Sequence[str | Path]) -> list[Records]:
    if not folders:
        raise Mistake("compare: no runs are named; for example numerate compare runs/a/1 runs/b/2")
    return read_each(folders)


def _differences(groups: Sequence[Group]) -> str:
    groups = sections.trained_once(groups)
    if len(groups) < 2:
        return ""
    unlike = differing([group.runs[0].recipe for group in groups])
    if not unlike:
        return ""
    rows = [[escape(path), *(escape(text) for text in texts)] for path, texts in unlike.items()]
    header = ["setting", *(escape(group.label) for group in groups)]
    one = "They differ in this one setting; all others are equal." if len(unlike) == 1 else ""
    count = one or f"They differ in {len(unlike)} settings: a difference in the results may come from any of them."
    return table(header, rows, mono=range(len(header))) + f"<figcaption>{count}</figcaption>"


def _reading(groups: Sequence[Group]) -> str:
    """What the numbers can and cannot say, as far as the records tell."""
    outcomes = [outcome(group) for group in groups]
    notes = [
        f"“Solves” means a mean exact match of at least {percent(SOLVED)} % over the trained cells with held-out "
        f"questions. “Goes to n” means at least {percent(REACHED)} % at every untrained length up to n, both numbers "
        "n digits long, as measured; the interval at n may reach below."
    ]
    if all(len(group.regions) <= 1 for group in groups):
        notes.append(
            "One seed per recipe. The intervals say how well each of these models was measured; they say nothing about "
            "what another seed would give, which can differ by more than the intervals. Add seeds=3 or more."
        )
    else:
        for one, other in combinations(outcomes, 2):
            notes += _success(one.group, other.group)
    for one in outcomes:
        if one.trained and not one.solves:
            seeds = "" if one.seeds == 1 else f" in {one.seeds - one.solved} of {one.seeds} seeds"
            notes.append(
                f"{one.label} did not solve the trained region{seeds}: "
                "low scores beyond it may only mean slow learning."
            )
    weak = [f"{one.label} {one.weak}" for one in outcomes if one.weak]
    if weak:
        notes.append(f"Weakest trained cells: {'; '.join(weak)}.")
    budgets = {
        group.label: {run.training()[-1].get("examples") for run in group.runs if run.training()} for group in groups
    }
    if len(set().union(*budgets.values())) > 1:
        texts = [
            f"{label} {', '.join(f'{seen:,}' for seen in sorted(filter(None, seen)))}"
            for label, seen in budgets.items()
        ]
        notes.append(f"The budgets are not equal, in examples: {'; '.join(texts)}.")
    if any(point.seen for group in groups for point in group.points):
        notes.append(
            "Cells with a dotted underline have too few questions to hold any out; they are shown and not scored."
        )
    if any(len(group.diagonal) == 0 and group.points for group in groups):
        notes.append("No cell has both axes equal, so nothing is said about how far a model goes.")
    return '<ul class="reading">' + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _success(one: Group, other: Group) -> list[str]:
    """How many seeds of each reach `REACHED` at the length where the two differ most, with Fisher's exact p; of the
    seeds that solve what they were trained on, where some do."""
    best: tuple[int, str] | None = None
    one, other = solving(one), solving(other)
    for n in one.diagonal.keys() & other.diagonal.keys():
        here, there = one.diagonal[n], other.diagonal[n]
        if here.region == "trained":
            continue
        hits = [sum(share >= REACHED for share in point.each) for point in (here, there)]
        p = fisher_exact((hits[0], len(here.each)), (hits[1], len(there.each)))
        text = (
            f"At {place_words(here.at, one.operator)}, {hits[0]} of {len(here.each)} seeds of {one.label} and "
            f"{hits[1]} of {len(there.each)} of {other.label} have at least {percent(REACHED)} %: "
            f"Fisher's exact p = {p:.2g}"
        )
        gap = abs(hits[0] - hits[1])
        if gap and (best is None or gap > best[0]):
            extreme = gap == len(here.each) == len(there.each)
            few = "; with so few seeds it cannot be smaller" if p > 0.05 and extreme else ""
            best = (gap, f"{text}{few} (the length where they differ most, so read it as a description).")
    return [best[1]] if best else []


def _gaps(groups: Sequence[Group]) -> str:
    """Per length the share of each group, and with two groups of one seed the difference with its interval."""
    lengths = sorted(set().union(*(group.diagonal for group in groups))) if groups else []
    if not lengths:
        return ""
    pair = len(groups) == 2 and all(len(group.regions) == 1 for group in groups)
    rows = []
    for n in lengths:
        found = [group.diagonal.get(n) for group in groups]
        first = next(point for point in found if point is not None)
        row = [escape(place_words(first.at, groups[0].operator))]
        row += ["" if p is None else f"{percent(p.value)} {bracket(p.low, p.high)}" for p in found]
        if pair and found[0] is not None and found[1] is not None:
            one, other = ((round(p.value * p.count), p.count) for p in found if p is not None)
            gap = difference(one, other)
            row.append(f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]")
        elif pair:
            row.append("")
        rows.append([*row, sections.REGION_WORDS.get(first.region, first.region)])
    labels = [f"{escape(group.label)}, %" for group in groups]
    header = ["length", *labels, *(["difference, points"] * pair), "region"]
    note = "Differences carry Newcombe's 95 % interval, for each length by itself." if pair else ""
    return table(header, rows, numbers=range(1, len(header) - 1)) + (f"<figcaption>{note}</figcaption>" if note else "")


def _seeds(groups: Sequence[Group]) -> str:
    """A small map for each seed, where there are several."""
    if all(len(group.runs) == 1 for group in groups):
        return ""
    parts = []
    for group in groups:
        panels = []
        for run in group.runs:
            single = replace(group, runs=(run,))
            for grid in single.grids:
                reach = sections.reach_words(outcome(single))
                panels.append(
                    f"<figure><h3>seed {run.seed}<br><span class='quiet'>{escape(reach)}</span></h3>"
                    f"{heat_map(grid, group.operator, numbers=False) if grid.row_axis else _strip(single)}</figure>"
                )
        parts.append(f'<h3>{escape(group.label)}</h3><div class="panels small">{"".join(panels)}</div>')
    return "".join(parts)


def _strip(group: Group) -> str:
    return sections.lengths_chart([group]) if diagonal(group.points) else ""


def _samples(groups: Sequence[Group]) -> str:
    """The same questions put to all, where the records hold the same; otherwise each group's own."""
    by_question = [{sample.question: sample for sample in group.runs[0].samples} for group in groups]
    shared = (
        [question for question in by_question[0] if all(question in table for table in by_question)] if groups else []
    )
    if shared:
        rows = []
        for question in shared[: sections.MOST_SAMPLES]:
            first = by_question[0][question]
            said = [sections.said(table[question]) for table in by_question]
            rows.append(
                [escape(place_words(first.at, groups[0].operator)), escape(question), escape(first.gold), *said]
            )
        header = ["cell", "question", "truth", *(f"{escape(group.label)} said" for group in groups)]
        return table(header, rows, mono=range(1, len(header)))
    parts = [
        f"<details><summary>{escape(group.label)}</summary>{found}</details>"
        for group in groups
        if (found := sections.samples(group.runs[0]))
    ]
    return "".join(parts)

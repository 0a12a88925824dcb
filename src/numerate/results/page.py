"""Pages of runs: what was asked, what was found, and how to do it again. One HTML file that needs nothing else.

All pages come from one template: a run, a study and a comparison differ in the sections that have something to say. Two
savings of the same records are the same bytes.
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from itertools import count
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from numerate.config.differences import flatten_settings
from numerate.errors import UserError, check_choice
from numerate.evaluation.answer_metrics import ANSWER_METRICS, base_metric
from numerate.records.heads import RECIPE_FILE, read_header
from numerate.records.kinds import RUN_FILE_SCHEMAS
from numerate.records.reading import read_records
from numerate.results.answers import same_questions
from numerate.results.figures import (
    FOREST_NOTE,
    MAX_NUMBERS,
    MAX_SERIES,
    best_variants,
    counts,
    forests,
    lengths,
    maps,
    plot,
    training,
)
from numerate.results.headline import headline, stratum_sizes
from numerate.results.rows import (
    LABEL_METRICS,
    LANGUAGE_METRICS,
    SCORE_PREFIX,
    RunEntry,
    by_task,
    cells_of,
    find_runs,
    metrics_of,
    settings_columns,
)
from numerate.results.style import figure_style, save, series_styles, svg
from numerate.results.summary import (
    SUCCESS,
    Measures,
    check_metric,
    converged,
    default_metric,
    diagonal,
    differences,
    grid_axes,
    groups_of,
    has_parts,
    of_map,
    over_seeds,
    part_names,
    reported,
    shared_cells,
    summary,
    with_all_ood,
)
from numerate.results.tables import Table, pivot, to_markdown, to_text
from numerate.results.words import (
    REGION_NAMES,
    axis_name,
    cell_name,
    cell_percent,
    is_share,
    joined,
    metric_name,
    metric_title,
    p_text,
    percent,
    span,
    value_text,
)
from numerate.runs.status import RunState
from numerate.training.output_files import write_output

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure
    from pandas import DataFrame

MAX_SAMPLES, MAX_SAMPLE_VARIANTS = 24, 4
"""Questions with predictions on a page, and variants whose predictions stand side by side."""

MAX_MAPS = 6
"""Variants with a map of their own."""

MAX_ROWS = 40
"""Rows of a table that is not folded."""


class Section(NamedTuple):
    """A titled part of a page: figures with captions, then tables."""

    title: str = ""
    figures: Sequence[tuple[Markup, str]] = ()
    tables: Sequence[Table] = ()


@dataclass
class Subject:
    """What a part of a page is about: the runs of one task with their cells, and what was logged while they trained.

    `names` numbers the figures of a page. `metric` is what variants are measured by, if not by the default, and
    `baseline` the variant that others are compared with.
    """

    entries: Sequence[RunEntry]
    cells: "DataFrame"
    logged: "DataFrame"
    names: Iterator[int]
    metric: str | None
    baseline: str | None

    def __post_init__(self) -> None:
        cells, logged = self.cells, self.logged
        self.final = reported(cells)
        self.map, self.converged = of_map(self.final), converged(self.final)
        self.is_text, self.has_parts = default_metric(cells) in LANGUAGE_METRICS, has_parts(self.final)
        self.is_labels = "accuracy" in self.map and bool(self.map["accuracy"].notna().all())
        self.seeds = cells.groupby("variant", sort=False)["run"].nunique()
        self.has_seeds = bool((self.seeds > 1).any())
        self.shown = best_variants(self.final)  # by figures
        names_shown = self.shown["variant"].unique() if len(cells) else logged["variant"].unique()[:MAX_SERIES]
        is_shown = logged["variant"].isin(names_shown)
        self.styles = series_styles(self.shown)
        self.curves = logged[is_shown] if is_shown.any() else logged
        self.operator = (self.entries[0].recipe.get("task") or {}).get("operator")

    def embed(self, figure: "Figure", caption: str) -> tuple[Markup, str]:
        """A figure as SVG with its caption; one with a large map as a picture."""
        if all(np.prod(image.get_size()) <= MAX_NUMBERS for ax in figure.axes for image in ax.images):
            return Markup(svg(figure, f"f{next(self.names)}")), caption
        file = BytesIO()
        with figure_style():
            figure.savefig(file, format="png", dpi=130, metadata={"Software": None})
        code = b64encode(file.getvalue()).decode()
        return Markup('<img alt="" src="data:image/png;base64,{}">').format(code), caption


# Sections -------------------------------------------------------------------------------------------------------------


def overview(it: Subject) -> Section:
    """The main figure: maps and scores by length; of parts their regions; of text the validation loss."""
    variants, found = it.shown["variant"].unique(), []
    few = f" Shown: the first and the best of {len(it.seeds)}." * (len(variants) < len(it.seeds))
    if it.has_parts:
        return Section(figures=[it.embed(forests({"": it.shown}, it.metric), FOREST_NOTE + few)])
    if it.is_text:
        with suppress(UserError):  # without a validation split
            note = f"Validation loss by step{'; bands: lowest and highest seed' * it.has_seeds}."
            found.append(it.embed(training(it.curves, "validation", styles=it.styles), note + few))
        return Section(figures=found)
    if it.is_labels:
        note = "Share of the rows whose t-th label is correct. Shaded: trained positions; dotted: memorizing them."
        found.append(it.embed(counts({"": it.shown}), note + few))
    axes, along = grid_axes(it.map), diagonal(it.map)
    if len(axes) == 2 and len(it.map) > len(along) and is_share(it.metric or "exact_match"):
        few_maps = {"": it.shown[it.shown["variant"].isin(variants[:MAX_MAPS])]}
        note = "Red: the sizes of training. A cell reads 100 or 0 only where all or none were right."
        found.append(it.embed(maps(few_maps, it.metric), "Medians over seeds. " * it.has_seeds + note + few))
    if len(axes) in (1, 2) and len(along):
        bands = "lowest and highest of the converged seeds" if it.has_seeds else "95 % intervals over questions"
        note = f"Bands: {bands}. Shaded: the lengths of training."
        found.append(it.embed(lengths({"": it.shown}, it.metric), note + few))
    return Section(figures=found)


def results(it: Subject) -> Section:
    """The table of results: each variant and checkpoint with its score in each region; then by part or length."""
    import pandas

    if not len(it.map):
        return Section()
    metrics = list(LANGUAGE_METRICS[:3]) if it.is_text else [it.metric or default_metric(it.map)]
    metrics += [name for name in ("log_mae", "bleu") if name in it.cells and it.has_parts][:1]
    metrics += [name for name in it.cells if name.startswith(SCORE_PREFIX)]
    steps = it.cells.groupby("checkpoint")["step"].agg(set)
    has_best = "best" in steps and steps.get("final", steps["best"]) != steps["best"]
    found = pandas.concat(
        [
            summary(it.cells, metric=metric, checkpoint=name).assign(checkpoint=name or "final")
            for name in (None, *["best"] * has_best)
            for metric in dict.fromkeys(metrics)
        ],
        ignore_index=True,
    )
    regions, titles = found["region"].map(lambda name: REGION_NAMES.get(name, name)), found["metric"].map(metric_title)
    known = found[found["baseline"].notna()]
    memorizing = known.assign(
        value=known["baseline"], low=None, high=None, column=regions[known.index] + ": memorizing, %"
    )
    found["column"] = regions + (": " + titles if len({*metrics}) > 1 else ", %" * is_share(metrics[0]))
    found = pandas.concat([found, memorizing], ignore_index=True)
    order = {name: i for i, name in enumerate(REGION_NAMES)}  # other contexts of text come last
    columns = found.sort_values("region", key=lambda names: names.map(order), kind="stable")["column"].unique()
    keys = ["variant", *["checkpoint"] * has_best]
    table = pivot(found, keys, "column")[[*keys, *columns]]
    if it.has_seeds and not (it.is_text or it.has_parts):
        kept = it.converged.groupby("variant")["run"].nunique()
        table.insert(len(keys), "converged", [f"{kept.get(name, 0)}/{it.seeds[name]}" for name in table["variant"]])
    brackets = "lowest and highest seed" if it.has_seeds else "95 % intervals over questions; seeds may differ more"
    what = f"{metric_title(metrics[0])}{'; medians over seeds' * it.has_seeds}; brackets: {brackets}"
    notes = [f"{what[0].upper()}{what[1:]}. All cells of a region weigh the same.", _sizes(it, found)]
    if len(shared_cells(it.map)) < len(it.map):
        notes.append("The runs were evaluated on different cells: means of regions are over those that all have.")
    if default_metric(it.cells) == "bits_per_byte":
        notes.append("The tokenizers differ: losses and perplexities do not compare, bits per byte do.")
    if has_best:
        notes.append("The best checkpoint was chosen on OOD validation, which it therefore has no score for.")
    return Section("Results", tables=[_table(table, *notes), *(_part_table if it.has_parts else _length_table)(it)])


def _sizes(it: Subject, found: "DataFrame") -> str:
    """How many questions a summary is over, in how many cells, and which of these may be in training."""
    if it.is_text:
        return f"{span(it.map.groupby(['run', 'context_length'])['tokens'].sum())} held-out tokens in each run."
    seen, texts = it.map.groupby("region")["overlaps_training"].all(), []
    for region, own in found.groupby("region", sort=False):
        more = f", {span(own['excluded'])} more may be in training" * bool(own["excluded"].any())
        more = ", which may be in training" if seen.get(region, False) else more
        texts.append(f"{REGION_NAMES[str(region)]} {span(own['questions'])} ({span(own['cells'])}{more})")
    return f"Questions (cells) of a run: {'; '.join(texts)}."


def _table(texts: "DataFrame", *notes: str, fold: str = "") -> Table:
    """A table, folded if it is long."""
    return Table(texts, notes=notes, fold=fold or f"{len(texts)} rows" * (len(texts) > MAX_ROWS))


def _part_table(it: Subject) -> Iterator[Table]:
    """The scores of each part, such as a module, by its name."""
    import pandas

    (axis,), names = grid_axes(it.map), part_names(it.map)
    metrics = [name for name in ("exact_match", "log_mae", "bleu") if name in it.cells]
    found = pandas.concat([summary(it.map, by=["variant", axis], metric=name) for name in metrics])
    found[axis] = found[axis].map(lambda size: names.get(int(size), str(size)))
    yield _table(pivot(found.assign(column=found["metric"].map(metric_title)), ["variant", axis], "column"))


def metrics(it: Subject) -> Section:
    """All metrics of labels, numbers and texts by region and by part, with the scores of memorizing."""
    from pandas import DataFrame, concat

    if it.is_text or "sums" not in it.map or not it.map["sums"].notna().any():
        return Section()
    order = {name: i for i, name in enumerate(("exact_match", *LABEL_METRICS, *ANSWER_METRICS))}
    kinds, tables = {"region": with_all_ood(shared_cells(it.map))}, []
    for by, cells in (kinds | ({grid_axes(it.map)[0]: it.map} if it.has_parts else {})).items():
        names: dict[Any, str] = {**REGION_NAMES, **part_names(it.map)}
        measures, rows = Measures(cells), list[dict[str, Any]]()
        for key, index in groups_of(cells, ["variant", by, "run"]):
            place = names.get(key[by], key[by])
            for name, one in measures.measures(index).items():
                if base_metric(name) == name:
                    rows.append({**key, by: place, "metric": name, **vars(one)})
                elif by == "region" and it.has_parts:
                    rows.append({**key, by: f"{place}, mean of modules", "metric": base_metric(name), **vars(one)})
        found = over_seeds(DataFrame(rows), ["variant", by, "metric"])
        found["column"] = found["metric"].map(metric_title)
        known = found[found["baseline"].notna() & (found[by] != REGION_NAMES["in_distribution"])]
        columns = known["metric"].map(metric_name) + " of memorizing, %"
        memorizing = known.assign(value=known["baseline"], low=None, high=None, column=columns)
        found = concat([found, memorizing]).sort_values("metric", key=lambda names: names.map(order), kind="stable")
        tables.append(_table(pivot(found, ["variant", by], "column"), fold=f"By {by}"))
    note = "Exact match is the mean over cells; other metrics are over all questions, labels or rows together"
    note += ". Medians over the seeds that have the metric." if it.has_seeds else "."
    tables[-1] = tables[-1]._replace(notes=[note])
    return Section("All metrics", tables=tables)


def _length_table(it: Subject) -> Iterator[Table]:
    """Scores at some lengths beyond training, and how many of the converged seeds succeed there."""
    along = diagonal(of_map(it.converged))
    if it.is_text or not len(along):
        return
    trained = along.loc[along["region"] == "in_distribution", "length"].max()
    beyond = sorted(n for n in along["length"].unique() if not n < trained)
    kept = along["length"].isin([*beyond[:2], *beyond[:: -max(1, -(-len(beyond) // 6))]])
    found = summary(along[kept], by=["variant", "length"])
    note = f"Of the converged seeds; behind the dot how many have at least {percent(SUCCESS)} %."
    table = pivot(_sized(found, "length"), ["variant"], "length", success=it.has_seeds)
    yield _table(table, *[note] * it.has_seeds, fold="By length")


def _sized(found: "DataFrame", column: str) -> "DataFrame":
    """Sizes as the columns of a table."""
    return found.sort_values(column, kind="stable").assign(**{column: found[column].map("n = {:,}".format)})


def strata(it: Subject) -> Section:
    """Questions that uniformly drawn ones almost never are, by size."""
    found = stratum_sizes(it.final)
    if not len(found):
        return Section()
    note = "Exact match in per cent on questions that uniform sampling almost never draws; n: the longest operand."
    table = pivot(_sized(found.assign(questions=found["questions_of"]), "size"), ["variant", "questions"], "size")
    return Section("Strata", tables=[_table(table, note)])


def pairs(it: Subject) -> Section:
    """Differences of variants with several seeds, and over the same questions."""
    from pandas import DataFrame

    asked = None if it.is_text or len(it.seeds) < 2 else same_questions(it.entries, it.final)
    by = default_metric(it.cells) if it.is_text else it.metric or ("exact_match" if it.has_parts else None)
    found = differences(it.final, metric=by, baseline=it.baseline) if it.has_seeds else DataFrame()
    if not len(found):
        return Section("Differences over the same questions", tables=[asked] if asked else ())
    metric = found["metric"].iloc[0]
    scale, unit, form = (100, ", points", "{:+.1f}") if is_share(metric) else (1, "", "{:+.4g}")
    rows = [
        {
            "pair": f"{row['first']} / {row['second']}",
            "measure": REGION_NAMES.get(row["measure"], "converged seeds"),
            f"means{', %' * (scale == 100)}": " : ".join(
                value_text(metric, each) for each in row[["first_mean", "second_mean"]]
            ),
            f"difference{unit}": f"{form} [{form}, {form}]".format(*(scale * row[["difference", "low", "high"]])),
            "better, %": percent(row["better"], 0),
            "p": f"{p_text(row['p_holm'])}{' *' * (row['p_holm'] < 0.05)}",
        }
        for _, row in found.iterrows()
    ]
    notes = [
        "Regions over the converged seeds and the cells that all have." * (not by),
        f"Brackets: 95 % bootstrap intervals over seeds. p: {joined(sorted({*found['test']}))}, two-sided, corrected "
        "by Holm's method for the pairs of a measure; *: p < 0.05. Better: how often a seed of the first beats one of "
        "the second. A large p does not show that there is no difference.",
        "With so few seeds no difference can be significant." * bool((found["p_min"] * found["pairs"] >= 0.05).all()),
    ]
    return Section("Differences", tables=[_table(DataFrame(rows), *filter(None, notes)), *([asked] if asked else [])])


def seeds(it: Subject) -> Section:
    """Every seed of every region."""
    if not it.has_seeds or it.is_text or it.has_parts or not len(it.map):
        return Section()
    return Section("Seeds", [it.embed(forests({"": it.shown}, it.metric), FOREST_NOTE)])


def settings(it: Subject) -> Section:
    """What differs between the variants."""
    first = it.cells.drop_duplicates("variant")
    names = [name for name in settings_columns(it.cells) if first[name].nunique(dropna=False) > 1]
    note = f"They differ in {len(names)} settings: a difference in results may come from any of them."
    note = "They differ in this one setting; all others are equal." if len(names) == 1 else note
    texts = first[["variant", *names]].astype("string").fillna("")
    return Section("What differs", tables=[_table(texts, note)] if names else ())


def curves(it: Subject) -> Section:
    """Loss, and the score on the validation splits, by step."""
    if not len(it.logged) or it.is_text:
        return Section()
    note = "Medians over seeds; bands: lowest and highest." * (len(it.cells) > 0 and it.has_seeds)
    return Section("Training", [it.embed(training(it.curves, styles=it.styles), note)])


def samples(it: Subject) -> Section:
    """Questions with the predictions of the first seed of some variants; or texts that were generated."""
    from pandas import DataFrame

    first = {one.variant: one.folder / "samples.jsonl" for one in reversed(it.entries)}
    names = list(dict.fromkeys(one.variant for one in it.entries))[:MAX_SAMPLE_VARIANTS]
    lines = [(name, line) for name in names for line in read_records(first[name], RUN_FILE_SCHEMAS["samples.jsonl"])]
    texts = [
        {
            "variant": name,
            "step": f"{line.get('step', 0):,}",
            "prompt": line["prompt"] or "(start)",
            "text": line["text"],
        }
        for name, line in lines
        if line.get("text") and "prompt" in line
    ]
    if texts:
        return Section("Generated texts", tables=[Table(DataFrame(texts[-MAX_SAMPLES:]))])
    asked: dict[str, dict[str, Any]] = {}
    for name, line in lines:
        if "question" in line:
            asked.setdefault(line["question"], {})[name] = line
    rows, parts = [], part_names(it.cells) if len(it.cells) else {}
    answered = {name for said in asked.values() for name in said}
    for question, said in [one for one in asked.items() if len(one[1]) == len(answered)][:MAX_SAMPLES]:
        line, *_ = said.values()
        sizes = line.get("cell") or {}
        cell = cell_name(sizes, it.operator, {axis: parts[size] for axis, size in sizes.items() if size in parts})
        texts_of = {name: f"{'✓' if one.get('correct') else '✗'} {one['prediction']}" for name, one in said.items()}
        rows.append({"cell": cell, "question": question, "answer": line.get("correct_answer") or "", **texts_of})
    return Section("Samples", tables=[Table(DataFrame(rows))] if rows else ())


SECTIONS = (overview, results, strata, pairs, seeds, metrics, settings, curves, samples)
"""The sections of a page, in order; one without figures and tables is left out."""


def _printed(it: Subject, width: int = 0) -> Iterator[tuple[str, Table]]:
    """The titled tables of a page; for a terminal with a map of each variant as per cents, of few and if they fit."""
    axes = grid_axes(it.map) if is_share(it.metric or "exact_match") and len(it.seeds) <= MAX_MAPS else []
    for name, own in it.map.groupby("variant", sort=False) if len(axes) == 2 else ():
        found = summary(own, by=axes, metric=it.metric).sort_values(axes)
        texts = found.assign(text=found["value"].map(cell_percent)).pivot(index=axes[0], columns=axes[1], values="text")
        texts = texts.fillna("").rename_axis(index="", columns=None).reset_index().rename(columns=str).astype(str)
        if len(texts) > 1 and 4 * len(texts.columns) + 2 <= width:
            note = f"{axis_name(axes[0])} (down) and {axis_name(axes[1])}; {metric_title(found['metric'].iloc[0])}"
            yield str(name), Table(texts, notes=[note])
    for section in (results, strata, pairs, settings) if len(it.cells) else ():
        title, _, tables = section(it)
        yield from ((table.fold or title, table) for table in tables)


# Pages ----------------------------------------------------------------------------------------------------------------


def page(
    entries: Sequence[RunEntry],
    title: str,
    *,
    question: str = "",
    kind: str = "a comparison",
    warnings: Sequence[str] = (),
    metric: str | None = None,
    baseline: str | None = None,
) -> str:
    """The page of some runs, as text; runs of several tasks have a part for each task. `metric` is what variants are
    measured by, `baseline` the one that others are compared with.

    Raises `UserError` for a metric or a baseline that they do not have.
    """
    damage: list[str] = []
    subjects, tasks = _subjects(entries, metric, baseline, damage), []
    for name, it in subjects.items():
        found = [section(it) for section in (SECTIONS if len(it.cells) else (curves, samples))]
        text = headline(it.cells, it.operator).replace(" %", "\N{NO-BREAK SPACE}%")
        tasks.append({"name": name, "headline": text, "sections": [one for one in found if one.figures or one.tables]})
    done = [one for it in subjects.values() for one in it.entries]
    over = f"numerate · {kind} · {done[0].folder.name if len(done) == 1 else f'{len(done)} runs'}"
    known = {"title": title, "question": question, "over": over, "warnings": [*warnings, *_failures(entries), *damage]}
    return _template().render(**known, tasks=tasks, **_reproduction(done))


def text(
    entries: Sequence[RunEntry], width: int = 80, *, metric: str | None = None, baseline: str | None = None
) -> str:
    """The headline and the tables of a page for a terminal, with a map of each variant where there is room."""
    blocks = _failures(entries)
    for name, it in _subjects(entries, metric, baseline, []).items():
        tables = [f"{title}\n{'=' * len(title)}\n{to_text(table, width)}" for title, table in _printed(it, width)]
        blocks += [*[name] * bool(name), *tables, "\n".join(wrap(headline(it.cells, it.operator), width))]
    return "\n\n".join(blocks)


def _subjects(
    entries: Sequence[RunEntry], metric: str | None, baseline: str | None, damage: list[str]
) -> dict[str, Subject]:
    """The done runs by task, with their cells; lines that cannot be read are added to `damage`."""
    done = [one for one in entries if one.state is None or one.state.status == "done"]
    cells, logged, names = cells_of(done), metrics_of(done, damage.append), count()
    if metric is not None:
        check_metric(cells, metric)
    check_choice("baseline", baseline or done[0].variant, [one.variant for one in done])
    found = {}
    for name, own in by_task(done).items():
        runs = {one.run for one in own}
        own_cells, own_logged = (frame[frame["run"].isin(runs)] for frame in (cells, logged))
        found[name] = Subject(own, own_cells, own_logged, names, metric, baseline)
    return found


def run_page(folder: str | Path) -> str:
    """The page of one run. Raises `UserError` for a folder that is none, and for damaged records."""
    entries = find_runs([folder])
    return page(entries, entries[0].variant, kind="a run")


def write_run_page(folder: str | Path) -> Path:
    """Writes `report.html` into the folder of a run and returns its path."""
    return write_output(Path(folder) / "report.html", run_page(folder).encode(), place="runs")


def run_iframe(folder: str | Path) -> str:
    """The page of a run for a notebook, in a frame of its own, so that styles do not leak."""
    html = '<iframe srcdoc="{}" style="width:100%;height:800px;border:0"></iframe>'
    return str(Markup(html).format(run_page(folder)))


def write_study_page(folder: Path, question: str) -> Path:
    """Writes `report.html` and `figure.png` into the folder of a study: of the runs of its last command."""
    entries = [one for one in find_runs(folder) if one.state is not None and one.state.run.current]
    html = page(entries, folder.name, question=question, kind="a study")
    path = write_output(folder / "report.html", html.encode(), place="runs")
    with suppress(UserError):  # where nothing was evaluated on a grid
        done = [one for one in entries if one.state and one.state.status == "done"]
        save(plot("compare", done), path.with_name("figure.png"))
    return path


def write_page(path: str | Path, text: str) -> Path:
    """Writes a page and returns its path."""
    return write_output(path, text.encode(), "The records are unchanged.")


def card(folder: Path, title: str, introduction: str, metadata: Mapping[str, Any]) -> str:
    """The card of an exported run, a README.md that the Hugging Face Hub shows: metadata, headline, tables, and what is
    required to run it again."""
    from numerate.config import yaml_text

    entries = find_runs([folder])
    (it,), again = _subjects(entries, None, None, []).values(), _reproduction(entries)
    texts = [f"---\n{yaml_text(dict(metadata))}---", f"# {title}", introduction, headline(it.cells, it.operator)]
    for name, table in [*_printed(it), *((table.fold or "To run it again", table) for table in again["environment"])]:
        inner = to_markdown(table).rstrip()
        folded = f"<details><summary>{table.fold}</summary>\n\n{inner}\n\n</details>"
        texts.append(folded if table.fold else f"## {name}\n\n{inner}")
    code = [*again["commands"], *again["citations"]]
    return "\n\n".join([*texts, *(f"```\n{text}\n```" for text in code)]) + "\n"


def _failures(entries: Sequence[RunEntry]) -> list[str]:
    """A sentence about the runs of a study that failed."""
    failed = [one for one in entries if one.state is not None and one.state.status == "failed"]
    errors = {
        one.run: (one.state and one.state.end and one.state.end.error) or "no error was recorded" for one in failed
    }
    named = [f"{one.variant} seed {one.seed} ({' '.join(errors[one.run].split())[:100]})" for one in failed]
    verb = "is" if len(failed) == 1 else "are"
    sentence = f"{len(failed)} of {len(entries)} runs failed and {verb} not in anything below: "
    return [f"{sentence}{joined(named, 7)}."] if failed else []


def _reproduction(entries: Sequence[RunEntry]) -> dict[str, Any]:
    """Commands, environment, settings and citations; of many runs those of the first seed of each variant."""
    from pandas import DataFrame

    firsts = list({one.variant: one for one in reversed(entries)}.values())[::-1][:MAX_ROWS]
    heads = [read_header(one.folder / RECIPE_FILE) for one in firsts]
    known: dict[tuple[str, str], list[str]] = {}
    for name in ("parameters", "training", "times", "hardware", "git", "versions"):
        for one, head in zip(firsts, heads, strict=True):
            ended = {name: count for name, count in (head.get("ended") or {}).items() if name != "stop_reason"}
            head = {**head, "training": ended}
            known.setdefault((name, _plain(head.get(name))), []).append(one.variant)
    rows = [(*one, joined(own, 3) * (len(own) < len(heads))) for one, own in known.items() if one[1]]
    width = 2 if all(len(own) == len(heads) for own in known.values()) else 3
    tables = [_table(DataFrame([row[:width] for row in rows], columns=["", " ", "of"][:width]))] if rows else []
    for one in firsts[:1]:
        items = [(path, text) for path, text in flatten_settings(one.recipe).items() if path]
        fold = "Every setting" + f" of {one.variant}" * (len(firsts) > 1)
        tables.append(Table(DataFrame(items, columns=["setting", "value"]), fold=fold))
    commands, citations = (
        list(dict.fromkeys(str(head[name]).strip() for head in heads if head.get(name)))
        for name in ("command", "bibtex")
    )
    return {"commands": commands, "environment": tables, "citations": citations}


def _plain(value: Any) -> str:
    """Metadata for people: `{"memory": 4096, "gpus": []}` is "memory 4,096, gpus none"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " and ".join(map(_plain, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value or "")


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    options: Any = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=PackageLoader("numerate.results"), **options).get_template("page.html")

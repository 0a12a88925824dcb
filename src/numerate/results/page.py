"""Pages of runs: what was asked, what was found, and how to do it again. One HTML file that needs nothing else.

All pages come from one template: a run, a study and a comparison differ in the sections that have something to say. Two
savings of the same records are the same bytes.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from pathlib import Path
from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np
from markupsafe import Markup

from numerate.config.differences import flatten_settings
from numerate.errors import UserError, check_choice
from numerate.evaluation.answer_metrics import ANSWER_METRICS, base_metric
from numerate.records.heads import RECIPE_FILE, read_header
from numerate.records.kinds import RUN_FILE_SCHEMAS
from numerate.records.reading import read_records
from numerate.results import figures
from numerate.results.answers import same_questions
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
    study_entries,
)
from numerate.results.style import content, save, series_styles, svg
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
    capitalized,
    cell_name,
    is_share,
    joined,
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
    from pandas import DataFrame, Series

MAX_SAMPLES, MAX_SAMPLE_VARIANTS, MAX_MAPS, MAX_ROWS = 24, 4, 6, 40
"""Questions with predictions, variants whose predictions stand side by side, variants with a map of their own, and rows
of a table that is not folded."""


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
        self.shown = figures.best_variants(self.final)  # by figures
        names_shown = self.shown["variant"].unique() if len(cells) else logged["variant"].unique()[: figures.MAX_SERIES]
        is_shown = logged["variant"].isin(names_shown)
        self.styles = series_styles(self.shown)
        self.curves = logged[is_shown] if is_shown.any() else logged
        self.operator = (self.entries[0].recipe.get("task") or {}).get("operator")

    def embed(self, figure: "Figure", caption: str) -> Markup:
        """A figure as SVG with its caption; one with a large map as a picture."""
        if all(np.prod(image.get_size()) <= figures.MAX_NUMBERS for ax in figure.axes for image in ax.images):
            drawn = Markup(svg(figure, f"f{next(self.names)}"))
        else:
            code = b64encode(content(figure, "png", 130)).decode()
            drawn = Markup('<img alt="" src="data:image/png;base64,{}">').format(code)
        return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(drawn, caption)


# Sections: each gives its figures and tables ------------------------------------------------------------------------

Parts = Iterator[Markup | Table]


def overview(it: Subject) -> Parts:
    """The main figure: maps and scores by length; of parts their regions; of text the validation loss."""
    variants = it.shown["variant"].unique()
    few = f" Shown: the first and the best of {len(it.seeds)}." * (len(variants) < len(it.seeds))
    axes, along = grid_axes(it.map), diagonal(it.map)
    if it.is_text:
        with suppress(UserError):  # without a validation split
            note = f"Validation loss by step{'; bands: lowest and highest seed' * it.has_seeds}."
            yield it.embed(figures.training(it.curves, "validation", styles=it.styles), note + few)
    elif it.has_parts:
        yield it.embed(figures.forests({"": it.shown}, it.metric), figures.FOREST_NOTE + few)
    if it.is_text or it.has_parts:
        return
    if it.is_labels:
        note = "Share of the rows whose t-th label is correct. Shaded: trained positions; dotted: memorizing them."
        yield it.embed(figures.counts({"": it.shown}), note + few)
    with_map = [name for name, own in it.shown.groupby("variant", sort=False) if len(diagonal(own)) < len(own)]
    if len(axes) == 2 and with_map and is_share(it.metric or "exact_match"):
        few_maps = {"": it.shown[it.shown["variant"].isin(with_map[:MAX_MAPS])]}
        note = "Red: the sizes of training. A cell reads 100 or 0 only where all or none were right."
        yield it.embed(figures.maps(few_maps, it.metric), "Medians over seeds. " * it.has_seeds + note + few)
    if len(axes) in (1, 2) and len(along):
        of = " of the converged seeds" * bool(len(it.converged))
        bands = f"lowest and highest{of or ' seed'}" if it.has_seeds else "95 % intervals over questions"
        yield it.embed(
            figures.lengths({"": it.shown}, it.metric), f"Bands: {bands}. Shaded: the lengths of training.{few}"
        )


def results(it: Subject) -> Parts:
    """The table of results: each variant and checkpoint with its score in each region; then by part or length."""
    from pandas import concat

    if not len(it.map):
        return
    metrics = list(LANGUAGE_METRICS[:3]) if it.is_text else [it.metric or default_metric(it.map)]
    metrics += [name for name in ("log_mae", "bleu") if name in it.cells and it.has_parts][:1]
    metrics = list(dict.fromkeys([*metrics, *(name for name in it.cells if name.startswith(SCORE_PREFIX))]))
    steps = it.cells.groupby("checkpoint")["step"].agg(set)
    has_best = "best" in steps and steps.get("final", steps["best"]) != steps["best"]
    found = concat(
        summary(it.cells, metric=metric, checkpoint=name).assign(checkpoint=name or "final")
        for name in (None, *["best"] * has_best)
        for metric in metrics
    )
    regions = found["region"].map(lambda name: REGION_NAMES.get(name, name))
    titles = ": " + found["metric"].map(metric_title) if len(metrics) > 1 else ", %" * is_share(metrics[0])
    order = {name: i for i, name in enumerate(REGION_NAMES)}  # other contexts of text come last
    shown = _with_memorizing(found, regions + titles)
    columns = shown.sort_values("region", key=lambda names: names.map(order), kind="stable")["column"].unique()
    keys = ["variant", *["checkpoint"] * has_best]
    table = pivot(shown, keys, "column")[[*keys, *columns]]
    if it.has_seeds and not (it.is_text or it.has_parts):
        kept = it.converged.groupby("variant")["run"].nunique()
        table.insert(len(keys), "converged", [f"{kept.get(name, 0)}/{it.seeds[name]}" for name in table["variant"]])
    brackets = "lowest and highest seed" if it.has_seeds else "95 % intervals over questions; seeds may differ more"
    brackets += ", of a single one 95 % intervals over questions" * bool(it.has_seeds and (found["seeds"] == 1).any())
    what = f"{metric_title(metrics[0])}{'; medians over seeds' * it.has_seeds}; brackets: {brackets}"
    weigh = " All cells of a region weigh the same." * (metrics[0] == "exact_match")
    notes = [f"{capitalized(what)}.{weigh}", _sizes(it, found)]
    if lacking := [name for name in it.seeds.index if name not in {*table["variant"]}]:
        notes.append(f"Without a value: {joined(lacking)}.")
    evaluated = set(it.cells["run"])
    if left := [f"{one.variant} seed {one.seed}" for one in it.entries if one.run not in evaluated]:
        verb = "was" if len(left) == 1 else "were"
        notes.append(f"{len(left)} of {len(it.entries)} runs {verb} not evaluated: {joined(left, 7)}.")
    if (shared := shared_cells(it.map)) is it.map:
        notes.append("The runs have no cell in common: means of regions are over other cells in each.")
    elif len(shared) < len(it.map):
        notes.append("The runs were evaluated on different cells: means of regions are over those that all have.")
    if default_metric(it.cells) == "bits_per_byte":
        notes.append("The tokenizers differ: losses and perplexities do not compare, bits per byte do.")
    if has_best:
        notes.append("The best checkpoint was chosen on OOD validation, which it therefore has no score for.")
    yield _table(table, *notes)
    if it.has_parts:
        yield _by(it, grid_axes(it.map)[0], ("exact_match", "log_mae", "bleu"))
    elif not it.is_text:
        yield from _by_length(it)


def _table(texts: "DataFrame", *notes: str, fold: str = "") -> Table:
    """A table, folded if it is long."""
    return Table(texts, notes=notes, fold=fold or f"{len(texts)} rows" * (len(texts) > MAX_ROWS))


def _sizes(it: Subject, found: "DataFrame") -> str:
    """How many questions a summary is over, in how many cells, and which of these may be in training."""
    if it.is_text:
        return f"{span(it.map.groupby(['run', 'context_length'])['tokens'].sum())} held-out tokens in each run."
    seen, texts = shared_cells(it.map).groupby("region")["overlaps_training"].all(), []
    for region, own in found.groupby("region", sort=False):
        more = f", {span(own['excluded'])} more may be in training" * bool(own["excluded"].any())
        more = ", which may be in training" if seen.get(region, False) else more
        texts.append(f"{REGION_NAMES[str(region)]} {span(own['questions'])} ({span(own['cells'])}{more})")
    return f"Questions (cells) of a run: {'; '.join(texts)}."


def _with_memorizing(found: "DataFrame", columns: "Series[str]") -> "DataFrame":
    """A summary with the columns of its values in a table, and with the scores of memorizing in columns beside them."""
    from pandas import concat

    found = found.assign(column=columns)
    known = found[found["baseline"].notna()]
    names = known["column"].str.removesuffix(", %") + " of memorizing, %"
    return concat([found, known.assign(value=known["baseline"], low=None, high=None, column=names)])


def _by(it: Subject, by: str, metrics: Sequence[str] = (), fold: str = "") -> Table:
    """Metrics, by default all, of each region or part, such as a module; of regions also the means over parts."""
    from pandas import DataFrame

    cells = with_all_ood(shared_cells(it.map)) if by == "region" else it.map
    names: dict[Any, str] = {**REGION_NAMES, **part_names(it.map)}
    measures, rows = Measures(cells), list[dict[str, Any]]()
    for key, index in groups_of(cells, ["variant", by, "run"]):
        for name, one in measures.measures(index).items():
            place, is_mean = names.get(key[by], key[by]), base_metric(name) != name
            if not is_mean or (by == "region" and it.has_parts):
                place = f"{place}{', mean of modules' * is_mean}"
                rows.append({**key, by: place, "metric": base_metric(name), **vars(one)})
    found = over_seeds(DataFrame(rows), ["variant", by, "metric"])
    ranks = {name: i for i, name in enumerate(("exact_match", *LABEL_METRICS, *ANSWER_METRICS))}  # own ones come last
    found = found[found["metric"].isin(metrics)] if metrics else found
    found = found.assign(baseline=found["baseline"].mask(found[by] == REGION_NAMES["in_distribution"]))
    found = _with_memorizing(found, found["metric"].map(metric_title))
    found = found.sort_values("metric", key=lambda names: names.map(ranks), kind="stable")
    return _table(pivot(found, ["variant", by], "column"), fold=fold)


def metrics(it: Subject) -> Parts:
    """All metrics of labels, numbers and texts."""
    if not it.is_text and "sums" in it.map and it.map["sums"].notna().any():
        note = "Exact match is the mean over cells; other metrics are over all questions, labels or rows together"
        note += ". Medians over the seeds that have the metric." if it.has_seeds else "."
        note += " An answer without a number has no error: errors, R² and correlations are of the others." * (
            "mae" in it.map
        )
        yield _by(it, "region", fold="By region")._replace(notes=[note])
        if it.has_parts:
            yield _by(it, axis := grid_axes(it.map)[0], fold=f"By {axis}")


def _by_length(it: Subject) -> Parts:
    """Scores at some lengths beyond training, and how many of the converged seeds succeed there."""
    along = diagonal(of_map(it.converged))
    if not len(along):
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


def strata(it: Subject) -> Parts:
    """Questions that uniformly drawn ones almost never are, by size."""
    if len(found := stratum_sizes(it.final)):
        note = "Exact match in per cent on questions that uniform sampling almost never draws; n: the longest operand."
        found = _sized(found.assign(questions=found["questions_of"]), "size")
        yield _table(pivot(found, ["variant", "questions"], "size"), note)


def pairs(it: Subject) -> Parts:
    """Differences of variants with several seeds."""
    from pandas import DataFrame

    by = default_metric(it.cells) if it.is_text else it.metric or ("exact_match" if it.has_parts else None)
    found = differences(it.final, metric=by, baseline=it.baseline) if it.has_seeds else DataFrame()
    if not len(found):
        return
    metric = found["metric"].iloc[0]
    scale, unit, form = (100, ", points", "{:+.1f}") if is_share(metric) else (1, "", "{:+.4g}")
    form = f"{form} [{form}, {form}]"
    rows = [
        {
            "pair": f"{row['first']} / {row['second']}",
            "measure": REGION_NAMES.get(row["measure"], "converged seeds"),
            f"means{', %' * (scale == 100)}": " : ".join(
                value_text(metric, each) for each in row[["first_mean", "second_mean"]]
            ),
            f"difference{unit}": form.format(*(scale * row[["difference", "low", "high"]])).partition(" [+nan")[0],
            "better, %": percent(row["better"], 0),
            "p": f"{p_text(row['p_holm'])}{' *' * (row['p_holm'] < 0.05)}",
        }
        for _, row in found.iterrows()
    ]
    notes = [
        "Regions over the converged seeds and the cells that all have." * (not by),
        f"Brackets: 95 % bootstrap intervals over seeds, from five on. p: {joined(sorted({*found['test']}))}, "
        "two-sided, corrected by Holm's method for the pairs of a measure; *: p < 0.05. Better: how often a seed of "
        "the first beats one of the second. A large p does not show that there is no difference.",
        "With so few seeds no difference can be significant." * bool((found["p_min"] * found["pairs"] >= 0.05).all()),
    ]
    yield _table(DataFrame(rows), *filter(None, notes))


def asked(it: Subject) -> Parts:
    """Differences over the same questions."""
    if not it.is_text and len(it.seeds) > 1 and (found := same_questions(it.entries, it.final)):
        yield found


def seeds(it: Subject) -> Parts:
    """Every seed of every region."""
    if it.has_seeds and not it.is_text and not it.has_parts and len(it.map):
        yield it.embed(figures.forests({"": it.shown}, it.metric), figures.FOREST_NOTE)


def settings(it: Subject) -> Parts:
    """What differs between the variants."""
    first = it.cells.drop_duplicates("variant")
    names = [name for name in [*settings_columns(it.cells), "settings"] if first[name].nunique(dropna=False) > 1]
    note = f"They differ in {len(names)} settings: a difference in results may come from any of them."
    note = "They differ in this one setting; all others are equal." if len(names) == 1 else note
    if names:
        texts = first[["variant", *names]].astype("string").fillna("")
        yield _table(texts.rename(columns={"settings": "changed for the evaluation"}), note)


def curves(it: Subject) -> Parts:
    """Loss, and the score on the validation splits, by step."""
    if len(it.logged) and not it.is_text:
        note = "Medians over seeds; bands: lowest and highest." * (len(it.cells) > 0 and it.has_seeds)
        with suppress(UserError):  # where no number was logged
            yield it.embed(figures.training(it.curves, styles=it.styles), note)


def samples(it: Subject) -> Parts:
    """Questions with the predictions of the first seed of some variants; or texts that were generated."""
    from pandas import DataFrame

    first = {one.variant: one.folder / "samples.jsonl" for one in reversed(it.entries)}
    names = list(dict.fromkeys(one.variant for one in it.entries))[:MAX_SAMPLE_VARIANTS]
    lines = [(name, line) for name in names for line in read_records(first[name], RUN_FILE_SCHEMAS["samples.jsonl"])]
    rows: list[dict[str, Any]] = [
        {
            "variant": name,
            "step": f"{line.get('step', 0):,}",
            "prompt": line["prompt"] or "(start)",
            "text": line["text"],
        }
        for name, line in lines
        if line.get("text") and "prompt" in line
    ][-MAX_SAMPLES:]
    by_question: dict[str, dict[str, Any]] = {}
    for name, line in lines if not rows else ():
        if "question" in line:
            by_question.setdefault(line["question"], {})[name] = line
    parts, answered = part_names(it.cells) if len(it.cells) else {}, {*chain(*by_question.values())}
    for question, said in [one for one in by_question.items() if len(one[1]) == len(answered)][:MAX_SAMPLES]:
        line, *_ = said.values()
        sizes = line.get("cell") or {}
        cell = cell_name(sizes, it.operator, {axis: parts[size] for axis, size in sizes.items() if size in parts})
        texts = {name: f"{'✓' if one.get('correct') else '✗'} {one['prediction']}" for name, one in said.items()}
        rows.append({"cell": cell, "question": question, "answer": line.get("correct_answer") or "", **texts})
    if rows:
        yield Table(DataFrame(rows))


SECTIONS: Mapping[str, Callable[[Subject], Parts]] = {
    "": overview,
    "Results": results,
    "Strata": strata,
    "Differences": pairs,
    "Differences over the same questions": asked,
    "Seeds": seeds,
    "All metrics": metrics,
    "What differs": settings,
    "Training": curves,
    "Samples": samples,
}
"""The sections of a page by their titles, in order; one without figures and tables is left out."""


def _printed(it: Subject) -> Iterator[tuple[str, Table]]:
    """The main tables of a page with their titles."""
    for title in ("Results", "Strata", "Differences", "Differences over the same questions", "What differs"):
        tables = [part for part in SECTIONS[title](it) if isinstance(part, Table)] if len(it.cells) else []
        for i, table in enumerate(tables):
            yield (table.fold or f"By {table.texts.columns[table.num_keys]}") if i else title, table


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
        found = [
            (title, list(parts(it))) for title, parts in SECTIONS.items() if len(it.cells) or parts in (curves, samples)
        ]
        text = headline(it.cells, it.operator).replace(" %", "\N{NO-BREAK SPACE}%")
        tasks.append({"name": name, "headline": text, "sections": [one for one in found if one[1]]})
    done = [one for it in subjects.values() for one in it.entries]
    over = f"numerate · {kind} · {done[0].folder.name if len(done) == 1 else f'{len(done)} runs'}"
    known = {"title": title, "question": question, "over": over, "warnings": [*warnings, *_failures(entries), *damage]}
    return _template().render(**known, tasks=tasks, **_reproduction(done))


def text(
    entries: Sequence[RunEntry], width: int = 80, *, metric: str | None = None, baseline: str | None = None
) -> str:
    """The headline and the main tables of a page for a terminal."""
    blocks = _failures(entries)
    for name, it in _subjects(entries, metric, baseline, []).items():
        tables = [f"{title}\n{'=' * len(title)}\n{to_text(table, width)}" for title, table in _printed(it)]
        blocks += [*[name] * bool(name), *tables, "\n".join(wrap(headline(it.cells, it.operator), width))]
    return "\n\n".join(blocks)


def _subjects(
    entries: Sequence[RunEntry], metric: str | None, baseline: str | None, damage: list[str]
) -> dict[str, Subject]:
    """The done runs by task, with their cells; lines that cannot be read are added to `damage`."""
    done = [one for one in entries if one.is_done]
    cells, logged, names = cells_of(done), metrics_of(done, damage.append), count()
    counted = cells[cells[[name for name in ("correct", "nats") if name in cells]].notna().any(axis=1)]
    if len(counted) < len(cells):
        damage.append("Cells of a kind of evaluation that counts no answers are left out.")
        warn(damage[-1], stacklevel=3)
        cells = counted
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


def write_study_page(folder: Path, question: str, states: Sequence[RunState]) -> Path:
    """Writes `report.html` and `figure.png` of runs into the folder of their study; returns the path of the page."""
    entries = study_entries(states)
    html = page(entries, folder.name, question=question, kind="a study")
    path = write_output(folder / "report.html", html.encode(), place="runs")
    with suppress(UserError):  # where nothing was evaluated on a grid
        save(figures.plot("compare", [one for one in entries if one.is_done]), path.with_name("figure.png"))
    return path


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
    """A sentence about the runs of a study that are not done."""
    failed = [(one, str(one.state.error)) for one in entries if one.state is not None and one.state.error is not None]
    named = [f"{one.variant} seed {one.seed} ({shorten(error, 100, placeholder=' ...')})" for one, error in failed]
    verb = "is" if len(failed) == 1 else "are"
    sentence = f"{len(failed)} of {len(entries)} runs failed and {verb} not in anything below: "
    return [f"{sentence}{joined(named, 7)}."] if failed else []


def _reproduction(entries: Sequence[RunEntry]) -> dict[str, Any]:
    """Commands, environment, settings and citations; of many runs those of the first seed of each variant."""
    from pandas import DataFrame

    firsts = list({one.variant: one for one in reversed(entries)}.values())[::-1][:MAX_ROWS]
    heads = [read_header(one.folder / RECIPE_FILE) for one in firsts]
    known: dict[tuple[str, str], list[str]] = {}
    for name in ("parameters", "ended", "times", "hardware", "git", "versions"):
        for one, head in zip(firsts, heads, strict=True):
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

"""Pages of runs: what was asked, what was found, and how to do it again. One HTML file that needs nothing else.

All pages come from one template: a run, a study and a comparison differ in the sections that have something to say. Two
savings of the same records are the same bytes.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from io import BytesIO
from itertools import count
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from warnings import warn

from markupsafe import Markup

from numerate.config.differences import flatten_settings
from numerate.errors import UserError, check_choice
from numerate.records.heads import RECIPE_FILE, read_header
from numerate.records.kinds import RUN_FILE_SCHEMAS
from numerate.records.reading import read_records
from numerate.results.answers import same_questions
from numerate.results.figures import (
    FOREST_NOTE,
    MAX_NUMBERS,
    best_variants,
    by_length,
    forests,
    heat_map,
    panels,
    training_curves,
)
from numerate.results.headline import headline, stratum_sizes
from numerate.results.plots import plot
from numerate.results.rows import (
    LANGUAGE_METRICS,
    SCORE_PREFIX,
    RunEntry,
    by_task,
    cells_of,
    find_runs,
    metrics_of,
    settings_columns,
)
from numerate.results.style import PAGE, figure_style, new_axes, new_figure, save, svg
from numerate.results.summary import (
    SUCCESS,
    check_metric,
    converged,
    default_metric,
    diagonal,
    differences,
    grid_axes,
    has_parts,
    of_map,
    part_names,
    reported,
    shared_cells,
    summary,
)
from numerate.results.tables import Table, pivot, to_markdown, to_text
from numerate.results.words import (
    REGION_NAMES,
    axis_name,
    cell_name,
    cell_percent,
    is_share,
    joined,
    metric_title,
    p_text,
    percent,
    value_text,
)
from numerate.runs.status import RunState
from numerate.training.output_files import write_output

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

MAX_SAMPLES = 24
"""Questions with predictions on a page."""

MAX_SAMPLE_VARIANTS = 4
"""Variants whose predictions stand side by side."""

MAX_MAPS = 6
"""Variants with a map of their own."""

MAX_ROWS = 40
"""Rows of a table that is not folded."""


@dataclass(frozen=True)
class Section:
    """A titled part of a page: figures with captions, then tables."""

    title: str = ""
    figures: Sequence[tuple[Markup, str]] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Subject:
    """What a page is about: the runs of one task with their cells, and what was logged while they trained.

    `names` numbers the figures of a page, and `damage` says what could not be read. `metric` is what variants are
    measured by, if not by the default, and `baseline` the variant that others are compared with.
    """

    entries: Sequence[RunEntry]
    cells: "DataFrame"
    logged: "DataFrame"
    names: Iterator[int]
    metric: str | None = None
    baseline: str | None = None
    damage: Sequence[str] = ()

    @property
    def operator(self) -> str | None:
        """What stands between the two numbers of a question, where the task has such a thing."""
        task = self.entries[0].recipe.get("task") or {}
        return str(task["operator"]) if "operator" in task else None

    @property
    def is_text(self) -> bool:
        return "nats" in self.cells and bool(self.cells["nats"].notna().all())

    @property
    def has_tokenizers(self) -> bool:
        """Whether there are several tokenizers, whose losses do not compare."""
        return "tokenizer" in self.cells and self.cells["tokenizer"].nunique() > 1

    @property
    def has_seeds(self) -> bool:
        """Whether a variant has several seeds."""
        return bool((self.cells.groupby("variant")["run"].nunique() > 1).any())

    @cached_property
    def shown(self) -> "DataFrame":
        """The cells of the variants that figures show."""
        return best_variants(self.cells)

    def embed(self, drawn: "Figure | Axes", num_cells: int = 0) -> Markup:
        """A figure as SVG; one with many cells as a picture."""
        figure: Any = drawn.get_figure(root=True)
        if num_cells <= MAX_NUMBERS:
            return Markup(svg(figure, f"f{next(self.names)}"))
        file = BytesIO()
        with figure_style():
            figure.savefig(file, format="png", dpi=130, metadata={"Software": None})
        return Markup('<img alt="" src="data:image/png;base64,{}">').format(b64encode(file.getvalue()).decode())


# Sections -------------------------------------------------------------------------------------------------------------


def overview(it: Subject) -> Section:
    """The main figure: maps and scores by length; of parts their regions; of text the validation loss."""
    if it.is_text:
        if "split" not in it.logged or not (it.logged["split"] == "validation").any():
            return Section()
        ax = training_curves(it.logged, new_axes(PAGE * 0.75, 2.8), split="validation")
        return Section(figures=[(it.embed(ax), "Validation loss by step; bands: lowest and highest seed.")])
    shown, found, axes = it.shown, [], grid_axes(it.cells)
    drawn = list(dict.fromkeys(shown["variant"]))
    few = f" Shown: the first and the best of {it.cells['variant'].nunique()}." * (len(shown) < len(it.cells))
    if has_parts(it.cells):
        return Section(figures=[(it.embed(forests(shown)), FOREST_NOTE + few)])
    along = diagonal(reported(it.cells))
    if len(axes) == 2 and len(of_map(it.cells)) > len(diagonal(it.cells)):
        maps = [(name, shown[shown["variant"] == name]) for name in drawn[:MAX_MAPS]]
        size = max(len(of_map(reported(cells))[axes].drop_duplicates()) for _, cells in maps)
        figure = panels(maps, heat_map, columns=2 if len(maps) in (2, 4) else 3, height=2.7, bar=False)
        medians = "Medians over seeds. " * it.has_seeds
        caption = f"{medians}Red: the sizes of training. A cell reads 100 or 0 only where all or none were right."
        found.append((it.embed(figure, size), caption + few))
    if len(axes) in (1, 2) and len(along):
        ax = by_length(shown, new_axes(PAGE * 0.75, 3.0))
        bands = "lowest and highest of the converged seeds" if it.has_seeds else "95 % intervals over questions"
        found.append((it.embed(ax), f"Bands: {bands}. Shaded: the lengths of training.{few}"))
    return Section(figures=found)


def results(it: Subject) -> Section:
    """The table of results: each variant and checkpoint with its score in each region; then by length."""
    import pandas

    if not len(of_map(it.cells)):
        return Section()
    metrics = [it.metric or default_metric(of_map(it.cells))]
    metrics = list(LANGUAGE_METRICS[:3]) if it.is_text else metrics
    if has_parts(it.cells):
        metrics += [name for name in ("log_mae", "bleu") if name in it.cells][:1]
    metrics += [name for name in it.cells if name.startswith(SCORE_PREFIX)]
    checkpoints = _checkpoints(it.cells)
    found: DataFrame = pandas.concat(
        [
            summary(it.cells, metric=metric, checkpoint=name).assign(checkpoint=name or "final")
            for name in checkpoints
            for metric in metrics
        ],
        ignore_index=True,
    )
    regions = found["region"].map(lambda name: REGION_NAMES.get(name, name))
    found["column"] = regions + (": " + found["metric"].map(metric_title) if len(metrics) > 1 else ", %")
    keys = ["variant", *["checkpoint"] * (len(checkpoints) > 1)]
    known = found[found["baseline"].notna()]
    memorizing = known.assign(low=None, high=None, value=known["baseline"])
    memorizing["column"] = regions[known.index] + ": memorizing, %"
    found = pandas.concat([found, memorizing], ignore_index=True)
    names = found.sort_values("region", key=lambda names: names.map(_region_order), kind="stable")["column"].unique()
    table = pivot(found, keys, "column")[[*keys, *names]]
    if it.has_seeds:
        kept, counts = (cells.groupby("variant")["run"].nunique() for cells in (converged(it.cells), it.cells))
        rates = [f"{kept.get(name, 0)}/{counts[name]}" for name in table["variant"]]
        table.insert(len(keys), "converged", rates)
    chosen = of_map(reported(it.cells))
    brackets = "lowest and highest seed" if it.has_seeds else "95 % intervals over questions; seeds may differ more"
    medians = "; medians over seeds" * it.has_seeds
    what = metric_title(metrics[0])
    notes = [f"{what[0].upper()}{what[1:]}{medians}; brackets: {brackets}. All cells of a region weigh the same."]
    if len(shared_cells(chosen)) < len(chosen):
        notes.append("The runs were evaluated on different cells: means of regions are over those that all have.")
    if it.has_tokenizers:
        notes.append("The tokenizers differ: losses and perplexities do not compare, bits per byte do.")
    if len(checkpoints) > 1:
        notes.append("The best checkpoint was chosen on OOD validation, which it therefore has no score for.")
    return Section("Results", tables=[_table(table, "rows", *notes), *_part_table(it), *_length_table(it)])


def _region_order(name: str) -> int:
    """The place of a region among the columns of a table; other contexts of text come last."""
    return list(REGION_NAMES).index(name) if name in REGION_NAMES else len(REGION_NAMES)


def _table(texts: "DataFrame", what: str, *notes: str, fold: str = "") -> Table:
    """A table, folded if it is long."""
    return Table(texts, notes=notes, fold=fold or f"{len(texts)} {what}" * (len(texts) > MAX_ROWS))


def _checkpoints(cells: "DataFrame") -> list[str | None]:
    """The reported checkpoint, and the best one where it is another step."""
    steps = cells.groupby("checkpoint")["step"].agg(set)
    return [None, "best"] if {"final", "best"} <= {*steps.index} and steps["final"] != steps["best"] else [None]


def _part_table(it: Subject) -> list[Table]:
    """The scores of each part, such as a module, by its name."""
    if not has_parts(it.cells):
        return []
    (axis,), metrics = grid_axes(it.cells), [name for name in ("exact_match", "log_mae", "bleu") if name in it.cells]
    found = [summary(of_map(it.cells), by=["variant", axis], metric=name) for name in metrics]
    names = part_names(it.cells)
    found = [one.assign(part=one[axis].map(lambda size: names.get(int(size), str(size)))) for one in found]
    tables = [
        pivot(one.assign(column=metric_title(one["metric"].iloc[0])), ["variant", "part"], "column") for one in found
    ]
    whole = tables[0]
    for table in tables[1:]:
        whole = whole.merge(table, on=["variant", "part"], how="left")
    return [_table(whole.rename(columns={"part": axis}), f"{axis}s")]


def _length_table(it: Subject) -> list[Table]:
    """Scores at some lengths beyond training, and how many of the converged seeds succeed there."""
    along = diagonal(reported(converged(it.cells)))
    if it.is_text or has_parts(it.cells) or not len(along):
        return []
    trained = along.loc[along["region"] == "in_distribution", "length"].max()
    lengths = sorted(int(n) for n in along["length"].unique() if not n < trained)
    wanted = {trained, trained + 1, *(trained * half // 2 for half in (3, 4, 6, 8, 20, 200, 2000)), *lengths[-1:]}
    kept = [n for n in lengths if n in wanted or len(lengths) <= 8]
    found = summary(along[along["length"].isin(kept)], by=["variant", "length"]).sort_values("length", kind="stable")
    table = pivot(
        found.assign(length=found["length"].map("n = {:,}".format)), ["variant"], "length", success=it.has_seeds
    )
    note = f"Of the converged seeds; behind the dot how many have at least {percent(SUCCESS)} %."
    return [_table(table, "", *[note] * it.has_seeds, fold="By length")]


def strata(it: Subject) -> Section:
    """Questions that uniformly drawn ones almost never are, by size."""
    found = stratum_sizes(reported(it.cells))
    if not len(found):
        return Section()
    found = found.sort_values("size", kind="stable")
    found = found.assign(size=found["size"].map("n = {:,}".format)).rename(columns={"questions": "asked"})
    found = found.rename(columns={"questions_of": "questions"})
    note = "Exact match in per cent on questions that uniform sampling almost never draws; n: the longest operand."
    return Section("Strata", tables=[_table(pivot(found, ["variant", "questions"], "size"), "strata", note)])


def pairs(it: Subject) -> Section:
    """Differences of variants with several seeds, and over the same questions."""
    from pandas import DataFrame

    asked = None if it.is_text or it.cells["variant"].nunique() < 2 else same_questions(it.entries, it.cells)
    by = it.metric or ("exact_match" if has_parts(it.cells) else None)
    by = default_metric(it.cells) if it.is_text else by
    found = differences(it.cells, metric=by, baseline=it.baseline) if it.has_seeds else DataFrame()
    if not len(found):
        return Section("Differences over the same questions", tables=[asked] if asked else ())
    metric = found["metric"].iloc[0]
    scale, unit, form = (100, ", points", "{:+.1f}") if is_share(metric) else (1, "", "{:+.4g}")
    rows = [
        {
            "pair": f"{row['first']} / {row['second']}",
            "measure": REGION_NAMES.get(row["measure"], "converged seeds"),
            f"means{', %' * (scale == 100)}": " : ".join(
                value_text(metric, row[name]) for name in ("first_mean", "second_mean")
            ),
            f"difference{unit}": f"{form} [{form}, {form}]".format(*(scale * row[["difference", "low", "high"]])),
            "better, %": percent(row["better"], 0),
            "p": f"{p_text(row['p_holm'])}{' *' * (row['p_holm'] < 0.05)}",
        }
        for _, row in found.iterrows()
    ]
    tests = joined(sorted({*found["test"]}))
    seeds_counted = "" if by else "Regions over the converged seeds and the cells that both have; "
    note = (
        f"{seeds_counted}brackets: 95 % bootstrap intervals over seeds. "
        f"p: {tests}, two-sided, corrected by Holm's method for the pairs of a measure; *: p < 0.05. Better: "
        "how often a seed of the first beats one of the second. A large p does not show that there is no difference."
    )
    few = ["With so few seeds no difference can be significant."] * bool(
        (found["p_min"] * found["pairs"] >= 0.05).all()
    )
    table = _table(DataFrame(rows), "pairs", note[0].upper() + note[1:], *few)
    return Section("Differences", tables=[table, *([asked] if asked else [])])


def seeds(it: Subject) -> Section:
    """Every seed of every region."""
    if not it.has_seeds or it.is_text or has_parts(it.cells) or not len(of_map(it.cells)):
        return Section()
    return Section("Seeds", [(it.embed(forests(it.shown)), FOREST_NOTE)])


def settings(it: Subject) -> Section:
    """What differs between the variants."""
    first = it.cells.drop_duplicates("variant")
    names = [name for name in settings_columns(it.cells) if first[name].nunique(dropna=False) > 1]
    if not names:
        return Section()
    note = f"They differ in {len(names)} settings: a difference in results may come from any of them."
    note = "They differ in this one setting; all others are equal." if len(names) == 1 else note
    texts = first[["variant", *names]].astype("string").fillna("")
    return Section("What differs", tables=[_table(texts, "variants", note)])


def training(it: Subject) -> Section:
    """Loss, and the score on the validation splits, by step."""
    if not len(it.logged) or it.is_text:
        return Section()
    metric = "accuracy" if "accuracy" in it.logged else "exact_match"
    drawn: list[dict[str, Any]] = [{"y": "loss", "split": None}]
    if metric in it.logged:
        splits = it.logged.loc[it.logged[metric].notna(), "split"]
        drawn += [{"y": metric, "split": name} for name in ("validation", "ood_validation") if (splits == name).any()]
    kept = it.shown["variant"] if len(it.cells) else it.logged["variant"]
    shown = it.logged[it.logged["variant"].isin(kept)]
    with figure_style():
        figure = new_figure(PAGE, 2.7)
        for options, ax in zip(drawn, figure.subplots(1, len(drawn), squeeze=False).flat, strict=True):
            training_curves(shown if len(shown) else it.logged, ax, **options)
    return Section("Training", [(it.embed(figure), "Medians over seeds; bands: lowest and highest." * it.has_seeds)])


def samples(it: Subject) -> Section:
    """Questions with the predictions of the first seed of some variants; or texts that were generated."""
    from pandas import DataFrame

    first = {one.variant: one for one in reversed(it.entries)}
    names = list(dict.fromkeys(one.variant for one in it.entries))[:MAX_SAMPLE_VARIANTS]
    schema = RUN_FILE_SCHEMAS["samples.jsonl"]
    lines = {name: read_records(first[name].folder / "samples.jsonl", schema) for name in names}
    texts = [
        {
            "variant": name,
            "step": f"{line.get('step', 0):,}",
            "prompt": line["prompt"] or "(start)",
            "text": line["text"],
        }
        for name, own in lines.items()
        for line in own
        if line.get("text") and "prompt" in line
    ]
    if texts:
        return Section("Generated texts", tables=[Table(DataFrame(texts[-MAX_SAMPLES:]))])
    answers = {name: {line["question"]: line for line in own if "question" in line} for name, own in lines.items()}
    answers = {name: own for name, own in answers.items() if own}
    shared = [one for one in next(iter(answers.values()), {}) if all(one in own for own in answers.values())]
    rows, names_of_parts = [], part_names(it.cells) if len(it.cells) else {}
    for question in shared[:MAX_SAMPLES]:
        line = next(iter(answers.values()))[question]
        sizes = line.get("cell") or {}
        named = {axis: name for axis, size in sizes.items() if (name := names_of_parts.get(size)) is not None}
        row = {"cell": cell_name(sizes, it.operator, named), "question": question}
        row["answer"] = line.get("correct_answer") or ""
        for name, own in answers.items():
            row[name] = f"{'✓' if own[question].get('correct') else '✗'} {own[question]['prediction']}"
        rows.append(row)
    return Section("Samples", tables=[Table(DataFrame(rows))] if rows else ())


SECTIONS: Sequence[Callable[[Subject], Section]] = (
    overview,
    results,
    strata,
    pairs,
    seeds,
    settings,
    training,
    samples,
)
"""The sections of a page, in order; one without figures and tables is left out."""


TERMINAL_SECTIONS = (results, strata, pairs, settings)
"""The sections that are also printed."""


def _maps(it: Subject, width: int) -> Iterator[Section]:
    """For a terminal, a map of each variant as a table of per cents; of few variants, and of maps that fit."""
    axes = grid_axes(it.cells) if len(it.cells) and not it.is_text else []
    if len(axes) != 2 or has_parts(it.cells) or it.cells["variant"].nunique() > MAX_MAPS:
        return
    for name, own in of_map(reported(it.cells)).groupby("variant", sort=False):
        found = summary(own, by=axes, metric=it.metric).sort_values(axes)
        found = found.assign(text=found["value"].map(cell_percent))
        texts = found.pivot(index=axes[0], columns=axes[1], values="text").fillna("").reset_index()
        texts = texts.rename(columns={axes[0]: ""}).rename(columns=str).astype(str)
        if len(texts) > 1 and 4 * len(texts.columns) + 2 <= width:
            note = f"{axis_name(axes[0])} (down) and {axis_name(axes[1])}; {metric_title(found['metric'].iloc[0])}"
            yield Section(str(name), tables=[Table(texts, notes=[note])])


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
    subjects, tasks = _subjects(entries, metric, baseline), []
    for name, it in subjects.items():
        found = [section(it) for section in (SECTIONS if len(it.cells) else (training, samples))]
        text = headline(it.cells, it.operator).replace(" %", "\N{NO-BREAK SPACE}%")
        tasks.append({"name": name, "headline": text, "sections": [one for one in found if one.figures or one.tables]})
    done = [one for it in subjects.values() for one in it.entries]
    damage = next(iter(subjects.values())).damage
    over = f"numerate · {kind} · {done[0].folder.name if len(done) == 1 else f'{len(done)} runs'}"
    known = {"title": title, "question": question, "over": over, "warnings": [*warnings, *_failures(entries), *damage]}
    return _template().render(**known, tasks=tasks, **_reproduction(done))


def text(
    entries: Sequence[RunEntry], width: int = 80, *, metric: str | None = None, baseline: str | None = None
) -> str:
    """The headline and the tables of a page for a terminal, with a map of each variant where there is room."""
    blocks = []
    for name, it in _subjects(entries, metric, baseline).items():
        blocks += [name] * bool(name)
        sections = [*_maps(it, width), *(section(it) for section in TERMINAL_SECTIONS if len(it.cells))]
        titled = [(table.fold or one.title, table) for one in sections for table in one.tables]
        blocks += [f"{title}\n{'=' * len(title)}\n{to_text(table, width)}" for title, table in titled]
        blocks.append("\n".join(wrap(headline(it.cells, it.operator), width)))
    return "\n\n".join([*_failures(entries), *blocks])


def _subjects(entries: Sequence[RunEntry], metric: str | None, baseline: str | None) -> dict[str, Subject]:
    """The done runs by task, with their cells."""
    done = [one for one in entries if one.state is None or one.state.status == "done"]
    damage: list[str] = []
    cells, logged, names, found = cells_of(done), metrics_of(done, damage.append), count(), {}
    counted = cells[cells[[name for name in ("correct", "nats") if name in cells]].notna().any(axis=1)]
    if len(counted) < len(cells):
        damage.append("Cells of a kind of evaluation that counts no answers are left out.")
        warn(damage[-1], stacklevel=3)
        cells = counted
    if metric is not None:
        check_metric(cells, metric)
    check_choice("baseline", baseline or done[0].variant, [one.variant for one in done])
    for name, own in by_task(done).items():
        runs = {one.run for one in own}
        own_cells, own_logged = (frame[frame["run"].isin(runs)] if len(frame) else frame for frame in (cells, logged))
        found[name] = Subject(own, own_cells, own_logged, names, metric, baseline, damage)
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
        save(
            plot("compare", [one for one in entries if one.state and one.state.status == "done"]),
            path.with_name("figure.png"),
        )
    return path


def card(folder: Path, title: str, introduction: str, metadata: Mapping[str, Any]) -> str:
    """The card of an exported run, a README.md that the Hugging Face Hub shows: metadata, headline, tables, and what is
    required to run it again."""
    from numerate.config import yaml_text

    (it,), again = _subjects(find_runs([folder]), None, None).values(), _reproduction(find_runs([folder]))
    texts = [f"---\n{yaml_text(dict(metadata))}---", f"# {title}", introduction, headline(it.cells, it.operator)]
    sections = [section(it) for section in (TERMINAL_SECTIONS if len(it.cells) else ())]
    sections.append(Section("To run it again", tables=again["environment"]))
    for one in sections:
        texts += [f"## {one.title}"] * bool(one.tables)
        for table in one.tables:
            inner = to_markdown(table).rstrip()
            folded = f"<details><summary>{table.fold}</summary>\n\n{inner}\n\n</details>"
            texts.append(folded if table.fold else inner)
    code = [*again["commands"], *again["citations"]]
    return "\n\n".join([*texts, *(f"```\n{text}\n```" for text in code)]) + "\n"


def write_page(path: str | Path, text: str) -> Path:
    """Writes a page and returns its path."""
    return write_output(path, text.encode(), "The records are unchanged.")


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
    names = [
        name
        for name in ("parameters", "times", "hardware", "git", "versions")
        if any(map(dict.get, heads, [name] * len(heads)))
    ]
    known = DataFrame(
        {
            "variant": [one.variant for one in firsts],
            **{name: [_plain(head.get(name)) for head in heads] for name in names},
        }
    )
    shared = [name for name in names if known[name].nunique() == 1]
    tables = [Table(DataFrame({"": shared, " ": [known[name].iloc[0] for name in shared]}))] if shared else []
    if len(shared) < len(names):
        tables.append(Table(known.drop(columns=shared), fold="Of each variant"))
    if len(heads) == 1:
        items = [(path, text) for path, text in flatten_settings(heads[0]["recipe"]).items() if path]
        tables.append(Table(DataFrame(items, columns=["setting", "value"]), fold="Every setting"))
    commands, citations = (
        dict.fromkeys(str(head[name]).strip() for head in heads if head.get(name)) for name in ("command", "bibtex")
    )
    return {"commands": list(commands), "environment": tables, "citations": list(citations)}


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

"""The report of a run: one HTML file that needs nothing else, written from the records in the run's folder."""

from html import escape
from pathlib import Path

from numerate.errors import OperationalError, UserError
from numerate.evaluation.labels import METRICS, Metric
from numerate.reports import attention_maps, overview, sections
from numerate.reports.answers import answer_tables
from numerate.reports.comparable import not_comparable_notes
from numerate.reports.counts import count_section
from numerate.reports.drawing import html_table, metadata_list
from numerate.reports.grid import ALL_OOD, REGION_LABELS, RegionScore, format_interval, format_percent, score_regions
from numerate.reports.groups import (
    Group,
    exclude_selection_cells,
    format_settings,
    group_runs,
    have_unordered_cells,
    region_labels,
)
from numerate.reports.language_page import run_sections
from numerate.reports.metric_tables import metric_tables
from numerate.reports.records import Records, read_run
from numerate.reports.scores import score_table
from numerate.reports.sheet import page
from numerate.reports.summary import GENERALIZATION_THRESHOLD, group_result, summary_sentence


def write_run_report(run_folder: str | Path) -> Path:
    """Writes report.html into a run's folder and returns its path.

    It depends on the records only: the same records give identical files. Raises `UserError` if the folder is not a
    run or not writable, `OperationalError` when its records are damaged or the disk is full.
    """
    run = read_run(run_folder)
    return write_atomically(run.folder / "report.html", run_page(run))


def run_page(run: Records) -> str:
    """The page of one run as text."""
    group = group_runs([run])[0]
    if run.is_language_modeling:
        return _language_modeling_page(run)
    title, parts = run.label, have_unordered_cells([group])
    body = [
        f'<p class="over">numerate · a run · {escape(run.id)}</p><h1>{escape(title)}</h1>',
        sections.warning_html("; ".join(not_comparable_notes([group]))),
        sections.summary_html(summary_sentence([group])),
        _metadata_html(group, run),
        sections.heading("Accuracy per count", count_section([group])),
        sections.overview_section([group]),
        sections.heading("The numbers", metric_tables([group]) if parts else ""),
        sections.heading("Regions", sections.region_table([group])),
        sections.heading("Numbers and texts in the answers", "" if parts else answer_tables([group])),
        sections.heading("Scores of the kind of evaluation", score_table(group)),
        sections.heading("Checkpoints and position offsets", _other_evaluations(run, group.resolved_metric)),
        sections.heading("Run with other settings", _other_settings(run)),
        sections.heading("Training", sections.training_section([group])),
        sections.heading("Samples", sections.samples_table(run)),
        sections.heading("Attention and relations", attention_maps.maps_section(run.folder)),
        sections.heading("To run it again", sections.reproduction_section([run])),
        sections.heading("Recipe", _details(sections.recipe_table(run))),
        sections.heading("Left out of this report", sections.warnings([run])),
    ]
    return page(f"{title}: report", "\n".join(part for part in body if part))


def _language_modeling_page(run: Records) -> str:
    """The page of one language modeling run."""
    body = [
        f'<p class="over">numerate · a run · {escape(run.id)}</p><h1>{escape(run.label)}</h1>',
        *run_sections(run),
        sections.heading("Attention and relations", attention_maps.maps_section(run.folder)),
        sections.heading("To run it again", sections.reproduction_section([run])),
        sections.heading("Recipe", _details(sections.recipe_table(run))),
        sections.heading("Left out of this report", sections.warnings([run])),
    ]
    return page(f"{run.label}: report", "\n".join(part for part in body if part))


def run_iframe(run_folder: str | Path) -> str:
    """The summary and the main figure of a run for a notebook, in a separate frame so that styles do not leak."""
    run = read_run(run_folder)
    group = group_runs([run])[0]
    if run.is_language_modeling:
        inside = escape(page(run.label, "".join(run_sections(run))))
        frame = 'style="width:100%;height:760px;border:0"'
        return f'<iframe title="{escape(run.label)}" srcdoc="{inside}" {frame}></iframe>'
    body = sections.summary_html(summary_sentence([group])) + count_section([group]) + overview.overview_figure([group])
    inside = escape(page(run.label, body))
    return f'<iframe title="{escape(run.label)}" srcdoc="{inside}" style="width:100%;height:760px;border:0"></iframe>'


def write_atomically(path: Path, text: str) -> Path:
    """Writes a file atomically: to a temporary file, which is then renamed."""
    temporary_path = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path.write_text(text, encoding="utf-8")
        temporary_path.replace(path)
    except PermissionError:
        raise UserError(
            f"{path}: no permission to write there; choose another path or change the folder's permissions"
        ) from None
    except OSError as error:
        temporary_path.unlink(missing_ok=True)
        raise OperationalError(f"{path}: could not be written: {error.strerror}; the records are unchanged") from None
    return path


def _metadata_html(group: Group, run: Records) -> str:
    pairs = {}
    found = group.region_scores[0] if group.region_scores else {}
    for name, words in region_labels([group]).items():
        if name in found and not (name == ALL_OOD and len(found) > 3 and not found[name].num_cells):
            share = found[name].score
            interval = f'<span class="quiet">{format_interval(share.low, share.high)}</span>'
            baseline = found[name].baseline
            beside = (
                f' <span class="quiet">baseline {format_percent(baseline)} %</span>' if baseline is not None else ""
            )
            pairs[f"{words}, {_score_label(group, name)}"] = f"{format_percent(share.value)} % {interval}{beside}"
    reach = group_result(group).farthest_point
    if reach is not None:
        pairs[f"at least {format_percent(GENERALIZATION_THRESHOLD)} % up to"] = escape(
            group_result(group).point_label(reach)
        )
    known = sections.run_metadata(run)
    pairs.update({name: escape(known[name]) for name in ("parameters", "steps", "examples") if name in known})
    return metadata_list(pairs) if pairs else ""


def _score_label(group: Group, name: str) -> str:
    """The metric of a region: the mean exact match, or a metric of labels."""
    if group.resolved_metric == "exact_match":
        return "mean"
    is_trained = (group.resolved_metric, name) == ("ood_accuracy", "in_distribution")
    return METRICS["accuracy"] if is_trained else group.metric_label


def _other_evaluations(run: Records, measure: Metric) -> str:
    """One row per checkpoint, settings and position offset, where more than one was evaluated; of labels and several
    position offsets the mean over these as well."""
    rows, has_settings = [], len(run.settings()) > 1
    position_offsets: list[int | None] = [*run.position_offsets()]
    labelled = all(cell.labels is not None for cell in run.cells)
    position_offsets += [None] * (labelled and len(position_offsets) > 1)
    words = {name: text for name, text in region_labels(group_runs([run])).items() if _has_region(run, name)}
    for settings in run.settings():
        for checkpoint in run.checkpoints():
            for position_offset in position_offsets:
                cells = [
                    cell.with_metric(measure)
                    for cell in exclude_selection_cells(run.select_cells(checkpoint, position_offset, settings))
                ]
                if cells:
                    found = score_regions(cells)
                    texts = [_score_text(found[name]) if name in found else "" for name in words]
                    offset_text = (
                        f"mean of {len(run.position_offsets())}" if position_offset is None else str(position_offset)
                    )
                    how = [escape(format_settings(settings) or "as trained")] * has_settings
                    rows.append([escape(checkpoint[0]), f"{checkpoint[1]:,}", *how, offset_text, *texts])
    header = [
        "checkpoint",
        "step",
        *(["settings"] * has_settings),
        "position_offset",
        *(f"{text}, %" for text in words.values()),
    ]
    numbers = [1, *range(2 + has_settings, len(header))]
    if len(rows) < 2:
        return ""
    chosen = any(cell.checkpoint == "best" and cell.region == "ood_validation" for cell in run.cells)
    note = f"<figcaption>{BEST_CHECKPOINT_NOTE}</figcaption>" if chosen else ""
    return html_table(header, rows, number_columns=numbers) + note


BEST_CHECKPOINT_NOTE = "The best checkpoint was chosen on OOD validation, which is therefore excluded from its results."


def _score_text(region: RegionScore) -> str:
    baseline = f" (baseline {format_percent(region.baseline)})" if region.baseline is not None else ""
    return f"{format_percent(region.score.value)} {format_interval(region.score.low, region.score.high)}{baseline}"


def _has_region(run: Records, name: str) -> bool:
    """Whether the cells of a run have a region; of more than one OOD region there is a mean of all."""
    found = {cell.region for cell in run.cells}
    return name in found or (name == ALL_OOD and len(found & REGION_LABELS.keys() - {"in_distribution"}) > 1)


def _other_settings(run: Records) -> str:
    """The maps and lengths of a run that was evaluated with other settings than it was trained with, beside its own."""
    groups = group_runs([run])
    return overview.overview_figure(groups) + sections.region_table(groups) if len(groups) > 1 else ""


def _details(body: str) -> str:
    return f"<details><summary>Every setting</summary>{body}</details>" if body else ""

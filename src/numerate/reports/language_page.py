"""Pages of language modeling runs: of one run, and of several."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from numerate.reports import sections
from numerate.reports.drawing import html_table, metadata_list
from numerate.reports.groups import Group, group_runs
from numerate.reports.html import to_html
from numerate.reports.language import (
    NOTE,
    comparison_metric,
    difference_rows,
    language_rows,
    language_summary,
    main_rows,
    metric_rows,
    text_size_note,
)
from numerate.reports.language_curves import curves_section, validation_metrics
from numerate.reports.language_records import number_text
from numerate.reports.language_speed import speed_note, speed_rows, speed_summary
from numerate.reports.records import Records

MAX_SAMPLE_STEPS = 6
"""Maximum number of steps with sampled texts."""

MAX_TEXTS_PER_STEP = 8
"""Maximum number of texts per step."""

EMPTY_PROMPT = '<span class="quiet">(the beginning of a document)</span>'
"""Shown for an empty prompt."""


def language_modeling_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups of language modeling runs."""
    return [group for group in groups if any(run.is_language_modeling for run in group.runs)]


def run_sections(run: Records) -> list[str]:
    """The sections of the page of one run."""
    groups = group_runs([run])
    return [
        sections.summary_html(language_summary(groups)),
        _metadata_html(groups[0], run),
        *_shared_sections(groups),
        sections.heading("Texts generated during training", generated_texts_html([run])),
    ]


def comparison_sections(groups: Sequence[Group]) -> list[str]:
    """The sections of the page of several groups."""
    rows = main_rows(language_rows(groups))
    metric, why = comparison_metric(rows)
    header, lines = difference_rows(rows, metric)
    shown = [[*map(escape, line[:-1]), escape(line[-1]).replace(" ", "&nbsp;")] for line in lines]
    differences = _compact_table(html_table(header, shown, number_columns=[2, 3])) if lines else ""
    note = " ".join(filter(None, (why, text_size_note(rows), "Intervals are Welch's, over seeds.")))
    return [
        sections.summary_html(language_summary(groups)),
        *_shared_sections(groups),
        sections.heading("Significant differences between groups", differences and f"{differences}{_caption(note)}"),
        sections.heading("Speed and memory", speed_html(groups)),
        sections.heading("Texts drawn during training", _generated_texts_by_group(groups)),
    ]


def _shared_sections(groups: Sequence[Group]) -> list[str]:
    return [
        sections.heading("Loss, perplexity, bits per byte", metrics_html(groups)),
        sections.heading("Validation curves", str(to_html(curves_section(groups)))),
    ]


def metrics_html(groups: Sequence[Group]) -> str:
    """The table of all metrics at the final and the best checkpoint."""
    header, lines = metric_rows(groups)
    if not lines:
        return ""
    first = 1 if len(groups) == 1 else 0
    shown = [[_grey_interval(cell, "<br>") for cell in line[first:]] for line in lines]
    numbers = range(2 - first, len(header) - first)
    rows = language_rows(groups)
    different = (
        "" if text_size_note(main_rows(rows)) else text_size_note(rows)
    )  # the summary has it for differences between groups
    return _compact_table(html_table(header[first:], shown, number_columns=numbers)) + _caption(
        f"{NOTE} {different}".strip()
    )


def speed_html(groups: Sequence[Group]) -> str:
    """The table of speed and memory; empty if nothing was logged."""
    header, lines = speed_rows(groups)
    if not lines:
        return ""
    shown = [[escape(cell) for cell in line] for line in lines]
    return _compact_table(html_table(header, shown, number_columns=range(1, len(header)))) + _caption(
        speed_note(groups)
    )


def _compact_table(text: str) -> str:
    """A table of many columns, close together."""
    return text.replace('<table class="data">', '<table class="data tight">', 1)


def _caption(text: str) -> str:
    return f"<figcaption>{escape(text)}</figcaption>"


def _metadata_html(group: Group, run: Records) -> str:
    """The main numbers of a run."""
    pairs: dict[str, str] = {}
    rows = main_rows(language_rows([group]))
    if rows:
        row = rows[0]
        pairs["loss, nats per token"] = _grey_interval(row.loss.text)
        pairs["perplexity"] = _grey_interval(row.perplexity.text)
        if row.bits_per_byte is not None:
            pairs["bits per byte"] = _grey_interval(row.bits_per_byte.text)
    elif lines := validation_metrics(run):
        pairs["validation loss, so far"] = number_text(lines[-1]["loss"])
        pairs["perplexity, so far"] = number_text(lines[-1]["perplexity"])
    known = sections.run_metadata(run)
    words = {"parameters": "parameters", "steps": "steps", "tokens": "training tokens"}
    pairs.update({words[name]: escape(known[name]) for name in words if name in known})
    pairs.update({name: escape(text) for name, text in speed_summary(group).items()})
    return metadata_list(pairs) if pairs else ""


def _grey_interval(text: str, between: str = " ") -> str:
    """A number with its interval in grey; any other text unchanged."""
    value, bracket, interval = text.partition(" [")
    return f'{escape(value)}{between}<span class="quiet">{escape("[" + interval)}</span>' if bracket else escape(text)


def generated_texts_html(runs: Sequence[Records]) -> str:
    """Texts generated at some steps of training, and at the end."""
    lines = [line for run in runs for line in run.generated_texts]
    steps = sorted({int(line.get("step") or 0) for line in lines})
    if not steps:
        return ""
    last = len(steps) - 1
    kept = sorted({steps[round(i * last / max(1, MAX_SAMPLE_STEPS - 1))] for i in range(MAX_SAMPLE_STEPS)})
    parts = []
    for step in reversed(kept):
        own = [line for line in lines if int(line.get("step") or 0) == step][:MAX_TEXTS_PER_STEP]
        rows = [[escape(_field_text(line, "prompt")) or EMPTY_PROMPT, _continuation_html(line)] for line in own]
        inside = html_table(["prompt", "text"], rows, monospace_columns=[0])
        parts.append(f"<details{' open' * (step == kept[-1])}><summary>step {step:,}</summary>{inside}</details>")
    return "".join(parts)


def _field_text(line: Mapping[str, Any], name: str) -> str:
    return str(line.get(name) or "")


def _continuation_html(line: Mapping[str, Any]) -> str:
    return escape(_field_text(line, "text")).replace("\n", "<br>")


def _generated_texts_by_group(groups: Sequence[Group]) -> str:
    """The texts of one run of each group."""
    parts = [(group, generated_texts_html(group.runs[:1])) for group in groups]
    return "".join(
        f"<details><summary>{escape(group.label)}</summary>{found}</details>" for group, found in parts if found
    )

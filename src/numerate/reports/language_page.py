"""Pages of language modeling runs: of one run, and of several."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from numerate.reports import sections
from numerate.reports.drawing import facts, table
from numerate.reports.groups import Group, grouped
from numerate.reports.language import (
    NOTE,
    compared_by,
    gap_rows,
    language_finding,
    language_rows,
    main_rows,
    other_text,
    table_rows,
)
from numerate.reports.language_curves import curves, validation
from numerate.reports.language_records import number_text
from numerate.reports.language_speed import speed_facts, speed_note, speed_rows
from numerate.reports.records import Records

MOST_STEPS = 6
"""Maximum number of steps with sampled texts."""

MOST_TEXTS = 8
"""Maximum number of texts per step."""

EMPTY = '<span class="quiet">(the beginning of a document)</span>'
"""Shown for an empty prompt."""


def running(groups: Sequence[Group]) -> list[Group]:
    """The groups of language modeling runs."""
    return [group for group in groups if any(run.running for run in group.runs)]


def run_body(run: Records) -> list[str]:
    """The sections of the page of one run."""
    groups = grouped([run])
    return [
        sections.sentence(language_finding(groups)),
        _facts(groups[0], run),
        *_shared(groups),
        sections.heading("Texts drawn during training", texts([run])),
    ]


def comparison_body(groups: Sequence[Group]) -> list[str]:
    """The sections of the page of several groups."""
    rows = main_rows(language_rows(groups))
    measure, why = compared_by(rows)
    header, lines = gap_rows(rows, measure)
    shown = [[*map(escape, line[:-1]), escape(line[-1]).replace(" ", "&nbsp;")] for line in lines]
    differences = _tight(table(header, shown, numbers=[2, 3])) if lines else ""
    note = " ".join(filter(None, (why, other_text(rows), "Intervals are Welch's, over seeds.")))
    return [
        sections.sentence(language_finding(groups)),
        *_shared(groups),
        sections.heading("Which groups differ by more than seeds do", differences and f"{differences}{_caption(note)}"),
        sections.heading("Speed and memory", speeds(groups)),
        sections.heading("Texts drawn during training", _texts_of(groups)),
    ]


def _shared(groups: Sequence[Group]) -> list[str]:
    return [
        sections.heading("Loss, perplexity, bits per byte", measures(groups)),
        sections.heading("Validation curves", curves(groups)),
    ]


def measures(groups: Sequence[Group]) -> str:
    """The table of all metrics at the final and the best checkpoint."""
    header, lines = table_rows(groups)
    if not lines:
        return ""
    first = 1 if len(groups) == 1 else 0
    shown = [[_quietly(cell, "<br>") for cell in line[first:]] for line in lines]
    numbers = range(2 - first, len(header) - first)
    rows = language_rows(groups)
    different = "" if other_text(main_rows(rows)) else other_text(rows)  # between groups the finding has it
    return _tight(table(header[first:], shown, numbers=numbers)) + _caption(f"{NOTE} {different}".strip())


def speeds(groups: Sequence[Group]) -> str:
    """The table of speed and memory; nothing where nothing was logged."""
    header, lines = speed_rows(groups)
    if not lines:
        return ""
    shown = [[escape(cell) for cell in line] for line in lines]
    return _tight(table(header, shown, numbers=range(1, len(header)))) + _caption(speed_note(groups))


def _tight(text: str) -> str:
    """A table of many columns, close together."""
    return text.replace('<table class="data">', '<table class="data tight">', 1)


def _caption(text: str) -> str:
    return f"<figcaption>{escape(text)}</figcaption>"


def _facts(group: Group, run: Records) -> str:
    """The main numbers of a run."""
    pairs: dict[str, str] = {}
    rows = main_rows(language_rows([group]))
    if rows:
        row = rows[0]
        pairs["loss, nats per token"] = _quietly(row.loss.text)
        pairs["perplexity"] = _quietly(row.perplexity.text)
        if row.bits is not None:
            pairs["bits per byte"] = _quietly(row.bits.text)
    elif lines := validation(run):
        pairs["validation loss, so far"] = number_text(lines[-1]["loss"])
        pairs["perplexity, so far"] = number_text(lines[-1]["perplexity"])
    known = sections.provenance(run)
    words = {"parameters": "parameters", "steps": "steps", "tokens": "training tokens"}
    pairs.update({words[name]: escape(known[name]) for name in words if name in known})
    pairs.update({name: escape(text) for name, text in speed_facts(group).items()})
    return facts(pairs) if pairs else ""


def _quietly(text: str, between: str = " ") -> str:
    """A number with its interval in grey; any other text unchanged."""
    value, bracket, interval = text.partition(" [")
    return f'{escape(value)}{between}<span class="quiet">{escape("[" + interval)}</span>' if bracket else escape(text)


def texts(runs: Sequence[Records]) -> str:
    """Texts generated at some steps of training, and at the end."""
    lines = [line for run in runs for line in run.drawn]
    steps = sorted({int(line.get("step") or 0) for line in lines})
    if not steps:
        return ""
    last = len(steps) - 1
    kept = sorted({steps[round(i * last / max(1, MOST_STEPS - 1))] for i in range(MOST_STEPS)})
    parts = []
    for step in reversed(kept):
        own = [line for line in lines if int(line.get("step") or 0) == step][:MOST_TEXTS]
        rows = [[escape(_of(line, "prompt")) or EMPTY, _text(line)] for line in own]
        inside = table(["prompt", "text"], rows, mono=[0])
        parts.append(f"<details{' open' * (step == kept[-1])}><summary>step {step:,}</summary>{inside}</details>")
    return "".join(parts)


def _of(line: Mapping[str, Any], name: str) -> str:
    return str(line.get(name) or "")


def _text(line: Mapping[str, Any]) -> str:
    """The continuation, under any of its names in records."""
    found = next((_of(line, name) for name in ("text", "said", "continuation") if line.get(name)), "")
    return escape(found).replace("\n", "<br>")


def _texts_of(groups: Sequence[Group]) -> str:
    """The texts of one run of each group."""
    parts = [(group, texts(group.runs[:1])) for group in groups]
    return "".join(
        f"<details><summary>{escape(group.label)}</summary>{found}</details>" for group, found in parts if found
    )

"""Results of an evaluation: its records, and the mean of each region."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from numerate.evaluation import answer_metrics
from numerate.evaluation.grid import STRATUM
from numerate.evaluation.kinds.answers import AnswerKind
from numerate.evaluation.kinds.kind import EvaluationKind
from numerate.evaluation.labels import METRICS, Metric
from numerate.reports.content import Note
from numerate.reports.grid import aggregate_seeds, grid_axes, interval_text, number_text
from numerate.reports.records import Cell, cell_from_record
from numerate.reports.strata import points_table
from numerate.reports.table import TextTable
from numerate.terminal import MAX_PROSE_WIDTH, wrapped
from numerate.training.checkpoint import Checkpoint

DIGIT_METRICS = ("number_digit_accuracy", "missing", "mae", "mape", "log_mae")
"""The metrics in the table by the number of digits of the correct number."""


@dataclass(frozen=True, repr=False)
class Results:
    """Records of an evaluation of one `kind`, with region means; displays as a table."""

    kind: EvaluationKind
    records: Sequence[Mapping[str, Any]]
    checkpoints: Sequence[Checkpoint]
    best: Mapping[str, Any] | None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def counts_answers(self) -> bool:
        """Whether its records count correct answers, so that cells have an accuracy."""
        return all("correct" in record for record in self.records)

    def regions(self) -> list[dict[str, Any]]:
        """Per checkpoint, settings, position offset and region: the mean over cells with held-out questions, with its
        interval; regions marked `overlaps_training` have no such cell, and their mean is over all cells. Cells of
        strata are in no region.

        If answers are labels, `labels` has each metric of `numerate.evaluation.labels` by its name with its `value`,
        `low`, `high` and `baseline`; over all labels or rows of the region, equally weighted. If answers are numbers or
        texts that were decoded, `answers` has each metric of `numerate.evaluation.answer_metrics` by its name: over all
        questions of the region, and as the mean over its cells; and the columns of the kind of evaluation.
        """
        return self.kind.merge([record for record in self.records if STRATUM not in record])

    def regions_over_offsets(self) -> list[dict[str, Any]]:
        """The regions averaged over position offsets, for answers that are labels: `position_offset` is then "mean of
        3". Empty for other tasks, which are reported per offset."""
        return self.kind.merge_position_offsets([record for record in self.records if STRATUM not in record])

    def summary_lines(self) -> list[dict[str, Any]]:
        """One line per region: means over position offsets if there are any (see `regions_over_offsets`), otherwise the
        first offset."""
        lines = self.regions_over_offsets() or self.regions()
        numbers = [line["position_offset"] for line in lines if isinstance(line["position_offset"], int)]
        return [line for line in lines if line["position_offset"] == min(numbers, default=line["position_offset"])]

    def content(self) -> list[TextTable | Note]:
        """The table of all regions, with notes on its columns, and that of strata."""
        lines = [*self.regions(), *self.regions_over_offsets()]
        return [*(self._regions_content(lines) if lines else []), *_strata_content(self)]

    def _regions_content(self, lines: Sequence[Mapping[str, Any]]) -> list[TextTable | Note]:
        if _has(lines, "language"):
            return _language_content(lines)
        if not isinstance(self.kind, AnswerKind) or not _has(lines, "mean"):
            return [_plain_table(lines)]
        return [*_answer_content(lines, self.kind), *text_notes(lines), *_digit_content(lines)]

    def text(self, width: int | None = None) -> str:
        """Table and notes in `width` columns of a terminal; without one the table is not divided."""
        return content_text(self.content(), width)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(
            f"<p>{escape(one.text)}</p>" if isinstance(one, Note) else _html_table(one) for one in self.content()
        )


def _html_table(table: TextTable) -> str:
    """A table for a notebook."""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    rows = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in table.rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def cells_by_title(results: Iterable[Mapping[str, Any]]) -> dict[str, list[Cell]]:
    """The cells of each checkpoint, position offset and choice of settings, titled by what differs between them."""
    from numerate.config.differences import format_settings

    records = list(results)
    settings_texts = [format_settings(record.get("settings", {})) for record in records]
    several_offsets = len({record["position_offset"] for record in records}) > 1
    cells: dict[str, list[Cell]] = {}
    for record, settings_text in zip(records, settings_texts, strict=True):
        title, step = record["checkpoint"], record["step"]
        title = f"{title} checkpoint, step {step}" if title in ("final", "best") else f"step {step}"
        title += f", position offset {record['position_offset']}" * several_offsets
        title += f", {settings_text or 'as trained'}" * any(settings_texts)
        cells.setdefault(title, []).append(cell_from_record(record))
    return cells


def _strata_content(results: Results) -> list[TextTable | Note]:
    """A table of the strata for each title of `cells_by_title`; nothing without any."""
    content: list[TextTable | Note] = []
    for title, cells in cells_by_title(record for record in results if "correct" in record).items():
        points = aggregate_seeds([cells])
        if strata := [point for point in points if point.stratum is not None]:
            content.append(Note(f"Strata, {title}, exact match in per cent [95 % interval]:"))
            content.append(points_table(strata, grid_axes(points)))
    return content


def content_text(content: Sequence[TextTable | Note], width: int | None = None) -> str:
    """Tables and notes for a terminal; see `Results.text`."""
    return "\n".join(
        block.to_text(width, num_keys=4)
        if isinstance(block, TextTable)
        else wrapped(block.text, width or MAX_PROSE_WIDTH)
        for block in content
    )


def text_notes(lines: Iterable[Mapping[str, Any]]) -> list[Note]:
    """How many answers are compared as text."""
    counts = dict.fromkeys(line["compared_as_text"] for line in lines if "compared_as_text" in line)
    return [Note(f"Correct answers that are no numbers, and are compared as text: {count:,}") for count in counts]


def _digit_content(lines: Sequence[Mapping[str, Any]]) -> list[TextTable | Note]:
    """The metrics of each number of digits of the correct number, a table for each line that has them."""
    from numerate.reports.metrics import format_metric

    content: list[TextTable | Note] = []
    for line in (line for line in lines if "by_digits" in line):
        rows = [
            [
                str(digits),
                f"{metrics['count']:,}",
                *(format_metric(name, metrics[name], with_unit=True) for name in ("number_accuracy", *DIGIT_METRICS)),
            ]
            for digits, metrics in line["by_digits"].items()
        ]
        content.append(Note(f"By digits of the correct number, {line['region']}:"))
        content.append(TextTable(["digits", "questions", "correct", *DIGIT_METRICS], rows))
    return content


def _answer_content(lines: Sequence[Mapping[str, Any]], kind: AnswerKind) -> list[TextTable | Note]:
    """Exact match by region with the metrics of labels, numbers and texts that there are, and the kind's columns."""
    columns = {
        name: meaning
        for name, meaning in kind.columns.items()
        if any(line.get("answers", {}).get(name) is not None for line in lines)
    }
    labels: list[Metric] = [name for name in METRICS if name != "exact_match"] if _has(lines, "labels") else []
    metrics = answer_metrics.available_metrics(kind.table_metrics, [line.get("answers", {}) for line in lines])
    header = ["region", "cells", "correct", "95 % interval", *labels, *metrics, *columns]
    rows = [
        [
            f"{line['region']}{' (overlaps training)' if line['overlaps_training'] else ''}",
            str(line["cells"]),
            f"{line['mean']:.1%}",
            f"{line['low']:.1%} to {line['high']:.1%}",
            *(_label_text(line, name) for name in labels),
            *(_metric_text(name, line.get("answers", {})) for name in metrics),
            *(_share_text(line.get("answers", {}).get(name)) for name in columns),
        ]
        for line in lines
    ]
    content: list[TextTable | Note] = [_table(lines, header, rows, with_offsets=True)]
    if metrics:
        descriptions = "; ".join(f"{name}: {answer_metrics.ANSWER_METRICS[name]}" for name in metrics)
        more = "results and the report have more, and the means over cells."
        content.append(Note(f"Over all questions of a region: {descriptions}. {more}"))
    if columns:
        content.append(Note("; ".join(f"{name}: {meaning}" for name, meaning in columns.items())))
    if labels:
        content.append(
            Note(
                "correct: all labels of a row; ood_accuracy: labels at positions not in training; accuracy: all "
                "labels; last_label: the last label; correct_prefix: labels before the first wrong one. In brackets "
                "the baseline: what memorizing the training positions, or always giving the same answer, would score."
            )
        )
    reasons = dict.fromkeys(line["non_causal_reason"] for line in lines if "non_causal_reason" in line)
    return [*content, *(Note(f"not causal: {reason}") for reason in reasons)]


def _language_content(lines: Sequence[Mapping[str, Any]]) -> list[TextTable | Note]:
    """Loss, perplexity and bits per byte by context length, with an explanation."""
    header = ["context", "chunks", "tokens", "loss", "95 % interval", "perplexity"]
    header += ["bits per byte", "95 % interval", "top-1"]
    rows = []
    for line in lines:
        scores = line["language"]
        rows.append(
            [
                f"{line['context_length']:,}" + f" ({line['region']})" * (line["region"] != "in_distribution"),
                f"{scores['chunks']:,}",
                f"{scores['tokens']:,}",
                number_text(scores["loss"]),
                interval_text(scores.get("low"), scores.get("high")),
                number_text(scores["perplexity"]),
                number_text(scores.get("bits_per_byte")),
                interval_text(scores.get("bits_low"), scores.get("bits_high")),
                f"{scores['token_accuracy']:.1%}",
            ]
        )
    notes = [
        "loss: mean -ln(probability) of a token, in nats, each token weighted equally; perplexity: exp(loss); bits "
        "per byte of the text's UTF-8, by which any two tokenizers can be compared; top-1: share of tokens with the "
        "highest probability. Intervals: a normal approximation over chunks, for sampling of the text; another seed "
        "may lie outside."
    ]
    if any(line["region"] == "ood_test" for line in lines):
        notes.append("(ood_test): a longer context than the model was trained on.")
    with_offsets = len({line["position_offset"] for line in lines}) > 1
    return [_table(lines, header, rows, with_offsets=with_offsets), *map(Note, notes)]


def _plain_table(lines: Sequence[Mapping[str, Any]]) -> TextTable:
    """All entries of the lines that are texts or numbers, for a kind whose lines have entries of its own."""
    header = list(
        dict.fromkeys(name for line in lines for name, value in line.items() if isinstance(value, str | float | int))
    )
    return TextTable(header, [[str(line.get(name, "")) for name in header] for line in lines])


def _table(
    lines: Sequence[Mapping[str, Any]], header: Sequence[str], rows: Sequence[Sequence[str]], *, with_offsets: bool
) -> TextTable:
    """A table of lines, each after its label, or its checkpoint, step, settings and position offset."""
    from numerate.config.differences import format_settings

    if _has(lines, "label"):
        return TextTable(["model", *header], [[line["label"], *row] for line, row in zip(lines, rows, strict=True)])
    with_settings = any(line["settings"] for line in lines)
    first = ["checkpoint", "step", *["settings"] * with_settings, *["position offset"] * with_offsets]
    places = [
        [
            str(line["checkpoint"]),
            f"{line['step']:,}" if "language" in line else str(line["step"]),
            *[format_settings(line["settings"]) or "as trained"] * with_settings,
            *[str(line["position_offset"])] * with_offsets,
        ]
        for line in lines
    ]
    return TextTable([*first, *header], [[*place, *row] for place, row in zip(places, rows, strict=True)])


def _has(lines: Sequence[Mapping[str, Any]], entry: str) -> bool:
    return any(entry in line for line in lines)


def _metric_text(name: str, answers: Mapping[str, float | None]) -> str:
    """`12.5 [10.2, 14.8]`: a metric, and the interval of an error."""
    from numerate.reports.metrics import format_metric, is_proportion

    text = format_metric(name, answers.get(name), with_unit=True)
    if f"{name}.low" not in answers or is_proportion(name):
        return text
    return f"{text} [{', '.join(format_metric(name, answers[f'{name}.{end}']) for end in ('low', 'high'))}]"


def _share_text(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _label_text(line: Mapping[str, Any], name: Metric) -> str:
    """`95.7% (10.0%)`: a metric with its baseline, which is shown only out of distribution."""
    metric = line.get("labels", {}).get(name)
    if metric is None:
        return ""
    baseline = metric["baseline"] if line["region"] not in ("in_distribution", "below") else None
    return f"{metric['value']:.1%}" + (f" ({baseline:.1%})" if baseline is not None else "")

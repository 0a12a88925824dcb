"""Results of an evaluation: its records, and the mean of each region."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

from numerate.evaluation import answer_metrics
from numerate.evaluation.labels import METRICS, LabelCounts, Metric
from numerate.evaluation.statistics import region_mean
from numerate.reports.grid import REGION_LABELS
from numerate.reports.language_records import interval_text, is_language_record, merge_language_records, number_text
from numerate.training.checkpoint import Checkpoint

TABLE_METRICS = ("number_accuracy", "missing", "clipped", "mae", "log_mae", "log_r2", "bleu", "rougeL", "perplexity")
"""The metrics of numbers and texts that the table of an evaluation shows."""


@dataclass(frozen=True, repr=False)
class Results:
    """Records of an evaluation, with region means; displays as a table."""

    records: Sequence[Mapping[str, Any]]
    checkpoints: Sequence[Checkpoint]
    best: Mapping[str, Any] | None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def regions(self) -> list[dict[str, Any]]:
        """Per checkpoint, settings, position offset and region: the mean over cells with held-out questions, with its
        interval; regions marked `overlaps_training` have no such cell, and their mean is over all cells.

        If answers are labels, `labels` has each metric of `numerate.evaluation.labels` by its name with its `value`,
        `low`, `high` and `baseline`; over all labels or rows of the region, equally weighted. If answers are numbers or
        texts that were decoded, `answers` has each metric of `numerate.evaluation.answer_metrics` by its name: over all
        questions of the region, and as the mean over its cells.
        """
        if self.is_language_modeling:
            return [one.to_record() for one in merge_language_records(self.records)]
        return self._lines(average_offsets=False)

    @property
    def is_language_modeling(self) -> bool:
        """Whether the task is language modeling: lines then have `context` and `language` instead of `mean`."""
        return bool(self.records) and all(map(is_language_record, self.records))

    def regions_over_offsets(self) -> list[dict[str, Any]]:
        """The regions averaged over position offsets, for answers that are labels: `position_offset` is then "mean of
        3". Empty for other tasks, which are reported per offset."""
        if len({record["position_offset"] for record in self.records}) < 2 or not all(
            "labels" in r for r in self.records
        ):
            return []
        return self._lines(average_offsets=True)

    def summary_lines(self) -> list[dict[str, Any]]:
        """One line per region: means over position offsets if there are any (see `regions_over_offsets`), otherwise the
        first offset."""
        lines = self.regions_over_offsets() or self.regions()
        numbers = [line["position_offset"] for line in lines if isinstance(line["position_offset"], int)]
        return [line for line in lines if line["position_offset"] == min(numbers, default=line["position_offset"])]

    def _lines(self, *, average_offsets: bool) -> list[dict[str, Any]]:
        groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for record in self.records:
            settings = tuple((path, str(value)) for path, value in record.get("settings", {}).items())
            position_offset = None if average_offsets else record["position_offset"]
            key = (record["checkpoint"], record["step"], settings, position_offset, record["region"])
            groups.setdefault(key, []).append(record)
        lines = []
        for key in _sort_by_region(list(groups)):
            (label, step, _, position_offset, name), records = key, groups[key]
            held_out_records = [record for record in records if not record["overlaps_training"]] or records
            repeats = len({record["position_offset"] for record in records})
            mean = region_mean(
                [(record["correct"], record["count"]) for record in held_out_records], num_repeats=repeats
            )
            line = {
                "checkpoint": label,
                "step": step,
                "settings": dict(records[0].get("settings", {})),
                "position_offset": f"mean of {repeats}" if position_offset is None else position_offset,
                "region": name,
                "cells": len(held_out_records) // repeats,
                "mean": mean.value,
                "low": mean.low,
                "high": mean.high,
                "overlaps_training": all(record["overlaps_training"] for record in records),
            }
            lines.append(
                line
                | ({"labels": _label_metrics(held_out_records, repeats)} if "labels" in held_out_records[0] else {})
            )
            lines[-1] |= (
                {"answers": answers} if (answers := answer_metrics.metrics_from_records(held_out_records)) else {}
            )
            if records[0].get("non_causal_reason"):
                lines[-1]["non_causal_reason"] = records[0]["non_causal_reason"]
        return lines

    def __str__(self) -> str:
        from numerate.reports.answers import format_metric
        from numerate.reports.groups import format_settings
        from numerate.reports.table import text_table

        if self.is_language_modeling:
            return language_modeling_table(self.regions())
        lines = [*self.regions(), *self.regions_over_offsets()]
        has_settings = any(line["settings"] for line in lines)
        label_metrics = (
            [name for name in METRICS if name != "exact_match"] if any("labels" in line for line in lines) else []
        )
        answer_metric_names = answer_metrics.available_metrics(
            TABLE_METRICS, [line.get("answers", {}) for line in lines]
        )
        header = ["checkpoint", "step", *(["settings"] * has_settings), "position_offset", "region", "cells"]
        rows = [
            [
                str(line["checkpoint"]),
                str(line["step"]),
                *([format_settings(line["settings"]) or "as trained"] * has_settings),
                str(line["position_offset"]),
                f"{line['region']}{' (overlaps training)' if line['overlaps_training'] else ''}",
                str(line["cells"]),
                f"{line['mean']:.1%}",
                f"{line['low']:.1%} to {line['high']:.1%}",
                *(_metric_text(line, name) for name in label_metrics),
                *(format_metric(name, line.get("answers", {}).get(name)) for name in answer_metric_names),
            ]
            for line in lines
        ]
        parts = [text_table([*header, "correct", "95 % interval", *label_metrics, *answer_metric_names], rows)]
        if answer_metric_names:
            descriptions = "; ".join(f"{name}: {answer_metrics.ANSWER_METRICS[name]}" for name in answer_metric_names)
            more = "results and the report have more, and the means over cells."
            parts.append(fill(f"Over all questions of a region: {descriptions}. {more}", 118, break_on_hyphens=False))
        if label_metrics:
            parts.append(
                "correct: all labels of a row; ood_accuracy: labels at positions not in training; accuracy: all\n"
                "labels; last_label: the last label; correct_prefix: labels before the first wrong one.\n"
                "In brackets the baseline: what memorizing the training positions, or always giving the same "
                "answer, would score."
            )
        parts += list(
            dict.fromkeys(f"not causal: {line['non_causal_reason']}" for line in lines if "non_causal_reason" in line)
        )
        return "\n".join(parts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def language_modeling_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """The language modeling results as a table, with an explanation of its columns."""
    from numerate.reports.groups import format_settings
    from numerate.reports.table import text_table

    has_settings = any(line["settings"] for line in lines)
    has_offsets = len({line["position_offset"] for line in lines}) > 1
    header = [
        "checkpoint",
        "step",
        *(["settings"] * has_settings),
        *(["position_offset"] * has_offsets),
        "context",
        "chunks",
    ]
    header += ["tokens", "loss", "95 % interval", "perplexity", "bits per byte", "95 % interval", "top-1"]
    rows = []
    for line in lines:
        language_metrics = line["language"]
        rows.append(
            [
                str(line["checkpoint"]),
                f"{line['step']:,}",
                *([format_settings(line["settings"]) or "as trained"] * has_settings),
                *([str(line["position_offset"])] * has_offsets),
                f"{line['context_length']:,}" + f" ({line['region']})" * (line["region"] != "in_distribution"),
                f"{language_metrics['chunks']:,}",
                f"{language_metrics['tokens']:,}",
                number_text(language_metrics["loss"]),
                interval_text(language_metrics.get("low"), language_metrics.get("high")),
                number_text(language_metrics["perplexity"]),
                number_text(language_metrics.get("bits_per_byte")),
                interval_text(language_metrics.get("bits_low"), language_metrics.get("bits_high")),
                f"{language_metrics['token_accuracy']:.1%}",
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
    return "\n".join([text_table(header, rows), *(fill(note, 118, break_on_hyphens=False) for note in notes)])


def _sort_by_region(keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sorts keys that end with a region: within each evaluation, regions by their distance from training."""
    region_order = [*REGION_LABELS, "below"]
    evaluations = list(dict.fromkeys(key[:-1] for key in keys))
    return sorted(keys, key=lambda key: (evaluations.index(key[:-1]), region_order.index(key[-1])))


def _label_metrics(records: Sequence[Mapping[str, Any]], repeats: int) -> dict[Metric, dict[str, float | None]]:
    """Per metric of a region's records: value, interval and baseline; metrics without targets are left out."""
    labels = replace(
        LabelCounts.merge(counts for record in records if (counts := LabelCounts.from_record(record))),
        num_offsets=repeats,
    )
    values_by_metric = {name: labels.score_with_interval(name) for name in METRICS}
    return {
        name: {"value": interval.value, "low": interval.low, "high": interval.high, "baseline": labels.baseline(name)}
        for name, interval in values_by_metric.items()
        if interval is not None
    }


def _metric_text(line: Mapping[str, Any], name: Metric) -> str:
    """`95.7% (10.0%)`: a metric with its baseline, which is shown only out of distribution."""
    metric = line.get("labels", {}).get(name)
    if metric is None:
        return ""
    baseline = metric["baseline"] if line["region"] not in ("in_distribution", "below") else None
    return f"{metric['value']:.1%}" + (f" ({baseline:.1%})" if baseline is not None else "")

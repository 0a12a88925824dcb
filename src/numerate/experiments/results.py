"""Results of an evaluation: its records, and the mean of each region."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

from numerate.evaluation import answer_metrics
from numerate.evaluation.labels import METRICS, Labels, Metric
from numerate.evaluation.statistics import region_mean
from numerate.reports.grid import REGIONS
from numerate.reports.language_records import foretold, interval_text, is_portion, number_text
from numerate.training.checkpoint import Checkpoint

SHOWN = ("number_accuracy", "missing", "clipped", "mae", "log_mae", "log_r2", "bleu", "rougeL", "perplexity")
"""The metrics of numbers and texts that the table of an evaluation has room for."""


@dataclass(frozen=True, repr=False)
class Results:
    """Records of an evaluation, with region means; shows itself as a table."""

    records: Sequence[Mapping[str, Any]]
    checkpoints: Sequence[Checkpoint]
    best: Mapping[str, Any] | None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def regions(self) -> list[dict[str, Any]]:
        """Per checkpoint, settings, placement and region: the mean over cells with held-out questions, with its
        interval; `seen` regions have no such cell, and their mean is over all there are.

        Where answers are labels, `labels` has each metric of `numerate.evaluation.labels` by its name with its `value`,
        `low`, `high` and `floor`; over all labels or rows of the region, each weighing the same. Where answers are
        numbers or texts that were decoded, `answers` has each metric of `numerate.evaluation.answer_metrics` by its
        name: over all questions of the region, and as the mean over its cells.
        """
        if self.running:
            return [one.line() for one in foretold(self.records)]
        return self._lines(together=False)

    @property
    def running(self) -> bool:
        """Whether it is of running text: lines then have `context` and `language` instead of `mean`."""
        return bool(self.records) and all(map(is_portion, self.records))

    def over_placements(self) -> list[dict[str, Any]]:
        """The regions averaged over position offsets, for answers that are labels: `position_offset` is then "mean of
        3". Empty for other tasks, which are reported per offset."""
        if len({record["position_offset"] for record in self.records}) < 2 or not all(
            "labels" in r for r in self.records
        ):
            return []
        return self._lines(together=True)

    def headline(self) -> list[dict[str, Any]]:
        """One line per region: means over position offsets where there are some, else the first offset."""
        lines = self.over_placements() or self.regions()
        numbers = [line["position_offset"] for line in lines if isinstance(line["position_offset"], int)]
        return [line for line in lines if line["position_offset"] == min(numbers, default=line["position_offset"])]

    def _lines(self, *, together: bool) -> list[dict[str, Any]]:
        groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for record in self.records:
            settings = tuple((path, str(value)) for path, value in record.get("settings", {}).items())
            position_offset = None if together else record["position_offset"]
            key = (record["checkpoint"], record["step"], settings, position_offset, record["region"])
            groups.setdefault(key, []).append(record)
        found = []
        for key in _nearest_first(list(groups)):
            (label, step, _, position_offset, name), records = key, groups[key]
            new = [record for record in records if not record["seen"]] or records
            repeats = len({record["position_offset"] for record in records})
            mean = region_mean([(record["correct"], record["count"]) for record in new], repeats=repeats)
            line = {
                "checkpoint": label,
                "step": step,
                "settings": dict(records[0].get("settings", {})),
                "position_offset": f"mean of {repeats}" if position_offset is None else position_offset,
                "region": name,
                "cells": len(new) // repeats,
                "mean": mean.value,
                "low": mean.low,
                "high": mean.high,
                "seen": all(record["seen"] for record in records),
            }
            found.append(line | ({"labels": _measures(new, repeats)} if "labels" in new[0] else {}))
            found[-1] |= {"answers": answers} if (answers := answer_metrics.of_records(new)) else {}
            if records[0].get("sees_future"):
                found[-1]["sees_future"] = records[0]["sees_future"]
        return found

    def __str__(self) -> str:
        from numerate.reports.answers import answer_text
        from numerate.reports.groups import settings_words
        from numerate.reports.table import text_table

        if self.running:
            return language_text(self.regions())
        lines = [*self.regions(), *self.over_placements()]
        changed = any(line["settings"] for line in lines)
        labelled = [name for name in METRICS if name != "exact"] if any("labels" in line for line in lines) else []
        metrics = answer_metrics.told_in(SHOWN, [line.get("answers", {}) for line in lines])
        header = ["checkpoint", "step", *(["settings"] * changed), "position_offset", "region", "cells"]
        rows = [
            [
                str(line["checkpoint"]),
                str(line["step"]),
                *([settings_words(line["settings"]) or "as trained"] * changed),
                str(line["position_offset"]),
                f"{line['region']}{' (seen)' if line['seen'] else ''}",
                str(line["cells"]),
                f"{line['mean']:.1%}",
                f"{line['low']:.1%} to {line['high']:.1%}",
                *(_metric_text(line, name) for name in labelled),
                *(answer_text(name, line.get("answers", {}).get(name)) for name in metrics),
            ]
            for line in lines
        ]
        parts = [text_table([*header, "right", "95 % interval", *labelled, *metrics], rows)]
        if metrics:
            meant = "; ".join(f"{name}: {answer_metrics.METRICS[name]}" for name in metrics)
            more = "results and the report have more, and the means over cells."
            parts.append(fill(f"Over all questions of a region: {meant}. {more}", 118, break_on_hyphens=False))
        if labelled:
            parts.append(
                "right: whole rows; unseen: labels at positions that training did not have; accuracy: all labels; "
                "last: the last label;\nprefix: labels before the first wrong one. In brackets the floor: what having "
                "memorised the positions of training,\nor giving one answer everywhere, would score."
            )
        parts += list(dict.fromkeys(f"no claim: {line['sees_future']}" for line in lines if "sees_future" in line))
        return "\n".join(parts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def language_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """The lines of running text as a table with what the columns mean below it."""
    from numerate.reports.groups import settings_words
    from numerate.reports.table import text_table

    changed = any(line["settings"] for line in lines)
    several = len({line["position_offset"] for line in lines}) > 1
    header = ["checkpoint", "step", *(["settings"] * changed), *(["position_offset"] * several), "context", "chunks"]
    header += ["tokens", "loss", "95 % interval", "perplexity", "bits per byte", "95 % interval", "likeliest"]
    rows = []
    for line in lines:
        measured = line["language"]
        rows.append(
            [
                str(line["checkpoint"]),
                f"{line['step']:,}",
                *([settings_words(line["settings"]) or "as trained"] * changed),
                *([str(line["position_offset"])] * several),
                f"{line['context_length']:,}" + f" ({line['region']})" * (line["region"] != "in_distribution"),
                f"{measured['chunks']:,}",
                f"{measured['tokens']:,}",
                number_text(measured["loss"]),
                interval_text(measured.get("low"), measured.get("high")),
                number_text(measured["perplexity"]),
                number_text(measured.get("bits_per_byte")),
                interval_text(measured.get("bits_low"), measured.get("bits_high")),
                f"{measured['accuracy']:.1%}",
            ]
        )
    notes = [
        "loss: mean -ln(probability) of a token, in nats, every token alike; perplexity: exp(loss); bits per byte of "
        "the text's UTF-8, by which any two tokenizers can be compared; likeliest: tokens that were. Intervals: a "
        "normal approximation over chunks, about the text; another seed may lie outside."
    ]
    if any(line["region"] == "ood_test" for line in lines):
        notes.append("(ood_test): a longer context than the model was trained on.")
    return "\n".join([text_table(header, rows), *(fill(note, 118, break_on_hyphens=False) for note in notes)])


def _nearest_first(keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Keys that end with a region: of each evaluation the regions by their distance from training."""
    near = [*REGIONS, "below"]
    evaluations = list(dict.fromkeys(key[:-1] for key in keys))
    return sorted(keys, key=lambda key: (evaluations.index(key[:-1]), near.index(key[-1])))


def _measures(records: Sequence[Mapping[str, Any]], repeats: int) -> dict[Metric, dict[str, float | None]]:
    """Per metric of a region's records: value, interval and floor; metrics without targets are left out."""
    labels = replace(Labels.together(found for record in records if (found := Labels.read(record))), repeats=repeats)
    measured = {name: labels.measured(name) for name in METRICS}
    return {
        name: {"value": share.value, "low": share.low, "high": share.high, "floor": labels.floor(name)}
        for name, share in measured.items()
        if share is not None
    }


def _metric_text(line: Mapping[str, Any], name: Metric) -> str:
    """`95.7% (10.0%)`: a metric with its floor; beyond what was trained alone, as a memoriser has all of that."""
    found = line.get("labels", {}).get(name)
    if found is None:
        return ""
    floor = found["floor"] if line["region"] not in ("in_distribution", "below") else None
    return f"{found['value']:.1%}" + (f" ({floor:.1%})" if floor is not None else "")

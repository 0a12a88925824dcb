"""What an evaluation found: its records, and the mean of each region."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numerate.evaluation.statistics import region_mean
from numerate.training.checkpoint import Checkpoint


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
        interval; `seen` regions have no such cell, and their mean is over all there are."""
        groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for record in self.records:
            settings = tuple((path, str(value)) for path, value in record.get("settings", {}).items())
            key = (record["checkpoint"], record["step"], settings, record["placement"], record["region"])
            groups.setdefault(key, []).append(record)
        found = []
        for (label, step, _, placement, name), records in groups.items():
            new = [record for record in records if not record["seen"]]
            mean = region_mean([(record["correct"], record["count"]) for record in new or records])
            found.append(
                {
                    "checkpoint": label,
                    "step": step,
                    "settings": dict(records[0].get("settings", {})),
                    "placement": placement,
                    "region": name,
                    "cells": len(new or records),
                    "mean": mean.value,
                    "low": mean.low,
                    "high": mean.high,
                    "seen": not new,
                }
            )
        return found

    def __str__(self) -> str:
        from numerate.reports.groups import settings_words
        from numerate.reports.table import text_table

        lines = self.regions()
        changed = any(line["settings"] for line in lines)
        header = ["checkpoint", "step", *(["settings"] * changed), "placement", "region", "cells"]
        rows = [
            [
                str(line["checkpoint"]),
                str(line["step"]),
                *([settings_words(line["settings"]) or "as trained"] * changed),
                str(line["placement"]),
                f"{line['region']}{' (seen)' if line['seen'] else ''}",
                str(line["cells"]),
                f"{line['mean']:.1%}",
                f"{line['low']:.1%} to {line['high']:.1%}",
            ]
            for line in lines
        ]
        return text_table([*header, "right", "95 % interval"], rows)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"

"""Language modeling records of a run, merged by checkpoint and context."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numerate.evaluation.likelihoods import CHUNK_AXIS, Likelihoods, merge_portions


@dataclass(frozen=True)
class LanguageScores:
    """The likelihoods of text under a checkpoint at one context: `likelihoods` over all evaluated portions.

    `settings` are those changed for the evaluation, {} as trained. `tokenizer` is a fingerprint: losses and
    perplexities are comparable only if it is the same.
    """

    context_length: int
    region: str
    likelihoods: Likelihoods
    checkpoint: str
    step: int
    position_offset: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None

    def to_record(self) -> dict[str, Any]:
        """As a result record: `language` has loss with interval, perplexity, bits per byte and counts."""
        same = ("checkpoint", "step", "position_offset", "region", "context_length")
        found = {name: getattr(self, name) for name in same} | {"settings": dict(self.settings)}
        return found | {"cells": 1, "overlaps_training": False, "language": self.likelihoods.record()}


def is_language_record(record: Mapping[str, Any]) -> bool:
    """Whether a record of an evaluation is of language modeling."""
    return "language" in record


def merge_language_records(records: Iterable[Mapping[str, Any]]) -> list[LanguageScores]:
    """Merges the records of portions, in order of appearance. Raises `KeyError`, `TypeError` or `ValueError` for a
    damaged record."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        settings = tuple((path, str(value)) for path, value in sorted((record.get("settings") or {}).items()))
        place = (int(record.get("position_offset") or 0), int(record["cell"]["context_length"]))
        key = (str(record.get("checkpoint", "final")), int(record.get("step") or 0), *place, settings)
        groups.setdefault(key, []).append(record)
    return [
        LanguageScores(
            context_length,
            str(portions[0].get("region", "in_distribution")),
            merge_portions(
                (int(one["cell"].get(CHUNK_AXIS, 0)), Likelihoods.from_sums(one["language"])) for one in portions
            ),
            checkpoint,
            step,
            position_offset,
            dict(portions[0].get("settings") or {}),
            portions[0].get("tokenizer"),
        )
        for (checkpoint, step, position_offset, context_length, _), portions in groups.items()
    ]


def number_text(value: float | None) -> str:
    """A number as text, four digits."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.4g}"


def interval_text(low: float | None, high: float | None) -> str:
    """`[1.720, 1.739]`, four digits each; empty if there is none."""
    return "" if low is None or high is None else f"[{number_text(low)}, {number_text(high)}]"

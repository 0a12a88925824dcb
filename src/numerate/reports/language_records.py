"""Language modeling records of a run as text."""

from collections.abc import Mapping
from typing import Any

from numerate.evaluation.likelihoods import LanguageScores as LanguageScores
from numerate.evaluation.likelihoods import merge_language_records as merge_language_records


def is_language_record(record: Mapping[str, Any]) -> bool:
    """Whether a record of an evaluation is of language modeling."""
    return "language" in record


def number_text(value: float | None) -> str:
    """A number as text, four digits."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.4g}"


def interval_text(low: float | None, high: float | None) -> str:
    """`[1.720, 1.739]`, four digits each; empty if there is none."""
    return "" if low is None or high is None else f"[{number_text(low)}, {number_text(high)}]"

"""All metrics of answers that are numbers or texts: by name, of records, and over several cells."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numerate.errors import UserError, did_you_mean
from numerate.evaluation import number_metrics, text_metrics
from numerate.evaluation.intervals import wilson
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.sums import BY_MODULE
from numerate.evaluation.text_metrics import TextScores

METRICS: dict[str, str] = {**number_metrics.METRICS, **text_metrics.METRICS}
"""Every metric with the words that reports use."""

SHARES = frozenset(number_metrics.SHARES) | {"token_accuracy", "ended"}
"""Those that are shares from 0 to 1, which people read in per cent."""

LESS_IS_BETTER = frozenset(name for name in METRICS if "mae" in name or "mse" in name or "error" in name) | {
    "missing",
    "invalid",
    "clipped",
    "perplexity",
}

NAMES = (*METRICS, *(f"{name}{BY_MODULE}" for name in METRICS))
"""The names of all metrics pooled over all questions, and then as the mean over modules, which are cells."""


def told_in(names: Iterable[str], several: Sequence[Mapping[str, float | None]]) -> list[str]:
    """The names of metrics of which any has a value; `clipped` only where it is not 0."""
    values = {name: [value for measures in several if (value := measures.get(name)) is not None] for name in names}
    return [name for name, found in values.items() if (any(found) if base(name) == "clipped" else found)]


def base(name: str) -> str:
    """The metric of a name, whichever way it is taken over cells."""
    return name.removesuffix(BY_MODULE)


def checked(name: str) -> str:
    """A name of `NAMES`; raises `UserError` for any other."""
    if name not in NAMES:
        hint = did_you_mean(name, NAMES)
        raise UserError(
            f"metric: there is no {name!r}; there are: {', '.join(METRICS)}, each with{BY_MODULE} too.{hint}"
        )
    return name


def is_one(name: str | None) -> bool:
    """Whether a name is that of a metric of numbers or texts."""
    return name in NAMES


def pooled(numbers: Iterable[NumberScores | None], texts: Iterable[TextScores | None]) -> dict[str, float | None]:
    """Every metric of several cells under both of its names; of numbers alone, of texts alone, {} of neither.

    The shares of numbers right have Wilson's 95 % interval beside, `number_accuracy.low` and `.high`.
    """
    found: dict[str, float | None] = {}
    cells = [scores for scores in numbers if scores is not None and scores.count]
    if cells:
        found |= number_metrics.pooled(cells)
        low, high = wilson(sum(scores.exact for scores in cells), sum(scores.count for scores in cells))
        found |= {"number_accuracy.low": float(low), "number_accuracy.high": float(high)}
    written = [scores for scores in texts if scores is not None and scores.count]
    return found | (text_metrics.pooled(written) if written else {})


def of_records(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """`pooled` of the records of cells."""
    return pooled(map(NumberScores.read, records), map(TextScores.read, records))

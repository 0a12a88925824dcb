"""Numbers, cells, regions and metrics in words, the same in tables, figures and pages."""

from collections.abc import Iterable, Mapping, Sequence

from numerate.evaluation.answer_metrics import ANSWER_METRICS, PROPORTION_METRICS, base_metric
from numerate.evaluation.labels import METRICS
from numerate.results.rows import LANGUAGE_METRICS, REGIONS

REGION_NAMES = {**REGIONS, "ood": "all OOD", "below": "below training"}

LANGUAGE_NAMES = {
    "loss": "loss, nats per token",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "token_accuracy": "token accuracy",
}


def percent(fraction: float, digits: int = 1) -> str:
    """A share as a percentage: 0.9996 is "99.96", 0.905 is "90.5"; only exactly 0 and 1 are "0" and "100".

    >>> percent(0.9996), percent(0.905), percent(1.0), percent(1e-9)
    ('99.96', '90.5', '100', '<0.0001')
    """
    if fraction in (0.0, 1.0):
        return f"{100 * fraction:.0f}"
    for decimals in range(digits, 7):
        text = f"{100 * fraction:.{decimals}f}"
        if 0.0 < float(text) < 100.0:
            return text.rstrip("0").rstrip(".") if "." in text else text
    return "<0.0001" if fraction < 0.5 else ">99.9999"


def cell_percent(fraction: float) -> str:
    """A percentage without decimals for a cell of a map: only exactly 1 is "100" and 0 is "0"; 0.996 is "99"."""
    return percent(fraction) if fraction in (0.0, 1.0) else str(min(max(round(100 * fraction), 1), 99))


def number(value: float) -> str:
    """A number with four digits, or all before the point: 12345.6 is "12,346", 0.123456 is "0.1235"."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def is_share(metric: str) -> bool:
    """Whether a metric is a fraction from 0 to 1, shown in per cent."""
    if metric in LANGUAGE_METRICS:
        return metric == "token_accuracy"
    return base_metric(metric) not in ANSWER_METRICS or base_metric(metric) in PROPORTION_METRICS


def value_text(metric: str, value: float, low: float | None = None, high: float | None = None) -> str:
    """A value of a metric with its interval, shares in per cent: `90.5 [85.6, 93.8]`; "" if it is missing."""
    if value is None or value != value:
        return ""
    form = percent if is_share(metric) and 0 <= value <= 1 else number
    is_known = low is not None and high is not None and low == low and high == high
    return f"{form(value)} [{form(low)}, {form(high)}]" if is_known else form(value)  # type: ignore[arg-type]


def metric_name(metric: str, *, is_trained: bool = False) -> str:
    """A metric in words; of cells in distribution alone, accuracy beyond training is that of all labels."""
    known = {**{str(name): title for name, title in METRICS.items()}, **ANSWER_METRICS, **LANGUAGE_NAMES}
    base = "accuracy" if metric == "ood_accuracy" and is_trained else base_metric(metric)
    return known.get(base, base.removeprefix("score.")) + metric[len(base_metric(metric)) :]


def metric_title(metric: str) -> str:
    """A metric as the label of an axis or a column: "exact match, %"."""
    return metric_name(metric) + ", %" * is_share(metric)


def axis_name(axis: str) -> str:
    """The label of an axis: "first_digits" is "digits of the first number", "length" stays "length"."""
    order = {"first_digits": "first", "second_digits": "second"}
    return f"digits of the {order[axis]} number" if axis in order else axis.removeprefix("cell.").replace("_", " ")


def cell_name(sizes: Mapping[str, int], operator: str | None = None, names: Mapping[str, str] | None = None) -> str:
    """A cell in words; sizes that have names by these.

    >>> cell_name({"first_digits": 3, "second_digits": 4}, "+"), cell_name({"length": 9})
    ('3+4 digits', 'length 9')
    """
    if not names and tuple(sizes) in (("first_digits", "second_digits"), ("digits",)):
        return f"{(operator or ' and ').join(f'{size:,}' for size in sizes.values())} digits"
    return ", ".join((names or {}).get(axis) or f"{axis_name(axis)} {size:,}" for axis, size in sizes.items())


def joined(names: Sequence[str], most: int = 10) -> str:
    """Names as a phrase; beyond `most` the others are counted.

    >>> joined(["a", "b", "c"]), joined(["a", "b", "c", "d"], most=3)
    ('a, b and c', 'a, b and 2 others')
    """
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def span(numbers: Iterable[int]) -> str:
    """The lowest and the highest of some numbers: "1,000", "90 to 1,000"."""
    known = sorted({*numbers})
    return " to ".join(f"{one:,}" for one in dict.fromkeys((known[0], known[-1])))


def capitalized(text: str) -> str:
    """A text that begins with a capital letter."""
    return text[0].upper() + text[1:]


def p_text(p: float) -> str:
    """A p-value with two digits."""
    return "<0.001" if p < 0.001 else "1" if p >= 0.995 else f"{p:.2g}"

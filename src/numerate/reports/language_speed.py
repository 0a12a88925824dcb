"""Training speed of language modeling runs: tokens per second, share of the device limit, memory."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from numerate.reports.groups import Group
from numerate.reports.sections import unique_trainings

_UNITS = ("", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta")

_PRECISION_NAMES = {"fp32": "float32", "tf32": "TF32"}


def logged_values(group: Group, name: str) -> list[Any]:
    """All values of a key in the `timings.jsonl` of its runs."""
    return [line[name] for run in group.runs for line in run.timings if line.get(name) is not None]


def speed_summary(group: Group) -> dict[str, str]:
    """Speed and memory, name to text: medians over all logged values of every seed, and the maximum of memory.

    For example {"tokens/s": "12,345", "FLOPs utilization": "31 %", "peak memory": "0.9 GB"}.
    """
    speeds, shares, memory = (
        logged_values(group, n) for n in ("tokens_per_second", "flops_utilization", "peak_memory_bytes")
    )
    found = {}
    if speeds:
        found["tokens/s"] = f"{median(map(float, speeds)):,.0f}"
    if shares:
        found["FLOPs utilization"] = _format_share(median(map(float, shares)))
    if memory:
        found["peak memory"] = _format_bytes(max(map(float, memory)))
    return found


def _format_share(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


def _format_bytes(count: float) -> str:
    """Bytes as text."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _training_totals(group: Group, name: str) -> Iterator[int]:
    """How many tokens, or operations, each run was trained for."""
    for run in group.runs:
        lines = [line for line in run.training_metrics() if name in line]
        if lines:
            yield int(lines[-1][name])


def _range_text(texts: Sequence[str]) -> str:
    """The first and the last text, once if they are the same."""
    return " to ".join(dict.fromkeys((texts[0], texts[-1]))) if texts else ""


def _format_flops(count: int) -> str:
    """In the notation of budgets: `18.3 gigaFLOP`."""
    power = next((power for power in range(len(_UNITS) - 1, 0, -1) if count >= 1000**power), 0)
    return f"{count / 1000**power:.3g} {_UNITS[power]}FLOP"


def speed_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table of speed and memory as text, without empty columns; no rows where nothing is known."""
    once = unique_trainings(groups)
    each = [speed_summary(group) for group in once]
    names = [name for name in ("tokens/s", "FLOPs utilization", "peak memory") if any(name in found for found in each)]
    if not names:
        return [], []
    rows = [
        [
            group.label,
            _range_text([f"{count:,}" for count in sorted(_training_totals(group, "tokens"))]),
            _range_text([_format_flops(count) for count in sorted(_training_totals(group, "flops"))]),
            *(found.get(name, "") for name in names),
        ]
        for group, found in zip(once, each, strict=True)
    ]
    return ["run", "training tokens", "flops", *names], rows


def speed_note(groups: Sequence[Group]) -> str:
    """The caption of the table, with the peak that FLOPs utilization is of."""
    note = "Tokens per second of training: the median over what was logged, evaluations and checkpoints left out. "
    peaks = [peak for group in groups for peak in logged_values(group, "peak")]
    sources = sorted({str(peak.get("source")) for peak in peaks})
    if sources:
        precisions = sorted(
            {_PRECISION_NAMES.get(str(peak.get("precision")), str(peak.get("precision"))) for peak in peaks}
        )
        words = {"measured": "measured there with a product of two matrices", "stated": "as its maker states it"}
        how = " or ".join(words.get(source, source) for source in sources)
        note += f"FLOPs utilization: the share of the device's peak in {' or '.join(precisions)}, {how}. "
    return note + "Peak memory: maximum over seeds, of the process or of memory allocated by torch on a GPU."

"""Language modeling results: loss, perplexity and bits per byte with intervals over seeds, speed, generated texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isnan, sqrt
from statistics import fmean, median, variance
from typing import Any

from numerate.evaluation.likelihoods import LanguageScores, Likelihoods, perplexity_of
from numerate.reports.content import Content, Facts, Note
from numerate.reports.grid import ALL_REGION_LABELS, interval_text, join_names, number_text, span_text
from numerate.reports.groups import Group, unique_trainings
from numerate.reports.language_curves import validation_metrics
from numerate.reports.records import Records
from numerate.reports.reproduction import run_metadata
from numerate.reports.table import TextTable
from numerate.training.disk import format_bytes

CONTEXT_LABELS = {**ALL_REGION_LABELS, "below": "shorter than in training"}
"""The regions of context lengths."""

MAX_PAIRS = 45
"""Maximum number of pairs compared; with more groups each is compared with the first only."""

NOTE = (
    "Loss is the mean -ln(probability) of a token, in nats; perplexity is its exp; both depend on the tokenizer. "
    "Bits per byte (UTF-8) do not. For several seeds: the mean with Student's 95 % interval over "
    "seeds; for one seed: the interval over chunks of the text (a normal approximation), outside of which another seed "
    "may fall."
)


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its 95 % interval, if known."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        return " ".join(filter(None, (number_text(self.value), interval_text(self.low, self.high))))


@dataclass(frozen=True)
class LanguageRow:
    """One group at one checkpoint and context: the scores of each seed, and means over seeds."""

    group: Group
    scores: tuple[LanguageScores, ...]

    @property
    def likelihoods(self) -> list[Likelihoods]:
        return [one.likelihoods for one in self.scores]

    @property
    def checkpoint(self) -> str:
        return self.scores[0].checkpoint

    @property
    def is_as_trained(self) -> bool:
        """Whether the context is that of training."""
        return self.scores[0].region == "in_distribution"

    @property
    def loss(self) -> MeanInterval:
        return mean_over_seeds([one.loss for one in self.likelihoods], self.likelihoods[0].loss_interval())

    @property
    def perplexity(self) -> MeanInterval:
        """exp(loss), ends of the interval too."""
        found = self.loss
        ends = [None if end is None else perplexity_of(end) for end in (found.low, found.high)]
        return MeanInterval(perplexity_of(found.value), *ends)

    @property
    def bits_per_byte(self) -> MeanInterval | None:
        values = [value for one in self.likelihoods if (value := one.bits_per_byte) is not None]
        is_known = len(values) == len(self.scores)
        return mean_over_seeds(values, self.likelihoods[0].bits_per_byte_interval()) if is_known else None

    def values(self, metric: str) -> list[float]:
        """Of each seed the loss, or the bits per byte."""
        return [one.loss if metric == "loss" else one.bits_per_byte or 0.0 for one in self.likelihoods]


def t_quantile(degrees_of_freedom: float) -> float:
    """The 97.5 % point of Student's t.

    >>> round(t_quantile(2), 3), round(t_quantile(30), 3)
    (4.303, 2.042)
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, 0.975))


def mean_over_seeds(values: Sequence[float], single_seed_interval: tuple[float, float] | None = None) -> MeanInterval:
    """The mean over seeds with Student's interval; of a single one the interval `single_seed_interval`."""
    if len(values) == 1:
        return MeanInterval(values[0], *(single_seed_interval or (None, None)))
    half_width = t_quantile(len(values) - 1) * sqrt(variance(values) / len(values))
    mean = fmean(values)
    return MeanInterval(mean, mean - half_width, mean + half_width)


def language_modeling_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups of language modeling runs."""
    return [group for group in groups if any(run.is_language_modeling for run in group.runs)]


def language_rows(groups: Sequence[Group]) -> list[LanguageRow]:
    """A row for each group, checkpoint (final, then best) and context, at the first position offset."""
    rows = []
    for group in groups:
        scores = [one for run in group.runs for one in _select_scores(run, group)]
        keys = {(one.context_length, {"final": 1, "best": 2}.get(one.checkpoint, 0), one.checkpoint) for one in scores}
        for context, _, name in sorted(keys):
            same = tuple(one for one in scores if (one.context_length, one.checkpoint) == (context, name))
            rows.append(LanguageRow(group, same))
    return rows


def _select_scores(run: Records, group: Group) -> list[LanguageScores]:
    """The scores of a run with the settings of a group, at its first position offset and the latest step per
    checkpoint."""
    scores = [one for one in run.language if one.settings == (group.settings or {}) and one.likelihoods.tokens]
    first = min((one.position_offset for one in scores), default=0)
    latest = {
        (one.checkpoint, one.context_length): one
        for one in sorted(scores, key=lambda one: one.step)
        if one.position_offset == first and group.checkpoint in (None, one.checkpoint)
    }
    return list(latest.values())


def main_rows(rows: Sequence[LanguageRow]) -> list[LanguageRow]:
    """The main row of each group: at the trained context and the final checkpoint, if present."""
    ranked = sorted(rows, key=lambda row: (not row.is_as_trained, row.checkpoint != "final"))
    first = {row.group.label: row for row in reversed(ranked)}
    return [first[label] for label in dict.fromkeys(row.group.label for row in rows)]


def comparison_metric(rows: Sequence[LanguageRow]) -> str:
    """The metric by which rows are compared: "loss", or "bits_per_byte" where tokenizers differ."""
    return "loss" if len({one.tokenizer for row in rows for one in row.scores} - {None}) < 2 else "bits_per_byte"


def comparison_notes(groups: Sequence[Group]) -> list[str]:
    """What limits the comparison of these groups: tokenizers, texts of other sizes, runs without an evaluation."""
    rows, notes = language_rows(groups), []
    if comparison_metric(main_rows(rows)) != "loss":
        notes.append(
            "The tokenizers differ, so tokens are different amounts of text: bits per byte are compared instead of "
            "losses or perplexities."
        )
    sizes = [one.bytes for row in rows for one in row.likelihoods]
    if sizes and max(sizes) > 1.01 * min(sizes):
        notes.append(
            f"The validation texts differ in size ({min(sizes):,} to {max(sizes):,} bytes): differences between groups "
            "may be differences of the text."
        )
    runs = {run.folder: run for group in groups for run in group.runs}
    lacking = [str(folder) for folder, run in runs.items() if not run.language]
    if lacking:
        notes.append(
            f"{len(lacking)} of {len(runs)} runs {'is' if len(lacking) == 1 else 'are'} not evaluated on the whole "
            f"validation text yet and not compared: run `numerate evaluate {lacking[0]}`"
            + (", and so on." if len(lacking) > 1 else ".")
        )
    return notes


def welch_difference(first: Sequence[float], second: Sequence[float]) -> MeanInterval:
    """How much lower the second mean is than the first, with Welch's 95 % interval; no interval for one value."""
    value = fmean(first) - fmean(second)
    if min(len(first), len(second)) < 2:
        return MeanInterval(value)
    shares = [variance(one) / len(one) for one in (first, second)]
    terms = sum(share**2 / (len(one) - 1) for share, one in zip(shares, (first, second), strict=True))
    half = t_quantile(sum(shares) ** 2 / terms) * sqrt(sum(shares)) if terms else 0.0  # Welch (1947)
    return MeanInterval(value, value - half, value + half)


def _is_significant(difference: MeanInterval) -> bool | None:
    """Whether 0 is outside of the interval; None without one."""
    if difference.low is None or difference.high is None:
        return None
    return difference.low > 0 or difference.high < 0


def _interval(difference: MeanInterval) -> str:
    """The interval to four decimals."""
    known = difference.low is not None and difference.high is not None
    return f"[{difference.low:.4f}, {difference.high:.4f}]" if known else ""


def _unit(metric: str) -> str:
    return "nats per token" if metric == "loss" else "bits per byte"


def language_headline(groups: Sequence[Group]) -> str:
    """At most two sentences: the loss of one group, or which of several is lowest and whether that is significant."""
    rows = main_rows(language_rows(groups))
    if not rows:
        return f"{join_names([group.label for group in groups])}: not evaluated on the whole validation text yet."
    metric = comparison_metric(rows)
    means = [fmean(row.values(metric)) for row in rows]
    ranked = [rows[i] for i in sorted(range(len(rows)), key=lambda i: (isnan(means[i]), means[i]))]
    best = ranked[0]
    seeds = f" ({len(best.scores)} seeds)" if len(best.scores) > 1 else ""
    where = "" if best.is_as_trained else f" at a context of {best.scores[0].context_length:,}"
    bits = f", {best.bits_per_byte.text} bits per byte" if best.bits_per_byte is not None else ""
    text = (
        f"{best.group.label}{seeds}: loss {best.loss.text} nats per token, perplexity "
        f"{number_text(best.perplexity.value)}{bits} on {best.likelihoods[0].tokens:,} held-out tokens{where}, "
        f"{best.checkpoint} checkpoint."
    )
    if len(rows) == 1:
        return text + " One seed." * (len(best.scores) == 1)
    gap = welch_difference(ranked[1].values(metric), best.values(metric))
    if _is_significant(gap) is None:
        end = "; with one seed each, the variation over seeds is unknown."
    else:
        end = f" {_interval(gap)}, {'' if _is_significant(gap) else 'not '}a significant difference over seeds."
    return f"{text} It is lowest, before {ranked[1].group.label}, by {gap.value:.4f} {_unit(metric)}{end}"


def metric_table(groups: Sequence[Group]) -> TextTable:
    """All metrics, a row for each group, checkpoint and context; one row of both checkpoints where they are equal."""
    rows = language_rows(groups)
    has_contexts = len({row.scores[0].context_length for row in rows}) > 1 or not all(row.is_as_trained for row in rows)
    lines: list[list[str]] = []
    before: LanguageRow | None = None
    for row in rows:
        first, steps = row.scores[0], {one.step for one in row.scores}
        if before is not None and row.checkpoint == "best" and _is_same_checkpoint(before, row):
            lines[-1][1] = f"{before.checkpoint}, best"
            continue
        where = f"{first.context_length:,}" + f" ({CONTEXT_LABELS[first.region]})" * (not row.is_as_trained)
        bits = row.bits_per_byte.text if row.bits_per_byte is not None else ""
        texts = [row.loss.text, row.perplexity.text, bits]
        lines.append(
            [row.group.label, row.checkpoint, span_text(steps)]
            + [where] * has_contexts
            + [str(len(row.scores)), *(text.replace(" [", "\n[") for text in texts)]
            + [span_text(one.tokens for one in row.likelihoods)]
        )
        before = row
    header = ["run", "checkpoint", "step", *(["context"] * has_contexts), "seeds", "loss", "perplexity"]
    return TextTable([*header, "bits per byte", "held-out tokens"], lines, NOTE, style="tight")


def _is_same_checkpoint(one: LanguageRow, other: LanguageRow) -> bool:
    each = [[(score.step, score.context_length, score.likelihoods) for score in row.scores] for row in (one, other)]
    return one.group is other.group and each[0] == each[1]


def difference_table(groups: Sequence[Group]) -> TextTable:
    """The differences of all pairs of groups, with many groups of each to the first, with Welch's intervals."""
    rows = main_rows(language_rows(groups))
    metric, pairs = comparison_metric(rows), list(combinations(rows, 2))
    verdicts = {None: "one seed: not known", True: "significant", False: "not significant"}
    lines = []
    for first, second in [(rows[0], other) for other in rows[1:]] if len(pairs) > MAX_PAIRS else pairs:
        gap = welch_difference(first.values(metric), second.values(metric))
        labels = [first.group.label, second.group.label]
        lines.append([*labels, f"{gap.value:+.4f}", _interval(gap), verdicts[_is_significant(gap)]])
    header = ["first", "second", f"second is lower by, {_unit(metric)}", "95 % interval", ""]
    return TextTable(header, lines, "Intervals are Welch's, over seeds.", style="tight")


def metrics_content(groups: Sequence[Group]) -> Content:
    """The table of all metrics, and what limits the comparison."""
    table = metric_table(groups)
    if len(groups) == 1:
        table = replace(table, header=table.header[1:], rows=[row[1:] for row in table.rows])
    notes = " ".join(comparison_notes(groups))
    return [table, *[Note(notes)] * bool(notes)]


def language_facts(groups: Sequence[Group]) -> Content:
    """The main numbers of a run."""
    run, values = groups[0].runs[0], {}
    rows = main_rows(language_rows(groups))
    if rows:
        values = {"loss, nats per token": rows[0].loss.text, "perplexity": rows[0].perplexity.text}
        if rows[0].bits_per_byte is not None:
            values["bits per byte"] = rows[0].bits_per_byte.text
    elif lines := validation_metrics(run):
        values["validation loss, so far"] = number_text(lines[-1]["loss"])
        values["perplexity, so far"] = number_text(lines[-1]["perplexity"])
    known = run_metadata(run)
    words = {"parameters": "parameters", "steps": "steps", "tokens": "training tokens"}
    values |= {words[name]: known[name] for name in words if name in known}
    return [Facts(values | speed_summary(groups[0]))]


def speed_summary(group: Group) -> dict[str, str]:
    """Speed and memory, name to text: medians over all logged values of every seed, and the maximum of memory.

    For example {"tokens/s": "12,345", "FLOPs utilization": "31 %", "peak memory": "0.9 GB"}.
    """
    speeds, shares = _logged(group, "tokens_per_second"), _logged(group, "flops_utilization")
    memory, share = max(_logged(group, "peak_memory_bytes"), default=0), 100 * median(shares or [0])
    found = {
        "tokens/s": f"{median(speeds):,.0f}" if speeds else "",
        "FLOPs utilization": (f"{share:.0f} %" if share >= 9.95 else f"{share:.2g} %") if shares else "",
        "peak memory": format_bytes(memory) if memory else "",
    }
    return {name: text for name, text in found.items() if text}


def _logged(group: Group, name: str) -> list[Any]:
    """All values of a key in the `timings.jsonl` of its runs."""
    return [line[name] for run in group.runs for line in run.timings if line.get(name) is not None]


def _totals_text(group: Group, name: str, form: Callable[[int], str]) -> str:
    """How many tokens, or operations, its runs were trained for: the fewest and the most."""
    lines = [[line for line in run.training_metrics() if name in line] for run in group.runs]
    counts = sorted(int(each[-1][name]) for each in lines if each)
    return " to ".join(dict.fromkeys(map(form, (counts[0], counts[-1])))) if counts else ""


def _format_flops(count: int) -> str:
    """In the notation of budgets: `18.3 gigaFLOP`."""
    units = ("", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta")
    power = next((power for power in range(len(units) - 1, 0, -1) if count >= 1000**power), 0)
    return f"{count / 1000**power:.3g} {units[power]}FLOP"


def speed_table(groups: Sequence[Group]) -> TextTable:
    """Speed and memory, without empty columns; no rows where nothing is known."""
    speeds = [(group, speed_summary(group)) for group in unique_trainings(groups)]
    rows = [
        {
            "run": group.label,
            "training tokens": _totals_text(group, "tokens", "{:,}".format),
            "flops": _totals_text(group, "flops", _format_flops),
            **speed,
        }
        for group, speed in speeds
        if any(speed for _, speed in speeds)
    ]
    names = ["run", "training tokens", "flops", "tokens/s", "FLOPs utilization", "peak memory"]
    names = [name for name in names[:3] if rows] + [name for name in names[3:] if any(name in row for row in rows)]
    note = "Tokens per second of training: the median over what was logged, evaluations and checkpoints left out. "
    peaks = [peak for group in groups for peak in _logged(group, "peak")]
    if peaks:
        words = {"fp32": "float32", "tf32": "TF32"}
        precisions = " or ".join(words.get(text, text) for text in sorted({str(peak["precision"]) for peak in peaks}))
        note += f"FLOPs utilization: the share of the device's peak in {precisions}, as its maker states it. "
    note += "Peak memory: maximum over seeds, of the process or of memory allocated by torch on a GPU."
    return TextTable(names, [[row.get(name, "") for name in names] for row in rows], note, style="tight")

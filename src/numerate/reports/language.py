"""Language modeling results: loss, perplexity and bits per byte with intervals over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, sqrt
from statistics import fmean, variance
from textwrap import fill

from numerate.evaluation.likelihoods import Z95, Likelihoods
from numerate.reports.groups import Group
from numerate.reports.language_records import LanguageScores, interval_text, number_text
from numerate.reports.language_speed import speed_note, speed_rows
from numerate.reports.records import Records
from numerate.reports.table import text_table

MAX_PAIRS = 45
"""Maximum number of pairs compared; with more groups each is compared with the first only."""

_T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % points of Student's t with 1 to 10 degrees of freedom."""

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
    """One group at one checkpoint and context: the likelihoods of each seed, and means over seeds."""

    group: Group
    checkpoint: str
    context: int
    region: str
    steps: tuple[int, ...]
    likelihoods: tuple[Likelihoods, ...]
    tokenizers: frozenset[str | None]

    @property
    def loss(self) -> MeanInterval:
        return mean_over_seeds([one.loss for one in self.likelihoods], self.likelihoods[0].loss_interval())

    @property
    def perplexity(self) -> MeanInterval:
        """exp(loss), ends of the interval too."""
        found = self.loss
        ends = [None if end is None else exp(min(end, 700.0)) for end in (found.low, found.high)]
        return MeanInterval(exp(min(found.value, 700.0)), *ends)

    @property
    def bits_per_byte(self) -> MeanInterval | None:
        values = [value for one in self.likelihoods if (value := one.bits_per_byte) is not None]
        return (
            mean_over_seeds(values, self.likelihoods[0].bits_per_byte_interval())
            if len(values) == len(self.likelihoods)
            else None
        )

    def values(self, metric: str) -> list[float]:
        """Of each seed the loss, or the bits per byte."""
        return [one.loss if metric == "loss" else one.bits_per_byte or 0.0 for one in self.likelihoods]


@dataclass(frozen=True)
class LossDifference:
    """How much lower the second group is than the first, with Welch's 95 % interval over seeds (None for one seed)."""

    first: LanguageRow
    second: LanguageRow
    difference: float
    low: float | None
    high: float | None

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def t_quantile(degrees_of_freedom: float) -> float:
    """The 97.5 % point of Student's t: from a table for few degrees of freedom, otherwise by Cornish and Fisher's
    series (Abramowitz and Stegun 1964, 26.7.5), accurate to three digits. Fractional degrees of freedom within the
    table are rounded down.

    >>> t_quantile(2), round(t_quantile(30), 3)
    (4.303, 2.042)
    """
    if degrees_of_freedom < len(_T_QUANTILES) + 1:
        return _T_QUANTILES[max(1, int(degrees_of_freedom)) - 1]
    return (
        Z95
        + (Z95**3 + Z95) / (4 * degrees_of_freedom)
        + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * degrees_of_freedom**2)
    )


def mean_over_seeds(values: Sequence[float], single_seed_interval: tuple[float, float] | None = None) -> MeanInterval:
    """The mean over seeds with Student's interval; of a single one the interval `single_seed_interval`."""
    if len(values) == 1:
        return MeanInterval(values[0], *(single_seed_interval or (None, None)))
    half_width = t_quantile(len(values) - 1) * sqrt(variance(values) / len(values))
    mean = fmean(values)
    return MeanInterval(mean, mean - half_width, mean + half_width)


def language_rows(groups: Sequence[Group]) -> list[LanguageRow]:
    """A row for each group, checkpoint (final, then best) and context, at the first position offset."""
    found = []
    for group in groups:
        known = [_select_scores(run, group) for run in group.runs]
        keys = dict.fromkeys((one.checkpoint, one.context_length) for each in known for one in each)
        for checkpoint, context in sorted(keys, key=lambda key: (key[1], _checkpoint_order(key[0]), key[0])):
            ones = [o for each in known for o in each if (o.checkpoint, o.context_length) == (checkpoint, context)]
            steps, each = tuple(one.step for one in ones), tuple(one.likelihoods for one in ones)
            tokenizers = frozenset(one.tokenizer for one in ones)
            found.append(LanguageRow(group, checkpoint, context, ones[0].region, steps, each, tokenizers))
    return found


def _checkpoint_order(checkpoint: str) -> int:
    return {"final": 1, "best": 2}.get(checkpoint, 0)


def _select_scores(run: Records, group: Group) -> list[LanguageScores]:
    """The scores of a run with the settings of a group, at its first position offset and the latest step per
    checkpoint."""
    settings = group.settings if group.settings is not None else {}
    scores = [one for one in run.language if one.settings == settings and one.likelihoods.tokens]
    first = min((one.position_offset for one in scores), default=0)
    scores = [one for one in scores if one.position_offset == first]
    scores = [one for one in scores if group.checkpoint in (None, one.checkpoint)]
    latest: dict[tuple[str, int], LanguageScores] = {}
    for one in sorted(scores, key=lambda one: one.step):
        latest[one.checkpoint, one.context_length] = one
    return list(latest.values())


def main_rows(rows: Sequence[LanguageRow]) -> list[LanguageRow]:
    """The main row of each group: at the trained context and the final checkpoint, if present."""
    found: dict[str, LanguageRow] = {}
    for row in rows:
        known = found.get(row.group.label)
        better = (row.region == "in_distribution", row.checkpoint == "final")
        if known is None or better > (known.region == "in_distribution", known.checkpoint == "final"):
            found[row.group.label] = row
    return list(found.values())


def comparison_metric(rows: Sequence[LanguageRow]) -> tuple[str, str]:
    """The metric by which rows are compared, "loss" or "bits_per_byte", and the reason if it is not the loss."""
    several = len(frozenset[str | None]().union(*(row.tokenizers for row in rows)) - {None}) > 1
    if not several:
        return "loss", ""
    return "bits_per_byte", (
        "The tokenizers differ, so tokens are different amounts of text: bits per byte are compared instead of losses "
        "or perplexities."
    )


def text_size_note(rows: Sequence[LanguageRow]) -> str:
    """A note if the evaluated texts differ in bytes; otherwise ""."""
    sizes = [one.bytes for row in rows for one in row.likelihoods]
    if not sizes or max(sizes) <= 1.01 * min(sizes):
        return ""
    return (
        f"The validation texts differ in size ({min(sizes):,} to {max(sizes):,} bytes): differences between groups may "
        "be differences of the text."
    )


def pairwise_differences(rows: Sequence[LanguageRow], metric: str) -> list[LossDifference]:
    """The differences of all pairs of groups; with many groups, of each to the first."""
    pairs = list(combinations(rows, 2))
    if len(pairs) > MAX_PAIRS:
        pairs = [(rows[0], other) for other in rows[1:]]
    return [_difference(first, second, metric) for first, second in pairs]


def _difference(first: LanguageRow, second: LanguageRow, metric: str) -> LossDifference:
    first_values, second_values = first.values(metric), second.values(metric)
    value = fmean(first_values) - fmean(second_values)
    if len(first_values) < 2 or len(second_values) < 2:
        return LossDifference(first, second, value, None, None)
    shares = [variance(one) / len(one) for one in (first_values, second_values)]
    error = sqrt(sum(shares))
    terms = [share**2 / (len(one) - 1) for share, one in zip(shares, (first_values, second_values), strict=True)]
    half = t_quantile(sum(shares) ** 2 / sum(terms)) * error if sum(terms) else 0.0  # Welch (1947)
    return LossDifference(first, second, value, value - half, value + half)


def difference_rows(rows: Sequence[LanguageRow], metric: str) -> tuple[list[str], list[list[str]]]:
    """The table of differences."""
    unit = "nats per token" if metric == "loss" else "bits per byte"
    header = ["first", "second", f"second is lower by, {unit}", "95 % interval", ""]
    lines = []
    for gap in pairwise_differences(rows, metric):
        verdict = (
            "one seed: not known" if gap.low is None else "significant" if gap.is_significant else "not significant"
        )
        interval = _interval_text(gap)
        lines.append([gap.first.group.label, gap.second.group.label, f"{gap.difference:+.4f}", interval, verdict])
    return header, lines


def metric_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table of all metrics as text, a line for each group, checkpoint and context; one line of both checkpoints
    where the final one is the best."""
    rows = language_rows(groups)
    contexts = len({row.context for row in rows}) > 1 or any(row.region != "in_distribution" for row in rows)
    header = ["run", "checkpoint", "step", *(["context"] * contexts), "seeds", "loss", "perplexity", "bits per byte"]
    named = {(row.group.label, row.context, row.checkpoint): row for row in rows}
    lines = []
    for row in rows:
        final, best = (named.get((row.group.label, row.context, name)) for name in ("final", "best"))
        same_checkpoint = (
            final is not None
            and best is not None
            and (final.steps, final.likelihoods) == (best.steps, best.likelihoods)
        )
        if same_checkpoint and row is best:
            continue
        steps = sorted(set(row.steps))
        where = f"{row.context:,}" + f" ({row.region})" * (row.region != "in_distribution")
        lines.append(
            [
                row.group.label,
                "final, best" if same_checkpoint and row is final else row.checkpoint,
                f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}",
                *([where] * contexts),
                str(len(row.likelihoods)),
                row.loss.text,
                row.perplexity.text,
                row.bits_per_byte.text if row.bits_per_byte is not None else "",
                " to ".join(dict.fromkeys(f"{f(one.tokens for one in row.likelihoods):,}" for f in (min, max))),
            ]
        )
    return [*header, "held-out tokens"], lines


def language_summary(groups: Sequence[Group]) -> str:
    """The summary in a few sentences: the results of each group, and which differ significantly."""
    rows = main_rows(language_rows(groups))
    if not rows:
        return f"{' and '.join(group.label for group in groups[:4])}: not evaluated on the whole validation text yet."
    if len(rows) == 1:
        return " ".join(
            filter(
                None, [_summary(rows[0]), "One seed." * (len(rows[0].likelihoods) == 1), _not_evaluated_note(groups)]
            )
        )
    metric, metric_note = comparison_metric(rows)
    more = f" {len(rows) - 6} more groups are in the table." * (len(rows) > 6)
    parts = [
        _best_sentence(rows, metric),
        _results_sentence(rows[:6], metric) + more,
        metric_note,
        text_size_note(rows),
        _not_evaluated_note(groups),
    ]
    return " ".join(filter(None, parts))


def _not_evaluated_note(groups: Sequence[Group]) -> str:
    """A note on runs that are not evaluated on the whole validation text, with the command that does it."""
    runs = {run.folder: run for group in groups for run in group.runs}
    lacking = [str(folder) for folder, run in runs.items() if not run.language]
    if not lacking:
        return ""
    verb = "is" if len(lacking) == 1 else "are"
    return (
        f"{len(lacking)} of {len(runs)} runs {verb} not evaluated on the whole validation text yet and not compared: "
        f"run `numerate evaluate {lacking[0]}`" + (", and so on." if len(lacking) > 1 else ".")
    )


def _results_sentence(rows: Sequence[LanguageRow], metric: str) -> str:
    """The results of several groups as a sentence."""
    texts = []
    for row in rows:
        found = row.bits_per_byte if metric == "bits_per_byte" and row.bits_per_byte is not None else row.loss
        seeds = f" ({len(row.likelihoods)} seeds)" if len(row.likelihoods) > 1 else ""
        where = "" if row.region == "in_distribution" else f" at a context of {row.context:,}"
        texts.append(
            f"{row.group.label}{seeds} {found.text}{where}" + f", {row.checkpoint}" * (row.checkpoint != "final")
        )
    what = "Loss in nats per token" if metric == "loss" else "Bits per byte"
    return f"{what}: {'; '.join(texts)}."


def _summary(row: LanguageRow) -> str:
    """The results of one group as a sentence."""
    seeds = f" ({len(row.likelihoods)} seeds)" if len(row.likelihoods) > 1 else ""
    bits = f", {row.bits_per_byte.text} bits per byte" if row.bits_per_byte is not None else ""
    where = "" if row.region == "in_distribution" else f" at a context of {row.context:,}"
    return (
        f"{row.group.label}{seeds}: loss {row.loss.text} nats per token, perplexity {number_text(row.perplexity.value)}"
        f"{bits} on {row.likelihoods[0].tokens:,} held-out tokens{where}, {row.checkpoint} checkpoint."
    )


def _best_sentence(rows: Sequence[LanguageRow], metric: str) -> str:
    """The lowest group, and whether the next one differs significantly."""
    ranked = sorted(rows, key=lambda row: fmean(row.values(metric)))
    gap = _difference(ranked[1], ranked[0], metric)
    unit = "nats per token" if metric == "loss" else "bits per byte"
    words = f"{gap.first.group.label}, by {gap.difference:.4f} {unit}"
    lowest = f"{gap.second.group.label} is lowest, before {words}"
    if gap.low is None:
        return f"{lowest}; with one seed each, the variation over seeds is unknown."
    apart = "a significant difference over seeds" if gap.is_significant else "not a significant difference over seeds"
    return f"{lowest} {_interval_text(gap)}, {apart}."


def _interval_text(gap: LossDifference) -> str:
    """The interval of a difference, to four decimals."""
    return "" if gap.low is None or gap.high is None else f"[{gap.low:.4f}, {gap.high:.4f}]"


def language_text(groups: Sequence[Group]) -> str:
    """The comparison for a terminal."""
    header, lines = metric_rows(groups)
    if not lines:
        return language_summary(groups)
    rows = main_rows(language_rows(groups))
    metric, _ = comparison_metric(rows)
    parts = [f"{text_table(header, lines)}\n{fill(NOTE, 118, break_on_hyphens=False)}"]
    parts += [text_table(*difference_rows(rows, metric))] if len(rows) > 1 else []
    speeds = speed_rows(groups)
    parts += [f"{text_table(*speeds)}\n{fill(speed_note(groups), 118, break_on_hyphens=False)}"] if speeds[1] else []
    return "\n\n".join([*parts, fill(language_summary(groups), 118, break_on_hyphens=False)])

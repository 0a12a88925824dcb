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

MOST_PAIRS = 45
"""Maximum number of pairs compared; with more groups each is compared with the first only."""

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % points of Student's t with 1 to 10 degrees of freedom."""

NOTE = (
    "Loss is the mean -ln(probability) of a token, in nats; perplexity is its exp; both depend on the tokenizer. "
    "Bits per byte of the text's UTF-8 do not. Of several seeds the mean with Student's 95 % interval over seeds, of "
    "one the interval about the text (a normal approximation over chunks), outside of which another seed may lie."
)


@dataclass(frozen=True)
class MeanWithInterval:
    """A mean with its 95 % interval, where known."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        return " ".join(filter(None, (number_text(self.value), interval_text(self.low, self.high))))


@dataclass(frozen=True)
class Row:
    """One group at one checkpoint and context: the likelihoods of each seed, and means over seeds."""

    group: Group
    checkpoint: str
    context: int
    region: str
    steps: tuple[int, ...]
    each: tuple[Likelihoods, ...]
    tokenizers: frozenset[str | None]

    @property
    def loss(self) -> MeanWithInterval:
        return over_seeds([one.loss for one in self.each], self.each[0].interval())

    @property
    def perplexity(self) -> MeanWithInterval:
        """exp(loss), ends of the interval too."""
        found = self.loss
        ends = [None if end is None else exp(min(end, 700.0)) for end in (found.low, found.high)]
        return MeanWithInterval(exp(min(found.value, 700.0)), *ends)

    @property
    def bits(self) -> MeanWithInterval | None:
        values = [value for one in self.each if (value := one.bits_per_byte) is not None]
        return over_seeds(values, self.each[0].bits_interval()) if len(values) == len(self.each) else None

    def values(self, measure: str) -> list[float]:
        """Of each seed the loss, or the bits per byte."""
        return [one.loss if measure == "loss" else one.bits_per_byte or 0.0 for one in self.each]


@dataclass(frozen=True)
class Gap:
    """How much lower the second group is than the first, with Welch's 95 % interval over seeds (None for one seed)."""

    first: Row
    second: Row
    value: float
    low: float | None
    high: float | None

    @property
    def apart(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def student(freedom: float) -> float:
    """The 97.5 % point of Student's t: of few degrees of freedom from a table, of more by Cornish and Fisher's series
    (Abramowitz and Stegun 1964, 26.7.5), right to three digits. A fraction between two of the table counts as the
    lower one.

    >>> student(2), round(student(30), 3)
    (4.303, 2.042)
    """
    if freedom < len(_STUDENT) + 1:
        return _STUDENT[max(1, int(freedom)) - 1]
    return Z95 + (Z95**3 + Z95) / (4 * freedom) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * freedom**2)


def over_seeds(values: Sequence[float], alone: tuple[float, float] | None = None) -> MeanWithInterval:
    """The mean over seeds with Student's interval; of a single one the interval `alone`."""
    if len(values) == 1:
        return MeanWithInterval(values[0], *(alone or (None, None)))
    half = student(len(values) - 1) * sqrt(variance(values) / len(values))
    mean = fmean(values)
    return MeanWithInterval(mean, mean - half, mean + half)


def language_rows(groups: Sequence[Group]) -> list[Row]:
    """A row for each group, checkpoint (final, then best) and context, at the first placement."""
    found = []
    for group in groups:
        known = [_chosen(run, group) for run in group.runs]
        keys = dict.fromkeys((one.checkpoint, one.context) for each in known for one in each)
        for checkpoint, context in sorted(keys, key=lambda key: (key[1], _order(key[0]), key[0])):
            ones = [o for each in known for o in each if (o.checkpoint, o.context) == (checkpoint, context)]
            steps, each = tuple(one.step for one in ones), tuple(one.found for one in ones)
            tokenizers = frozenset(one.tokenizer for one in ones)
            found.append(Row(group, checkpoint, context, ones[0].region, steps, each, tokenizers))
    return found


def _order(checkpoint: str) -> int:
    return {"final": 1, "best": 2}.get(checkpoint, 0)


def _chosen(run: Records, group: Group) -> list[LanguageScores]:
    """The scores of a run with the settings of a group, at its first placement and the latest step per checkpoint."""
    settings = group.settings if group.settings is not None else {}
    there = [one for one in run.language if one.settings == settings and one.found.tokens]
    first = min((one.position_offset for one in there), default=0)
    there = [one for one in there if one.position_offset == first]
    there = [one for one in there if group.checkpoint in (None, one.checkpoint)]
    latest: dict[tuple[str, int], LanguageScores] = {}
    for one in sorted(there, key=lambda one: one.step):
        latest[one.checkpoint, one.context] = one
    return list(latest.values())


def main_rows(rows: Sequence[Row]) -> list[Row]:
    """The main row of each group: of the trained context and the final checkpoint, where it has these."""
    found: dict[str, Row] = {}
    for row in rows:
        known = found.get(row.group.label)
        better = (row.region == "in_distribution", row.checkpoint == "final")
        if known is None or better > (known.region == "in_distribution", known.checkpoint == "final"):
            found[row.group.label] = row
    return list(found.values())


def compared_by(rows: Sequence[Row]) -> tuple[str, str]:
    """The metric by which rows are compared, "loss" or "bits_per_byte", and why where it is not the loss."""
    several = len(frozenset[str | None]().union(*(row.tokenizers for row in rows)) - {None}) > 1
    if not several:
        return "loss", ""
    return "bits_per_byte", (
        "The tokenizers differ, so that a token is not the same amount of text: bits per byte are compared, not losses "
        "or perplexities."
    )


def other_text(rows: Sequence[Row]) -> str:
    """A note where the evaluated texts differ in bytes; else ""."""
    sizes = [one.bytes for row in rows for one in row.each]
    if not sizes or max(sizes) <= 1.01 * min(sizes):
        return ""
    return (
        f"The validation texts differ in size ({min(sizes):,} to {max(sizes):,} bytes): differences between groups may "
        "be differences of the text."
    )


def gaps(rows: Sequence[Row], measure: str) -> list[Gap]:
    """The differences of all pairs of groups; of many groups of each to the first."""
    pairs = list(combinations(rows, 2))
    if len(pairs) > MOST_PAIRS:
        pairs = [(rows[0], other) for other in rows[1:]]
    return [_gap(first, second, measure) for first, second in pairs]


def _gap(first: Row, second: Row, measure: str) -> Gap:
    ours, theirs = first.values(measure), second.values(measure)
    value = fmean(ours) - fmean(theirs)
    if len(ours) < 2 or len(theirs) < 2:
        return Gap(first, second, value, None, None)
    shares = [variance(one) / len(one) for one in (ours, theirs)]
    error = sqrt(sum(shares))
    parts = [share**2 / (len(one) - 1) for share, one in zip(shares, (ours, theirs), strict=True)]
    half = student(sum(shares) ** 2 / sum(parts)) * error if sum(parts) else 0.0  # Welch (1947)
    return Gap(first, second, value, value - half, value + half)


def gap_rows(rows: Sequence[Row], measure: str) -> tuple[list[str], list[list[str]]]:
    """The table of differences."""
    unit = "nats per token" if measure == "loss" else "bits per byte"
    header = ["first", "second", f"second is lower by, {unit}", "95 % interval", ""]
    lines = []
    for gap in gaps(rows, measure):
        verdict = "one seed: not known" if gap.low is None else "significant" if gap.apart else "not significant"
        interval = _ends(gap)
        lines.append([gap.first.group.label, gap.second.group.label, f"{gap.value:+.4f}", interval, verdict])
    return header, lines


def table_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The table of all measures as text, a line for each group, checkpoint and context; one line of both checkpoints
    where the final one is the best."""
    rows = language_rows(groups)
    contexts = len({row.context for row in rows}) > 1 or any(row.region != "in_distribution" for row in rows)
    header = ["run", "checkpoint", "step", *(["context"] * contexts), "seeds", "loss", "perplexity", "bits per byte"]
    named = {(row.group.label, row.context, row.checkpoint): row for row in rows}
    lines = []
    for row in rows:
        final, best = (named.get((row.group.label, row.context, name)) for name in ("final", "best"))
        one = final is not None and best is not None and (final.steps, final.each) == (best.steps, best.each)
        if one and row is best:
            continue
        steps = sorted(set(row.steps))
        where = f"{row.context:,}" + f" ({row.region})" * (row.region != "in_distribution")
        lines.append(
            [
                row.group.label,
                "final, best" if one and row is final else row.checkpoint,
                f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}",
                *([where] * contexts),
                str(len(row.each)),
                row.loss.text,
                row.perplexity.text,
                row.bits.text if row.bits is not None else "",
                " to ".join(dict.fromkeys(f"{f(one.tokens for one in row.each):,}" for f in (min, max))),
            ]
        )
    return [*header, "held-out tokens"], lines


def language_finding(groups: Sequence[Group]) -> str:
    """The finding in a few sentences: the results of each group, and which differ significantly."""
    rows = main_rows(language_rows(groups))
    if not rows:
        return f"{' and '.join(group.label for group in groups[:4])}: not evaluated on the whole validation text yet."
    if len(rows) == 1:
        return " ".join(filter(None, [_summary(rows[0]), "One seed." * (len(rows[0].each) == 1), _lacking(groups)]))
    measure, why = compared_by(rows)
    more = f" {len(rows) - 6} more groups are in the table." * (len(rows) > 6)
    parts = [_best_of(rows, measure), _each(rows[:6], measure) + more, why, other_text(rows), _lacking(groups)]
    return " ".join(filter(None, parts))


def _lacking(groups: Sequence[Group]) -> str:
    """A note on runs that are not evaluated on the whole validation text, with the command that does it."""
    runs = {run.folder: run for group in groups for run in group.runs}
    lacking = [str(folder) for folder, run in runs.items() if not run.language]
    if not lacking:
        return ""
    verb = "is" if len(lacking) == 1 else "are"
    return (
        f"{len(lacking)} of {len(runs)} runs {verb} not evaluated on the whole validation text yet and not compared: "
        f"`numerate evaluate {lacking[0]}` does it" + (", and so on." if len(lacking) > 1 else ".")
    )


def _each(rows: Sequence[Row], measure: str) -> str:
    """The results of several groups as a sentence."""
    texts = []
    for row in rows:
        found = row.bits if measure == "bits_per_byte" and row.bits is not None else row.loss
        seeds = f" ({len(row.each)} seeds)" if len(row.each) > 1 else ""
        where = "" if row.region == "in_distribution" else f" at a context of {row.context:,}"
        texts.append(
            f"{row.group.label}{seeds} {found.text}{where}" + f", {row.checkpoint}" * (row.checkpoint != "final")
        )
    what = "Loss in nats per token" if measure == "loss" else "Bits per byte"
    return f"{what}: {'; '.join(texts)}."


def _summary(row: Row) -> str:
    """The results of one group as a sentence."""
    seeds = f" ({len(row.each)} seeds)" if len(row.each) > 1 else ""
    bits = f", {row.bits.text} bits per byte" if row.bits is not None else ""
    where = "" if row.region == "in_distribution" else f" at a context of {row.context:,}"
    return (
        f"{row.group.label}{seeds}: loss {row.loss.text} nats per token, perplexity {number_text(row.perplexity.value)}"
        f"{bits} on {row.each[0].tokens:,} held-out tokens{where}, {row.checkpoint} checkpoint."
    )


def _best_of(rows: Sequence[Row], measure: str) -> str:
    """The lowest group, and whether the next one differs significantly."""
    ranked = sorted(rows, key=lambda row: fmean(row.values(measure)))
    gap = _gap(ranked[1], ranked[0], measure)
    unit = "nats per token" if measure == "loss" else "bits per byte"
    words = f"{gap.first.group.label}, by {gap.value:.4f} {unit}"
    lowest = f"{gap.second.group.label} is lowest, before {words}"
    if gap.low is None:
        return f"{lowest}; one seed of each says nothing of other seeds."
    apart = "which is more than seeds differ by" if gap.apart else "which seeds differ by as well"
    return f"{lowest} {_ends(gap)}, {apart}."


def _ends(gap: Gap) -> str:
    """The interval of a difference, to four decimals."""
    return "" if gap.low is None or gap.high is None else f"[{gap.low:.4f}, {gap.high:.4f}]"


def language_text(groups: Sequence[Group]) -> str:
    """The comparison for a terminal."""
    header, lines = table_rows(groups)
    if not lines:
        return language_finding(groups)
    rows = main_rows(language_rows(groups))
    measure, _ = compared_by(rows)
    parts = [f"{text_table(header, lines)}\n{fill(NOTE, 118, break_on_hyphens=False)}"]
    parts += [text_table(*gap_rows(rows, measure))] if len(rows) > 1 else []
    speeds = speed_rows(groups)
    parts += [f"{text_table(*speeds)}\n{fill(speed_note(groups), 118, break_on_hyphens=False)}"] if speeds[1] else []
    return "\n\n".join([*parts, fill(language_finding(groups), 118, break_on_hyphens=False)])

"""The finding where cells are named parts: trained and untrained ones, by group."""

from collections.abc import Sequence
from statistics import median

from numerate.evaluation.answer_metrics import LESS_IS_BETTER
from numerate.evaluation.sums import BY_MODULE
from numerate.reports.claims import claimable, no_claims
from numerate.reports.groups import Group, part_axis, region_words
from numerate.reports.limits import listed
from numerate.reports.measures import (
    EXACT,
    WORDS,
    GroupAtCheckpoint,
    MeasureKey,
    is_share,
    measures_there,
    median_texts,
    parts_of,
    shown,
)

MOST_LISTED = 4
"""Maximum number of groups listed; of more a sentence names the best two and the last."""

MOST_PARTS = 6


def part_finding(groups: Sequence[Group]) -> str:
    """The finding as one sentence.

    "On the trained modules (add_or_sub, mul), exact match is 45.1 % [44, 46] for CE and 47.3 % [47, 48] for WAS; on the
    modules beyond (add_or_sub_big, mul_big), ...; medians of 2 seeds each (brackets: lowest and highest seed)."
    """
    several = [one for one in shown(claimable(groups)) if one.seeds and one.checkpoint != "best"]
    if not several:
        return "Nothing was evaluated yet, so there is nothing to say."
    there = measures_there(several)
    second = next((name for name in ("log_mae", "bleu") if name in there), None)
    words, sentences = region_words(groups), []
    for region, parts in parts_of(groups).items():
        names = [name for _, name in parts]
        listing = f" ({', '.join(names)})" if len(names) <= MOST_PARTS else f" ({len(names)} of them)"
        clauses = [_clause(several, MeasureKey(region), f"{EXACT}{BY_MODULE}")]
        clauses += [_clause(several, MeasureKey(region), f"{second}{BY_MODULE}")] if second else []
        if any(clauses):
            sentences.append(f"on the {words[region]}{listing}, {' and '.join(filter(None, clauses))}")
    counts = sorted({len(one.seeds) for one in several})
    means = f"each a mean over the {part_axis(groups)}s"
    each = " each" if len(several) > 1 else ""
    if counts == [1]:
        doubt = f"{means}; one seed{each}, so how much seeds differ is not known"
    else:
        number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        doubt = f"{means} and the median of {number} seeds{each} (brackets: lowest and highest seed)"
    chance = ["the best of so many owes some of its lead to chance"] * (len(several) > MOST_LISTED)
    missing = [group.label for group in groups if not group.evaluated]
    missed = [f"not evaluated yet: {listed(missing)}"] if missing else []
    meant = [f"{second} is the {WORDS[second]}"] if second else []
    text = "; ".join([*sentences, doubt, *meant, *chance, *missed, *no_claims(groups)])
    return text[:1].upper() + text[1:] + "."


def part_notes(groups: Sequence[Group]) -> list[str]:
    """Notes on what the numbers can and cannot show."""
    words, axis = region_words(groups), part_axis(groups)
    notes = [
        f"Training had questions like those of the {words['in_distribution']}, and none like those of the "
        f"{words['ood_test']}. "
        f"Each {axis} is learned by itself: a low score may mean slow learning as well as not going beyond."
    ]
    if all(len(group.regions) <= 1 for group in groups):
        notes.append(
            "One seed per recipe. The intervals say how well each of these models was measured; they say nothing about "
            "what another seed would give, which can differ by more than the intervals. Add seeds=3 or more."
        )
    return notes


def _clause(several: Sequence[GroupAtCheckpoint], key: MeasureKey, measure: str) -> str:
    """A metric of all groups: "exact match is 45.1 % for CE and 47.3 % for WAS"."""
    known = [one for one in several if one.values(key, measure)]
    if not known:
        return ""
    name = measure.removesuffix(BY_MODULE)
    if len(known) <= MOST_LISTED:
        values = [f"{_value(one, key, measure)}{_of(one, several)}" for one in known]
        return f"{_short(name)} is {listed(values)}"
    less = name in LESS_IS_BETTER
    ranked = sorted(known, key=lambda one: median(one.values(key, measure)), reverse=not less)
    values = [f"{_value(one, key, measure)} for {one.group.label}" for one in ranked[:2]]
    last = f"{_value(ranked[-1], key, measure)} for {ranked[-1].group.label}"
    return f"{_short(name)} is {'lowest' if less else 'highest'}, of {len(known)}, with {listed(values)} (last: {last})"


def _short(measure: str) -> str:
    return WORDS[measure] if measure == EXACT else measure


def _of(one: GroupAtCheckpoint, several: Sequence[GroupAtCheckpoint]) -> str:
    return f" for {one.group.label}" if len(several) > 1 else ""


def _value(one: GroupAtCheckpoint, key: MeasureKey, measure: str) -> str:
    middle, ends = median_texts(one, key, measure)
    return " ".join(filter(None, [f"{middle}{' %' * is_share(measure)}", ends]))

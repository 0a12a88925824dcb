"""What may not be claimed of runs whatever their numbers are, and what is known of them before any training."""

from collections.abc import Sequence

from numerate.reports.groups import Group
from numerate.reports.limits import listed

SAME_EVERYWHERE = (
    "chance is a theorem and no result of learning: every row is one symbol again and again, and attention without "
    "places in the input takes a mean of equal values, so that every place has the same state and says the same"
)


def no_claims(groups: Sequence[Group]) -> list[str]:
    """In words, of which groups nothing may be claimed and why, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for group in groups:
        if group.sees_future is not None:
            reasons.setdefault(group.sees_future, []).append(group.label)
    return [f"no claim of {listed(labels)}: {reason}" for reason, labels in reasons.items()]


def claimable(groups: Sequence[Group]) -> list[Group]:
    """The groups of which something may be claimed."""
    return [group for group in groups if group.sees_future is None]


def theorems(groups: Sequence[Group]) -> list[str]:
    """In words, of which groups chance is known before any training."""
    found = [group.label for group in groups if group.by_symmetry]
    return [f"of {listed(found)} {SAME_EVERYWHERE}"] if found else []

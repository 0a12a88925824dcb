"""Claims that are ruled out for some runs, and results that follow from a symmetry."""

from collections.abc import Sequence

from numerate.reports.groups import Group
from numerate.reports.limits import join_names

SYMMETRY_NOTE = (
    "chance-level accuracy follows from a symmetry: every row is one repeated symbol, and attention without positions "
    "in the input averages equal values, so that all positions have the same state and output"
)


def invalid_claim_notes(groups: Sequence[Group]) -> list[str]:
    """Sentences on the groups without any claim, by reason."""
    reasons: dict[str, list[str]] = {}
    for group in groups:
        if group.non_causal_reason is not None:
            reasons.setdefault(group.non_causal_reason, []).append(group.label)
    return [f"no claim about {join_names(labels)}: {reason}" for reason, labels in reasons.items()]


def groups_with_valid_claims(groups: Sequence[Group]) -> list[Group]:
    """The groups with valid claims."""
    return [group for group in groups if group.non_causal_reason is None]


def symmetry_notes(groups: Sequence[Group]) -> list[str]:
    """A sentence on the groups limited to chance by a symmetry."""
    found = [group.label for group in groups if group.is_limited_by_symmetry]
    return [f"for {join_names(found)}, {SYMMETRY_NOTE}"] if found else []

"""Runs whose scores are not comparable."""

from collections.abc import Sequence

from numerate.reports.grid import join_names
from numerate.reports.groups import Group

NOT_COMPARABLE = "not comparable (non-causal)"
"""Replaces the numbers of a model that attends to later tokens."""


def not_comparable_notes(groups: Sequence[Group]) -> list[str]:
    """Clauses on the groups that are not comparable because their models are not causal, by reason."""
    reasons: dict[str, list[str]] = {}
    for group in groups:
        if group.non_causal_reason is not None:
            reasons.setdefault(group.non_causal_reason, []).append(group.label)
    return [f"{join_names(labels)}: {NOT_COMPARABLE}: {reason}" for reason, labels in reasons.items()]


def comparable_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups with causal models, whose scores are comparable."""
    return [group for group in groups if group.non_causal_reason is None]

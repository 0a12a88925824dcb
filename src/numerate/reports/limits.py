"""Size limits of pages, for studies of hundreds of runs.

Tables have every group. Figures show a limited number of groups, with a note."""

from collections.abc import Sequence
from statistics import median

from numerate.reports.grid import ALL_OOD
from numerate.reports.groups import Group

MAX_DRAWN_GROUPS = 8
"""Groups that have a map, or a line in a chart; each has its own color."""

MAX_GROUPS_WITH_SEED_LINES = 3
"""Groups in a chart that has a thin line for each seed."""

MAX_GROUP_COLUMNS = 8
"""Groups as columns of a table; more are rows."""

MAX_UNFOLDED_ROWS = 40
"""Rows of an unfolded table."""

MAX_MAP_CELLS = 20_000
"""Map cells with tooltips on a page, about 130 bytes each; larger maps are images."""

MAX_CURVE_POINTS = 200
"""Points of a curve by step."""


def groups_to_draw(groups: Sequence[Group], max_groups: int = MAX_DRAWN_GROUPS) -> list[Group]:
    """All groups in order; if more than `max_groups`, the first and the best ones by OOD score."""
    if len(groups) <= max_groups:
        return list(groups)
    ranked = sorted(range(1, len(groups)), key=lambda i: -ranking_score(groups[i]))
    return [groups[i] for i in sorted([0, *ranked[: max_groups - 1]])]


def ranking_score(group: Group) -> float:
    """The score for ranking: the median over seeds of the mean over all OOD cells (in distribution without any)."""
    found = []
    for means in group.region_scores:
        ood = [means[name] for name in means if name != "in_distribution"]
        found.append((means.get(ALL_OOD) or (ood or [means["in_distribution"]])[0]).score.value)
    return median(found) if found else -1.0


def left_out_note(groups: Sequence[Group], drawn_groups: Sequence[Group]) -> str:
    """A note on the groups left out; "" if all are shown."""
    if len(drawn_groups) == len(groups):
        return ""
    return (
        f"These are {len(drawn_groups)} of {len(groups)} groups: the first, and those with the highest median over all "
        "OOD cells."
    )

"""Size limits of pages, for studies of hundreds of runs.

Tables have every group. Figures are limited, and say so."""

from collections.abc import Sequence
from statistics import median

from numerate.reports.charts import distinguishable
from numerate.reports.colour import SERIES
from numerate.reports.grid import OOD
from numerate.reports.groups import Group

MOST_DRAWN = 12
"""Groups that have a map, or a line in a chart."""

MOST_EACH = 3
"""Groups in a chart that has a thin line for each seed."""

MOST_POINTS = 18
"""Groups that have a point in a chart of parts."""

MOST_BESIDE = 8
"""Groups as columns of a table; more are rows."""

MOST_ROWS = 40
"""Rows of an unfolded table."""

MOST_NAMED = 10
"""Names in one sentence."""

MOST_MAP_CELLS = 20_000
"""Map cells with tooltips on a page, about 130 bytes each; larger maps are images."""

MOST_SEED_CELLS = 10_000
"""The same for the maps of single seeds."""

MOST_SEED_MAPS = 120
"""Maps of single seeds on a page."""

MOST_CSV_ROWS = 12_000
"""Rows of numbers inside a page, about 50 bytes each."""

MOST_STEPS = 200
"""Points of a curve by step."""

MOST_VALUES = 12
"""Seeds listed one by one in a tooltip."""


def drawn(groups: Sequence[Group], most: int = MOST_DRAWN) -> list[Group]:
    """All groups in order; if more than `most`, or too many for distinct colours, the first and the best ones by OOD
    score."""
    most = most if distinguishable([group.label for group in groups]) else len(SERIES)
    if len(groups) <= most:
        return list(groups)
    ranked = sorted(range(1, len(groups)), key=lambda i: -score(groups[i]))
    return [groups[i] for i in sorted([0, *ranked[: most - 1]])]


def score(group: Group) -> float:
    """The score for ranking: the median over seeds of the mean over all OOD cells (in distribution without any)."""
    found = []
    for means in group.regions:
        ood = [means[name] for name in means if name != "in_distribution"]
        found.append((means.get(OOD) or (ood or [means["in_distribution"]])[0]).share.value)
    return median(found) if found else -1.0


def left_out(groups: Sequence[Group], shown: Sequence[Group]) -> str:
    """A note on the groups left out; "" where all are shown."""
    if len(shown) == len(groups):
        return ""
    return (
        f"These are {len(shown)} of {len(groups)} groups: the first, and those with the highest median over all "
        "OOD cells."
    )


def listed(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Names as a phrase: `listed(["a", "b", "c"])` is "a, b and c"; beyond `most` "a, b and 7 others"."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

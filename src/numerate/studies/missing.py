"""What a comparison of a study has to own up to: runs that failed, and variants of which nothing is left."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numerate.studies.folder import Planned, StudyFolder, is_failed


@dataclass(frozen=True)
class Missing:
    """`failed`: how each run that failed is called, and its error. `absent`: variants that failed in every run that
    ended, so that a comparison does not have them at all."""

    failed: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()


def missing(plan: Iterable[Planned], failed: Mapping[str, Mapping[str, Any]], shown: Collection[str] = ()) -> Missing:
    """What is missing of some runs: `failed` are their records, by run, and `shown` the runs that are compared.

    >>> missing(folder.plan(), running.failed, running.done)
    """
    plan = list(plan)
    present = {one.label for one in plan if one.run in shown}
    lost = [one for one in plan if one.run in failed and one.run not in shown]
    errors = tuple((one.called, str(failed[one.run].get("error") or "no error was written down")) for one in lost)
    return Missing(errors, tuple(dict.fromkeys(one.label for one in lost if one.label not in present)))


def missing_of(folder: StudyFolder, plan: Iterable[Planned], shown: Collection[str]) -> Missing:
    """The same from the folder of a study, of all that it says failed."""
    plan, results = list(plan), folder.results()
    failed = {one.run: results[one.at] for one in plan if one.at in results and is_failed(results[one.at])}
    return missing(plan, failed, shown)

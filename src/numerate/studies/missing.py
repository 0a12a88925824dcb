"""Failed runs that a comparison must report, and variants of which every run failed."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numerate.studies.folder import PlannedRun, StudyFolder, is_failed


@dataclass(frozen=True)
class MissingRuns:
    """`failed`: name and error of each failed run. `missing_variants`: variants of which every finished run failed, so
    that a comparison lacks them."""

    failed: tuple[tuple[str, str], ...] = ()
    missing_variants: tuple[str, ...] = ()


def find_missing(
    plan: Iterable[PlannedRun], failed: Mapping[str, Mapping[str, Any]], shown: Collection[str] = ()
) -> MissingRuns:
    """The missing runs of a plan: `failed` are records by run, and `shown` the runs that are compared.

    `failed` is {"addition_abacus/3f2a9c01b7de": {"error": "the loss is NaN"}}, for example.
    """
    plan = list(plan)
    present_variants = {one.label for one in plan if one.run in shown}
    failed_runs = [one for one in plan if one.run in failed and one.run not in shown]
    errors = tuple(
        (one.display_name, str(failed[one.run].get("error") or "no error was recorded")) for one in failed_runs
    )
    return MissingRuns(
        errors, tuple(dict.fromkeys(one.label for one in failed_runs if one.label not in present_variants))
    )


def find_missing_in_study(folder: StudyFolder, plan: Iterable[PlannedRun], shown: Collection[str]) -> MissingRuns:
    """Like `find_missing`, with the failed runs of a study's folder."""
    plan, results = list(plan), folder.results()
    failed = {
        one.run: results[one.result_key]
        for one in plan
        if one.result_key in results and is_failed(results[one.result_key])
    }
    return find_missing(plan, failed, shown)

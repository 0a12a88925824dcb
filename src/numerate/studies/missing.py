"""Failed runs that a comparison must report, and variants of which every run failed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from numerate.studies.folder import PlannedRun, StudyFolder


@dataclass(frozen=True)
class MissingRuns:
    """`failed`: name and error of each failed run. `missing_variants`: variants of which every finished run failed, so
    that a comparison lacks them."""

    failed: tuple[tuple[str, str], ...] = ()
    missing_variants: tuple[str, ...] = ()


def find_missing_in_study(folder: StudyFolder, plan: Sequence[PlannedRun], shown: Collection[str]) -> MissingRuns:
    """The missing runs of a plan; `shown` are the runs that are compared."""
    records = folder.failed_results(plan)
    failed_runs = [planned for planned in plan if planned.run in records and planned.run not in shown]
    present_variants = {planned.label for planned in plan if planned.run in shown}
    missing_variants = [planned.label for planned in failed_runs if planned.label not in present_variants]
    errors = [
        (planned.display_name, str(records[planned.run].get("error") or "no error was recorded"))
        for planned in failed_runs
    ]
    return MissingRuns(tuple(errors), tuple(dict.fromkeys(missing_variants)))

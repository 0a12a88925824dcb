"""Running a study: the remaining runs are given to workers, postponed, taken over, and counted."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError, pluralize
from numerate.executors.executor import Executor, Failure, ItemOutcome, sleep_with_ticks
from numerate.executors.worker import unique_worker_name
from numerate.studies.board import MAX_VERBOSE_RUNS, StudyProgress
from numerate.studies.folder import PlannedRun, StudyFolder, is_failed
from numerate.studies.state import COMMAND_PHASE, WorkerStateFile, has_ended
from numerate.studies.work import RunWork, failed_record
from numerate.training import checkpoint, disk, provenance
from numerate.training.lock import Lock
from numerate.training.stopping import Stop

_RETRY_SECONDS = 0.5  # seconds until runs that other processes train are checked again


@dataclass(frozen=True)
class RunOutcome:
    """How a run of a study ended: the `path` of its folder, or its `error` and `traceback`; `exit_status` is that of
    the process.

    `failure_kind` is the kind of its `Failure`. `is_resumable` runs were stopped or never started, or their worker
    died: the same command resumes them.
    """

    label: str
    path: Path | None
    error: str | None = None
    exit_status: int = 0
    traceback: str | None = None
    is_resumable: bool = False
    failure_kind: str | None = None


class StudyRunner:
    """The runs that a command requests, and their state: `done_results`, `failed_results` (not retried),
    `remaining`."""

    def __init__(
        self,
        folder: StudyFolder,
        plan: Sequence[PlannedRun],
        *,
        executor: Executor,
        retry: bool = False,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.plan, self.executor = folder, plan, executor
        self.on_message = on_message
        self._earlier_results = dict(folder.results())
        self.done_results: dict[str, Mapping[str, Any]] = {**folder.done_results(plan)}
        failed: dict[str, Mapping[str, Any]] = {**folder.failed_results(plan)}
        self._retried = [planned for planned in plan if planned.run in failed] if retry else []
        self.failed_results = {} if retry else failed
        ended_runs = {*self.done_results, *self.failed_results}
        self.remaining = [planned for planned in plan if planned.run not in ended_runs]
        self.work = RunWork(
            str(folder.path.absolute()), provenance.command_line(), os.getcwd(), len(plan) <= MAX_VERBOSE_RUNS
        )
        self._worker_name = f"command-{unique_worker_name()}"
        self._stop = Stop()
        self._disk_full_message: str | None = None
        self._interrupted: dict[str, Failure] = {}
        self._busy_runs: dict[str, PlannedRun] = {}  # other processes train them

    @property
    def stopped(self) -> bool:
        """Whether a signal or a full disk stopped it before all runs were done."""
        return self._stop.requested and bool(self._interrupted)

    def items(self) -> list[PlannedRun]:
        """The remaining runs in the order in which they are started; those whose worker died come last."""

        def has_died(planned: PlannedRun) -> bool:
            return bool(self._earlier_results.get(planned.result_key, {}).get("failure") == "died")

        return sorted(order_runs(self.remaining), key=has_died)

    def run(self) -> list[RunOutcome]:
        """Executes the remaining runs, and returns how each run of the plan ended, in the order of the plan."""
        self._remove_dead_states()
        if not self.remaining:
            return [self._outcome(planned) for planned in self.plan]
        disk.make_folder(self.folder.path / "states")
        shown_runs = [planned for planned in self.plan if planned.run not in self.failed_results]
        state_file = WorkerStateFile(self.folder.path / "states", self._worker_name)
        with (
            self._stop,
            state_file.publish_temporarily(run=None, phase=COMMAND_PHASE),
            StudyProgress(self.folder, shown_runs, self.on_message) as progress,
        ):
            self._save_results(
                [failed_record(one, Failure("not started", ""), self._worker_name, 0.0) for one in self._retried],
                progress,
            )
            items = self.items()
            while not self._stop.requested and (items or self._busy_runs):
                if items:
                    self._run_items(items, progress)
                items = self._released_items(progress)
            for run in self._busy_runs:
                self._interrupted[run] = Failure("not started", "another process is training it", 130)
            self._remove_dead_states()
        return [self._outcome(planned) for planned in self.plan]

    def _run_items(self, items: Sequence[PlannedRun], progress: StudyProgress) -> None:
        """Gives runs to workers and handles their results."""
        for outcome in self.executor.run(
            self.work, items, folder=self.folder.path, stop=self._stop, on_tick=progress.update
        ):
            planned, failure = items[outcome.index], outcome.failure
            if failure is None:
                progress.print_worker_messages(outcome.worker, outcome.result)
            if (record := self._final_record(planned, self.folder.results(outcome.worker))) is not None:
                self._finish(planned, record, progress)
            elif failure is not None and failure.kind in ("stopped", "not started", "disk full"):
                self._interrupted[planned.run] = failure
            elif (record := self._final_record(planned, self.folder.results())) is not None:
                self._finish(planned, record, progress)
            else:
                self._handle_failure(planned, outcome, progress)
            if failure is not None and failure.kind == "disk full":
                self._stop_disk_full(failure.text, progress)

    def _final_record(
        self, planned: PlannedRun, results: Mapping[tuple[str, str], Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """The record of how a run ended since this command was started, by whichever worker."""
        record = results.get(planned.result_key)
        if record is None or record is self._earlier_results.get(planned.result_key):
            return None
        return record if record["status"] == "done" or is_failed(record) else None

    def _finish(self, planned: PlannedRun, record: Mapping[str, Any], progress: StudyProgress) -> None:
        self._busy_runs.pop(planned.run, None)
        (self.done_results if record["status"] == "done" else self.failed_results)[planned.run] = record
        progress.print_end(planned, record)

    def _handle_failure(self, planned: PlannedRun, outcome: ItemOutcome, progress: StudyProgress) -> None:
        """Handles a run without a record: its worker died, was killed, or is out of memory, or another process trains
        it."""
        text = f"its worker finished, but {self.folder.path / 'results'} lacks its record; all workers must share it"
        failure = outcome.failure or Failure("operational error", text)
        if failure.kind == "busy":
            self._busy_runs[planned.run] = planned
            return
        record = failed_record(planned, failure, outcome.worker or self._worker_name, outcome.seconds)
        if failure.kind == "died":
            record |= self._death_count(planned)
        self._save_results([record], progress)
        self._finish(planned, record, progress)

    def _death_count(self, planned: PlannedRun) -> dict[str, int]:
        """How often in a row its worker died at the current checkpoint."""
        last_step = checkpoint.last_step(self.folder.runs_dir / planned.run / "checkpoints")
        old_result = self.folder.results().get(planned.result_key, {})
        is_repeated = old_result.get("failure") == "died" and old_result.get("last_step") == last_step
        return {"last_step": last_step, "worker_deaths": 1 + (old_result.get("worker_deaths", 0) if is_repeated else 0)}

    def _save_results(self, records: Sequence[Mapping[str, Any]], progress: StudyProgress) -> None:
        try:
            self.folder.add_results(self._worker_name, records)
        except (OperationalError, UserError) as error:
            if not disk.is_full(error):
                raise
            self._stop_disk_full(str(error), progress)

    def _stop_disk_full(self, text: str, progress: StudyProgress) -> None:
        """Prints once that the disk is full, and starts no more runs."""
        if self._disk_full_message is None:
            self._disk_full_message = text
            progress.print_message(text)
            self._stop.request()

    def _released_items(self, progress: StudyProgress) -> list[PlannedRun]:
        """The runs that no other process trains any more; waits a moment if there are none. Results of the other
        processes are taken over."""
        results = self.folder.results()
        items: list[PlannedRun] = []
        for planned in list(self._busy_runs.values()):
            if (record := self._final_record(planned, results)) is not None:
                self._finish(planned, record, progress)
            elif not Lock(self.folder.runs_dir / planned.run / "lock").is_held():
                items.append(planned)
        if not items and self._busy_runs:
            count = pluralize(len(self._busy_runs), "run")
            progress.print_once(f"waiting for {count} that other processes are training")
            sleep_with_ticks(_RETRY_SECONDS, self._stop, progress.update)
        return items

    # Outcomes -------------------------------------------------------------------------------------------------------

    def _outcome(self, planned: PlannedRun) -> RunOutcome:
        if planned.run in self.done_results:
            return RunOutcome(planned.display_name, self.folder.runs_dir / planned.run)
        if (record := self.failed_results.get(planned.run)) is not None:
            kind, text = str(record.get("failure")), str(record.get("error"))
            status = 2 if kind == "user error" else 1
            is_resumable = not is_failed(record)
            return RunOutcome(planned.display_name, None, text, status, record.get("traceback"), is_resumable, kind)
        failure = self._interrupted.get(planned.run, Failure("not started", "not started", 130))
        text, status = failure.text, self._stop.status or failure.status
        if self._disk_full_message is not None and failure.kind in ("stopped", "not started"):
            text, status = f"{failure.kind}, since the disk is full", 1
        if not any(phrase in text for phrase in ("same command", "keeps running")):
            text += "; the same command resumes"
        return RunOutcome(planned.display_name, None, text, status, is_resumable=True, failure_kind=failure.kind)

    def content_hash(self, *other_content: Any) -> str:
        """A hash that changes whenever the content of the report would change."""
        sizes = []
        for run in sorted(self.done_results):
            with suppress(OSError):
                file_status = os.stat(self.folder.runs_dir / run / "evaluation.jsonl")
                sizes.append([run, file_status.st_size, file_status.st_mtime_ns])
        return hashlib.sha256(json.dumps([sizes, *other_content], default=dict).encode()).hexdigest()[:16]

    def _remove_dead_states(self) -> None:
        """Removes the state files of dead workers on this machine."""
        for state in self.folder.states():
            if has_ended(state):
                with suppress(OSError):
                    (self.folder.path / "states" / f"{state['worker']}.json").unlink()


def order_runs(plan: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Runs in the order in which they are started: the first seed of every variant, then the second, ...; within a seed
    the most expensive first, so that all workers end at about the same time."""
    return sorted(plan, key=lambda planned: (planned.seed, -estimated_cost(planned.tree)))


def estimated_cost(tree: Mapping[str, Any]) -> float:
    """A rough estimate of how long a run takes relative to others of its study, from its settings: the examples, and
    the width, depth and loops of its model, if it has such settings."""
    training, model = tree.get("training", {}), tree.get("model", {})
    steps, batch = training.get("steps"), training.get("batch_size") or 1
    examples = training.get("examples") or (steps or 1) * batch
    backbone = model.get("backbone") if isinstance(model.get("backbone"), Mapping) else {}
    width = model.get("hidden_size")
    for factor in (width, width, backbone.get("num_layers"), backbone.get("num_loops")):
        if isinstance(factor, int | float) and not isinstance(factor, bool):
            examples *= factor
    return float(examples)

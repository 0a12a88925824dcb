"""Making the runs of a study: given to an engine, postponed while another command is at them, counted and shown."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError, pluralize
from numerate.runs.end import End, Ending, clear_end, read_end
from numerate.runs.engines.engine import Engine, Failure
from numerate.runs.item import MakeRun, RunItem
from numerate.runs.status import RunState, StudyStatus, read_running, read_states
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.training import provenance
from numerate.training.lock import LockedError
from numerate.training.progress import ProgressBar
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stop

MAX_VERBOSE_RUNS = 20
"""Up to this many runs, all messages are shown; above it only warnings and failures. A warning is shown once."""

_RETRY_SECONDS = 0.5  # seconds until runs that other processes are at are looked at again
_MAX_TIME_FRACTION = 0.05  # of the time at most for looking at the runs
_MAX_MESSAGES = 20  # warnings, and failures, that are shown of a large study


@dataclass(frozen=True)
class RunOutcome:
    """How a run of a study ended: the `path` of its folder, or its `error` and `traceback`; `exit_status` is that of
    the process.

    `failure_kind` is the kind of its `Failure`. `is_resumable` runs were stopped or never started: the same command
    resumes them.
    """

    label: str
    path: Path | None
    error: str | None = None
    exit_status: int = 0
    traceback: str | None = None
    is_resumable: bool = False
    failure_kind: str | None = None


class StudyRunner:
    """The runs that a command requests, with the recipes of the `trees`, and the `ends` of those that have one: failed
    ones too, unless `retry` makes them again."""

    def __init__(
        self,
        folder: StudyFolder,
        plan: Sequence[StudyRun],
        trees: Mapping[str, Mapping[str, Any]],
        *,
        engine: Engine,
        retry: bool = False,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.plan, self.trees, self.engine, self.on_message = folder, plan, trees, engine, on_message
        states = read_states(folder.runs_dir, plan)
        self._retried = [one.run for one in states if retry and one.status == "failed"]
        self.ends = {one.run.run: one.end for one in states if one.end and not (retry and one.status == "failed")}
        self.function = MakeRun(
            str(folder.runs_dir.absolute()), provenance.command_line(), os.getcwd(), len(plan) <= MAX_VERBOSE_RUNS
        )
        self._stop = Stop()
        self._disk_full_message: str | None = None
        self._interrupted: dict[str, Failure] = {}

    @property
    def remaining(self) -> list[StudyRun]:
        """The runs that are neither done nor failed, in the order in which they are started: the first seed of every
        variant, then the second, ...; within a seed the most expensive first, so that all workers end together."""
        remaining = (one for one in self.plan if one.run not in self.ends)
        return sorted(remaining, key=lambda one: (one.seed, -estimated_cost(self.trees[one.run])))

    @property
    def done(self) -> list[StudyRun]:
        """The runs that are done."""
        return [one for one in self.plan if one.run in self.ends and self.ends[one.run].status == "done"]

    @property
    def stopped(self) -> bool:
        """Whether a signal or a full disk stopped it before all runs were done."""
        return self._stop.requested and bool(self._interrupted)

    def item(self, run: StudyRun) -> RunItem:
        return RunItem(run.run, run.key, run.display_name, self.trees[run.run])

    def run(self) -> list[RunOutcome]:
        """Makes the remaining runs, and returns how each run of the plan ended, in the order of the plan."""
        for one in self._retried:
            with suppress(LockedError):  # another command retries it
                clear_end(RunFolder(self.folder.runs_dir / one.run), one.key)
        if waiting := self.remaining:
            shown = [one for one in self.plan if one.run not in self.ends or self.ends[one.run].status == "done"]
            steps = {one.run: self.trees[one.run].get("training", {}).get("steps") or 0 for one in waiting}
            with self._stop, StudyProgress(self.folder, shown, self.ends, steps, self.on_message) as progress:
                while waiting and not self._stop.requested:
                    released, busy = self._release(waiting, progress)
                    waiting = [*busy, *self._make(released, progress)]
                for one in waiting:
                    self._interrupted.setdefault(one.run, Failure("not started", "another process is training it", 130))
        return [self._outcome(one) for one in self.plan]

    def _make(self, runs: Sequence[StudyRun], progress: "StudyProgress") -> list[StudyRun]:
        """Gives runs to workers; returns those that other processes are at."""
        if not runs:
            return []
        busy, items = [], [self.item(one) for one in runs]
        for outcome in self.engine.map(
            self.function, items, folder=self.folder.path, stop=self._stop, on_tick=progress.update
        ):
            run, failure = runs[outcome.index], outcome.failure
            kind = None if failure is None else failure.kind
            progress.print_run_messages([text for text in outcome.result or () if isinstance(text, str)])
            end = read_end(self.folder.runs_dir / run.run)
            if end is None or not (end.is_done(run.key) or end.is_failed(run.key)):
                is_own = failure is None or not failure.is_transient or kind == "died"
                end = self._write_failure(run, failure) if is_own else None
            if end is not None:
                self._finish(run, end, progress)
            elif failure is not None and kind in ("stopped", "not started", "disk full"):
                self._interrupted[run.run] = failure
            else:
                busy.append(run)
            if failure is not None and kind == "disk full":
                self._stop_disk_full(failure.text, progress)
        return busy

    def _write_failure(self, run: StudyRun, failure: Failure | None) -> End | None:
        """Writes that a run failed whose worker could not: it died, took too long, or had no memory. None if another
        process is at the run by now."""
        folder = RunFolder(self.folder.runs_dir / run.run)
        text = f"its worker finished, but {folder.path} does not say so; all workers must share this folder"
        failure = failure or Failure("operational error", text)
        failure = replace(failure, text=failure.text.removesuffix("; the same command resumes"))
        try:
            return Ending(folder, run.key).fail(failure)
        except LockedError:
            return None
        except (OperationalError, UserError):  # a full disk, a folder of somebody else: it is said by this command
            return End.now("failed", key=run.key, seconds=0.0, kind=failure.kind, error=failure.text)

    def _finish(self, run: StudyRun, end: End, progress: "StudyProgress") -> None:
        self.ends[run.run] = end
        progress.print_end(run, end)

    def _stop_disk_full(self, text: str, progress: "StudyProgress") -> None:
        """Prints once that the disk is full, and starts no more runs."""
        if self._disk_full_message is None:
            self._disk_full_message = text
            progress.print_message(text)
            self._stop.request()

    def _release(self, waiting: Sequence[StudyRun], progress: "StudyProgress") -> tuple[list[StudyRun], list[StudyRun]]:
        """The runs that no other process is at, and the others; waits a moment if there are only those. Ends that
        other processes wrote are taken over."""
        states = read_states(self.folder.runs_dir, waiting)
        for state in states:
            if state.end is not None:
                self._finish(state.run, state.end, progress)
        released, busy = ([one.run for one in states if one.status == status] for status in ("left", "running"))
        if busy and not released:
            progress.print_once(f"waiting for {pluralize(len(busy), 'run')} that other processes are training")
            time.sleep(_RETRY_SECONDS)
            progress.update()
        return released, busy

    def _outcome(self, run: StudyRun) -> RunOutcome:
        if (end := self.ends.get(run.run)) is not None and end.status == "done":
            return RunOutcome(run.display_name, self.folder.runs_dir / run.run)
        if end is not None:
            status, error = 2 if end.kind == "user error" else 1, end.error or "no error was recorded"
            return RunOutcome(run.display_name, None, error, status, end.traceback, failure_kind=end.kind)
        failure = self._interrupted.get(run.run, Failure("not started", "not started", 130))
        text, status = failure.text, self._stop.status or failure.status
        if self._disk_full_message is not None and failure.kind in ("stopped", "not started"):
            text, status = f"{failure.kind}, since the disk is full", 1
        if not any(phrase in text for phrase in ("same command", "keeps running")):
            text += "; the same command resumes"
        return RunOutcome(run.display_name, None, text, status, is_resumable=True, failure_kind=failure.kind)


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


class StudyProgress:
    """A progress bar over the runs of a command, in whichever process they are made: it is read from their folders.

    Messages are also written to the study's `log.txt`, and passed to `on_message`.
    """

    def __init__(
        self,
        folder: StudyFolder,
        runs: Sequence[StudyRun],
        ends: Mapping[str, End],
        steps: Mapping[str, int],
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.runs, self.ends, self.on_message = folder, runs, ends, on_message
        self.verbose = len(runs) <= MAX_VERBOSE_RUNS
        self._printed: dict[str, None] = {}
        self._steps = dict(steps)
        self._num_failures = 0
        self._status: StudyStatus | None = None
        self._next_update = 0.0
        self.bar = ProgressBar(
            sum(steps.values()),
            label=folder.title,
            log_path=folder.path / "log.txt",
            estimate_seconds_left=lambda: self._status.seconds_left if self._status is not None else None,
        )

    def __enter__(self) -> "StudyProgress":
        self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._next_update = 0.0
            self.update()
        self.bar.__exit__(*error)

    def print_message(self, text: str) -> None:
        """Prints a line above the bar and in the log."""
        self.bar.print_line(text)
        if self.on_message is not None:
            self.on_message(text)

    def print_once(self, text: str) -> None:
        """Prints a line, unless it was printed before."""
        if text not in self._printed:
            self._printed[text] = None
            self.print_message(text)

    def print_run_messages(self, messages: Sequence[str]) -> None:
        """Prints the messages of a run; a warning that other runs have had, too, not again."""
        for text in messages:
            if self.verbose and not text.startswith("warning: "):
                self.print_message(text)
            elif (pattern := _without_numbers_and_paths(text)) not in self._printed:
                self._printed[pattern] = None
                if self.verbose or len(self._printed) <= _MAX_MESSAGES:
                    self.print_message(text)

    def print_end(self, run: StudyRun, end: End) -> None:
        """Prints how a run ended."""
        if end.status == "done":
            if self.verbose:
                self.print_message(f"{run.display_name}: done")
            return
        self._num_failures += 1
        if self.verbose or self._num_failures <= _MAX_MESSAGES:
            self.print_message(f"{run.display_name}: {end.error}")
        elif self._num_failures == _MAX_MESSAGES + 1:
            self.print_message("further failures are listed by `numerate status`")

    def update(self) -> None:
        """Looks at the runs and draws, unless that was done just before."""
        now = time.monotonic()
        if now < self._next_update:
            return
        ended = [RunState(one, "done", self.ends[one.run]) for one in self.runs if one.run in self.ends]
        states = read_states(self.folder.runs_dir, [one for one in self.runs if one.run not in self.ends])
        running = [read_running(self.folder.runs_dir, state.run) for state in states if state.status == "running"]
        self._status = StudyStatus(self.folder, "", [*ended, *states], running)
        self._draw(self._status)
        self._next_update = time.monotonic() + (time.monotonic() - now) / _MAX_TIME_FRACTION

    def _draw(self, status: StudyStatus) -> None:
        self._steps |= {one.run.run: one.steps for one in status.running if one.run.run in self._steps and one.steps}
        total, steps_left = (
            sum(self._steps.values()),
            {run: self._steps[run] for run in self._steps.keys() - self.ends.keys()},
        )
        steps_left |= {one.run.run: steps_left[one.run.run] - one.step for one in status.running}
        if total != self.bar.total:
            self.bar.set_total(total)
        num_ended = sum(state.end is not None for state in status.states)
        parts = [f"{num_ended:,}/{len(status.states):,} runs"]
        parts += [f"{self._num_failures:,} failed"] if self._num_failures else []
        if self.verbose:
            parts += [f"{one.run.label} {one.loss:.2g}" for one in status.running[:3] if one.loss is not None]
        else:
            parts += [f"{len(status.running)} running"]
        self.bar.update(total - sum(steps_left.values()), ", ".join(parts))


def _without_numbers_and_paths(text: str) -> str:
    """A warning without the words that differ between runs: numbers and paths.

    >>> _without_numbers_and_paths("model.positions.0: position 18 and later ones do not occur in training (now 0.5)")
    'model.positions.0: position and later ones do not occur in training (now'
    """
    return " ".join(word for word in text.split() if not (word.lstrip("(-+")[:1].isdigit() or "/" in word))

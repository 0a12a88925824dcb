"""Making the runs of a study: given to an engine, waited for while another command is at them, counted and shown."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

from numerate.errors import OperationalError, UserError, pluralize
from numerate.runs.end import END_FILE, End, clear_end
from numerate.runs.engines.engine import Engine, Failure, Outcome
from numerate.runs.engines.failures import stopped_failure
from numerate.runs.item import MakeRun
from numerate.runs.status import RunState, StudyStatus, read_state, read_states
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.training import provenance
from numerate.training.lock import LockedError
from numerate.training.progress import ProgressBar
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stop

_MAX_NAMED = 50  # runs of a study of which each is named when it is done; of more, those that failed
_RETRY_SECONDS = 0.5  # seconds until runs that other processes are at are looked at again
_MAX_TIME_FRACTION = 0.05  # of the time at most for looking at the runs


class StudyRunner:
    """The runs that a command requests, and how each stands: with `retry` failed ones are left, too.

    Messages are shown above a progress bar, and written to the study's `log.txt`.
    """

    def __init__(self, folder: StudyFolder, plan: Sequence[StudyRun], engine: Engine, retry: bool = False) -> None:
        self.folder, self.engine, self.stop = folder, engine, Stop()
        self.states = {state.run.run: state for state in read_states(folder.runs_dir, plan)}
        self._retried = [state for state in self.states.values() if retry and state.status == "failed"]
        self.states |= {state.run.run: RunState(state.run, state.path, "left") for state in self._retried}
        self.function = MakeRun(str(folder.runs_dir.absolute()), provenance.command_line(), os.getcwd())
        self._status = StudyStatus(folder, list(self.states.values()))
        self._disk_full: Failure | None = None
        self._printed: set[str] = set()
        self._next_update = 0.0

    def unended(self) -> list[RunState]:
        """The runs that have not ended, and that the engine did not return unfinished."""
        return [state for state in self.states.values() if state.end is None and state.failure is None]

    def remaining(self) -> list[StudyRun]:
        """The runs to give to the engine, in this order: the first seed of every variant, then the second, ...; within
        a seed the most expensive first, so that all workers end together."""
        left = [state.run for state in self.unended() if state.status == "left"]
        return sorted(left, key=lambda one: (one.seed, -estimated_cost(one.recipe_tree())))

    def run(self) -> list[RunState]:
        """Makes the remaining runs, and returns how each run of the plan stands, in the order of the plan. Raises
        `OperationalError` if the disk is full."""
        for state in self._retried:
            with suppress(LockedError):  # another command retries it
                clear_end(RunFolder(state.path))
        if self.unended():
            self.bar = ProgressBar(
                len(self.states),
                label=self.folder.title,
                log_path=self.folder.path / "log.txt",
                unit="run",
                estimate_seconds_left=lambda: self._status.seconds_left,
            )
            with self.stop, self.bar:
                while (unended := self.unended()) and not self.stop.requested:
                    self._update()
                    self._make(self.remaining())
                    if len(self.unended()) == len(unended) and not self.stop.requested:
                        busy = pluralize(len(unended), "run")
                        self._print_once(f"waiting for {busy} that other processes are training")
                        time.sleep(_RETRY_SECONDS)
                self._next_update = 0.0
                self._update()
        if self._disk_full is not None:
            raise self._disk_full.to_error()
        states = list(self.states.values())
        if self.stop.requested:  # its exit status is that of the command, whatever workers say
            return [one if one.end else replace(one, failure=stopped_failure(self.stop)) for one in states]
        return states

    def _make(self, runs: Sequence[StudyRun]) -> None:
        if runs:
            folder, stop = self.folder.path, self.stop
            for outcome in self.engine.map(self.function, runs, folder=folder, stop=stop, on_tick=self._update):
                self._take(runs[outcome.index], outcome)

    def _take(self, run: StudyRun, outcome: Outcome) -> None:
        """Takes over how a run ended, or why it did not. A run that another process is at stays as it is."""
        for text in outcome.result or ():
            self._print_once(text)
        state, failure = read_state(self.folder.runs_dir, run), outcome.failure
        if failure is None and state.status == "left":
            text = f"its worker finished, but {state.path} does not say so; all workers must share this folder"
            failure = Failure("operational error", text)
            if (state.path / END_FILE).exists():  # it reached `training.minutes`
                failure = Failure("stopped", "not done yet; the same command resumes", 0)
        if state.end is None and failure is not None and failure.kind != "busy":
            state = replace(state, failure=failure) if failure.is_transient else self._fail(state, failure)
            if failure.kind == "disk full":
                self._disk_full = failure
                self.stop.request()
            elif failure.kind == "stopped" and not self.stop.requested:
                self.bar.print_line(f"{run.display_name}: {failure.text}")
        self._set_state(state)

    def _fail(self, state: RunState, failure: Failure) -> RunState:
        """Writes that a run failed, unless its job on Slurm did."""
        try:
            self.function.fail(state.run, failure)
        except LockedError:
            return state
        except (OperationalError, UserError):  # a full disk, a folder of somebody else: it is said by this command
            end = End.now("failed", key=state.run.key, seconds=0.0, kind=failure.kind, error=failure.text)
            return replace(state, status="failed", end=end)
        return read_state(self.folder.runs_dir, state.run)

    def _set_state(self, state: RunState) -> None:
        is_shown = state.status != "done" or len(self.states) <= _MAX_NAMED
        if is_shown and state.end is not None and self.states[state.run.run].end is None:
            self.bar.print_line(f"{state.run.display_name}: {state.error or 'done'}")
        self.states[state.run.run] = state

    def _print_once(self, text: str) -> None:
        """Prints a line, unless one was printed that differs in words with numbers and paths alone."""
        pattern = re.sub(r"(?<!\S)[-+(]*\d\S*|\S*/\S*", "", text)
        if pattern not in self._printed:
            self._printed.add(pattern)
            self.bar.print_line(text)

    def _update(self) -> None:
        """Looks at the runs and draws the bar, unless that was done just before."""
        start_time = time.monotonic()
        if start_time < self._next_update:
            return
        for state in self.unended():
            self._set_state(read_state(self.folder.runs_dir, state.run))
        self._status = status = StudyStatus(self.folder, list(self.states.values()))
        failed = [f"{status.count('failed'):,} failed"] if status.count("failed") else []
        shown = [f"{one.run.label} {one.loss:.2g}" for one in status.running[:3] if one.loss is not None]
        self.bar.update(status.count("done") + status.count("failed"), ", ".join([*failed, *shown]))
        now = time.monotonic()
        self._next_update = now + (now - start_time) / _MAX_TIME_FRACTION


def estimated_cost(tree: Mapping[str, Any]) -> float:
    """A rough estimate of how long a run takes relative to others of its study: its examples, by the width, depth and
    loops of its model, if it has such settings."""
    training, model = tree.get("training") or {}, tree.get("model") or {}
    backbone = model["backbone"] if isinstance(model.get("backbone"), Mapping) else {}
    examples = training.get("examples") or (training.get("steps") or 1) * (training.get("batch_size") or 1)
    width = model.get("hidden_size")
    sizes = [float(one or 1) for one in (width, width, backbone.get("num_layers"), backbone.get("num_loops"))]
    return float(examples) * prod(sizes)

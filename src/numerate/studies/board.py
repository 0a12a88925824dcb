"""Progress of a study: one progress bar for all runs, read from the state files of workers."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numerate.studies.folder import PlannedRun, StudyFolder
from numerate.studies.state import has_ended, is_lost
from numerate.studies.status import RunDurations, runs_of, time_left
from numerate.training.progress import ProgressBar

MAX_VERBOSE_RUNS = 20
"""Up to this many runs, all messages are shown; above it only warnings and failures."""

_MIN_INTERVAL = 0.5  # seconds between two looks at the states, and more where a look takes long
_MAX_TIME_FRACTION = 0.05  # of the time at most for looking
_MAX_MESSAGES = 20  # warnings, and failures, that are shown of a large study


class StudyProgress:
    """A progress bar over the runs of a command, in whichever process they run: it is read from files.

    Messages are also written to the study's `log.txt`, and passed to `on_message`.
    """

    def __init__(
        self,
        folder: StudyFolder,
        plan: Sequence[PlannedRun],
        done: Mapping[str, Mapping[str, Any]],
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.on_message = folder, on_message
        self.verbose = len(plan) <= MAX_VERBOSE_RUNS
        self._unfinished = {planned.run: planned for planned in plan if planned.run not in done}
        self._steps = {run: int(_planned_steps(planned) or 0) for run, planned in self._unfinished.items()}
        self._current_step = dict.fromkeys(self._unfinished, 0)
        self._num_finished, self._num_failed, self._total = len(done), 0, len(plan)
        self._durations = RunDurations((planned.label, done[planned.run]) for planned in plan if planned.run in done)
        self._running: list[dict[str, Any]] = []
        self._last_message_number = {state["worker"]: _last_message(state) for state in folder.states()}
        self._printed: dict[str, None] = {}
        self._last_update = (0.0, 0.0)
        self.progress = ProgressBar(
            sum(self._steps.values()),
            label=folder.title,
            log_path=folder.path / "log.txt",
            estimate_seconds_left=self._seconds_left,
        )

    def __enter__(self) -> "StudyProgress":
        self.progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._running = []
        self._draw()
        self.progress.__exit__(*error)

    def print_message(self, text: str) -> None:
        """Prints a line above the bar and in the log."""
        self.progress.print_line(text)
        if self.on_message is not None:
            self.on_message(text)

    def print_once(self, text: str) -> None:
        """Prints a line, unless it was printed before."""
        if text not in self._printed:
            self._printed[text] = None
            self.print_message(text)

    def update(self) -> None:
        """Reads the states of the workers, unless that was done just before."""
        now, (last_update, duration) = time.monotonic(), self._last_update
        if now - last_update < max(_MIN_INTERVAL - 0.1, duration / _MAX_TIME_FRACTION):
            return
        self._running = []
        for state in self.folder.states():
            runs = [run for run in runs_of(state) if run in self._unfinished]
            if not runs or has_ended(state) or is_lost(state):
                continue
            self._running.append(state)
            self.print_worker_messages(state["worker"], state.get("messages", ()))
            for run in runs:
                self._current_step[run] = int(state.get("step") or 0)
                self._steps[run] = int(state.get("steps") or self._steps[run])
        self._draw()
        self._last_update = (time.monotonic(), time.monotonic() - now)

    def print_worker_messages(self, worker: str, messages: Sequence[Sequence[Any]]) -> None:
        """Prints the messages of a worker, each once."""
        for number, text in messages:
            if number > self._last_message_number.get(worker, 0):
                self._last_message_number[worker] = number
                if self.verbose:
                    self.print_message(text)
                elif (pattern := _without_numbers_and_paths(text)) not in self._printed:
                    self._printed[pattern] = None
                    if len(self._printed) <= _MAX_MESSAGES:
                        self.print_message(text)

    def finish_run(self, planned: PlannedRun, record: Mapping[str, Any]) -> None:
        """Records how a run ended."""
        if self._unfinished.pop(planned.run, None) is None:
            return
        self._num_finished += 1
        self._current_step[planned.run] = self._steps[planned.run]
        if record["status"] == "done":
            self._durations.add(planned.label, record)
            if self.verbose:
                self.print_message(f"{planned.display_name}: done")
        else:
            self._num_failed += 1
            if self.verbose or self._num_failed <= _MAX_MESSAGES:
                self.print_message(f"{planned.display_name}: {record.get('error')}")
            elif self._num_failed == _MAX_MESSAGES + 1:
                self.print_message("further failures are listed by `numerate status`")

    def _draw(self) -> None:
        total = sum(self._steps.values())
        if total != self.progress.total:
            self.progress.set_total(total)
        parts = [f"{self._num_finished:,}/{self._total:,} runs"]
        parts += [f"{self._num_failed:,} failed"] if self._num_failed else []
        if self.verbose:
            losses = [(state["label"], state["loss"]) for state in self._running if state.get("loss") is not None]
            parts += [f"{label} {loss:.2g}" for label, loss in losses[:3]]
        else:
            parts += [f"{len(self._running)} running"]
        self.progress.update(sum(self._current_step.values()), ", ".join(parts))

    def _seconds_left(self) -> float | None:
        running_runs = {run for state in self._running for run in runs_of(state)}
        waiting = [planned.label for run, planned in self._unfinished.items() if run not in running_runs]
        return time_left(waiting, self._running, self._durations.means())


def _planned_steps(planned: PlannedRun) -> Any:
    return planned.tree.get("training", {}).get("steps")


def _last_message(state: Mapping[str, Any]) -> int:
    return max((int(number) for number, _ in state.get("messages", ())), default=0)


def _without_numbers_and_paths(text: str) -> str:
    """A warning without the words that differ between runs: numbers and paths."""
    return " ".join(word for word in text.split() if not any(letter.isdigit() or letter == "/" for letter in word))

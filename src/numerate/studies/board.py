"""Progress of a study: one progress bar for all runs, drawn from the status of its folder."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numerate.studies.folder import PlannedRun, StudyFolder
from numerate.studies.status import StudyStatus, study_status
from numerate.training.progress import ProgressBar

MAX_VERBOSE_RUNS = 20
"""Up to this many runs, all messages are shown; above it only warnings and failures. A warning is shown once."""

_MIN_INTERVAL = 0.4  # seconds between two looks at the folder, and more where a look takes long
_MAX_TIME_FRACTION = 0.05  # of the time at most for looking
_MAX_MESSAGES = 20  # warnings, and failures, that are shown of a large study


class StudyProgress:
    """A progress bar over the runs of a command, in whichever process they run: it is read from files.

    Messages are also written to the study's `log.txt`, and passed to `on_message`.
    """

    def __init__(
        self, folder: StudyFolder, plan: Sequence[PlannedRun], on_message: Callable[[str], None] | None = None
    ) -> None:
        self.folder, self.plan, self.on_message = folder, plan, on_message
        self.verbose = len(plan) <= MAX_VERBOSE_RUNS
        self._last_message_number = {state["worker"]: _last_message(state) for state in folder.states()}
        self._printed: dict[str, None] = {}
        self._num_failures = 0
        self._status = study_status(folder, plan)
        done = folder.done_results(plan)
        self._steps = {one.run: one.num_steps or 0 for one in plan if one.run not in done}
        self._last_update = (0.0, 0.0)
        self.progress = ProgressBar(
            sum(self._steps.values()),
            label=folder.title,
            log_path=folder.path / "log.txt",
            estimate_seconds_left=lambda: self._status.seconds_left,
        )

    def __enter__(self) -> "StudyProgress":
        self.progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._last_update = (0.0, 0.0)
            self.update()
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
        """Reads the status, unless that was done just before."""
        now, (last_update, duration) = time.monotonic(), self._last_update
        if now - last_update < max(_MIN_INTERVAL, duration / _MAX_TIME_FRACTION):
            return
        self._status = study_status(self.folder, self.plan)
        running = [state for state in self._status.running if state["run"] in self._steps]
        for state in running:
            self.print_worker_messages(state["worker"], state.get("messages", ()))
        self._draw(self._status, running)
        self._last_update = (time.monotonic(), time.monotonic() - now)

    def print_worker_messages(self, worker: str, messages: Sequence[Sequence[Any]]) -> None:
        """Prints the messages of a worker, each once; a warning that other runs have had, too, not again."""
        for number, text in messages:
            if number > self._last_message_number.get(worker, 0):
                self._last_message_number[worker] = number
                if self.verbose and not text.startswith("warning: "):
                    self.print_message(text)
                elif (pattern := _without_numbers_and_paths(text)) not in self._printed:
                    self._printed[pattern] = None
                    if self.verbose or len(self._printed) <= _MAX_MESSAGES:
                        self.print_message(text)

    def print_end(self, planned: PlannedRun, record: Mapping[str, Any]) -> None:
        """Prints how a run ended."""
        if record["status"] == "done":
            if self.verbose:
                self.print_message(f"{planned.display_name}: done")
            return
        self._num_failures += 1
        if self.verbose or self._num_failures <= _MAX_MESSAGES:
            self.print_message(f"{planned.display_name}: {record.get('error')}")
        elif self._num_failures == _MAX_MESSAGES + 1:
            self.print_message("further failures are listed by `numerate status`")

    def _draw(self, status: StudyStatus, running: Sequence[Mapping[str, Any]]) -> None:
        steps_left = {planned.run: self._steps.get(planned.run, 0) for planned in status.remaining}
        for state in running:
            run = state["run"]
            self._steps[run] = int(state.get("steps") or self._steps[run])
            steps_left[run] = self._steps[run] - int(state.get("step") or 0)
        total = sum(self._steps.values())
        if total != self.progress.total:
            self.progress.set_total(total)
        num_failed = len(status.failed)
        parts = [f"{status.num_done + num_failed:,}/{status.num_runs:,} runs"]
        parts += [f"{num_failed:,} failed"] if num_failed else []
        if self.verbose:
            losses = [(state["label"], state["loss"]) for state in running if state.get("loss") is not None]
            parts += [f"{label} {loss:.2g}" for label, loss in losses[:3]]
        else:
            parts += [f"{len(running)} running"]
        self.progress.update(total - sum(steps_left.values()), ", ".join(parts))


def _last_message(state: Mapping[str, Any]) -> int:
    return max((int(number) for number, _ in state.get("messages", ())), default=0)


def _without_numbers_and_paths(text: str) -> str:
    """A warning without the words that differ between runs: numbers and paths.

    >>> _without_numbers_and_paths("model.positions.0: position 18 and later ones do not occur in training (now 0.5)")
    'model.positions.0: position and later ones do not occur in training (now'
    """
    return " ".join(word for word in text.split() if not (word.lstrip("(-+")[:1].isdigit() or "/" in word))

"""Progress of a study: one bar for all runs, read from the states that workers write."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numerate.studies.folder import Planned, StudyFolder
from numerate.studies.state import gone, silent
from numerate.studies.status import Pace, runs_of, time_left
from numerate.training.progress import ProgressBar

CHATTY = 20
"""Up to so many runs all their messages are shown; of more only warnings and failures."""

_EVERY = 0.5  # seconds between two looks at the states, and more where a look takes long
_SHARE = 0.05  # of the time at most for looking
_MOST = 20  # warnings, and failures, that are shown of a large study


class Board:
    """A progress bar over the runs of a command, whoever does them: it is read from files.

    What is shown is also written to the study's `log.txt`, and passed to `say`.
    """

    def __init__(
        self,
        folder: StudyFolder,
        plan: Sequence[Planned],
        done: Mapping[str, Mapping[str, Any]],
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.callback = folder, say
        self.chatty = len(plan) <= CHATTY
        self._left = {planned.run: planned for planned in plan if planned.run not in done}
        self._steps = {run: int(_steps(planned) or 0) for run, planned in self._left.items()}
        self._at = dict.fromkeys(self._left, 0)
        self._over, self._failed, self._total = len(done), 0, len(plan)
        self._pace = Pace((planned.label, done[planned.run]) for planned in plan if planned.run in done)
        self._running: list[dict[str, Any]] = []
        self._on_progress = {state["worker"]: _last_message(state) for state in folder.states()}
        self._warned: dict[str, None] = {}
        self._looked = (0.0, 0.0)
        self.progress = ProgressBar(
            sum(self._steps.values()), label=folder.title, log=folder.path / "log.txt", left=self._seconds_left
        )

    def __enter__(self) -> "Board":
        self.progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._running = []
        self._show()
        self.progress.__exit__(*error)

    def say(self, text: str) -> None:
        """Prints a line above the bar and in the log."""
        self.progress.say(text)
        if self.callback is not None:
            self.callback(text)

    def say_once(self, text: str) -> None:
        """Prints a line, unless it was printed before."""
        if text not in self._warned:
            self._warned[text] = None
            self.say(text)

    def tick(self) -> None:
        """Looks at what the workers do, unless it did so just now."""
        now, (last, took) = time.monotonic(), self._looked
        if now - last < max(_EVERY - 0.1, took / _SHARE):
            return
        self._running = []
        for state in self.folder.states():
            runs = [run for run in runs_of(state) if run in self._left]
            if not runs or gone(state) or silent(state):
                continue
            self._running.append(state)
            self.relay(state["worker"], state.get("said", ()))
            for run in runs:
                self._at[run] = int(state.get("step") or 0)
                self._steps[run] = int(state.get("steps") or self._steps[run])
        self._show()
        self._looked = (time.monotonic(), time.monotonic() - now)

    def relay(self, worker: str, messages: Sequence[Sequence[Any]]) -> None:
        """Prints the messages of a worker, each once."""
        for number, text in messages:
            if number > self._on_progress.get(worker, 0):
                self._on_progress[worker] = number
                if self.chatty:
                    self.say(text)
                elif (what := _without_place(text)) not in self._warned:
                    self._warned[what] = None
                    if len(self._warned) <= _MOST:
                        self.say(text)

    def over(self, planned: Planned, record: Mapping[str, Any]) -> None:
        """Records how a run ended."""
        if self._left.pop(planned.run, None) is None:
            return
        self._over += 1
        self._at[planned.run] = self._steps[planned.run]
        if record["status"] == "done":
            self._pace.add(planned.label, record)
            if self.chatty:
                self.say(f"{planned.called}: done")
        else:
            self._failed += 1
            if self.chatty or self._failed <= _MOST:
                self.say(f"{planned.called}: {record.get('error')}")
            elif self._failed == _MOST + 1:
                self.say("further failures are listed by `numerate status`")

    def _show(self) -> None:
        total = sum(self._steps.values())
        if total != self.progress.total:
            self.progress.resize(total)
        shown = [f"{self._over:,}/{self._total:,} runs"]
        shown += [f"{self._failed:,} failed"] if self._failed else []
        if self.chatty:
            losses = [(state["label"], state["loss"]) for state in self._running if state.get("loss") is not None]
            shown += [f"{label} {loss:.2g}" for label, loss in losses[:3]]
        else:
            shown += [f"{len(self._running)} at work"]
        self.progress.show(sum(self._at.values()), ", ".join(shown))

    def _seconds_left(self) -> float | None:
        begun = {run for state in self._running for run in runs_of(state)}
        waiting = [planned.label for run, planned in self._left.items() if run not in begun]
        return time_left(waiting, self._running, self._pace.means())


def _steps(planned: Planned) -> Any:
    return planned.tree.get("training", {}).get("steps")


def _last_message(state: Mapping[str, Any]) -> int:
    return max((int(number) for number, _ in state.get("said", ())), default=0)


def _without_place(text: str) -> str:
    """A warning without what differs from run to run: its numbers and paths."""
    return " ".join(word for word in text.split() if not any(letter.isdigit() or letter == "/" for letter in word))

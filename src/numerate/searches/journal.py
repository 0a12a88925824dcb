"""The trials of a search: one file to which many processes append, by Optuna (https://optuna.org).

    runs/<search>/journal.log       the trials and their results, in Optuna's format
    runs/<search>/locks/            held while a process works: one file per trial, and those for short operations

A trial is completely described by one line of the journal before it is trained, so a process may be killed at any
moment: a trial without a result whose lock is free is resumed by the next process.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numerate.errors import UserError
from numerate.executors.executor import MAX_DEATHS
from numerate.records.kinds import JOURNAL
from numerate.records.reading import Tail, check_format, damage_message
from numerate.searches.sampling import SamplingPlan, distributions, load_optuna, next_point
from numerate.searches.space import Space
from numerate.training import disk
from numerate.training.lock import Lock, LockedError

TrialState = Literal["complete", "pruned", "failed", "running"]

_STUDY_NAME = "search"
_DEATH_SECONDS = 1.0  # until a killed process has released its locks


@dataclass(frozen=True)
class Trial:
    """One point of the search space: its `number` from 0, its `parameters`, and its result.

    `objective` is the value to optimize, `results` the metrics, `error` why it failed.
    """

    number: int
    state: TrialState
    parameters: Mapping[str, Any]
    objective: float | None
    results: Mapping[str, Any]
    error: str | None = None
    worker: str = ""

    @classmethod
    def from_optuna(cls, optuna_trial: Any) -> "Trial":
        """Converts a trial of Optuna."""
        attributes = optuna_trial.user_attrs
        results = attributes.get("results", {})
        error = results.get("error") if optuna_trial.state.is_finished() else None
        states: dict[str, TrialState] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        state = "failed" if error is not None else states.get(optuna_trial.state.name, "running")
        objective = optuna_trial.value if state == "complete" else None
        parameters = dict(optuna_trial.params)
        return cls(optuna_trial.number, state, parameters, objective, results, error, attributes.get("worker", ""))


class Journal:
    """The trials of a search in its folder. Reading needs no lock; each write is one whole line.

        journal = Journal(Path("runs/mine"), space, minimize=False)
        with journal.take_trial(SamplingPlan(), "me") as trial:
            journal.tell(trial.number, 0.93, {"runs": []})

    Raises `UserError` if Optuna is not installed, the folder is not writable, or the journal is damaged.
    """

    def __init__(self, folder: Path, space: Space, *, minimize: bool) -> None:
        self.folder, self.space = folder, space
        self.path = folder / "journal.log"
        self._direction = "minimize" if minimize else "maximize"
        disk.make_folder(folder / "locks")
        optuna = load_optuna()
        with self._asking():
            try:
                self._storage = optuna.storages.JournalStorage(_JournalFile(self.path, self._lock("journal")))
            except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
                problem = f"Optuna cannot read it ({type(error).__name__}: {error})"
                raise UserError(damage_message(self.path, problem, JOURNAL.remedy)) from error
            options = {"storage": self._storage, "study_name": _STUDY_NAME, "sampler": optuna.samplers.RandomSampler(0)}
            try:
                self._study = optuna.load_study(**options)
            except KeyError:
                self._study = optuna.create_study(**options, direction=self._direction)
        if "question" in self._study.user_attrs:
            check_format(folder, 1)

    def get_or_set_definition(self, definition: Mapping[str, Any]) -> Mapping[str, Any]:
        """Records the description of this search if there is none yet, and returns the recorded one."""
        with self._asking():
            if "definition" not in self._study.user_attrs:
                self._study.set_user_attr("definition", dict(definition))
            return self._study.user_attrs["definition"]  # type: ignore[no-any-return]

    def trials(self) -> list[Trial]:
        """All trials, in the order in which they were started."""
        return [Trial.from_optuna(one) for one in self._optuna_trials()]

    def importances(self) -> dict[str, float]:
        """How much each field matters for the objective, summing to 1, the largest first, by PED-ANOVA (Watanabe et
        al., 2023, https://arxiv.org/abs/2304.10255); empty with fewer than ten complete trials."""
        if sum(trial.state == "complete" for trial in self.trials()) < 10:
            return {}
        with _quiet_optuna() as optuna:
            try:
                return dict(optuna.importance.get_param_importances(self._study))
            except (ValueError, RuntimeError):
                return {}

    # Taking a trial -----------------------------------------------------------------------------------------------

    def num_available(self, sampling: SamplingPlan) -> int:
        """The number of trials that a process could take now: those not started yet, and those whose process is
        gone."""
        with self._asking():
            trials = self.trials()
            abandoned = [one for one in trials if one.state == "running" and not self._lock(one.number).is_held()]
        return max(0, sampling.trials - len(trials)) + len(abandoned)

    @contextlib.contextmanager
    def take_trial(self, sampling: SamplingPlan, worker: str) -> Iterator[Trial | None]:
        """Locks and yields a trial to train: one whose process is gone, otherwise a new one. Yields None if nothing is
        left to do."""
        with contextlib.ExitStack() as locks:
            with self._asking():
                number = self._resume_abandoned(worker, locks)
                if number is None:
                    number = self._create_trial(sampling, worker, locks)
            yield None if number is None else self.trials()[number]

    def _resume_abandoned(self, worker: str, locks: contextlib.ExitStack) -> int | None:
        for trial in self.trials():
            if trial.state != "running" or not self._try_to_lock(trial.number, locks):
                continue
            if self.trials()[trial.number].state != "running":
                self._unlink_lock(trial.number)  # it was finished in the meantime
                continue
            self._set_attribute(trial.number, "worker", worker)
            return trial.number
        return None

    def _create_trial(self, sampling: SamplingPlan, worker: str, locks: contextlib.ExitStack) -> int | None:
        trials = self._optuna_trials()
        if len(trials) >= sampling.trials or not self._try_to_lock(len(trials), locks):
            return None
        with _quiet_optuna() as optuna:
            parameters = next_point(sampling, self.space, trials, self._direction)
            if parameters is None:
                return None
            frozen_trial = optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=parameters,
                distributions=distributions(self.space),
                user_attrs={"worker": worker},
            )
            self._study.add_trial(frozen_trial)
        return len(trials)

    # Results ------------------------------------------------------------------------------------------------------

    def report(self, number: int, step: int, value: float, pruner: Any) -> bool:
        """Records the objective at a step; returns whether a pruner of `searches.sampling` would stop the trial
        there."""
        with _quiet_optuna():
            self._storage.set_trial_intermediate_value(self._trial_id(number), step, value)
            pruned = bool(pruner.prune(self._study, self._storage.get_trial(self._trial_id(number))))
        if pruned:
            self._set_attribute(number, "pruned", step)
        return pruned

    def is_pruned(self, number: int) -> bool:
        """Whether the pruner has already decided to stop the trial; its process may have died before that was
        recorded."""
        return "pruned" in self._attributes(number)

    def tell(self, number: int, objective: float, results: Mapping[str, Any]) -> None:
        """Records that a trial is complete."""
        self._finish(number, "COMPLETE", results, objective)

    def prune(self, number: int, results: Mapping[str, Any]) -> None:
        """Records that a trial was stopped early because others were better at the same step."""
        self._finish(number, "PRUNED", results)

    def fail(self, number: int, error: str, trace: str | None = None) -> None:
        """Records that a trial failed. The sampler treats it as one that was stopped early, so that it searches
        elsewhere."""
        self._finish(number, "PRUNED", {"error": error} | ({"traceback": trace} if trace is not None else {}))

    def record_start(self, number: int, step: int) -> bool:
        """Records that a trial was started at step `step`. Returns False if its process died there `MAX_DEATHS` times
        in a row."""
        starts = self._attributes(number).get("starts", {"count": 0, "step": step})
        num_starts = starts["count"] + 1 if starts["step"] == step else 1
        self._set_attribute(number, "starts", {"count": num_starts, "step": step})
        return num_starts <= MAX_DEATHS

    def reset_starts(self, number: int) -> None:
        """Records that a trial was stopped regularly, which resets its number of starts."""
        self._set_attribute(number, "starts", {"count": 0, "step": -1})

    def fail_trial_of(self, worker: str, error: str) -> int | None:
        """Records that a worker's trial failed (it timed out, or ran out of memory); returns the trial's number."""
        with self._asking(), contextlib.ExitStack() as locks:
            for trial in self.trials():
                is_its_trial = (trial.state, trial.worker) == ("running", worker)
                if is_its_trial and self._try_to_lock(trial.number, locks, timeout=_DEATH_SECONDS):
                    self.fail(trial.number, error)
                    return trial.number
        return None

    def _finish(self, number: int, state: str, results: Mapping[str, Any], objective: float | None = None) -> None:
        self._set_attribute(number, "results", disk.to_plain_data(dict(results), finite=True))
        with _quiet_optuna() as optuna:
            self._study.tell(number, objective, state=optuna.trial.TrialState[state])
        self._unlink_lock(number)

    # Internals ----------------------------------------------------------------------------------------------------

    def _optuna_trials(self) -> list[Any]:
        with _quiet_optuna():
            return self._study.get_trials(deepcopy=False)  # type: ignore[no-any-return]

    def _attributes(self, number: int) -> dict[str, Any]:
        return self._optuna_trials()[number].user_attrs  # type: ignore[no-any-return]

    def _set_attribute(self, number: int, name: str, value: object) -> None:
        with _quiet_optuna():
            self._storage.set_trial_user_attr(self._trial_id(number), name, value)

    def _trial_id(self, number: int) -> int:
        return self._optuna_trials()[number]._trial_id  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """One process at a time decides which trial is next."""
        with self._lock("ask").hold("choosing a trial", timeout=float("inf")), _quiet_optuna():
            yield

    def _lock(self, name: int | str) -> Lock:
        return Lock(self.folder / "locks" / str(name), with_folder=False)

    def _try_to_lock(self, number: int, locks: contextlib.ExitStack, timeout: float = 0.0) -> bool:
        """Locks a trial until the end of `locks`, unless another process holds it."""
        try:
            return locks.enter_context(self._lock(number).hold("a trial", timeout=timeout))
        except LockedError:
            return False

    def _unlink_lock(self, number: int) -> None:
        self._lock(number).path.unlink(missing_ok=True)


class _JournalFile:
    """The file behind Optuna's storage: it is read and written like all files of records, so that half a line of a
    killed process, or of a full disk, is removed by the next writer, and a damaged line is reported by its number."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self._path, self._lock = path, lock
        self._tail, self._logs = Tail(path, JOURNAL), list[dict[str, Any]]()

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        self._logs += self._tail.read_new()
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with self._lock.hold("writing", timeout=float("inf")):
            disk.append_records(self._path, logs, durable=True, unharmed_note="What was written before is safe.")


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[Any]:
    """Yields Optuna, with its log and warnings silenced."""
    optuna = load_optuna()
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(level)

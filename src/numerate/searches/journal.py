"""The trials of a search: one file to which many processes append, by Optuna (https://optuna.org).

    runs/<search>/journal.log       the trials and their results, in Optuna's format
    runs/<search>/locks/            held while a process works: one file per trial, and those for short operations

A trial is completely described by one line of the journal before it is trained, so a process may be killed at any
moment: a trial without a result whose lock is free is resumed by the next process. Locks are the kernel's (`flock`),
which are released however a process ends, also on other machines over NFS 4.
"""

import contextlib
import errno
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numerate.errors import OperationalError
from numerate.executors.executor import MAX_DEATHS
from numerate.records.kinds import JOURNAL
from numerate.records.reading import check_format, read_records
from numerate.searches.sampling import SamplingPlan, distributions, load_optuna, next_point
from numerate.searches.space import Space
from numerate.training import disk

TrialState = Literal["complete", "pruned", "failed", "running"]

_STUDY_NAME = "search"


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
        optuna = load_optuna()
        disk.make_folder(folder / "locks")
        with _file_lock(folder / "locks" / "ask"), self._quiet_optuna():
            self._check_journal()
            backend = optuna.storages.journal.JournalFileBackend(str(self.path), lock_obj=_JournalLock(self.path))
            self._storage = optuna.storages.JournalStorage(backend)
            self._study = optuna.create_study(
                study_name=_STUDY_NAME,
                storage=self._storage,
                sampler=optuna.samplers.RandomSampler(0),
                direction=self._direction,
                load_if_exists=True,
            )
            self._study_id = self._storage.get_study_id_from_name(_STUDY_NAME)

    def get_or_set_definition(self, definition: Mapping[str, Any]) -> Mapping[str, Any]:
        """Records the description of this search if there is none yet, and returns the recorded one."""
        with _file_lock(self.folder / "locks" / "ask"), self._quiet_optuna():
            stored = self._storage.get_study_user_attrs(self._study_id).get("definition")
            if stored is None:
                stored = dict(definition)
                self._storage.set_study_user_attr(self._study_id, "definition", stored)
        return stored  # type: ignore[no-any-return]

    def trials(self) -> list[Trial]:
        """All trials, in the order in which they were started."""
        return [_from_optuna(one) for one in self._optuna_trials()]

    def importances(self) -> dict[str, float]:
        """How much each field matters for the objective, summing to 1, the largest first, by PED-ANOVA (Watanabe et
        al., 2023, https://arxiv.org/abs/2304.10255); empty with fewer than ten complete trials."""
        optuna = load_optuna()
        if sum(trial.state == "complete" for trial in self.trials()) < 10:
            return {}
        with self._quiet_optuna():
            try:
                return dict(optuna.importance.get_param_importances(self._study))
            except (ValueError, RuntimeError):
                return {}

    # Taking a trial -----------------------------------------------------------------------------------------------

    def num_available(self, sampling: SamplingPlan) -> int:
        """The number of trials that a process could take now: those not started yet, and those whose process is
        gone."""
        with _file_lock(self.folder / "locks" / "ask"):
            trials = self.trials()
            abandoned = [trial for trial in trials if trial.state == "running" and not self._is_locked(trial.number)]
        return max(0, sampling.trials - len(trials)) + len(abandoned)

    @contextlib.contextmanager
    def take_trial(self, sampling: SamplingPlan, worker: str) -> Iterator[Trial | None]:
        """Locks and yields a trial to train: one whose process is gone, otherwise a new one. Yields None if nothing is
        left to do."""
        with contextlib.ExitStack() as locks:
            with _file_lock(self.folder / "locks" / "ask"):
                number = self._resume_abandoned(worker, locks)
                if number is None:
                    number = self._create_trial(sampling, worker, locks)
            yield None if number is None else self.trials()[number]

    def _resume_abandoned(self, worker: str, locks: contextlib.ExitStack) -> int | None:
        for trial in self.trials():
            if trial.state != "running" or not locks.enter_context(
                _file_lock(self._lock_path(trial.number), wait=False)
            ):
                continue
            if self.trials()[trial.number].state != "running":
                self._lock_path(trial.number).unlink(missing_ok=True)  # it was finished in the meantime
                continue
            self._set_attribute(trial.number, "worker", worker)
            return trial.number
        return None

    def _create_trial(self, sampling: SamplingPlan, worker: str, locks: contextlib.ExitStack) -> int | None:
        optuna = load_optuna()
        trials = self._optuna_trials()
        if len(trials) >= sampling.trials or not locks.enter_context(
            _file_lock(self._lock_path(len(trials)), wait=False)
        ):
            return None
        with self._quiet_optuna():
            parameters = next_point(sampling, self.space, trials, self._direction)
            if parameters is None:
                return None
            frozen_trial = optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=parameters,
                distributions=distributions(self.space),
                user_attrs={"worker": worker},
            )
            self._storage.create_new_trial(self._study_id, template_trial=frozen_trial)
        return len(trials)

    # Results ------------------------------------------------------------------------------------------------------

    def report(self, number: int, step: int, value: float, pruner: Any) -> bool:
        """Records the objective at a step; returns whether a pruner of `searches.sampling` would stop the trial
        there."""
        with self._quiet_optuna():
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
        with _file_lock(self.folder / "locks" / "ask"):
            for trial in self.trials():
                if trial.state == "running" and trial.worker == worker:
                    with _file_lock(self._lock_path(trial.number), wait=False) as is_free:
                        if is_free:
                            self.fail(trial.number, error)
                            return trial.number
        return None

    def _finish(self, number: int, state: str, results: Mapping[str, Any], objective: float | None = None) -> None:
        self._set_attribute(number, "results", disk.to_plain_data(dict(results), finite=True))
        with self._quiet_optuna():
            self._study.tell(number, objective, state=load_optuna().trial.TrialState[state])
        self._lock_path(number).unlink(missing_ok=True)

    # Internals ----------------------------------------------------------------------------------------------------

    def _optuna_trials(self) -> list[Any]:
        with self._quiet_optuna():
            return self._storage.get_all_trials(self._study_id, deepcopy=False)  # type: ignore[no-any-return]

    def _attributes(self, number: int) -> dict[str, Any]:
        with self._quiet_optuna():
            return self._storage.get_trial(self._trial_id(number)).user_attrs  # type: ignore[no-any-return]

    def _set_attribute(self, number: int, name: str, value: object) -> None:
        with self._quiet_optuna():
            self._storage.set_trial_user_attr(self._trial_id(number), name, value)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)  # type: ignore[no-any-return]

    def _lock_path(self, number: int) -> Path:
        return self.folder / "locks" / str(number)

    def _is_locked(self, number: int) -> bool:
        with _file_lock(self._lock_path(number), wait=False) as is_free:
            return not is_free

    def _check_journal(self) -> None:
        """Raises `UserError` for the first damaged line of the journal, and for one that version 0.1 wrote."""
        if any("question" in record.get("user_attr", {}) for record in read_records(self.path, JOURNAL)):
            check_format(self.folder, 1)

    @contextlib.contextmanager
    def _quiet_optuna(self) -> Iterator[None]:
        """Silences Optuna's log and warnings, and reports damage of its journal."""
        optuna = load_optuna()
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            with warnings.catch_warnings(), disk.convert_os_errors(self.path, "What was written before is safe."):
                warnings.simplefilter("ignore")
                yield
        except (ValueError, TypeError, KeyError, AssertionError):
            self._check_journal()
            raise
        finally:
            optuna.logging.set_verbosity(level)


def _from_optuna(optuna_trial: Any) -> Trial:
    """Converts a trial of Optuna."""
    results = optuna_trial.user_attrs.get("results", {})
    error = results.get("error") if optuna_trial.state.is_finished() else None
    states: dict[str, TrialState] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    state = "failed" if error is not None else states.get(optuna_trial.state.name, "running")
    objective = optuna_trial.value if state == "complete" else None
    return Trial(
        optuna_trial.number,
        state,
        dict(optuna_trial.params),
        objective,
        results,
        error,
        optuna_trial.user_attrs.get("worker", ""),
    )


@contextlib.contextmanager
def _file_lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Holds a lock that ends with this process; yields False if another process holds it and `wait` is false."""
    import fcntl

    with disk.convert_os_errors(path):
        file_descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        is_free = True
        try:
            fcntl.flock(file_descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            is_free = False
            if wait or error.errno not in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK):
                raise OperationalError(
                    f"{path}: this file system cannot lock files ({error.strerror}), so two processes could run "
                    "the same trial; set runs_dir= to another file system."
                ) from error
        yield is_free
    finally:
        os.close(file_descriptor)


class _JournalLock:
    """The lock that Optuna acquires for each line it writes, so that its journal always consists of whole lines.

    Optuna's own lock is a file that a killed process leaves behind, and others then wait half a minute for it; and half
    a line, left by a process that was killed while writing or by a full disk, would make its journal unreadable. Here
    the kernel releases the lock, and the next writer removes an incomplete last line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._exit_stack = contextlib.ExitStack()

    def acquire(self) -> bool:
        self._exit_stack.enter_context(_file_lock(self._path.parent / "locks" / "journal"))
        self._truncate_partial_line()
        return True

    def release(self) -> None:
        with self._exit_stack:
            self._truncate_partial_line()

    def _truncate_partial_line(self) -> None:
        file_descriptor = os.open(self._path, os.O_RDWR)
        try:
            end = size = os.fstat(file_descriptor).st_size
            while end and os.pread(file_descriptor, 1, end - 1) != b"\n":
                end -= 1
            if end < size:
                os.ftruncate(file_descriptor, end)
        finally:
            os.close(file_descriptor)

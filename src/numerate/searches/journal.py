"""The trials of a search: one file to which many processes append, by Optuna (https://optuna.org).

    runs/<search>/journal.log       what was tried and what came of it, in Optuna's own format
    runs/<search>/locks/            while a process works at it: one file per trial, and those for a moment's work

Everything that a trial is stands in one line of the journal before it is trained, so a process may be killed at any
moment: a trial without a result whose lock nobody holds is taken up by the next process that looks for work. Locks are
the kernel's (`flock`), which gives them back however a process ends, also from other machines over NFS 4.
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
from numerate.records.kinds import JOURNAL
from numerate.records.reading import read
from numerate.searches.sampling import SamplingPlan, distributions, load_optuna, next_point
from numerate.searches.space import Space
from numerate.training import disk

State = Literal["complete", "pruned", "failed", "running"]

STARTS = 3
"""How often a trial is taken up again whose process died each time without getting further."""

_STUDY = "search"


@dataclass(frozen=True)
class Trial:
    """One point of the space: its `number` from 0, its `parameters`, and what came of it.

    `objective` is the number that is searched for the best of, `found` what was measured, `error` why it failed.
    """

    number: int
    state: State
    parameters: Mapping[str, Any]
    objective: float | None
    found: Mapping[str, Any]
    error: str | None = None
    worker: str = ""


class Journal:
    """The trials of a search in its folder. Reading needs no lock; each write is one whole line.

    >>> journal = Journal(Path("runs/mine"), space, minimise=False)
    >>> with journal.taken(Way(), "me") as trial:
    ...     journal.tell(trial.number, 0.93, {"runs": []})

    Raises `UserError` where Optuna is not installed, the folder may not be written, or the journal is damaged.
    """

    def __init__(self, folder: Path, space: Space, *, minimise: bool) -> None:
        self.folder, self.space = folder, space
        self.path = folder / "journal.log"
        self._direction = "minimize" if minimise else "maximize"
        optuna = load_optuna()
        with disk.explained(folder):
            (folder / "locks").mkdir(parents=True, exist_ok=True)
        with _lock(folder / "locks" / "ask"), self._working():
            self._check()
            backend = optuna.storages.journal.JournalFileBackend(str(self.path), lock_obj=_Whole(self.path))
            self._storage = optuna.storages.JournalStorage(backend)
            self._study = optuna.create_study(
                study_name=_STUDY,
                storage=self._storage,
                sampler=optuna.samplers.RandomSampler(0),
                direction=self._direction,
                load_if_exists=True,
            )
            self._id = self._storage.get_study_id_from_name(_STUDY)

    def question(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Notes what this search is about if nobody has, and returns what it is about."""
        with _lock(self.folder / "locks" / "ask"), self._working():
            known = self._storage.get_study_user_attrs(self._id).get("question")
            if known is None:
                known = dict(question)
                self._storage.set_study_user_attr(self._id, "question", known)
        return known  # type: ignore[no-any-return]

    def trials(self) -> list[Trial]:
        """All trials, in the order in which they were begun."""
        return [_trial(one) for one in self._all()]

    def importances(self) -> dict[str, float]:
        """How much each field matters for the objective, summing to 1, the largest first, by PED-ANOVA (Watanabe et
        al., 2023, https://arxiv.org/abs/2304.10255); empty with fewer than ten complete trials."""
        optuna = load_optuna()
        if sum(trial.state == "complete" for trial in self.trials()) < 10:
            return {}
        with self._working():
            try:
                return dict(optuna.importance.get_param_importances(self._study))
            except (ValueError, RuntimeError):
                return {}

    # Taking one up ------------------------------------------------------------------------------------------------

    def left(self, way: SamplingPlan) -> int:
        """How many trials a process could take up now: those not yet begun, and those whose process is gone."""
        with _lock(self.folder / "locks" / "ask"):
            trials = self.trials()
            lost = [trial for trial in trials if trial.state == "running" and not self._is_held(trial.number)]
        return max(0, way.trials - len(trials)) + len(lost)

    @contextlib.contextmanager
    def taken(self, way: SamplingPlan, worker: str) -> Iterator[Trial | None]:
        """A trial to be worked at, which is nobody else's meanwhile: first one whose process is gone, then a new one.
        None where there is nothing left to do."""
        with contextlib.ExitStack() as locks:
            with _lock(self.folder / "locks" / "ask"):
                number = self._lost(worker, locks)
                if number is None:
                    number = self._new(way, worker, locks)
            yield None if number is None else self.trials()[number]

    def _lost(self, worker: str, locks: contextlib.ExitStack) -> int | None:
        for trial in self.trials():
            if trial.state != "running" or not locks.enter_context(_lock(self._lock_of(trial.number), wait=False)):
                continue
            if self.trials()[trial.number].state != "running":
                self._lock_of(trial.number).unlink(missing_ok=True)  # it was finished in the meantime
                continue
            with self._working():
                self._storage.set_trial_user_attr(self._id_of(trial.number), "worker", worker)
            return trial.number
        return None

    def _new(self, way: SamplingPlan, worker: str, locks: contextlib.ExitStack) -> int | None:
        optuna = load_optuna()
        trials = self._all()
        if len(trials) >= way.trials or not locks.enter_context(_lock(self._lock_of(len(trials)), wait=False)):
            return None
        with self._working():
            parameters = next_point(way, self.space, trials, self._direction)
            if parameters is None:
                return None
            new = optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=parameters,
                distributions=distributions(self.space),
                user_attrs={"worker": worker},
            )
            self._storage.create_new_trial(self._id, template_trial=new)
        return len(trials)

    # What came of it ----------------------------------------------------------------------------------------------

    def report(self, number: int, step: int, value: float, pruner: Any) -> bool:
        """Notes the objective at a step; whether a pruner of `searches.sampling` would stop the trial there."""
        with self._working():
            self._storage.set_trial_intermediate_value(self._id_of(number), step, value)
            pruned = bool(pruner.prune(self._study, self._storage.get_trial(self._id_of(number))))
            if pruned:
                self._storage.set_trial_user_attr(self._id_of(number), "pruned", step)
        return pruned

    def is_pruned(self, number: int) -> bool:
        """Whether a pruner stopped the trial already; its process may have died before that was recorded."""
        with self._working():
            return "pruned" in self._storage.get_trial(self._id_of(number)).user_attrs

    def tell(self, number: int, objective: float, found: Mapping[str, Any]) -> None:
        """A trial is complete."""
        self._finish(number, "COMPLETE", found, objective)

    def prune(self, number: int, found: Mapping[str, Any]) -> None:
        """A trial was stopped early, since others were better at the same step."""
        self._finish(number, "PRUNED", found)

    def fail(self, number: int, error: str, trace: str | None = None) -> None:
        """A trial cannot be trained. To the sampler it is one that was stopped early, so that it looks elsewhere."""
        self._finish(number, "PRUNED", {"error": error} | ({"trace": trace} if trace is not None else {}))

    def survived(self, number: int, at: int) -> bool:
        """Notes that a trial was taken up at a step `at`. False where that is in vain: its process died there, each
        time, `STARTS` times."""
        with self._working():
            known = self._storage.get_trial(self._id_of(number)).user_attrs.get("starts", {"times": 0, "at": at})
            times = known["times"] + 1 if known["at"] == at else 1
            self._storage.set_trial_user_attr(self._id_of(number), "starts", {"times": times, "at": at})
        return times <= STARTS

    def released(self, number: int) -> None:
        """A trial was stopped in good order: its next start is its first again."""
        with self._working():
            self._storage.set_trial_user_attr(self._id_of(number), "starts", {"times": 0, "at": -1})

    def fail_of(self, worker: str, error: str) -> int | None:
        """A worker is gone and its trial cannot be trained (it took too long, or all memory); the trial's number."""
        with _lock(self.folder / "locks" / "ask"):
            for trial in self.trials():
                if trial.state == "running" and trial.worker == worker:
                    with _lock(self._lock_of(trial.number), wait=False) as free:
                        if free:
                            self.fail(trial.number, error)
                            return trial.number
        return None

    def _finish(self, number: int, state: str, found: Mapping[str, Any], objective: float | None = None) -> None:
        states = load_optuna().trial.TrialState
        with self._working():
            self._storage.set_trial_user_attr(self._id_of(number), "found", disk.plain(dict(found), finite=True))
            self._study.tell(number, objective, state=states[state])
        self._lock_of(number).unlink(missing_ok=True)

    # Underneath ---------------------------------------------------------------------------------------------------

    def _all(self) -> list[Any]:
        with self._working():
            return self._storage.get_all_trials(self._id, deepcopy=False)  # type: ignore[no-any-return]

    def _id_of(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)  # type: ignore[no-any-return]

    def _lock_of(self, number: int) -> Path:
        return self.folder / "locks" / str(number)

    def _is_held(self, number: int) -> bool:
        with _lock(self._lock_of(number), wait=False) as free:
            return not free

    def _check(self) -> None:
        """Raises `UserError` for the first damaged line of the journal."""
        read(self.path, JOURNAL)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Optuna at work: it says nothing, and its errors are in our words."""
        optuna = load_optuna()
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            with warnings.catch_warnings(), disk.explained(self.path, "What was written before is safe."):
                warnings.simplefilter("ignore")
                yield
        except (ValueError, TypeError, KeyError, AssertionError):
            self._check()
            raise
        finally:
            optuna.logging.set_verbosity(level)


def _trial(one: Any) -> Trial:
    """A trial of Optuna's in our words."""
    found = one.user_attrs.get("found", {})
    error = found.get("error") if one.state.is_finished() else None
    words: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    state = "failed" if error is not None else words.get(one.state.name, "running")
    objective = one.value if state == "complete" else None
    return Trial(one.number, state, dict(one.params), objective, found, error, one.user_attrs.get("worker", ""))


@contextlib.contextmanager
def _lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Holds a lock that dies with this process, or yields False where another has it and nobody waits."""
    import fcntl

    with disk.explained(path):
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        free = True
        try:
            fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            free = False
            if wait or error.errno not in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK):
                raise OperationalError(
                    f"{path}: this file system cannot lock files ({error.strerror}), so two processes could work at "
                    "one trial; give runs_dir= on another one."
                ) from error
        yield free
    finally:
        os.close(number)


class _Whole:
    """The lock that Optuna takes for each line it writes, by which its journal always consists of whole lines.

    Optuna's own lock is a file that a killed process leaves behind, and others then wait half a minute for it; and half
    a line, left by a process that was killed while it wrote or by a full disk, would make its journal unreadable. Here
    the kernel gives the lock back, and what stands behind the last line end is cut away by the next writer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = contextlib.ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(_lock(self._path.parent / "locks" / "journal"))
        self._cut()
        return True

    def release(self) -> None:
        with self._held:
            self._cut()

    def _cut(self) -> None:
        number = os.open(self._path, os.O_RDWR)
        try:
            end = size = os.fstat(number).st_size
            while end and os.pread(number, 1, end - 1) != b"\n":
                end -= 1
            if end < size:
                os.ftruncate(number, end)
        finally:
            os.close(number)

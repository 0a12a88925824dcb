"""Running a study: runs that are left are given to workers, postponed, taken over, and counted."""

import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.executors.executor import Executor, Failure, Finished
from numerate.studies.board import CHATTY, Board
from numerate.studies.folder import Planned, StudyFolder, is_done, is_failed
from numerate.studies.state import COMMAND, State, gone
from numerate.studies.work import Item, Job, RunWork, failed_record
from numerate.training import checkpoint, disk, provenance
from numerate.training.lock import Lock
from numerate.training.recipe import Recipe
from numerate.training.stopping import Stop

_AGAIN = 1.0  # seconds until a run that another process writes is looked at again; twice as many each time,
_AGAIN_AT_MOST = 30.0  # up to so many


@dataclass(frozen=True)
class Done:
    """How a run of a study ended: `path` of its folder, or `error`; `status` as an exit status; `trace` of a fault.

    `kind` is that of its failure. `left` runs were stopped, never started, or their worker died: the same command
    resumes them.
    """

    label: str
    path: Path | None
    error: str | None = None
    status: int = 0
    trace: str | None = None
    left: bool = False
    kind: str | None = None


@dataclass
class _Busy:
    """A run that another process trains: when to look again, and how long to wait after that."""

    planned: Planned
    at: float
    wait: float


class Running:
    """The runs that a command requests, and their state: `done`, `failed` (not tried again), `left`."""

    def __init__(
        self,
        folder: StudyFolder,
        plan: Sequence[Planned],
        recipes: Mapping[str, Recipe],
        *,
        executor: Executor,
        retry: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.plan, self.recipes, self.executor, self.say = folder, plan, recipes, executor, say
        results = folder.results()
        self.done: dict[str, Mapping[str, Any]] = {**folder.done(plan)}
        failed: dict[str, Mapping[str, Any]] = {
            one.run: results[one.at]
            for one in plan
            if one.run not in self.done and one.at in results and is_failed(results[one.at])
        }
        self._died = {one.run for one in plan if results.get(one.at, {}).get("kind") == "died"}
        self._forgiven = [one for one in plan if one.run in failed] if retry else []
        self.failed = {} if retry else failed
        self.left = [one for one in plan if one.run not in self.done and one.run not in self.failed]
        self.work = RunWork(str(folder.path.absolute()), provenance.command(), os.getcwd(), len(plan) <= CHATTY)
        host = re.sub(r"[^A-Za-z0-9.]+", "-", socket.gethostname())
        self._name = f"command-{host}-{os.getpid()}-{secrets.token_hex(2)}"
        self._stop = Stop()
        self._full: str | None = None
        self._undone: dict[str, Failure] = {}
        self._busy: dict[str, _Busy] = {}
        self._began = time.time()

    @property
    def stopped(self) -> bool:
        """Whether it was stopped before all was done, by a signal or by a full disk."""
        return self._stop.requested and bool(self._undone)

    def items(self) -> list[Item]:
        """What is left, as it is given to workers."""
        items = ordered(self.left, self.recipes, self.executor.stack_size)
        return sorted(items, key=lambda item: any(job.run in self._died for job in item))  # the others first

    def run(self) -> list[Done]:
        """Does what is left, and returns how each run of the plan ended, in its order."""
        self._tidy()
        if not self.left:
            return [self._ended(planned) for planned in self.plan]
        with disk.explained(self.folder.path):
            (self.folder.path / "states").mkdir(exist_ok=True)
        concerned = [planned for planned in self.plan if planned.run not in self.failed]
        present = State(self.folder.path / "states", self._name)
        with (
            self._stop,
            present.whole(run=None, phase=COMMAND),
            Board(self.folder, concerned, self.done, self.say) as board,
        ):
            self._keep([failed_record(one, Failure("not begun", ""), self._name, 0.0) for one in self._forgiven], board)
            items = self.items()
            self._tell_unstacked(board)
            while not self._stop.requested and (items or self._busy):
                items = self._pass(items, board) if items else self._free(board)
            for run in self._busy:
                self._undone[run] = Failure("not begun", "another process is at it", 130)
            self._tidy()
        return [self._ended(planned) for planned in self.plan]

    def _tell_unstacked(self, board: Board) -> None:
        """Prints why runs are trained one by one where stacks were requested."""
        if self.executor.stack_size == 1:
            return
        from numerate.experiments.stacked import why_not_stacked

        reasons = Counter(why_not_stacked(self.recipes[planned.run]) for planned in self.left)
        for why, count in reasons.items():
            if why is not None:
                board.say(f"{count:,} of {len(self.left):,} runs are trained one by one: {why}")

    def _pass(self, items: Sequence[Item], board: Board) -> list[Item]:
        """Gives items to workers and takes what comes back. Returns what is to be done again: the runs of a stack that
        ended badly, one by one."""
        again: list[Item] = []
        for one in self.executor.run(self.work, items, folder=self.folder.path, stop=self._stop, tick=board.tick):
            item = items[one.index]
            if one.failure is None:
                board.relay(one.worker, one.result.messages)
                records = {str(record["run"]): record for record in one.result.records}
            else:
                records = self._written(item)
            for job in item:
                if (record := records.get(job.run)) is not None:
                    self._take(job.planned, record, board)
                elif one.failure is not None and one.failure.kind in ("stopped", "not begun"):
                    self._undone[job.run] = one.failure
                elif len(item) > 1:
                    again.append((job,))
                else:
                    self._fail(job.planned, one, board)
        return again

    def _take(self, planned: Planned, record: Mapping[str, Any], board: Board) -> None:
        status = record["status"]
        if status == "busy":
            known = self._busy.get(planned.run)
            wait = min(_AGAIN_AT_MOST, 2 * known.wait) if known else _AGAIN
            self._busy[planned.run] = _Busy(planned, time.monotonic() + wait, wait)
            return
        self._busy.pop(planned.run, None)
        if status == "full":
            self._fill(str(record["error"]), board)
            self._undone[planned.run] = Failure("fault", str(record["error"]), 1)
            return
        (self.done if status == "done" else self.failed)[planned.run] = record
        board.over(planned, record)

    def _fail(self, planned: Planned, one: Finished, board: Board) -> None:
        """Writes down what the worker could not: it is gone, was ended, or has no memory left."""
        failure = one.failure or Failure("error", "nothing came back of it")
        record = failed_record(planned, failure, one.worker or self._name, one.seconds)
        if failure.kind == "died":
            record |= self._death(planned)
        self._keep([record], board)
        self._take(planned, record, board)

    def _death(self, planned: Planned) -> dict[str, int]:
        """How often its worker died in a row at the checkpoint that it has now."""
        reached = max(checkpoint.steps(self.folder.runs / planned.run / "checkpoints"), default=0)
        before = self.folder.results().get(planned.at, {})
        again = before.get("kind") == "died" and before.get("reached") == reached
        return {"reached": reached, "deaths": 1 + (before.get("deaths", 0) if again else 0)}

    def _keep(self, records: Sequence[Mapping[str, Any]], board: Board) -> None:
        try:
            self.folder.add_results(self._name, records)
        except (OperationalError, UserError) as error:
            if not disk.is_full(error):
                raise
            self._fill(str(error), board)

    def _fill(self, text: str, board: Board) -> None:
        """The disk is full: prints that once, and starts nothing more."""
        if self._full is None:
            self._full = text
            board.say(text)
            self._stop.ask()

    def _written(self, item: Item) -> dict[str, Mapping[str, Any]]:
        """What a worker wrote of an item before it was gone."""
        results = self.folder.results()
        found: dict[str, Mapping[str, Any]] = {}
        for job in item:
            record = results.get((job.run, job.key))
            if record is not None and (is_done(record) or is_failed(record)) and _when(record) >= self._began:
                found[job.run] = record
        return found

    # Runs that another process is at --------------------------------------------------------------------------------

    def _free(self, board: Board) -> list[Item]:
        """Those that were put off and may be begun now, after a moment where there is none. What the other has done is
        taken over."""
        results = self.folder.results()
        found: list[Item] = []
        for busy in list(self._busy.values()):
            record = results.get(busy.planned.at)
            if record is not None and (is_done(record) or is_failed(record)):
                self._take(busy.planned, record, board)
            elif time.monotonic() >= busy.at and not Lock(self.folder.runs / busy.planned.run / "lock").held():
                found.append((Job.of(busy.planned),))
        if not found and self._busy:
            self._wait(board)
        return found

    def _wait(self, board: Board) -> None:
        text = f"waiting for {len(self._busy)} run{'s' * (len(self._busy) != 1)} that other processes are at"
        board.say_once(text)
        board.tick()
        end = time.monotonic() + 0.5
        while time.monotonic() < end and not self._stop.requested:
            time.sleep(0.05)

    # How it ended ---------------------------------------------------------------------------------------------------

    def _ended(self, planned: Planned) -> Done:
        if planned.run in self.done:
            return Done(planned.called, self.folder.runs / planned.run)
        if (record := self.failed.get(planned.run)) is not None:
            kind, left = str(record.get("kind")), not is_failed(record)
            status = 2 if kind == "mistake" else 1
            return Done(planned.called, None, str(record.get("error")), status, record.get("trace"), left, kind)
        failure = self._undone.get(planned.run, Failure("not begun", "not begun", 130))
        if self._full is not None and failure.kind in ("stopped", "not begun"):
            text = f"{failure.kind}, since the disk is full; the same command resumes"
            return Done(planned.called, None, text, 1, left=True, kind=failure.kind)
        again = any(words in failure.text for words in ("same command", "keeps running"))
        text = failure.text if again else f"{failure.text}; the same command resumes"
        status = self._stop.status or failure.status
        return Done(planned.called, None, text, status, left=True, kind=failure.kind)

    def mark(self, *more: Any) -> str:
        """A hash that changes as soon as there is something else to report on."""
        sizes = []
        for run in sorted(self.done):
            with suppress(OSError):
                about = os.stat(self.folder.runs / run / "evaluation.jsonl")
                sizes.append([run, about.st_size, about.st_mtime_ns])
        return hashlib.sha256(json.dumps([sizes, *more], default=dict).encode()).hexdigest()[:16]

    def _tidy(self) -> None:
        """Removes the state files of workers of this machine that died."""
        for state in self.folder.states():
            if gone(state):
                with suppress(OSError):
                    (self.folder.path / "states" / f"{state['worker']}.json").unlink()


def _when(record: Mapping[str, Any]) -> float:
    return float(record.get("took", {}).get("at", 0.0))


def ordered(plan: Sequence[Planned], recipes: Mapping[str, Recipe], stack: int = 1) -> list[Item]:
    """Runs as items, in the order in which they are begun: the first seed of every variant, then the second, ...; of
    one seed the costliest first, so that all workers end at about the same time."""
    position = {planned.run: number for number, planned in enumerate(plan)}
    items = _stacks(plan, recipes, stack) if stack > 1 else [(Job.of(planned),) for planned in plan]

    def rank(item: Item) -> tuple[int, float, int]:
        seed = min(job.planned.seed for job in item)
        return seed, -sum(effort(job.planned.tree) for job in item), position[item[0].run]

    return sorted(items, key=rank)


def _stacks(plan: Sequence[Planned], recipes: Mapping[str, Recipe], stack: int) -> list[Item]:
    from numerate.experiments.stacked import stack_key

    groups: dict[Hashable, list[Planned]] = {}
    for planned in plan:
        key = stack_key(recipes[planned.run])
        groups.setdefault(("alone", planned.run) if key is None else ("alike", key), []).append(planned)
    items: list[Item] = []
    for group in groups.values():
        parts = -(-len(group) // stack)
        cuts = [len(group) * number // parts for number in range(parts + 1)]
        items += [tuple(map(Job.of, group[low:high])) for low, high in pairwise(cuts)]
    return items


def effort(tree: Mapping[str, Any]) -> float:
    """How long a run may take beside others of its study, judged roughly from its settings: the examples, and the
    width, depth and loops of its model, as far as it has such settings."""
    training, model = tree.get("training", {}), tree.get("model", {})
    steps, batch = training.get("steps"), training.get("batch_size") or 1
    examples = training.get("examples") or (steps or 1) * batch
    trunk = model.get("backbone") if isinstance(model.get("backbone"), Mapping) else {}
    times = (model.get("hidden_size"), model.get("hidden_size"), trunk.get("num_layers"), trunk.get("num_loops"))
    for factor in times:
        if isinstance(factor, int | float) and not isinstance(factor, bool):
            examples *= factor
    return float(examples)

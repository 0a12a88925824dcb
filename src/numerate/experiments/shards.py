"""Evaluation of a grid in pieces of equal cost by the workers of an executor; each records into its own file."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.errors import OperationalError, UserError
from numerate.evaluation.grid import Cell, cut, mixed
from numerate.executors.executor import Executor, Failure, Work, WorkerContext
from numerate.experiments.plan import (
    CellRequest,
    EvaluatedModel,
    EvaluationPlan,
    EvaluationRequest,
    Missing,
    ProgressMessage,
)
from numerate.experiments.store import PREDICTIONS, RECORDS, Lines, Store, directory_of
from numerate.experiments.stored_run import StoredRun
from numerate.training import checkpoint
from numerate.training.lock import Lock
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stop

EACH = 6
"""Pieces per worker: where one is slower than the others, these wait for a sixth of the time at most."""

SMALLEST = 2e10
"""Floating-point operations below which a piece is not worth handing to a worker: half a second of a core."""

MANY = 64
"""Workers to cut for where it is not known how many there will be: more pieces than needed cost little."""


@dataclass(frozen=True)
class ModelShare:
    """The cells of one model in a piece: the index of its plan, and a checkpoint by its label and step.

    `left` are those not recorded yet. It is excluded from comparison, so that jobs of an earlier start of the same
    command are recognised.
    """

    plan: int
    label: str
    step: int
    cells: tuple[tuple[Cell, int], ...]
    left: tuple[CellRequest, ...] = field(compare=False)


@dataclass(frozen=True)
class GridShard:
    """A unit of work: `number` (from 1) of `of` pieces; `said`: whether predictions are recorded too."""

    number: int
    of: int
    said: bool
    shares: tuple[ModelShare, ...]

    def __str__(self) -> str:
        left = [(request.cell, share.step) for share in self.shares for request in share.left]
        steps = ", ".join(map(str, dict.fromkeys(step for _, step in left)))
        some = sorted({tuple(size for _, size in cell) for cell, _ in left})
        shown = ", ".join("x".join(map(str, sizes)) for sizes in some[:4]) + (", ..." if len(some) > 4 else "")
        return f"piece {self.number} of {self.of} ({_counted(len(left), 'cell')}: {shown} at step {steps})"


def pieces_of(
    inquiry: EvaluationRequest, cells: Sequence[Cell], missing: Missing, workers: int, predictions: bool
) -> list[GridShard]:
    """Cuts an evaluation into pieces of about equal cost, and returns those of which something is missing.

    There are `EACH` pieces for each worker, and one of each model for each worker, unless they would become very small.
    The cells of a model are mixed, so that pieces take equally long even where some costs are overestimated.
    Pieces follow the order of models, so that each needs few of them.

    Cuts depend on what is evaluated and on `workers`, not on what is known already.
    """
    every: list[tuple[EvaluatedModel, tuple[Cell, int]]] = []
    costs: list[float] = []
    cell_costs = {way.number: way.plan.costs(way.run, cells) for way in inquiry.ways[:: len(inquiry.checkpoints)]}
    for way in inquiry.ways:
        own = {cell: cost.score + cost.say * predictions for cell, cost in cell_costs[way.number].items()}
        for one in mixed(way.placements(cells), lambda one, own=own: own[one[0]]):  # type: ignore[misc]
            every.append((way, one))
            costs.append(own[one[0]])
    wanted = min(workers * max(EACH, len(inquiry.ways)), round(sum(costs) / SMALLEST))
    stretches = cut(costs, max(1, wanted))
    left = {(*way.name, one.cell, one.position_offset): one for way, ones in missing for one in ones}
    pieces = [
        GridShard(number, len(stretches), predictions, tuple(_shares(every[stretch.start : stretch.stop], left)))
        for number, stretch in enumerate(stretches, 1)
    ]
    return [piece for piece in pieces if any(share.left for share in piece.shares)]


def _shares(
    every: Sequence[tuple[EvaluatedModel, tuple[Cell, int]]], left: Mapping[tuple[int, str, Cell, int], CellRequest]
) -> Iterator[ModelShare]:
    for (plan, label), own in groupby(every, lambda one: one[0].name):
        ways, cells = zip(*own, strict=True)
        pending = tuple(left[key] for one in cells if (key := (plan, label, *one)) in left)
        yield ModelShare(plan, label, ways[0].step, cells, pending)


def refuse_shard(executor: Executor | None, shard: str | None) -> None:
    """Raises `UserError` where a grid would be cut twice."""
    if executor is not None and shard is not None:
        raise UserError("shard: an executor cuts the grid by itself; leave out one of the two")


def workers_of(executor: Executor) -> int:
    """How many workers an executor will have at once, as far as known before they start."""
    from numerate.executors.local import Local, cores
    from numerate.executors.slurm import Slurm

    if isinstance(executor, Slurm):
        return executor.array_tasks * (executor.pool.workers or 1) if executor.array_tasks else MANY
    if isinstance(executor, Local):
        return executor.workers or max(1, cores() // executor.threads)
    return executor.workers or MANY


@dataclass(frozen=True)
class Measuring(Work):
    """Evaluates pieces of a grid for the run at `path`: by each plan, with the settings that are changed for it.

    A worker writes below `pieces/` in the folder of the run, where nobody else writes, and holds a lock there while it
    does. The model that it used last stays loaded.
    """

    path: str
    device: str | None
    plans: tuple[tuple[tuple[str, ...], EvaluationPlan], ...]

    @classmethod
    def of(cls, inquiry: EvaluationRequest) -> "Measuring":
        run, _ = inquiry.plans[0]
        plans = tuple((one.changes, replace(plan, counts={})) for one, plan in inquiry.plans)
        return cls(str(run.path.absolute()), run.device, plans)

    def open(self, context: WorkerContext) -> Callable[[GridShard], int]:
        return _PieceWorker(self, context).measure

    def name_of(self, item: GridShard) -> str:
        return str(item)


class _PieceWorker:
    """The state of a worker: the loaded model, and what had been recorded when it started."""

    def __init__(self, work: Measuring, context: WorkerContext) -> None:
        self.folder, self.stop = RunFolder.open(Path(work.path)), context.stop
        runs = [StoredRun(self.folder, device=work.device, changes=changes) for changes, _ in work.plans]
        self.plans = [(run, plan) for run, (_, plan) in zip(runs, work.plans, strict=True)]
        self.directory = directory_of(self.folder, context.worker)
        store = Store(self.folder, None)
        store.gather()
        self.known, self.predicted = set(store.known), set(store.predictions)
        self._loaded: tuple[tuple[int, int], Model] | None = None

    def measure(self, piece: GridShard) -> int:
        """Evaluates all cells of a piece and returns their number. Raises `KeyboardInterrupt` when stop is requested.

        What had been recorded before is not computed again: Slurm may requeue a piece on another worker.
        """
        done = 0
        self.directory.mkdir(parents=True, exist_ok=True)
        with (
            Lock(self.directory / "lock").hold("evaluation"),
            Lines(self.directory / RECORDS) as records,
            Lines(self.directory / PREDICTIONS) as predictions,
        ):
            for share in piece.shares:
                way = self._way(share)
                for cell, position_offset, score, say in share.left:
                    if self.stop.requested:
                        raise KeyboardInterrupt
                    key = way.key(cell, position_offset)
                    if score and key not in self.known:
                        records.add(way.score(self._model(way), cell, position_offset))
                    if say and key not in self.predicted:
                        predictions.add(self._answers(way, cell, position_offset))
                    done += 1
        return done

    def _way(self, share: ModelShare) -> EvaluatedModel:
        found = checkpoint.open_checkpoint(self.folder.checkpoints / checkpoint.name_of(share.step))
        return EvaluatedModel(*self.plans[share.plan], share.plan, share.label, found)

    def _model(self, way: EvaluatedModel) -> Model:
        wanted = way.number, way.step
        if self._loaded is None or self._loaded[0] != wanted:
            self._loaded = None  # its memory is free before the next one takes some
            self._loaded = wanted, way.run.model(way.found)
        return self._loaded[1]

    def _answers(self, way: EvaluatedModel, cell: Cell, position_offset: int) -> dict[str, Any]:
        """All answers of a cell as one record, so that it is there whole or not at all."""
        label, step, _, _, _, count, seed, method = way.key(cell, position_offset)
        record = {
            "cell": dict(cell),
            "checkpoint": label,
            "step": step,
            "position_offset": position_offset,
            "count": count,
            "questions": seed,
            "method": method,
            **({"settings": dict(way.plan.settings)} if way.plan.settings else {}),
        }
        return record | {"lines": way.say(self._model(way), cell, position_offset)}


def spread(
    inquiry: EvaluationRequest,
    cells: Sequence[Cell],
    missing: Missing,
    store: Store,
    progress: ProgressMessage,
    executor: Executor,
    *,
    predictions: bool,
) -> None:
    """Evaluates what is missing with the workers of an executor, and gathers their records.

    Raises `UserError` or `OperationalError` naming the first failed piece when all others are done, and re-raises a
    signal that stopped it when its workers have stopped. What was recorded is written in order before.
    """
    if not missing:
        return
    pieces = pieces_of(inquiry, cells, missing, workers_of(executor), predictions)
    count = _Count(store)
    failed: list[tuple[GridShard, Failure]] = []
    with Stop() as stop:
        ended = executor.run(
            Measuring.of(inquiry), pieces, folder=_jobs(store), stop=stop, tick=lambda: progress.new(count())
        )
        for one in ended:
            if one.failure is not None:
                failed.append((pieces[one.index], one.failure))
            progress.new(count())
    store.gather()
    if failed:
        store.settle()
        if stop.signal is not None:
            signal.raise_signal(stop.signal)
            raise KeyboardInterrupt
        raise _error(failed, inquiry, store)
    for piece in pieces:
        if _kept(piece, inquiry, store) < _whole(piece):
            raise OperationalError(
                f"{piece}: its worker says that it is done, but {store.folder.path / 'pieces'} does not hold what it "
                "recorded; all workers must see this folder"
            )


def script(
    inquiry: EvaluationRequest,
    cells: Sequence[Cell],
    missing: Missing,
    store: Store,
    executor: Executor,
    *,
    predictions: bool,
) -> str:
    """The script that `spread` would submit."""
    pieces = pieces_of(inquiry, cells, missing, workers_of(executor), predictions)
    return executor.script(Measuring.of(inquiry), pieces, _jobs(store))


def _jobs(store: Store) -> Path:
    """The folder for files of the executor."""
    return store.folder.path / "pieces" / "jobs"


def _error(
    failed: Sequence[tuple[GridShard, Failure]], inquiry: EvaluationRequest, store: Store
) -> UserError | OperationalError:
    piece, failure = min(failed, key=lambda one: (one[1].passing, one[0].number))
    resume = "; the same command resumes"
    others = f"; {_counted(len(failed) - 1, 'more piece')} failed" if len(failed) > 1 else ""
    text = (
        f"{piece}: {failure.text.removesuffix(resume)}{others}. {_kept(piece, inquiry, store):,} of its "
        f"{_counted(_whole(piece), 'cell')} are kept, and all that other pieces recorded{resume}"
    )
    error = UserError(text) if failure.kind == "mistake" else OperationalError(text)
    if failure.trace is not None:
        error.add_note(failure.trace)
    return error


def _whole(piece: GridShard) -> int:
    return sum(len(share.left) for share in piece.shares)


def _kept(piece: GridShard, inquiry: EvaluationRequest, store: Store) -> int:
    """How many of the cells that a piece was to do are recorded."""
    ways = {way.name: way for way in inquiry.ways}
    kept = 0
    for share in piece.shares:
        for cell, position_offset, score, say in share.left:
            key = ways[share.plan, share.label].key(cell, position_offset)
            kept += (key in store.known or not score) and (store.has_predictions(key) or not say)
    return kept


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


class _Count:
    """Counts the lines that workers have added to their files since it was made."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read = {path: path.stat().st_size for path in store.written()}
        self._lines = 0

    def __call__(self) -> int:
        for path in self.store.written():
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            self._lines += new.count(b"\n")
            self._read[path] = self._read.get(path, 0) + len(new)
        return self._lines

"""The work on a run of a study: train, evaluate, report, and record the result."""

import functools
import importlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from numerate.config import from_tree
from numerate.errors import OperationalError, UserError
from numerate.evaluation.evaluator import grid_of
from numerate.executors.executor import Failure, Work, WorkerContext
from numerate.executors.memory import ran_out
from numerate.executors.worker import failure_of
from numerate.experiments.plan import usual_count
from numerate.experiments.results import Results
from numerate.experiments.start import TrainedRun
from numerate.experiments.tracking import track_results
from numerate.experiments.train import train
from numerate.studies.folder import Planned, StudyFolder, is_done
from numerate.studies.state import State
from numerate.training import checkpoint, disk
from numerate.training.lock import Lock, Locked
from numerate.training.recipe import Recipe


@dataclass(frozen=True)
class Job:
    """A run as it is given to a worker; by `run` and `key` it is known again in jobs of an earlier start."""

    run: str
    key: str
    planned: Planned = field(compare=False)

    @classmethod
    def of(cls, planned: Planned) -> "Job":
        return cls(planned.run, planned.key, planned)


Item = tuple[Job, ...]
"""One run, or several that are trained as one."""


@dataclass(frozen=True)
class WorkerReport:
    """The result of an item: a record per run, and numbered messages.

    The `status` of a record is "done" or "failed", as in the results on disk; "busy" where another process is at it, or
    "full" where the disk is; these two are nowhere but here.
    """

    records: tuple[Mapping[str, Any], ...]
    messages: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class RunWork(Work):
    """Trains and evaluates runs of the study in a folder. Every run ends with a line in the results of its worker."""

    study: str
    command: str = field(compare=False)
    """What the user typed."""
    here: str = field(compare=False)
    """Where it was typed: a user's own files are found from there."""
    chatty: bool = field(default=True, compare=False)
    """Whether all messages of a run are shown, or only its warnings."""

    def open(self, context: WorkerContext) -> Callable[[Item], WorkerReport]:
        importlib.import_module("torch._dynamo")  # or the first optimiser does so, which takes a second of its run
        return _Worker(self, context).do

    def to_plain(self, result: WorkerReport) -> Any:
        return {"records": result.records, "said": result.messages}

    def from_plain(self, data: Any) -> WorkerReport:
        for record in data["records"]:
            if not all(isinstance(record[name], str) for name in ("run", "key", "status")):
                raise ValueError("this is no record of a run")
        return WorkerReport(tuple(data["records"]), tuple((int(number), str(text)) for number, text in data["said"]))

    def keeps(self, result: WorkerReport) -> bool:
        """Keeps results of an earlier start that are done, with the run there, or failed; not "full" or "busy"."""
        runs = Path(self.study).parent
        return all(
            record["status"] == "failed"
            or (record["status"] == "done" and (runs / str(record["run"]) / "recipe.yaml").is_file())
            for record in result.records
        )

    def name_of(self, item: Item) -> str:
        names = [job.planned.called for job in item]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more in its stack"


class _Worker:
    def __init__(self, work: RunWork, context: WorkerContext) -> None:
        self.work, self.context = work, context
        self.folder = StudyFolder(Path(work.study))
        self.state = State(self.folder.path / "states", context.worker)

    def do(self, item: Item) -> WorkerReport:
        torch.set_num_threads(self.context.threads)
        before, runs = self.state.count, [job.planned for job in item]
        records: dict[str, Mapping[str, Any]] = {}
        facts = _facts(runs[0])
        facts |= {"stack": len(runs), "runs": [one.run for one in runs]} if len(runs) > 1 else {}
        with self.state.about(**facts), _warnings_to(self._warn):
            for planned in runs:
                if (found := self._nothing_to_do(planned)) is not None:
                    records[planned.run] = found
            left = [planned for planned in runs if planned.run not in records]
            if len(left) > 1:
                records |= self._stacked(left)
            for planned in left:
                if planned.run not in records:
                    self.state.tell(**_facts(planned))
                    records[planned.run] = self._kept(planned, functools.partial(self._run, planned))
        return WorkerReport(tuple(records[planned.run] for planned in runs), tuple(self.state.messages(before)))

    def _nothing_to_do(self, planned: Planned) -> Mapping[str, Any] | None:
        """The record of a run that another worker has done in the meantime, or is writing at this moment."""
        path = self.folder.runs / planned.run
        if not (path / "recipe.yaml").exists():
            return None
        found = self.folder.results().get(planned.at)
        if found is not None and is_done(found):
            return found
        return _short(planned, "busy", "another process is at it") if Lock(path / "lock").held() else None

    def _kept(self, planned: Planned, do: Callable[[], dict[str, Any]]) -> Mapping[str, Any]:
        """Does a run and appends its record. Raises when out of memory and when stopped."""
        began = time.monotonic() - self._seconds(planned)
        try:
            record = do()
            self.folder.add_results(self.context.worker, [record])
        except Locked as locked:
            return _short(planned, "busy", str(locked))
        except Exception as error:
            if ran_out(error) is not None:
                raise
            if disk.is_full(error):
                return _short(planned, "full", str(error))
            record = failed_record(planned, failure_of(error), self.context.worker, time.monotonic() - began)
            try:
                self.folder.add_results(self.context.worker, [record])
            except (OperationalError, UserError) as unwritten:
                return _short(planned, "full" if disk.is_full(unwritten) else "failed", str(unwritten))
        return record

    # A run --------------------------------------------------------------------------------------------------------

    def _run(self, planned: Planned) -> dict[str, Any]:
        worker = self.context.worker
        began, before = time.monotonic() - self._seconds(planned), self._steps(planned)
        recipe = self._recipe(planned)
        trained = train(
            recipe,
            runs_dir=self.folder.runs,
            quiet=True,
            listen=functools.partial(self._listen, planned),
            say=self._say,
            stop=self.context.stop,
            command=self.work.command,
        )
        return self._evaluated(planned, recipe, trained, lambda: _took(time.monotonic() - began, worker, 1, before))

    def _recipe(self, planned: Planned) -> Recipe:
        recipe = from_tree(planned.tree, Path(self.work.here) / "study", declared=Recipe)
        assert isinstance(recipe, Recipe)
        return recipe

    def _steps(self, planned: Planned) -> int:
        """The step of the last checkpoint of a run before it resumes, 0 for a new one."""
        return max(checkpoint.steps(self.folder.runs / planned.run / "checkpoints"), default=0)

    def _seconds(self, planned: Planned) -> float:
        """How long a run was trained before it resumes, over all its starts up to its last checkpoint."""
        seconds: float = checkpoint.last_state(self.folder.runs / planned.run / "checkpoints").get("seconds", 0.0)
        return seconds

    def _evaluated(
        self, planned: Planned, recipe: Recipe, trained: TrainedRun, took: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Measures a run that was trained, with the grid and count of this command, since it may have been trained by
        another; and says what came of it."""
        if trained.why == "stopped":
            raise KeyboardInterrupt
        run, evaluation = trained.run, recipe.evaluation
        found: dict[str, Results] = {}
        for name in ("best", "final"):  # best on OOD validation; often the final
            self.state.tell(phase=f"evaluating {name}", cells=None)
            count = usual_count(recipe)
            grid = None if evaluation.grid is None else str(grid_of(recipe.task, evaluation.grid))
            found[name] = run.evaluate(grid, count=count, checkpoint=name, on_progress=self._on_progress)
        self.state.tell(phase="report")
        run.report()
        track_results(run)
        progress = run.checkpoints("final")[0].state["progress"]
        metrics = run.folder.records("metrics.jsonl")
        target = recipe.training.target_accuracy
        ended = "budget" if target is None or progress.get("right", 0.0) < target else "target"
        return {
            **_short(planned, "done"),
            "why": "minutes" if trained.why == "minutes" else ended,
            "step": progress["step"],
            "examples": progress["examples"],
            "tokens": progress["tokens"],
            "flops": progress.get("flops"),
            "loss": _last(metrics, "loss"),
            "development": _last(metrics, "exact", "development"),
            "beyond-development": _last(metrics, "exact", "beyond-development"),
            **_of_text(metrics),
            "best_step": progress["best"],
            "final": regions(found["final"]),
            "best": regions(found["best"]),
            "took": took(),
        }

    # Several as one -----------------------------------------------------------------------------------------------

    def _stacked(self, group: Sequence[Planned]) -> dict[str, Mapping[str, Any]]:
        """The records of runs that were trained as one model; of none where that failed, and each is then done by
        itself, so that only the one at fault fails."""
        from numerate.experiments.stacked import train_stacked

        began, before = time.monotonic(), [(self._steps(planned), self._seconds(planned)) for planned in group]
        recipes = [self._recipe(planned) for planned in group]

        def listen(index: int, kind: str, record: Mapping[str, Any]) -> None:
            self._listen(group[index], kind, record)

        try:
            ended = train_stacked(
                recipes,
                runs_dir=self.folder.runs,
                listen=listen,
                say=self._say,
                stop=self.context.stop,
                command=self.work.command,
            )
        except Exception as error:
            self._say(f"warning: a stack of {len(group)} runs is done one by one: {error}")
            return {}
        each = (time.monotonic() - began) / len(group)
        records = {}
        for planned, recipe, one, (step, seconds) in zip(group, recipes, ended, before, strict=True):
            self.state.tell(**_facts(planned))
            do = functools.partial(self._of_stack, planned, recipe, one, seconds + each, len(group), step)
            records[planned.run] = self._kept(planned, do)
        return records

    def _of_stack(
        self, planned: Planned, recipe: Recipe, one: TrainedRun | Exception, each: float, stack: int, before: int
    ) -> dict[str, Any]:
        """What came of one run of a stack, which took `each` seconds of the stack's and of earlier starts."""
        if isinstance(one, Exception):
            raise one
        since = time.monotonic()

        def took() -> dict[str, Any]:
            return _took(each + time.monotonic() - since, self.context.worker, stack, before)

        return self._evaluated(planned, recipe, one, took)

    # Messages -----------------------------------------------------------------------------------------------------

    def _listen(self, planned: Planned, kind: str, record: Mapping[str, Any]) -> None:
        if kind == "step":
            self.state.tell(step=record["step"], steps=record["steps"], loss=record.get("loss"))
        elif kind == "evaluation" and "perplexity" in record and self.work.chatty:
            text = f"validation loss {record['loss']:.4g}, perplexity {record['perplexity']:.4g}"
            self.state.say(f"{planned.called} step {record['step']}: {text}")
        elif kind == "evaluation" and record["split"] == "development" and self.work.chatty:
            self.state.say(f"{planned.called} step {record['step']}: {record['exact']:.1%} right in distribution")

    def _say(self, text: str) -> None:
        if self.work.chatty or text.startswith("warning: "):
            self.state.say(text)

    def _warn(self, message: Warning | str, *_: object) -> None:
        self._say(f"warning: {message}")

    def _on_progress(self, done: int, of: int) -> None:
        self.state.tell(cells=[done, of])
        if self.context.stop.requested:
            raise KeyboardInterrupt


def failed_record(planned: Planned, failure: Failure, worker: str, seconds: float) -> dict[str, Any]:
    """The line of a run that has no result."""
    return {
        **_short(planned, "failed"),
        "kind": failure.kind,
        "error": failure.text,
        "trace": failure.trace,
        "took": _took(seconds, worker, 1, 0),
    }


def regions(results: Results) -> dict[str, dict[str, Any]]:
    """The regions of an evaluation as trained, at the first placement: those with held-out questions, or all where none
    has any. Of labels all regions and the means over placements: what is trained there has rarely more than one row."""
    if results.running:  # a line for each context, of which the trained one comes under its own name
        found = [line for line in results.headline() if not line["settings"]]
        return {
            "in_distribution" if line["region"] == "in_distribution" else f"context {line['context_length']}": {
                "language": line["language"]
            }
            for line in found
        }
    lines = [line for line in results.headline() if not line["settings"]]
    lines = [line for line in lines if not line["seen"] or "labels" in line] or lines
    names = ("mean", "low", "high", "cells", "labels", "answers", "sees_future")
    return {line["region"]: {name: line[name] for name in names if name in line} for line in lines}


def _short(planned: Planned, status: str, error: str | None = None) -> dict[str, Any]:
    record = {
        "run": planned.run,
        "key": planned.key,
        "label": planned.label,
        "seed": planned.seed,
        "status": status,
    }
    return record if error is None else {**record, "error": error}


def _facts(planned: Planned) -> dict[str, Any]:
    """The state of a run that was just started."""
    return {
        "run": planned.run,
        "label": planned.label,
        "seed": planned.seed,
        "step": 0,
        "steps": planned.tree.get("training", {}).get("steps"),
        "phase": "training",
        "cells": None,
        "loss": None,
    }


def _took(seconds: float, worker: str, stack: int, before: int) -> dict[str, Any]:
    """All that depends on the machine: the `seconds` of all starts, `from` which step this one began, and when it ended
    (`at`, Unix time)."""
    return {"seconds": round(seconds, 3), "worker": worker, "stack": stack, "from": before, "at": round(time.time(), 3)}


def _of_text(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of running text what training measured last on the development split."""
    names = {"development_loss": "loss", "development_perplexity": "perplexity", "development_bits": "bits_per_byte"}
    if not any("perplexity" in line for line in metrics):
        return {}
    return {column: _last(metrics, name, "development") for column, name in names.items()}


def _last(metrics: Sequence[Mapping[str, Any]], name: str, split: str | None = None) -> Any:
    return next((line[name] for line in reversed(metrics) if name in line and line.get("split") == split), None)


@contextmanager
def _warnings_to(show: Callable[..., None]) -> Any:
    """Passes Python warnings to `show`, each once per run."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield

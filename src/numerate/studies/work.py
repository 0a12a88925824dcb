"""Trains, evaluates and reports one run of a study, and records the result."""

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from numerate.config import from_tree
from numerate.evaluation.answer_metrics import own_scores
from numerate.evaluation.evaluator import resolve_grid
from numerate.executors.executor import Failure, Work, WorkerContext
from numerate.executors.worker import failure_to_record
from numerate.runs.results import Results
from numerate.runs.tracking import track_results
from numerate.runs.train import TrainedRun, train
from numerate.studies.folder import PlannedRun, StudyFolder, is_done
from numerate.studies.state import WorkerStateFile
from numerate.training import checkpoint
from numerate.training.recipe import Recipe

Message = tuple[int, str]
"""A message of a worker with its number, from 1."""


@dataclass(frozen=True)
class RunWork(Work):
    """Trains and evaluates runs of the study in a folder.

    A record per run is appended to the worker's results; the result of an item are the messages about it. An item
    fails as "busy" if another process is training its run.
    """

    study: str
    command: str = field(compare=False, repr=False)
    """The command line."""
    working_directory: str = field(compare=False, repr=False)
    """The working directory of the command; paths of user files are relative to it."""
    verbose: bool = field(default=True, compare=False, repr=False)
    """Whether all messages of a run are shown, or only its warnings."""

    def open(self, context: WorkerContext) -> Callable[[PlannedRun], list[Message]]:
        return _StudyWorker(self, context).run_item

    def check_result(self, result: Any) -> None:
        if not all(isinstance(number, int) and isinstance(text, str) for number, text in result):
            raise ValueError("not messages")

    def item_name(self, item: PlannedRun) -> str:
        return item.display_name


class _StudyWorker:
    def __init__(self, work: RunWork, context: WorkerContext) -> None:
        self.work, self.context = work, context
        self.folder = StudyFolder(Path(work.study))
        self.state = WorkerStateFile(self.folder.path / "states", context.worker)

    def run_item(self, planned: PlannedRun) -> list[Message]:
        torch.set_num_threads(self.context.threads)
        num_messages_before = self.state.num_messages
        with self.state.publish(**_initial_state(planned)), _redirect_warnings(self._warn):
            if not self._is_done(planned):
                self._run(planned)
        return self.state.messages(num_messages_before)

    def _is_done(self, planned: PlannedRun) -> bool:
        """Whether another worker has completed a run meanwhile."""
        if not (self.folder.runs_dir / planned.run / "recipe.yaml").exists():
            return False
        result = self.folder.results().get(planned.result_key)
        return result is not None and is_done(result)

    def _run(self, planned: PlannedRun) -> None:
        """Trains and evaluates a run, and appends its record, or that of its error. During its evaluation the run is
        locked, too, so that nobody else does the same.

        Raises `LockedError` if another process trains it, errors of memory and of a full disk, and `KeyboardInterrupt`
        when stopped.
        """
        checkpoints = self.folder.runs_dir / planned.run / "checkpoints"
        first_step = checkpoint.last_step(checkpoints)
        start_time = time.monotonic() - checkpoint.last_state(checkpoints).get("seconds", 0.0)
        worker = self.context.worker
        with ExitStack() as lock:
            try:
                trained = train(
                    self._recipe(planned),
                    runs_dir=self.folder.runs_dir,
                    quiet=True,
                    on_record=functools.partial(self._on_record, planned),
                    on_message=self._add_message,
                    stop=self.context.stop,
                    command=self.work.command,
                )
                self.state.update(step=planned.num_steps or 0)
                lock.enter_context(trained.run.folder.lock("evaluation"))
                record = self._evaluate(planned, trained)
                record["timing"] = _timing_record(time.monotonic() - start_time, worker, first_step)
            except Exception as error:
                record = failed_record(planned, failure_to_record(error), worker, time.monotonic() - start_time)
            self.folder.add_results(worker, [record])

    def _recipe(self, planned: PlannedRun) -> Recipe:
        recipe = from_tree(planned.tree, Path(self.work.working_directory) / "study", expected_class=Recipe)
        assert isinstance(recipe, Recipe)
        return recipe

    def _evaluate(self, planned: PlannedRun, trained: TrainedRun) -> dict[str, Any]:
        """Evaluates a trained run with the grid and count of this command (another command may have trained it), and
        returns its record without the timing."""
        if trained.stop_reason == "stopped":
            raise KeyboardInterrupt
        recipe = self._recipe(planned)
        run, evaluation = trained.run, recipe.evaluation
        results_by_checkpoint: dict[str, Results] = {}
        for name in ("best", "final"):  # the best checkpoint is often the final one
            self.state.update(phase=f"evaluating {name}", cells=None)
            count = run.evaluation_data.kind.default_count(evaluation)
            grid = None if evaluation.grid is None else str(resolve_grid(recipe.task, evaluation.grid))
            results_by_checkpoint[name] = run.evaluate(
                grid, count=count, checkpoint=name, on_progress=self._on_progress
            )
        self.state.update(phase="report")
        run.report()
        track_results(run)
        progress = run.checkpoints("final")[0].state["progress"]
        metrics, extensions = run.folder.records("metrics.jsonl"), run.folder.metadata().get("extensions")
        target = recipe.training.target_accuracy
        stop_reason = "budget" if target is None or progress.get("exact_match", 0.0) < target else "target"
        return {
            **_base_record(planned, "done"),
            **({"extended_from": extensions[-1]["budget"]} if extensions else {}),
            "stop_reason": "minutes" if trained.stop_reason == "minutes" else stop_reason,
            "step": progress["step"],
            "examples": progress["examples"],
            "tokens": progress["tokens"],
            "flops": progress.get("flops"),
            "loss": _last_value(metrics, "loss"),
            "validation_exact_match": _last_value(metrics, "exact_match", "validation"),
            "ood_validation_exact_match": _last_value(metrics, "exact_match", "ood_validation"),
            **_language_metrics(metrics),
            "best_step": progress["best"],
            "final": region_summaries(results_by_checkpoint["final"]),
            "best": region_summaries(results_by_checkpoint["best"]),
        }

    # Messages -----------------------------------------------------------------------------------------------------

    def _on_record(self, planned: PlannedRun, kind: str, record: Mapping[str, Any]) -> None:
        if kind == "step":
            self.state.update(step=record["step"], steps=record["steps"], loss=record.get("loss"))
        elif kind == "evaluation" and "perplexity" in record and self.work.verbose:
            text = f"validation loss {record['loss']:.4g}, perplexity {record['perplexity']:.4g}"
            self.state.add_message(f"{planned.display_name} step {record['step']}: {text}")
        elif kind == "evaluation" and record["split"] == "validation" and self.work.verbose:
            self.state.add_message(
                f"{planned.display_name} step {record['step']}: {record['exact_match']:.1%} correct in distribution"
            )

    def _add_message(self, text: str) -> None:
        if self.work.verbose or text.startswith("warning: "):
            self.state.add_message(text)

    def _warn(self, message: Warning | str, *_: object) -> None:
        self._add_message(f"warning: {message}")

    def _on_progress(self, done: int, total: int) -> None:
        self.state.update(cells=[done, total])
        if self.context.stop.requested:
            raise KeyboardInterrupt


def failed_record(planned: PlannedRun, failure: Failure, worker: str, seconds: float) -> dict[str, Any]:
    """The record of a failed run."""
    return {
        **_base_record(planned, "failed"),
        "failure": failure.kind,
        "error": failure.text,
        "traceback": failure.traceback,
        "timing": _timing_record(seconds, worker, 0),
    }


def region_summaries(results: Results) -> dict[str, dict[str, Any]]:
    """The regions of an evaluation with the settings of training, at the first position offset: those with held-out
    questions, or all if none has any. For label tasks, all regions, averaged over position offsets: their trained cells
    often have too few distinct rows to hold any out."""
    lines = [line for line in results.summary_lines() if not line["settings"]]
    if any("language" in line for line in lines):  # one per context length; the trained one is named in_distribution
        return {
            "in_distribution" if line["region"] == "in_distribution" else f"context {line['context_length']}": {
                "language": line["language"]
            }
            for line in lines
        }
    if not results.counts_answers:  # of a kind with entries of its own: its numbers
        return {line["region"]: {"answers": own_scores(line)} for line in lines}
    lines = [line for line in lines if not line["overlaps_training"] or "labels" in line] or lines
    names = ("mean", "low", "high", "cells", "labels", "answers", "non_causal_reason")
    return {line["region"]: {name: line[name] for name in names if name in line} for line in lines}


def _base_record(planned: PlannedRun, status: str) -> dict[str, Any]:
    return {
        "run": planned.run,
        "key": planned.key,
        "label": planned.label,
        "seed": planned.seed,
        "status": status,
    }


def _initial_state(planned: PlannedRun) -> dict[str, Any]:
    """The state of a run that was just started."""
    return {
        "run": planned.run,
        "label": planned.label,
        "seed": planned.seed,
        "step": 0,
        "steps": planned.num_steps,
        "phase": "training",
        "cells": None,
        "loss": None,
    }


def _timing_record(seconds: float, worker: str, first_step: int) -> dict[str, Any]:
    """All that depends on the machine: the `seconds` of all sessions, the `start_step` of this one, and when it `ended`
    (Unix time)."""
    return {
        "seconds": round(seconds, 3),
        "worker": worker,
        "start_step": first_step,
        "ended": round(time.time(), 3),
    }


def _language_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For language modeling, the last validation metrics of training."""
    if not any("perplexity" in line for line in metrics):
        return {}
    names = ("loss", "perplexity", "bits_per_byte")
    return {f"validation_{name}": _last_value(metrics, name, "validation") for name in names}


def _last_value(metrics: Sequence[Mapping[str, Any]], name: str, split: str | None = None) -> Any:
    return next((line[name] for line in reversed(metrics) if name in line and line.get("split") == split), None)


@contextmanager
def _redirect_warnings(on_warning: Callable[..., None]) -> Any:
    """Passes Python warnings to `on_warning`, each once per run."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = on_warning
        yield

"""Runs side by side on this machine: a few processes, each training and evaluating one recipe after the other."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from numerate.config import from_tree, to_tree
from numerate.errors import Fault, Mistake
from numerate.training import provenance
from numerate.training.progress import Progress
from numerate.training.recipe import Recipe
from numerate.training.stopping import Stop

Listener = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Done:
    """How a run of a study ended: `path` of its folder, or `error`; `status` as an exit status; `trace` of a fault."""

    label: str
    path: Path | None
    error: str | None = None
    status: int = 0
    trace: str | None = None


def run_all(
    recipes: Sequence[Recipe],
    runs: Path,
    *,
    label: str,
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> list[Done]:
    """Trains and evaluates recipes in `workers` processes (as many as cores, if not given), one bar for them all.

    A run that fails takes no other with it. Ctrl-C and SIGTERM stop every run at the end of its step, with a
    checkpoint.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = max(1, min(workers or cores, len(recipes)))
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    jobs: Any = context.Queue()
    for number, recipe in enumerate(recipes):
        jobs.put((number, to_tree(recipe)))
    for _ in range(workers):
        jobs.put(None)
    threads = max(1, cores // workers)
    processes = [
        context.Process(
            target=_work, args=(jobs, events, runs, threads, os.getpid(), provenance.command()), daemon=False
        )
        for _ in range(workers)
    ]
    board = _Board(recipes, label, say)
    done: dict[int, Done] = {}
    with Stop() as stop, board:
        for process in processes:
            process.start()
        told = False
        while len(done) < len(recipes) and (any(p.is_alive() for p in processes) or not events.empty()):
            if stop.asked and not told:
                told = True
                for process in processes:
                    if process.pid is not None and process.is_alive():
                        os.kill(process.pid, signal.SIGTERM)
            try:
                number, kind, record = events.get(timeout=0.2)
            except Empty:
                continue
            if kind == "done":
                done[number] = record
            board.hear(number, kind, record)
        for process in processes:
            process.join()
    for number, recipe in enumerate(recipes):
        if number not in done:
            status = 130 if stop.asked else 1
            reason = (
                "not begun"
                if stop.asked
                else "its process died (a script needs `if __name__ == '__main__':`); the same command goes on"
            )
            done[number] = Done(_label(recipe), None, reason, status)
    return [done[number] for number in range(len(recipes))]


def _work(jobs: Any, events: Any, runs: Path, threads: int, parent: int, command: str) -> None:
    """A worker process: one recipe after the other until there are none."""
    import torch

    torch.set_num_threads(threads)
    while (job := jobs.get()) is not None:
        number, tree = job
        recipe = from_tree(tree, "study", declared=Recipe)
        stop = Stop()

        def listen(kind: str, record: Mapping[str, Any], number: int = number, stop: Stop = stop) -> None:
            if os.getppid() != parent:
                stop.ask()  # whoever waits for this run is gone
            if kind in ("step", "evaluation", "cells", "say"):
                events.put((number, kind, dict(record)))

        done = _run(recipe, runs, listen, stop, command)
        events.put((number, "done", done))
        if done.status >= 128:
            break


def _run(recipe: Recipe, runs: Path, listen: Listener, stop: Stop, command: str) -> Done:
    label = _label(recipe)

    def heard(done: int, of: int) -> None:
        listen("cells", {"done": done, "of": of})
        if stop.asked:
            raise KeyboardInterrupt

    try:
        with stop:
            return _train_and_evaluate(recipe, runs, listen, heard, stop, command)
    except KeyboardInterrupt:
        return Done(label, None, "stopped; the same command goes on from here", stop.status or 130)
    except Mistake as mistake:
        return Done(label, None, str(mistake), 2)
    except Fault as fault:
        return Done(label, None, str(fault), 1)
    except Exception as error:
        reason = f"this is a fault of the program: {type(error).__name__}: {error} (--traceback shows where)"
        return Done(label, None, reason, 1, traceback.format_exc())


def _train_and_evaluate(
    recipe: Recipe, runs: Path, listen: Listener, heard: Callable[[int, int], None], stop: Stop, command: str
) -> Done:
    from numerate.laboratory.tracking import track_results
    from numerate.laboratory.train import train

    label = _label(recipe)
    trained = train(
        recipe,
        runs_dir=runs,
        quiet=True,
        listen=listen,
        say=lambda text: listen("say", {"text": text}),
        stop=stop,
        command=command,
    )
    if trained.why == "stopped":
        return Done(label, trained.run.path, "stopped; the same command goes on from here", trained.status or 130)
    grid, count = (
        recipe.evaluation.grid,
        recipe.evaluation.count,
    )  # of this command: the run may have been trained before
    trained.run.evaluate(grid, count=count, checkpoint="best", heard=heard)  # best on the next lengths; often the final
    trained.run.evaluate(grid, count=count, heard=heard)
    trained.run.report()
    track_results(trained.run)
    return Done(label, trained.run.path)


class _Board:
    """One bar for all runs: their steps together, and what is known of each."""

    def __init__(self, recipes: Sequence[Recipe], label: str, say: Callable[[str], None]) -> None:
        self.labels = [_label(recipe) for recipe in recipes]
        self.steps = [recipe.training.steps or 0 for recipe in recipes]
        self.done = [0] * len(recipes)
        self.known: list[str] = [""] * len(recipes)
        self.progress = Progress(sum(self.steps), label=label)

    def __enter__(self) -> "_Board":
        self.progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.progress.__exit__(*error)

    def hear(self, number: int, kind: str, record: Any) -> None:
        label = self.labels[number]
        if kind == "step":
            if self.steps[number] != record["steps"]:  # a budget in tokens or examples is known in steps only now
                self.steps[number] = record["steps"]
                self.progress.resize(sum(self.steps))
            self.done[number] = record["step"]
            if "loss" in record:
                self.known[number] = f"{record['loss']:.2g}"
            self._show()
        elif kind == "evaluation" and record["split"] == "development":
            self.progress.say(f"{label} step {record['step']}: {record['exact']:.1%} right on trained lengths")
        elif kind == "say":
            self.progress.say(record["text"])
        elif kind == "done":
            if record.error is None:
                self.done[number] = self.steps[number]
            self.progress.say(f"{label}: {'done' if record.error is None else record.error}")
            self._show()

    def _show(self) -> None:
        shown = {label: loss for label, loss in zip(self.labels, self.known, strict=True) if loss}
        text = ", ".join(f"{label} {loss}" for label, loss in list(shown.items())[:3])
        self.progress.step(sum(self.done), **({"loss": text} if text else {}))


def _label(recipe: Recipe) -> str:
    return recipe.name or (f"{recipe.title} seed {recipe.seed}" if recipe.seed else recipe.title)

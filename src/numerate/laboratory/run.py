"""A run that is there: its recipe, its weights, its results."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.config import from_tree
from numerate.errors import Mistake
from numerate.evaluation.evaluator import Exam, Method, cost, default_grid, evaluate_cell, method_for
from numerate.evaluation.grid import Cell, Grid, parse_shard, region
from numerate.evaluation.grid import shard as cut
from numerate.evaluation.samples import Said, answers
from numerate.evaluation.statistics import region_mean
from numerate.training import checkpoint
from numerate.training.lock import Lock
from numerate.training.parallel import refuse_other_weights
from numerate.training.recipe import Recipe
from numerate.training.run import RunFolder, find, runs_directory
from numerate.training.world import device_of

Heard = Callable[[int, int], None]
"""Told of progress: so many cells done of so many."""


def load(address: str | Path, runs_dir: str | Path | None = None, device: str | None = None) -> "Run":
    """A run by its path, the beginning of its id, its name, or `latest`. Raises `Mistake` where there is none.

    >>> run = numerate.load("latest")
    >>> run.ask("321+654=")
    """
    return Run(find(address, runs_directory(runs_dir)), device=device)


class Run:
    """A trained run. Shows itself in a notebook as its results."""

    def __init__(self, folder: RunFolder, *, device: str | None = None) -> None:
        self.folder = folder
        self._device = device

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def recipe(self) -> Recipe:
        found = from_tree(self.folder.head()["recipe"], self.folder.file("recipe.yaml"), declared=Recipe)
        assert isinstance(found, Recipe)
        return found

    @cached_property
    def exam(self) -> Exam:
        return Exam(self.recipe.task, self.recipe.tokenizer, self.recipe.layout)

    @cached_property
    def blank(self) -> Model:
        """The model as initialised, on the CPU: what can be asked without any weights (placements, tables)."""
        return self.recipe.model.build(self.exam.vocabulary, self.recipe.seed)

    def checkpoints(self, name: str = "final") -> list[checkpoint.Checkpoint]:
        """The checkpoints meant by `final`, `best`, `all` or a step."""
        found, warnings = checkpoint.by_name(self.folder.checkpoints, str(name))
        for text in warnings:
            self._warn(text)
        return found

    def model(self, name: str | checkpoint.Checkpoint = "final") -> Model:
        """The model with the weights of a checkpoint, ready to answer (dropout off)."""
        found = name if isinstance(name, checkpoint.Checkpoint) else self.checkpoints(name)[0]
        weights = found.read(only=["weights"])["weights"]
        model = self.recipe.model.build(self.exam.vocabulary, self.recipe.seed)
        refuse_other_weights(model.state_dict(), weights, str(found.path))
        model.load_state_dict(weights)
        return model.to(device_of(self._device or self.recipe.device)).eval()

    # Evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        grid: str | None = None,
        *,
        count: int | None = None,
        checkpoint: str = "final",
        method: Method = "one pass",
        shard: str | None = None,
        predictions: bool = False,
        heard: Heard | None = None,
    ) -> "Results":
        """Exact match on a grid of cells, with intervals, at every fixed placement of the model.

        >>> results = run.evaluate("1:12x1:12", count=200, checkpoint="best")
        >>> results.regions()[0]["mean"]

        Cells that `evaluation.jsonl` has already are not computed again. `checkpoint` is final, best, all or a step.
        `shard="2/4"` computes the second of four pieces of equal cost into a file of its own; evaluating without a
        shard afterwards gathers them. `predictions` also writes what was said to every question. Twice the same call
        leaves the same bytes. Raises `Mistake` for a grid that the model cannot read, before any work is done.
        """
        planned = Plan.of(self, grid, count, method)
        planned.check(self)
        number, of = parse_shard(shard) if shard is not None else (1, 1)
        cells = cut(planned.grid.cells(), number, of, cost)
        named = [(_label(checkpoint, found), found) for found in self.checkpoints(checkpoint)]
        store = Store(self.folder, f"{number}-of-{of}" if shard is not None else None)
        with store.lock():
            store.relabel({label: found.step for label, found in named})
            results: list[dict[str, Any]] = []
            for label, found in named:
                results += self._evaluate(planned, cells, label, found, store, heard)
                if predictions:
                    self._predict(planned, cells, label, found, store)
            if shard is None:
                self._sample(planned, named[-1][1])
            store.settle()
        return Results(results, [found for _, found in named], self._best())

    def _best(self) -> Mapping[str, Any] | None:
        """Which step is the best so far and what it was chosen on, as the last sound checkpoint knows it."""
        known = self.checkpoints("final")[0].state.get("progress", {})
        if known.get("best") is None:
            return None
        return {"step": known["best"], "score": known["best_score"], "chosen_on": known["best_split"]}

    def _evaluate(
        self,
        planned: "Plan",
        cells: Sequence[Cell],
        label: str,
        found: checkpoint.Checkpoint,
        store: "Store",
        heard: Heard | None,
    ) -> list[dict[str, Any]]:
        wanted = [(cell, placement) for placement in range(planned.placements) for cell in cells]
        model: Model | None = None
        results = []
        for done, (cell, placement) in enumerate(wanted):
            key = (label, found.step, cell, placement, planned.count, planned.seed, planned.method)
            if key not in store.known:
                model = model or self.model(found)
                record = evaluate_cell(
                    model,
                    self.exam,
                    dict(cell),
                    count=planned.count,
                    seed=planned.seed,
                    placement=placement,
                    method=planned.method,
                )
                record |= {
                    "seed": self.recipe.seed,
                    "checkpoint": label,
                    "step": found.step,
                    "questions": planned.seed,
                    "region": planned.region(cell),
                }
                store.add(key, record)
            results.append(store.known[key])
            if heard is not None:
                heard(done + 1, len(wanted))
        return results

    def _predict(
        self, planned: "Plan", cells: Sequence[Cell], label: str, found: checkpoint.Checkpoint, store: "Store"
    ) -> None:
        model = self.model(found)
        lines = []
        for placement in range(planned.placements):
            for cell in cells:
                questions = self.exam.task.pinned(**dict(cell)).examples("test", planned.seed, 0, planned.count)
                for said in answers(model, self.exam, questions, placement):
                    place = {"checkpoint": label, "step": found.step, "placement": placement}
                    lines.append(said.record(dict(cell)) | place)
        store.write("predictions.jsonl", lines, ("checkpoint", "step", "placement"))

    def _sample(self, planned: "Plan", found: checkpoint.Checkpoint, each: int = 4) -> None:
        """A few answers from inside and from beyond what was trained, for the report."""
        cells = planned.telling(self.recipe)
        model = self.model(found)
        records = []
        for cell in cells:
            questions = self.exam.task.pinned(**dict(cell)).examples("test", planned.seed, 0, each)
            records += [said.record(dict(cell)) | {"step": found.step} for said in answers(model, self.exam, questions)]
        self.folder.write("samples.jsonl", _lines(records))

    # Asking and showing -------------------------------------------------------------------------------------------

    def ask(self, question: str, checkpoint: str = "final") -> Said:
        """What the model answers to a question as a person writes it, how sure it is, and the truth.

        >>> run.ask("321+654=").said
        '975'
        """
        questions = self.exam.task.read(question)
        batch = self.exam.batch(questions)
        for warning in self.blank.check(batch.tokens, self.exam.longest(self.recipe.task)):
            self._warn(warning)
        return answers(self.model(checkpoint), self.exam, questions)[0]

    def report(self) -> Path:
        """Writes `report.html`, one self-contained page, and returns its path."""
        from numerate.reports.page import write_page

        return write_page(self.path)

    def _warn(self, text: str) -> None:
        import warnings

        warnings.warn(text, stacklevel=3)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        from numerate.reports.page import fragment

        return fragment(self.path)


@dataclass(frozen=True)
class Plan:
    """What an evaluation is to measure, checked before any work."""

    grid: Grid
    count: int
    seed: int
    method: Method
    placements: int
    trained: Mapping[str, Any]
    band: Mapping[str, Any] | None

    @classmethod
    def of(cls, run: Run, grid: str | None, count: int | None, method: Method) -> "Plan":
        recipe, task = run.recipe, run.recipe.task
        text = grid or recipe.evaluation.grid
        if method not in ("one pass", "decoding"):
            raise Mistake(f"method: {method!r} is neither 'one pass' nor 'decoding'")
        if count is not None and count < 1:
            raise Mistake(f"count: {count} questions measure nothing; 100 give +-10 points at 50 %")
        beyond = task.beyond()
        return cls(
            Grid.parse(text, task.axes()) if text else default_grid(task),
            count or recipe.evaluation.count,
            recipe.evaluation.seed,
            method_for(run.exam, method),
            run.blank.placements(),
            task.trained(),
            beyond.trained() if beyond is not None else None,
        )

    def check(self, run: Run) -> None:
        """Raises `Mistake` if the largest cell is beyond the model; warns of places that no training example had."""
        largest = {axis: span.high for axis, span in zip(self.grid.axes, self.grid.spans, strict=True)}
        recipe = run.recipe
        tokens = run.exam.longest(recipe.task.pinned(**largest), split="test")
        try:
            found = run.blank.check(tokens, run.exam.longest(recipe.task))
        except Mistake as mistake:
            raise Mistake(f"grid: {self.grid}: {mistake}") from mistake
        for warning in found:
            run._warn(warning)

    def region(self, cell: Cell) -> str:
        return region(dict(cell), self.trained, self.band)

    def telling(self, recipe: Recipe) -> list[Cell]:
        """Cells worth reading: the largest trained one, the next ones, the largest of the grid."""
        sides: dict[str, list[Cell]] = {}
        for cell in self.grid.cells():
            if len({value for _, value in cell}) == 1:
                sides.setdefault(self.region(cell), []).append(cell)
        trained, beyond = sides.get("trained", []), sides.get("band", []) + sides.get("beyond", [])
        chosen = trained[-1:] + beyond[:1] + beyond[len(beyond) // 2 : len(beyond) // 2 + 1] + beyond[-1:]
        return list(dict.fromkeys(chosen)) or self.grid.cells()[:1]


Key = tuple[str, int, Cell, int, int, int, str]


class Store:
    """The records of evaluations in a run's folder; a piece has a folder of its own below it.

    Records are appended as they come, so that a stopped evaluation goes on where it was, and put in their order at the
    end, so that the same evaluation leaves the same bytes.
    """

    def __init__(self, folder: RunFolder, piece: str | None) -> None:
        self.folder, self.piece = folder, piece
        self.place = folder.path / "pieces" / piece if piece is not None else folder.path
        self.file = f"pieces/{piece}/evaluation.jsonl" if piece is not None else "evaluation.jsonl"
        self.known: dict[Key, dict[str, Any]] = {}

    def lock(self) -> Any:
        if self.piece is None:
            return self.folder.lock("evaluation")
        self.place.mkdir(parents=True, exist_ok=True)
        return Lock(self.place / "lock").hold("evaluation")

    def relabel(self, steps: Mapping[str, int]) -> None:
        """Reads what is known. Records of a `final` or `best` that is another step by now are kept under their step."""
        files = [self.file]
        if self.piece is None:
            files += [
                f"pieces/{path.parent.name}/evaluation.jsonl" for path in self.folder.path.glob("pieces/*/*.jsonl")
            ]
        else:
            files.append("evaluation.jsonl")
        for name in dict.fromkeys(files):
            for record in self.folder.records(name):
                label = str(record["checkpoint"])
                if label in steps and record.get("step") != steps[label]:
                    record["checkpoint"] = f"step {record['step']}"
                self.known.setdefault(_key(record), record)

    def add(self, key: Key, record: dict[str, Any]) -> None:
        self.known[key] = record
        self.folder.append(self.file, record)

    def settle(self) -> None:
        """Puts all records in their order."""
        if self.piece is None:
            self.folder.write(self.file, _lines([self.known[key] for key in sorted(self.known)]))

    def write(self, name: str, lines: Sequence[Mapping[str, Any]], same: Sequence[str]) -> None:
        """Puts lines into a file of records, in the place of those that agree in `same`."""
        name = name if self.piece is None else f"pieces/{self.piece}/{name}"
        replaced = {tuple(line[field] for field in same) for line in lines}
        kept = [line for line in self.folder.records(name) if tuple(line.get(field) for field in same) not in replaced]
        self.folder.write(name, _lines([*kept, *lines]))


@dataclass(frozen=True, repr=False)
class Results:
    """Records of an evaluation, with region means; shows itself as a table."""

    records: Sequence[Mapping[str, Any]]
    checkpoints: Sequence[checkpoint.Checkpoint]
    best: Mapping[str, Any] | None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def regions(self) -> list[dict[str, Any]]:
        """Per checkpoint, placement and region: the mean over cells with held-out questions, with its interval."""
        groups: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        for record in self.records:
            if record["seen"]:
                continue
            key = (record["checkpoint"], record["step"], record["placement"], record["region"])
            groups.setdefault(key, []).append((record["correct"], record["count"]))
        found = []
        for (label, step, placement, name), cells in groups.items():
            mean = region_mean(cells)
            found.append(
                {
                    "checkpoint": label,
                    "step": step,
                    "placement": placement,
                    "region": name,
                    "cells": len(cells),
                    "mean": mean.value,
                    "low": mean.low,
                    "high": mean.high,
                }
            )
        return found

    def __str__(self) -> str:
        from numerate.reports.table import text_table

        header = ["checkpoint", "step", "placement", "region", "cells", "right", "95 % interval"]
        rows = [
            [
                str(line["checkpoint"]),
                str(line["step"]),
                str(line["placement"]),
                str(line["region"]),
                str(line["cells"]),
                f"{line['mean']:.1%}",
                f"{line['low']:.1%} to {line['high']:.1%}",
            ]
            for line in self.regions()
        ]
        return text_table(header, rows)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def _label(name: str, found: checkpoint.Checkpoint) -> str:
    return name if name in ("final", "best") else f"step {found.step}"


def _key(record: Mapping[str, Any]) -> Key:
    cell: Cell = tuple((str(axis), int(value)) for axis, value in record["cell"].items())
    return (
        str(record["checkpoint"]),
        int(record["step"]),
        cell,
        int(record["placement"]),
        int(record["count"]),
        int(record.get("questions", 0)),
        str(record["method"]),
    )


def _lines(records: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)

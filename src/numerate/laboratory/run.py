"""A run that is there: its recipe, its weights, its results."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.config import expand, from_tree
from numerate.errors import Fault, Mistake
from numerate.evaluation.evaluator import Exam, Method, evaluate_cell, questions_of
from numerate.evaluation.grid import Cell, parse_shard
from numerate.evaluation.samples import Said, answers
from numerate.laboratory.changes import changed, differences
from numerate.laboratory.plan import Plan
from numerate.laboratory.results import Results
from numerate.laboratory.store import Store, lines_of
from numerate.training import checkpoint
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

    def __init__(self, folder: RunFolder, *, device: str | None = None, changes: Sequence[str] = ()) -> None:
        self.folder = folder
        self._device, self._changes = device, tuple(changes)

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def trained_recipe(self) -> Recipe:
        """The recipe that it was trained by."""
        found = from_tree(self.folder.head()["recipe"], self.folder.file("recipe.yaml"), declared=Recipe)
        assert isinstance(found, Recipe)
        return found

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that it is run by: as trained, unless `with_settings` changed it."""
        return changed(self.trained_recipe, self._changes) if self._changes else self.trained_recipe

    @cached_property
    def settings(self) -> dict[str, Any]:
        """In what the model is run otherwise than it was trained: {} unless `with_settings` changed something."""
        return differences(self.trained_recipe, self.recipe)

    def with_settings(self, *settings: str) -> "Run":
        """The same weights, run otherwise: more turns of a loop, another scale of the attention logits.

        >>> run.with_settings("model.trunk.times=8").ask("321+654=")

        Raises `Mistake` for settings that are not the model's, and for those by which it would have other weights.
        """
        if not settings:
            return self
        other = Run(self.folder, device=self._device, changes=(*self._changes, *settings))
        try:
            refuse_other_weights(other.blank.state_dict(), self.blank.state_dict(), "the trained model")
        except Fault as fault:
            raise Mistake(
                f"{', '.join(settings)}: this model would have other weights ({fault}); an evaluation may change only "
                "what leaves their names and shapes alone"
            ) from fault
        return other

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
            self.warn(text)
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
        settings: Sequence[str] = (),
        heard: Heard | None = None,
    ) -> Results:
        """Exact match on a grid of cells, with intervals, at every fixed placement of the model.

        >>> results = run.evaluate("1:12x1:12", count=200, checkpoint="best")
        >>> results.regions()[0]["mean"]
        >>> run.evaluate("equal:1:18", settings=["model.trunk.times=4,8,16"])

        Cells that `evaluation.jsonl` has already are not computed again. `checkpoint` is final, best, all or a step.
        `shard="2/4"` computes the second of four pieces of equal cost into a file of its own; evaluating without a
        shard afterwards gathers them. `predictions` also writes what was said to every question. `settings` change how
        the model is run, several values of one are a sweep; records then carry in what they differ from training.
        Twice the same call leaves the same bytes. Raises `Mistake` for a grid that the model cannot read, and for
        settings that would need other weights, before any work is done.
        """
        runs = [self.with_settings(*choice) for choice in expand(settings)]
        plans = [Plan.of(run, grid, count, method) for run in runs]
        for run, plan in zip(runs, plans, strict=True):
            plan.check(run)
        cells = plans[0].cells(self, shard)
        named = [(_label(checkpoint, found), found) for found in self.checkpoints(checkpoint)]
        store = Store(self.folder, "{}-of-{}".format(*parse_shard(shard)) if shard is not None else None)
        with store.lock():
            store.relabel({label: found.step for label, found in named})
            results: list[dict[str, Any]] = []
            for run, plan in zip(runs, plans, strict=True):
                for label, found in named:
                    results += run._evaluate(plan, cells, label, found, store, heard)
                    if predictions:
                        run._predict(plan, cells, label, found, store)
                if shard is None and not plan.settings:
                    run._sample(plan, named[-1][1])
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
        planned: Plan,
        cells: Sequence[Cell],
        label: str,
        found: checkpoint.Checkpoint,
        store: Store,
        heard: Heard | None,
    ) -> list[dict[str, Any]]:
        wanted = [(cell, placement) for placement in range(planned.placements) for cell in cells]
        model: Model | None = None
        results = []
        for done, (cell, placement) in enumerate(wanted):
            key = planned.key(self, label, found.step, cell, placement)
            if key not in store.known:
                record = store.same_weights(key)
                if record is None:
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
                    record |= {"settings": dict(planned.settings)} if planned.settings else {}
                store.add(key, record | {"checkpoint": label})
            results.append(store.known[key])
            if heard is not None:
                heard(done + 1, len(wanted))
        return results

    def _predict(
        self, planned: Plan, cells: Sequence[Cell], label: str, found: checkpoint.Checkpoint, store: Store
    ) -> None:
        model = self.model(found)
        lines = []
        for placement in range(planned.placements):
            for cell in cells:
                questions = questions_of(self.exam.task, dict(cell), count=planned.count, seed=planned.seed)
                for said in answers(model, self.exam, questions, placement):
                    place = {"checkpoint": label, "step": found.step, "placement": placement}
                    place |= {"settings": dict(planned.settings)} if planned.settings else {}
                    lines.append(said.record(dict(cell)) | place)
        store.write("predictions.jsonl", lines, ("checkpoint", "step", "placement", "settings"))

    def _sample(self, planned: Plan, found: checkpoint.Checkpoint, each: int = 4) -> None:
        """A few answers from inside and from beyond what was trained, for the report."""
        cells = planned.telling(self.recipe)
        model = self.model(found)
        records = []
        for cell in cells:
            questions = questions_of(self.exam.task, dict(cell), count=each, seed=planned.seed)
            records += [said.record(dict(cell)) | {"step": found.step} for said in answers(model, self.exam, questions)]
        self.folder.write("samples.jsonl", lines_of(records))

    # Asking and showing -------------------------------------------------------------------------------------------

    def ask(self, question: str, checkpoint: str = "final", *, settings: Sequence[str] = ()) -> Said:
        """What the model answers to a question as a person writes it, how sure it is, and the truth.

        >>> run.ask("321+654=").said
        '975'

        `settings` change how the model is run, as in `evaluate`, one value each.
        """
        if settings:
            return self.with_settings(*settings).ask(question, checkpoint)
        questions = self.exam.task.read(question)
        batch = self.exam.batch(questions)
        for warning in self.blank.check(batch.tokens, self.exam.longest(self.recipe.task)):
            self.warn(warning)
        return answers(self.model(checkpoint), self.exam, questions)[0]

    def report(self) -> Path:
        """Writes `report.html`, one self-contained page, and returns its path."""
        from numerate.reports.page import write_page

        return write_page(self.path)

    def warn(self, text: str) -> None:
        """Says what a caller should know of, as a warning of Python's."""
        import warnings

        warnings.warn(text, stacklevel=3)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        from numerate.reports.page import fragment

        return fragment(self.path)


def _label(name: str, found: checkpoint.Checkpoint) -> str:
    return name if name in ("final", "best") else f"step {found.step}"

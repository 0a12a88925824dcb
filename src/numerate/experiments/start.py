"""One start of a run: checks, files and messages before and after the training loop."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from numerate.config import identity, to_tree
from numerate.errors import UserError
from numerate.experiments.run import Run
from numerate.integrations import trackers
from numerate.models.strict_weights import weights_of
from numerate.recipes.papers import PAPERS
from numerate.records.heads import read_metrics
from numerate.text.data.prepared import ready
from numerate.training import checkpoint, provenance
from numerate.training.budget import flop_text
from numerate.training.distributed import World
from numerate.training.preflight import refuse_other_contents
from numerate.training.progress import Nowhere, ProgressBar, beside
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, find, folder_name
from numerate.training.timings import speed_text
from numerate.training.trainer import Outcome, Trainer

Listener = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class TrainedRun:
    """A run and how this start of it ended: `why` is budget, target, minutes, stopped, or done (nothing was left)."""

    run: Run
    why: str
    status: int = 0


class Start:
    """A start of a run: call `begin`, the trainer's loop, and `end`.

    The constructor writes nothing, and raises `UserError` for a recipe that cannot be trained. `shown`: show a progress
    bar; `listen` is called with every step and record, `on_message` with every message; `found` is the provenance of
    the run (`provenance.provenance()`), if known already.
    """

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        runs: Path,
        *,
        shown: bool,
        listen: Listener | None = None,
        on_message: Callable[[str], None] | None = None,
        command: str | None = None,
        found: Mapping[str, Any] | None = None,
    ) -> None:
        self.world, self.runs, self.shown, self.listen, self.on_message = world, runs, shown, listen, on_message
        source = source_of(recipe, runs)
        if source is not None:
            recipe = replace(recipe, init_from=source.id)
        ready(recipe.task, shown=shown)
        self.recipe = recipe
        self.path = runs / folder_name(recipe.title) / identity(recipe)
        last = world.said_by_first(checkpoint.latest_good(self.path / "checkpoints")[0] if world.first else None)
        if last is not None:  # without a checkpoint it starts again, with what there is now
            refuse_other_contents(recipe.task, RunFolder.open(self.path).head(), self.path)
        set_threads(recipe.training.threads, last)
        self.trainer = Trainer(recipe, world, origin=None if last is None else last.state.get("origin"))
        self.beginning = None
        if source is not None and last is None:
            self.beginning = _beginning(source, self.path, self.trainer)
        _trackers(recipe, world)  # a missing tracker raises before anything is written
        self.head = head_of(recipe, self.trainer, found)
        if command is not None:
            self.head["command"] = command
        if self.beginning is not None:
            self.head["began_from"] = str(self.beginning.path.resolve())
        self._resources = contextlib.ExitStack()
        self._progress: ProgressBar | None = None

    def __enter__(self) -> "Start":
        return self

    def __exit__(self, *error: object) -> None:
        """Releases the folder, its log and its trackers."""
        self._resources.close()

    @property
    def folder(self) -> RunFolder:
        folder = self.trainer.folder
        assert folder is not None, "it has begun"
        return folder

    def begin(self) -> bool:
        """Makes or opens the folder, locks it, and resumes the run. False where nothing is left to do.

        Raises `UserError` where another process is writing the folder.
        """
        trainer, steps = self.trainer, self.trainer.steps
        trainer.folder = self._opened()
        progress = _progress(steps, self.recipe, self.folder, shown=self.shown, kept=self.world.first)
        self._progress = self._resources.enter_context(progress)
        tracked = _trackers(self.recipe, self.world, self._say)
        if self.world.first:  # before metrics are cut to where training resumes
            read_metrics(self.path, self.folder.head(), lambda text: self._say(f"warning: {text}"))
        for text in (*trainer.warnings, *trainer.resume()):
            self._say(f"warning: {text}")
        if trainer.done and not trainer.fresh:
            self._say(f"{self.path}: {_nothing_left(trainer)}")
            return False
        if self.world.first:
            self._note_start()
        if trainer.progress.step:
            self._say(f"{self.path}: resuming from step {trainer.progress.step} of {steps}")
        elif self.beginning is not None:
            trainer.start_from(self.beginning)
            self._say(f"{self.path}: beginning with the weights of {self.beginning.path}")
        trainer.listen = self._on_progress(progress, tracked)
        if self.recipe.trackers:
            tracked.start(self.folder.head(), self.path, trainer.progress.step)
        self._resources.callback(tracked.finish)
        return True

    def end(self, outcome: Outcome) -> TrainedRun:
        """Records and reports how it ended, and releases the folder."""
        if self.world.first:
            _note(self.folder, outcome)
        self._resources.close()
        _tell(self._say, outcome, self.folder, self.trainer.steps)
        return TrainedRun(Run(self.folder), outcome.why, outcome.status)

    def nothing(self) -> TrainedRun:
        """The outcome of a start that had nothing to do."""
        self._resources.close()
        return TrainedRun(Run(self.folder), "done")

    def _opened(self) -> RunFolder:
        """The folder, which the first process makes and locks."""
        world = self.world
        folder = None
        if world.first:
            folder = RunFolder.create(self.runs, self.recipe.title, self.path.name, self.head)
            self._resources.enter_context(folder.lock())
        world.wait()
        if folder is None and not self.path.exists():
            raise UserError(f"{self.path}: process {world.rank} does not see it; all processes must share one runs_dir")
        return folder or RunFolder.open(self.path)

    def _note_start(self) -> None:
        folder = self.folder
        begun_before = bool(folder.records("starts.jsonl"))
        then = folder.head().get("versions", {}) if begun_before else {}
        for change in provenance.changed_versions(then):
            self._say(f"warning: this run was begun with {change}; its numbers may differ in the last places")
        folder.begin(self.head)
        if begun_before and self.trainer.fresh:
            self._say(f"{folder.path}: was begun before but has no checkpoint yet; beginning again at step 0")

    def _on_progress(self, progress: ProgressBar, tracked: trackers.Trackers) -> Listener:
        known: dict[str, float | str] = {}

        def on_progress(kind: str, record: Mapping[str, Any]) -> None:
            if kind == "log":
                known["loss"] = record["loss"]
            elif kind == "evaluation":
                known.update(shown_of(record))
            elif kind == "timing":
                known["speed"] = speed_text(record)
            elif kind == "warning":
                self._say(f"warning: {record['text']}")
            elif kind == "step":
                progress.step(record["step"], **known)
            if kind in ("log", "evaluation"):
                progress.note(beside(**known))
                tracked.log(record)
            if self.listen is not None:
                self.listen(kind, {**known, **record})

        return on_progress

    def _say(self, text: str) -> None:
        if self._progress is not None:
            self._progress.say(text)
        if self.on_message is not None:
            self.on_message(text)


def _trackers(recipe: Recipe, world: World, say: Callable[[str], None] | None = None) -> trackers.Trackers:
    where = recipe.tracking
    settings = trackers.TrackerSettings(where.project, where.entity, recipe.group, where.tags)
    return trackers.make(recipe.trackers if world.first else (), settings, say)


def shown_of(record: Mapping[str, Any]) -> dict[str, float | str]:
    """What is shown of an evaluation during training: loss and perplexity of running text, else accuracy.

    >>> shown_of({"split": "development", "loss": 1.7294, "perplexity": 5.6373})
    {'validation loss': '1.729', 'perplexity': '5.637'}
    """
    if "perplexity" in record:
        return {"validation loss": f"{record['loss']:.4g}", "perplexity": f"{record['perplexity']:.4g}"}
    return {"in distribution" if record["split"] == "development" else "OOD validation": f"{record['exact']:.1%}"}


def _progress(steps: int, recipe: Recipe, folder: RunFolder, *, shown: bool, kept: bool) -> ProgressBar:
    """The bar of a run, and its log. Where nothing is to be shown, the first process still keeps the log."""
    label, log = recipe.name or recipe.title, folder.file("log.txt")
    if shown or not kept:
        return ProgressBar(steps, label=label, log=log, silent=not kept)
    return ProgressBar(steps, label=label, log=log, stream=Nowhere())


def _nothing_left(trainer: Trainer) -> str:
    """Why a start of training does nothing."""
    step, training = trainer.progress.step, trainer.training
    if trainer.reached():
        return f"already trained to its target at step {step}; a higher training.target_accuracy= continues"
    if step > trainer.steps and training.steps is not None:
        return (
            f"already trained to step {step}, beyond this budget of {trainer.steps} steps; nothing was changed "
            f"(a training.steps= above {step} continues)"
        )
    budgets = ("steps", "examples", "tokens", "flops", "epochs")
    larger = " and ".join(f"training.{name}=" for name in budgets if getattr(training, name) is not None)
    return f"already trained to its budget of {trainer.steps} steps; a larger {larger} continues"


def _tell(say: Callable[[str], None], outcome: Outcome, folder: RunFolder, steps: int) -> None:
    used = outcome.progress
    say(
        f"{folder.path}: {used.step:,} steps, {used.examples:,} examples, {used.tokens:,} tokens, "
        f"{flop_text(used.flops)} of training"
    )
    step = used.step
    if outcome.why in ("stopped", "minutes"):
        say(f"{folder.path}: stopped at step {step} of {steps}; the same command resumes from here")
    elif outcome.why == "target":
        say(f"{folder.path}: target reached at step {step}")


def _note(folder: RunFolder, outcome: Outcome) -> None:
    progress = outcome.progress
    folder.update_head(
        times={"ended": provenance.now()},
        ended={
            "why": outcome.why,
            "step": progress.step,
            "examples": progress.examples,
            "tokens": progress.tokens,
            "flops": progress.flops,
        },
        best={
            "step": progress.best,
            "score": progress.best_score,
            "chosen_on": progress.best_split,
            "by": progress.best_by,
        },
    )


def head_of(recipe: Recipe, trainer: Trainer, found: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The head of a run's `recipe.yaml`; `found` is where the run comes from, if that is known."""
    if recipe.paper is not None and recipe.paper not in PAPERS:
        raise UserError(f"paper: no paper is filed under {recipe.paper!r}; there are: {', '.join(PAPERS)}")
    return {
        "recipe": to_tree(recipe),
        **({"contents": contents} if (contents := recipe.task.contents()) else {}),
        "variant": identity(replace(recipe, seed=0)),
        "name": recipe.name,
        "group": recipe.group,
        **(provenance.provenance() if found is None else found),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "threads": torch.get_num_threads(),
        "processes": trainer.world.size,
        "device": str(trainer.world.device),
        "bibtex": PAPERS[recipe.paper] if recipe.paper is not None else None,
    }


def set_threads(wanted: int | None, last: checkpoint.Checkpoint | None) -> None:
    """The threads that a recipe names, else those that the run had before (they change bits), else all cores."""
    if wanted is None and last is not None:
        wanted = last.state.get("threads")
    if wanted is not None:
        torch.set_num_threads(wanted)


def source_of(recipe: Recipe, runs: Path) -> RunFolder | None:
    """The run that a recipe starts from; its id, not the way it was addressed, is part of the new run's identity.

    `latest` is the run that was started last, unless that is this very run at its second start: then it is the one that
    it began from, so that the same command resumes it.
    """
    if recipe.init_from is None:
        return None
    found = find(recipe.init_from, runs)
    if recipe.init_from == "latest":
        before = found.head()["recipe"].get("init_from")
        if before is not None and identity(replace(recipe, init_from=before)) == found.id:
            return find(before, runs)
    return found


def _beginning(source: RunFolder, path: Path, trainer: Trainer) -> checkpoint.Checkpoint:
    """The last checkpoint of another run, or the one that an earlier start of this run chose, if there was one.

    Raises `UserError` where there is none, or where it is of another model.
    """
    if (path / "recipe.yaml").is_file() and (chosen := RunFolder(path).head().get("began_from")) is not None:
        if not Path(str(chosen)).is_dir():
            raise UserError(f"init_from: {chosen}, where this run began, is gone; another seed= begins a new run")
        found = checkpoint.open_checkpoint(Path(str(chosen)))
    else:
        _refuse_other_vocabulary(Run(source), trainer)
        found = checkpoint.by_name(source.checkpoints, "final")[0][0]
    weights = found.read(only=["weights"])["weights"]
    weights_of(trainer.model, weights, f"init_from: {found.path}")
    return found


def _refuse_other_vocabulary(source: Run, trainer: Trainer) -> None:
    """Raises `UserError` where a token's id means something else to the other run: it was trained on another task."""
    theirs, ours = source.exam.vocabulary.symbols, trainer.exam.vocabulary.symbols
    if theirs != ours:
        kinds = [type(recipe.task).__name__ for recipe in (source.recipe, trainer.recipe)]
        raise UserError(
            f"init_from: {source.path} was trained on {kinds[0]} with {len(theirs)} tokens, which are not the "
            f"{len(ours)} of {kinds[1]} here; a run with the same vocabulary is right (tokenizer.vocabulary= can "
            f"make it so)"
        )

"""Training a recipe in the folder of its run."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from numerate.batch import ModelSpec
from numerate.config import identity, to_tree
from numerate.errors import Fault, Mistake
from numerate.integrations import trackers
from numerate.laboratory.run import Run
from numerate.mixers.attention import Attention
from numerate.models.decoder import Decoder
from numerate.models.trunk import Loop, Stack
from numerate.recipes.papers import PAPERS
from numerate.training import checkpoint, provenance
from numerate.training.budget import flop_text
from numerate.training.parallel import refuse_other_weights
from numerate.training.progress import Nowhere, Progress, duration
from numerate.training.recipe import Recipe
from numerate.training.run import RunFolder, find, folder_name, runs_directory
from numerate.training.stopping import Stop
from numerate.training.stream import Place
from numerate.training.trainer import Outcome, Trainer
from numerate.training.world import World

Listener = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Trained:
    """A run and how this start of it ended: `why` is budget, target, minutes, stopped, or done (nothing was left)."""

    run: Run
    why: str
    status: int = 0


def train(
    recipe: Recipe,
    *,
    runs_dir: str | Path | None = None,
    quiet: bool = False,
    listen: Listener | None = None,
    say: Callable[[str], None] | None = None,
    stop: Stop | None = None,
    command: str | None = None,
) -> Trained:
    """Trains a recipe, or goes on with it where its folder stands, and returns its run.

    The folder is `runs_dir / title / id` (see `numerate.training.run`). Raises `Mistake` for a recipe that cannot be
    trained, before anything is written; `Fault` where the loss is not finite or the disk is full. `listen` is told of
    every step and record, `say` of what would be printed; `stop` can be asked to stop from another thread; `command` is
    what the user typed, where this process was started by another.
    """
    runs, stop = runs_directory(runs_dir), stop or Stop()
    with World.joined(recipe.device) as world:
        shown = not quiet and world.first
        return _train(recipe, world, runs, shown=shown, listen=listen, told=say, stop=stop, command=command)


def _train(
    recipe: Recipe,
    world: World,
    runs: Path,
    *,
    shown: bool,
    listen: Listener | None,
    told: Callable[[str], None] | None,
    stop: Stop,
    command: str | None,
) -> Trained:
    source = source_of(recipe, runs)
    if source is not None:
        recipe = replace(recipe, init_from=source.id)
    path = runs / folder_name(recipe.title) / identity(recipe)
    last = world.said_by_first(checkpoint.latest_good(path / "checkpoints")[0] if world.first else None)
    set_threads(recipe.training.threads, last)
    trainer = Trainer(recipe, world)
    steps = trainer.steps
    beginning = None
    if source is not None and last is None:
        beginning = _beginning(source, path, trainer)
    _trackers(recipe, world)  # a tracker that is not there is told before anything is written
    head = head_of(recipe, trainer)
    if command is not None:
        head["command"] = command
    if beginning is not None:
        head["began_from"] = str(beginning.path.resolve())
    folder = None
    with contextlib.ExitStack() as held:
        if world.first:
            folder = RunFolder.create(runs, recipe.title, path.name, head)
            held.enter_context(folder.lock())
        world.wait()
        if folder is None and not path.exists():
            raise Mistake(f"{path}: process {world.rank} does not see it; all processes must share one runs_dir")
        folder = folder or RunFolder.open(path)
        trainer.folder = folder
        progress = held.enter_context(_progress(steps, recipe, folder, shown=shown, kept=world.first))

        def say(text: str) -> None:
            progress.say(text)
            if told is not None:
                told(text)

        tracked = _trackers(recipe, world, say)
        for text in (*trainer.warnings, *trainer.resume()):
            say(f"warning: {text}")
        if trainer.reached() or trainer.spent():
            say(f"{folder.path}: {_nothing_left(trainer)}")
            return Trained(Run(folder), "done")
        if world.first:
            for change in provenance.changed_versions(folder.head().get("versions", {})):
                say(f"warning: this run was begun with {change}; its numbers may differ in the last places")
            begun_before = bool(folder.records("starts.jsonl"))
            folder.begin(head)
            if begun_before and not trainer.progress.step:
                say(f"{folder.path}: was begun before but has no checkpoint yet; beginning again at step 0")
        if trainer.progress.step:
            say(f"{folder.path}: going on from step {trainer.progress.step} of {steps}")
        elif beginning is not None:
            trainer.start_from(beginning)
            say(f"{folder.path}: beginning with the weights of {beginning.path}")
        known: dict[str, float | str] = {}

        def heard(kind: str, record: Mapping[str, Any]) -> None:
            if kind == "log":
                known["loss"] = record["loss"]
            elif kind == "evaluation":
                known["right" if record["split"] == "development" else "beyond"] = f"{record['exact']:.1%}"
            elif kind == "step":
                progress.step(record["step"], **known)
            if kind in ("log", "evaluation"):
                tracked.log(record)
            if listen is not None:
                listen(kind, {**record, **known})

        trainer.listen = heard
        tracked.start(folder.head(), folder.path, trainer.progress.step)
        try:
            with stop:
                outcome = trainer.train(stop)
        finally:
            tracked.finish()
        if world.first:
            _note(folder, outcome)
    _tell(say, outcome, folder, steps)
    return Trained(Run(folder), outcome.why, outcome.status)


def _trackers(recipe: Recipe, world: World, say: Callable[[str], None] | None = None) -> trackers.Trackers:
    where = recipe.tracking
    settings = trackers.TrackerSettings(where.project, where.entity, recipe.group, where.tags)
    return trackers.make(recipe.trackers if world.first else (), settings, say)


def _progress(steps: int, recipe: Recipe, folder: RunFolder, *, shown: bool, kept: bool) -> Progress:
    """The bar of a run, and its log. Where nothing is to be shown, the first process still keeps the log."""
    label, log = recipe.name or recipe.title, folder.file("log.txt")
    if shown or not kept:
        return Progress(steps, label=label, log=log, silent=not kept)
    return Progress(steps, label=label, log=log, stream=Nowhere())


def _nothing_left(trainer: Trainer) -> str:
    """Why a start of training does nothing."""
    step, training = trainer.progress.step, trainer.training
    if trainer.reached():
        return f"already trained to its target at step {step}; a higher training.target= goes on"
    if step > trainer.steps and training.steps is not None:
        return (
            f"already trained to step {step}, beyond this budget of {trainer.steps} steps; nothing was changed "
            f"(a training.steps= above {step} goes on)"
        )
    budgets = ("steps", "examples", "tokens", "operations", "epochs")
    larger = " and ".join(f"training.{name}=" for name in budgets if getattr(training, name) is not None)
    return f"already trained to its budget of {trainer.steps} steps; a larger {larger} goes on"


def _tell(say: Callable[[str], None], outcome: Outcome, folder: RunFolder, steps: int) -> None:
    used = outcome.progress
    say(
        f"{folder.path}: {used.step:,} steps, {used.examples:,} examples, {used.tokens:,} tokens, "
        f"{flop_text(used.operations)} of training"
    )
    step = used.step
    if outcome.why in ("stopped", "minutes"):
        say(f"{folder.path}: stopped at step {step} of {steps}; the same command goes on from here")
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
            "operations": progress.operations,
        },
        best={"step": progress.best, "score": progress.best_score, "chosen_on": progress.best_split},
    )


def head_of(recipe: Recipe, trainer: Trainer) -> dict[str, Any]:
    """The head of a run's `recipe.yaml`."""
    if recipe.paper is not None and recipe.paper not in PAPERS:
        raise Mistake(f"paper: no paper is filed under {recipe.paper!r}; there are: {', '.join(PAPERS)}")
    return {
        "recipe": to_tree(recipe),
        "variant": identity(replace(recipe, seed=0)),
        "name": recipe.name,
        "group": recipe.group,
        **provenance.provenance(),
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
    it began from, so that the same command goes on.
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

    Raises `Mistake` where there is none, or where it is of another model.
    """
    if (path / "recipe.yaml").is_file() and (chosen := RunFolder(path).head().get("began_from")) is not None:
        if not Path(str(chosen)).is_dir():
            raise Mistake(f"init_from: {chosen}, where this run began, is gone; another seed= begins a new run")
        found = checkpoint.open_checkpoint(Path(str(chosen)))
    else:
        _refuse_other_vocabulary(Run(source), trainer)
        found = checkpoint.by_name(source.checkpoints, "final")[0][0]
    weights = found.read(only=["weights"])["weights"]
    try:
        refuse_other_weights(trainer.model.state_dict(), weights, str(found.path))
    except Fault as fault:
        raise Mistake(f"init_from: {fault}") from fault
    return found


def _refuse_other_vocabulary(source: Run, trainer: Trainer) -> None:
    """Raises `Mistake` where a token's id means something else to the other run: it was trained on another task."""
    theirs, ours = source.exam.vocabulary.symbols, trainer.exam.vocabulary.symbols
    if theirs != ours:
        kinds = [type(recipe.task).__name__ for recipe in (source.recipe, trainer.recipe)]
        raise Mistake(
            f"init_from: {source.path} was trained on {kinds[0]} with {len(theirs)} tokens, which are not the "
            f"{len(ours)} of {kinds[1]} here; a run with the same vocabulary is right (tokenizer.ids= can make it so)"
        )


@dataclass(frozen=True)
class Estimate:
    """What a training would take: printed by `--dry-run`.

    `memory` is in bytes (weights, gradients and two moments in float32), `operations` in floating-point operations of
    one full step (forward and backward, padding included), `total_operations` those of all `steps`, which take
    `examples` examples; `batch` is in rows and tokens of the first step, `asked` in tokens.
    """

    parameters: int
    memory: int
    operations: int
    total_operations: int
    steps: int
    examples: int
    seconds_per_step: float
    batch: tuple[int, int]
    asked: int

    def __str__(self) -> str:
        rows, time = self.batch
        total = self.seconds_per_step / rows * self.examples
        return "\n".join(
            [
                f"parameters        {self.parameters:,}",
                f"weights, moments  {self.memory / 1e6:,.1f} MB (and activations)",
                f"first batch       {rows} rows x {time} tokens, {self.asked} asked",
                f"budget            {self.steps:,} steps, {self.examples:,} examples",
                f"arithmetic        {flop_text(self.operations)} a step, {flop_text(self.total_operations)} in all",
                f"time              {self.seconds_per_step * 1e3:,.1f} ms a step, "
                f"about {duration(math.ceil(total))} for {self.steps:,} steps here",
            ]
        )


def dry_run(recipe: Recipe, *, trials: int = 5) -> Estimate:
    """Builds everything, trains a few steps in memory, and says what the whole would take. Writes nothing."""
    with World.joined(recipe.device) as world:
        set_threads(recipe.training.threads, None)
        short = replace(recipe.training, log_every=10**9, evaluate_every=10**9, checkpoint_every=None)
        trainer = Trainer(replace(recipe, training=short), world)
        steps, budget = trainer.steps, trainer.budget
        first = trainer.stream.batch(Place())
        trainer.model.train()
        times = []
        for _ in range(trials):
            seen, began = trainer.progress.examples, time.perf_counter()
            trainer.one_step(steps)
            if world.device.type == "cuda":
                torch.cuda.synchronize()
            grown = (trainer.progress.examples - seen) / recipe.training.smallest
            times.append((time.perf_counter() - began) / grown)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    return Estimate(
        parameters=parameters,
        memory=4 * 4 * parameters,
        operations=round(budget.operations_per_example * recipe.training.batch),
        total_operations=round(budget.operations_per_example * budget.examples),
        steps=steps,
        examples=budget.examples,
        seconds_per_step=sorted(times)[len(times) // 2],
        batch=(len(first.tokens.ids), first.tokens.ids.shape[1]),
        asked=first.counts["tokens"],
    )


def debug(recipe: Recipe) -> Recipe:
    """`preset=debug`: a few steps of everything, small, on one core unless the recipe says more, in a run of its own.

    A decoder wider than 128 becomes one of width 32, with at most 2 blocks and 2 turns.
    """
    training = replace(
        recipe.training,
        steps=6,
        examples=None,
        tokens=None,
        operations=None,
        epochs=None,
        batch=8 * recipe.training.accumulate,
        ramp_from=None if recipe.training.ramp_from is None else 4 * recipe.training.accumulate,
        window=4,
        log_every=2,
        evaluate_every=3,
        checkpoint_every=3,
        threads=recipe.training.threads or 1,
    )
    evaluation = replace(recipe.evaluation, grid=_small_grid(recipe), count=8, during=16)
    model = _small_model(recipe.model)
    return replace(recipe, model=model, training=training, evaluation=evaluation, title=f"{recipe.title}-debug")


def _small_model(model: ModelSpec) -> ModelSpec:
    if not isinstance(model, Decoder) or model.width <= 128:
        return model
    trunk, mixer = model.trunk, model.mixer
    if isinstance(trunk, Stack | Loop):
        trunk = replace(trunk, depth=min(trunk.depth, 2))
    if isinstance(trunk, Loop):
        trunk = replace(trunk, times=min(trunk.times, 2))
    if isinstance(mixer, Attention):
        mixer = replace(mixer, heads=4)
    return replace(model, width=32, trunk=trunk, mixer=mixer)


def _small_grid(recipe: Recipe) -> str | None:
    spans = recipe.task.trained().values()
    return "x".join(f"{span.low}:{span.low + 1}" for span in spans) or None

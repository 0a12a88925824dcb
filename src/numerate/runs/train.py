"""Training a recipe in the folder of its run: checks, files and messages before and after the training loop."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from numerate.batch import Model
from numerate.config import check_same_defaults, identity, refuse_while_loading, to_tree
from numerate.errors import UserError
from numerate.integrations.trackers import recipe_trackers
from numerate.models.strict_weights import match_state_dict
from numerate.recipes.papers import PAPERS
from numerate.recipes.study import content_key
from numerate.records.heads import read_metrics
from numerate.runs.end import Ending, clear_end
from numerate.runs.engines.memory import explained_out_of_memory
from numerate.runs.initial_weights import initial_run
from numerate.runs.run import Run
from numerate.training import checkpoint, provenance
from numerate.training.budget import format_flops
from numerate.training.checkpoint import Checkpoint
from numerate.training.distributed import World
from numerate.training.own_parts import naming_own_parts
from numerate.training.preflight import check_unchanged_files
from numerate.training.progress import ProgressBar, format_values
from numerate.training.recipe import BUDGETS, Recipe
from numerate.training.run_folder import RunFolder, earlier_metadata, folder_name, resolve_runs_dir
from numerate.training.stopping import Stop
from numerate.training.timings import format_throughput
from numerate.training.trainer import Trainer, set_threads

RecordCallback = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class TrainedRun:
    """A run and how this session ended: `stop_reason` is budget, target, minutes, stopped, or done (nothing was left to
    train)."""

    run: Run
    stop_reason: str
    exit_status: int = 0


def train(
    recipe: Recipe,
    *,
    runs_dir: str | Path | None = None,
    quiet: bool = False,
    on_record: RecordCallback | None = None,
    on_message: Callable[[str], None] | None = None,
    stop: Stop | None = None,
    command: str | None = None,
) -> TrainedRun:
    """Trains a recipe, or resumes it from its folder, and returns its run.

    The folder is `runs_dir / title / id` (see `numerate.training.run_folder`). Raises `UserError` for a recipe that
    cannot be trained, before anything is written; `OperationalError` if the loss is not finite or the disk is full.
    `on_record` is called with every step and record, `on_message` with every message; `stop` can stop it from another
    thread; `command` is the user's command line, if another process started this one.
    """
    refuse_while_loading("train")
    runs, stop = resolve_runs_dir(runs_dir), stop or Stop()
    with World.connect(recipe.device) as world:
        session = _Session(recipe, world, runs, not quiet and world.is_main_process, on_record, on_message)
        stop_reason = session.train(stop, command)
        return TrainedRun(Run(session.folder), stop_reason, session.trainer.exit_status)


class _Session:
    """A recipe that has been checked and built, its folder, and what is shown while it trains.

    The constructor raises `UserError` for a recipe that cannot be trained, and writes nothing into the folder of runs;
    texts are tokenized into the cache (`Task.prepare_files`).
    """

    folder: RunFolder
    progress: ProgressBar | None = None

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        runs: Path,
        show_progress: bool,
        on_record: RecordCallback | None,
        on_message: Callable[[str], None] | None,
    ) -> None:
        self.world, self.runs, self.show_progress = world, runs, show_progress
        self.on_record, self.on_message = on_record, on_message
        self.shown: dict[str, float | str] = {}
        source = initial_run(recipe, runs)
        recipe = recipe if source is None else replace(recipe, init_from=source.id)
        recipe.task.prepare_files(show_progress=show_progress)
        self.recipe, self.path = recipe, runs / folder_name(recipe.title) / identity(recipe)
        last_checkpoint = checkpoint.latest_valid(self.path / "checkpoints")[0] if world.is_main_process else None
        last_checkpoint = world.broadcast(last_checkpoint)
        if earlier := earlier_metadata(self.path):
            check_same_defaults(earlier["recipe"], recipe, self.path)
        if last_checkpoint is not None:  # without a checkpoint it starts again, with the current files
            check_unchanged_files(recipe.task, earlier, self.path)
        state = {} if last_checkpoint is None else last_checkpoint.state
        set_threads(recipe.training.threads, last_checkpoint)
        training = replace(recipe.training, precision=state.get("precision", recipe.training.precision))
        self.trainer = Trainer(replace(recipe, training=training), world, pretrained_config=state.get("origin"))
        self.initial_checkpoint = None
        if source is not None and last_checkpoint is None:
            self.initial_checkpoint = self._initial_checkpoint(Run(source))
        self.trackers = recipe_trackers(recipe if world.is_main_process else replace(recipe, trackers=()), self.say)

    def _initial_checkpoint(self, source: Run) -> Checkpoint:
        """The last checkpoint of a run, whose weights this one starts from. Raises `UserError` if there is none, or if
        it is of another model or vocabulary, in which token ids have other meanings."""
        theirs, own = (one.evaluation_data.vocabulary.tokens for one in (source, self.trainer))
        if theirs != own:
            names = [type(one.recipe.task).__name__ for one in (self.trainer, source)]
            raise UserError(
                f"init_from: {source.path} must have the vocabulary of this run ({names[0]}, {len(own)} tokens), "
                f"not that of {names[1]} ({len(theirs)} tokens)"
            )
        found = source.checkpoint()
        match_state_dict(self.trainer.model, found.read(only=["weights"])["weights"], f"init_from: {found.path}")
        return found

    def train(self, stop: Stop, command: str | None) -> str:
        """Trains what is left, in the locked folder of the run; returns why it ended.

        Raises `UserError` if another process is writing to the folder.
        """
        trainer, world, initial = self.trainer, self.world, self.initial_checkpoint
        metadata = run_metadata(
            self.recipe,
            trainer.model,
            contents=self.recipe.task.file_hashes() or None,
            command=command,
            total_steps=trainer.total_steps,
            threads=torch.get_num_threads(),
            processes=world.size,
            device=str(world.device),
            precision=trainer.training.precision,
            began_from=None if initial is None else str(initial.path.resolve()),
        )
        with contextlib.ExitStack() as stack:
            if world.is_main_process:
                created = RunFolder.create(self.runs, self.recipe.title, self.path.name, metadata)
                stack.enter_context(created.lock())
            world.barrier()
            if not self.path.exists():
                raise UserError(f"{self.path}: process {world.rank} cannot find it; all must share one runs_dir")
            self.folder = trainer.folder = created if world.is_main_process else RunFolder.open(self.path)
            log_path = self.folder.file("log.txt") if world.is_main_process else None
            label = self.recipe.name or self.recipe.title
            bar = ProgressBar(trainer.total_steps, label=label, log_path=log_path, show=self.show_progress)
            self.progress = stack.enter_context(bar)
            if world.is_main_process:  # before metrics are truncated to where training resumes
                read_metrics(self.path, self.folder.metadata(), self.warn)
            for text in (*trainer.warnings, *trainer.resume()):
                self.warn(text)
            if trainer.is_finished and not trainer.is_new:
                budgets = ("target_accuracy",) if trainer.has_reached_target() else BUDGETS
                larger = " and ".join(f"training.{n}=" for n in budgets if getattr(self.recipe.training, n) is not None)
                place = f"step {trainer.state.step}, with a budget of {trainer.total_steps} steps"
                self.say(f"{self.path}: already trained to {place}; a larger {larger} continues")
                return "done"
            if world.is_main_process:
                ending = Ending(self.folder, content_key(self.recipe))
                stack.push(partial(_write_failure, ending))
                clear_end(self.folder)
                self._record_start(metadata)
            if trainer.budget.passes:
                self.say(f"{self.path}: {trainer.total_steps:,} steps are {trainer.budget.passes} examples")
            if trainer.state.step:
                self.say(f"{self.path}: resuming from step {trainer.state.step} of {trainer.total_steps}")
            elif initial is not None:
                self.say(f"{self.path}: initializing from the weights of {initial.path}")
            if self.recipe.trackers:
                self.trackers.start(self.folder.metadata(), self.path, trainer.state.step)
            stack.callback(self.trackers.finish)
            if initial is not None:
                trainer.load_initial_weights(initial)
            trainer.on_event = self._on_event
            rows = trainer.training.base_batch_size // (world.size * trainer.num_micro_batches)
            advice = f"a smaller training.micro_batch_size= (now {rows}) needs less, and resumes this run"
            with stop, naming_own_parts(self.recipe), explained_out_of_memory(advice):
                trainer.train(stop)
            if world.is_main_process:
                used = {name: getattr(trainer.state, name) for name in ("step", "examples", "tokens", "flops")}
                ended = {"stop_reason": trainer.stop_reason, **used}
                self.folder.update_metadata(times={"ended": provenance.utc_now()}, ended=ended)
                ending.write("stopped" if trainer.stop_reason in ("stopped", "minutes") else "done")
        self._print_end()
        return trainer.stop_reason

    def _record_start(self, metadata: dict[str, Any]) -> None:
        """Records a session, and an extension: a budget under which rates or batches so far had been others."""
        earlier, step, total = self.folder.metadata(), self.trainer.state.step, self.trainer.total_steps
        for change in provenance.changed_versions(earlier.get("versions", {})):
            self.warn(f"this run was started with {change}; results may differ in the last digits")
        budget, has_warmup = earlier.get("total_steps", total), self.recipe.training.batch_size_warmup
        if step and budget != total and (has_warmup or not self.recipe.schedule.is_same_until(step, budget, total)):
            metadata["extensions"] = [*earlier.get("extensions", ()), {"step": step, "budget": budget}]
            self.say(f"{self.path}: extended from a budget of {budget:,} steps, which reports note")
        self.folder.record_start(metadata)

    def _print_end(self) -> None:
        state, place = self.trainer.state, f"step {self.trainer.state.step} of {self.trainer.total_steps}"
        counts = f"{state.step:,} steps, {state.examples:,} examples, {state.tokens:,} tokens"
        self.say(f"{self.path}: {counts}, {format_flops(state.flops)} of training")
        if self.trainer.stop_reason in ("stopped", "minutes"):
            self.say(f"{self.path}: stopped at {place}; the same command resumes from here")
        elif self.trainer.stop_reason == "target":
            self.say(f"{self.path}: target reached at {place}")

    def _on_event(self, kind: str, record: Mapping[str, Any]) -> None:
        assert self.progress is not None
        if kind == "log":
            self.shown["loss"] = record["loss"]
        elif kind == "evaluation":
            if "perplexity" in record:
                self.shown |= {"validation loss": record["loss"], "perplexity": record["perplexity"]}
            else:
                name = "exact match" if record["split"] == "validation" else "OOD exact match"
                self.shown[name] = f"{record['exact_match']:.1%}"
                if "validation_loss" in record:
                    self.shown["validation loss"] = record["validation_loss"]
            if not self.trainer.total_steps:
                self.say(f"{self.path}: without training: {format_values(**self.shown)}")
        elif kind == "timing":
            self.shown["speed"] = format_throughput(record)
        elif kind == "warning":
            self.warn(record["text"])
        elif kind == "step":
            self.progress.step(record["step"], **self.shown)
        if kind in ("log", "evaluation"):
            self.progress.set_postfix(format_values(**self.shown))
            self.trackers.log_record(record)
        if self.on_record is not None:
            self.on_record(kind, {**self.shown, **record})

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    def say(self, text: str) -> None:
        """Prints a message, and writes it to the log."""
        if self.progress is not None:
            self.progress.print_line(text)
        if self.on_message is not None:
            self.on_message(text)


def _write_failure(ending: Ending, _: object, error: BaseException | None, trace: object) -> None:
    """Writes how a run failed, or that it was stopped; nothing for an error that is not the run's own, such as a full
    disk, or if it has ended."""
    with contextlib.suppress(Exception):
        if error is not None and ending.end is None:
            ending.fail(error) if isinstance(error, Exception) else ending.write("stopped")


def run_metadata(recipe: Recipe, model: Model, **entries: Any) -> dict[str, Any]:
    """The metadata in a run's `recipe.yaml`, of which `entries` are some. Raises `UserError` for an unknown paper."""
    if recipe.paper is not None and recipe.paper not in PAPERS:
        raise UserError(f"paper: unknown paper {recipe.paper!r}; there are: {', '.join(PAPERS)}")
    return {
        "recipe": to_tree(recipe),
        "variant": identity(replace(recipe, seed=0)),
        "name": recipe.name,
        "group": recipe.group,
        **provenance.provenance(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "bibtex": None if recipe.paper is None else PAPERS[recipe.paper],
        **{name: value for name, value in entries.items() if value is not None},
    }

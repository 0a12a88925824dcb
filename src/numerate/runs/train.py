"""Training a recipe in the folder of its run: checks, files and messages before and after the training loop."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from numerate.config import check_same_defaults, identity, refuse_while_loading, to_tree
from numerate.errors import UserError
from numerate.integrations import trackers
from numerate.recipes.papers import PAPERS
from numerate.recipes.study import content_key
from numerate.records.heads import read_metrics
from numerate.runs.end import Ending, clear_end
from numerate.runs.initial_weights import find_initial_checkpoint, initial_run
from numerate.runs.out_of_memory import explained_out_of_memory
from numerate.runs.run import Run
from numerate.runs.trial import TrainingEstimate as TrainingEstimate
from numerate.runs.trial import debug as debug
from numerate.runs.trial import dry_run as dry_run
from numerate.training import checkpoint, provenance
from numerate.training.budget import format_flops
from numerate.training.distributed import World
from numerate.training.own_parts import naming_own_parts
from numerate.training.precision import resolve_precision
from numerate.training.preflight import check_unchanged_files
from numerate.training.progress import ProgressBar, format_values
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, earlier_metadata, folder_name, resolve_runs_dir
from numerate.training.stopping import Stop
from numerate.training.timings import format_throughput
from numerate.training.trainer import Trainer, TrainingResult, set_threads

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
        shown = not quiet and world.is_main_process
        with TrainingSession(
            recipe, world, runs, show_progress=shown, on_record=on_record, on_message=on_message, command=command
        ) as session:
            if not session.start():
                return session.finish_untrained()
            training = session.trainer.training
            rows = training.base_batch_size // (world.size * training.num_micro_batches(world.size))
            advice = f"a smaller training.micro_batch_size= (now {rows}) needs less, and resumes this run"
            with stop, naming_own_parts(recipe), explained_out_of_memory(world.device, advice):
                outcome = session.trainer.train(stop)
            return session.finish(outcome)


class TrainingSession:
    """A training session of a run: call `start`, the trainer's loop, and `finish`.

    The constructor raises `UserError` for a recipe that cannot be trained, and writes nothing into the folder of runs;
    texts are tokenized into the cache (`Task.prepare_files`). `show_progress`: show a progress bar; `on_record` is
    called with every step and record, `on_message` with every message.
    """

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        runs: Path,
        *,
        show_progress: bool,
        on_record: RecordCallback | None = None,
        on_message: Callable[[str], None] | None = None,
        command: str | None = None,
    ) -> None:
        self.world, self.runs, self.show_progress = world, runs, show_progress
        self.on_record, self.on_message = on_record, on_message
        self._exit_stack = contextlib.ExitStack()
        self._progress: ProgressBar | None = None
        self._precision_note = ""
        self._ending: Ending | None = None
        source = initial_run(recipe, runs)
        if source is not None:
            recipe = replace(recipe, init_from=source.id)
        recipe.task.prepare_files(show_progress=show_progress)
        self.recipe = recipe
        self.path = runs / folder_name(recipe.title) / identity(recipe)
        last_checkpoint = world.broadcast(
            checkpoint.latest_valid(self.path / "checkpoints")[0] if world.is_main_process else None
        )
        if earlier := earlier_metadata(self.path):
            check_same_defaults(earlier["recipe"], recipe, self.path)
        if last_checkpoint is not None:  # without a checkpoint it starts again, with the current files
            check_unchanged_files(recipe.task, earlier, self.path)
        set_threads(recipe.training.threads, last_checkpoint)
        self.trainer = Trainer(
            self._with_precision(last_checkpoint),
            world,
            pretrained_config=None if last_checkpoint is None else last_checkpoint.state.get("origin"),
        )
        self.initial_checkpoint = None
        if source is not None and last_checkpoint is None:
            self.initial_checkpoint = find_initial_checkpoint(source, earlier.get("began_from"), self.trainer)
        self.metadata = run_metadata(recipe, self.trainer)
        tracking = recipe.tracking
        settings = trackers.TrackerSettings(tracking.project, tracking.entity, recipe.group, tracking.tags)
        self._trackers = trackers.make_trackers(
            recipe.trackers if world.is_main_process else (), settings, self._print_message
        )
        if command is not None:
            self.metadata["command"] = command
        if self.initial_checkpoint is not None:
            self.metadata["began_from"] = str(self.initial_checkpoint.path.resolve())

    def __enter__(self) -> "TrainingSession":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Writes how the session ended, if it failed, and closes the folder's lock, the log and the trackers."""
        if error is not None and self._ending is not None:
            with contextlib.suppress(Exception):  # the same command resumes after a full disk, or without memory left
                self._ending.fail(error) if isinstance(error, Exception) else self._ending.write("stopped")
        self._exit_stack.close()

    @property
    def folder(self) -> RunFolder:
        folder = self.trainer.folder
        assert folder is not None, "start() was not called"
        return folder

    def start(self) -> bool:
        """Creates or opens the folder, locks it, and resumes the run. Returns False if nothing is left to train.

        Raises `UserError` if another process is writing to the folder.
        """
        trainer, steps, is_main_process = self.trainer, self.trainer.total_steps, self.world.is_main_process
        trainer.folder = self._open_folder()
        progress = ProgressBar(
            steps,
            label=self.recipe.name or self.recipe.title,
            log_path=self.folder.file("log.txt") if is_main_process else None,
            show=self.show_progress and is_main_process,
        )
        self._progress = self._exit_stack.enter_context(progress)
        if is_main_process:  # before metrics are truncated to where training resumes
            read_metrics(self.path, self.folder.metadata(), lambda text: self._print_message(f"warning: {text}"))
        for text in (*trainer.warnings, *trainer.resume()):
            self._print_message(f"warning: {text}")
        if trainer.is_finished and not trainer.is_new:
            self._print_message(f"{self.path}: {_no_work_message(trainer)}")
            return False
        if is_main_process:
            clear_end(self.folder)
            self._ending = Ending(self.folder, content_key(self.recipe))
            self._record_start()
            if self._precision_note:
                self._print_message(self._precision_note)
        if trainer.budget.passes:
            self._print_message(f"{self.path}: {steps:,} steps are {trainer.budget.passes} examples")
        if trainer.state.step:
            self._print_message(f"{self.path}: resuming from step {trainer.state.step} of {steps}")
        elif self.initial_checkpoint is not None:
            trainer.load_initial_weights(self.initial_checkpoint)
            self._print_message(f"{self.path}: initializing from the weights of {self.initial_checkpoint.path}")
        trainer.on_event = self._make_callback(progress)
        if self.recipe.trackers:
            self._trackers.start(self.folder.metadata(), self.path, trainer.state.step)
        self._exit_stack.callback(self._trackers.finish)
        return True

    def finish(self, outcome: TrainingResult) -> TrainedRun:
        """Records and prints how training ended, and releases the folder."""
        state, path = outcome.state, self.folder.path
        if self.world.is_main_process:
            used = {name: getattr(state, name) for name in ("step", "examples", "tokens", "flops")}
            best = {"step": state.best, "score": state.best_score, "split": state.best_split}
            self.folder.update_metadata(
                times={"ended": provenance.utc_now()},
                ended={"stop_reason": outcome.stop_reason, **used},
                best={**best, "metric": state.best_metric},
            )
            assert self._ending is not None
            self._ending.write("stopped" if outcome.stop_reason in ("stopped", "minutes") else "done")
            self._ending = None
        self._exit_stack.close()
        self._print_message(
            f"{path}: {state.step:,} steps, {state.examples:,} examples, {state.tokens:,} tokens, "
            f"{format_flops(state.flops)} of training"
        )
        if outcome.stop_reason in ("stopped", "minutes"):
            total = self.trainer.total_steps
            self._print_message(f"{path}: stopped at step {state.step} of {total}; the same command resumes from here")
        elif outcome.stop_reason == "target":
            self._print_message(f"{path}: target reached at step {state.step}")
        return TrainedRun(Run(self.folder), outcome.stop_reason, outcome.exit_status)

    def finish_untrained(self) -> TrainedRun:
        """The outcome of a session with nothing left to train."""
        self._exit_stack.close()
        return TrainedRun(Run(self.folder), "done")

    def _with_precision(self, last_checkpoint: checkpoint.Checkpoint | None) -> Recipe:
        """The recipe with the precision of this device, or that with which the run was started."""
        stated = self.recipe.training.precision
        chosen: Any = resolve_precision(stated, self.world.device)
        started = chosen if last_checkpoint is None else last_checkpoint.state["precision"]
        if started != chosen:
            self._precision_note = f"precision: {started}, with which this run was started"
        elif stated == "auto" and chosen != "fp32":
            self._precision_note = (
                f"precision: {chosen}, which this device supports; training.precision=fp32 for float32"
            )
        return replace(self.recipe, training=replace(self.recipe.training, precision=started))

    def _open_folder(self) -> RunFolder:
        """The run folder, created and locked by the main process."""
        world = self.world
        folder = None
        if world.is_main_process:
            folder = RunFolder.create(self.runs, self.recipe.title, self.path.name, self.metadata)
            self._exit_stack.enter_context(folder.lock())
        world.barrier()
        if folder is None and not self.path.exists():
            raise UserError(f"{self.path}: process {world.rank} cannot find it; all processes must share one runs_dir")
        return folder or RunFolder.open(self.path)

    def _record_start(self) -> None:
        folder = self.folder
        started_before = bool(folder.records("starts.jsonl"))
        old_versions = folder.metadata().get("versions", {}) if started_before else {}
        for change in provenance.changed_versions(old_versions):
            self._print_message(f"warning: this run was started with {change}; results may differ in the last digits")
        if extension := self._find_extension(folder.metadata()):
            self.metadata["extensions"] = [*folder.metadata().get("extensions", ()), extension]
            self._print_message(
                f"{folder.path}: extended from a budget of {extension['budget']:,} steps; its learning rates are not "
                f"those of a new run of {self.trainer.total_steps:,} steps, and reports tell the two apart"
            )
        folder.record_start(self.metadata)
        if started_before and self.trainer.is_new:
            self._print_message(
                f"{folder.path}: was started before but has no checkpoint yet; starting again at step 0"
            )

    def _find_extension(self, earlier: Mapping[str, Any]) -> dict[str, int] | None:
        """The step at which a run with `earlier` metadata gets another budget, and the one before in steps; None if the
        learning rates and batch sizes so far are those of this budget too."""
        step, total = self.trainer.state.step, self.trainer.total_steps
        budget = earlier.get("total_steps", earlier["recipe"].get("training", {}).get("steps"))
        if not step or not budget or budget == total:
            return None
        is_same = self.recipe.schedule.is_same_until(step, budget, total) and not self.recipe.training.batch_size_warmup
        return None if is_same else {"step": step, "budget": budget}

    def _make_callback(self, progress: ProgressBar) -> RecordCallback:
        latest: dict[str, float | str] = {}

        def on_record(kind: str, record: Mapping[str, Any]) -> None:
            if kind == "log":
                latest["loss"] = record["loss"]
            elif kind == "evaluation":
                latest.update(progress_fields(record))
                if not self.trainer.total_steps:
                    loss = {"validation loss": record["validation_loss"]} if "validation_loss" in record else {}
                    self._print_message(f"{self.path}: without training: {format_values(**latest, **loss)}")
                latest.update({"speed": latest.pop("speed")} if "speed" in latest else {})  # the last to be shown
            elif kind == "timing":
                latest["speed"] = format_throughput(record)
            elif kind == "warning":
                self._print_message(f"warning: {record['text']}")
            elif kind == "step":
                progress.step(record["step"], **latest)
            if kind in ("log", "evaluation"):
                progress.set_postfix(format_values(**latest))
                self._trackers.log_record(record)
            if self.on_record is not None:
                self.on_record(kind, {**latest, **record})

        return on_record

    def _print_message(self, text: str) -> None:
        if self._progress is not None:
            self._progress.print_line(text)
        if self.on_message is not None:
            self.on_message(text)


def progress_fields(record: Mapping[str, Any]) -> dict[str, float | str]:
    """The values shown of an evaluation during training: loss and perplexity for language modeling, otherwise accuracy.

    >>> progress_fields({"split": "validation", "loss": 1.7294, "perplexity": 5.6373})
    {'validation loss': '1.729', 'perplexity': '5.637'}
    """
    if "perplexity" in record:
        return {"validation loss": f"{record['loss']:.4g}", "perplexity": f"{record['perplexity']:.4g}"}
    return {"exact match" if record["split"] == "validation" else "OOD exact match": f"{record['exact_match']:.1%}"}


def _no_work_message(trainer: Trainer) -> str:
    """The reason why there is nothing left to train."""
    step, training = trainer.state.step, trainer.training
    if trainer.has_reached_target():
        return f"already trained to its target at step {step}; a higher training.target_accuracy= continues"
    if step > trainer.total_steps and training.steps is not None:
        return (
            f"already trained to step {step}, beyond this budget of {trainer.total_steps} steps; nothing was changed "
            f"(a training.steps= above {step} continues)"
        )
    budgets = ("steps", "examples", "tokens", "flops", "epochs")
    larger = " and ".join(f"training.{name}=" for name in budgets if getattr(training, name) is not None)
    return f"already trained to its budget of {trainer.total_steps} steps; a larger {larger} continues"


def run_metadata(recipe: Recipe, trainer: Trainer) -> dict[str, Any]:
    """The metadata in a run's `recipe.yaml`."""
    if recipe.paper is not None and recipe.paper not in PAPERS:
        raise UserError(f"paper: unknown paper {recipe.paper!r}; there are: {', '.join(PAPERS)}")
    return {
        "recipe": to_tree(recipe),
        **({"contents": contents} if (contents := recipe.task.file_hashes()) else {}),
        "variant": identity(replace(recipe, seed=0)),
        "name": recipe.name,
        "group": recipe.group,
        **provenance.provenance(),
        "total_steps": trainer.total_steps,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "threads": torch.get_num_threads(),
        "processes": trainer.world.size,
        "device": str(trainer.world.device),
        "bibtex": PAPERS[recipe.paper] if recipe.paper is not None else None,
    }

"""The training loop."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from numerate.batch import Batch, Model, StepContext
from numerate.errors import OperationalError, UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import refuse_ahead
from numerate.training import checkpoint
from numerate.training.budget import Budget
from numerate.training.data_stream import Stream, StreamPosition, places_of
from numerate.training.distributed import World
from numerate.training.objective import ObjectivePart
from numerate.training.parallel import make_parallel
from numerate.training.peak_flops import products_of
from numerate.training.precision import autocast, products
from numerate.training.preflight import (
    fingerprint_of,
    refuse_broken_weights,
    refuse_grid,
    refuse_other_tokenizer,
    refuse_precision,
    splits_of,
)
from numerate.training.preflight_warnings import (
    number_term_large,
    numbers_uncovered,
    validation_trained_on,
)
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from numerate.training.running_sums import LAYER, RunningSums, line
from numerate.training.samples import Sampler, cut
from numerate.training.stopping import Stop, Stopped
from numerate.training.timings import Timings
from numerate.training.training_state import TrainingState
from numerate.training.validation import Development

Listener = Callable[[str, Mapping[str, Any]], None]
"""Called with `("step", {"step": 7, ...})`, `("log", record)`, `("evaluation", record)`, `("checkpoint", {...})`,
`("warning", {"text": ...})`."""


@dataclass(frozen=True)
class Outcome:
    """How a start of training ended: `why` is `budget`, `target`, `minutes` or `stopped`."""

    progress: TrainingState
    why: str
    status: int = 0


class Trainer:
    """Trains a recipe in the folder of its run, from the run's last checkpoint.

    `origin` is what that checkpoint records of pretrained weights, which are then not needed again. With `counting` the
    model's weights have no memory: everything is checked and counted, and nothing can be trained.

    Raises `UserError` for what cannot be trained (before anything is written), `OperationalError` when the loss is not
    finite.
    """

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        folder: RunFolder | None = None,
        listen: Listener = lambda kind, record: None,
        *,
        origin: Mapping[str, Any] | None = None,
        counting: bool = False,
    ) -> None:
        self.recipe, self.world, self.folder, self.listen = recipe, world, folder, listen
        self.training = recipe.training
        self.exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
        vocabulary = self.exam.vocabulary
        self.origin = origin
        self.model: Model
        if counting:
            self.model = recipe.model.build_on_meta(vocabulary, recipe.seed, origin)
        else:
            self.model = recipe.model.rebuild(vocabulary, recipe.seed, origin).to(world.device)
        self.objective: ObjectivePart = recipe.objective.build(vocabulary).to(world.device)
        self.settings = recipe.optimizer.settings_of(self.model)
        self.stream = Stream(
            recipe.task,
            recipe.tokenizer,
            recipe.layout,
            seed=recipe.seed,
            batch_size=self.training.smallest,
            window=self.training.shuffle_window * (self.training.batch_size // self.training.smallest),
        )
        self.budget = Budget(self.training, recipe.task, self.stream, self.model, self.objective)
        self.parts = self.training.parts(world.size)
        refuse_precision(self.training.precision, world.device)
        refuse_ahead(self.model, self.exam)
        longest = self.exam.longest(recipe.task).to(world.device)
        splits, doubts = splits_of(recipe, self.exam, self.model, world.device)
        warnings = (
            self.model.check(longest, longest),
            refuse_grid(recipe, self.exam, self.model, longest),
            doubts,
            recipe.task.data_warnings(),
            validation_trained_on(recipe.task),
            numbers_uncovered(recipe, self.objective),
        )
        self.warnings = [text for found in warnings for text in found]
        self.development = Development(recipe, self.exam, self.objective, splits, world)
        self.sampler = Sampler(recipe.samples, self.exam, self.training.precision)
        self.warnings += self.sampler.warnings
        self.settling: Callable[[], None] = lambda: None
        """Called before sums are read or weights written: a `StackedTrainer` that holds them brings them up to date."""
        self.parallel = make_parallel(self.training.parallel, self.model, world, compiled=self.training.compile)
        self.optimizer = recipe.optimizer.build(self.model, self.settings)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.training.precision == "fp16")
        self.progress = TrainingState()
        self._sums = RunningSums(recipe, world)
        self.timings = Timings(world, products_of(self.training.precision, self.training.tf32, world.device))
        self._rate = 0.0  # of the last step
        self._began = self._saved_at = 0.0
        self._earlier = 0.0  # seconds of earlier starts, as the checkpoint knows them
        self.share = 1.0
        """The share of the elapsed time that counts as this run's: a quarter in a stack of four."""
        self._saved = 0
        self._overdue = False
        self._why, self._status = "budget", 0
        self._stop = Stop()

    # The budget ---------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """The budget in optimiser steps; for one in tokens or operations the estimate that the schedule uses."""
        return self.budget.steps

    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.budget.is_spent(self.progress)

    @property
    def fresh(self) -> bool:
        """Whether nothing of the run is evaluated or written yet."""
        return self.progress.step == 0 and self.progress.best is None and not self.progress.due

    def reached(self) -> bool:
        """Whether the last evaluation reached the target."""
        return self.training.target_accuracy is not None and self.progress.right >= self.training.target_accuracy

    @property
    def done(self) -> bool:
        """Whether nothing is left to do: no step, and nothing that a stop left due after the last one."""
        return (self.spent() or self.reached()) and not self.progress.due

    # Resuming -----------------------------------------------------------------------------------------------------

    def resume(self) -> list[str]:
        """Resumes from the last intact checkpoint of the folder, if any. Returns warnings about torn ones."""
        if self.folder is None:
            return []
        found: tuple[checkpoint.Checkpoint | None, list[str]] = (None, [])
        if self.world.first:
            found = checkpoint.resume(self.folder.checkpoints)
            step, due = (found[0].step, found[0].state["progress"].get("due")) if found[0] else (0, "")
            self.folder.cut_metrics(step, evaluated=due != "evaluation")
            cut(self.folder, step)
        last, warnings = self.world.said_by_first(found)
        if last is None:
            if self.origin is not None:
                raise OperationalError(
                    f"{self.folder.checkpoints}: the checkpoint to resume from has just gone; start once more"
                )
            return warnings  # type: ignore[no-any-return]
        self.load(last)
        before = last.state.get("processes", self.world.size)
        if before != self.world.size:
            warnings.append(
                f"{last.path}: was written by {before} processes and resumes with {self.world.size}: the examples "
                "are the same, but not the last bits"
            )
        return warnings  # type: ignore[no-any-return]

    def load(self, last: checkpoint.Checkpoint) -> None:
        """Loads weights, optimiser state and progress. Raises `UserError` for a checkpoint of another tokenizer."""
        refuse_other_tokenizer(self.recipe.tokenizer, self.recipe.task, last)
        tensors = last.read()
        self.parallel.load_weights(tensors["weights"], str(last.path))
        self.parallel.load_moments(self.optimizer, tensors["optimizer"])
        if "operations" in last.state["progress"]:
            raise UserError(f"{last.path}: is of version 0.1, which resumes it; another runs_dir= starts anew")
        self.progress = TrainingState(**last.state["progress"])
        self._earlier = last.state.get("seconds", 0.0)
        if "flops" not in last.state["progress"]:  # written before operations were counted
            self.progress.flops = round(self.progress.examples * self.budget.operations_per_example)
        if self.progress.scaler:
            self.scaler.load_state_dict(self.progress.scaler)

    def start_from(self, other: checkpoint.Checkpoint) -> None:
        """Loads another run's weights, and nothing else of it."""
        self.parallel.load_weights(other.read(only=["weights"])["weights"], str(other.path))

    # The loop -----------------------------------------------------------------------------------------------------

    def train(self, stop: Stop | None = None) -> Outcome:
        """Trains until the budget is used up, the target is reached, time is over or `stop` is requested."""
        stop = stop or Stop()
        with products(self.world.device, tf32=self.training.tf32):
            self.begin(stop)
            while self.should_continue():
                self.one_step(self.steps)
                self.after_step()
            return self.end()

    def begin(self, stop: Stop) -> None:
        """Before the first step of a start, which `stop` may end. Where no step is to be made, the start itself is
        evaluated and written; what a stop left due after the last step is done now."""
        self._stop = stop
        self._began = self._saved_at = time.monotonic()
        self._saved, self._overdue = self.progress.step, False
        self._why, self._status = "target" if self.reached() else "budget", 0
        if self.progress.step == 0:
            refuse_broken_weights(self.model, self.world)
        if self.progress.due or (self.fresh and (self.spent() or self.training.evaluate_at_start)):
            self._evaluate()
            self.save()
            self._why = "target" if self.reached() else self._why
        self.model.train()

    def should_continue(self) -> bool:
        """Whether to make another step; `end` returns why not."""
        if self.done:
            return False
        flags = self._flags()
        self._overdue = bool(flags["overdue"])
        if flags["stop"] or flags["late"]:
            self._why = "stopped" if flags["stop"] else "minutes"
            self._status = self.world.highest(self._stop.status) if flags["stop"] else 0
            return False
        return True

    def after_step(self) -> None:
        """Logs, evaluates and saves what is due."""
        training, step, best, last = self.training, self.progress.step, self.progress.best, self.spent()
        if step == 1:
            self._settle()  # a failed first step raises at once
        if step % training.log_every == 0 or last:
            self._log()
        if step % training.evaluate_every == 0 or last:
            self._evaluate()
            self._why = "target" if self.reached() else self._why
        due = training.checkpoint_every is not None and step % training.checkpoint_every == 0
        if due or self._overdue or last or self.reached() or self.progress.best != best:
            self.save()
            self._saved, self._saved_at = step, time.monotonic()

    def end(self) -> Outcome:
        """After the last step of a start: all of it is on disk."""
        if self._saved != self.progress.step:
            self.save()
        self.model.eval()
        return Outcome(self.progress, self._why, self._status)

    def _flags(self) -> dict[str, int]:
        """Flags set by signals and the clock in any process, summed over all."""
        training, now = self.training, time.monotonic()
        minutes, between = training.minutes, training.checkpoint_minutes
        return self.world.sum_counts(
            {
                "stop": self._stop.requested or self.world.orphaned,
                "late": minutes is not None and now - self._began > 60 * minutes,
                "overdue": between is not None and now - self._saved_at > 60 * between,
            }
        )

    def one_step(self, steps: int) -> None:
        """One optimiser step on the next global batch."""
        training, progress = self.training, self.progress
        draw, rate = StepContext(self.recipe.seed, progress.step), self.rate(steps)
        examples = training.smallest * self.budget.multiples(self.budget.used(progress))
        parts = [
            self.stream.batch(StreamPosition(place), self.world.rank, self.world.size, part, self.parts)
            for place in range(progress.examples, progress.examples + examples, training.smallest)
            for part in range(self.parts)
        ]
        counts: dict[str, int] = {"real tokens": 0, "padded tokens": 0, "flops": 0}
        for batch in parts:
            counts["real tokens"] += batch.real
            counts["padded tokens"] += places_of(batch)
            counts["flops"] += self.budget.flops_of(batch, draw)
            for term, count in self.objective.counts(batch).items():
                counts[f"term {term}"] = counts.get(f"term {term}", 0) + count
        counts = self.world.sum_counts(counts)
        _seed(self.world.device, _dropout_seed(self.recipe.seed, progress.step, self.world.rank))
        self.optimizer.zero_grad(set_to_none=True)
        for number, batch in enumerate(parts):
            self._part(batch.to(self.world.device), draw, counts, last=number == len(parts) - 1)
        self.parallel.finish()
        self.scaler.unscale_(self.optimizer)
        if training.log_layer_grad_norms:
            for name, layer in self.parallel.layer_norms().items():
                self.add(LAYER + name, layer)
        norm = self.parallel.clip(self.recipe.optimizer.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.is_enabled():  # a step whose gradient is not finite was skipped, and the scale made smaller
            norm = norm.nan_to_num(0.0, 0.0, 0.0)
        self.add("gradient norm", norm)
        self.count_step(examples, counts["real tokens"], counts["padded tokens"], counts["flops"])

    def rate(self, steps: int) -> float:
        """The learning rate of the next step."""
        schedule, progress = self.recipe.schedule, self.progress
        factor = schedule.multiplier(self.budget.position(progress), steps) * schedule.judged(progress.judged)
        self._rate = self.recipe.optimizer.learning_rate * factor
        return self._rate

    def count_step(self, examples: int, real: int, padded: int, flops: int) -> None:
        """Counts a finished step: its examples, its tokens without and with padding, its operations."""
        progress = self.progress
        progress.step += 1
        progress.examples += examples
        progress.tokens += real
        progress.flops += flops
        self.add("real tokens", real)
        self.add("padded tokens", padded)
        self.add("steps", 1)
        self.listen("step", {"step": progress.step, "steps": self.steps, "tokens": real})

    def _part(self, batch: Batch, draw: StepContext, counts: Mapping[str, int], *, last: bool) -> None:
        batch = replace(batch, tokens=self.model.assign_positions(batch.tokens, draw))
        with self.parallel.backward(last):
            with autocast(self.world.device, self.training.precision):
                terms = self.objective(self.parallel.forward, batch, draw)
            means = {term: value / max(1, counts[f"term {term}"]) for term, value in terms.items()}
            total = sum((self.objective.weights[term] * mean for term, mean in means.items()), torch.zeros(()))
            self.scaler.scale(total * self.parallel.factor).backward()
        self.add("loss", total.detach())
        if len(means) > 1:
            for term, mean in means.items():
                self.add(f"loss {term}", mean.detach())

    # Records ------------------------------------------------------------------------------------------------------

    def add(self, name: str, value: float | torch.Tensor) -> None:
        """Sums on the device: nothing waits for it until a line is logged or a checkpoint written."""
        self._sums.add(name, value)

    def _settle(self) -> dict[str, float]:
        """The sums since the last line as plain numbers. Raises `OperationalError` if the loss or its gradient is not
        finite."""
        self.settling()
        self._sums.settle(self.progress.sums, self.progress.step, self.folder)
        return self.progress.sums

    def _log(self) -> None:
        progress = self.progress
        record = line(self._settle(), progress, self._rate)
        if (timing := self.timings.line(progress)) is not None:
            self._record("timings.jsonl", "timing", timing)
        progress.sums.clear()
        self._record("metrics.jsonl", "log", record)
        if progress.step <= self.training.log_every and self.world.first:  # the first line of a run
            for text in number_term_large(self.objective, record):
                self.listen("warning", {"text": text})

    def _evaluate(self) -> None:
        """Evaluates this step and generates its samples, or what of both is due. After a stop the rest stays due."""
        progress = self.progress
        with contextlib.suppress(Stopped):
            if progress.due != "samples":
                progress.due = "evaluation"
                self._develop()
                progress.due = "samples"
            step = progress.step
            due = step == 0 or step % self.training.evaluate_every == 0
            if self.sampler.due(evaluated=due, last=self.spent() or self.reached()):
                with self.timings.pause(), self.parallel.generating() as model:
                    folder = self.folder if self.world.first else None
                    self.sampler.generate(model, step, folder, self._stop_requested)
            progress.due = ""

    def _stop_requested(self) -> bool:
        """Whether a stop is requested in any process. Every process must call it."""
        return bool(self._flags()["stop"])

    def _between(self) -> None:
        """Between two batches of an evaluation, in every process: raises `Stopped` on a requested stop."""
        if self._stop_requested():
            raise Stopped

    def _develop(self) -> None:
        """Evaluates the development splits, and keeps the best step by the criterion."""
        progress = self.progress
        with self.timings.pause(), self.parallel.evaluating() as model:
            result = self.development.evaluate(model, progress.step, self._between)
        for record in result.records:
            self._record("metrics.jsonl", "evaluation", dict(record))
        if self.development.criterion.prefers(result.score, progress.best_so_far):
            progress.best = progress.step
            progress.best_by, progress.best_split, progress.best_score, progress.best_loss = result.score
        progress.right = result.accuracy
        step = progress.step
        due = step > 0 and step % self.training.evaluate_every == 0  # not only because a budget ends or starts here
        if result.watched is not None and due:
            progress.judged = self.recipe.schedule.after_evaluation(progress.judged, result.watched)

    def save(self) -> None:
        """Writes a checkpoint. Every process must call it; the first writes."""
        self._settle()
        with self.timings.pause():
            self._write()

    def _write(self) -> None:
        if self.folder is None:
            return
        groups = {"weights": self.parallel.weights(), "optimizer": self.parallel.moments(self.optimizer)}
        self.progress.scaler = self.scaler.state_dict() if self.scaler.is_enabled() else {}
        if self.world.first:
            state = {
                "progress": asdict(self.progress),
                "threads": torch.get_num_threads(),
                "processes": self.world.size,
                "seconds": round(self._earlier + self.share * (time.monotonic() - self._began), 3),
                "tokenizer": fingerprint_of(self.recipe.tokenizer, self.recipe.task),
                "origin": self.model.origin(),
            }
            checkpoint.write(
                self.folder.checkpoints,
                self.progress.step,
                groups,
                state,
                keep_last=self.training.keep_checkpoints,
                best=self.progress.best,
            )
        self.world.wait()
        self.listen("checkpoint", {"step": self.progress.step})

    def _record(self, file: str, kind: str, record: dict[str, Any]) -> None:
        if self.world.first:
            if self.folder is not None:
                self.folder.append(file, record)
            self.listen(kind, record)


def _seed(device: torch.device, seed: int) -> None:
    """Seeds what dropout draws from. `torch.manual_seed` would do it for every kind of device, at 0.3 ms a call."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _dropout_seed(seed: int, step: int, rank: int) -> int:
    return ((seed * 0x9E3779B1 + step) * 0x85EBCA77 + rank * 0xC2B2AE3D) & 0x7FFFFFFFFFFFFFFF

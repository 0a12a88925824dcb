"""The training loop."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from numerate.batch import Batch, Model, StepContext, copies_from_pinned_memory
from numerate.errors import OperationalError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.training import checkpoint
from numerate.training.budget import Budget
from numerate.training.data_stream import BatchStream, num_total_tokens
from numerate.training.distributed import World
from numerate.training.objective import ObjectiveModule
from numerate.training.own_parts import naming_own_parts
from numerate.training.parallel import make_parallel_strategy
from numerate.training.precision import autocast, resolve_precision, tf32_matmul
from numerate.training.preflight import (
    TrainingParts,
    check_same_tokenizer,
    preflight,
    tokenizer_fingerprint,
    warn_large_number_loss,
)
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from numerate.training.running_sums import LAYER_PREFIX, MetricSums, metrics_record
from numerate.training.samples import SampleGenerator, remove_later_samples
from numerate.training.stopping import Stop, Stopped
from numerate.training.timings import Timings
from numerate.training.training_state import TrainingState
from numerate.training.validation import Validator

EventCallback = Callable[[str, Mapping[str, Any]], None]
"""Called with `("step", {"step": 7, ...})`, `("log", record)`, `("evaluation", record)`, `("timing", record)`,
`("checkpoint", {...})`, `("warning", {"text": ...})`."""


@dataclass(frozen=True)
class _GlobalBatch:
    """The micro-batches of this process of a global batch, and what is counted over all processes: the divisor of each
    term of the loss, examples, tokens without and with padding, and floating-point operations."""

    micro_batches: Sequence[Batch]
    step_context: StepContext
    divisors: Mapping[str, int]
    examples: int
    tokens: int
    total_tokens: int
    flops: int


class Trainer:
    """Trains a recipe in its run folder, resuming from the last checkpoint if there is one.

    `pretrained_config` is the configuration of a pretrained model stored in that checkpoint; the pretrained weights are
    then not loaded again. With `use_meta_device` the model is on the meta device: everything is checked and counted,
    but nothing can be trained.

    Raises `UserError` for a recipe that cannot be trained (before anything is written), `OperationalError` if the loss
    is not finite."""

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        folder: RunFolder | None = None,
        on_event: EventCallback = lambda kind, record: None,
        *,
        pretrained_config: Mapping[str, Any] | None = None,
        use_meta_device: bool = False,
    ) -> None:
        precision: Any = resolve_precision(recipe.training.precision, world.device)
        recipe = replace(recipe, training=replace(recipe.training, precision=precision))
        self.recipe, self.world, self.folder, self.on_event = recipe, world, folder, on_event
        self.training = recipe.training
        self.evaluation_data = EvaluationData.from_recipe(recipe)
        vocabulary = self.evaluation_data.vocabulary
        self.pretrained_config = pretrained_config
        self.model: Model
        if use_meta_device:
            self.model = recipe.model.build_on_meta(vocabulary, recipe.seed, pretrained_config)
        else:
            self.model = recipe.model.rebuild(vocabulary, recipe.seed, pretrained_config).to(world.device)
        self.objective: ObjectiveModule = recipe.objective.build(vocabulary).to(world.device)
        self.parameter_options = recipe.optimizer.parameter_options(self.model)
        # initial_batch_size, of which a step takes several while the batch size grows; else batch_size
        rows = self.training.base_batch_size
        window = self.training.shuffle_window * (self.training.batch_size // rows)
        data = (recipe.task, recipe.tokenizer, recipe.layout)
        self.stream = BatchStream(*data, seed=recipe.seed, batch_size=rows, window=window)
        self.budget = Budget(self.training, recipe.task, self.stream, self.model, self.objective)
        self.num_micro_batches = self.training.num_micro_batches(world.size)
        self.sample_generator = SampleGenerator(recipe.samples, self.evaluation_data, self.training.precision)
        parts = TrainingParts(recipe, world.device, self.evaluation_data, self.model, self.objective)
        with naming_own_parts(recipe):
            self.warnings = preflight(parts) + self.sample_generator.warnings
        self.validator = Validator(recipe, self.evaluation_data, self.objective, parts.validation_splits(), world)
        if self.training.compile:
            self.objective.compile_loss()
        strategy = make_parallel_strategy(self.training.parallel, self.model, world, is_compiled=self.training.compile)
        self.parallel_strategy = strategy
        self.optimizer = recipe.optimizer.build(self.model, self.parameter_options)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.training.precision == "fp16")
        self.state = TrainingState()
        self._sums = MetricSums(recipe.optimizer.learning_rate, world)
        self.timings = Timings(world, self.training)
        self._learning_rate = 0.0  # of the last step
        self._start_time = self._last_save_time = 0.0
        self._previous_seconds = 0.0  # training time of earlier sessions, from the checkpoint
        self._last_saved_step = 0
        self._is_checkpoint_overdue = False
        self.stop_reason, self.exit_status = "budget", 0
        """Why training ended: `budget`, `target` (accuracy reached), `minutes` (time limit) or `stopped` (by a signal,
        with its exit status)."""
        self._stop = Stop()

    @property
    def total_steps(self) -> int:
        """The budget in optimizer steps; for a budget in tokens or FLOPs an estimate, used by the schedule."""
        return self.budget.total_steps

    @property
    def is_new(self) -> bool:
        """Whether the run has not been evaluated or saved yet."""
        return self.state.step == 0 and self.state.best is None and not self.state.pending

    def has_reached_target(self) -> bool:
        """Whether the last evaluation reached the target accuracy."""
        return self.training.target_accuracy is not None and self.state.exact_match >= self.training.target_accuracy

    @property
    def is_finished(self) -> bool:
        """Whether no steps are left, and no evaluation or samples pending after an interruption."""
        return (self.budget.is_spent(self.state) or self.has_reached_target()) and not self.state.pending

    def resume(self) -> list[str]:
        """Resumes from the last intact checkpoint of the folder, if any. Returns warnings about corrupted
        checkpoints."""
        if self.folder is None:
            return []
        resumed: tuple[checkpoint.Checkpoint | None, list[str]] = (None, [])
        if self.world.is_main_process:
            resumed = checkpoint.resume(self.folder.checkpoints)
            step, pending = (resumed[0].step, resumed[0].state["progress"].get("pending")) if resumed[0] else (0, "")
            self.folder.truncate_metrics(step, is_evaluated=pending != "evaluation")
            remove_later_samples(self.folder, step)
        last_checkpoint, warnings = self.world.broadcast(resumed)
        if last_checkpoint is not None:
            self.load(last_checkpoint)
            processes = last_checkpoint.state.get("processes", self.world.size)
            if processes != self.world.size:
                warnings.append(
                    f"{last_checkpoint.path}: was written by {processes} processes and resumes with {self.world.size}: "
                    "the examples are the same, but rounding differs"
                )
        elif self.pretrained_config is not None:
            raise OperationalError(
                f"{self.folder.checkpoints}: the checkpoint to resume from has been deleted since the command started; "
                "run the command again"
            )
        return warnings  # type: ignore[no-any-return]

    def load(self, last_checkpoint: checkpoint.Checkpoint) -> None:
        """Loads weights, optimizer state and progress. Raises `UserError` if the checkpoint was written with another
        tokenizer."""
        check_same_tokenizer(self.recipe.tokenizer, self.recipe.task, last_checkpoint)
        tensors = last_checkpoint.read()
        self.parallel_strategy.load_weights(tensors["weights"], str(last_checkpoint.path))
        self.parallel_strategy.load_optimizer_state(self.optimizer, tensors["optimizer"])
        self.state = TrainingState(**last_checkpoint.state["progress"])
        self._previous_seconds = last_checkpoint.state.get("seconds", 0.0)
        if self.state.scaler:
            self.scaler.load_state_dict(self.state.scaler)

    def load_initial_weights(self, source: checkpoint.Checkpoint) -> None:
        """Loads only the weights of another run's checkpoint."""
        self.parallel_strategy.load_weights(source.read(only=["weights"])["weights"], str(source.path))

    def train(self, stop: Stop | None = None) -> None:
        """Trains until the budget is used up, the target accuracy or the time limit is reached, or `stop` is
        requested: `stop_reason` says which."""
        stop = stop or Stop()
        with tf32_matmul(self.world.device, tf32=self.training.tf32):
            self.start_training(stop)
            while self._should_continue():
                self.training_step(self.total_steps)
                self._after_step()
            if self._last_saved_step != self.state.step:
                self.save()
        self.model.eval()

    def start_training(self, stop: Stop) -> None:
        """Evaluates and saves the initial model if there is no step to take, or with `evaluate_at_start`, and runs an
        evaluation that an interruption left pending; `stop` may interrupt it."""
        self._stop = stop
        self._start_time = self._last_save_time = time.monotonic()
        self._last_saved_step, self._is_checkpoint_overdue = self.state.step, False
        self.stop_reason, self.exit_status = "target" if self.has_reached_target() else "budget", 0
        evaluates_start = self.training.evaluate_at_start or self.budget.is_spent(self.state)
        if self.state.pending or (self.is_new and evaluates_start):
            self._evaluate()
            self.save()
        self.model.train()

    def _should_continue(self) -> bool:
        if self.is_finished:
            return False
        flags = self._stop_flags()
        self._is_checkpoint_overdue = bool(flags["checkpoint_overdue"])
        if flags["stop"]:
            self.stop_reason, self.exit_status = "stopped", self.world.max_over_processes(self._stop.status)
        elif flags["time_limit"]:
            self.stop_reason = "minutes"
        return not (flags["stop"] or flags["time_limit"])

    def _after_step(self) -> None:
        """Logs, evaluates and saves what is due."""
        training, step, previous_best_step = self.training, self.state.step, self.state.best
        is_last_step = self.budget.is_spent(self.state)
        if step == 1:
            self._flush_metrics()  # a failed first step raises at once
        if step % training.log_every == 0 or is_last_step:
            self._log()
        if step % training.evaluate_every == 0 or is_last_step:
            self._evaluate()
        is_scheduled = training.checkpoint_every is not None and step % training.checkpoint_every == 0
        is_important = is_last_step or self.has_reached_target() or self.state.best != previous_best_step
        if is_scheduled or is_important or self._is_checkpoint_overdue:
            self.save()

    def _stop_flags(self) -> dict[str, int]:
        """The number of processes in which a stop was requested (by a signal, or because the launcher has exited), the
        time limit is reached, and a checkpoint is overdue."""
        now, limit, interval = time.monotonic(), self.training.minutes, self.training.checkpoint_minutes
        return self.world.sum_counts(
            {
                "stop": self._stop.requested or self.world.is_orphaned,
                "time_limit": limit is not None and now - self._start_time > 60 * limit,
                "checkpoint_overdue": interval is not None and now - self._last_save_time > 60 * interval,
            }
        )

    def training_step(self, total_steps: int) -> None:
        """One optimizer step on the next global batch, at the rate that the schedule has for `total_steps`. Nothing is
        counted if it fails."""
        state, schedule = self.state, self.recipe.schedule
        multiplier = schedule.multiplier(self.budget.schedule_step(state), total_steps)
        self._learning_rate = self.recipe.optimizer.learning_rate * (
            multiplier * schedule.plateau_factor(state.schedule_state)
        )
        batch = self.next_batch()
        self.compute_gradients(batch)
        self._update_weights(self._learning_rate)
        state.step += 1
        state.examples += batch.examples
        state.tokens += batch.tokens
        state.flops += batch.flops
        # "padded_tokens" is the name in checkpoints; padding is included.
        for name, value in (("real_tokens", batch.tokens), ("padded_tokens", batch.total_tokens), ("steps", 1)):
            self._sums.add(name, value)
        self.on_event("step", {"step": state.step, "steps": self.total_steps, "tokens": batch.tokens})

    def next_batch(self) -> _GlobalBatch:
        """The next global batch: a function of the steps and examples before it. Its micro-batches are on the CPU, with
        position ids."""
        world, state, rows = self.world, self.state, self.training.base_batch_size
        num_examples = rows * self.budget.batch_size_multiple(self.budget.fraction_used(state))
        step_context = StepContext(self.recipe.seed, state.step)
        micro_batches: list[Batch] = []
        sizes: Counter[str] = Counter(real_tokens=0, total_tokens=0, flops=0)
        for start in range(state.examples, state.examples + num_examples, rows):
            for number in range(self.num_micro_batches):
                batch = self.stream.batch(start, world.rank, world.size, number, self.num_micro_batches)
                batch = replace(batch, tokens=self.model.assign_positions(batch.tokens, step_context))
                sizes["real_tokens"] += batch.num_input_tokens
                sizes["total_tokens"] += num_total_tokens(batch)
                sizes["flops"] += self.objective.flops(self.model, batch, step_context)
                # The terms of a loss, such as cross_entropy and number, are means, each with its own denominator.
                sizes.update({f"term {term}": count for term, count in self.objective.counts(batch).items()})
                micro_batches.append(batch.pin_memory() if copies_from_pinned_memory(world.device) else batch)
        total = world.sum_counts(sizes)
        terms = {name.removeprefix("term "): count for name, count in total.items() if name.startswith("term ")}
        divisors = {term: max(1, count) for term, count in terms.items()}
        counts = (total[name] for name in ("real_tokens", "total_tokens", "flops"))
        return _GlobalBatch(micro_batches, step_context, divisors, num_examples, *counts)

    def compute_gradients(self, batches: _GlobalBatch) -> None:
        """Forward and backward passes of the micro-batches."""
        _seed_dropout(self.world.device, _dropout_seed(self.recipe.seed, self.state.step, self.world.rank))
        self.optimizer.zero_grad(set_to_none=True)
        last = batches.micro_batches[-1]
        for micro_batch in batches.micro_batches:
            batch = micro_batch.to(self.world.device)
            if self.training.compile:  # a graph would be compiled for each number of tokens
                batch = replace(batch, counts={}, num_input_tokens=0)
            with self.parallel_strategy.backward(is_last=micro_batch is last):
                with autocast(self.world.device, self.training.precision):
                    loss_sums = self.objective(self.parallel_strategy.training_model, batch, batches.step_context)
                loss, metrics = _weighted_loss(loss_sums, batches.divisors, self.objective.weights)
                # The multiplier undoes the mean over processes of DDP and FSDP: divisors are those of all processes.
                self.scaler.scale(loss * self.parallel_strategy.loss_multiplier).backward()  # type: ignore[no-untyped-call]
            for name, value in metrics.items():
                self._sums.add(name, value)
        self.parallel_strategy.sync_gradients()

    def _update_weights(self, learning_rate: float) -> None:
        """Clips the gradients and updates the weights."""
        self.scaler.unscale_(self.optimizer)
        if self.training.log_layer_grad_norms:
            for name, layer_grad_norm in self.parallel_strategy.layer_grad_norms().items():
                self._sums.add(LAYER_PREFIX + name, layer_grad_norm)
        grad_norm = self.parallel_strategy.clip_grad_norm(self.recipe.optimizer.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group["factor"]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.is_enabled():  # skips a step with a non-finite gradient and reduces the loss scale
            grad_norm = grad_norm.nan_to_num(0.0, 0.0, 0.0)
        self._sums.add("grad_norm", grad_norm)

    def _flush_metrics(self) -> None:
        """Adds to the sums since the last log line. Raises `OperationalError` if the loss or its gradient is not
        finite."""
        self._sums.flush(self.state.sums, self.state.step, self.folder)

    def _log(self) -> None:
        state = self.state
        self._flush_metrics()
        record = metrics_record(state.sums, state, self._learning_rate)
        if (timing := self.timings.next_record(state)) is not None:
            self._append_record("timings.jsonl", "timing", timing)
        state.sums.clear()
        self._append_record("metrics.jsonl", "log", record)
        if state.step <= self.training.log_every and self.world.is_main_process:  # the first line of a run
            for text in warn_large_number_loss(self.objective, record):
                self.on_event("warning", {"text": text})

    def _evaluate(self) -> None:
        """Evaluates this step and generates its samples; if interrupted, `state.pending` says what is left to do."""
        state = self.state
        with contextlib.suppress(Stopped):
            if state.pending != "samples":
                state.pending = "evaluation"
                self._validate()
                state.pending = "samples"
            is_last_step = self.budget.is_spent(state) or self.has_reached_target()
            is_scheduled = state.step % self.training.evaluate_every == 0
            if self.sample_generator.is_due(is_evaluation_step=is_scheduled, is_last_step=is_last_step):
                with self.timings.pause(), self.parallel_strategy.generation_mode() as model:
                    folder = self.folder if self.world.is_main_process else None
                    self.sample_generator.generate(model, state.step, folder, self._stop_requested)
            state.pending = ""
        self.stop_reason = "target" if self.has_reached_target() else self.stop_reason

    def _stop_requested(self) -> bool:
        """Whether a stop was requested in any process. Every process must call it."""
        return bool(self._stop_flags()["stop"])

    def _raise_if_stopped(self) -> None:
        """Raises `Stopped` if a stop was requested. Every process calls it between two evaluation batches."""
        if self._stop_requested():
            raise Stopped

    def _validate(self) -> None:
        """Evaluates the validation splits and updates the best step."""
        state, strategy = self.state, self.parallel_strategy
        mode = strategy.evaluation_mode if self.validator.method == "one pass" else strategy.generation_mode
        with self.timings.pause(), mode() as model:
            result = self.validator.evaluate(model, state.step, self._raise_if_stopped)
        for record in result.records:
            self._append_record("metrics.jsonl", "evaluation", dict(record))
        if self.validator.criterion.is_improvement(result.score, state.best_step_score):
            state.best = state.step  # the best step, whose checkpoint is kept
            state.best_metric, state.best_split, state.best_score, state.best_loss = result.score
        state.exact_match = result.accuracy  # or the score of a kind with columns; 0 for language modeling
        # not an evaluation made only because the run starts or ends here
        is_scheduled = state.step > 0 and state.step % self.training.evaluate_every == 0
        if result.monitored_value is not None and is_scheduled:
            state.schedule_state = self.recipe.schedule.update_state(state.schedule_state, result.monitored_value)

    def save(self) -> None:
        """Writes a checkpoint. Every process must call it; the main process writes."""
        self._flush_metrics()
        if self.folder is not None:
            with self.timings.pause():
                self._write_checkpoint(self.folder)
        self._last_saved_step, self._last_save_time = self.state.step, time.monotonic()

    def _write_checkpoint(self, folder: RunFolder) -> None:
        tensors = {
            "weights": self.parallel_strategy.full_state_dict(),
            "optimizer": self.parallel_strategy.full_optimizer_state(self.optimizer),
        }
        self.state.scaler = self.scaler.state_dict() if self.scaler.is_enabled() else {}
        if self.world.is_main_process:
            training, step, best = self.training, self.state.step, self.state.best
            checkpoint_state = {
                "progress": asdict(self.state),
                "threads": torch.get_num_threads(),
                "processes": self.world.size,
                "precision": training.precision,
                "seconds": round(self._previous_seconds + time.monotonic() - self._start_time, 3),
                "tokenizer": tokenizer_fingerprint(self.recipe.tokenizer, self.recipe.task),
                "origin": self.model.pretrained_config(),  # to rebuild the model without its pretrained weights
            }
            checkpoint.write(
                folder.checkpoints, step, tensors, checkpoint_state, keep_last=training.keep_checkpoints, best=best
            )
        self.world.barrier()
        self.on_event("checkpoint", {"step": self.state.step})

    def _append_record(self, file: str, kind: str, record: dict[str, Any]) -> None:
        if self.world.is_main_process:
            if self.folder is not None:
                self.folder.append(file, record)
            self.on_event(kind, record)


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Seeds the random generators used by dropout. `torch.manual_seed` seeds every device type, which takes 0.3 ms per
    call."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _dropout_seed(seed: int, step: int, rank: int) -> int:
    return ((seed * 0x9E3779B1 + step) * 0x85EBCA77 + rank * 0xC2B2AE3D) & 0x7FFFFFFFFFFFFFFF


def set_threads(num_threads: int | None, last_checkpoint: checkpoint.Checkpoint | None) -> None:
    """Sets the number of threads: the recipe's, else that of the last session (it affects rounding), else all cores."""
    if num_threads is None and last_checkpoint is not None:
        num_threads = last_checkpoint.state.get("threads")
    if num_threads is not None:
        torch.set_num_threads(num_threads)


def _weighted_loss(
    loss_sums: Mapping[str, Tensor], divisors: Mapping[str, int], weights: Mapping[str, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to differentiate, and the metrics to log: the loss, and each of its terms if there are several."""
    means = {term: value / divisors[term] for term, value in loss_sums.items()}
    weighted = (mean if weights[term] == 1 else weights[term] * mean for term, mean in means.items())
    loss = reduce(torch.add, weighted)
    terms = {f"loss_{term}": mean.detach() for term, mean in means.items()} if len(means) > 1 else {}
    return loss, {"loss": loss.detach(), **terms}

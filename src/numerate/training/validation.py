"""Evaluation on the validation splits during training."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from numerate.batch import Batch, Model, StepContext
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData, limit_count, split_batch
from numerate.evaluation.exact_match import predict
from numerate.evaluation.kinds.text_likelihood import compute_chunk_losses
from numerate.evaluation.likelihoods import Likelihoods
from numerate.evaluation.statistics import wilson_interval
from numerate.tasks.questions import Questions
from numerate.training.distributed import World
from numerate.training.objective import ObjectiveModule
from numerate.training.precision import autocast
from numerate.training.recipe import Recipe
from numerate.training.training_state import BestStepRule, ValidationScore

BatchCallback = Callable[[], None]
"""Called between two batches; an exception aborts the evaluation."""

LIKELIHOOD_METRICS = ("loss", "low", "high", "perplexity", "mean_of_exp", "batch_loss", "bits_per_byte")
"""What the validation of text records, beside the accuracy of tokens and their number."""


@dataclass(frozen=True)
class ValidationResult:
    """The evaluation of a step, the same on every process.

    `records` are lines for `metrics.jsonl`; `score` is what the best step is chosen by; `accuracy` is that on the
    validation split, which is compared with `training.target_accuracy`; `monitored_value` is the metric that the
    schedule monitors, if any.
    """

    records: Sequence[Mapping[str, Any]]
    score: ValidationScore
    accuracy: float
    monitored_value: float | None


class _Measured(NamedTuple):
    """What a step measures: the metrics of each split, the accuracy of each for choosing the best step, that compared
    with the target, and the loss, if it is needed."""

    metrics: dict[str, dict[str, Any]]
    accuracy: dict[str, float]
    reached: float
    loss: float | None


@dataclass(frozen=True)
class _ValidationShard:
    """A process's share of a validation split: its questions as one batch, processed in `num_rounds` parts of at most
    `max_rows` rows on a GPU. The longest target of the split has `extra_tokens` more tokens than that of the share."""

    split: str
    questions: Questions
    batch: Batch
    num_rounds: int
    max_rows: int | None
    extra_tokens: int

    def padded_rounds(self) -> Iterator[tuple[Batch, bool]]:
        """The parts, and whether each counts: every process calls the model equally often, and one with fewer parts
        repeats its last one without counting it."""
        batches = split_batch(self.batch, self.max_rows)
        for index in range(self.num_rounds):
            yield batches[min(index, len(batches) - 1)], index < len(batches)


class Validator:
    """Evaluates the validation splits on the same questions each time, divided among the processes.

    Only the first position offset is evaluated. Raises `UserError` for a target accuracy of language modeling.
    """

    def __init__(
        self,
        recipe: Recipe,
        evaluation_data: EvaluationData,
        objective: ObjectiveModule,
        splits: Sequence[str],
        world: World,
    ) -> None:
        self.recipe, self.evaluation_data, self.objective = recipe, evaluation_data, objective
        self.splits, self.world, self.kind = splits, world, evaluation_data.kind
        if self.kind.validates_likelihood and recipe.training.target_accuracy is not None:
            raise UserError("training.target_accuracy: must be null for language modeling, which has no answers")
        self.method = self.kind.validation_method(evaluation_data)
        self.criterion = BestStepRule.from_metric(recipe.training.best_metric, evaluation_data)
        self.monitored_metric = recipe.schedule.monitored_metric()
        self._shards: list[_ValidationShard] = []

    def evaluate(self, model: Model, step: int, on_batch: BatchCallback = lambda: None) -> ValidationResult:
        """Every process must call it, with the model in evaluation mode.

        `on_batch` is called between batches, equally often in every process; an exception aborts the evaluation.
        """
        measure = self._measure_text if self.kind.validates_likelihood else self._measure_answers
        metrics, accuracy, reached, loss = measure(model, on_batch)
        monitored = {None: None, "loss": loss}.get(self.monitored_metric, accuracy["validation"])
        records = [{"step": step, "split": split, **record} for split, record in metrics.items()]
        return ValidationResult(records, self.criterion.score(accuracy, loss), reached, monitored)

    def _measure_text(self, model: Model, on_batch: BatchCallback) -> _Measured:
        """The likelihood of text, over the same chunks each time."""
        likelihoods = self._likelihoods(model, on_batch)
        metrics, accuracy = likelihoods.record(), likelihoods.token_accuracy
        record = {name: metrics[name] for name in (*LIKELIHOOD_METRICS, "token_accuracy") if name in metrics}
        record["tokens"] = likelihoods.tokens
        return _Measured({"validation": record}, {"validation": accuracy}, 0.0, likelihoods.loss)

    def _likelihoods(self, model: Model, on_batch: BatchCallback = lambda: None) -> Likelihoods:
        """Each process computes its share of every batch; means over batches are those of global batches."""
        rank, size = self.world.rank, self.world.size
        own_sums: list[Likelihoods] = []
        with autocast(self.world.device, self.recipe.training.precision):
            for start, count in self._batches():
                on_batch()
                questions = self.recipe.task.examples("validation", self.recipe.seed, start, count)
                row_index = np.arange(rank, len(questions), size)
                # Every process calls the model equally often: one with a shorter share reads an extra row.
                padded_index = row_index if len(row_index) * size >= len(questions) else np.append(row_index, 0)
                batch = self.evaluation_data.batch(questions.take(padded_index)).to(self.world.device)
                losses = compute_chunk_losses(model, self.evaluation_data, batch)
                own_sums.append(losses.likelihoods(len(row_index)))
        sums = {f"{name} {at}": value for at, one in enumerate(own_sums) for name, value in asdict(one).items()}
        sums = self.world.sum_values(sums)
        batches = ({name: sums[f"{name} {at}"] for name in asdict(one)} for at, one in enumerate(own_sums))
        return sum((Likelihoods.from_sums(batch).as_batch() for batch in batches), Likelihoods())

    def _batches(self) -> Iterator[tuple[int, int]]:
        """(first chunk, number of chunks) of each batch, up to the requested and available number. The micro-batches of
        an accumulated batch count as batches, as published."""
        evaluation, training, task = self.recipe.evaluation, self.recipe.training, self.recipe.task
        rows = training.batch_size // training.gradient_accumulation_steps
        num_batches = evaluation.validation_batches
        num_requested = evaluation.validation_examples if num_batches is None else num_batches * rows
        total = min(num_requested, task.num_chunks("validation"))  # type: ignore[attr-defined]
        return ((first, min(rows, total - first)) for first in range(0, total, rows))

    def _measure_answers(self, model: Model, on_batch: BatchCallback) -> _Measured:
        """Exact match, and what else the kind of evaluation counts."""
        shards = self._draw_shards(on_batch)
        sums_by_split = {shard.split: self._counts_and_scores(model, shard, on_batch) for shard in shards}
        needs_loss = self.monitored_metric == "loss" or self.criterion.needs_loss
        loss = self._loss(model, shards[0], on_batch) if needs_loss else None
        records, accuracy, reached = {}, {}, {}
        for split, (counts, score_sums) in sums_by_split.items():
            count, digits = counts["count"], counts["digits"]
            low, high = wilson_interval(counts["correct"], count)
            exact_match = counts["correct"] / count
            metrics = self.kind.validation_metrics(counts)
            scores = {name: total / count for name, total in score_sums.items()}
            accuracy[split] = metrics.get("accuracy", next(iter(scores.values()), exact_match))
            reached[split] = accuracy[split] if self.kind.columns else exact_match
            records[split] = {
                "exact_match": round_significant(exact_match),
                "low": round_significant(low),
                "high": round_significant(high),
                "correct": counts["correct"],
                "count": count,
                "digit_accuracy": round_significant(counts["correct_digits"] / digits) if digits else None,
                **({"validation_loss": round_significant(loss)} if loss is not None and split == "validation" else {}),
                **{name: round_significant(value) for name, value in (metrics | scores).items()},
            }
        return _Measured(records, accuracy, reached["validation"], loss)

    def _counts_and_scores(
        self, model: Model, shard: _ValidationShard, on_batch: BatchCallback
    ) -> tuple[dict[str, int], dict[str, float]]:
        """The counts of a split and the sums of the scores of its kind, over all processes."""
        counts: Counter[str] = Counter()
        scorer = self.kind.validation_scorer(self.evaluation_data, shard.questions)
        for piece, is_counted in shard.padded_rounds():
            on_batch()
            extra_tokens = self.kind.extra_tokens + shard.extra_tokens
            predictions = predict(model, self.evaluation_data, piece, method=self.method, extra_tokens=extra_tokens)
            if is_counted:
                counts.update(self.kind.validation_counts(self.evaluation_data, predictions))
                if scorer is not None:
                    scorer.add_answers(predictions)
        return self.world.sum_counts(counts), {} if scorer is None else self.world.sum_values(scorer.score_sums())

    @torch.no_grad()
    def _loss(self, model: Model, shard: _ValidationShard, on_batch: BatchCallback) -> float:
        """The training loss on a split, with the forward passes of step 0 and without dropout. Every process must call
        it; sums and counts are those of all processes."""
        counts = self.world.sum_counts(self.objective.counts(shard.batch))
        sums: defaultdict[str, float] = defaultdict(float)
        for piece, is_counted in shard.padded_rounds():
            on_batch()
            positioned_batch = replace(piece, tokens=model.assign_positions(piece.tokens, StepContext.for_evaluation()))
            for term, value in self.objective(model, positioned_batch, StepContext(self.recipe.seed, 0)).items():
                sums[term] += float(value) if is_counted else 0.0
        totals = self.world.sum_values(sums)
        return sum(self.objective.weights[term] * value / max(1, counts[term]) for term, value in totals.items())

    def _draw_shards(self, on_batch: BatchCallback) -> list[_ValidationShard]:
        """The questions of the validation splits, generated once; at least one per process."""
        task, count = self.recipe.task, self.recipe.evaluation.validation_examples
        for split in self.splits[len(self._shards) :]:
            on_batch()
            num_examples = max(limit_count(task, count, split), self.world.size)
            questions = task.examples(split, self.recipe.seed, 0, num_examples)
            own_questions = questions.take(slice(self.world.rank, None, self.world.size))
            batch = self.evaluation_data.batch(own_questions).to(self.world.device)
            max_rows = self.recipe.training.micro_batch_size
            num_rounds = self.world.max_over_processes(len(split_batch(batch, max_rows)))
            num_targets = batch.target_ids.shape[1]
            extra_tokens = self.world.max_over_processes(num_targets) - num_targets
            self._shards.append(_ValidationShard(split, own_questions, batch, num_rounds, max_rows, extra_tokens))
        return self._shards


def round_significant(value: float) -> float:
    """Six significant digits: enough for a plot."""
    return float(f"{value:.6g}")

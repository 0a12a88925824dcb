"""Evaluation on the validation splits during training."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from numerate.batch import Batch, Model, StepContext
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData, limit_count, split_batch
from numerate.evaluation.exact_match import MatchCounts, score_batch
from numerate.evaluation.language_modeling import compute_chunk_losses, num_chunks, split_into_portions
from numerate.evaluation.likelihoods import Likelihoods
from numerate.evaluation.statistics import wilson_interval
from numerate.training.best_checkpoint import BestStepRule, ValidationScore
from numerate.training.distributed import World
from numerate.training.objective import ObjectiveModule
from numerate.training.precision import autocast
from numerate.training.recipe import Recipe

BatchCallback = Callable[[], None]
"""Called between two batches; an exception aborts the evaluation."""


@dataclass(frozen=True)
class ValidationResult:
    """The evaluation of a step, the same on every process.

    `records` are lines for `metrics.jsonl`; `score` is what the best step is chosen by; `accuracy` is that on the
    validation split; `monitored_value` is the metric that the schedule monitors, if any.
    """

    records: Sequence[Mapping[str, Any]]
    score: ValidationScore
    accuracy: float
    monitored_value: float | None


@dataclass(frozen=True)
class _ValidationShard:
    """A process's share of a validation split: one batch, processed in `num_rounds` parts, as many as in every other
    process."""

    split: str
    batch: Batch
    num_rounds: int

    def padded_rounds(self) -> Iterator[tuple[Batch, bool]]:
        """The parts, and whether each counts: every process calls the model equally often, and one with fewer parts
        repeats its last one without counting it."""
        batches = split_batch(self.batch)
        for index in range(self.num_rounds):
            yield batches[min(index, len(batches) - 1)], index < len(batches)


class Validator:
    """Evaluates the validation splits on the same questions each time, divided among the processes.

    Only the first position offset is evaluated.
    """

    def __init__(
        self,
        recipe: Recipe,
        evaluation_data: EvaluationData,
        objective: ObjectiveModule,
        splits: Sequence[str],
        world: World,
    ) -> None:
        self.recipe, self.evaluation_data, self.objective, self.splits, self.world = (
            recipe,
            evaluation_data,
            objective,
            splits,
            world,
        )
        self.criterion = BestStepRule.from_metric(recipe.training.best_metric, evaluation_data)
        if evaluation_data.is_language_modeling and recipe.training.target_accuracy is not None:
            raise UserError("training.target_accuracy: must be null for language modeling, which has no answers")
        self._shards: list[_ValidationShard] = []

    def evaluate(self, model: Model, step: int, on_batch: BatchCallback = lambda: None) -> ValidationResult:
        """Every process must call it, with the model in evaluation mode.

        `on_batch` is called between batches, equally often in every process; an exception aborts the evaluation.
        """
        return (
            self._evaluate_language_modeling if self.evaluation_data.is_language_modeling else self._evaluate_answers
        )(model, step, on_batch)

    def _evaluate_language_modeling(self, model: Model, step: int, on_batch: BatchCallback) -> ValidationResult:
        """The likelihood of text, over the same chunks each time. Each process computes its share of every batch; means
        over batches are those of global batches.
        """
        likelihoods = self._likelihoods(model, on_batch)
        metrics = likelihoods.record()
        names = ("loss", "low", "high", "perplexity", "mean_of_exp", "batch_loss", "bits_per_byte", "token_accuracy")
        record = {"step": step, "split": "validation"} | {name: metrics[name] for name in names if name in metrics}
        accuracy = {"validation": likelihoods.token_accuracy}
        monitored_metric = self.recipe.schedule.monitored_metric()
        monitored_value = (
            None
            if monitored_metric is None
            else likelihoods.loss
            if monitored_metric == "loss"
            else likelihoods.token_accuracy
        )
        record["tokens"] = likelihoods.tokens
        return ValidationResult([record], self.criterion.score(accuracy, likelihoods.loss), 0.0, monitored_value)

    def _likelihoods(self, model: Model, on_batch: BatchCallback = lambda: None) -> Likelihoods:
        rank, size = self.world.rank, self.world.size
        total, batch_sums = Likelihoods(), []
        with autocast(self.world.device, self.recipe.training.precision):
            for start, count in self._batches():
                on_batch()
                questions = self.recipe.task.examples("validation", self.recipe.seed, start, count)
                row_index = np.arange(rank, len(questions), size)
                # Every process calls the model equally often: one with a shorter share reads an extra row.
                padded_index = row_index if len(row_index) * size >= len(questions) else np.append(row_index, 0)
                batch = self.evaluation_data.batch(questions.take(padded_index)).to(self.world.device)
                batch_likelihoods = (
                    compute_chunk_losses(model, self.evaluation_data, batch).first(len(row_index)).likelihoods()
                )
                batch_sums.append(batch_likelihoods)
                total += batch_likelihoods
        sums = {
            f"{name} {index}": getattr(likelihoods, name)
            for index, likelihoods in enumerate(batch_sums)
            for name in ("nll", "tokens")
        }
        sums = self.world.sum_values(sums | {f"all {name}": value for name, value in asdict(total).items()})
        total_sums = {name.removeprefix("all "): value for name, value in sums.items() if name.startswith("all ")}
        batches = [
            Likelihoods(sums[f"nll {at}"], round(sums[f"tokens {at}"])).as_batch() for at in range(len(batch_sums))
        ]
        means = Likelihoods.merge(batches)
        return replace(
            Likelihoods.from_sums(total_sums),
            batches=means.batches,
            batch_losses=means.batch_losses,
            batch_exps=means.batch_exps,
        )

    def _batches(self) -> Iterator[tuple[int, int]]:
        """(first chunk, number of chunks) of each batch, up to the requested and available number. The micro-batches of
        an accumulated batch count as batches, as published."""
        evaluation, training = self.recipe.evaluation, self.recipe.training
        rows = training.batch_size // training.gradient_accumulation_steps
        num_requested = (
            evaluation.validation_examples
            if evaluation.validation_batches is None
            else evaluation.validation_batches * rows
        )
        return split_into_portions(min(num_requested, num_chunks(self.recipe.task, "validation")), rows)

    def _evaluate_answers(self, model: Model, step: int, on_batch: BatchCallback) -> ValidationResult:
        """Exact match. For labels, accuracy is the fraction of correct labels instead, since exact match stays 0 as
        long as every row of OOD validation has a wrong label.
        """
        monitored_metric = self.recipe.schedule.monitored_metric()
        needs_loss = monitored_metric == "loss" or self.criterion.needs_loss
        shards = self._draw_shards(on_batch)
        counts_by_split = {shard.split: self._counts(model, shard, on_batch) for shard in shards}
        loss = self._loss(model, shards, on_batch) if needs_loss else None
        exact_match, accuracy, records = {}, {}, []
        for split, counts in counts_by_split.items():
            low, high = wilson_interval(counts["correct"], counts["count"])
            exact_match[split] = accuracy[split] = counts["correct"] / counts["count"]
            record = {
                "step": step,
                "split": split,
                "exact_match": round_significant(exact_match[split]),
                "low": round_significant(float(low)),
                "high": round_significant(float(high)),
                "correct": counts["correct"],
                "count": counts["count"],
                "digit_accuracy": round_significant(counts["digits right"] / counts["digits"])
                if counts["digits"]
                else None,
            }
            if loss is not None and split == "validation":
                record["validation_loss"] = round_significant(loss)
            if counts["labels"]:
                accuracy[split] = counts["labels right"] / counts["labels"]
                record["accuracy"] = round_significant(accuracy[split])
            if counts["ood_accuracy"]:
                record["ood_accuracy"] = round_significant(counts["num_ood_correct"] / counts["ood_accuracy"])
            records.append(record)
        monitored_value = (
            None if monitored_metric is None else loss if monitored_metric == "loss" else accuracy["validation"]
        )
        return ValidationResult(
            records, self.criterion.score(accuracy, loss), exact_match["validation"], monitored_value
        )

    def _counts(self, model: Model, shard: _ValidationShard, on_batch: BatchCallback) -> dict[str, int]:
        """Number of answers of a split, and of correct ones, summed over all processes."""
        sums: Counter[str] = Counter()
        for piece, counts in shard.padded_rounds():
            on_batch()
            match_counts = score_batch(model, self.evaluation_data, piece)
            if counts:
                sums.update(
                    {
                        "correct": int(match_counts.correct.sum()),
                        "count": len(match_counts.correct),
                        "digits": match_counts.num_digits,
                        "digits right": match_counts.num_correct_digits,
                        **self._label_counts(match_counts),
                    }
                )
        return self.world.sum_counts(sums)

    @torch.no_grad()
    def _loss(self, model: Model, shards: Sequence[_ValidationShard], on_batch: BatchCallback) -> float:
        """The training loss on the validation split, with the forward passes of step 0 and without dropout. Every
        process must call it; sums and counts are those of all processes."""
        shard = next(share for share in shards if share.split == "validation")
        counts = self.world.sum_counts(self.objective.counts(shard.batch))
        sums: dict[str, float] = {}
        for piece, is_counted in shard.padded_rounds():
            on_batch()
            positioned_batch = replace(piece, tokens=model.assign_positions(piece.tokens, StepContext.for_evaluation()))
            for term, value in self.objective(model, positioned_batch, StepContext(self.recipe.seed, 0)).items():
                sums[term] = sums.get(term, 0.0) + (float(value) if is_counted else 0.0)
        sums = self.world.sum_values(sums)
        return sum(self.objective.weights[term] * value / max(1, counts[term]) for term, value in sums.items())

    def _label_counts(self, match_counts: MatchCounts) -> dict[str, int]:
        """Counts of labels and of correct ones, in total and beyond the trained positions; 0 if answers are not
        labels."""
        targets, correct = match_counts.target_mask, match_counts.token_correct
        first_label_position = 0 if self.evaluation_data.is_token_classification else targets.shape[1]
        first_ood_position = (
            targets.shape[1]
            if self.evaluation_data.max_training_labels is None
            else self.evaluation_data.max_training_labels
        )
        return {
            "labels": int(targets[:, first_label_position:].sum()),
            "labels right": int(correct[:, first_label_position:].sum()),
            "ood_accuracy": int(targets[:, first_ood_position:].sum()),
            "num_ood_correct": int(correct[:, first_ood_position:].sum()),
        }

    def _draw_shards(self, on_batch: BatchCallback) -> list[_ValidationShard]:
        """The questions of the validation splits, generated once; at least one per process."""
        task, count = self.recipe.task, self.recipe.evaluation.validation_examples
        for split in self.splits[len(self._shards) :]:
            on_batch()
            num_examples = max(limit_count(task, count, split), self.world.size)
            questions = task.examples(split, self.recipe.seed, 0, num_examples)
            own_questions = questions.take(slice(self.world.rank, None, self.world.size))
            batch = self.evaluation_data.batch(own_questions).to(self.world.device)
            self._shards.append(_ValidationShard(split, batch, self.world.max_over_processes(len(split_batch(batch)))))
        return self._shards


def round_significant(value: float) -> float:
    """Six significant digits: enough for a plot."""
    return float(f"{value:.6g}")

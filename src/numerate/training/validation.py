"""Evaluation during training: the development splits, and which step is the best by them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from numerate.batch import Batch, Model, StepContext
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData, at_most, pieces
from numerate.evaluation.exact_match import MatchCounts, mark
from numerate.evaluation.language_modeling import chunks_of, portions, read_chunks
from numerate.evaluation.likelihoods import Likelihoods
from numerate.evaluation.statistics import wilson
from numerate.training.best_checkpoint import Criterion, Score
from numerate.training.distributed import World
from numerate.training.objective import ObjectivePart
from numerate.training.precision import autocast
from numerate.training.recipe import Recipe

Between = Callable[[], None]
"""Called between two batches; what it raises leaves the evaluation."""


@dataclass(frozen=True)
class DevelopmentResult:
    """The evaluation of a step, the same on every process.

    `records` are lines for `metrics.jsonl`; `score` is what the best step is chosen by; `accuracy` is that on the
    development split; `watched` is the metric that the schedule watches, None where it watches nothing.
    """

    records: Sequence[Mapping[str, Any]]
    score: Score
    accuracy: float
    watched: float | None


@dataclass(frozen=True)
class _Share:
    """A process's share of a development split: one batch, read in `rounds` pieces, as many in every process."""

    split: str
    batch: Batch
    rounds: int

    def pieces(self) -> Iterator[tuple[Batch, bool]]:
        """The pieces, and whether each counts: every process calls the model equally often, and one with fewer pieces
        repeats its last without counting it."""
        own = pieces(self.batch)
        for at in range(self.rounds):
            yield own[min(at, len(own) - 1)], at < len(own)


class Development:
    """Evaluates the development splits: the same questions each time, each process its share of them.

    Only the first position offset is evaluated.
    """

    def __init__(
        self, recipe: Recipe, exam: EvaluationData, objective: ObjectivePart, splits: Sequence[str], world: World
    ) -> None:
        self.recipe, self.exam, self.objective, self.splits, self.world = recipe, exam, objective, splits, world
        self.criterion = Criterion.of(recipe.training.best_metric, exam)
        if exam.running and recipe.training.target_accuracy is not None:
            raise UserError(
                "training.target_accuracy: is a share of right answers, and running text has none; null is right"
            )
        self._drawn: list[_Share] = []

    def evaluate(self, model: Model, step: int, between: Between = lambda: None) -> DevelopmentResult:
        """Every process must call it, with the model in evaluation mode.

        `between` is called between batches, equally often in every process: what it raises leaves the evaluation.
        """
        return (self._running if self.exam.running else self._answers)(model, step, between)

    def _running(self, model: Model, step: int, between: Between) -> DevelopmentResult:
        """The likelihood of running text, over the same chunks each time.

        Of several processes each reads its share of every batch; means over batches are those of whole batches.
        """
        found = self._likelihoods(model, between)
        values = found.record()
        names = ("loss", "low", "high", "perplexity", "mean_of_exp", "batch_loss", "bits_per_byte", "accuracy")
        record = {"step": step, "split": "development"} | {name: values[name] for name in names if name in values}
        judged = {"development": found.accuracy}
        watched = self.recipe.schedule.watches()
        value = None if watched is None else found.loss if watched == "loss" else found.accuracy
        record["tokens"] = found.tokens
        return DevelopmentResult([record], self.criterion.score(judged, found.loss), 0.0, value)

    def _likelihoods(self, model: Model, between: Between = lambda: None) -> Likelihoods:
        rank, size = self.world.rank, self.world.size
        found, alone = Likelihoods(), []
        with autocast(self.world.device, self.recipe.training.precision):
            for start, count in self._batches():
                between()
                questions = self.recipe.task.examples("development", self.recipe.seed, start, count)
                own = np.arange(rank, len(questions), size)
                # Every process calls the model equally often: one with a shorter share reads an extra row.
                filled = own if len(own) * size >= len(questions) else np.append(own, 0)
                batch = self.exam.batch(questions.take(filled)).to(self.world.device)
                each = read_chunks(model, self.exam, batch).first(len(own)).likelihoods()
                alone.append(each)
                found += each
        sums = {f"{name} {at}": getattr(one, name) for at, one in enumerate(alone) for name in ("nll", "tokens")}
        sums = self.world.sum_values(sums | {f"all {name}": value for name, value in asdict(found).items()})
        whole = {name.removeprefix("all "): value for name, value in sums.items() if name.startswith("all ")}
        batches = [Likelihoods(sums[f"nll {at}"], round(sums[f"tokens {at}"])).as_batch() for at in range(len(alone))]
        means = Likelihoods.together(batches)
        return replace(
            Likelihoods.of_sums(whole),
            batches=means.batches,
            batch_losses=means.batch_losses,
            batch_exps=means.batch_exps,
        )

    def _batches(self) -> Iterator[tuple[int, int]]:
        """(first chunk, how many) of each batch: as many as are wanted, and as there are. A step's batch that is
        accumulated in parts counts as so many, as published."""
        evaluation, training = self.recipe.evaluation, self.recipe.training
        rows = training.batch_size // training.gradient_accumulation_steps
        wanted = (
            evaluation.validation_examples
            if evaluation.validation_batches is None
            else evaluation.validation_batches * rows
        )
        return portions(min(wanted, chunks_of(self.recipe.task, "development")), rows)

    def _answers(self, model: Model, step: int, between: Between) -> DevelopmentResult:
        """Exact match.

        Of labels accuracy is the share of them that is right: as long as each row of OOD validation has one that is
        wrong, exact match is 0 at every step and means nothing.
        """
        watched = self.recipe.schedule.watches()
        measured = watched == "loss" or self.criterion.measures_loss
        shares = self._shares(between)
        counted = {share.split: self._counts(model, share, between) for share in shares}
        loss = self._loss(model, shares, between) if measured else None
        scores, judged, records = {}, {}, []
        for split, counts in counted.items():
            low, high = wilson(counts["correct"], counts["count"])
            scores[split] = judged[split] = counts["correct"] / counts["count"]
            record = {
                "step": step,
                "split": split,
                "exact": short(scores[split]),
                "low": short(float(low)),
                "high": short(float(high)),
                "correct": counts["correct"],
                "count": counts["count"],
                "digit_accuracy": short(counts["digits right"] / counts["digits"]) if counts["digits"] else None,
            }
            if loss is not None and split == "development":
                record["development_loss"] = short(loss)
            if counts["labels"]:
                judged[split] = counts["labels right"] / counts["labels"]
                record["accuracy"] = short(judged[split])
            if counts["unseen"]:
                record["unseen"] = short(counts["unseen right"] / counts["unseen"])
            records.append(record)
        found = None if watched is None else loss if watched == "loss" else judged["development"]
        return DevelopmentResult(records, self.criterion.score(judged, loss), scores["development"], found)

    def _counts(self, model: Model, share: _Share, between: Between) -> dict[str, int]:
        """How much of a split was answered, and how much of that is right, summed over all processes."""
        sums: Counter[str] = Counter()
        for piece, counts in share.pieces():
            between()
            marks = mark(model, self.exam, piece)
            if counts:
                sums.update(
                    {
                        "correct": int(marks.right.sum()),
                        "count": len(marks.right),
                        "digits": marks.digits,
                        "digits right": marks.digits_right,
                        **self._labels(marks),
                    }
                )
        return self.world.sum_counts(sums)

    @torch.no_grad()
    def _loss(self, model: Model, shares: Sequence[_Share], between: Between) -> float:
        """The training loss on the development split: the same forwards as those of step 0, without dropout.

        Every process must call it; the sums of all are divided by the counts of all."""
        share = next(share for share in shares if share.split == "development")
        counts = self.world.sum_counts(self.objective.counts(share.batch))
        sums: dict[str, float] = {}
        for piece, counted in share.pieces():
            between()
            placed = replace(piece, tokens=model.assign_positions(piece.tokens, StepContext.fixed()))
            for term, value in self.objective(model, placed, StepContext(self.recipe.seed, 0)).items():
                sums[term] = sums.get(term, 0.0) + (float(value) if counted else 0.0)
        sums = self.world.sum_values(sums)
        return sum(self.objective.weights[term] * value / max(1, counts[term]) for term, value in sums.items())

    def _labels(self, marks: MatchCounts) -> dict[str, int]:
        """Counts of labels and of correct ones, also of those beyond the trained positions; 0 for no labels."""
        targets, correct = marks.target_mask, marks.said_right
        first = 0 if self.exam.labelled else targets.shape[1]
        beyond = targets.shape[1] if self.exam.trained_labels is None else self.exam.trained_labels
        return {
            "labels": int(targets[:, first:].sum()),
            "labels right": int(correct[:, first:].sum()),
            "unseen": int(targets[:, beyond:].sum()),
            "unseen right": int(correct[:, beyond:].sum()),
        }

    def _shares(self, between: Between) -> list[_Share]:
        """The questions of the development splits, drawn once: one for each process at least."""
        task, count = self.recipe.task, self.recipe.evaluation.validation_examples
        for split in self.splits[len(self._drawn) :]:
            between()
            wanted = max(at_most(task, count, split), self.world.size)
            questions = task.examples(split, self.recipe.seed, 0, wanted)
            own = questions.take(slice(self.world.rank, None, self.world.size))
            batch = self.exam.batch(own).to(self.world.device)
            self._drawn.append(_Share(split, batch, self.world.highest(len(pieces(batch)))))
        return self._drawn


def short(value: float) -> float:
    """Six significant digits: what a curve needs."""
    return float(f"{value:.6g}")

"""Accuracy of per-token labels by position, as in counting, and the score of memorization.

A row has several labels: in counting to 60 the t-th is t. A model that has only memorized training up to 50 still
predicts 50 of 60 labels (83 %). Every label score is therefore reported with its *baseline*, the score of memorization:
correct at every position of training, wrong at all others. On labels beyond training, and on the last label, that is 0,
but a constant answer may score more (all rows may end with the same label); the baseline is the larger of the two.

All fractions are of labels, or of rows, over all given cells, with equal weights.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.evaluation.statistics import wilson_interval
from numerate.evaluation.sums import add_sums, sums_from_record, sums_to_record

Metric = Literal["exact_match", "ood_accuracy", "accuracy", "last_label", "correct_prefix"]

METRICS: dict[Metric, str] = {
    "exact_match": "exact match",
    "ood_accuracy": "accuracy at positions beyond training",
    "accuracy": "label accuracy",
    "last_label": "last label correct",
    "correct_prefix": "longest correct prefix",
}
"""The metrics of labels and their names in reports: `exact_match` and `last_label` are of rows, `ood_accuracy` and
`accuracy` of labels, and `correct_prefix` is the mean over rows of the share of labels before the first wrong one."""


@dataclass(frozen=True)
class LabelCounts:
    """Counts of labels and of correct predictions at each position of some rows.

    `targets_by_position[t]` of the rows have a label at position t (from 0), and `correct_by_position[t]` of those are
    predicted. `exact_match` rows are correct as a whole, `last_label` at their last label; `correct_prefix` is the sum
    over rows of the share of labels before the first wrong one. `max_training_labels` is the largest number of labels
    in a training row; None if unknown. `target_counts` counts how often each label is the target, under "ood_accuracy"
    beyond the trained positions and under "last_label" at the end.

    Counting 1, 2, 3 after training up to 2, with the last label wrong:

    >>> correct, target_mask = np.array([[True, True, False]]), np.array([[True, True, True]])
    >>> labels = LabelCounts.from_arrays(correct, target_mask, max_training_labels=2)
    >>> [round(labels.score(metric), 3) for metric in ("accuracy", "ood_accuracy", "correct_prefix")]
    [0.667, 0.0, 0.667]
    >>> round(labels.baseline("accuracy"), 3), labels.baseline("ood_accuracy")
    (0.667, 0.0)
    """

    rows: int
    targets_by_position: tuple[int, ...]
    correct_by_position: tuple[int, ...]
    exact_match: int
    last_label: int
    correct_prefix: float
    max_training_labels: int | None = None
    target_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def from_arrays(
        cls,
        correct: NDArray[np.bool_],
        target_mask: NDArray[np.bool_],
        answers: NDArray[np.str_] | None = None,
        max_training_labels: int | None = None,
    ) -> "LabelCounts":
        """From what is correct, the positions with labels, and the labels, each `[rows, positions]` with a row's
        labels in its first positions."""
        correct = correct & target_mask
        lengths, rows = target_mask.sum(1), len(target_mask)
        wrong = target_mask & ~correct
        prefixes = np.where(wrong.any(1), wrong.argmax(1), lengths)
        last_labels = (np.flatnonzero(lengths), lengths[lengths > 0] - 1)
        target_counts: dict[str, Mapping[str, int]] = {}
        if answers is not None:
            ood = slice(target_mask.shape[1] if max_training_labels is None else max_training_labels, None)
            ood_labels, end_labels = answers[:, ood][target_mask[:, ood]], answers[last_labels]
            target_counts = {"ood_accuracy": _sort_by_count(Counter(ood_labels.tolist()))}
            target_counts |= {"last_label": _sort_by_count(Counter(end_labels.tolist()))}
        return cls(
            rows=rows,
            targets_by_position=tuple(target_mask.sum(0).tolist()),
            correct_by_position=tuple(correct.sum(0).tolist()),
            exact_match=int((prefixes == lengths).sum()),
            last_label=int(correct[last_labels].sum()),
            correct_prefix=float((prefixes / np.maximum(lengths, 1)).sum()),
            max_training_labels=max_training_labels,
            target_counts=target_counts,
        )

    @classmethod
    def merge(cls, parts: Iterable["LabelCounts"]) -> "LabelCounts":
        """Raises `ValueError` without any, and if `max_training_labels` differs."""
        each = list(parts)
        (trained,) = {labels.max_training_labels for labels in each}
        total: LabelCounts = reduce(add_sums, (replace(labels, max_training_labels=0) for labels in each))
        target_counts = {name: _sort_by_count(counts) for name, counts in total.target_counts.items()}
        return replace(total, max_training_labels=trained, target_counts=target_counts)

    def score(self, metric: Metric) -> float | None:
        """The value of a metric; None without labels, as for `ood_accuracy` in short rows."""
        correct, count = float(getattr(self, metric, 0)), self.rows
        if metric in ("accuracy", "ood_accuracy"):
            first = 0 if metric == "accuracy" else self._first_ood_position
            correct, count = sum(self.correct_by_position[first:]), sum(self.targets_by_position[first:])
        return correct / count if count else None

    @property
    def _first_ood_position(self) -> int:
        return len(self.targets_by_position) if self.max_training_labels is None else self.max_training_labels

    def interval(self, metric: Metric, num_offsets: int = 1) -> tuple[float, float] | None:
        """The 95 % interval of the score over rows, of which each was evaluated at `num_offsets` position offsets: the
        labels of a row are not independent, so that it is Wilson's for the number of rows, which is conservative."""
        score, rows = self.score(metric), self.rows
        if score is None:
            return None
        if metric == "ood_accuracy":
            rows = self.targets_by_position[self._first_ood_position]
        rows = max(1, rows // num_offsets)
        return wilson_interval(min(score, 1.0) * rows, rows)

    def baseline(self, metric: Metric) -> float | None:
        """The larger of `memorization_score` and `constant_answer_score`; None if `max_training_labels` is unknown."""
        scores = (self.memorization_score(metric), self.constant_answer_score(metric))
        return max((score for score in scores if score is not None), default=None)

    def memorization_score(self, metric: Metric) -> float | None:
        """The score of predictions that are correct at the trained positions and wrong at all others."""
        trained, targets = self.max_training_labels, self.targets_by_position
        if trained is None or self.score(metric) is None:
            return None
        if metric in ("accuracy", "ood_accuracy"):
            return sum(targets[:trained]) / sum(targets) if metric == "accuracy" else 0.0
        rows_by_length = enumerate((here - more for here, more in zip(targets, (*targets[1:], 0), strict=True)), 1)
        if metric == "correct_prefix":
            return sum(rows * min(trained, t) / t for t, rows in rows_by_length) / self.rows
        return sum(rows for t, rows in rows_by_length if t <= trained) / self.rows

    def constant_answer_score(self, metric: Metric) -> float | None:
        """The score of the best constant answer on `ood_accuracy` and on `last_label`; None for the others."""
        target_counts = self.target_counts.get(metric)
        return max(target_counts.values()) / sum(target_counts.values()) if target_counts else None

    def accuracy_by_position(self) -> list[tuple[int, int, int]]:
        """(t, correct, count) for each position t, from 1."""
        counts = zip(self.correct_by_position, self.targets_by_position, strict=True)
        return [(t, correct, count) for t, (correct, count) in enumerate(counts, 1) if count]

    def record(self) -> dict[str, Any]:
        """The entry `labels` in the record of a cell: its sums beside those of the record, metrics and baselines."""
        sums = {name: value for name, value in sums_to_record(self).items() if name not in _OF_RECORD}
        metrics = {metric: _round(self.score(metric)) for metric in METRICS if metric != "exact_match"}
        return sums | {"metrics": metrics, "baseline": {metric: _round(self.baseline(metric)) for metric in METRICS}}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "LabelCounts | None":
        """From the record of a cell; None for one without labels. Raises `ValueError` for an invalid record."""
        if record.get("labels") is None:
            return None
        own = {name: record[entry] for name, entry in _OF_RECORD.items()}
        return sums_from_record(cls, {"max_training_labels": None, **record["labels"], **own})


_OF_RECORD = {"rows": "count", "exact_match": "correct"}
"""The sums that are in the record itself, by the names of its entries."""


def _sort_by_count(counts: Mapping[str, int]) -> dict[str, int]:
    """The most frequent first, ties by their text, so that the same cell always gives the same bytes."""
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _round(share: float | None) -> float | None:
    return None if share is None else round(share, 6)

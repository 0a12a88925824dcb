"""Labels along the rows of a cell, as in counting: how many are right at which place, and what memorising would score.

A row of a labelled task asks several labels: in counting to 60 the t-th is t. Training goes up to some place (50), so
that a model which has only memorised it still says 50 of 60 labels right: 83 % of them. Whatever is said of labels
therefore stands beside its *floor*, the score of a memoriser: right at every place that training had, wrong at every
other. On labels beyond training, and on the last one, the memoriser scores nothing, but one answer given everywhere
may score something (where all rows end alike even 100 %); the floor there is the larger of the two.

All shares are of labels, or of rows, taken together over the cells at hand; every label, or row, weighs the same.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.evaluation.intervals import Proportion, wilson

Metric = Literal["exact", "unseen", "accuracy", "last", "prefix"]

METRICS: dict[Metric, str] = {
    "exact": "exact match",
    "unseen": "accuracy on unseen counts",
    "accuracy": "label accuracy",
    "last": "last label right",
    "prefix": "longest correct prefix",
}
"""What is measured of labels, with the words that reports use.

- `exact`: rows all of whose labels are right.
- `unseen`: labels beyond the places that training had, right of asked.
- `accuracy`: labels right of all asked.
- `last`: rows whose last label is right.
- `prefix`: labels before the first wrong one, as a share of the row's labels, mean over rows.
"""


@dataclass(frozen=True)
class Labels:
    """What was asked and said at each place of some rows.

    `asked_at[t]` of the rows have a label at place t (from 0), and `right_at[t]` of those are right. `exact` rows are
    right as a whole, `last` at their last label; `prefix` is the sum over rows of the share of labels before the first
    wrong one. `trained` is the most labels that a row of training has, None where the task does not say. `wanted` tells
    how often each label is the right one, under "unseen" beyond the trained places and under "last" at the end.
    `repeats` is how often each row was asked, at other placements.

    Counting 1, 2, 3 after training up to 2, with the last label wrong:

    >>> labels = Labels.of(np.array([[True, True, False]]), np.array([[True, True, True]]), trained=2)
    >>> labels.share("accuracy"), labels.share("unseen"), labels.share("prefix")
    (0.6666666666666666, 0.0, 0.6666666666666666)
    >>> labels.floor("accuracy"), labels.floor("unseen")
    (0.6666666666666666, 0.0)
    """

    rows: int
    asked_at: tuple[int, ...]
    right_at: tuple[int, ...]
    exact: int
    last: int
    prefix: float
    trained: int | None = None
    wanted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    repeats: int = 1

    @classmethod
    def of(
        cls,
        right: NDArray[np.bool_],
        asked: NDArray[np.bool_],
        answers: NDArray[np.str_] | None = None,
        trained: int | None = None,
    ) -> "Labels":
        """From what is right and what is asked, and the right answers, each `[rows, places]` with a row's labels in its
        first places."""
        right = right & asked
        lengths, rows = asked.sum(1), len(asked)
        correct = np.where((asked & ~right).any(1), (asked & ~right).argmax(1), lengths)
        ends = (np.flatnonzero(lengths), lengths[lengths > 0] - 1)
        last = right[ends]
        wanted: dict[str, Mapping[str, int]] = {}
        if answers is not None:
            beyond = slice(asked.shape[1] if trained is None else trained, None)
            wanted = {"unseen": _ordered(Counter(answers[:, beyond][asked[:, beyond]].tolist()))}
            wanted |= {"last": _ordered(Counter(answers[ends].tolist()))}
        return cls(
            rows=rows,
            asked_at=tuple(asked.sum(0).tolist()),
            right_at=tuple(right.sum(0).tolist()),
            exact=int((correct == lengths).sum()),
            last=int(last.sum()),
            prefix=float((correct / np.maximum(lengths, 1)).sum()),
            trained=trained,
            wanted=wanted,
        )

    @classmethod
    def together(cls, several: Iterable["Labels"]) -> "Labels":
        """The labels of several cells, or parts of one. Raises `ValueError` for none, and for other trained places."""
        each = list(several)
        if len({labels.trained for labels in each}) != 1:
            raise ValueError("labels of tasks that were trained on other numbers of labels cannot be taken together")
        names = dict.fromkeys(name for labels in each for name in labels.wanted)
        return cls(
            rows=sum(labels.rows for labels in each),
            asked_at=_summed(labels.asked_at for labels in each),
            right_at=_summed(labels.right_at for labels in each),
            exact=sum(labels.exact for labels in each),
            last=sum(labels.last for labels in each),
            prefix=sum(labels.prefix for labels in each),
            trained=each[0].trained,
            wanted={
                name: _ordered(sum((Counter(labels.wanted.get(name, {})) for labels in each), Counter()))
                for name in names
            },
            repeats=each[0].repeats,
        )

    @classmethod
    def over_placements(cls, several: Sequence["Labels"]) -> "Labels":
        """The same rows asked at several placements: every share is then the mean over these."""
        return replace(cls.together(several), repeats=sum(labels.repeats for labels in several))

    # Shares -------------------------------------------------------------------------------------------------------

    def counted(self, metric: Metric) -> tuple[float, int]:
        """How much is right, and of how many: labels for `accuracy` and `unseen`, rows for the others."""
        if metric == "accuracy":
            return sum(self.right_at), sum(self.asked_at)
        if metric == "unseen":
            beyond = slice(len(self.asked_at) if self.trained is None else self.trained, None)
            return sum(self.right_at[beyond]), sum(self.asked_at[beyond])
        return {"exact": self.exact, "last": self.last, "prefix": self.prefix}[metric], self.rows

    def share(self, metric: Metric) -> float | None:
        """One of `METRICS`, None where nothing was asked of it, as beyond the trained places of short rows."""
        right, asked = self.counted(metric)
        return right / asked if asked else None

    def measured(self, metric: Metric) -> Proportion | None:
        """The same with a 95 % interval about the rows asked.

        The labels of a row stand and fall together, so they are not so many questions: the interval is Wilson's with
        the number of rows. As no share of a row is beyond 0 to 1, it is too wide rather than too narrow.
        """
        right, asked = self.counted(metric)
        if not asked:
            return None
        rows = self.rows_of(metric)
        low, high = wilson(min(right / asked, 1.0) * rows, rows)
        return Proportion(right / asked, float(low), float(high), asked // self.repeats)

    def measured_by(self, metric: Metric, region: str) -> Metric:
        """By what a region's rows are measured where `metric` is wanted: accuracy on unseen counts is that on all
        labels within training, and where rows have no unseen count.

        Also rows of training may have labels behind the trained places, such as the sum behind an addend: few, and not
        what is meant by having learned what was trained.
        """
        inside = metric == "unseen" and region == "in_distribution"
        return "accuracy" if inside or self.share(metric) is None else metric

    def rows_of(self, metric: Metric) -> int:
        """How many different rows are asked what `metric` is about; at least 1."""
        beyond = metric == "unseen" and self.trained is not None and self.trained < len(self.asked_at)
        rows = self.asked_at[self.trained or 0] if beyond else self.rows
        return max(1, rows // self.repeats)

    def floor(self, metric: Metric) -> float | None:
        """What `metric` gives to whoever has memorised all places of training and knows nothing of further ones, or who
        always gives one and the same answer, if that is more; None where the task does not say what training had."""
        found = [share for share in (self.memorised(metric), self.constant(metric)) if share is not None]
        return max(found) if found else None

    def memorised(self, metric: Metric) -> float | None:
        """What is right at each place that training had, and wrong at all others, scores."""
        if self.trained is None or self.share(metric) is None:
            return None
        if metric == "unseen":
            return 0.0
        if metric == "accuracy":
            return sum(self.asked_at[: self.trained]) / sum(self.asked_at)
        ends = zip_longest(self.asked_at, self.asked_at[1:], fillvalue=0)
        of_length = {t: here - further for t, (here, further) in enumerate(ends, 1)}
        if metric == "prefix":
            return sum(rows * min(self.trained, t) / t for t, rows in of_length.items()) / self.rows
        return sum(rows for t, rows in of_length.items() if t <= self.trained) / self.rows

    def constant(self, metric: Metric) -> float | None:
        """What the best single answer, given everywhere, scores on `unseen` and on `last`; None for the others."""
        wanted = self.wanted.get(metric)
        return max(wanted.values()) / sum(wanted.values()) if wanted else None

    def curve(self) -> list[tuple[int, int, int]]:
        """The accuracy per count: (t, right, asked) for each place t, from 1."""
        found = zip(self.right_at, self.asked_at, strict=True)
        return [(t, right, asked) for t, (right, asked) in enumerate(found, 1) if asked]

    # Records ------------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """What the record of a cell says of labels, beside how many rows there are and are right as a whole."""
        return {
            "trained": self.trained,
            "asked_at": list(self.asked_at),
            "right_at": list(self.right_at),
            **{metric: _short(self.share(metric)) for metric in METRICS if metric != "exact"},
            "floor": {metric: _short(self.floor(metric)) for metric in METRICS},
            "wanted": {name: dict(texts) for name, texts in self.wanted.items()},
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "Labels | None":
        """Of the record of a cell; None for one that has no labels. Raises `KeyError`, `TypeError` or `ValueError` for
        what is no such record."""
        told = record.get("labels")
        if told is None:
            return None
        rows = int(record["count"])
        return cls(
            rows=rows,
            asked_at=tuple(map(int, told["asked_at"])),
            right_at=tuple(map(int, told["right_at"])),
            exact=int(record["correct"]),
            last=round(rows * (told["last"] or 0.0)),
            prefix=rows * (told["prefix"] or 0.0),
            trained=None if told.get("trained") is None else int(told["trained"]),
            wanted={
                str(name): {str(text): int(count) for text, count in texts.items()}
                for name, texts in told.get("wanted", {}).items()
            },
        )


def _summed(columns: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*columns, fillvalue=0)))


def _ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """The commonest first, those as common by their text, so that the same cell always gives the same bytes."""
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _short(share: float | None) -> float | None:
    return None if share is None else round(share, 6)

"""The cells of records as `numerate evaluate` shows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numerate.evaluation.labels import LabelCounts, Metric
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.statistics import wilson_interval
from numerate.evaluation.text_metrics import TextScores
from numerate.records.reading import read_records as read_records

BUDGETS = ("steps", "examples", "tokens", "flops", "epochs", "target_accuracy")
"""The settings of training that end it."""


@dataclass(frozen=True)
class Cell:
    """One cell of an evaluation: `correct` of `count`, with the interval written by the evaluator.

    `coordinates` says where it is (`{"first_digits": 3, "second_digits": 4}`). `region` is "in_distribution",
    "ood_validation", "ood_test" or "100+". `overlaps_training` cells have too few questions to hold any out and may
    overlap with training. `settings` are those changed for the evaluation (`{"model.backbone.num_loops": 8}`), {} as
    trained. `first_token_correct` counts the answers whose first token is correct, None if not recorded.

    `numbers` and `texts` are errors of decoded answers, None if not recorded. `labels` are those of a task with
    labels, by position. `repeats` is the number of position offsets averaged over. `non_causal_reason` says how the
    model attends to later tokens, None if it does not. `names` names the sizes of parts such as modules. `metric` is
    what `correct` counts, in rows' worth unless it is exact match. `scores` are sums over the questions, by the columns
    of the kind of evaluation. `stratum` is the name of its stratum, None for a cell of the map.
    """

    coordinates: Mapping[str, int]
    correct: float
    count: int
    low: float
    high: float
    region: str
    overlaps_training: bool = False
    first_error_counts: tuple[int, ...] | None = None
    seed: int = 0
    checkpoint: str = "final"
    step: int = 0
    position_offset: int = 0
    method: str = "one pass"
    settings: Mapping[str, Any] = field(default_factory=dict)
    first_token_correct: int | None = None
    labels: LabelCounts | None = None
    numbers: NumberScores | None = None
    texts: TextScores | None = None
    repeats: int = 1
    non_causal_reason: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    metric: Metric = "exact_match"
    scores: Mapping[str, float] = field(default_factory=dict)
    stratum: str | None = None

    @property
    def place(self) -> tuple[tuple[str, Any], ...]:
        """Which cell of the grid it is."""
        stratum = [] if self.stratum is None else [("stratum", self.stratum)]
        return (*sorted(self.coordinates.items()), *stratum)

    @property
    def accuracy(self) -> float:
        return self.correct / self.count

    def with_metric(self, metric: Metric) -> "Cell":
        """The same cell as measured by a metric of its labels, with the interval about its rows.

        Accuracy on unseen counts is that on all labels in a trained cell, and in one whose rows have no unseen ones. A
        cell without labels has exact match alone.
        """
        if metric == "exact_match" or self.labels is None:
            return self
        name = self.labels.effective_metric(metric, self.region)
        score = self.labels.score_with_interval(name)
        if score is None:
            return self
        rows = self.labels.num_rows(name)
        return replace(
            self, correct=score.value * rows, count=rows, low=score.low, high=score.high, repeats=1, metric=metric
        )

    @property
    def baseline(self) -> float | None:
        """The score of memorizing, or of one constant answer, in this cell; None in distribution and where unknown."""
        if self.labels is None or self.region in ("in_distribution", "below"):
            return None
        return self.labels.baseline(self.labels.effective_metric(self.metric, self.region))

    def with_first_token(self) -> "Cell | None":
        """The same cell as measured by the first token alone, with Wilson's interval; None if it is not known."""
        if self.first_token_correct is None:
            return None
        low, high = wilson_interval(self.first_token_correct, self.count)
        return replace(self, correct=self.first_token_correct, low=low, high=high, first_error_counts=None)


def cell_from_record(line: Mapping[str, Any]) -> Cell:
    """The cell that a record of `cells.jsonl` is about, one of answers."""
    same = ["correct", "count", "low", "high", "region", "overlaps_training"]
    same += ["checkpoint", "step", "position_offset", "method"]
    wrong, first = line.get("first_error_counts"), line.get("first_token_correct")
    if first is None and wrong is not None:
        first = line["count"] - (wrong[0] if wrong else 0)
    return Cell(
        coordinates=line["cell"],
        **{name: line[name] for name in same},
        first_error_counts=None if wrong is None else tuple(wrong),
        seed=line.get("seed") or 0,
        settings=line.get("settings") or {},
        first_token_correct=first,
        labels=LabelCounts.from_record(line),
        numbers=NumberScores.from_record(line),
        texts=TextScores.from_record(line),
        non_causal_reason=line.get("non_causal_reason"),
        names=line.get("names") or {},
        scores=line.get("scores") or {},
        stratum=line.get("stratum"),
    )

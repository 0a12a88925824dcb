"""Promises of labels: right by place, what follows from that, and the baseline that every number stands beside."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.config import Span
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData, cell_questions
from numerate.evaluation.evaluator import evaluate_cell
from numerate.evaluation.labels import METRICS, LabelCounts
from numerate.evaluation.statistics import wilson_interval
from numerate.models.decoder import Decoder
from numerate.positions.added import Scalar
from numerate.positions.position_ids import Zooming
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counting import Counting
from numerate.tokenizers.layout import Continuation, TokenClassification
from numerate.tokenizers.tokenizer import Characters
from numerate.tokenizers.words import Words
from oracle import Oracle


def rows(lengths: Any, trained: int | None, right: Any = None) -> LabelCounts:
    """Rows of so many labels, of which a memoriser says the trained ones, unless `right` says which."""
    places = np.arange(max(lengths))
    target_mask = places < np.array(list(lengths))[:, None]
    known = target_mask & (places < (trained or 0)) if right is None else np.array(right, dtype=bool)
    return LabelCounts.from_arrays(
        known, target_mask, np.broadcast_to((places + 1).astype(str), target_mask.shape), trained
    )


def test_every_measure_by_hand() -> None:
    """Counts 1 to 4 and 1 to 2, trained up to 2: the first has its third wrong, the second its first."""
    labels = rows([4, 2], 2, [[1, 1, 0, 1], [0, 1, 0, 0]])
    assert (labels.targets_by_position, labels.correct_by_position) == ((2, 2, 1, 1), (1, 2, 0, 1))
    found = {metric: labels.score(metric) for metric in METRICS}
    assert found == {
        "exact_match": 0.0,
        "ood_accuracy": 1 / 2,
        "accuracy": 4 / 6,
        "last_label": 1.0,
        "correct_prefix": (2 / 4 + 0) / 2,
    }
    baseline = {metric: labels.baseline(metric) for metric in METRICS}
    assert baseline == {
        "exact_match": 1 / 2,
        "ood_accuracy": 1 / 2,
        "accuracy": 4 / 6,
        "last_label": 1 / 2,
        "correct_prefix": (2 / 4 + 1) / 2,
    }
    assert labels.accuracy_by_position() == [(1, 1, 2), (2, 2, 2), (3, 0, 1), (4, 1, 1)]


SHIFTED = [count for count in range(51, 100) for _ in range(1, 101 - count)]


@pytest.mark.parametrize(
    ("lengths", "trained", "published"),
    [
        (range(51, 101), 50, 66.2),  # mod10: 51 to 100, one row each
        (SHIFTED, 50, 74.6),  # shifted start 3: 51 to 99 from every start up to 100
        ([count + 1 for count in SHIFTED], 50, 73.5),  # vanilla: the same with the sum behind
        (range(51, 100), 50, 66.7),  # 10 items, plain 3
        ([128], 64, 50.0),  # modular 4 items
    ],
)
def test_the_baseline_of_label_accuracy_is_what_memorising_scores_on_the_published_files(
    lengths: Any, trained: int, published: float
) -> None:
    labels = rows(lengths, trained)
    assert round(100 * (labels.baseline("accuracy") or 0), 1) == published
    scored = {metric: labels.score(metric) for metric in METRICS}
    assert {metric: labels.memorization_score(metric) for metric in METRICS} == pytest.approx(scored), (
        "of a memoriser itself"
    )


def test_where_all_rows_end_alike_one_answer_has_every_last_label() -> None:
    """Counting on from k to 100 in every row, as in the published files of shifted starts with a fixed end."""
    counts = range(51, 100)
    answers = np.full((49, 99), "", dtype="<U3")
    for row, count in enumerate(counts):
        answers[row, :count] = [str(100 - count + t) for t in range(1, count + 1)]
    target_mask = answers != ""
    labels = LabelCounts.from_arrays(np.zeros_like(target_mask), target_mask, answers, 50)
    assert (labels.score("last_label"), labels.baseline("last_label")) == (0.0, 1.0)
    assert labels.target_counts["last_label"] == {"100": 49}
    assert labels.baseline("ood_accuracy") == pytest.approx(49 / sum(count - 50 for count in counts))


def test_without_trained_positions_nothing_is_unseen_and_there_is_no_baseline() -> None:
    labels = rows([3, 2], None, [[1, 1, 0], [1, 1, 0]])
    assert labels.score("ood_accuracy") is labels.baseline("accuracy") is labels.baseline("ood_accuracy") is None
    assert labels.score("accuracy") == 4 / 5


MARKS = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=8)


@given(MARKS, st.integers(1, 5), st.integers(0, 8))
def test_taken_together_parts_are_the_whole(marks: list[list[bool]], trained: int, cut: int) -> None:
    def of(some: list[list[bool]]) -> LabelCounts:
        width = max(map(len, some))
        padded = [row + [False] * (width - len(row)) for row in some]
        return rows([len(row) for row in some], trained, padded)

    parts = [of(part) for part in (marks[:cut], marks[cut:]) if part]
    together, whole = LabelCounts.merge(parts), of(marks)
    assert replace(together, correct_prefix=0.0) == replace(whole, correct_prefix=0.0)
    assert together.correct_prefix == pytest.approx(whole.correct_prefix)


@given(MARKS, st.integers(1, 5))
def test_a_record_comes_back_as_it_was(marks: list[list[bool]], trained: int) -> None:
    width = max(map(len, marks))
    labels = rows([len(row) for row in marks], trained, [row + [False] * (width - len(row)) for row in marks])
    record = {"correct": labels.exact_match, "count": labels.rows, "labels": labels.record()}
    back = LabelCounts.from_record(record)
    assert back is not None
    assert replace(back, correct_prefix=0.0) == replace(labels, correct_prefix=0.0)
    assert back.correct_prefix == pytest.approx(labels.correct_prefix, abs=1e-5)
    assert LabelCounts.from_record({"correct": 1, "count": 2}) is None


def test_a_cell_of_few_starts_has_each_once_and_one_of_many_so_many_draws() -> None:
    """140 starts can be counted on by 60 up to 200, but only 5 by 195."""
    task = Counting(count=50, start_number="before", starts=Span(1, 199), max_number=200)
    for count, wanted, rows, each_once in ((195, 100, 5, True), (197, 3, 3, True), (60, 100, 100, False)):
        found = cell_questions(task, {"count": count}, count=wanted)
        assert len(found) == rows
        assert (len(set(found.hashes().tolist())) == rows) is each_once


def test_labels_of_unlike_training_are_not_taken_together() -> None:
    with pytest.raises(ValueError, match="unpack"):
        LabelCounts.merge([rows([3], 1), rows([3], 2)])


def test_the_interval_is_about_rows_as_the_labels_of_a_row_fall_together() -> None:
    labels = rows([10, 10, 4], 5, [[1] * 10, [1] * 5 + [0] * 5, [1] * 4 + [0] * 6])
    assert (labels.score("ood_accuracy"), labels.interval("ood_accuracy")) == (0.5, wilson_interval(1, 2))


def test_over_position_offsets_shares_are_means_and_rows_are_not_counted_twice() -> None:
    one, other = rows([4, 4], 2, [[1, 1, 1, 1]] * 2), rows([4, 4], 2, [[1, 1, 0, 0]] * 2)
    mean = LabelCounts.merge([one, other])
    assert [mean.score(metric) for metric in METRICS] == [0.5, 0.5, 0.75, 0.5, 0.75]
    assert mean.interval("ood_accuracy", num_offsets=2) == wilson_interval(1, 2)


# Of a model ---------------------------------------------------------------------------------------------------------


def test_the_record_of_a_memoriser_stands_at_its_baseline() -> None:
    """Trained on 1 to 4, with 7 symbols from each start that ends at most at 10: three rows."""
    task = Counting(count=Span(1, 4), start_number="before", starts=Span(1, 5), max_number=10)
    exam = EvaluationData(task, Words(), TokenClassification())
    batch, size = exam.batch(cell_questions(task, {"count": 7}, count=50)), exam.vocabulary.size
    model = Oracle(batch, size, lambda row, place, right: right if place < 4 else (right + 1) % size)
    record = evaluate_cell(model, exam, {"count": 7}, count=50)
    assert (record["correct"], record["count"], record["overlaps_training"]) == (0, 3, False)
    found = record["labels"]
    by_position = {"targets_by_position": [3] * 7, "correct_by_position": [3] * 4 + [0] * 3}
    assert found.items() >= {"max_training_labels": 4, **by_position}.items()
    memorized = {"accuracy": 0.571429, "correct_prefix": 0.571429}
    assert found["metrics"] == {**memorized, "ood_accuracy": 0.0, "last_label": 0.0}
    assert found["baseline"] == {**memorized, "exact_match": 0.0, "ood_accuracy": 0.333333, "last_label": 0.333333}
    assert found["target_counts"]["last_label"] == {"10": 1, "8": 1, "9": 1}
    assert "non_causal_reason" not in record


def test_a_record_without_labels_is_as_it_always_was() -> None:
    exam = EvaluationData(Arithmetic(digits=Span(1, 2)), Characters(), Continuation())
    model = Decoder(hidden_size=16).build(exam.vocabulary, 0).eval()
    assert list(evaluate_cell(model, exam, {"first_digits": 1, "second_digits": 2}, count=4)) == [
        "cell", "correct", "count", "low", "high", "first_token_correct", "digit_accuracy", "first_error_counts",
        "position_offset", "overlaps_training", "method",
    ]  # fmt: skip


def test_a_model_that_looks_ahead_is_named_with_labels_and_refused_without() -> None:
    spec = Decoder(hidden_size=16, positions=(Scalar(position_ids=Zooming()),))
    counting = EvaluationData(Counting(count=Span(1, 4), modulus=3), Words(), TokenClassification())
    model = spec.build(counting.vocabulary, 0).eval()
    record = evaluate_cell(model, counting, {"count": 6}, count=4)
    assert "Zooming" in record["non_causal_reason"]
    adding = EvaluationData(Arithmetic(digits=2), Characters(), Continuation())
    with pytest.raises(UserError, match="cannot generate token by token"):
        evaluate_cell(spec.build(adding.vocabulary, 0).eval(), adding, {}, count=4)

"""Promises of losses, on every one of them: sums with counts, so that only the trainer divides."""

from typing import Any, Literal

import pytest
import torch
from torch.nn.functional import cross_entropy

from numerate.batch import IGNORE_INDEX, Batch, Output, Tokens
from numerate.losses.cross_entropy import CrossEntropy, CrossEntropyModule
from numerate.losses.number_heads import Regression
from numerate.vocabulary import Vocabulary
from promises import (  # noqa: F401
    NUMBER,
    RAGGED,
    VOCABULARY,
    labelled_rows,
    output_everywhere,
    rows_of,
    test_a_batch_in_parts_has_the_sums_and_counts_of_the_whole,
    test_every_term_has_a_weight_and_a_count_that_the_batch_alone_tells,
)


def at_targets(logits: torch.Tensor, batch: Batch) -> Output:
    hidden = torch.take_along_dim(logits, batch.target_positions[..., None], dim=1)
    return Output(
        hidden,
        lambda hidden: hidden,
        target_positions=batch.target_positions,
        number_head=output_everywhere(logits).number_head,
    )


def total(loss: Any, output: Output, batch: Batch) -> float:
    terms, counts = loss(output, batch), loss.counts(batch)
    return sum(loss.weights[name] * float(terms[name]) / counts[name] for name in terms)


def test_the_gradient_of_the_parts_is_that_of_the_whole(any_loss: Any, vocabulary: Any) -> None:
    loss = any_loss.build(vocabulary)
    logits, batch = labelled_rows(RAGGED)
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(sum(loss(output_everywhere(logits), batch).values()), logits)
    for row in range(4):
        sum(loss(output_everywhere(logits[row : row + 1]), rows_of(batch, slice(row, row + 1))).values()).backward()
    torch.testing.assert_close(logits.grad, expected, atol=1e-6, rtol=1e-5)
    learns = batch.targets == NUMBER if isinstance(any_loss, Regression) else batch.targets != IGNORE_INDEX
    assert bool((expected[learns].abs().sum(-1) > 0).all())
    assert float(expected[batch.targets == IGNORE_INDEX].abs().sum()) == 0.0, "no gradient without a target"


def test_target_positions_alone_give_the_same_as_all_places(any_loss: Any, vocabulary: Any) -> None:
    loss = any_loss.build(vocabulary)
    logits, batch = labelled_rows(RAGGED)
    everywhere, there = loss(output_everywhere(logits), batch), loss(at_targets(logits, batch), batch)
    for name in everywhere:
        assert float(there[name]) == pytest.approx(float(everywhere[name]), rel=1e-5)


def soft(loss: Any) -> bool:
    """Whether it asks for less than all of the right token: too sure costs more again, and nothing costs nothing."""
    settings = vars(loss)
    return (
        any(settings.get(name) for name in ("label_smoothing", "sigma", "gaussian_sigma"))
        or settings.get("loss_function") == "dist2"
    )


def test_a_better_answer_costs_less(any_loss: Any, vocabulary: Any) -> None:
    loss = any_loss.build(vocabulary)
    logits, batch = labelled_rows(RAGGED)
    right = torch.nn.functional.one_hot(batch.targets.clamp(min=0), VOCABULARY.size).float()
    strengths = (0.0, 0.5, 1.0) if soft(any_loss) else (0.0, 2.0, 4.0, 40.0)

    def answer(strength: float) -> Output:
        numbers = batch.target_number_values * (strength / strengths[-1])  # type: ignore[operator]
        return Output(logits + strength * right, lambda hidden: hidden, number_head=lambda hidden: numbers)

    costs = [total(loss, answer(strength), batch) for strength in strengths]
    assert costs == sorted(costs, reverse=True)
    assert soft(any_loss) or costs[-1] == pytest.approx(0.0, abs=1e-4)


def test_half_precision_is_summed_in_full(any_loss: Any, vocabulary: Any) -> None:
    loss = any_loss.build(vocabulary)
    logits, batch = labelled_rows([list(range(6))] * 64)
    rough = logits.bfloat16()
    for name, term in loss(output_everywhere(rough), batch).items():
        assert term.dtype == torch.float32
        assert float(term) == pytest.approx(float(loss(output_everywhere(rough.float()), batch)[name]), rel=1e-6)


# By hand -------------------------------------------------------------------------------------------------------------


def built(over: Any, vocabulary: Any) -> Any:
    return CrossEntropy(mean_over=over).build(vocabulary)


def test_over_tokens_it_is_torchs_mean(vocabulary: Any) -> None:
    logits, batch = labelled_rows(RAGGED)
    expected = float(cross_entropy(logits.flatten(0, 1), batch.targets.flatten()))
    loss = built("tokens", vocabulary)
    assert loss.counts(batch) == {"cross_entropy": 9}
    assert total(loss, output_everywhere(logits), batch) == pytest.approx(expected, rel=1e-6)
    assert total(loss, at_targets(logits, batch), batch) == pytest.approx(expected, rel=1e-6)


def test_over_examples_it_is_the_mean_of_each_ones_mean(vocabulary: Any) -> None:
    logits, batch = labelled_rows(RAGGED)
    logs = logits.log_softmax(-1)
    means = [-sum(float(logs[row, t, batch.targets[row, t]]) for t in own) / len(own) for row, own in enumerate(RAGGED)]
    loss = built("examples", vocabulary)
    assert loss.counts(batch) == {"cross_entropy": 4}
    assert total(loss, output_everywhere(logits), batch) == pytest.approx(sum(means) / 4, rel=1e-5)
    assert total(loss, output_everywhere(logits), batch) != pytest.approx(
        total(built("tokens", vocabulary), output_everywhere(logits), batch)
    )


def test_a_row_without_targets_adds_nothing(vocabulary: Any) -> None:
    logits, batch = labelled_rows([[1, 2], [], [3]])
    for over in ("tokens", "examples"):
        part = built(over, vocabulary)
        terms = part(output_everywhere(logits), batch)["cross_entropy"]
        without = torch.tensor([0, 2])
        kept = rows_of(batch, without)
        assert float(terms) == pytest.approx(
            float(part(output_everywhere(logits[without]), kept)["cross_entropy"]), rel=1e-6
        )
    assert isinstance(part, CrossEntropyModule)


@pytest.mark.parametrize("over", ["tokens", "examples"])
def test_smoothing_asks_a_share_of_the_whole_vocabulary_alike(over: Literal["tokens", "examples"]) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[1, 2, IGNORE_INDEX], [4, IGNORE_INDEX, IGNORE_INDEX]])
    tokens = Tokens(targets.clamp(min=0), torch.tensor([3, 3]), torch.arange(2))
    counts = {"tokens": 3, "examples": 2}
    batch = Batch(tokens, targets, torch.zeros(2, 1, dtype=torch.long), targets[:, :1], counts, 6)
    part = CrossEntropy(mean_over=over, label_smoothing=0.2).build(Vocabulary.with_digits(["+"]))
    number_head = logits.log_softmax(-1)
    each = [
        -0.8 * number_head[r, t, targets[r, t]] - 0.2 * number_head[r, t].mean() for r, t in ((0, 0), (0, 1), (1, 0))
    ]
    expected = sum(each) if over == "tokens" else (each[0] + each[1]) / 2 + each[2]
    torch.testing.assert_close(part(Output(logits, torch.nn.Identity()), batch)["cross_entropy"], expected)

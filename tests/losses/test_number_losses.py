"""What is only true of the recipes' number losses: how they are computed, divided and weighed, and models' numbers."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import published_case
from layers import assert_same
from numerate.batch import IGNORE_INDEX, Batch, Output, Tokens
from numerate.errors import UserError
from numerate.kernels.number_loss import NumberDistance, reference_loss_sums
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses import cross_entropy as cross_entropy_loss
from numerate.losses import number_token
from numerate.losses.cross_entropy import CrossEntropy
from numerate.losses.number_heads import Regression, XValLoss, standardized_error
from numerate.losses.number_spans import number_table
from numerate.losses.number_token import GaussianCrossEntropy, NumberToken
from numerate.losses.soft_labels import SoftLabels, digit_entropy_loss, dist2_loss
from numerate.vocabulary import Vocabulary

NUMBER = Vocabulary.with_digits(["+", "[NUM]"])


def batch_of(targets: list[list[int]], values: list[list[float]] | None = None) -> Batch:
    """Rows with these targets at all positions."""
    wanted = torch.tensor(targets)
    rows, time = wanted.shape
    places = torch.arange(time).expand(rows, time).contiguous()
    tokens = Tokens(wanted.clamp(min=0), torch.full((rows,), time), torch.arange(rows))
    counts = {"tokens": int((wanted != IGNORE_INDEX).sum()), "examples": rows}
    numbers = None if values is None else torch.tensor(values)
    return Batch(tokens, wanted, places, wanted, counts, rows * time, target_number_values=numbers)


def linear_outputs(width: int = 8) -> tuple[torch.Tensor, nn.Linear, Batch]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(4)
        head, hidden = nn.Linear(width, 19), torch.randn(3, 5, width, requires_grad=True)
        targets = torch.randint(4, 19, (3, 5))
    targets[0, :2] = IGNORE_INDEX
    return hidden, head, batch_of(targets.tolist())


def means(loss: Any, vocabulary: Any, output: Output, batch: Batch) -> dict[str, float]:
    part = loss.build(vocabulary)
    terms, counts = part(output, batch), part.counts(batch)
    return {name: terms[name].item() / counts[name] for name in terms}


WAYS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "number": (
        NumberToken(reweigh=True, digit_weight_ratio=3.0, fused="none"),
        tuple(NumberToken(reweigh=True, digit_weight_ratio=3.0, fused=one) for one in ("logits", "head", "auto")),  # type: ignore[arg-type]
    ),
    **{
        f"cross-entropy over {over}": (CrossEntropy(over, 0.1, "never"), (CrossEntropy(over, 0.1, "always"),))
        for over in ("tokens", "examples")
    },
}


@pytest.mark.parametrize("name", WAYS)
def test_all_ways_of_computing_it_agree(name: str, vocabulary: Any) -> None:
    hidden, head, batch = linear_outputs()
    plain, fused = WAYS[name]
    expected = plain.build(vocabulary)(Output(hidden, head), batch)
    for spec in fused:
        found = spec.build(vocabulary)(Output(hidden, head), batch)
        assert_same(found, expected, [hidden, head.weight, head.bias], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", [NumberToken(), CrossEntropy()], ids=["number", "cross-entropy"])
def test_large_outputs_never_hold_their_logits_and_small_ones_do(
    spec: Any, vocabulary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, head, batch = linear_outputs()
    loss, plain, wrapped = spec.build(vocabulary), Output(hidden, head), Output(hidden, lambda x: head(x))
    monkeypatch.setattr(Output, "logits", property(lambda self: pytest.fail("the logits were made")))
    with pytest.raises(pytest.fail.Exception, match="the logits were made"):
        loss(plain, batch)
    for module in (number_token, cross_entropy_loss):
        monkeypatch.setattr(module, "MIN_CHUNKED_LOGITS", hidden.shape[:-1].numel() * vocabulary.size)
    loss(plain, batch)
    with pytest.raises(pytest.fail.Exception, match="the logits were made"):
        loss(wrapped, batch)
    with pytest.raises(UserError, match="fused: must be 'auto', 'logits' or 'none' for a model whose head is not"):
        NumberToken(fused="head").build(vocabulary)(wrapped, batch)


def test_it_is_the_mean_over_labels_and_the_mean_over_number_tokens(vocabulary: Any) -> None:
    hidden, head, batch = linear_outputs()
    output = Output(hidden, head)
    logits, targets = output.logits, batch.targets
    table = number_table(vocabulary)
    sums = reference_loss_sums(logits, targets, table, NumberDistance())
    number = (sums.number_loss / sums.total_number_weight).item()
    found = means(NumberToken(), vocabulary, output, batch)
    assert found["number"] == pytest.approx(number, rel=1e-5)
    assert found["cross_entropy"] == pytest.approx(
        cross_entropy(logits.flatten(0, 1), targets.flatten()).item(), rel=1e-5
    )
    numbers = int((table.number_indices(targets) >= 0).sum())
    labels = means(NumberToken(mean_over="tokens"), vocabulary, output, batch)
    assert labels["number"] == pytest.approx(number * numbers / 13, rel=1e-5)
    assert NumberToken(weight=2.0).build(vocabulary).weights == {"cross_entropy": 1.0, "number": 2.0}


def test_a_batch_without_a_number_counts_none_and_learns_its_tokens(vocabulary: Any) -> None:
    batch = batch_of([[14, 15], [16, IGNORE_INDEX]])
    hidden = torch.randn(2, 2, 19, requires_grad=True)
    for loss in (NumberToken(), NumberToken(fused="none"), SoftLabels(), NumberToken("was-cdf", gaussian_sigma=1.0)):
        part = loss.build(vocabulary)
        terms = part(Output(hidden, nn.Identity()), batch)
        assert part.counts(batch) == {"cross_entropy": 3, "number": 0}
        assert terms["number"].item() == 0.0
        (found,) = torch.autograd.grad(sum(terms.values()), hidden)
        assert bool(found.isfinite().all())
        assert found[0].abs().sum() > 0


def test_a_spread_of_nothing_is_plain_cross_entropy(vocabulary: Any) -> None:
    hidden, head, batch = linear_outputs()
    output = Output(hidden, head)
    plain = means(GaussianCrossEntropy(sigma=0.0), vocabulary, output, batch)["cross_entropy"]
    expected = cross_entropy(output.logits.flatten(0, 1), batch.targets.flatten()).item()
    assert plain == pytest.approx(expected, rel=1e-5)
    assert means(GaussianCrossEntropy(), vocabulary, output, batch)["cross_entropy"] != pytest.approx(expected)


# Soft labels ----------------------------------------------------------------------------------------------------------


def test_soft_labels_by_hand() -> None:
    table = NumberTokenTable.from_values({0: 0.0, 1: 1.0, 2: 2.0}, 4)
    columns, label = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64), torch.tensor([1])
    odds = [math.exp(x) for x in (0.5, -1.0, 2.0)]
    p = [x / sum(odds) for x in odds]
    near = [math.exp(-1), 1.0, math.exp(-1)]
    target = [x / sum(near) for x in near]
    kl = sum(t * math.log(t / x) for t, x in zip(target, p, strict=True))
    assert dist2_loss(columns, table, label, 1.0).item() == pytest.approx(kl)
    yes = [1 / (1 + math.exp(-x)) for x in (0.5, -1.0, 2.0)]
    binary = [-math.log(1 - yes[0]), -math.log(yes[1]), -math.log(1 - yes[2])]
    assert digit_entropy_loss(columns, table, label).item() == pytest.approx(
        sum(x * b for x, b in zip(p, binary, strict=True)) / 3
    )


# Number heads ---------------------------------------------------------------------------------------------------------


def outputs(batch: Batch, predictions: list[list[float]], logarithms: bool = False) -> Output:
    numbers = torch.tensor(predictions, requires_grad=True)
    back = (lambda x: x.sign() * x.abs().expm1()) if logarithms else None
    rows, time = batch.targets.shape
    return Output(torch.zeros(rows, time, NUMBER.size), nn.Identity(), number_head=lambda h: numbers, unscale=back)


def test_numbers_are_compared_at_number_tokens() -> None:
    num = NUMBER.token_to_id["[NUM]"]
    batch = batch_of([[14, num, 3], [num, num, IGNORE_INDEX]], [[1.0, 54.0, 1.0], [2.0, -3.0, 1.0]])
    output = outputs(batch, [[9.0, 50.0, 9.0], [2.0, 0.0, 9.0]])
    found = means(XValLoss(scale="number"), NUMBER, output, batch)
    assert found["number"] == pytest.approx((16 + 0 + 9) / 3)
    logs = [(math.log(55) - math.log(51)) ** 2, 0.0, math.log(4) ** 2]
    assert means(XValLoss(), NUMBER, output, batch)["number"] == pytest.approx(sum(logs) / 3, rel=1e-5)
    assert means(Regression(), NUMBER, output, batch)["number"] == pytest.approx((16 + 0) / 2)
    assert means(Regression(scale="ln"), NUMBER, output, batch)["number"] == pytest.approx(logs[0] / 2, rel=1e-5)


def test_a_head_that_says_logarithms_is_compared_as_it_is_or_as_what_it_means() -> None:
    num = NUMBER.token_to_id["[NUM]"]
    batch = batch_of([[num]], [[54.0]])
    output = outputs(batch, [[math.log(51)]], logarithms=True)
    found = means(XValLoss(), NUMBER, output, batch)["number"]
    assert found == pytest.approx((math.log(55) - math.log(51)) ** 2, rel=1e-4)
    assert means(XValLoss(scale="number"), NUMBER, output, batch)["number"] == pytest.approx(16.0, rel=1e-4)


def test_the_published_number_loss_is_that_of_joint_z_scores(shared: Path) -> None:
    case = published_case(shared, "number_token_loss.json", "xval_t5_number_loss")
    for (predictions, right), expected in zip(case["inputs"], case["expected"], strict=True):
        there = torch.ones(len(predictions), dtype=torch.bool)
        total = standardized_error(torch.tensor(predictions), torch.tensor(right), there)
        assert total.item() / len(predictions) == pytest.approx(expected, abs=1e-5)
    assert XValLoss(published=True).build(NUMBER).weights == {"cross_entropy": 0.5, "number": 0.5}


def test_numbers_without_values_or_a_head_are_refused() -> None:
    num = NUMBER.token_to_id["[NUM]"]
    batch = batch_of([[num]], [[54.0]])
    for loss in (XValLoss(), Regression()):
        part = loss.build(NUMBER)
        with pytest.raises(UserError, match="requires a tokenizer with number values; use number_format=XVal"):
            part.counts(replace(batch, target_number_values=None))
        with pytest.raises(UserError, match="model: must have a number head"):
            part(Output(torch.zeros(1, 1, NUMBER.size), nn.Identity()), batch)
        with pytest.raises(UserError, match=r"loss.number_token: must be a token of the vocabulary, not \[NUM\]"):
            loss.build(Vocabulary.with_digits(["+"]))


def test_published_beside_a_head_that_says_logarithms_is_refused() -> None:
    batch = batch_of([[NUMBER.token_to_id["[NUM]"]]], [[54.0]])
    with pytest.raises(UserError, match=r"^objective\.loss\.published: must be false .*number_head\.scale=number"):
        XValLoss(published=True).build(NUMBER)(outputs(batch, [[95.0]], logarithms=True), batch)


def test_published_is_finite_for_numbers_without_squares_and_for_equal_ones() -> None:
    num = NUMBER.token_to_id["[NUM]"]
    for predictions, right in (([1e30, 3.0], [2e30, 5.0]), ([2.0, 2.0], [2.0, 2.0]), ([0.0, 1e-30], [1e-25, 0.0])):
        batch = batch_of([[num, num]], [right])
        output = outputs(batch, [predictions])
        total = XValLoss(published=True).build(NUMBER)(output, batch)["number"]
        total.backward()
        exact = standardized_error(
            *(torch.tensor([each]).double() for each in (predictions, right)), torch.ones(1, 2) > 0
        )
        assert total.item() == pytest.approx(exact.item(), rel=1e-4)
        assert output.scaled_numbers is not None
        assert output.scaled_numbers.grad is not None
        assert output.scaled_numbers.grad.isfinite().all()


def test_published_without_a_number_is_an_attached_zero() -> None:
    batch = batch_of([[14, 3]], [[1.0, 1.0]])
    output = outputs(batch, [[9.0, 9.0]])
    terms = XValLoss(published=True).build(NUMBER)(output, batch)
    assert terms["number"].item() == 0.0
    terms["number"].backward()


def test_the_code_on_the_page_runs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "losses.md").read_text()
    (code,) = (part.split("```")[0] for part in page.split("```python\n")[1:])
    exec(compile(code, "docs/losses.md", "exec"), {})

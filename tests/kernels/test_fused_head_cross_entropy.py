"""Promises of cross-entropy fused with the head: the numbers and gradients of the plain form, whatever the chunks."""

import inspect
import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import cross_entropy

from numerate.batch import IGNORE_INDEX, Batch, Output, Tokens
from numerate.errors import UserError
from numerate.kernels import fused_head_cross_entropy as module
from numerate.kernels.fused_head_cross_entropy import linear_cross_entropy, linear_head_or_none
from numerate.losses.cross_entropy import CrossEntropy

ROWS, TIME, WIDTH, VOCABULARY = 3, 5, 8, 23


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows at a time, so that the last chunk is another."""
    monkeypatch.setitem(module.CHUNK_LOGITS, "cpu", 4 * VOCABULARY)


def question(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    labels = torch.randint(0, VOCABULARY, (ROWS, TIME), generator=generator)
    labels[0, 3:] = labels[2, 0] = IGNORE_INDEX
    return normal(ROWS, TIME, WIDTH), normal(VOCABULARY, WIDTH), normal(VOCABULARY), labels


def plainly(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, **given: Any) -> Tensor:
    logits = nn.functional.linear(hidden, weight, bias)
    smoothing, weights = given.get("label_smoothing", 0.0), given.get("weights")
    each = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=smoothing)
    return (each * (1 if weights is None else weights.flatten())).sum()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_are_those_of_the_plain_form(biased: bool, smoothing: float, weighted: bool) -> None:
    hidden, weight, bias, labels = question()
    chosen: dict[str, Any] = {"label_smoothing": smoothing}
    if weighted:
        chosen["weights"] = torch.rand(ROWS, TIME, dtype=torch.float64)
    learned = (hidden, weight, *((bias,) if biased else ()))
    expected = plainly(hidden, weight, bias if biased else None, labels, **chosen)
    found = linear_cross_entropy(hidden, weight, labels, bias=bias if biased else None, **chosen)
    torch.testing.assert_close(found, expected)
    factor = 0.3  # of whoever divides
    for own, plain in zip(
        torch.autograd.grad(factor * found, learned), torch.autograd.grad(factor * expected, learned), strict=True
    ):
        torch.testing.assert_close(own, plain)
        assert own.is_contiguous()


def test_a_tied_head_gets_what_comes_from_both_of_its_uses() -> None:
    _, table, _, labels = question()
    ids = torch.randint(0, VOCABULARY, (ROWS, TIME))
    expected = torch.autograd.grad(plainly(table[ids].tanh(), table, None, labels), table)
    found = torch.autograd.grad(linear_cross_entropy(table[ids].tanh(), table, labels), table)
    torch.testing.assert_close(found, expected)


def test_under_autocast_products_are_in_bf16_and_the_softmax_in_float32() -> None:
    hidden, weight, bias, labels = question(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        logits = nn.functional.linear(hidden, weight, bias)
        expected = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
        found = linear_cross_entropy(hidden, weight, labels, bias=bias)
    assert logits.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    for own, plain in zip(
        torch.autograd.grad(found, (hidden, weight, bias)),
        torch.autograd.grad(expected, (hidden, weight, bias)),
        strict=True,
    ):
        assert own.dtype == torch.float32
        assert float((own - plain).norm() / plain.norm()) < 1e-2


def test_parts_of_a_step_add_up_to_the_whole() -> None:
    hidden, weight, bias, labels = question()
    whole = torch.autograd.grad(linear_cross_entropy(hidden, weight, labels, bias=bias), (hidden, weight, bias))
    for row in range(ROWS):
        linear_cross_entropy(hidden[row : row + 1], weight, labels[row : row + 1], bias=bias).backward()
    for own, expected in zip((hidden, weight, bias), whole, strict=True):
        torch.testing.assert_close(own.grad, expected)


def test_a_second_backward_works_it_out_again_and_a_derivative_of_it_is_refused() -> None:
    hidden, weight, _, labels = question()
    total = linear_cross_entropy(hidden, weight, labels)
    first = torch.autograd.grad(total, (hidden, weight), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(total, (hidden, weight), retain_graph=True), first)
    (again,) = torch.autograd.grad(total, hidden, create_graph=True)
    with pytest.raises(UserError):
        again.sum().backward()


def test_what_is_frozen_has_no_gradient_and_without_gradients_none_is_made() -> None:
    hidden, weight, _, labels = question()
    total = linear_cross_entropy(hidden, weight.detach(), labels)
    (found,) = torch.autograd.grad(total, hidden)
    (expected,) = torch.autograd.grad(plainly(hidden, weight, None, labels), hidden)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(linear_cross_entropy(hidden, weight, labels), total.detach())


def test_what_is_not_finite_without_a_target_does_no_harm() -> None:
    hidden, weight, bias, labels = question()
    with torch.no_grad():
        hidden[2, 0] = float("nan")
    found = torch.autograd.grad(linear_cross_entropy(hidden, weight, labels, bias=bias), (hidden, weight, bias))
    assert all(bool(slope.isfinite().all()) for slope in found)
    nothing = torch.full_like(labels, IGNORE_INDEX)
    assert linear_cross_entropy(hidden, weight, nothing, bias=bias).item() == 0.0


def test_vmap_gives_each_member_its_own() -> None:
    hidden, weight, _, labels = question()
    found = vmap(lambda h: linear_cross_entropy(h, weight, labels))(torch.stack([hidden, 2 * hidden]))
    torch.testing.assert_close(found[1], linear_cross_entropy(2 * hidden, weight, labels))


@pytest.mark.skipif("CHECK_SHAPES" in os.environ, reason="torch.compile cannot trace the checks of shapes")
def test_a_compiled_graph_has_the_same_sum() -> None:
    hidden, weight, bias, labels = question()
    compiled = torch.compile(linear_cross_entropy, backend="eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(hidden, weight, labels, bias=bias), linear_cross_entropy(hidden, weight, labels, bias=bias)
    )


def test_what_does_not_fit_together_is_refused() -> None:
    hidden, weight, _, labels = question()
    unchecked = inspect.unwrap(linear_cross_entropy)  # tests check shapes before it can
    with pytest.raises(UserError, match="labels: of shape"):
        unchecked(hidden[:2], weight, labels)
    with pytest.raises(UserError, match="a head for width 7"):
        unchecked(hidden, weight[:, :7], labels)
    with pytest.raises(UserError, match="must have the dtype of the hidden states"):
        unchecked(hidden, weight.float(), labels)


def batch_of(labels: Tensor) -> Batch:
    rows, time = labels.shape
    places = torch.arange(time).expand(rows, time)
    tokens = Tokens(labels.clamp(min=0), torch.full((rows,), time), torch.arange(rows))
    counts = {"tokens": int((labels != IGNORE_INDEX).sum()), "examples": rows}
    return Batch(tokens, labels, places, labels, counts, rows * time)


@pytest.mark.parametrize("over", ["tokens", "examples"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_says_the_same_fused_and_not(over: Any, smoothing: float) -> None:
    hidden, weight, bias, labels = question(dtype=torch.float32)
    head = nn.Linear(WIDTH, VOCABULARY)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(bias)
    found = []
    for fused in ("always", "never"):
        loss = CrossEntropy(over, smoothing, fused).build(None)  # type: ignore[arg-type]
        (value,) = loss(Output(hidden, head), batch_of(labels)).values()
        found.append((value, *torch.autograd.grad(value, (hidden, head.weight, head.bias))))
    for own, plain in zip(*found, strict=True):
        torch.testing.assert_close(own, plain, atol=1e-5, rtol=1e-5)


def test_many_logits_are_never_made_at_once_and_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, _, _, labels = question(dtype=torch.float32)
    head, made = nn.Linear(WIDTH, VOCABULARY, bias=False), []
    monkeypatch.setattr(Output, "logits", property(lambda self: made.append(1) or self.lm_head(self.hidden_states)))
    loss = CrossEntropy().build(None)  # type: ignore[arg-type]
    loss(Output(hidden, head), batch_of(labels))
    assert made == [1]
    monkeypatch.setattr("numerate.losses.cross_entropy.MIN_CHUNKED_LOGITS", hidden.shape[:-1].numel() * VOCABULARY)
    loss(Output(hidden, head), batch_of(labels))
    assert made == [1]


def test_a_head_that_is_more_than_a_matrix_is_left_alone() -> None:
    head = nn.Linear(WIDTH, VOCABULARY)
    assert linear_head_or_none(head) is head
    assert linear_head_or_none(nn.Sequential(head)) is None
    head.register_forward_hook(lambda *args: None)
    assert linear_head_or_none(head) is None

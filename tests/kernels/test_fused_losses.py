"""The fused losses give what the plain form gives: values, gradients, in every float type, and compiled."""

import inspect
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from layers import assert_same, drawn, gradients
from numerate.batch import IGNORE_INDEX
from numerate.errors import UserError
from numerate.kernels import chunked_head, fused_head_cross_entropy, fused_number_loss
from numerate.kernels.chunked_head import linear_head_or_none
from numerate.kernels.fused_head_cross_entropy import linear_cross_entropy
from numerate.kernels.fused_head_number_loss import linear_cross_entropy_and_number_loss
from numerate.kernels.fused_number_loss import cross_entropy_and_number_loss, cross_entropy_and_token_logits
from numerate.kernels.number_loss import LOSS_FUNCTIONS, NumberDistance, reference_loss_sums
from numerate.kernels.number_table import NumberTokenTable

WIDTH = 24
TABLE = NumberTokenTable.from_values({3: 0.0, 5: 1.0, 6: 2.5, 7: -4.0, 20: 10.0, 21: 10.0}, WIDTH)
SETTINGS = [
    {"loss_function": loss_function, "gaussian_sigma": sigma, "reweigh": reweigh}
    for loss_function, sigma, reweigh in itertools.product(LOSS_FUNCTIONS, (None, 1.3), (False, True))
] + [
    {"loss_function": "was", "squash_factor": 3.0, "reweigh": True},
    {"loss_function": "was-cdf", "unit_spacing": True},
]


@pytest.fixture(autouse=True)
def chunks_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fused_number_loss, chunked_head):
        monkeypatch.setattr(module, "CHUNK_LOGITS", {"cpu": 4 * WIDTH})


@pytest.fixture(params=["on a CPU", "as on a GPU"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where nothing looks at the values of a tensor."""
    if request.param == "as on a GPU":
        for module in (fused_number_loss, chunked_head, fused_head_cross_entropy):
            monkeypatch.setattr(module, "can_read_values", lambda tensor: False)


def labels() -> Tensor:
    """Of any tokens, with numbers, and positions without a label."""
    found = torch.randint(0, WIDTH, (3, 7), generator=torch.Generator().manual_seed(3))
    found[0, 0], found[0, 5], found[1, :3], found[2, 0] = IGNORE_INDEX, IGNORE_INDEX, torch.tensor([5, 20, 7]), 3
    return found


def weights() -> dict[str, Any]:
    """Weights of numbers, some of which are no quantities."""
    quantity = torch.ones(3, 7, dtype=torch.bool)
    quantity[1, 1] = False
    return {"loss_weights": drawn(3, 7, seed=4).sigmoid(), "quantity_mask": quantity}


class Form(NamedTuple):
    """A fused form and the plain one, from `inputs` and the labels to sums."""

    fused: Callable[..., tuple[Tensor, ...]]
    plain: Callable[..., tuple[Tensor, ...]]
    inputs: list[Tensor]


def from_logits(dtype: torch.dtype = torch.float64, **settings: Any) -> Form:
    more = {name: settings.pop(name) for name in ("loss_weights", "quantity_mask") if name in settings}
    return Form(
        lambda z, y: cross_entropy_and_number_loss(z, y, TABLE, **settings, **more)[:2],
        lambda z, y: reference_loss_sums(z, y, TABLE, NumberDistance(**settings), **more)[:2],
        [(2 * drawn(3, 7, WIDTH)).to(dtype).requires_grad_()],
    )


def head_inputs(biased: bool, dtype: torch.dtype) -> list[Tensor]:
    found = drawn(3, 7, 5, seed=5), drawn(WIDTH, 5, seed=6), drawn(WIDTH, seed=7)
    return [part.to(dtype).requires_grad_() for part in found[: 2 + biased]]


def from_head(biased: bool = False, dtype: torch.dtype = torch.float64, **settings: Any) -> Form:
    plain = from_logits(**settings).plain
    return Form(
        lambda h, w, *rest: linear_cross_entropy_and_number_loss(
            h, w, rest[-1], TABLE, bias=rest[0] if biased else None, **settings
        )[:2],
        lambda *given: plain(linear(*given[:-1]), given[-1]),
        head_inputs(biased, dtype),
    )


def columns() -> Form:
    return Form(
        lambda z, y: cross_entropy_and_token_logits(z, y, TABLE.ids),
        lambda z, y: (
            cross_entropy(z.flatten(0, -2), y.flatten(), reduction="sum"),
            z[..., TABLE.ids],
            z.logsumexp(-1),
        ),
        from_logits().inputs,
    )


def entropy(biased: bool = False, dtype: torch.dtype = torch.float64, weighted: bool = False, **settings: Any) -> Form:
    each = drawn(3, 7, seed=8).sigmoid() if weighted else None

    def plain(*given: Tensor) -> tuple[Tensor, ...]:
        logits, y = linear(*given[:-1]), given[-1]
        losses = cross_entropy(
            logits.flatten(0, -2).float() if dtype.itemsize < 4 else logits.flatten(0, -2),
            y.flatten(),
            reduction="none",
            **settings,
        )
        return ((losses if each is None else losses * each.flatten()).sum(),)

    def fused(h: Tensor, w: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        return (linear_cross_entropy(h, w, rest[-1], bias=rest[0] if biased else None, weights=each, **settings),)

    return Form(fused, plain, head_inputs(biased, dtype))


FORMS: dict[str, Callable[[], Form]] = {
    "logits": lambda: from_logits(reweigh=True),
    "columns": columns,
    "head": lambda: from_head(reweigh=True),
    "head with a bias": lambda: from_head(biased=True, gaussian_sigma=1.0),
    "cross-entropy": entropy,
    "cross-entropy with a bias": lambda: entropy(biased=True, label_smoothing=0.1),
}
each_form = pytest.mark.parametrize("name", FORMS)


def assert_is_plain(form: Form, labels: Tensor) -> None:
    assert_same(form.fused(*form.inputs, labels), form.plain(*form.inputs, labels), form.inputs)


# The plain form -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.usefixtures("device")
def test_a_number_loss_is_the_plain_form(settings: dict[str, Any]) -> None:
    for form in (
        from_logits(**settings),
        from_logits(**settings, **weights()),
        from_head(**settings),
        from_head(biased=True, **settings, **weights()),
    ):
        assert_is_plain(form, labels())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("device")
def test_cross_entropy_of_a_head_is_the_plain_form(biased: bool, smoothing: float, weighted: bool) -> None:
    assert_is_plain(entropy(biased, weighted=weighted, label_smoothing=smoothing), labels())


@each_form
def test_each_sum_alone_has_its_own_gradient(name: str) -> None:
    form = FORMS[name]()
    for one, other in zip(form.fused(*form.inputs, labels()), form.plain(*form.inputs, labels()), strict=True):
        assert_same(one, other, form.inputs)
    sums = form.fused(*form.inputs, labels())
    first, again = (gradients(sums, form.inputs) for _ in range(2))
    assert all(gradient.is_contiguous() for gradient in first)
    assert_same(first, again)


def test_a_tied_head_gets_what_comes_from_both_of_its_uses() -> None:
    table, ids = drawn(WIDTH, 5).requires_grad_(), torch.randint(0, WIDTH, (3, 7))
    form = entropy()
    found, expected = (say(table[ids].tanh(), table, labels()) for say in (form.fused, form.plain))
    assert_same(found, expected, [table])


# Types ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reweigh", [False, True])
def test_logits_of_every_float_type_are_computed_in_float32(dtype: torch.dtype, reweigh: bool) -> None:
    form = from_logits(dtype, reweigh=reweigh)
    exact = [part.detach().double().requires_grad_() for part in form.inputs]
    ours, plain = form.fused(*form.inputs, labels()), form.plain(*exact, labels())
    assert {one.dtype for one in ours} == {torch.float32}
    assert_same([one.double() for one in ours], plain, rtol=1e-6, atol=1e-5)
    (mine,), (other,) = (
        torch.autograd.grad(0.7 * a + 1.9 * b, of) for (a, b), of in ((ours, form.inputs), (plain, exact))
    )
    assert mine.dtype == dtype
    assert_same(mine.double(), other, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("make", [from_head, entropy])
def test_half_precision_hidden_states_are_multiplied_in_half_and_summed_in_full(make: Any) -> None:
    form = make(dtype=torch.bfloat16)
    wide = [part.detach().float().requires_grad_() for part in form.inputs]
    ours, plain = form.fused(*form.inputs, labels()), make().plain(*wide, labels())
    assert {one.dtype for one in ours} == {torch.float32}
    assert_same(ours[0], plain[0], rtol=1e-2)
    for mine, other in zip(
        torch.autograd.grad(sum(ours), form.inputs), torch.autograd.grad(sum(plain), wide), strict=True
    ):  # type: ignore[arg-type]
        assert mine.dtype == torch.bfloat16
        assert_same(mine.float(), other, rtol=0.1, atol=0.1)


def test_under_autocast_products_are_in_bf16_and_the_softmax_in_float32() -> None:
    form = entropy(biased=True, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        logits = linear(*form.inputs)
        expected = cross_entropy(logits.float().flatten(0, 1), labels().flatten(), reduction="sum")
        (found,) = form.fused(*form.inputs, labels())
    assert (logits.dtype, found.dtype) == (torch.bfloat16, torch.float32)
    assert_same(found, expected, rtol=1e-5)
    for own, plain in zip(*(torch.autograd.grad(one, form.inputs) for one in (found, expected)), strict=True):
        assert own.dtype == torch.float32
        assert float((own - plain).norm() / plain.norm()) < 1e-2


# Derivatives ----------------------------------------------------------------------------------------------------------


@each_form
def test_a_second_derivative_is_refused_and_never_a_wrong_one(name: str) -> None:
    form = FORMS[name]()

    def total() -> Tensor:
        sums = form.fused(*form.inputs, labels())
        return sums[0] + sum(0.3 * one.square().sum() for one in sums[1:])

    found = torch.autograd.grad(total(), form.inputs, create_graph=True)
    assert_same(found, torch.autograd.grad(total(), form.inputs))
    for gradient in found:
        assert gradient.requires_grad
        with pytest.raises(UserError, match="has no second derivative; use fused=none"):
            torch.autograd.grad(gradient.square().sum(), form.inputs, retain_graph=True)


@pytest.mark.parametrize("name", ["head", "cross-entropy"])
def test_what_is_frozen_has_no_gradient_and_without_gradients_none_is_made(name: str) -> None:
    form = FORMS[name]()
    hidden, weight = form.inputs
    both = gradients(form.fused(hidden, weight, labels()), [hidden, weight])
    assert_same(gradients(form.fused(hidden, weight.detach(), labels()), [hidden]), both[:1])
    assert_same(gradients(form.fused(hidden.detach(), weight, labels()), [weight]), both[1:])
    assert not form.fused(hidden.detach(), weight.detach(), labels())[0].requires_grad
    with torch.no_grad():
        assert_same(form.fused(hidden, weight, labels()), form.plain(hidden, weight, labels()))


COMPILED = """
import torch
from torch.nn.functional import linear
from numerate.kernels.fused_head_cross_entropy import linear_cross_entropy
from numerate.kernels.fused_number_loss import cross_entropy_and_number_loss, cross_entropy_and_token_logits
from numerate.kernels.fused_head_number_loss import linear_cross_entropy_and_number_loss
from numerate.kernels.number_table import NumberTokenTable
torch.manual_seed(0)
table = NumberTokenTable.from_values({i: float(i) for i in range(10)}, 40)
hidden, weight = torch.randn(3, 7, 5).requires_grad_(), torch.randn(40, 5).requires_grad_()
labels = torch.randint(0, 40, (3, 7))
labels[:, 0], labels[:, 1] = -100, 7
given = dict(reweigh=True, gaussian_sigma=1.0)

def total(h, w):
    found = linear_cross_entropy(h, w, labels) + linear_cross_entropy(h, w, labels, bias=w[:, 0])
    for sums in (
        cross_entropy_and_number_loss(linear(h, w), labels, table, **given),
        linear_cross_entropy_and_number_loss(h, w, labels, table, **given),
    ):
        found = found + sums.cross_entropy / sums.num_labels + 0.3 * sums.number_loss / sums.total_number_weight
    entropy, columns, lse = cross_entropy_and_token_logits(linear(h, w), labels, table.ids)
    return found + entropy + (columns - lse[..., None]).exp().sum()

found, expected = torch.compile(total, fullgraph=True, backend="aot_eager")(hidden, weight), total(hidden, weight)
torch.testing.assert_close(found, expected)
of = (hidden, weight)
torch.testing.assert_close(torch.autograd.grad(found, of), torch.autograd.grad(expected, of))
print("one graph")
"""


@pytest.mark.slow
def test_they_compile_without_a_break() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["one graph"], done.stderr


# Extremes -------------------------------------------------------------------------------------------------------------


@each_form
@pytest.mark.usefixtures("device")
def test_what_is_not_finite_without_a_target_does_no_harm_and_at_a_target_is_not_hidden(name: str) -> None:
    if name == "columns":
        pytest.skip("gives the log-sum-exp of every position")
    form = FORMS[name]()
    with torch.no_grad():
        form.inputs[0][0, 0] = float("nan")
    sums = form.fused(*form.inputs, labels())
    assert all(one.isfinite() for one in sums)
    found = gradients(sums, form.inputs)
    assert all(bool(gradient.isfinite().all()) for gradient in found)
    assert found[0][0, 0].abs().sum().item() == 0.0
    with torch.no_grad():
        form.inputs[0][1, 0, 2] = float("nan")
    assert form.fused(*form.inputs, labels())[0].isnan()


def test_logits_far_apart_are_neither_infinite_nor_nothing() -> None:
    form, logits = from_logits(), torch.zeros(3, 7, WIDTH)
    logits[..., 1] = 1e4
    sums = form.fused(logits.requires_grad_(), labels())
    assert_same(sums[0], form.plain(logits, labels())[0], rtol=1e-6)
    assert all(bool(gradient.isfinite().all()) for gradient in torch.autograd.grad(sum(sums), logits))  # type: ignore[arg-type]


@pytest.mark.usefixtures("device")
def test_numbers_that_have_no_probability_do_no_harm_where_the_label_is_none() -> None:
    bias, y = torch.zeros(WIDTH).index_fill(0, TABLE.ids, -torch.inf), torch.full((3, 7), 1)
    hidden, head = (part.requires_grad_() for part in (drawn(3, 7, 5, seed=5).float(), drawn(WIDTH, 5, seed=6).float()))
    logits = linear(hidden, head, bias)
    for reweigh in (False, True):
        from_hidden = linear_cross_entropy_and_number_loss(hidden, head, y, TABLE, bias=bias, reweigh=reweigh)
        for sums in (from_hidden, cross_entropy_and_number_loss(logits, y, TABLE, reweigh=reweigh)):
            assert sums.number_loss.item() == 0.0
            found = torch.autograd.grad(sums.cross_entropy + sums.number_loss, (hidden, head), retain_graph=True)
            assert all(bool(gradient.isfinite().all()) for gradient in found)


@pytest.mark.parametrize("label", [1, IGNORE_INDEX])
@pytest.mark.usefixtures("device")
def test_without_a_number_the_number_is_an_attached_zero(label: int) -> None:
    for form in (from_logits(), from_head()):
        _, number = form.fused(*form.inputs, torch.full((3, 7), label))
        assert number.item() == 0.0
        assert all(not gradient.any() for gradient in torch.autograd.grad(number, form.inputs))
    (loss,) = entropy().fused(*entropy().inputs, torch.full((3, 7), IGNORE_INDEX))
    assert loss.item() == 0.0


@pytest.mark.parametrize("form", ["plain", "fused", "head"])
@pytest.mark.usefixtures("device")
def test_a_spread_target_that_is_nothing_makes_nothing_of_a_masked_logit(form: str) -> None:
    table = NumberTokenTable.from_values({i: 10.0 * i for i in range(10)}, 12)
    logits, labels = torch.zeros(2, 12), torch.tensor([1, 2])
    logits[:, 9] = -torch.inf
    if form == "plain":
        found = reference_loss_sums(logits, labels, table, NumberDistance("was", 1.0))
    elif form == "fused":
        found = cross_entropy_and_number_loss(logits, labels, table, gaussian_sigma=1.0)
    else:
        head = torch.zeros(2, 4), torch.zeros(12, 4)
        found = linear_cross_entropy_and_number_loss(*head, labels, table, bias=logits[0].clone(), gaussian_sigma=1.0)
    assert found.cross_entropy.item() == pytest.approx(2 * torch.tensor(11.0).log().item(), rel=1e-5)


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [from_logits, from_head])
def test_weights_that_cannot_weigh_are_refused(make: Any, weight: float) -> None:
    given = weights()
    form = make(**given)
    given["loss_weights"][0, 0] = weight  # an ignored position
    for say in (form.plain, form.fused):
        assert say(*form.inputs, labels())[1].isfinite()
    given["loss_weights"][2, 0] = weight
    for say in (form.plain, form.fused):
        with pytest.raises(UserError, match=f"loss_weights: must be at least 0 and finite, not {weight}"):
            say(*form.inputs, labels())


def test_what_does_not_fit_together_is_refused() -> None:
    (logits,), (hidden, weight) = from_logits().inputs, from_head().inputs
    y, wrong = labels().clamp(max=19), labels()
    wrong[0, 1] = 24
    # Tests check shapes before these functions can.
    head_entropy, check_shape = inspect.unwrap(linear_cross_entropy), inspect.unwrap(NumberTokenTable.check_same_shape)
    for call, words in (
        (lambda: cross_entropy_and_number_loss(logits[..., :20], y, TABLE), "20 wide, but token 21 has a value"),
        (
            lambda: linear_cross_entropy_and_number_loss(hidden, weight[:20], y, TABLE),
            "20 wide, but token 21 has a value",
        ),
        (lambda: cross_entropy_and_number_loss(logits, wrong, TABLE), "labels: 24 is outside the vocabulary; 0 to 23"),
        (lambda: check_shape(torch.Size((2, 3)), torch.Size((3, 2))), r"labels: must have .* \(2, 3\), not \(3, 2\)"),
        (lambda: head_entropy(hidden[:2], weight, y), "labels: of shape"),
        (lambda: head_entropy(hidden, weight[:, :4], y), "a head for width 4"),
        (lambda: head_entropy(hidden, weight.float(), y), "must have the dtype of the hidden states, torch.float64"),
    ):
        with pytest.raises(UserError, match=words):
            call()


def test_a_head_that_is_more_than_a_matrix_is_left_alone() -> None:
    head = nn.Linear(5, WIDTH)
    assert linear_head_or_none(head) is head
    assert linear_head_or_none(nn.Sequential(head)) is None
    head.register_forward_hook(lambda *args: None)
    assert linear_head_or_none(head) is None

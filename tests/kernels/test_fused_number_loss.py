"""The fused forms give what the plain form gives: values, gradients, in every float type, stacked and compiled."""

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from numerate.errors import UserError
from numerate.kernels import fused_head_number_loss as head_fused
from numerate.kernels import fused_number_loss as fused
from numerate.kernels.fused_head_number_loss import linear_cross_entropy_and_number_loss
from numerate.kernels.fused_number_loss import cross_entropy_and_number_loss, cross_entropy_and_token_logits
from numerate.kernels.number_loss import LOSS_FUNCTIONS, LossSums, NumberDistance, reference_loss_sums
from numerate.kernels.number_table import NumberTokenTable

WIDTH = 24
SETTINGS = [
    {"loss_function": loss_function, "gaussian_sigma": sigma, "reweigh": reweigh}
    for loss_function, sigma, reweigh in itertools.product(LOSS_FUNCTIONS, (None, 1.3), (False, True))
] + [
    {"loss_function": "was", "squash_factor": 3.0, "reweigh": True},
    {"loss_function": "was-cdf", "unit_spacing": True},
]


@pytest.fixture(autouse=True)
def chunks_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "CHUNK_LOGITS", {"cpu": 4 * WIDTH})
    monkeypatch.setattr(head_fused, "CHUNK_LOGITS", {"cpu": 4 * WIDTH})


def drawn(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, NumberTokenTable, dict[str, Any]]:
    """Logits, labels, a table of uneven values, and weights of places with some that are no quantities."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(3, 7, WIDTH, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, WIDTH, (3, 7), generator=generator)
    labels[0, 0], labels[1, :3], labels[2, 0] = -100, torch.tensor([5, 20, 7]), 3
    table = NumberTokenTable.from_values({3: 0.0, 5: 1.0, 6: 2.5, 7: -4.0, 20: 10.0, 21: 10.0}, WIDTH)
    quantity = torch.ones(3, 7, dtype=torch.bool)
    quantity[1, 1] = False
    weights = torch.rand(3, 7, generator=generator, dtype=torch.float64)
    return logits.to(dtype), labels, table, {"loss_weights": weights, "quantity_mask": quantity}


def gradients(sums: LossSums, *of: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of a total that weighs the two sums differently."""
    return torch.autograd.grad(0.7 * sums.cross_entropy + 1.9 * sums.number_loss, of)


def assert_same(ours: LossSums, plain: LossSums, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    for mine, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_from_logits_it_is_the_plain_form(settings: dict[str, Any]) -> None:
    logits, labels, table, more = drawn()
    logits.requires_grad_()
    for given in ({}, more):
        plain = reference_loss_sums(logits, labels, table, NumberDistance(**settings), **given)
        ours = cross_entropy_and_number_loss(logits, labels, table, **settings, **given)
        assert_same(ours, plain)
        torch.testing.assert_close(gradients(ours, logits), gradients(plain, logits))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_from_hidden_states_it_is_the_plain_form(settings: dict[str, Any], biased: bool) -> None:
    _, labels, table, more = drawn()
    hidden, weight, bias = head()
    given = (hidden, weight, bias) if biased else (hidden, weight)
    plain = reference_loss_sums(linear(*given), labels, table, NumberDistance(**settings), **more)
    ours = linear_cross_entropy_and_number_loss(
        hidden, weight, labels, table, bias=bias if biased else None, **settings, **more
    )
    assert_same(ours, plain)
    torch.testing.assert_close(gradients(ours, *given), gradients(plain, *given))


def head() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = ((3, 7, 5), (WIDTH, 5), (WIDTH,))
    hidden, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes
    )
    return hidden, weight, bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reweigh", [False, True])
def test_every_float_type_is_computed_in_float32(dtype: torch.dtype, reweigh: bool) -> None:
    logits, labels, table, _ = drawn(dtype)
    logits.requires_grad_()
    exact = logits.detach().double().requires_grad_()
    ours = cross_entropy_and_number_loss(logits, labels, table, reweigh=reweigh)
    plain = reference_loss_sums(exact, labels, table, NumberDistance(reweigh=reweigh))
    assert ours.cross_entropy.dtype == ours.number_loss.dtype == torch.float32
    torch.testing.assert_close(ours.cross_entropy.double(), plain.cross_entropy, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(ours.number_loss.double(), plain.number_loss, rtol=1e-6, atol=1e-5)
    (mine,), (other,) = gradients(ours, logits), gradients(plain, exact)
    assert mine.dtype == dtype
    torch.testing.assert_close(mine.double(), other, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


def test_half_precision_hidden_states_are_multiplied_in_half_and_summed_in_full() -> None:
    _, labels, table, _ = drawn()
    exact = [part.detach() for part in head()[:2]]
    rough = [part.bfloat16().requires_grad_() for part in exact]
    wide = [part.detach().float().requires_grad_() for part in rough]
    ours = linear_cross_entropy_and_number_loss(*rough, labels, table)
    plain = reference_loss_sums(linear(*wide), labels, table, NumberDistance())
    assert ours.cross_entropy.item() == pytest.approx(plain.cross_entropy.item(), rel=1e-2)
    for mine, other in zip(gradients(ours, *rough), gradients(plain, *wide), strict=True):
        assert mine.dtype == torch.bfloat16
        torch.testing.assert_close(mine.float(), other, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("reweigh", [False, True])
def test_gradients_are_those_of_differences(reweigh: bool) -> None:
    logits, labels, table, _ = drawn()
    own = logits[1:, :3].clone().requires_grad_()
    hidden, weight, bias = (part.detach() for part in head())
    parts = [part.requires_grad_() for part in (hidden[1:, :3].clone(), weight, bias)]

    def from_logits(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return cross_entropy_and_number_loss(z, labels[1:, :3], table, gaussian_sigma=1.0, reweigh=reweigh)[:2]

    def from_hidden(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = linear_cross_entropy_and_number_loss(
            h, w, labels[1:, :3], table, bias=b, loss_function="huber", reweigh=reweigh
        )
        return found.cross_entropy, found.number_loss

    assert torch.autograd.gradcheck(from_logits, (own,))
    assert torch.autograd.gradcheck(from_hidden, tuple(parts))


def test_a_loss_of_some_columns_is_that_of_columns_picked() -> None:
    logits, labels, table, _ = drawn()
    logits.requires_grad_()

    def total(entropy: torch.Tensor, columns: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return 0.3 * entropy + (columns.tanh() * lse[..., None]).sum()

    target_mask = labels != -100
    plain = reference_loss_sums(logits, labels, table, NumberDistance()).cross_entropy
    expected = total(plain, logits[..., table.ids], logits.logsumexp(-1))
    found = total(*cross_entropy_and_token_logits(logits, labels, table.ids))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits))
    assert bool(target_mask.any())


def test_a_second_backward_works_it_out_again() -> None:
    logits, labels, table, _ = drawn()
    logits.requires_grad_()
    hidden, weight, _ = head()
    for sums, of in (
        (cross_entropy_and_number_loss(logits, labels, table, reweigh=True), (logits,)),
        (linear_cross_entropy_and_number_loss(hidden, weight, labels, table, reweigh=True), (hidden, weight)),
    ):
        total = 2.0 * sums.cross_entropy + 3.0 * sums.number_loss
        first = torch.autograd.grad(total, of, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(total, of), first)


def test_one_sum_alone_has_its_own_gradient() -> None:
    logits, labels, table, _ = drawn()
    logits.requires_grad_()
    for which in range(2):
        (mine,) = torch.autograd.grad(cross_entropy_and_number_loss(logits, labels, table)[which], logits)
        (other,) = torch.autograd.grad(reference_loss_sums(logits, labels, table, NumberDistance())[which], logits)
        torch.testing.assert_close(mine, other)


def test_a_frozen_head_or_frozen_hidden_states_get_no_gradient() -> None:
    _, labels, table, _ = drawn()
    hidden, weight, _ = head()
    (both, _) = gradients(linear_cross_entropy_and_number_loss(hidden, weight, labels, table), hidden, weight)
    (alone,) = gradients(linear_cross_entropy_and_number_loss(hidden, weight.detach(), labels, table), hidden)
    torch.testing.assert_close(alone, both)
    assert not linear_cross_entropy_and_number_loss(
        hidden.detach(), weight.detach(), labels, table
    ).number_loss.requires_grad


def test_what_is_not_finite_without_a_target_does_no_harm() -> None:
    logits, labels, table, _ = drawn()
    logits[0, 0] = float("nan")
    logits.requires_grad_()
    sums = cross_entropy_and_number_loss(logits, labels, table)
    assert sums.cross_entropy.isfinite()
    (found,) = gradients(sums, logits)
    assert bool(found.isfinite().all())
    assert found[0, 0].abs().sum().item() == 0.0


def test_what_is_not_a_number_at_a_target_is_not_hidden() -> None:
    logits, labels, table, _ = drawn()
    logits[1, 0, 2] = float("nan")
    sums = cross_entropy_and_number_loss(logits, labels, table)
    assert sums.cross_entropy.isnan()
    hidden, weight, _ = (part.detach() for part in head())
    hidden[1, 0] = float("nan")
    assert linear_cross_entropy_and_number_loss(hidden, weight, labels, table).number_loss.isnan()


def test_labels_of_any_whole_type_will_do() -> None:
    logits, labels, table, _ = drawn()
    assert_same(
        cross_entropy_and_number_loss(logits, labels.int(), table), cross_entropy_and_number_loss(logits, labels, table)
    )


def test_logits_far_apart_are_neither_infinite_nor_nothing() -> None:
    _, labels, table, _ = drawn()
    logits = torch.zeros(3, 7, WIDTH)
    logits[..., 1] = 1e4
    logits.requires_grad_()
    sums = cross_entropy_and_number_loss(logits, labels, table)
    torch.testing.assert_close(
        sums.cross_entropy, reference_loss_sums(logits, labels, table, NumberDistance()).cross_entropy
    )
    assert bool(gradients(sums, logits)[0].isfinite().all())


def test_without_a_number_the_number_is_an_attached_zero() -> None:
    logits, _, table, _ = drawn()
    logits.requires_grad_()
    for labels in (torch.full((3, 7), 1), torch.full((3, 7), -100)):
        sums = cross_entropy_and_number_loss(logits, labels, table)
        assert sums.number_loss.item() == sums.total_number_weight.item() == 0.0
        (found,) = torch.autograd.grad(sums.number_loss, logits)
        assert found.abs().sum().item() == 0.0


def test_vmap_gives_each_member_its_own() -> None:
    logits, labels, table, _ = drawn()
    logits.requires_grad_()

    def own(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sums = cross_entropy_and_number_loss(z, y, table, reweigh=True)
        entropy, columns, lse = cross_entropy_and_token_logits(z, y, table.ids)
        return sums.cross_entropy + 3 * sums.number_loss + entropy + columns.sum() * lse.sum()

    found = torch.vmap(own)(logits, labels)
    expected = torch.stack([own(z, y) for z, y in zip(logits, labels, strict=True)])
    torch.testing.assert_close(found, expected)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(weights @ found, logits), torch.autograd.grad(weights @ expected, logits)
    )


def test_vmap_gives_each_member_its_own_head() -> None:
    _, labels, table, _ = drawn()
    hidden, weight, bias = head()
    weights = torch.stack([weight, 2 * weight, -weight]).detach().requires_grad_()

    def own(h: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sums = linear_cross_entropy_and_number_loss(h, w, y, table, bias=bias, reweigh=True)
        return sums.cross_entropy + 3 * sums.number_loss

    found = torch.vmap(own)(hidden, weights, labels)
    expected = torch.stack([own(*each) for each in zip(hidden, weights, labels, strict=True)])
    torch.testing.assert_close(found, expected)
    of, factors = (hidden, weights, bias), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(factors @ found, of), torch.autograd.grad(factors @ expected, of))


@pytest.mark.parametrize("form", ["logits", "head", "columns"])
def test_a_second_derivative_is_refused_and_never_a_wrong_one(form: str) -> None:
    logits, labels, table, given = drawn()
    hidden, weight, _ = head()
    of = (hidden, weight) if form == "head" else (logits.requires_grad_(),)

    def loss() -> torch.Tensor:
        if form == "columns":
            entropy, columns, lse = cross_entropy_and_token_logits(logits, labels, table.ids)
            return entropy + columns.square().sum() + lse.square().sum()
        if form == "head":
            sums = linear_cross_entropy_and_number_loss(hidden, weight, labels, table, **given)
        else:
            sums = cross_entropy_and_number_loss(logits, labels, table, **given)
        return sums.cross_entropy + 0.3 * sums.number_loss

    once = torch.autograd.grad(loss(), of)
    found = torch.autograd.grad(loss(), of, create_graph=True)
    torch.testing.assert_close(found, once)
    for gradient in found:
        assert gradient.requires_grad
        with pytest.raises(UserError, match="has no second derivative; use fused=none"):
            torch.autograd.grad(gradient.square().sum(), of, retain_graph=True)
    if form == "logits":  # the plain form has one
        sums = reference_loss_sums(logits, labels, table, NumberDistance(), **given)
        (first,) = torch.autograd.grad(sums.cross_entropy + 0.3 * sums.number_loss, logits, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), logits)
        assert second.abs().sum() > 0


def test_torch_func_has_the_same_gradient() -> None:
    logits, labels, table, _ = drawn()

    def own(z: torch.Tensor) -> torch.Tensor:
        sums = cross_entropy_and_number_loss(z, labels, table)
        return sums.cross_entropy + 3 * sums.number_loss

    found = torch.func.grad(own)(logits)
    logits.requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(own(logits), logits)[0])


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("form", ["plain", "fused", "head"])
def test_weights_that_cannot_weigh_are_refused(form: str, weight: float) -> None:
    logits, labels, table, given = drawn()
    hidden, head_weight, _ = head()
    calls = {
        "plain": lambda: reference_loss_sums(logits, labels, table, NumberDistance(), **given),
        "fused": lambda: cross_entropy_and_number_loss(logits, labels, table, **given),
        "head": lambda: linear_cross_entropy_and_number_loss(hidden, head_weight, labels, table, **given),
    }
    given["loss_weights"][0, 0] = weight  # an ignored place
    assert calls[form]().number_loss.isfinite()
    given["loss_weights"][2, 0] = weight
    with pytest.raises(UserError, match=f"loss_weights: must be at least 0 and finite, not {weight}"):
        calls[form]()
    given["loss_weights"][2, 0] = 0.0
    assert calls[form]().number_loss.isfinite()


COMPILED = """
import torch
from torch.nn.functional import linear
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
    found = 0.0
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


def test_bad_input_is_refused() -> None:
    logits, labels, table, _ = drawn()
    hidden, weight, _ = head()
    with pytest.raises(UserError, match="20 wide, but token 21 has a value"):
        cross_entropy_and_number_loss(logits[..., :20], labels.clamp(max=19), table)
    with pytest.raises(UserError, match="20 wide, but token 21 has a value"):
        linear_cross_entropy_and_number_loss(hidden, weight[:20], labels.clamp(max=19), table)
    labels[0, 1] = 24
    with pytest.raises(UserError, match="labels: 24 is outside the vocabulary; 0 to 23"):
        cross_entropy_and_number_loss(logits, labels, table)


def test_labels_at_other_places_than_the_logits_are_refused() -> None:
    with pytest.raises(UserError, match=r"labels: must have the shape of .* \(2, 3\), not \(3, 2\)"):
        NumberTokenTable.check_same_shape(torch.Size((2, 3)), torch.Size((3, 2)))
    table = NumberTokenTable.from_values({3: 1.0, 4: 2.0}, 6)
    with pytest.raises(UserError, match=r"weight: must have the dtype of the hidden states, torch.bfloat16"):
        linear_cross_entropy_and_number_loss(
            torch.zeros(1, 4).bfloat16(), torch.zeros(6, 4), torch.zeros(1).long(), table
        )


@pytest.mark.parametrize("form", ["plain", "fused", "head"])
def test_a_spread_target_that_is_nothing_makes_nothing_of_a_masked_logit(form: str) -> None:
    table = NumberTokenTable.from_values({i: 10.0 * i for i in range(10)}, 12)
    logits, labels = torch.zeros(2, 12), torch.tensor([1, 2])
    logits[:, 9] = -torch.inf
    if form == "plain":
        found = reference_loss_sums(logits, labels, table, NumberDistance("was", 1.0))
    elif form == "fused":
        found = cross_entropy_and_number_loss(logits, labels, table, gaussian_sigma=1.0)
    else:
        bias = logits[0].clone()
        found = linear_cross_entropy_and_number_loss(
            torch.zeros(2, 4), torch.zeros(12, 4), labels, table, bias=bias, gaussian_sigma=1.0
        )
    assert found.cross_entropy.item() == pytest.approx(2 * torch.tensor(11.0).log().item(), rel=1e-5)

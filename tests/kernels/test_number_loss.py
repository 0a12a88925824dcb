"""Number losses of tokens: the published values, a public package, gradients by differences, and bad input."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from numerate.errors import UserError
from numerate.kernels.number_loss import (
    LOSS_FUNCTIONS,
    NumberDistance,
    number_token_loss,
    reference_loss_sums,
    smoothed_cross_entropy,
)
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses.number_tokens import number_table
from numerate.vocabulary import Vocabulary

UNEVEN = {3: 0.0, 5: 1.0, 6: 2.5, 7: -4.0, 20: 10.0, 21: 10.0}


def table_of(words: list[str]) -> NumberTokenTable:
    values = {i: float(word) for i, word in enumerate(words) if word.lstrip("-").replace(".", "", 1).isdigit()}
    return NumberTokenTable.from_values(values, len(words))


def cases(shared: Path) -> dict[str, Any]:
    found = json.loads((shared / "cases" / "number_token_loss.json").read_text())["cases"]
    return {case["name"]: case for case in found}


PUBLISHED = {
    "ntl_was_digits": {"loss_function": "was"},
    "ntl_was_reweigh": {"loss_function": "was", "reweigh": True},
    "ntl_was_squash_2": {"loss_function": "was", "squash_factor": 2.0},
    "ntl_was_squash_20": {"loss_function": "was", "squash_factor": 20.0},
    "ntl_mse": {"loss_function": "mse"},
    "ntl_mse_reweigh": {"loss_function": "mse", "reweigh": True},
    "ntl_mae": {"loss_function": "mae"},
    "ntl_huber_reweigh": {"loss_function": "huber", "reweigh": True},
    "ntl_was_irregular_values": {"loss_function": "was"},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_gives_the_published_values_and_gradients(name: str, shared: Path) -> None:
    if name not in cases(shared):
        pytest.skip("this case is not handed out")
    case, settings = cases(shared)[name], PUBLISHED[name]
    logits = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
    labels, table = torch.tensor(case["labels"]), table_of(case["vocab"])
    expected = case["expected"]
    far = 1e-5 if "squash" in name or "float32" in case["produced_by"] else 1e-6
    mean = number_token_loss(logits, labels, table, **settings)
    mean.backward()
    assert mean.item() == pytest.approx(expected["mean"], abs=far)
    each = number_token_loss(logits, labels, table, reduction="none", **settings)
    torch.testing.assert_close(each.detach(), torch.tensor(expected["none"]).double(), atol=far, rtol=0)
    torch.testing.assert_close(logits.grad, torch.tensor(expected["grad_of_mean"]).double(), atol=far, rtol=0)
    if "sum" in expected:
        total = number_token_loss(logits, labels, table, reduction="sum", **settings)
        assert total.item() == pytest.approx(expected["sum"], abs=5 * far)


def test_uneven_values_are_as_far_apart_as_they_are(shared: Path) -> None:
    case = cases(shared)["ntl_was_irregular_values"]
    logits, labels = torch.tensor(case["logits"]), torch.tensor(case["labels"])
    mean = number_token_loss(logits, labels, table_of(case["vocab"]), loss_function="was-cdf")
    assert mean.item() == pytest.approx(case["expected"]["mean"], rel=1e-5)


def test_all_losses_of_the_published_system_together(shared: Path) -> None:
    case = cases(shared)["repo_total_losses"]
    logits, labels = torch.tensor(case["logits"]).double(), torch.tensor(case["labels"])
    table, expected = table_of(case["vocab"]), case["expected"]
    for kind in LOSS_FUNCTIONS:
        found = number_token_loss(logits, labels, table, loss_function=kind)
        assert found.item() == pytest.approx(expected[kind.replace("-", "_")], abs=1e-6)
    plain = smoothed_cross_entropy(logits, labels, table, sigma=0.0)
    assert plain.item() == pytest.approx(expected["ce"], abs=1e-6)


@pytest.mark.parametrize("sigma", [1, 2])
def test_targets_spread_over_neighbours_as_published(sigma: int, shared: Path) -> None:
    case = cases(shared).get(f"gaussian_ce_sigma{sigma}")
    if case is None:
        pytest.skip("this case is not handed out")
    logits, labels = torch.tensor(case["logits"]).double(), torch.tensor(case["labels"])
    table, expected = table_of(case["vocab"]), case["expected"]
    entropy = smoothed_cross_entropy(logits, labels, table, sigma=float(sigma))
    number = number_token_loss(
        logits, labels, table, loss_function="was-cdf", gaussian_sigma=float(sigma), unit_spacing=True
    )
    assert entropy.item() == pytest.approx(expected["gce"], abs=1e-6)
    assert number.item() == pytest.approx(expected["ntl_was_cdf_smoothed"], abs=1e-6)
    assert (entropy + 0.3 * number).item() == pytest.approx(expected["total"], abs=1e-6)


def test_padding_is_no_number(shared: Path) -> None:
    case = cases(shared)["padding_label_wraparound"]
    table = NumberTokenTable.from_values({10 + i: float(i % 10) for i in range(20)}, 120)
    labels = torch.full((1, 3), -100)
    for kind in LOSS_FUNCTIONS:
        found = number_token_loss(torch.zeros(1, 3, 120), labels, table, loss_function=kind)
        assert found.item() == case["correct_output"]


# By hand --------------------------------------------------------------------------------------------------------------


def test_the_distance_to_a_sharp_guess_is_that_of_the_digits() -> None:
    table = NumberTokenTable.from_values({i: float(i) for i in range(10)}, 12)
    logits = torch.full((10, 12), 0.01, dtype=torch.float64)
    logits[torch.arange(10), torch.arange(10)] = 5.0
    found = number_token_loss(logits, torch.full((10,), 4), table, reduction="none")
    expected = [3.9038, 2.9679, 2.0321, 1.0962, 0.1603, 1.0962, 2.0321, 2.9679, 3.9038, 4.8397]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-4, rtol=0)


def test_an_even_split_around_the_label_is_right_for_the_expectation_and_wrong_for_the_distance() -> None:
    table = NumberTokenTable.from_values({i: float(i) for i in range(10)}, 12)
    logits = torch.full((1, 12), -1e4)
    logits[0, [0, 8]] = 0.0
    assert number_token_loss(logits, torch.tensor([4]), table, loss_function="mse").item() == 0.0
    assert number_token_loss(logits, torch.tensor([4]), table, loss_function="was").item() == 4.0


def test_a_spread_of_nothing_is_cross_entropy() -> None:
    logits, labels, table = drawn()
    found = smoothed_cross_entropy(logits, labels, table, sigma=0.0)
    torch.testing.assert_close(found, cross_entropy(logits.flatten(0, 1), labels.flatten()))


@pytest.mark.parametrize("kind", LOSS_FUNCTIONS)
def test_without_a_number_it_is_an_attached_zero(kind: Any) -> None:
    logits, _, table = drawn()
    logits.requires_grad_()
    found = number_token_loss(logits, torch.full((3, 7), 1), table, loss_function=kind)
    found.backward()
    assert found.item() == 0.0
    assert logits.grad is not None
    assert logits.grad.abs().sum().item() == 0.0


@pytest.mark.parametrize("kind", LOSS_FUNCTIONS)
def test_digits_that_are_no_quantities_have_no_number_loss(kind: Any) -> None:
    logits, labels, table = drawn()
    quantity = torch.ones_like(labels, dtype=torch.bool)
    quantity[1, 0] = False
    all_of_them = number_token_loss(logits, labels, table, loss_function=kind, reduction="none")
    some = number_token_loss(logits, labels, table, loss_function=kind, quantity_mask=quantity, reduction="none")
    assert all_of_them[1, 0] > 0
    assert some[1, 0] == 0
    all_of_them[1, 0] = 0
    torch.testing.assert_close(some, all_of_them)


def test_weights_weigh_and_the_mean_is_over_them() -> None:
    logits, labels, table = drawn()
    weights = torch.rand(3, 7, dtype=torch.float64)
    each = number_token_loss(logits, labels, table, reduction="none")
    there = table.number_indices(labels) >= 0
    found = number_token_loss(logits, labels, table, loss_weights=weights)
    torch.testing.assert_close(found, (weights * each).sum() / (weights * there).sum())


# By differences -------------------------------------------------------------------------------------------------------


def drawn(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, NumberTokenTable]:
    """Logits, labels with numbers of uneven values among them, and a place that is ignored."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(3, 7, 24, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 24, (3, 7), generator=generator)
    labels[0, 0], labels[1, :3], labels[2, 0] = -100, torch.tensor([5, 20, 7]), 3
    return logits.to(dtype), labels, NumberTokenTable.from_values(UNEVEN, 24)


@pytest.mark.parametrize(
    ("kind", "reweigh", "sigma"), [(k, r, s) for k in LOSS_FUNCTIONS for r in (False, True) for s in (None, 1.3)]
)
def test_gradients_are_those_of_differences(kind: Any, reweigh: bool, sigma: float | None) -> None:
    logits, labels, table = drawn()
    logits = logits[1:2, :3].requires_grad_()
    measure = NumberDistance(kind, gaussian_sigma=sigma, reweigh=reweigh)

    def both(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return reference_loss_sums(z, labels[1:2, :3], table, measure)[:2]

    assert torch.autograd.gradcheck(both, (logits,))


# A public package -----------------------------------------------------------------------------------------------------


class Ten:
    """A tokenizer of ten digits and letters, as much of one as ntloss asks for."""

    def __init__(self, width: int) -> None:
        self.vocab = {**{str(i): 2 * i + 1 for i in range(10)}}
        self.vocab |= {f"w{i}": i for i in range(width) if i not in self.vocab.values()}

    def get_vocab(self) -> dict[str, int]:
        return dict(self.vocab)

    def __len__(self) -> int:
        return len(self.vocab)

    def add_tokens(self, tokens: Any) -> int:
        return 0

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self.vocab.get(token)


@pytest.mark.parametrize(("kind", "reweigh"), list(itertools.product(LOSS_FUNCTIONS, (False, True))))
def test_it_agrees_with_ntloss(kind: Any, reweigh: bool) -> None:
    ntloss = pytest.importorskip("ntloss", reason="ntloss 0.3.2 is the oracle of number token losses")
    functions = {
        "mse": torch.nn.functional.mse_loss,
        "mae": torch.nn.functional.l1_loss,
        "huber": torch.nn.functional.huber_loss,
    }
    tokenizer, width = Ten(30), 30
    if kind in functions:
        theirs = ntloss.NTLossDotProduct(tokenizer, width, reweigh=reweigh, loss_function=functions[kind])
    else:
        theirs = ntloss.NTLoss(tokenizer, width, reweigh=reweigh)
    generator = torch.Generator().manual_seed(11)
    for _ in range(3):
        logits = (3 * torch.randn(4, 9, width, generator=generator)).requires_grad_()
        labels = torch.randint(0, width, (4, 9), generator=generator)
        labels[0, :2] = -100
        ours = number_token_loss(
            logits,
            labels,
            NumberTokenTable.from_values({2 * i + 1: float(i) for i in range(10)}, width),
            loss_function=kind,
            reweigh=reweigh,
        )
        expected = theirs(logits, labels)
        torch.testing.assert_close(ours, expected, rtol=2e-5, atol=1e-5)
        (mine,) = torch.autograd.grad(ours, logits)
        (other,) = torch.autograd.grad(expected, logits)
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


# Tables and bad input -------------------------------------------------------------------------------------------------


def test_a_table_keeps_its_values_when_a_model_is_cast() -> None:
    table = NumberTokenTable.from_values({0: 0.1, 1: 123456789.0}, 2)
    holder = torch.nn.ModuleDict({"table": table}).bfloat16()
    assert table.values.tolist() == [0.1, 123456789.0]
    assert holder.state_dict() == {}


def test_a_table_of_a_vocabulary_has_its_digits_or_all_its_numbers() -> None:
    vocabulary = Vocabulary.with_digits(["12", "+"])
    assert number_table(vocabulary).values.tolist() == [float(i) for i in range(10)]
    words = Vocabulary.from_words(["10", "a", "7"])
    numbers = number_table(words, "numbers")
    assert numbers.values.tolist() == [10.0, 7.0]
    assert numbers.digit_counts.tolist() == [2, 1]
    with pytest.raises(UserError, match="none of the 5 tokens of this vocabulary has a value"):
        number_table(Vocabulary.from_words(["a"]))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "there must be at least one token with a value"),
        ({3: float("inf")}, "id 3 must be finite, not inf"),
        ({3: float("nan")}, "id 3 must be finite, not nan"),
        ({8: 1.0}, "ids must be from 0 to 7, not 8"),
        ({-1: 1.0}, "ids must be from 0 to 7, not -1"),
    ],
)
def test_a_table_that_cannot_be_is_refused(values: dict[int, float], says: str) -> None:
    with pytest.raises(UserError, match=says):
        NumberTokenTable.from_values(values, 8)


def test_labels_and_logits_that_do_not_fit_are_refused() -> None:
    logits, labels, table = drawn()
    with pytest.raises(UserError, match="21 wide, but token 21 has a value"):
        number_token_loss(logits[..., :21], labels.clamp(max=20), table)
    for wrong in (24, -3):
        labels[2, 2] = wrong
        with pytest.raises(UserError, match=f"labels: {wrong} is outside the vocabulary; 0 to 23"):
            number_token_loss(logits, labels, table)


def test_a_vocabulary_that_is_padded_is_none_the_less_right() -> None:
    logits, labels, _ = drawn()
    narrow = NumberTokenTable.from_values(UNEVEN, 22)
    wide = torch.cat([logits, torch.zeros(3, 7, 5, dtype=logits.dtype)], -1)
    torch.testing.assert_close(number_token_loss(wide, labels, narrow), number_token_loss(logits, labels, narrow))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"squash_factor": 1.0}, "squash_factor: must be above 1 and finite, not 1.0"),
        ({"loss_function": "mse", "squash_factor": 2.0}, "squash_factor: must be null for loss_function=mse"),
        ({"gaussian_sigma": -1.0}, "gaussian_sigma: must be at least 0 and finite, not -1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], says: str) -> None:
    logits, labels, table = drawn()
    with pytest.raises(UserError, match=says):
        number_token_loss(logits, labels, table, **settings)

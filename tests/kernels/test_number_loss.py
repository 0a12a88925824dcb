"""Number losses of tokens: the published values, a public package, gradients by differences, and bad input."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from cases import TokensForNTLoss, assert_published_values, published_case
from numerate.errors import UserError
from numerate.kernels.number_loss import LOSS_FUNCTIONS, NumberDistance, reference_loss_sums, token_losses
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses.number_spans import number_table
from numerate.vocabulary import Vocabulary

UNEVEN = {3: 0.0, 5: 1.0, 6: 2.5, 7: -4.0, 20: 10.0, 21: 10.0}


def table_of(words: list[str]) -> NumberTokenTable:
    values = {i: float(word) for i, word in enumerate(words) if word.lstrip("-").replace(".", "", 1).isdigit()}
    return NumberTokenTable.from_values(values, len(words))


def number_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    table: NumberTokenTable,
    *,
    reduction: str = "mean",
    loss_weights: torch.Tensor | None = None,
    quantity_mask: torch.Tensor | None = None,
    **settings: Any,
) -> torch.Tensor:
    """The number loss alone: of each position, or the sum or mean over numbers."""
    distance, masked = NumberDistance(**settings), {"quantity_mask": quantity_mask}
    sums = reference_loss_sums(logits, labels, table, distance, loss_weights=loss_weights, **masked)
    if reduction == "none":
        return token_losses(logits, labels, table, distance, **masked)[1]
    return sums.number_loss / (sums.total_number_weight.clamp(min=1e-9) if reduction == "mean" else 1)


def entropy_of(logits: torch.Tensor, labels: torch.Tensor, table: NumberTokenTable, sigma: float) -> torch.Tensor:
    sums = reference_loss_sums(logits, labels, table, NumberDistance("was-cdf", gaussian_sigma=sigma))
    return sums.cross_entropy / sums.num_labels


FILE = "number_token_loss.json"
PUBLISHED: dict[str, dict[str, Any]] = {
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
    case, settings = published_case(shared, FILE, name), PUBLISHED[name]
    table = table_of(case["vocab"])
    tolerance = 1e-5 if "squash" in name or "float32" in case["produced_by"] else 1e-6
    assert_published_values(case, lambda z, y, **more: number_loss(z, y, table, **settings, **more), tolerance)


def test_uneven_values_are_as_far_apart_as_they_are(shared: Path) -> None:
    case = published_case(shared, FILE, "ntl_was_irregular_values")
    logits, labels = torch.tensor(case["logits"]), torch.tensor(case["labels"])
    mean = number_loss(logits, labels, table_of(case["vocab"]), loss_function="was-cdf")
    assert mean.item() == pytest.approx(case["expected"]["mean"], rel=1e-5)


def test_all_losses_of_the_published_system_together(shared: Path) -> None:
    case = published_case(shared, FILE, "repo_total_losses")
    logits, labels = torch.tensor(case["logits"]).double(), torch.tensor(case["labels"])
    table, expected = table_of(case["vocab"]), case["expected"]
    found = {kind: number_loss(logits, labels, table, loss_function=kind).item() for kind in LOSS_FUNCTIONS}
    assert found == pytest.approx({kind: expected[kind.replace("-", "_")] for kind in LOSS_FUNCTIONS}, abs=1e-6)
    assert entropy_of(logits, labels, table, sigma=0.0).item() == pytest.approx(expected["ce"], abs=1e-6)


@pytest.mark.parametrize("sigma", [1, 2])
def test_targets_spread_over_neighbours_as_published(sigma: int, shared: Path) -> None:
    case = published_case(shared, FILE, f"gaussian_ce_sigma{sigma}")
    logits, labels = torch.tensor(case["logits"]).double(), torch.tensor(case["labels"])
    table, expected, settings = table_of(case["vocab"]), case["expected"], {"gaussian_sigma": float(sigma)}
    entropy = entropy_of(logits, labels, table, sigma=float(sigma))
    number = number_loss(logits, labels, table, loss_function="was-cdf", unit_spacing=True, **settings)  # type: ignore[arg-type]
    found = {"gce": entropy.item(), "ntl_was_cdf_smoothed": number.item(), "total": (entropy + 0.3 * number).item()}
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-6)


def test_padding_is_no_number(shared: Path) -> None:
    case = published_case(shared, FILE, "padding_label_wraparound")
    table = NumberTokenTable.from_values({10 + i: float(i % 10) for i in range(20)}, 120)
    for kind in LOSS_FUNCTIONS:
        found = number_loss(torch.zeros(1, 3, 120), torch.full((1, 3), -100), table, loss_function=kind)
        assert found.item() == case["correct_output"]


def drawn(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, NumberTokenTable]:
    """Logits, labels with numbers of uneven values among them, and a place that is ignored."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(3, 7, 24, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 24, (3, 7), generator=generator)
    labels[0, 0], labels[1, :3], labels[2, 0] = -100, torch.tensor([5, 20, 7]), 3
    return logits.to(dtype), labels, NumberTokenTable.from_values(UNEVEN, 24)


# By hand --------------------------------------------------------------------------------------------------------------


def test_an_even_split_around_the_label_is_right_for_the_expectation_and_wrong_for_the_distance() -> None:
    table = NumberTokenTable.from_values({i: float(i) for i in range(10)}, 12)
    logits = torch.full((1, 12), -1e4)
    logits[0, [0, 8]] = 0.0
    assert number_loss(logits, torch.tensor([4]), table, loss_function="mse").item() == 0.0
    assert number_loss(logits, torch.tensor([4]), table, loss_function="was").item() == 4.0


@pytest.mark.parametrize("kind", LOSS_FUNCTIONS)
def test_digits_that_are_no_quantities_have_no_number_loss(kind: Any) -> None:
    logits, labels, table = drawn()
    quantity = torch.ones_like(labels, dtype=torch.bool)
    quantity[1, 0] = False
    expected = number_loss(logits, labels, table, loss_function=kind, reduction="none")
    some = number_loss(logits, labels, table, loss_function=kind, quantity_mask=quantity, reduction="none")
    assert expected[1, 0] > 0
    torch.testing.assert_close(some, expected * quantity)
    none = number_loss(logits.requires_grad_(), torch.full((3, 7), 1), table, loss_function=kind)
    assert none.item() == 0.0
    assert not torch.autograd.grad(none, logits)[0].any()


def test_weights_weigh_and_the_mean_is_over_them() -> None:
    logits, labels, table = drawn()
    weights = torch.rand(3, 7, dtype=torch.float64)
    each = number_loss(logits, labels, table, reduction="none")
    there = table.number_indices(labels) >= 0
    found = number_loss(logits, labels, table, loss_weights=weights)
    torch.testing.assert_close(found, (weights * each).sum() / (weights * there).sum())


# A public package -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "reweigh"), list(itertools.product(LOSS_FUNCTIONS, (False, True))))
def test_it_agrees_with_ntloss(kind: Any, reweigh: bool) -> None:
    ntloss = pytest.importorskip("ntloss", reason="ntloss 0.3.2 is the oracle of number token losses")
    functions = {
        "mse": torch.nn.functional.mse_loss,
        "mae": torch.nn.functional.l1_loss,
        "huber": torch.nn.functional.huber_loss,
    }
    width, digits = 30, {str(i): 2 * i + 1 for i in range(10)}
    tokenizer = TokensForNTLoss(digits | {f"w{i}": i for i in range(width) if i not in digits.values()})
    if kind in functions:
        theirs = ntloss.NTLossDotProduct(tokenizer, width, reweigh=reweigh, loss_function=functions[kind])
    else:
        theirs = ntloss.NTLoss(tokenizer, width, reweigh=reweigh)
    generator = torch.Generator().manual_seed(11)
    for _ in range(3):
        logits = (3 * torch.randn(4, 9, width, generator=generator)).requires_grad_()
        labels = torch.randint(0, width, (4, 9), generator=generator)
        labels[0, :2] = -100
        ours = number_loss(
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

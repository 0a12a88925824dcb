"""Whole numbers in rows of labels: how they are read, what they weigh, and how far off they are."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cases import TokensForNTLoss, assert_published_values, published_case
from layers import drawn
from numerate.batch import Batch, Tokens
from numerate.kernels.fused_number_loss import cross_entropy_and_token_logits
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses.number_level import NumberLevel, label_number_spans, number_losses
from numerate.losses.number_spans import NumberNotation, find_number_spans, number_table, place_value_weights
from numerate.vocabulary import DIGIT, NUMBER, POINT, TEXT, Vocabulary

TEXTS = "0123456789.-,a"
TABLE = NumberTokenTable.from_values({i: float(i) for i in range(10)}, len(TEXTS))
WRITTEN = NumberNotation(minus_ids=(11,), point_ids=(10,), comma_ids=(12,))


def labels_of(text: str) -> torch.Tensor:
    return torch.tensor([[TEXTS.index(character) for character in text]])


def numbers_in(labels: torch.Tensor, table: NumberTokenTable, notation: NumberNotation) -> list[float]:
    index = table.number_indices(labels)
    found = find_number_spans(labels, index, table, notation)
    worth = torch.where(found.number_mask, table.values[index.clamp(min=0)], 0) * 10.0 ** found.exponents.double()
    signed = torch.where(found.negative_mask, -1.0, 1.0) * found.sum_per_number(worth)
    return [round(value, 9) for value in signed[found.start_mask].tolist()]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("12.5", [12.5]),
        ("-12a3", [-12, 3]),
        ("a-7", [-7]),
        ("5-3", [5, 3]),
        ("007", [7]),
        ("1,000", [1000]),
        ("1,234,567.8", [1234567.8]),
        ("1,0000", [1, 0]),
        ("1234,567", [1234, 567]),
        ("3,14", [3, 14]),
        ("1.2.3", [1.2, 3]),
        ("12,345.67a-0.05", [12345.67, -0.05]),
        ("a1.", [1]),
        ("..5", [5]),
        ("a", []),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, numbers: list[float]) -> None:
    assert numbers_in(labels_of(text), TABLE, WRITTEN) == numbers


def test_rows_do_not_run_into_each_other() -> None:
    labels = torch.cat([labels_of("a12"), labels_of("3.4")])
    assert numbers_in(labels, TABLE, WRITTEN) == [12, 3.4]


def test_backward_numbers_are_read_from_their_end() -> None:
    assert numbers_in(labels_of("21a500"), TABLE, NumberNotation(digit_order="reversed")) == [12, 5]


def test_tokens_of_several_digits_are_joined_and_numbers_of_one_token_stand_alone() -> None:
    table = NumberTokenTable.from_values({0: 12.0, 1: 7.0, 2: 0.0, 3: -5.0}, 6, digit_counts={0: 2, 1: 1, 2: 3})
    assert numbers_in(torch.tensor([[0, 1, 5, 0, 2]]), table, NumberNotation()) == [127, 12000]
    assert numbers_in(torch.tensor([[1, 3, 1]]), table, NumberNotation()) == [7, -5, 7]
    assert numbers_in(torch.tensor([[0, 4, 0]]), table, NumberNotation(point_ids=(4,))) == [12.12]


def test_tokens_that_say_their_power_of_ten_go_on_while_it_falls() -> None:
    values, powers = {0: 1.0, 1: 2.0, 2: 5.0}, {0: 1, 1: 0, 2: -1}
    table = NumberTokenTable.from_values(values, 3, significance=powers)
    assert numbers_in(torch.tensor([[0, 1, 2, 0, 2]]), table, NumberNotation()) == [12.5, 10.5]


def test_a_token_with_a_space_starts_a_number() -> None:
    table = NumberTokenTable.from_values({0: 12.0, 1: 7.0, 2: 500.0}, 6, starting_ids={1})  # "12", " 7", "500"
    notation = NumberNotation(point_ids=(4,), comma_ids=(5,))
    assert numbers_in(torch.tensor([[0, 1, 1, 0]]), table, notation) == [12, 7, 712]
    assert numbers_in(torch.tensor([[0, 4, 1, 4, 0]]), table, notation) == [12, 7.12]
    assert numbers_in(torch.tensor([[0, 1, 5, 2]]), table, notation) == [12, 7500]


@pytest.mark.parametrize("space", [" ", "\u2581", "\u0120"])
def test_tokens_of_a_text_are_read_as_its_numbers(space: str) -> None:
    tokens = ["12", "3", f"{space}34", f"{space}5", f"{space}007", "00", ".", f"{space}.", "a", f"{space}a"]
    texts = [token.replace(space, " ") for token in tokens]
    kinds = np.array([NUMBER, DIGIT, NUMBER, DIGIT, NUMBER, NUMBER, POINT, POINT, TEXT, TEXT], dtype=np.int8)
    values = np.array([12, 3, 34, 5, 7, 0, *[np.nan] * 4])
    vocabulary = Vocabulary(tuple(tokens), kinds, values, np.full(len(tokens), -1000))
    table, notation = number_table(vocabulary, "numbers"), NumberNotation.from_vocabulary(vocabulary)
    for ids in torch.randint(len(tokens), (200, 8), generator=torch.Generator().manual_seed(0)).tolist():
        text = "".join(texts[i] for i in ids)
        expected = [float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", text)]
        assert numbers_in(torch.tensor([ids]), table, notation) == expected, text


def test_every_word_of_a_vocabulary_of_words_is_a_number_of_its_own() -> None:
    vocabulary = Vocabulary.from_words(["7", "12", "34"])
    labels = torch.tensor([[5, 6, 4]])
    assert numbers_in(labels, number_table(vocabulary), NumberNotation()) == [12, 34, 7]
    assert numbers_in(labels, number_table(vocabulary, joins_all=True), NumberNotation()) == [12347]
    weights = place_value_weights(labels, number_table(vocabulary), NumberNotation(), 10.0)
    torch.testing.assert_close(weights, torch.ones(1, 3))
    tokens = Tokens(labels, torch.tensor([3]), torch.arange(1))
    batch = Batch(tokens, labels, labels, labels, {"tokens": 3, "examples": 1}, 3)
    assert [NumberLevel(published=form).build(vocabulary).counts(batch)["number"] for form in ("no", "yes")] == [3, 1]


def test_a_digit_weighs_what_its_place_is_worth_and_one_on_average() -> None:
    found = place_value_weights(labels_of("503a7"), TABLE, WRITTEN, 2.0)
    torch.testing.assert_close(found, torch.tensor([[12 / 7, 6 / 7, 3 / 7, 0.0, 1.0]]))
    backward = place_value_weights(labels_of("503a7"), TABLE, NumberNotation(digit_order="reversed"), 2.0)
    torch.testing.assert_close(backward, torch.tensor([[3 / 7, 6 / 7, 12 / 7, 0.0, 1.0]]))
    torch.testing.assert_close(
        place_value_weights(labels_of("503a7"), TABLE, WRITTEN, 1.0), torch.tensor([[1.0, 1.0, 1.0, 0.0, 1.0]])
    )
    decimal = place_value_weights(labels_of("1.2"), TABLE, WRITTEN, 10.0)
    torch.testing.assert_close(decimal, torch.tensor([[20 / 11, 0.0, 2 / 11]]))


# How far off ----------------------------------------------------------------------------------------------------------


def number_level_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    table: NumberTokenTable,
    notation: NumberNotation,
    reduction: str = "mean",
    **settings: bool,
) -> torch.Tensor:
    """The loss at the first digit of each number, or their sum or mean."""
    ids = torch.cat([table.ids, torch.tensor(notation.minus_ids, dtype=torch.int64)])
    losses = number_losses(
        *cross_entropy_and_token_logits(logits, labels, ids)[1:], labels, table, notation, **settings
    )
    published, joined = (settings.get(name, False) for name in ("published", "join_points"))
    count = label_number_spans(labels, table, notation, published, joined).start_mask.sum().clamp(min=1)
    return losses if reduction == "none" else losses.sum() / (count if reduction == "mean" else 1)


def test_whole_numbers_are_counted_and_not_their_digits() -> None:
    vocabulary = Vocabulary.with_digits(["+"])
    labels = torch.tensor([[vocabulary.token_to_id[symbol] for symbol in "12+345+6"], [-100] * 8])
    tokens = Tokens(labels.clamp(min=0), torch.tensor([8, 8]), torch.arange(2))
    batch = Batch(tokens, labels, labels, labels, {"tokens": 8, "examples": 2}, 16)
    for published in ("no", "yes", "float_level"):
        assert NumberLevel(published=published).build(vocabulary).counts(batch) == {"cross_entropy": 8, "number": 3}


def sure_of(text: str) -> torch.Tensor:
    """Logits that leave no doubt."""
    return 1000 * torch.nn.functional.one_hot(labels_of(text), len(TEXTS)).double()


@pytest.mark.parametrize(
    ("prediction", "right", "off"),
    [
        ("12", "12", 0.0),
        ("13", "12", 1 / 12),
        ("22", "12", 10 / 12),
        ("5", "0", 5.0),
        ("05", "00", 5.0),
        ("1.5", "1.2", 0.25),
        ("0.9", "0.4", 0.5),
        ("-12", "-15", 0.2),
        ("1,500", "1,000", 0.5),
    ],
)
def test_the_loss_is_the_relative_error_and_at_zero_the_error(prediction: str, right: str, off: float) -> None:
    found = number_level_loss(sure_of(prediction), labels_of(right), TABLE, WRITTEN)
    assert found.item() == pytest.approx(off, abs=1e-9)


def test_a_missing_sign_costs_twice_the_number() -> None:
    logits = sure_of("-5")
    logits[0, 0] = sure_of("5")[0, 0]  # a digit where the minus belongs
    assert number_level_loss(logits, labels_of("-5"), TABLE, WRITTEN).item() == pytest.approx(2.0)
    unwanted = sure_of("5")
    unwanted[0, 0, 11] = 2000.0
    assert number_level_loss(unwanted, labels_of("5"), TABLE, WRITTEN).item() > 1.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_thirtieth_digit_counts(dtype: torch.dtype) -> None:
    right, wrong = "7" + "3" * 29, "7" + "3" * 28 + "4"
    found = number_level_loss(sure_of(wrong).to(dtype), labels_of(right), TABLE, WRITTEN)
    assert found.item() == pytest.approx(1 / float(right), rel=1e-5, abs=0)
    assert number_level_loss(sure_of(right).to(dtype), labels_of(right), TABLE, WRITTEN).item() == 0.0


def test_a_label_of_zero_has_a_gradient() -> None:
    logits = torch.zeros(1, 1, len(TEXTS), dtype=torch.float64, requires_grad=True)
    number_level_loss(logits, labels_of("0"), TABLE, WRITTEN).backward()
    assert logits.grad is not None
    assert logits.grad[0, 0, 0] < 0 < logits.grad[0, 0, 9]
    own = torch.zeros(1, 1, len(TEXTS), dtype=torch.float64, requires_grad=True)
    number_level_loss(own, labels_of("0"), TABLE, WRITTEN, published=True).backward()
    assert own.grad is not None
    assert own.grad.abs().max() < 1e-7, "the published form has none there"


@pytest.mark.parametrize("settings", [{"reweigh": True}, {"published": True}], ids=str)
def test_it_is_differentiable_everywhere_but_where_it_is_right(settings: Any) -> None:
    def loss(z: torch.Tensor) -> torch.Tensor:
        return number_level_loss(z, labels_of("-12.5"), TABLE, WRITTEN, reduction="sum", **settings)

    assert torch.autograd.gradcheck(loss, (drawn(1, 5, len(TEXTS)).requires_grad_(),))


def test_without_a_number_it_is_an_attached_zero() -> None:
    logits = torch.zeros(1, 2, len(TEXTS), requires_grad=True)
    found = number_level_loss(logits, labels_of("aa"), TABLE, WRITTEN)
    assert not torch.autograd.grad(found, logits)[0].any()
    assert found.item() == 0.0


@pytest.mark.parametrize("name", ["number_level_int", "number_level_int_reweigh", "number_level_float"])
def test_published_it_gives_the_published_values(name: str, shared: Path) -> None:
    case = published_case(shared, "number_token_loss.json", name)
    vocabulary, options = case["vocab"], case["options"]
    table = NumberTokenTable.from_values(
        {i: float(t) for i, t in enumerate(vocabulary) if t.isdigit()}, len(vocabulary)
    )
    notation = NumberNotation(minus_ids=(vocabulary.index("-"),), point_ids=(vocabulary.index("."),))
    settings = {"published": True, "reweigh": options["reweigh"], "join_points": options.get("float_level", False)}
    assert_published_values(
        case, lambda z, y, **more: number_level_loss(z, y, table, notation, **settings, **more), 1e-5
    )


@pytest.mark.parametrize("joined", [False, True])
def test_published_it_agrees_with_ntloss(joined: bool) -> None:
    ntloss = pytest.importorskip("ntloss", reason="ntloss 0.3.2 is the oracle of the number-level loss")

    tokens = TokensForNTLoss({text: i for i, text in enumerate(TEXTS)})
    theirs = ntloss.NumberLevelLoss(tokens, len(TEXTS), float_level=joined, reweigh=False)
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        logits = torch.randn(5, 8, len(TEXTS), generator=generator, requires_grad=True)
        labels = torch.randint(0, 12, (5, 8), generator=generator)
        labels[:, 0] = torch.randint(1, 10, (5,), generator=generator)
        labels[:3] = torch.cat([labels_of(text) for text in ("999.25.3", "1.2.3..4", "7.50a1.0")])
        expected = theirs(logits, labels)
        found = number_level_loss(logits, labels, TABLE, WRITTEN, published=True, join_points=joined)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits), rtol=1e-3, atol=1e-5
        )

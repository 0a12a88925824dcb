"""Promises of number embeddings and number heads: the published vectors and scales, by hand and from cases."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from numerate.errors import UserError
from numerate.number_tables import digit_and_exponent, log_scale, regression_transformer_vectors
from numerate.text.models.number_inputs import (
    FoNEEmbedding,
    NumberHead,
    RegressionTransformerEmbedding,
    XValScaling,
    scale_numbers,
)
from numerate.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Any]:
    found = json.loads((shared / "cases" / "number_token_loss.json").read_text())["cases"]
    return {case["name"]: case for case in found}


def vector(symbol: str, width: int = 8, **form: Any) -> list[float]:
    digit, order = digit_and_exponent(symbol) or (0, 0)
    found: list[float] = regression_transformer_vectors(np.array([digit]), np.array([order]), width, **form)[0].tolist()
    return found


def test_the_float_vectors_are_the_published_ones_but_exact_where_these_underflow(cases: dict[str, Any]) -> None:
    for symbol, scales in cases["rt_float_encoding"]["expected"].items():
        for scale, expected in scales.items():
            found = vector(symbol, scale=scale)
            if symbol == "_1_-12_" and scale == "log":
                assert found == pytest.approx(
                    [sign * 10 * 1e-12 / k / math.log(3e9) for k in (1, 3, 5, 7) for sign in (1, -1)]
                )
            else:
                assert found == pytest.approx(expected, rel=2e-6)


def test_the_integer_vectors_are_the_published_ones(cases: dict[str, Any]) -> None:
    for symbol, expected in cases["rt_int_encoding"]["expected"].items():
        assert vector(symbol, form="integer") == pytest.approx(expected, abs=1e-6)


def test_an_odd_width_is_cut() -> None:
    assert vector("_5_2_", 7) == vector("_5_2_", 8)[:7]
    assert len(vector("_5_2_", 7, form="integer")) == 7


def test_texts_that_are_no_such_token_have_no_digit() -> None:
    assert digit_and_exponent("_5_-2_") == (5, -2)
    assert [digit_and_exponent(text) for text in ("5", "_5_", "__2_", "_55_2_", "_5_2_ ", "_5_2.0_")] == [None] * 6


def test_a_fixed_vector_is_added_to_number_tokens_and_never_trained() -> None:
    vocabulary = Vocabulary.with_digits(["a", "_9_9_", "_0_3_", "_8_-1_"])
    part = RegressionTransformerEmbedding(scale="linear").build(vocabulary, 4)
    ids = torch.tensor([[vocabulary.token_to_id[text] for text in ("a", "_9_9_", "5", "_0_3_", "_8_-1_")]])
    added = part(torch.ones(1, 5, 4), ids, None) - 1
    assert added[0, 1].tolist() == pytest.approx([30, -30, 10, -10])
    assert not added[0, [0, 2, 3]].any()
    assert list(part.parameters()) == []
    assert list(part.state_dict()) == []
    with pytest.raises(UserError, match=r"^model\.number_embedding: the tokenizer has no tokens such as _5_2_"):
        RegressionTransformerEmbedding().build(Vocabulary.with_digits(["a"]), 4)


@pytest.mark.parametrize(
    ("scale", "of_54", "of_minus_3"),
    [("log10", 1.83638, -0.63526), ("linear", 55.0, -2.0), ("ln", math.log(55), -math.log(4)), ("none", 54.0, -3.0)],
)
def test_number_tokens_are_multiplied_by_their_scaled_number(scale: Any, of_54: float, of_minus_3: float) -> None:
    vocabulary = Vocabulary.with_digits(["a", "[NUM]"])
    number, other = vocabulary.token_to_id["[NUM]"], vocabulary.token_to_id["a"]
    part = XValScaling(scale).build(vocabulary, 3)
    values = torch.tensor([[54.0, -3.0, 77.0, 1.0]])  # the third stands beside no number
    found = part(torch.full((1, 4, 3), 2.0), torch.tensor([[number, number, other, other]]), values)
    assert (found[0, :, 0] / 2).tolist() == pytest.approx([of_54, of_minus_3, 1, 1], abs=1e-4)


def test_scales_reach_ten_at_the_published_largest_number() -> None:
    assert float(scale_numbers(torch.tensor(3e9), "log10")) == pytest.approx(10)
    assert log_scale(np.array([54.0, -3e9])).round(5).tolist() == [1.83638, -10.0]


def test_a_number_without_a_value_is_refused_and_texts_without_numbers_need_none() -> None:
    vocabulary = Vocabulary.with_digits(["a", "[NUM]"])
    for spec in (XValScaling(), FoNEEmbedding()):
        part, vectors = spec.build(vocabulary, 4), torch.randn(1, 2, 4)
        with pytest.raises(UserError, match=r"\[NUM\] has no value here"):
            part(vectors, torch.tensor([[vocabulary.token_to_id["[NUM]"], 5]]), None)
        assert torch.equal(part(vectors, torch.tensor([[5, 6]]), None), vectors)
        with pytest.raises(UserError, match=r"the tokenizer has no \[NUM\]"):
            spec.build(Vocabulary.with_digits(["a"]), 4)


def test_fourier_features_tell_every_digit() -> None:
    vocabulary = Vocabulary.with_digits(["[NUM]"])
    part = FoNEEmbedding(integer_digits=3, fraction_digits=2).build(vocabulary, 6)
    features = part.fourier_features(torch.tensor([[417.25]], dtype=torch.float64))[0, 0].tolist()
    expected = [
        wave(2 * math.pi * 417.25 / period) for period in (0.1, 1, 10, 100, 1000) for wave in (math.cos, math.sin)
    ]
    assert features == pytest.approx(expected, abs=1e-9)
    numbers = torch.arange(-999, 1000, dtype=torch.float64)[None]
    found = FoNEEmbedding(integer_digits=4, fraction_digits=0).build(vocabulary, 6).fourier_features(numbers)[0]
    assert float(torch.cdist(found, found).fill_diagonal_(9).min()) > 1e-3, "no two numbers look alike"


@pytest.mark.parametrize("layers", [1, 2])
def test_a_head_means_what_it_says_on_its_scale(layers: int) -> None:
    plain, logarithm = (
        NumberHead(num_layers=layers, intermediate_size=5, scale=says).build(4) for says in ("number", "ln")
    )
    output = plain(torch.randn(2, 3, 4))
    assert output.shape == (2, 3)
    assert torch.equal(plain.unscale(output), output)
    numbers = torch.tensor([-1000.0, -0.5, 0.0, 3.0, 1e6])
    torch.testing.assert_close(logarithm.unscale(scale_numbers(numbers, "ln")), numbers, rtol=1e-5, atol=1e-6)
    assert plain.flops(10) == 2 * 10 * (4 if layers == 1 else 25)

"""Tensors of a file are all used, or the file is refused by the name of the tensor."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.strict_weights import StrictWeights, match_state_dict
from numerate.published.dual_attention_models import current
from numerate.vocabulary import Vocabulary

ONE, OTHER = torch.zeros(2), torch.ones(2)


def test_a_tensor_that_nothing_takes_is_named() -> None:
    file = StrictWeights({f"part.{number}": ONE for number in range(5)}, "ckpt.pt")
    assert torch.equal(file.take(["part.4"], "whole"), ONE)
    with pytest.raises(UserError, match=r"^ckpt\.pt: the model does not have part\.0, part\.1, part\.2 and 1 more; "):
        file.check_all_used()


def test_a_tensor_that_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"^ckpt\.pt: has no theirs, which ours is read from"):
        StrictWeights({"a": ONE}, "ckpt.pt").take(["theirs", "other"], "ours")


def test_two_names_of_one_tensor_must_say_the_same() -> None:
    alike = StrictWeights({"a": ONE, "b": ONE.clone()}, "ckpt.pt")
    assert torch.equal(alike.take(["a", "b"], "ours"), ONE)
    alike.check_all_used()
    differing = StrictWeights({"a": ONE, "b": OTHER}, "ckpt.pt")
    with pytest.raises(UserError, match=r"b differs from a, .* one tensor for both; is it of another model"):
        differing.take(["a", "b"], "ours")
    with pytest.raises(UserError, match=r"module\.a differs from a"):
        StrictWeights(
            {"a": ONE, "module.a": OTHER}, "ckpt.pt", normalize_name=lambda name: name.removeprefix("module.")
        )


def test_weights_that_are_not_finite_are_alike_too() -> None:
    broken = torch.tensor([float("nan"), float("inf")])
    file = StrictWeights({"a": broken, "b": broken.clone()}, "ckpt.pt")
    assert file.take(["a", "b"], "ours") is broken


def model_of(spec: Decoder) -> nn.Module:
    return spec.build(Vocabulary.with_digits(["+"]), 0)


HEADS = {"num_self_heads": 2, "num_relational_heads": 2}
TIED = current(hidden_size=16, num_layers=2, context_length=8, **HEADS)
CASES: dict[str, tuple[Decoder, str]] = {
    "an untied head": (
        replace(TIED, tie_word_embeddings=False),
        r"head\.weight differs from embedding\.weight, and the model has one tensor for both",
    ),
    "own symbols": (
        current(hidden_size=16, num_layers=2, context_length=8, **HEADS, symbol_sharing="own"),
        r"blocks\.1\.mixer\.symbols\.\w+(\.\w+)? differs from backbone\.blocks\.0",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_of_another_model_are_not_loaded_in_part(name: str) -> None:
    spec, message = CASES[name]
    state = model_of(spec).state_dict()
    assert all(torch.equal(state[own], tensor) for own, tensor in match_state_dict(model_of(spec), state, "x").items())
    with pytest.raises(UserError, match=message):
        match_state_dict(model_of(TIED), state, "x")


@pytest.mark.parametrize("part", ["mixer", "feed_forward"])
def test_biases_that_a_recipe_leaves_out_are_named(part: str) -> None:
    recipes: list[Any] = [
        Decoder(hidden_size=16, mixer=Attention(num_heads=2, bias=bias), feed_forward=FeedForward(bias=bias))
        for bias in (False, True)
    ]
    recipes[1] = replace(recipes[0], **{part: getattr(recipes[1], part)})
    with pytest.raises(UserError, match=rf"does not have .*{part}\.\w+_proj\.bias"):
        match_state_dict(model_of(recipes[0]), model_of(recipes[1]).state_dict(), "x")


def test_of_a_tensor_with_several_names_one_is_enough() -> None:
    state: dict[str, Any] = dict(model_of(TIED).state_dict())
    head: Tensor = state.pop("embedding.weight")
    found = match_state_dict(model_of(TIED), state, "x")
    assert torch.equal(found["embedding.weight"], head)
    with pytest.raises(UserError, match=r"^x: embedding\.weight has the shape \(1, 2\), the model's is"):
        match_state_dict(model_of(TIED), {**state, "head.weight": torch.zeros(1, 2)}, "x")

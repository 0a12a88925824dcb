"""Models whose states are equal at all positions by a symmetry, for any weights."""

from collections.abc import Mapping
from typing import Any

ATTENTION_ONLY_ENCODINGS = ("Rotary", "ALiBi", "T5Bias", "FIRE", "CoPE")
"""Positional encodings that change attention weights but not values."""


def has_equal_states(recipe: Mapping[str, Any]) -> bool:
    """Whether the model of a recipe has the same state at every position of every row, by a symmetry.

    This holds where a row is one repeated symbol, without a number, a prefix or a helper, and tokens are mixed by
    attention alone, without positions or with such that only change attention weights (rotary, biases): the mean of
    equal values is that value in every layer. Only counting is known to have such rows; all else counts as asymmetric.
    """
    task, model, tokenizer = (recipe.get(name) for name in ("task", "model", "tokenizer"))
    if not isinstance(task, Mapping) or not isinstance(model, Mapping):
        return False
    required_settings = {"kind": "Counting", "symbol": "same", "start_number": "none", "prefix": "", "helper": "none"}
    if any(task.get(name) != value for name, value in required_settings.items()):
        return False
    if isinstance(tokenizer, Mapping) and tokenizer.get("add_bos_token"):
        return False
    backbone = model.get("backbone")
    has_noise = isinstance(backbone, Mapping) and backbone.get("initial_state") == "noise"
    positions = model.get("positions") or ()
    attention_only = all(isinstance(one, Mapping) and one.get("kind") in ATTENTION_ONLY_ENCODINGS for one in positions)
    return (
        model.get("kind") == "Decoder" and not has_noise and attention_only and _is_attention_only(model.get("mixer"))
    )


def _is_attention_only(mixer: Any) -> bool:
    if not isinstance(mixer, Mapping):
        return False
    inner = mixer.get("mixers")
    if mixer.get("kind") == "Alternating" and isinstance(inner, list | tuple):
        return bool(inner) and all(map(_is_attention_only, inner))
    return mixer.get("kind") == "Attention"

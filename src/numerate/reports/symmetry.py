"""Models whose states are the same everywhere, by a symmetry of the recipe and whatever their weights."""

from collections.abc import Mapping
from typing import Any

RELATIVE = ("Rotary", "ALiBi", "T5Bias", "FIRE", "CoPE")
"""Positions that change which places attention looks at, and nothing of what it finds there."""


def same_everywhere(recipe: Mapping[str, Any]) -> bool:
    """Whether a recipe's model has the same state at every place of every row, by a symmetry, whatever its weights.

    So it is where a row is one symbol repeated, without a number, a beginning or a helper, and the model mixes tokens
    by attention alone, with no positions or such that only weigh what is attended to (rotary, biases): whatever the
    weights, a mean of equal values is that value, and so from layer to layer. Only counting is known to have such rows,
    and what is not known is taken to break the symmetry.
    """
    task, model, tokenizer = (recipe.get(name) for name in ("task", "model", "tokenizer"))
    if not isinstance(task, Mapping) or not isinstance(model, Mapping):
        return False
    alike = {"kind": "Counting", "symbol": "same", "number": "none", "prefix": "", "helper": "none"}
    if any(task.get(name) != value for name, value in alike.items()):
        return False
    if isinstance(tokenizer, Mapping) and tokenizer.get("add_bos_token"):
        return False
    trunk = model.get("backbone")
    noisy = isinstance(trunk, Mapping) and trunk.get("initial_state") == "noise"
    positions = model.get("positions") or ()
    relative = all(isinstance(one, Mapping) and one.get("kind") in RELATIVE for one in positions)
    return model.get("kind") == "Decoder" and not noisy and relative and _by_attention(model.get("mixer"))


def _by_attention(mixer: Any) -> bool:
    if not isinstance(mixer, Mapping):
        return False
    inner = mixer.get("mixers")
    if mixer.get("kind") == "Alternating" and isinstance(inner, list | tuple):
        return bool(inner) and all(map(_by_attention, inner))
    return mixer.get("kind") == "Attention"

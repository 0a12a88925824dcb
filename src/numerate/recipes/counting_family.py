"""Inductive counting as published: each of its 67 tasks with each of 12 models.

Chang and Bisk (2024), https://arxiv.org/abs/2405.20131. Names and their one line; the recipes themselves are made in
`counting_paper`, which needs torch, on demand.
"""

from functools import cache
from typing import Any

MODELS = {
    "nope": "transformer without positions",
    "sine": "transformer, shifted sinusoidal positions (SinePE)",
    "ape": "transformer, shifted learned positions (APE)",
    "ape_randomised": "transformer, learned random positions",
    "rope": "transformer, rotary positions (RoPE)",
    "spe": "transformer, shifted scalar position (SPE)",
    "spe_zooming": "transformer, fractional position (not causal)",
    "rnn": "tanh RNN",
    "lstm": "LSTM",
    "s4": "S4",
    "mamba": "Mamba",
    "rwkv": "RWKV-6",
}
"""The published models, in the order of the paper, each with a description."""


@cache
def names() -> dict[str, str]:
    """Every name with its one line, task by task.

    >>> names()["counting_samesymbol_mod10bos_rope"]
    'counting_samesymbol_mod10bos, as published: transformer, rotary positions (RoPE).'
    """
    return {name: f"{task}, as published: {MODELS[model]}." for name, (task, model) in _parts().items()}


def make(name: str) -> Any:
    """The recipe of a name."""
    from numerate.recipes.counting_paper import published

    return published(name, *_parts()[name])


@cache
def _parts() -> dict[str, tuple[str, str]]:
    """Each name with its task and its model. Underscores at the end of a task's name are not doubled."""
    from numerate.published.counting_names import published_tasks

    tasks = [task for task in published_tasks() if task != "debug"]
    return {f"{task.rstrip('_')}_{model}": (task, model) for task in tasks for model in MODELS}

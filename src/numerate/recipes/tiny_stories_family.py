"""Tiny Stories as published: 57 runs of 49 settings, and for each of dual attention the Transformer equal to it.

Altabaa and Lafferty (2024), arXiv v1 of https://arxiv.org/abs/2405.16727. Names and their one line; the recipes are
made in `tiny_stories_paper`, which needs torch, on demand.
"""

from functools import cache
from typing import Any

from numerate.published.tiny_names import RUNS, PublishedRun, matching_transformer

CONTROLS = {
    "iso_parameters": "equal parameters",
    "iso_operations": "equal operations of training",
    "iso_time": "equal hours as published",
}
"""What a Transformer is made equal in, by the end of its name. (That of equal width and depth is a published run.)"""


@cache
def names() -> dict[str, str]:
    """Every name with its one line: the published settings, then their controls.

    >>> names()["tiny_stories_d64_l4_4+4_symbolic"]
    'Published: dual attention (symbolic), width 64, 4 layers, 4+4 heads; 1.7294 nats.'
    """
    found = {f"tiny_stories_{run.name}": f"Published: {run.summary()}." for run in RUNS}
    for name, (run, control) in _controls().items():
        found[name] = f"Control: the Transformer of {CONTROLS[control]} beside {run.name}."
    return found


def make(name: str) -> Any:
    """The recipe of a name."""
    from numerate.recipes.tiny_stories_paper import matched_recipe, published_run

    if name in _controls():
        return matched_recipe(name, *_controls()[name])
    return published_run(next(run for run in RUNS if f"tiny_stories_{run.name}" == name))


@cache
def _controls() -> dict[str, tuple[PublishedRun, str]]:
    """Each control with the run that it stands beside."""
    dual = [run for run in RUNS if run.num_relational_heads]
    return {
        f"tiny_stories_{run.name}_{control}": (run, control)
        for run in dual
        for control in CONTROLS
        if control != "iso_time" or matching_transformer(run) is not None
    }

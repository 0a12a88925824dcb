"""A laboratory for numbers and algorithms in language models.

>>> import numerate
>>> recipe = numerate.recipe("addition_abacus", "training.steps=500")
>>> run = numerate.train(recipe)
>>> run.evaluate("1:12x1:12")
>>> run.ask("321+654=")
>>> numerate.load("latest").report()
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from numerate.api import Recipe, Run, Study, compare, load, recipe, run_study, train
    from numerate.positions.abacus_embedding import AbacusEmbedding

__all__ = [
    "AbacusEmbedding",
    "Recipe",
    "Run",
    "Study",
    "__version__",
    "compare",
    "load",
    "recipe",
    "run_study",
    "train",
]


def __getattr__(name: str) -> Any:
    # Nothing heavy is imported before it is asked for: `import numerate` is quick, and imports no torch.
    if name in __all__:
        from importlib import import_module

        home = "numerate.positions.abacus_embedding" if name == "AbacusEmbedding" else "numerate.api"
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'numerate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

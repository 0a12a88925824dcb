"""Train and evaluate language models on numbers and algorithms.

For example:

    import numerate

    recipe = numerate.recipe("addition_abacus", "training.steps=500")
    run = numerate.train(recipe)
    run.evaluate("1:12x1:12")
    run.ask("321+654=")
    numerate.load("latest").report()
"""

from typing import TYPE_CHECKING, Any

from numerate.integrations.hf_registration import register_exported_models

__version__ = "0.3.0"

if TYPE_CHECKING:
    from numerate.api import Recipe, Run, Study, compare, load, recipe, run_study, search, train
    from numerate.integrations.hf_number_tokens import number_tokens
    from numerate.integrations.number_token_loss import NumberTokenLoss
    from numerate.losses.wrapped import wrap_loss
    from numerate.models.wrapped import wrap_model
    from numerate.positions.abacus_embedding import AbacusEmbedding
    from numerate.published.dual_attention_weights import from_published, to_published
    from numerate.results.rows import cells
    from numerate.results.runs import results_of
    from numerate.results.summary import summary
    from numerate.text.data.wrapped import wrap_data

__all__ = [
    "AbacusEmbedding",
    "NumberTokenLoss",
    "Recipe",
    "Run",
    "Study",
    "__version__",
    "cells",
    "compare",
    "from_published",
    "load",
    "number_tokens",
    "recipe",
    "results_of",
    "run_study",
    "search",
    "summary",
    "to_published",
    "train",
    "wrap_data",
    "wrap_loss",
    "wrap_model",
]

_LAZY_MODULES = {
    "AbacusEmbedding": "numerate.positions.abacus_embedding",
    "NumberTokenLoss": "numerate.integrations.number_token_loss",
    "from_published": "numerate.published.dual_attention_weights",
    "cells": "numerate.results.rows",
    "results_of": "numerate.results.runs",
    "summary": "numerate.results.summary",
    "number_tokens": "numerate.integrations.hf_number_tokens",
    "to_published": "numerate.published.dual_attention_weights",
    "wrap_data": "numerate.text.data.wrapped",
    "wrap_loss": "numerate.losses.wrapped",
    "wrap_model": "numerate.models.wrapped",
}


register_exported_models()


def __getattr__(name: str) -> Any:
    # Heavy modules are imported lazily: `import numerate` is fast, and does not import torch.
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(_LAZY_MODULES.get(name, "numerate.api")), name)
    raise AttributeError(f"module 'numerate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

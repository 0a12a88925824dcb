"""Tiny Stories as published: 57 runs of 49 settings, and for each of dual attention the Transformer equal to it.

Altabaa and Lafferty (2025), https://arxiv.org/abs/2405.16727 (Tiny Stories: arXiv v1 of 2024). And FineWeb-Edu: 10
billion tokens with models of 343 million to 1.37 billion parameters; and Tiny Stories at a laptop's size.
"""

from functools import cache

from numerate.published.tiny_names import RUNS, matching_transformer
from numerate.recipes.rows import Row, recipe_functions

# Tiny Stories as published --------------------------------------------------------------------------------------------

PAPER = "dual_attention_paper"

CONTROLS = {
    "iso_parameters": "equal parameters",
    "iso_operations": "equal operations of training",
    "iso_time": "equal hours as published",
}
"""What a Transformer is made equal in, by the end of its name. (That of equal width and depth is a published run.)"""


@cache
def family() -> dict[str, Row]:
    """The published settings by name, then their controls.

    >>> family()["tiny_stories_d64_l4_4+4_symbolic"].summary
    'Published: dual attention (symbolic), width 64, 4 layers, 4+4 heads; 1.7294 nats.'
    """
    rows = {
        f"tiny_stories_{run.name}": Row(
            f"Published: {run.summary()}.", "dual_attention_paper.tiny_stories", arguments=(run,)
        )
        for run in RUNS
    }
    for run in RUNS:
        for control, equal in CONTROLS.items():
            if run.num_relational_heads and (control != "iso_time" or matching_transformer(run) is not None):
                rows[f"tiny_stories_{run.name}_{control}"] = Row(
                    f"Control: the Transformer of {equal} beside {run.name}.",
                    f"{PAPER}.matched_recipe",
                    arguments=(run, control),
                    is_slow_to_build=True,
                )
    return rows


# FineWeb-Edu, and Tiny Stories at a laptop's size ---------------------------------------------------------------------


def _transformer(hidden_size: int, perplexity: float) -> Row:
    heads = hidden_size // 64
    return Row(
        f"Transformer, width {hidden_size:,}, {heads} heads; published perplexity {perplexity:.2f}.",
        f"{PAPER}.fineweb_edu",
        f"model.hidden_size={hidden_size} model.mixer=Attention({heads}) model.feed_forward.bias=false",
    )


def _dual(hidden_size: int, keys: str, perplexity: float, *settings: str, notes: str = "") -> Row:
    heads = hidden_size // 128
    sizes = f"model.mixer.num_self_heads={heads} model.mixer.num_relational_heads={heads}"
    return Row(
        f"Dual attention, width {hidden_size:,}, {heads}+{heads} heads, {keys}; published perplexity {perplexity:.2f}.",
        f"{PAPER}.fineweb_edu",
        f"model.hidden_size={hidden_size} {sizes} {' '.join(settings)}",
        notes,
    )


def _stories(summary: str, settings: str = "") -> Row:
    """A step of dual attention takes 1.7 times as long as one of the Transformer, on one core: so many more steps are
    equal time."""
    return Row(f"{summary}.", f"{PAPER}.laptop_stories", settings)


MORE_SYMBOLS = "model.mixer.symbols.num_symbols=2048 model.mixer.symbols.num_heads=16"
KEYS, RELATIONS = "model.mixer.num_key_value_heads={}", "model.mixer.num_relations={}"

ROWS = {
    "fineweb_edu_transformer_353m": _transformer(1024, 16.94),
    "fineweb_edu_dual_343m": _dual(1024, "4 of keys and values, 64 relations", 16.09),
    "fineweb_edu_dual_343m_r32": _dual(1024, "4 of keys and values, 32 relations", 16.14, RELATIONS.format(32)),
    "fineweb_edu_dual_343m_r8": _dual(1024, "4 of keys and values, 8 relations", 16.26, RELATIONS.format(8)),
    "fineweb_edu_dual_368m": _dual(
        1024,
        "each with its own keys and values",
        15.97,
        KEYS.format(8),
        RELATIONS.format(32),
        notes="The paper does not give its number of relations; 32 here.",
    ),
    "fineweb_edu_transformer_757m": _transformer(1536, 14.65),
    "fineweb_edu_dual_734m": _dual(1536, "6 of keys and values, 64 relations", 14.31, KEYS.format(6)),
    "fineweb_edu_transformer_1_31b": _transformer(2048, 13.63),
    "fineweb_edu_dual_1_27b": _dual(2048, "8 of keys and values, 64 relations", 13.44, KEYS.format(8), MORE_SYMBOLS),
    "fineweb_edu_dual_1_37b": _dual(
        2048, "each with its own keys and values", 13.43, KEYS.format("null"), MORE_SYMBOLS
    ),
    "tiny_stories_laptop_dual": _stories(
        "Dual attention, 4 + 4 heads with symbolic attention: 242,880 parameters beside the vocabulary's"
    ),
    "tiny_stories_laptop_width": _stories(
        "A Transformer of the same width and depth: 197,248 parameters beside the vocabulary's",
        "model.mixer=Attention(8)",
    ),
    "tiny_stories_laptop_parameters": _stories(
        "A Transformer with one layer more: 246,528 parameters beside the vocabulary's, 1.5 % more than dual attention",
        "model.mixer=Attention(8) model.backbone.num_layers=5",
    ),
    "tiny_stories_laptop_time": _stories(
        "A Transformer of the same width and depth for as long as dual attention takes: more steps",
        "model.mixer=Attention(8) training.steps=2050",
    ),
}
"""The recipes by name, beside the published ones on Tiny Stories. The perplexities on FineWeb-Edu are of one run each;
parameters are those that learn: the symbol library is frozen."""

__getattr__ = recipe_functions(__name__, ROWS)

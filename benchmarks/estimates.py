"""What every recipe would take on a GPU: memory of a step, operations, hours. No GPU is used, and nothing is trained.

    python benchmarks/estimates.py                          # all of them; prints the table of docs/gpu.md
    python benchmarks/estimates.py addition_abacus gsm8k_t5 # these

`numerate train RECIPE --dry-run device=h100` says the same of one recipe with its own data. Here recipes whose data
must be fetched have a stand-in of the same shape: rows of text as long as the context, and questions of datasets padded
to `PADDED_LENGTHS`. Of the published counting tasks there is one, with each model. Equal rows are one.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from numerate import catalogue
from numerate.api import recipe as named_recipe
from numerate.batch import Batch
from numerate.experiments.device_estimate import KERNEL_SECONDS, RecipeSizes
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.models.t5 import T5
from numerate.text.tokenizers.subwords import Subwords
from numerate.tokenizers.tokenizer import TokenizedExamples
from numerate.training.budget import format_flops
from numerate.training.peak_flops import GPUS, resolve_matmul_precision
from numerate.training.recipe import Recipe
from numerate.vocabulary import EOS, TEXT, Vocabulary

UTILIZATION = 0.4
MEMORIES = (24, 80, 141)
DEVICES = ("RTX 4090", "A100", "H100")

PADDED_LENGTHS = {
    "mathematics": (90, 14),
    "arithmetic": (30, 8),
    "rjokes": (145, 4),
    "multirc": (512, 8),
    "gsm8k": (130, 220),
    "number": (60, 10),
}
"""Tokens of question and answer that a batch of a dataset is padded to, by the first word of a recipe's name."""

VOCABULARY_SIZES = {"fineweb": 50_304, "tiny": 32_000, "number": 600}
"""By the first word of a recipe's name; others have T5's."""
T5_VOCABULARY_SIZE = 32_104

COUNTING_TASK = "counting_samesymbol_mod10bos_"

HEADER = """| recipe | parameters | micro-batch | memory | fits | a token | all steps | 4090 | A100 | H100 | launching |
| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"""


def recipe_names() -> list[str]:
    """Every recipe, of the published counting tasks one, and no control of a published run on Tiny Stories."""
    families = catalogue.family_names("Recipe")
    tiny_stories = [name for name in families if name.startswith("tiny_stories") and "_iso_" not in name]
    return [
        *catalogue.parts_by_kind()["Recipe"],
        *tiny_stories,
        *(name for name in families if name.startswith(COUNTING_TASK)),
    ]


@dataclass(frozen=True)
class StandIn:
    """A stream of data that is the same batch always."""

    one_batch: Batch
    batch_size: int
    window: int = 1

    def batch(self, *position: Any) -> Batch:
        return self.one_batch


def sizes_of(name: str) -> RecipeSizes:
    """The sizes of a recipe, from its own data where that is generated."""
    recipe, prefix = named_recipe(name), name.split("_")[0]
    if recipe.training.precision == "auto":
        recipe = replace(recipe, training=replace(recipe.training, precision="bf16"))
    if isinstance(recipe.task, LanguageModeling):
        words = 2048 if "laptop" in name else VOCABULARY_SIZES[prefix]
        return _with_stand_in(
            recipe, Vocabulary.with_digits([str(n) for n in range(words - 14)]), 0, recipe.task.context_length
        )
    if prefix not in PADDED_LENGTHS or name.startswith("number_loss_small"):
        return RecipeSizes.from_recipe(recipe)
    assert isinstance(recipe.tokenizer, Subwords)
    symbols = replace(recipe.tokenizer, tokenizer="characters", vocabulary="all").build_vocabulary([])
    model = replace(recipe.model, weights=None) if isinstance(recipe.model, T5) else recipe.model
    vocabulary = _enlarged(symbols, VOCABULARY_SIZES.get(prefix, T5_VOCABULARY_SIZE))
    return _with_stand_in(replace(recipe, model=model), vocabulary, *PADDED_LENGTHS[prefix])


def _enlarged(vocabulary: Vocabulary, size: int) -> Vocabulary:
    """A vocabulary with further words up to this size."""
    more = max(0, size - vocabulary.size)
    return Vocabulary(
        (*vocabulary.tokens, *(f"word{number}" for number in range(more))),
        np.append(vocabulary.token_kinds, np.full(more, TEXT, np.int8)),
        np.append(vocabulary.number_values, np.full(more, np.nan)),
        np.append(vocabulary.exponents, np.full(more, vocabulary.exponents[0])),
    )


def _with_stand_in(recipe: Recipe, vocabulary: Vocabulary, question: int, answer: int) -> RecipeSizes:
    """The sizes of a recipe whose rows all have a question and an answer of so many tokens."""
    training, time = recipe.training, question + answer + (question == 0)
    ids = np.full((training.base_batch_size, time), vocabulary.token_to_id["5"], np.int32)
    ids[:, -1] = EOS
    is_answer = np.broadcast_to(np.arange(time) >= max(1, question), ids.shape)
    values = np.ones(ids.shape, np.float32) if "[NUM]" in vocabulary.token_to_id else None
    if values is not None:
        ids[:, [0, -2]] = vocabulary.token_to_id["[NUM]"]
    rows = TokenizedExamples(ids, np.full(len(ids), time), is_answer, None, values, vocabulary)
    stream: Any = StandIn(recipe.layout.build_batch(rows, np.arange(len(ids))), len(ids))
    return RecipeSizes.from_stream(recipe, vocabulary, stream)


def row_of(name: str) -> tuple[str, ...]:
    """The columns of a recipe behind its name."""
    sizes = sizes_of(name)
    memory, budget, training = sizes.step_memory(sizes.longest), sizes.budget, sizes.recipe.training
    flops = budget.flops_per_example * budget.total_examples
    precision = resolve_matmul_precision(training.precision, training.tf32, torch.device("cuda"))
    peaks = [GPUS[device].flops(precision) for device in DEVICES]
    rows, time = memory.batch_shape
    launching = KERNEL_SECONDS * memory.num_kernels * budget.total_examples / rows
    fits = [str(size) for size in MEMORIES if memory.needed <= 1e9 * size]
    return (
        f"{sizes.num_parameters / 1e6:,.1f}M",
        f"{rows} x {time}",
        f"{memory.needed / 1e9:.1f} GB",
        ", ".join(fits) or "none",
        format_flops(budget.flops_per_example / sizes.tokens_per_example),
        format_flops(flops),
        *(_hours(flops / (UTILIZATION * peak)) for peak in peaks if peak is not None),
        _hours(launching),
    )


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return "<0.1" if hours < 0.1 else f"{hours:,.{0 if hours >= 10 else 1}f}"


def table(names: list[str]) -> Iterator[str]:
    """The lines of the table, with one row for all recipes of equal figures."""
    names_by_row: dict[tuple[str, ...], list[str]] = {}
    for number, name in enumerate(names, start=1):
        names_by_row.setdefault(row_of(name), []).append(f"`{name}`")
        print(f"\r{number}/{len(names)} {name:<60}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    yield HEADER
    yield from (f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in names_by_row.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="recipes by name; all by default")
    print("\n".join(table(parser.parse_args().recipes or recipe_names())))


if __name__ == "__main__":
    main()

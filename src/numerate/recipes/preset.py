"""`preset=debug`: a small version of any recipe, to try it."""

from collections.abc import Sequence
from dataclasses import replace

from numerate.config import override
from numerate.training.recipe import Recipe

_DEBUG = (
    "training.steps=6 training.examples=null training.tokens=null training.flops=null training.epochs=null "
    "training.compile=false training.shuffle_window=4 training.log_every=2 training.evaluate_every=3 "
    "training.checkpoint_every=3 evaluation.examples_per_cell=8 evaluation.validation_examples=16 "
    "evaluation.validation_batches=null evaluation.chunks=8"
)


def debug(recipe: Recipe, settings: Sequence[str] = ()) -> Recipe:
    """`preset=debug`: a short training of a small model, on one core unless the recipe sets `threads`, in a separate
    run.

    A decoder wider than 128 gets width 32 and at most 2 blocks and 2 loops; nothing is compiled. For language modeling
    rows are at most 64 tokens long, and `tiny_stories_2048` replaces a missing corpus if it is available. Of the
    `settings` that follow, `model.weights=null` is applied: a model without its weights is small, too.
    """
    recipe = override(recipe, [text for text in settings if text == "model.weights=null"])
    training, parts = recipe.training, recipe.training.gradient_accumulation_steps
    # Two sizes of each axis, or one if there is only one.
    spans, endless = recipe.task.training_spans().values(), recipe.task.has_ood_sizes
    grid = "x".join(f"{span.low}:{span.low + (endless or span.high > span.low)}" for span in spans) or "null"
    sizes = [f"training.batch_size={8 * parts}", f"training.threads={training.threads or 1}", f"evaluation.grid={grid}"]
    if training.micro_batch_size is not None:
        sizes.append("training.micro_batch_size=4")
    if training.initial_batch_size is not None:
        sizes.append(f"training.initial_batch_size={4 * parts}")
    small = replace(recipe, task=recipe.task.small(), model=recipe.model.small(), title=f"{recipe.title}-debug")
    return override(small, [*_DEBUG.split(), *sizes])

"""The published model at width 128: used for speed measurements, and small enough for a laptop.

After McLeish et al. (2024), https://arxiv.org/abs/2405.17399. Additions of up to 20 digits, 64 examples a step, on one
core; not rows of the paper. 20,000 steps are 1.28 million sums.
"""

from dataclasses import replace

from numerate.config import Span
from numerate.models.backbone import Backbone
from numerate.positions.position import Position
from numerate.recipes.abacus_paper import WITH_ABACUS, WITH_FIRE, decoder, looped, published, standard
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.tokenizer import Characters
from numerate.training.recipe import Recipe, Training


def addition_small_abacus() -> Recipe:
    """A small version of the published model: 2 layers of width 128, Abacus.

    One core; the speeds of the paper's code on it are in the benchmarks, and none of its runs is of this size.
    """
    return _small("addition_small_abacus", standard(2), WITH_ABACUS)


def addition_small_fire() -> Recipe:
    """A small version of the published model: 2 layers of width 128, FIRE.

    One core; the speeds of the paper's code on it are in the benchmarks, and none of its runs is of this size.
    """
    return _small("addition_small_fire", standard(2), WITH_FIRE)


def addition_small_lt_abacus() -> Recipe:
    """A small version of the published model: 1 layer of width 128 x 4 loops, Abacus.

    One core; the speeds of the paper's code on it are in the benchmarks, and none of its runs is of this size.
    """
    return _small("addition_small_lt_abacus", looped(1, 4), WITH_ABACUS)


def _small(title: str, backbone: Backbone, positions: tuple[Position, ...]) -> Recipe:
    task = Arithmetic("+", digits=Span(1, 20))
    large = published(title, task, backbone, positions, tokenizer=Characters(vocabulary="pad"), grid="1:40x1:40")
    training = Training(steps=20_000, batch_size=64, threads=1)
    return replace(large, model=decoder(backbone, positions, hidden_size=128, num_heads=4), training=training)

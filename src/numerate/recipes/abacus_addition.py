"""Addition of up to 20 digits, as published: standard, with input injection, and looped.

McLeish et al. (2024), https://arxiv.org/abs/2405.17399. `addition_ff_...` are the rows of addition_ff.sh (16 layers
once each), `addition_lt_...` those of addition_lt.sh, whose last words are layers x loops. Each was trained on one RTX
A4000 for 24 hours, which the paper counts as 8 exaFLOP, and tested on V100s.

The grid is that of the paper, 1:100x1:100; `numerate evaluate latest grid=diagonal:101:160` is what it calls 100+. The
largest offset is a setting: `model.positions.0.position_ids.max_offset=50`.
"""

from dataclasses import replace

from numerate.config import Span
from numerate.models.backbone import Backbone
from numerate.positions.bias import FIRE
from numerate.positions.position import Position
from numerate.positions.position_ids import RandomSubset
from numerate.recipes.abacus_paper import (
    NOPE,
    WITH_ABACUS,
    WITH_BOTH,
    WITH_FIRE,
    WITH_ROTARY,
    looped,
    published,
    standard,
    with_input_injection,
)
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.mixture import Mixture
from numerate.tokenizers.tokenizer import Characters
from numerate.training.recipe import Recipe


def addition_ff_nope() -> Recipe:
    """Published addition: 16 layers, no positions.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_nope", standard(16), NOPE)


def addition_ff_fire() -> Recipe:
    """Published addition: 16 layers, FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_fire", standard(16), WITH_FIRE)


def addition_ff_abacus() -> Recipe:
    """Published addition: 16 layers, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_abacus", standard(16), WITH_ABACUS)


def addition_ff_abacus_fire() -> Recipe:
    """Published addition: 16 layers, Abacus and FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_abacus_fire", standard(16), WITH_BOTH)


def addition_ff_abacus_rope() -> Recipe:
    """Published addition: 16 layers, Abacus and rotary positions.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_abacus_rope", standard(16), WITH_ROTARY)


def addition_ff_ii_nope() -> Recipe:
    """Published addition: 16 layers with input injection, no positions.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_ii_nope", with_input_injection(16), NOPE)


def addition_ff_ii_fire() -> Recipe:
    """Published addition: 16 layers with input injection, FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_ii_fire", with_input_injection(16), WITH_FIRE)


def addition_ff_ii_abacus() -> Recipe:
    """Published addition: 16 layers with input injection, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_ii_abacus", with_input_injection(16), WITH_ABACUS)


def addition_ff_ii_abacus_fire() -> Recipe:
    """Published addition: 16 layers with input injection, Abacus and FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_ii_abacus_fire", with_input_injection(16), WITH_BOTH)


def addition_ff_ii_abacus_rope() -> Recipe:
    """Published addition: 16 layers with input injection, Abacus and rotary positions.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_ff.sh.
    """
    return _addition("addition_ff_ii_abacus_rope", with_input_injection(16), WITH_ROTARY)


def addition_ff_randomised_fire() -> Recipe:
    """Published addition: 16 layers, FIRE on random positions below 128.

    One RTX A4000, 24 hours, 8 exaFLOP if trained like the others; an example of the README (max_length=128), which
    names no script and no model.
    """
    positions = (FIRE(position_ids=RandomSubset(max_length=128, subset_size=64, subset_per="batch")),)
    return replace(_addition("addition_ff_randomised_fire", standard(16), positions), paper="randomised")


def addition_lt_nope_1x16() -> Recipe:
    """Published addition: 1 layer x 16 loops, no positions.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh.
    """
    return _addition("addition_lt_nope_1x16", looped(1, 16), NOPE)


def addition_lt_fire_1x16() -> Recipe:
    """Published addition: 1 layer x 16 loops, FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh.
    """
    return _addition("addition_lt_fire_1x16", looped(1, 16), WITH_FIRE)


def addition_lt_abacus_1x16() -> Recipe:
    """Published addition: 1 layer x 16 loops, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh.
    """
    return _addition("addition_lt_abacus_1x16", looped(1, 16), WITH_ABACUS)


def addition_lt_nope_2x8() -> Recipe:
    """Published addition: 2 layers x 8 loops, no positions.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh, edited.
    """
    return _addition("addition_lt_nope_2x8", looped(2, 8), NOPE)


def addition_lt_fire_2x8() -> Recipe:
    """Published addition: 2 layers x 8 loops, FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh, edited.
    """
    return _addition("addition_lt_fire_2x8", looped(2, 8), WITH_FIRE)


def addition_lt_abacus_2x8() -> Recipe:
    """Published addition: 2 layers x 8 loops, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh, edited.
    """
    return _addition("addition_lt_abacus_2x8", looped(2, 8), WITH_ABACUS)


def addition_lt_nope_4x4() -> Recipe:
    """Published addition: 4 layers x 4 loops, no positions.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh, edited.
    """
    return _addition("addition_lt_nope_4x4", looped(4, 4), NOPE)


def addition_lt_fire_4x4() -> Recipe:
    """Published addition: 4 layers x 4 loops, FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh, edited.
    """
    return _addition("addition_lt_fire_4x4", looped(4, 4), WITH_FIRE)


def addition_lt_abacus_4x4() -> Recipe:
    """Published addition: 4 layers x 4 loops, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh, edited.
    """
    return _addition("addition_lt_abacus_4x4", looped(4, 4), WITH_ABACUS)


def addition_lt_nope_8x2() -> Recipe:
    """Published addition: 8 layers x 2 loops, no positions.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh, edited.
    """
    return _addition("addition_lt_nope_8x2", looped(8, 2), NOPE)


def addition_lt_fire_8x2() -> Recipe:
    """Published addition: 8 layers x 2 loops, FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh, edited.
    """
    return _addition("addition_lt_fire_8x2", looped(8, 2), WITH_FIRE)


def addition_lt_abacus_8x2() -> Recipe:
    """Published addition: 8 layers x 2 loops, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; addition_lt.sh, edited.
    """
    return _addition("addition_lt_abacus_8x2", looped(8, 2), WITH_ABACUS)


def addition_lt_abacus_8x2_40_digits() -> Recipe:
    """Published addition of up to 40 digits: 8 layers x 2 loops, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; in no script. That the paper trains on up to 40 digits is known; that it does so
    with the model of its best rows is an assumption.
    """
    return _addition("addition_lt_abacus_8x2_40_digits", looped(8, 2), WITH_ABACUS, digits=40)


def addition_subtraction_lt_abacus_8x2() -> Recipe:
    """Published addition and subtraction in one model: 8 layers x 2 loops, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; in no script. Half of the questions are sums, half are differences.
    """
    tasks = Mixture((Arithmetic("+", digits=Span(1, 20)), Arithmetic("-", digits=Span(1, 20))))
    return replace(_addition("addition_subtraction_lt_abacus_8x2", looped(8, 2), WITH_ABACUS), task=tasks)


def _addition(title: str, backbone: Backbone, positions: tuple[Position, ...], *, digits: int = 20) -> Recipe:
    task = Arithmetic("+", digits=Span(1, digits))
    return published(title, task, backbone, positions, tokenizer=Characters(vocabulary="pad"), grid="1:100x1:100")

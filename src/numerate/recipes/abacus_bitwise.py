"""Bitwise OR of two strings of bits with a single one, as published: trained on 100 questions.

McLeish et al. (2024), https://arxiv.org/abs/2405.17399, bitwise_or.sh. Each was trained on one RTX A4000 for one hour,
a twenty-fourth of the 8 exaFLOP of a day. The grid is the published one in its two tiers, 1:25x1:25 and the sizes
beyond up to 40; cells with fewer than 100 questions use each of them once.

The script has 1 layer x 16 loops, and 16 layers with input injection. Which positional encodings it has is not known
here: the three that the paper compares throughout are given.
"""

from numerate.config import Span
from numerate.models.backbone import Backbone
from numerate.positions.position import Position
from numerate.recipes.abacus_paper import (
    FLOPS_PER_DAY,
    NOPE,
    WITH_ABACUS,
    WITH_FIRE,
    looped,
    published,
    with_input_injection,
)
from numerate.tasks.bitwise import BitwiseOr
from numerate.tokenizers.tokenizer import Characters
from numerate.training.recipe import Recipe


def bitwise_or_1x16_nope() -> Recipe:
    """Published bitwise OR: 1 layer x 16 loops, no positions.

    One RTX A4000, 1 hour, 0.33 exaFLOP; bitwise_or.sh.
    """
    return _bitwise_or("bitwise_or_1x16_nope", looped(1, 16), NOPE)


def bitwise_or_1x16_fire() -> Recipe:
    """Published bitwise OR: 1 layer x 16 loops, FIRE.

    One RTX A4000, 1 hour, 0.33 exaFLOP; bitwise_or.sh.
    """
    return _bitwise_or("bitwise_or_1x16_fire", looped(1, 16), WITH_FIRE)


def bitwise_or_1x16_abacus() -> Recipe:
    """Published bitwise OR: 1 layer x 16 loops, Abacus.

    One RTX A4000, 1 hour, 0.33 exaFLOP; bitwise_or.sh.
    """
    return _bitwise_or("bitwise_or_1x16_abacus", looped(1, 16), WITH_ABACUS)


def bitwise_or_16x1_ii_nope() -> Recipe:
    """Published bitwise OR: 16 layers with input injection, no positions.

    One RTX A4000, 1 hour, 0.33 exaFLOP; bitwise_or.sh.
    """
    return _bitwise_or("bitwise_or_16x1_ii_nope", with_input_injection(16), NOPE)


def bitwise_or_16x1_ii_fire() -> Recipe:
    """Published bitwise OR: 16 layers with input injection, FIRE.

    One RTX A4000, 1 hour, 0.33 exaFLOP; bitwise_or.sh.
    """
    return _bitwise_or("bitwise_or_16x1_ii_fire", with_input_injection(16), WITH_FIRE)


def bitwise_or_16x1_ii_abacus() -> Recipe:
    """Published bitwise OR: 16 layers with input injection, Abacus.

    One RTX A4000, 1 hour, 0.33 exaFLOP; bitwise_or.sh.
    """
    return _bitwise_or("bitwise_or_16x1_ii_abacus", with_input_injection(16), WITH_ABACUS)


def _bitwise_or(title: str, backbone: Backbone, positions: tuple[Position, ...]) -> Recipe:
    return published(
        title,
        BitwiseOr(digits=Span(1, 20), max_examples=100),
        backbone,
        positions,
        tokenizer=Characters(vocabulary="pad"),
        grid="pos_arth+pos_arth_ood",
        flops=FLOPS_PER_DAY / 24,
    )

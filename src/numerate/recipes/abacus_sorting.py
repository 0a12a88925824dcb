"""Sorting of up to 10 numbers of up to 10 digits, as published: 8 layers, with input injection, and looped.

McLeish et al. (2024), https://arxiv.org/abs/2405.17399, sorting.sh. Each was trained on one RTX A4000 for 24 hours,
which the paper counts as 8 exaFLOP. The grid goes to 30 numbers of 30 digits; `numerate plot pair` draws both of its
metrics, exact match and correct first label.
"""

from numerate.config import Span
from numerate.models.backbone import Backbone
from numerate.positions.position import Position
from numerate.recipes.abacus_paper import (
    WITH_ABACUS,
    WITH_BOTH,
    WITH_FIRE,
    looped,
    published,
    standard,
    with_input_injection,
)
from numerate.tasks.sorting import Sorting
from numerate.tokenizers.tokenizer import Characters
from numerate.training.recipe import Recipe


def sorting_st_fire() -> Recipe:
    """Published sorting: 8 layers, FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; sorting.sh.
    """
    return _sorting("sorting_st_fire", standard(8), WITH_FIRE)


def sorting_st_abacus() -> Recipe:
    """Published sorting: 8 layers, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; sorting.sh.
    """
    return _sorting("sorting_st_abacus", standard(8), WITH_ABACUS)


def sorting_st_abacus_fire() -> Recipe:
    """Published sorting: 8 layers, Abacus and FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; sorting.sh.
    """
    return _sorting("sorting_st_abacus_fire", standard(8), WITH_BOTH)


def sorting_st_ii_fire() -> Recipe:
    """Published sorting: 8 layers with input injection, FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; sorting.sh.
    """
    return _sorting("sorting_st_ii_fire", with_input_injection(8), WITH_FIRE)


def sorting_st_ii_abacus() -> Recipe:
    """Published sorting: 8 layers with input injection, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; sorting.sh.
    """
    return _sorting("sorting_st_ii_abacus", with_input_injection(8), WITH_ABACUS)


def sorting_st_ii_abacus_fire() -> Recipe:
    """Published sorting: 8 layers with input injection, Abacus and FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; sorting.sh.
    """
    return _sorting("sorting_st_ii_abacus_fire", with_input_injection(8), WITH_BOTH)


def sorting_lt_fire() -> Recipe:
    """Published sorting: 1 layer x 8 loops, FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; sorting.sh.
    """
    return _sorting("sorting_lt_fire", looped(1, 8), WITH_FIRE)


def sorting_lt_abacus() -> Recipe:
    """Published sorting: 1 layer x 8 loops, Abacus.

    One RTX A4000, 24 hours, 8 exaFLOP; sorting.sh.
    """
    return _sorting("sorting_lt_abacus", looped(1, 8), WITH_ABACUS)


def sorting_lt_abacus_fire() -> Recipe:
    """Published sorting: 1 layer x 8 loops, Abacus and FIRE.

    One RTX A4000, 24 hours, 8 exaFLOP; sorting.sh.
    """
    return _sorting("sorting_lt_abacus_fire", looped(1, 8), WITH_BOTH)


def _sorting(title: str, backbone: Backbone, positions: tuple[Position, ...]) -> Recipe:
    task = Sorting(digits=Span(1, 10), items=Span(1, 10))
    tokenizer = Characters(vocabulary="sort")
    return published(title, task, backbone, positions, tokenizer=tokenizer, grid="1:30x1:30", initial_batch_size=32)

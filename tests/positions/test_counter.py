"""Promises of the counter hash that numberings draw from."""

import pytest
import torch

from numerate.batch import StepContext
from numerate.positions.counter import random_integers

MASK = 0xFFFFFFFFFFFFFFFF


def mixed(z: int) -> int:
    """The finaliser of SplitMix64, on Python's whole numbers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def plain(seed: int, step: int, row: int, bound: int, salt: int) -> int:
    golden = 0x9E3779B97F4A7C15
    start = mixed((mixed((seed * golden + salt) & MASK) + step * golden) & MASK)
    return (mixed(mixed((row * golden + start) & MASK)) >> 32) * bound >> 32


@pytest.mark.parametrize(("seed", "step", "salt"), [(0, 0, 0), (7, 123456, 99), (-3, 5, 2**32 - 1), (2**62, 10**12, 1)])
@pytest.mark.parametrize("bound", [1, 2, 11, 101, 2**20 + 7, 2**31])
def test_tensors_give_what_pythons_whole_numbers_give(seed: int, step: int, salt: int, bound: int) -> None:
    rows = [0, 1, 2, 1000, 2**40, 2**62]
    found = random_integers(StepContext(seed, step), torch.tensor(rows), bound, salt).tolist()
    assert found == [plain(seed, step, row, bound, salt) for row in rows]


def test_the_finaliser_is_the_published_one() -> None:
    # The first outputs of SplitMix64 seeded with 0, as published with the generator.
    golden = 0x9E3779B97F4A7C15
    first = [mixed((golden * n) & MASK) for n in (1, 2, 3)]
    assert first == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_an_evaluation_may_not_draw() -> None:
    with pytest.raises(ValueError, match="draws no random numbers"):
        random_integers(StepContext.for_evaluation(), torch.tensor([0]), 5)

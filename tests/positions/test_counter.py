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


@pytest.mark.parametrize("vary", ["row", "step", "seed", "salt"])
def test_draws_are_uniform_along_every_part_of_the_key(vary: str) -> None:
    count, bound = 11_000, 11
    if vary == "row":
        found = random_integers(StepContext(0, 0), torch.arange(count), bound)
    else:
        one = torch.tensor([5])
        keys = {
            "step": lambda i: (StepContext(0, i), 0),
            "seed": lambda i: (StepContext(i, 0), 0),
            "salt": lambda i: (StepContext(0, 0), i),
        }
        count = 1_100
        found = torch.cat([random_integers(draw, one, bound, salt) for draw, salt in map(keys[vary], range(count))])
    counts = torch.bincount(found, minlength=bound)
    assert len(counts) == bound
    expected = count / bound
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 29.6, "less likely than 1 in 1000 for 10 degrees of freedom"


def test_neighbours_in_row_step_and_seed_are_uncorrelated() -> None:
    rows = torch.arange(5000)
    here = random_integers(StepContext(0, 0), rows, 1000).double()
    for other in (
        random_integers(StepContext(0, 0), rows + 1, 1000),
        random_integers(StepContext(0, 1), rows, 1000),
        random_integers(StepContext(1, 0), rows, 1000),
        random_integers(StepContext(0, 0), rows, 1000, salt=1),
    ):
        assert abs(float(torch.corrcoef(torch.stack([here, other.double()]))[0, 1])) < 0.06


def test_an_evaluation_may_not_draw() -> None:
    with pytest.raises(ValueError, match="draws no random numbers"):
        random_integers(StepContext.for_evaluation(), torch.tensor([0]), 5)

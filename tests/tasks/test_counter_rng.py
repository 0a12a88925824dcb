"""Promises of the random numbers that data is made of."""

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.config import Span
from numerate.tasks.counter_rng import CounterRNG, random_key

MASK = 2**64 - 1


@dataclass(frozen=True)
class Spec:
    size: int | Span = 3
    name: str = "a"


@dataclass(frozen=True)
class Other:
    size: int | Span = 3
    name: str = "a"


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def test_a_key_tells_apart_all_that_it_is_made_of() -> None:
    parts = [(), (0,), ("0",), (None,), (False,), (0.0,), (0, 1), ((0, 1),), ("01",), (Spec(),), (Other(),)]
    parts += [(Spec(4),), (Spec(Span(3, 3)),), (Spec(name="b"),), ({"size": 3},), ("",)]
    assert len({random_key(*some) for some in parts}) == len(parts)
    assert all(0 <= random_key(*some) < 2**128 for some in parts)
    assert random_key(Spec(), 5) == random_key(Spec(), np.int64(5))


def test_a_key_refuses_what_has_no_canonical_text() -> None:
    with pytest.raises(TypeError, match="not set"):
        random_key({1, 2})
    with pytest.raises(ValueError, match="JSON"):
        random_key(float("nan"))


def test_streams_are_those_they_have_always_been() -> None:
    assert f"{random_key('golden', 1):032x}" == "1a43f947f0f6c7003197967ebce5db28"
    draws = CounterRNG(random_key("golden", 1))
    assert digest(draws.random_words(1000)) == "885bb7c58a0adfd9"
    assert digest(draws.integers(10, (100, 3))) == "c2314948cd5f768e"
    assert digest(draws.integers(10**12, (100,))) == "62ae996fa40c1dfb"
    assert digest(draws.random_digits(50, 24)) == "8b41fae36754a487"
    assert digest(draws.permutation(64)) == "e582fb634b7e7e60"


def philox(counter: int, key: int) -> list[int]:
    """Philox4x64-10 of Salmon et al. (2011), figure 1 and table 2, in plain integers."""
    words = [counter >> 64 * i & MASK for i in range(4)]
    keys = [key & MASK, key >> 64]
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [second >> 64 ^ words[1] ^ keys[0], second & MASK, first >> 64 ^ words[3] ^ keys[1], first & MASK]
        keys = [keys[0] + 0x9E3779B97F4A7C15 & MASK, keys[1] + 0xBB67AE8584CAA73B & MASK]
    return words


def test_words_are_those_of_the_published_generator() -> None:
    # The known answer for counter 0 and key 0 that comes with the authors' own library, Random123.
    assert philox(0, 0) == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    for seed in (0, 1, random_key("a"), 2**128 - 1):
        assert CounterRNG(seed).random_words(12).tolist() == philox(1, seed) + philox(2, seed) + philox(3, seed)


def test_words_do_not_depend_on_the_portions_they_are_taken_in() -> None:
    whole = CounterRNG(7).random_words(50)
    some = CounterRNG(7)
    assert np.array_equal(whole, np.concatenate([some.random_words(n) for n in (1, 0, 20, 29)]))


@given(st.integers(1, 2**62), st.integers(0, 2**128 - 1))
def test_bounded_numbers_are_the_high_part_of_an_exact_product(bound: int, seed: int) -> None:
    drawn = CounterRNG(seed).integers(bound, (40,))
    if bound <= 2**16:
        expected = [int(lane) * bound >> 32 for lane in CounterRNG(seed).random_half_words(40)]
    else:
        expected = [int(word) * bound >> 64 for word in CounterRNG(seed).random_words(40)]
    assert drawn.tolist() == expected
    assert drawn.min() >= 0
    assert drawn.max() < bound


def test_a_bound_may_differ_from_number_to_number() -> None:
    bounds = np.array([1, 2, 1000])
    drawn = CounterRNG(1).integers(bounds, (5000, 3))
    assert drawn.min(axis=0).tolist() == [0, 0, 0]
    assert drawn.max(axis=0).tolist() == [0, 1, 999]
    with pytest.raises(ValueError, match="at least 1"):
        CounterRNG(1).integers(0, (3,))


def test_every_value_comes_equally_often() -> None:
    count = 200_000
    for drawn in (CounterRNG(3).integers(10, (count,)), CounterRNG(4).random_digits(count // 4, 4).reshape(-1)):
        frequency = np.bincount(drawn, minlength=10) / count
        assert np.abs(frequency - 0.1).max() < 5 * (0.09 / count) ** 0.5

"""Promises of orders of chunks: every index has its place, and each order reads what it says."""

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.errors import UserError
from numerate.tasks.chunk_orders import ChunkLocations, ChunkOrder, PublishedChunks, SequentialChunks, ShuffledChunks

SIZES = (101, 57, 230, 64)
ORDERS: list[ChunkOrder] = [
    SequentialChunks(SIZES, 8),
    ShuffledChunks(SIZES, 8, seed=3),
    PublishedChunks(SIZES, 8),
    PublishedChunks(SIZES, 8, worker=1, rank=2),
]


def triples(places: ChunkLocations) -> list[tuple[int, int, int]]:
    return list(zip(*(part.tolist() for part in places), strict=True))


def by_definition(sizes: tuple[int, ...], context: int, seed: int) -> Iterator[tuple[int, int, int]]:
    """The published iterator, as specified: shards and chunks shuffled by one generator, the last whole chunk left."""
    rng = random.Random(seed)
    shards = list(range(len(sizes)))
    while True:
        rng.shuffle(shards)
        for shard in shards:
            chunks = list(range(sizes[shard] // context - 1))
            rng.shuffle(chunks)
            yield from ((shard, chunk * context, context) for chunk in chunks)


@pytest.mark.parametrize(("worker", "rank"), [(0, 0), (3, 0), (0, 1), (2, 5)])
def test_the_published_order_is_that_of_the_published_iterator_pass_after_pass(worker: int, rank: int) -> None:
    order = PublishedChunks(SIZES, 8, worker=worker, rank=rank)
    count = 4 * order.chunks_per_epoch + 7
    expected = list(itertools.islice(by_definition(SIZES, 8, 42 + worker + 1337 * rank), count))
    assert triples(order.locations(range(count))) == expected


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_any_index_may_be_read_in_any_order(order: ChunkOrder) -> None:
    count = 3 * order.chunks_per_epoch
    one_by_one = triples(order.locations(range(count)))
    indices = np.random.default_rng(0).integers(0, count, 200)
    again = type(order)(**{name: getattr(order, name) for name in order.__dataclass_fields__ if name[0] != "_"})
    assert triples(again.locations([count - 1])) == one_by_one[-1:]
    assert triples(again.locations(indices)) == [one_by_one[index] for index in indices]


@pytest.mark.parametrize("order", [ORDERS[0], ORDERS[1]], ids=repr)
def test_every_token_but_a_shards_first_is_a_target_once_in_each_pass(order: ChunkOrder) -> None:
    for turn in range(3):
        places = order.locations(range(turn * order.chunks_per_epoch, (turn + 1) * order.chunks_per_epoch))
        targets = sorted(
            (shard, token)
            for shard, offset, length in triples(places)
            for token in range(offset + 1, offset + length + 1)
        )
        assert targets == [(shard, token) for shard, size in enumerate(SIZES) for token in range(1, size)]


def test_sequential_chunks_by_hand() -> None:
    order = SequentialChunks((10, 1, 0, 5), 4)
    assert triples(order.locations(range(5))) == [(0, 0, 4), (0, 4, 4), (0, 8, 1), (3, 0, 4), (0, 0, 4)]
    assert order.chunks_per_epoch == 4


def test_a_shuffled_order_is_a_function_of_seed_and_pass_and_differs_between_them() -> None:
    one, other = ShuffledChunks(SIZES, 2, seed=1), ShuffledChunks(SIZES, 2, seed=2)
    first = triples(one.locations(range(one.chunks_per_epoch)))
    second = triples(one.locations(range(one.chunks_per_epoch, 2 * one.chunks_per_epoch)))
    assert first == triples(ShuffledChunks(SIZES, 2, seed=1).locations(range(one.chunks_per_epoch)))
    assert len({tuple(first), tuple(second), tuple(triples(other.locations(range(one.chunks_per_epoch))))}) == 3
    assert sorted(first) == sorted(second)
    assert first[:4] == [(2, 160, 2), (0, 26, 2), (0, 62, 2), (3, 20, 2)], (
        "saved runs resume only if this does not change"
    )


def test_a_shuffled_order_spreads_evenly() -> None:
    order = ShuffledChunks((1_000_001,), 10, seed=0)
    places = order.locations(range(20_000)).offsets / 1_000_000
    assert np.abs(np.histogram(places, 10, (0, 1))[0] - 2000).max() < 200  # 4.5 standard deviations
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.03


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 9), st.integers(0, 3))
def test_a_shuffled_pass_is_a_permutation_whatever_the_sizes(sizes: list[int], context: int, seed: int) -> None:
    if max(sizes) < 2:
        return
    shuffled = ShuffledChunks(tuple(sizes), context, seed)
    plain = SequentialChunks(tuple(sizes), context)
    everything = range(plain.chunks_per_epoch)
    assert sorted(triples(shuffled.locations(everything))) == triples(plain.locations(everything))


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(UserError, match="shard 1 has 15 tokens, and order=published needs at least 16"):
        PublishedChunks((100, 15), 8)
    with pytest.raises(UserError, match=r"^context_length: must be at least 1, not 0"):
        SequentialChunks((100,), 0)
    with pytest.raises(UserError, match="at least one shard must have two tokens"):
        ShuffledChunks((1, 0), 8)

"""The order in which the chunks of a corpus are read: pure functions from an index to a place.

A corpus is a few long rows of tokens, its shards. A chunk is `context` tokens of a shard with their next tokens; its
place is (shard, offset, length). Orders have random access, so that training resumes at any index.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG, key


class Places(NamedTuple):
    """Where chunks are: `shards`, `offsets` and `lengths`, int64 `[chunks]`. The inputs of a chunk are the tokens from
    its offset on, its targets those from one later on; `lengths` counts either."""

    shards: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class ChunkOrder(ABC):
    """An order of chunks of `context` tokens, of shards with `sizes` tokens. Pass follows pass without end."""

    sizes: tuple[int, ...]
    context: int

    def __post_init__(self) -> None:
        if self.context < 1:
            raise UserError(f"context: {self.context} tokens are none; 1 or more is right")
        if not any(size > 1 for size in self.sizes):
            raise UserError("corpus: it has no two tokens in a row, of which one could follow the other")

    @property
    @abstractmethod
    def per_pass(self) -> int:
        """How many chunks a pass over the corpus has."""

    @abstractmethod
    def places(self, indices: Sequence[int] | NDArray[np.int64]) -> Places:
        """The places of chunks by their index, 0 the first chunk of the first pass."""


@dataclass(frozen=True)
class SequentialChunks(ChunkOrder):
    """Every chunk of every shard from the first to the last; each token but the first of a shard is a target once.

    The last chunk of a shard is as long as what is left. Ten tokens at a context of 4 are the chunks (0, 4), (4, 4)
    and (8, 1). `range(per_pass)` is a whole validation set.
    """

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        sizes = np.array(self.sizes, dtype=np.int64)
        return np.cumsum(np.maximum(sizes - 1 + self.context - 1, 0) // self.context)

    @property
    def per_pass(self) -> int:
        return int(self._ends[-1])

    @property
    def targets(self) -> int:
        """How many targets a pass has, in tokens."""
        return sum(max(size - 1, 0) for size in self.sizes)

    def places(self, indices: Sequence[int] | NDArray[np.int64]) -> Places:
        return self._located(np.asarray(indices, dtype=np.int64) % self.per_pass)

    def _located(self, chunks: NDArray[np.int64]) -> Places:
        """The places of the chunks of a pass, counted from the first chunk of the first shard."""
        shards = np.searchsorted(self._ends, chunks, side="right").astype(np.int64)
        begins = np.concatenate([np.zeros(1, np.int64), self._ends])[shards]
        offsets = (chunks - begins) * self.context
        left = np.array(self.sizes, dtype=np.int64)[shards] - 1 - offsets
        return Places(shards, offsets, np.minimum(left, self.context))


@dataclass(frozen=True)
class ShuffledChunks(SequentialChunks):
    """The chunks of `SequentialChunks`, every one once in each pass, shuffled over all shards anew for every pass.

    The order of a pass is a function of (seed, pass) alone and takes no memory: a Feistel network over the indices,
    walked until it falls below their number (Black and Rogaway, 2002, "Ciphers with arbitrary finite domains").
    """

    seed: int = 0

    def places(self, indices: Sequence[int] | NDArray[np.int64]) -> Places:
        passes, inside = np.divmod(np.asarray(indices, dtype=np.int64), self.per_pass)
        chunks = np.empty_like(inside)
        for which in np.unique(passes).tolist():
            here = passes == which
            chunks[here] = _permuted(inside[here], self.per_pass, key("chunks", self.seed, which))
        return self._located(chunks)


_ROUNDS = 8


def _permuted(indices: NDArray[np.int64], count: int, secret: int) -> NDArray[np.int64]:
    """Where a permutation of `0 .. count - 1` puts some of them."""
    half = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = CounterRNG(secret).words(_ROUNDS)
    found = indices.astype(np.uint64)
    walking = np.arange(len(found))
    while len(walking):
        left, right = found[walking] >> half, found[walking] & mask
        for word in keys:
            left, right = right, left ^ (_mixed(right + word) & mask)
        found[walking] = left << half | right
        walking = walking[found[walking] >= np.uint64(count)]
    return found.astype(np.int64)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014, https://doi.org/10.1145/2660193.2660195)."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)


@dataclass(frozen=True)
class PublishedChunks(ChunkOrder):
    """The order of the published iterator of Tiny Stories: that of llama2.c, https://github.com/karpathy/llama2.c.

    One generator, Python's `random.Random(42 + worker + 1337 * rank)`, shuffles the list of shards in place before each
    pass, and in each shard the chunks that begin at multiples of the context. Of a shard with n tokens there are
    `n // context - 1` of them: its last whole chunk is never read. So the order of a pass depends on all before it; an
    index far ahead is found by shuffling up to there (a few seconds for every million chunks).

    Raises `UserError` for a shard that is too short, where the published one stops.
    """

    seed: int = 42
    worker: int = 0
    rank: int = 0
    _walk: "_Walk" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        chunks = [size // self.context - 1 for size in self.sizes]
        if (least := min(chunks)) < 1:
            shard = chunks.index(least)
            raise UserError(
                f"corpus: shard {shard} has {self.sizes[shard]:,} tokens, and the published order takes none of fewer "
                f"than {2 * self.context:,}; a context of {self.sizes[shard] // 2:,} or less, larger shards, or the "
                "shuffled order is right"
            )
        object.__setattr__(self, "_walk", _Walk(chunks, self.seed + self.worker + 1337 * self.rank))

    @property
    def per_pass(self) -> int:
        return self._walk.per_pass

    def places(self, indices: Sequence[int] | NDArray[np.int64]) -> Places:
        wanted = np.asarray(indices, dtype=np.int64)
        shards, offsets = np.empty_like(wanted), np.empty_like(wanted)
        for place in np.argsort(wanted, kind="stable").tolist():
            shards[place], chunk = self._walk.at(int(wanted[place]))
            offsets[place] = chunk * self.context
        return Places(shards, offsets, np.full_like(wanted, self.context))


class _Walk:
    """A generator that has shuffled up to a shard of a pass, and remembers how each pass began."""

    def __init__(self, chunks: Sequence[int], seed: int) -> None:
        self.chunks, self.per_pass = chunks, sum(chunks)
        self._random = random.Random(seed)
        self._begins: list[tuple[list[int], Any]] = [([*range(len(chunks))], self._random.getstate())]
        self._enter(0)

    def at(self, index: int) -> tuple[int, int]:
        """The shard and the chunk at an index."""
        if not self._first <= index < self._first + len(self._order):
            turn = index // self.per_pass
            if index < self._first or turn > self._pass:
                self._enter(min(turn, len(self._begins) - 1))
            while index >= self._first + len(self._order):
                self._on()
        return self._shards[self._place], self._order[index - self._first]

    def _enter(self, which: int) -> None:
        """Goes to the begin of a pass that is known."""
        shards, state = self._begins[which]
        self._random.setstate(state)
        self._shards = [*shards]
        self._random.shuffle(self._shards)
        self._pass, self._place, self._first = which, -1, which * self.per_pass
        self._order: list[int] = []
        self._on()

    def _on(self) -> None:
        """Shuffles the next shard."""
        if self._place + 1 == len(self._shards):
            if self._pass + 1 == len(self._begins):
                self._begins.append(([*self._shards], self._random.getstate()))
            self._enter(self._pass + 1)
            return
        self._place += 1
        self._first += len(self._order)
        self._order = [*range(self.chunks[self._shards[self._place]])]
        self._random.shuffle(self._order)

"""The order in which the chunks of a corpus are read: pure functions from an index to a location.

A corpus is a few long rows of tokens, its shards. A chunk is `context` tokens of a shard with their next tokens; its
location is (shard, offset, length). Orders have random access, so that training resumes at any index.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.config import Spec
from numerate.tasks.counter_rng import shuffled_indices


class ChunkLocations(NamedTuple):
    """The locations of chunks: `shards`, `offsets` and `lengths`, int64 `[chunks]`. The inputs of a chunk are the
    tokens starting at its offset, and its targets the same shifted by one; `lengths` is the number of inputs."""

    shards: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class ChunkOrder(Spec, ABC):
    """An order of chunks of `context_length` tokens, of shards with `shard_sizes` tokens, for any number of epochs."""

    shard_sizes: tuple[int, ...]
    context_length: int

    def conflicts(self) -> Iterator[str]:
        if self.context_length < 1:
            yield f"context_length: must be at least 1, not {self.context_length}"
        elif not any(size > 1 for size in self.shard_sizes):
            yield "corpus: at least one shard must have two tokens"

    @property
    @abstractmethod
    def chunks_per_epoch(self) -> int:
        """Number of chunks per epoch."""

    @abstractmethod
    def locations(self, indices: Sequence[int] | NDArray[np.int64]) -> ChunkLocations:
        """The locations of chunks by index; 0 is the first chunk of the first epoch."""


@dataclass(frozen=True)
class SequentialChunks(ChunkOrder):
    """Every chunk of every shard from the first to the last; each token but the first of a shard is a target once.

    The last chunk of a shard is as long as what is left. Ten tokens at a context of 4 are the chunks (0, 4), (4, 4)
    and (8, 1). `range(chunks_per_epoch)` is a whole validation set.
    """

    @cached_property
    def _chunk_ends(self) -> NDArray[np.int64]:
        sizes = np.array(self.shard_sizes, dtype=np.int64)
        return np.cumsum(np.maximum(sizes - 1 + self.context_length - 1, 0) // self.context_length)

    @property
    def chunks_per_epoch(self) -> int:
        return int(self._chunk_ends[-1])

    def locations(self, indices: Sequence[int] | NDArray[np.int64]) -> ChunkLocations:
        return self._locate(np.asarray(indices, dtype=np.int64) % self.chunks_per_epoch)

    def _locate(self, chunks: NDArray[np.int64]) -> ChunkLocations:
        """The locations of chunks, numbered from the first chunk of the first shard."""
        shards = np.searchsorted(self._chunk_ends, chunks, side="right").astype(np.int64)
        first_chunks = np.concatenate([np.zeros(1, np.int64), self._chunk_ends])[shards]
        offsets = (chunks - first_chunks) * self.context_length
        remaining = np.array(self.shard_sizes, dtype=np.int64)[shards] - 1 - offsets
        return ChunkLocations(shards, offsets, np.minimum(remaining, self.context_length))


@dataclass(frozen=True)
class ShuffledChunks(SequentialChunks):
    """The chunks of `SequentialChunks`, each once per epoch, shuffled over all shards in a new order each epoch.

    The order of an epoch depends only on (seed, epoch) and takes no memory (`permute`).
    """

    seed: int = 0

    def locations(self, indices: Sequence[int] | NDArray[np.int64]) -> ChunkLocations:
        chunks = shuffled_indices(np.asarray(indices, dtype=np.int64), self.chunks_per_epoch, ("chunks", self.seed))
        return self._locate(chunks)


@dataclass(frozen=True)
class PublishedChunks(ChunkOrder):
    """The order of the published iterator of Tiny Stories: that of llama2.c, https://github.com/karpathy/llama2.c.

    One generator, Python's `random.Random(42 + worker + 1337 * rank)`, shuffles the list of shards in place before each
    epoch, and in each shard the chunks that start at multiples of the context length. Of a shard with n tokens there
    are `n // context - 1` of them: its last whole chunk is never used. The order of an epoch depends on all earlier
    ones; a later index is found by shuffling up to it (a few seconds for every million chunks).

    Raises `UserError` for a shard that is too short, for which the published iterator fails.
    """

    seed: int = 42
    worker: int = 0
    rank: int = 0
    _shuffle_state: "_ShuffleState" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        chunks = [size // self.context_length - 1 for size in self.shard_sizes]
        object.__setattr__(self, "_shuffle_state", _ShuffleState(chunks, self.seed + self.worker + 1337 * self.rank))

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        shard, size = min(enumerate(self.shard_sizes), key=lambda shard: shard[1] // self.context_length)
        if size < 2 * self.context_length:
            yield (
                f"corpus: shard {shard} has {size:,} tokens, and order=published needs at least "
                f"{2 * self.context_length:,}; reduce context_length to {size // 2:,} or less, or use order=shuffled"
            )

    @property
    def chunks_per_epoch(self) -> int:
        return self._shuffle_state.chunks_per_epoch

    def locations(self, indices: Sequence[int] | NDArray[np.int64]) -> ChunkLocations:
        chunk_indices = np.asarray(indices, dtype=np.int64)
        shards, offsets = np.empty_like(chunk_indices), np.empty_like(chunk_indices)
        for i in np.argsort(chunk_indices, kind="stable").tolist():
            shards[i], chunk = self._shuffle_state.chunk_at(int(chunk_indices[i]))
            offsets[i] = chunk * self.context_length
        return ChunkLocations(shards, offsets, np.full_like(chunk_indices, self.context_length))


class _ShuffleState:
    """The state of the generator at a shard of an epoch, and its states at the start of each epoch so far."""

    def __init__(self, chunks: Sequence[int], seed: int) -> None:
        self.chunks_per_shard, self.chunks_per_epoch = chunks, sum(chunks)
        self._random = random.Random(seed)
        self._epoch_states: list[tuple[list[int], Any]] = [([*range(len(chunks))], self._random.getstate())]
        self._start_epoch(0)

    def chunk_at(self, index: int) -> tuple[int, int]:
        """The shard and the chunk at an index."""
        if not self._first_index <= index < self._first_index + len(self._chunk_order):
            epoch = index // self.chunks_per_epoch
            if index < self._first_index or epoch > self._epoch:
                self._start_epoch(min(epoch, len(self._epoch_states) - 1))
            while index >= self._first_index + len(self._chunk_order):
                self._next_shard()
        return self._shard_order[self._shard_position], self._chunk_order[index - self._first_index]

    def _start_epoch(self, epoch: int) -> None:
        """Restores the state at the start of an epoch."""
        shards, state = self._epoch_states[epoch]
        self._random.setstate(state)
        self._shard_order = [*shards]
        self._random.shuffle(self._shard_order)
        self._epoch, self._shard_position, self._first_index = epoch, -1, epoch * self.chunks_per_epoch
        self._chunk_order: list[int] = []
        self._next_shard()

    def _next_shard(self) -> None:
        """Shuffles the next shard."""
        if self._shard_position + 1 == len(self._shard_order):
            if self._epoch + 1 == len(self._epoch_states):
                self._epoch_states.append(([*self._shard_order], self._random.getstate()))
            self._start_epoch(self._epoch + 1)
            return
        self._shard_position += 1
        self._first_index += len(self._chunk_order)
        self._chunk_order = [*range(self.chunks_per_shard[self._shard_order[self._shard_position]])]
        self._random.shuffle(self._chunk_order)

"""Promises of the order in which a run sees its examples."""

import hashlib
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from numerate.batch import Batch
from numerate.config import Span
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters
from numerate.training.data_stream import BatchStream, num_total_tokens
from numerate.vocabulary import PAD

torch.set_num_threads(1)


def stream(task: Arithmetic | None = None, *, seed: int = 0, batch_size: int = 24, window: int = 8) -> BatchStream:
    return BatchStream(
        task or Arithmetic(digits=Span(1, 12)),
        Characters(),
        Continuation(),
        seed=seed,
        batch_size=batch_size,
        window=window,
    )


def examples(batch: Batch) -> list[tuple[int, list[int], list[int]]]:
    """Row, ids and targets of each example, padding left out."""
    return [
        (int(row), ids[:length].tolist(), targets[:length].tolist())
        for row, ids, targets, length in zip(
            batch.tokens.example_indices, batch.tokens.ids, batch.targets, batch.tokens.lengths.tolist(), strict=True
        )
    ]


@pytest.mark.parametrize(("ranks", "parts"), [(1, 2), (2, 1), (3, 1), (2, 3), (4, 6)])
def test_the_same_examples_come_whatever_the_processes_and_parts(ranks: int, parts: int) -> None:
    one, many = stream(), stream()
    place = 0
    for _ in range(20):
        whole = one.batch(place)
        slices = [many.batch(place, rank, ranks, part, parts) for rank, part in product(range(ranks), range(parts))]
        assert examples(whole) == [example for piece in slices for example in examples(piece)]
        assert sum(piece.counts["tokens"] for piece in slices) == whole.counts["tokens"]
        assert sum(piece.num_input_tokens for piece in slices) == whole.num_input_tokens
        for piece in slices:
            assert len(piece.tokens.ids) == 24 // (ranks * parts)
            assert piece.tokens.ids.shape[1] == piece.tokens.lengths.max()
        place += 24


def test_a_window_holds_every_example_once_and_each_is_the_one_of_its_index() -> None:
    task, data = Arithmetic(digits=Span(1, 12)), stream()
    found = {}
    for turn in range(16):
        for row, ids, _ in examples(data.batch(turn * 24)):
            found[row] = Characters().decode(ids, data.vocabulary)
        if turn == 7:
            assert sorted(found) == list(range(8 * 24))
    assert sorted(found) == list(range(16 * 24))
    drawn = task.examples("train", 0, 0, 16 * 24)
    for row, text in found.items():
        first, second, total = ("".join(map(str, number)).lstrip("0") for number in drawn.numbers.digits[row].tolist())
        assert text == f"{first[::-1]}+{second[::-1]}={total[::-1]}"


def test_a_resumed_run_continues_where_it_was() -> None:
    whole = stream()
    batches = [examples(whole.batch(n * 24)) for n in range(20)]
    for turn in (19, 3, 8, 7):
        assert examples(stream().batch(turn * 24)) == batches[turn]


def test_batches_hold_examples_of_like_length_in_an_order_of_their_own() -> None:
    data = stream(window=16)
    longest, shortest = [], []
    for turn in range(16):
        lengths = data.batch(turn * 24).tokens.lengths
        longest.append(int(lengths.max()))
        shortest.append(int(lengths.min()))
    in_order = np.argsort(longest, kind="stable")
    assert all(longest[a] <= shortest[b] for a, b in pairwise(in_order))
    assert longest != sorted(longest)
    for turn in range(16):
        tokens = data.batch(turn * 24).tokens
        keys = list(zip(tokens.lengths.tolist(), tokens.example_indices.tolist(), strict=True))
        assert keys == sorted(keys)
    other = [int(data.batch((16 + turn) * 24).tokens.lengths.max()) for turn in range(16)]
    assert np.argsort(other, kind="stable").tolist() != in_order.tolist()


def test_the_seed_changes_examples_and_order() -> None:
    one, other = (stream(seed=seed).batch(0) for seed in (0, 1))
    assert examples(one) != examples(other)


@pytest.mark.parametrize("digits", [Span(1, 5), Span(1, 20)])
@pytest.mark.parametrize("batch_size", [32, 64, 256])
def test_padding_stays_under_a_tenth(digits: Span, batch_size: int) -> None:
    data = stream(Arithmetic(digits=digits), batch_size=batch_size, window=64)
    batches = [data.batch(turn * batch_size) for turn in range(64)]
    pads = sum(int((batch.tokens.ids == PAD).sum()) for batch in batches)
    assert 0 < pads / sum(batch.tokens.ids.numel() for batch in batches) < 0.1
    for batch in batches:
        assert num_total_tokens(batch) - batch.num_input_tokens == int((batch.tokens.ids == PAD).sum())


def test_batches_are_those_they_have_always_been() -> None:
    data = stream(Arithmetic(), seed=1, batch_size=64, window=64)
    digest = hashlib.sha256()
    for turn in (0, 1, 63, 64):
        batch = data.batch(turn * 64)
        for tensor in (batch.tokens.ids, batch.tokens.example_indices, batch.targets, batch.target_positions):
            digest.update(tensor.numpy().astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "82145fc267a1db52"

"""Attention without gradients in blocks of queries is the attention that computes the whole mask."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from layers import assert_same, context, drawn, made
from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.symbols import PositionRelativeSymbols
from numerate.mixers import attention_positions
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Context, Mixer
from numerate.positions.bias import FIRE, ALiBi, T5Bias, Window
from numerate.positions.contextual import CoPE
from numerate.positions.position import Position
from numerate.positions.position_ids import Coupled
from numerate.positions.rotary import Rotary

ROWS, TIME, WIDTH = 2, 23, 8
TWO_HEADS = Attention(num_heads=2)
CASES: dict[str, tuple[Mixer, tuple[Position, ...]]] = {
    "ALiBi": (TWO_HEADS, (ALiBi(),)),
    "FIRE": (TWO_HEADS, (FIRE(threshold=4.0),)),
    "CoPE": (TWO_HEADS, (CoPE(max_positions=5),)),
    "rotary, T5 bias": (TWO_HEADS, (Rotary(), T5Bias(num_buckets=8, max_distance=16))),
    "coupled": (
        Attention(num_heads=2, logit_scale="log", log_scale_start=4),
        (T5Bias(position_ids=Coupled(), num_buckets=4, bidirectional=True), ALiBi(position_ids=Coupled())),
    ),
    "windows": (
        Attention(num_heads=2, logit_scale="log", log_scale_start=4),
        (T5Bias(), Window(position_ids=Coupled(), size=1), Window(size=6)),
    ),
    "not themselves": (Attention(num_heads=2, blocked_attend_to_themselves=False), (ALiBi(),)),
    "dual": (DualAttention(), (ALiBi(),)),
    "dual, coupled": (DualAttention(symmetric=True), (Rotary(), T5Bias(position_ids=Coupled()))),
    "dual, distance symbols": (DualAttention(symbols=PositionRelativeSymbols()), (ALiBi(),)),
    "dual, window": (DualAttention(), (Window(position_ids=Coupled(), size=1),)),
    "dual, rca": (DualAttention(variant="rca", num_key_value_heads=1), (ALiBi(),)),
}


def layer(name: str, blocked: bool = False) -> tuple[Any, Tensor, Context]:
    """A layer, its input and context; coupled position ids differ by row."""
    spec, positions = CASES[name]
    generator = torch.Generator().manual_seed(0)
    ids = tuple(
        torch.randint(0, 9, (ROWS, TIME), generator=generator)
        if isinstance(position.position_ids, Coupled)
        else torch.arange(TIME)[None]
        for position in positions
    )
    keys = {"blocked_keys": torch.rand(ROWS, TIME, generator=generator) < 0.4} if blocked else {}
    here = replace(context([TIME] * ROWS, capacity=TIME + 1, **keys), position_ids=ids)
    return made(spec, WIDTH, positions=positions, noise=0.3), drawn(ROWS, TIME, WIDTH), here


def outputs(part: Any, x: Tensor, here: Context) -> list[Tensor]:
    targets = torch.tensor([[0, 5, 11, 12, 22], [3, 4, 20, 22, 22]])
    fresh = [replace(here, forward_cache={}) for _ in range(3)]
    return [part(x, fresh[0]), part.forward_at(x, fresh[1], targets), part.prefill(x, fresh[2])[0]]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(("block_elements", "window_queries"), [(1, 1), (600, 5)])  # one query in a block, or several
@torch.no_grad()
def test_blocks_of_queries_change_nothing(
    name: str, blocked: bool, block_elements: int, window_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, x, here = layer(name, blocked)
    expected = outputs(part, x, here)
    monkeypatch.setattr(attention_positions, "MAX_MASK_ELEMENTS", 0)
    monkeypatch.setattr(attention_positions, "BLOCK_MASK_ELEMENTS", {"cpu": block_elements})
    monkeypatch.setattr(attention_positions, "WINDOW_BLOCK_QUERIES", window_queries)
    assert_same(outputs(part, x, here), expected, atol=1e-6, rtol=1e-6)


def test_only_large_masks_without_gradients_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    part, x, here = layer("ALiBi")
    queries, keys, _ = part._project(x, here)
    with torch.no_grad():
        assert part.positions.query_blocks(queries, keys, here) is None
    monkeypatch.setattr(attention_positions, "MAX_MASK_ELEMENTS", 2 * TIME * TIME - 1)
    monkeypatch.setattr(attention_positions, "BLOCK_MASK_ELEMENTS", {"cpu": 2 * TIME * 10})
    assert part.positions.query_blocks(queries, keys, here) is None
    with torch.no_grad():
        blocks = list(part.positions.query_blocks(queries, keys, here))
    assert [(block.queries, block.num_keys) for block in blocks] == [
        (slice(0, 10), 10),
        (slice(10, 20), 20),
        (slice(20, 23), 23),
    ]


def window_layer(size: int, num_tokens: int = 40) -> tuple[Any, Tensor, Context]:
    """A layer with a window along a row."""
    part = made(TWO_HEADS, WIDTH, positions=(Window(size=size),), noise=0.3)
    here = replace(context([num_tokens], capacity=num_tokens + 1), position_ids=(torch.arange(num_tokens)[None],))
    return part, drawn(1, num_tokens, WIDTH), here


@torch.no_grad()
def test_long_rows_are_computed_in_blocks_where_a_window_leaves_out_most_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(size: int, **options: Any) -> Any:
        part, x, here = window_layer(size)
        queries, keys, _ = part._project(x, here)
        found = part.positions.query_blocks(queries, keys, here, **options)
        return None if found is None else [(block.queries.start, block.queries.stop) for block in found]

    assert blocks(3, uses_reachable_keys=True) is None, "a short row"
    monkeypatch.setattr(attention_positions, "WINDOW_BLOCK_QUERIES", 16)
    assert blocks(3, uses_reachable_keys=True) == [(0, 16), (16, 32), (32, 40)]
    assert blocks(30, uses_reachable_keys=True) is None, "a wide window"
    assert blocks(3) is None
    monkeypatch.setattr(attention_positions, "MAX_MASK_ELEMENTS", 2 * 40 * 10)
    assert blocks(3, uses_reachable_keys=True) == [(0, 10), (10, 20), (20, 30), (30, 40)]


@torch.no_grad()
def test_a_block_reads_only_keys_in_a_window_of_its_queries() -> None:
    part, _, here = layer("windows")
    sequential, _, _ = here.position_ids
    here = replace(here, position_ids=(sequential, sequential.flip(1) // 2, sequential))
    block = attention_positions.QueryBlock(slice(14, 16), 16, torch.tensor([[14, 15]]))
    # the coupled ids of the queries are 4 and 3, those of keys 10 to 15 are 6, 5, 5, 4, 4 and 3
    assert part.positions.reachable_keys(block, here).tolist() == [11, 12, 13, 14, 15]

"""The delta rule by hand, and against what others have written."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from import_file import import_file
from layers import assert_same, delta_inputs
from numerate.kernels.delta_rule import chunked_delta_rule, delta_rule_flops, recurrent_delta_rule


def test_a_key_brings_back_what_was_last_written_to_it() -> None:
    keys = torch.eye(2)[[0, 1, 0]][None, :, None]
    values = torch.tensor([[3.0, 5.0], [1.0, 2.0], [7.0, 9.0]])[None, :, None]
    queries = torch.eye(2)[[0, 1, 1]][None, :, None]
    read, memory = recurrent_delta_rule(queries, keys, values, torch.ones(1, 3, 1))
    torch.testing.assert_close(read[0, :, 0], torch.tensor([[3.0, 5.0], [1.0, 2.0], [1.0, 2.0]]))
    torch.testing.assert_close(memory[0, 0], torch.tensor([[7.0, 9.0], [1.0, 2.0]]))


def test_operations_are_those_of_the_matrix_products_inside_the_chunks() -> None:
    assert delta_rule_flops(32, 1, 8, 8) == delta_rule_flops(16, 2, 8, 8) + 2 * (16 * 32 * (8 + 8) + 16 * 8 * 8)
    assert delta_rule_flops(64, 1, 8, 8) == 2 * delta_rule_flops(32, 1, 8, 8)


# Someone else's truth ------------------------------------------------------------------------------------------------


def agree(found: Tensor, behind: Tensor, tensors: list[Tensor]) -> None:
    """Theirs, computed in float32, is ours."""
    assert_same((found.double(), behind.double()), chunked_delta_rule(*tensors), atol=1e-4, rtol=1e-4)


def singly(tensors: list[Tensor]) -> list[Tensor]:
    return [part.float() for part in tensors]


def naive(folder: str) -> Any:
    """The file `naive.py` of a rule in flash-linear-attention, alone: the package itself needs triton."""
    package = importlib.util.find_spec("fla")
    if package is None or not package.submodule_search_locations:
        pytest.skip("flash-linear-attention is not installed")
    pytest.importorskip("einops", reason="the naive forms of flash-linear-attention need einops")
    files = [Path(place, "ops", folder, "naive.py") for place in package.submodule_search_locations]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        pytest.skip("this flash-linear-attention has no naive form of the rule (package fla-core)")
    return import_file(file)


@pytest.mark.parametrize("largest", [1.0, 2.0])
@pytest.mark.parametrize("module", ["qwen3_next", "olmo_hybrid"])
def test_it_is_the_gated_rule_of_transformers(module: str, largest: float) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    tensors = delta_inputs(50, gated=True, largest=largest)
    queries, keys, values, betas, gates = singly(tensors)
    for rule in (theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule):
        more = {"initial_state": None, "output_final_state": True}
        found, behind = rule(queries, keys, values, g=gates, beta=betas, **more)
        agree(found * queries.shape[3] ** 0.5, behind, tensors)  # they scale queries


@pytest.mark.parametrize("largest", [1.0, 2.0])
def test_it_is_the_naive_delta_rule_of_flash_linear_attention(largest: float) -> None:
    tensors = delta_inputs(50, largest=largest)
    queries, keys, values, betas = (part.transpose(1, 2) for part in singly(tensors))
    found, behind = naive("delta_rule").delta_rule_recurrence(queries, keys, values, betas)
    agree(found.transpose(1, 2) * queries.shape[3] ** 0.5, behind, tensors)


def test_it_is_the_naive_gated_delta_rule_of_flash_linear_attention() -> None:
    tensors = delta_inputs(50, gated=True, largest=2.0)
    rule = naive("gated_delta_rule").naive_recurrent_gated_delta_rule
    agree(*rule(*singly(tensors), scale=1.0, output_final_state=True), tensors)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("steps", [2, 3])
def test_it_is_the_naive_delta_product_of_flash_linear_attention(steps: int, gated: bool) -> None:
    tensors = delta_inputs(20, steps, gated, largest=2.0)
    queries, keys, values, betas, *gates = singly(tensors)
    rule = naive("gated_delta_product").naive_recurrent_gated_delta_product
    found, behind = rule(queries, keys, values, gates[0] if gates else None, betas, scale=1.0, num_householder=steps)
    agree(found, behind, tensors)

"""The delta rule: its chunked form against the recurrence, and both against what others have written."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from numerate.kernels.delta_rule import chunked_delta_rule, delta_rule_flops, recurrent_delta_rule

EXACT = {"atol": 1e-9, "rtol": 1e-9}


def inputs(
    time: int = 11, steps: int = 1, gated: bool = False, largest: float = 1.0, width: int = 5
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys of length 1, values (one wider), betas up to `largest`, and gates that reach down to 0.05."""
    generator = torch.Generator().manual_seed(time)

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=generator).requires_grad_()

    queries, keys = drawn(2, time, 3, width), normalize(drawn(2, time * steps, 3, width), dim=-1)
    values, betas = drawn(2, time * steps, 3, width + 1), largest * drawn(2, time * steps, 3).sigmoid()
    return queries, keys, values, betas, -3 * drawn(2, time, 3).sigmoid() if gated else None


def test_a_key_brings_back_what_was_last_written_to_it() -> None:
    keys = torch.eye(2)[[0, 1, 0]][None, :, None]
    values = torch.tensor([[3.0, 5.0], [1.0, 2.0], [7.0, 9.0]])[None, :, None]
    queries = torch.eye(2)[[0, 1, 1]][None, :, None]
    read, memory = recurrent_delta_rule(queries, keys, values, torch.ones(1, 3, 1))
    torch.testing.assert_close(read[0, :, 0], torch.tensor([[3.0, 5.0], [1.0, 2.0], [1.0, 2.0]]))
    torch.testing.assert_close(memory[0, 0], torch.tensor([[7.0, 9.0], [1.0, 2.0]]))


def test_two_reflections_are_a_rotation_which_counts_modulo_five() -> None:
    angle = torch.tensor(torch.pi / 5)
    axes = torch.stack([torch.tensor([1.0, 0.0]), torch.stack([angle.cos(), angle.sin()])])
    keys, queries = axes.repeat(10, 1)[None, :, None], torch.tensor([1.0, 0.0]).expand(1, 10, 1, 2)
    start = torch.eye(2)[None, None]
    read, _ = recurrent_delta_rule(queries, keys, torch.zeros(1, 20, 1, 2), torch.full((1, 20, 1), 2.0), state=start)
    torch.testing.assert_close(read[0, 5:], read[0, :5], atol=1e-5, rtol=0)
    assert float((read[0, :4] - read[0, 4]).norm(dim=2).min()) > 1, "five different places on the circle"


@pytest.mark.parametrize("largest", [1.0, 2.0])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("time", "steps"), [(1, 1), (7, 1), (32, 1), (50, 1), (100, 1), (1, 3), (50, 2), (23, 3)])
def test_chunked_is_recurrent(time: int, steps: int, gated: bool, largest: float) -> None:
    tensors = inputs(time, steps, gated, largest)
    expected, memory = recurrent_delta_rule(*tensors)
    for chunk in (4, 16, 32, 1000):
        found, behind = chunked_delta_rule(*tensors, chunk_size=chunk)
        torch.testing.assert_close(found, expected, **EXACT)
        torch.testing.assert_close(behind, memory, **EXACT)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("gated", [False, True])
def test_its_gradient_is_that_of_the_recurrence(gated: bool, steps: int) -> None:
    tensors = [part.detach().requires_grad_() for part in inputs(13, steps, gated, 2.0) if part is not None]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(*size, dtype=torch.float64, generator=generator) for size in ((2, 13, 3, 6), (2, 3, 5, 6))]

    def weighed(output: tuple[Tensor, Tensor]) -> Tensor:
        return sum(((part * weight).sum() for part, weight in zip(output, weights, strict=True)), torch.zeros(()))

    expected = torch.autograd.grad(weighed(recurrent_delta_rule(*tensors)), tensors)
    found = torch.autograd.grad(weighed(chunked_delta_rule(*tensors, chunk_size=6 * steps)), tensors)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT)


def test_gates_that_let_nothing_through_overflow_nothing() -> None:
    queries, keys, values, betas, _ = (None if part is None else part.float() for part in inputs(40))
    gates = torch.full((2, 40, 3), -200.0).requires_grad_()
    found, _ = chunked_delta_rule(queries, keys, values, betas, gates)
    alone = (queries * keys).sum(dim=3, keepdim=True) * betas[..., None] * values
    torch.testing.assert_close(found, alone)
    found.sum().backward()
    assert gates.grad is not None
    assert bool(gates.grad.isfinite().all())


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("gate", [-50.0, -500.0, -1e4, -1e5])
def test_no_digits_are_lost_behind_a_gate_that_is_nearly_closed(gate: float, steps: int) -> None:
    tensors = inputs(64, steps)
    log_gates = -0.05 * tensors[0].detach().sigmoid()[..., 0]
    log_gates[:, ::16] = gate
    expected, memory = (part.detach() for part in recurrent_delta_rule(*tensors[:4], log_gates))
    singles = [part.detach().float().requires_grad_() for part in (*tensors[:4], log_gates)]
    found, behind = chunked_delta_rule(*singles)
    for mine, theirs in ((found, expected), (behind, memory)):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-6 * float(theirs.abs().max()), rtol=0)
    for gradient in torch.autograd.grad(found.sum() + behind.sum(), singles):
        assert bool(gradient.isfinite().all())


def test_many_equal_keys_blow_nothing_up() -> None:
    """The worst case of the triangular system: every write undoes the one before it, and reflects."""
    keys = normalize(torch.ones(1, 200, 1, 4), dim=-1)
    values = torch.randn(1, 200, 1, 4, generator=torch.Generator().manual_seed(0))
    expected, _ = recurrent_delta_rule(
        keys.double(), keys.double(), values.double(), torch.full((1, 200, 1), 1.99).double()
    )
    found, _ = chunked_delta_rule(keys, keys, values, torch.full((1, 200, 1), 1.99))
    torch.testing.assert_close(found, expected.float(), atol=1e-2, rtol=1e-3)


def test_operations_are_those_of_the_matrix_products_inside_the_chunks() -> None:
    assert delta_rule_flops(32, 1, 8, 8) == delta_rule_flops(16, 2, 8, 8) + 2 * (16 * 32 * (8 + 8) + 16 * 8 * 8)
    assert delta_rule_flops(64, 1, 8, 8) == 2 * delta_rule_flops(32, 1, 8, 8)


# Someone else's truth ------------------------------------------------------------------------------------------------


def singly(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """In float32, which is what the others compute in."""
    return [part.detach().float() for part in tensors if part is not None]


def agree(found: Tensor, behind: Tensor, tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]) -> None:
    mine, memory = chunked_delta_rule(*tensors)
    torch.testing.assert_close(found, mine.float(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(behind, memory.float(), atol=1e-4, rtol=1e-4)


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
    spec = importlib.util.spec_from_file_location(f"naive_{folder}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("largest", [1.0, 2.0])
@pytest.mark.parametrize("module", ["qwen3_next", "olmo_hybrid"])
def test_it_is_the_gated_rule_of_transformers(module: str, largest: float) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    tensors = inputs(50, gated=True, largest=largest)
    queries, keys, values, betas, gates = singly(tensors)
    for rule in (theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule):
        more = {"initial_state": None, "output_final_state": True}
        found, behind = rule(queries, keys, values, g=gates, beta=betas, **more)
        agree(found * queries.shape[3] ** 0.5, behind, tensors)  # they scale queries


@pytest.mark.parametrize("largest", [1.0, 2.0])
def test_it_is_the_naive_delta_rule_of_flash_linear_attention(largest: float) -> None:
    tensors = inputs(50, largest=largest)
    queries, keys, values, betas = (part.transpose(1, 2) for part in singly(tensors))
    found, behind = naive("delta_rule").delta_rule_recurrence(queries, keys, values, betas)
    agree(found.transpose(1, 2) * queries.shape[3] ** 0.5, behind, tensors)


def test_it_is_the_naive_gated_delta_rule_of_flash_linear_attention() -> None:
    tensors = inputs(50, gated=True, largest=2.0)
    rule = naive("gated_delta_rule").naive_recurrent_gated_delta_rule
    agree(*rule(*singly(tensors), scale=1.0, output_final_state=True), tensors)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("steps", [2, 3])
def test_it_is_the_naive_delta_product_of_flash_linear_attention(steps: int, gated: bool) -> None:
    tensors = inputs(20, steps, gated, largest=2.0)
    queries, keys, values, betas, *gates = singly(tensors)
    rule = naive("gated_delta_product").naive_recurrent_gated_delta_product
    found, behind = rule(queries, keys, values, gates[0] if gates else None, betas, scale=1.0, num_householder=steps)
    agree(found, behind, tensors)

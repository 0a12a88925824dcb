"""The kernel for CUDA against the definition.

The kernel runs in Triton's own interpreter where triton can be imported, and everywhere with `triton_stand_in`.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from numerate.architectures.dual_attention import DualAttention
from numerate.errors import UserError
from numerate.kernels import relational_kernel
from numerate.kernels.gpu import matmul_precision, max_shared_memory
from numerate.kernels.relational import Activation, RelationalHeads, reference_attention
from numerate.kernels.relational_fast import relational_attention, select_backend
from numerate.kernels.relational_kernel import KERNEL_ACTIVATIONS
from numerate.kernels.relational_tiles import select_tiles
from triton_stand_in import imported

FLOATING = ("queries", "keys", "symbols", "relation_queries", "relation_keys", "relation_proj")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with imported("numerate.kernels.relational_triton", monkeypatch) as module:
        yield module


@pytest.fixture
def loaded_compiler() -> None:
    """It must not see the stand-in for Triton when it is imported."""
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(1, requires_grad=True)).backward()


def drawn(
    heads: int = 3, relations: int = 2, time: int = 37, width: int = 5, compared: int = 7, kind: Any = torch.float32
) -> RelationalHeads:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(kind)

    return RelationalHeads(
        queries=random(2, time, heads, width).transpose(1, 2),  # as a mixer makes them: heads side by side
        keys=random(2, heads, time, width),
        symbols=random(2, heads, time, width),
        relation_queries=random(2, time, relations, compared).transpose(1, 2),
        relation_keys=random(2, relations, time, compared),
        relation_proj=random(heads, width, relations),
    )


def same(
    heads: RelationalHeads, activation: Activation, form: Any, atol: float, exact: RelationalHeads | None = None
) -> None:
    """Values and gradients of a form are those of the definition, of `exact` numbers where the form's are rounded."""
    found, expected = (
        replace(one, **{name: getattr(one, name).detach().requires_grad_() for name in FLOATING})
        for one in (heads, exact or heads)
    )
    output = relational_attention(found, "relational", activation, form)
    wanted = reference_attention(_each(expected), "relational", activation)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    (output * weight).sum().backward()
    (wanted * weight.to(wanted)).sum().backward()
    gradients = ((getattr(found, name).grad, getattr(expected, name).grad) for name in FLOATING)
    for own, other in [(output, wanted), *gradients]:
        torch.testing.assert_close(own.to(other.dtype), other, atol=atol, rtol=atol)


def _each(heads: RelationalHeads) -> RelationalHeads:
    count = heads.queries.shape[1]
    keys, symbols = (x.repeat_interleave(count // x.shape[1], dim=1) for x in (heads.keys, heads.symbols))
    return replace(heads, keys=keys, symbols=symbols)


def shared_keys(heads: RelationalHeads) -> RelationalHeads:
    return replace(heads, keys=heads.keys[:, :2], symbols=heads.symbols[:, :2])


@pytest.mark.parametrize("activation", KERNEL_ACTIVATIONS)
def test_the_kernel_is_the_definition_and_so_are_its_gradients(kernel: Any, activation: Activation) -> None:
    same(drawn(), activation, "triton", 2e-4)


@pytest.mark.parametrize(("heads", "relations", "time"), [(6, 9, 33), (1, 1, 1), (4, 4, 32)])
def test_more_heads_and_relations_are_for_further_programs(kernel: Any, heads: int, relations: int, time: int) -> None:
    same(drawn(heads, relations, time), "silu", "triton", 2e-4)


def test_the_kernel_reads_keys_that_heads_share(kernel: Any) -> None:
    same(shared_keys(drawn(heads=4)), "tanh", "triton", 2e-4)


def test_the_kernel_is_launched_on_the_device_of_its_inputs(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, which `device=cuda:1` is not."""
    current: list[torch.Tensor] = []

    @contextmanager
    def device_of(x: torch.Tensor) -> Iterator[None]:
        current.append(x)
        yield
        current.pop()

    launch = kernel._forward.function

    def launched(*given: Any, **named: Any) -> None:
        assert current
        launch(*given, **named)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(kernel._forward, "function", launched)
    relational_attention(drawn(), "relational", "identity", "triton")


def test_what_is_less_exact_is_summed_in_float32(kernel: Any) -> None:
    """Against the definition of the same rounded numbers in float64: outputs are rounded once, at the end."""
    heads = drawn(kind=torch.bfloat16)
    exact = replace(heads, **{name: getattr(heads, name).double() for name in FLOATING})
    output = relational_attention(heads, "relational", "gelu", "triton")
    assert output.dtype == torch.bfloat16
    same(heads, "gelu", "triton", 6e-2, exact)


INTERPRETED = """
import sys
from contextlib import contextmanager
from dataclasses import replace
import torch
sys.path[:0] = {folders!r}
from test_relational_triton import FLOATING, drawn, same, shared_keys
for activation in ("identity", "relu", "sigmoid", "tanh", "gelu", "silu"):
    same(drawn(), activation, "triton", 2e-4)
same(drawn(6, 9, 33), "silu", "triton", 2e-4)
same(shared_keys(drawn(heads=4)), "tanh", "triton", 2e-4)
same(shared_keys(drawn(4, 3, 65, 20, 17)), "silu", "triton", 2e-4)
same(drawn(1, 1, 1), "relu", "triton", 2e-4)
# The interpreter multiplies the bits of bfloat16 as whole numbers (Triton 3.9), whatever the kernel.
less = drawn(heads=6, relations=5, kind=torch.float16)
same(less, "gelu", "triton", 6e-2, replace(less, **{{name: getattr(less, name).double() for name in FLOATING}}))
"""


@pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed: it is installed with PyTorch for CUDA"
)
@pytest.mark.slow
def test_the_kernel_is_the_definition_in_tritons_interpreter() -> None:
    line = [sys.executable, "-c", INTERPRETED.format(folders=[str(Path(__file__).parents[i]) for i in range(2)])]
    done = subprocess.run(line, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(("kind", "width"), [(torch.float32, 64), (torch.bfloat16, 128)])
def test_the_kernel_on_a_device_is_the_definition(kind: torch.dtype, width: int) -> None:
    heads = drawn(8, 8, 300, width, width, kind)
    there = replace(heads, **{name: getattr(heads, name).cuda() for name in FLOATING})
    exact = replace(there, **{name: getattr(there, name).double() for name in FLOATING})
    same(there, "tanh", "triton", 5e-3 if kind is torch.float32 else 0.5, exact)


H100, A100, CONSUMER, MI300 = 232_448, 166_912, 101_376, 65_536
"""Bytes of shared memory that one program may take."""


@pytest.mark.parametrize(
    ("kind", "width", "compared", "precision", "tiles"),
    [
        (torch.bfloat16, 20, 32, "ieee", [(4, 32, 32)] * 4),
        (torch.bfloat16, 64, 64, "ieee", [(4, 32, 16)] * 3 + [(2, 32, 16)]),
        (torch.float16, 64, 128, "ieee", [(4, 16, 16)] * 3 + [(2, 16, 16)]),
        (torch.float32, 5, 7, "tf32x3", [(4, 32, 32)] * 4),
        (torch.float32, 64, 33, "tf32x3", [(4, 16, 16)] * 3 + [(2, 16, 16)]),
        (torch.float32, 64, 65, "tf32x3", [None] * 4),  # too many registers
        (torch.float32, 128, 16, "tf32", [(4, 16, 16), (2, 16, 16), (2, 16, 16), (1, 16, 16)]),
        (torch.bfloat16, 129, 16, "ieee", [None] * 4),
        (torch.float64, 16, 16, "ieee", [None] * 4),
    ],
)
def test_tiles_are_the_largest_that_fit_shared_memory(
    kind: torch.dtype, width: int, compared: int, precision: str, tiles: list[tuple[int, int, int] | None]
) -> None:
    limits = (H100, A100, CONSUMER, MI300)
    assert [select_tiles(kind, width, compared, limit, precision) for limit in limits] == tiles
    assert select_tiles(kind, width, compared, 1000, precision) is None


@pytest.fixture
def consumer_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relational_kernel, "can_run_kernel", lambda heads: True)
    monkeypatch.setattr(relational_kernel, "max_shared_memory", lambda device: CONSUMER)


@pytest.mark.usefixtures("consumer_card")
def test_where_no_tiles_fit_relations_run_in_torch_and_one_warning_says_so() -> None:
    relational_kernel._warn_no_tiles.cache_clear()
    heads = drawn(2, 2, 32, 128, 16)
    with pytest.warns(
        UserWarning, match="^relational attention runs in torch, not by its Triton kernel: head width 128"
    ):
        assert select_backend(heads, "relational", "tanh") == "chunks"
    assert select_backend(heads, "relational", "tanh") == "chunks", "warnings are errors here: there is no second one"
    assert relational_kernel.tiles_problem(heads) == (
        "head width 128 and relation width 16 in float32 do not fit the registers, or the 101,376 bytes of shared "
        "memory, of this device (training.tf32=true or training.precision=bf16 need less)"
    )


@pytest.mark.parametrize(("major", "is_used"), [(7, False), (8, True)])
def test_the_kernel_is_for_gpus_from_ampere_on(major: int, is_used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(major=major, shared_memory_per_block_optin=65_536)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    with FakeTensorMode():
        heads = replace(drawn(), queries=torch.empty(2, 3, 37, 5, device="cuda"))
        assert relational_kernel.tiles_problem(heads) == (
            None if is_used else "this device has a compute capability below 8.0"
        )


def test_float32_is_multiplied_in_tf32_where_the_setting_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    assert [matmul_precision(kind) for kind in (torch.float32, torch.bfloat16)] == ["tf32x3", "ieee"]
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert matmul_precision(torch.float32) == "tf32"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert matmul_precision(torch.float32) == "ieee"
    assert max_shared_memory(torch.device("cuda")) == MI300


def test_split_products_are_nearly_as_exact_as_float32() -> None:
    """What `tf32x3` computes: the two halves of each factor in TF32, which has 10 bits after the leading one."""

    def tf32(x: torch.Tensor) -> torch.Tensor:
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 64, generator=generator) for _ in range(2))
    (x_high, x_low), (y_high, y_low) = ((tf32(z), tf32(z - tf32(z))) for z in (x, y))
    split, exact = x_high @ y_low + x_low @ y_high + x_high @ y_high, x.double() @ y.double()
    rounded, whole = ((z - exact).abs().max() for z in (x_high @ y_high, x @ y))
    assert (split - exact).abs().max() < 2 * whole < 0.01 * rounded


@pytest.mark.usefixtures("consumer_card")
@pytest.mark.filterwarnings("ignore:relational attention runs in torch")
def test_the_kernel_is_taken_on_a_device_for_what_it_can_do() -> None:
    assert select_backend(drawn(time=64), "relational", "tanh") == "triton"
    assert select_backend(drawn(time=64), "relational", "identity") == "values"  # 5 + 14 numbers: narrow values
    assert select_backend(drawn(8, 8, 64, 64, 64, torch.bfloat16), "relational", "identity") == "triton"
    assert select_backend(drawn(8, 8, 64, 64, 64), "relational", "identity") == "triton"
    assert select_backend(drawn(8, 8, 64, 64, 64), "relational", "tanh") == "triton"
    assert select_backend(drawn(time=64), "relational", "softmax") == "chunks"
    assert select_backend(drawn(time=64), "disrca", "tanh") == "chunks"
    assert select_backend(replace(drawn(time=64), dropout=0.1), "relational", "tanh") == "chunks"
    assert select_backend(drawn(time=64, kind=torch.float64), "relational", "tanh") == "chunks"
    assert select_backend(drawn(width=300, time=64), "relational", "tanh") == "chunks"


def test_what_the_kernel_cannot_do_is_refused() -> None:
    heads = drawn()
    seen = torch.ones(1, 1, 37, 37, dtype=torch.bool).tril()
    for unfit, activation, word in (
        (replace(heads, visible=seen), "tanh", "blocked keys"),
        (replace(heads, dropout=0.1), "tanh", "dropout"),
        (replace(heads, symbols=None, distance_symbols=heads.symbols), "tanh", "distance"),
        (heads, "softmax", "softmax"),
    ):
        with pytest.raises(UserError, match=word):
            relational_attention(unfit, "relational", activation, "triton")
    with pytest.raises(UserError, match=r"^backend: triton does not support variant=rca with activation=softmax"):
        DualAttention(variant="rca", backend="triton")


def test_without_a_device_the_kernel_is_refused_in_words() -> None:
    if find_spec("triton") is None:
        with pytest.raises(UserError, match=r"^model\.mixer\.backend: triton needs the package triton"):
            relational_attention(drawn(), "relational", "tanh", "triton")


@pytest.mark.skipif(os.environ["CHECK_SHAPES"] != "0", reason="torch.compile cannot trace the checks of shapes")
@pytest.mark.slow
def test_in_a_compiled_graph_it_is_one_operator_with_the_same_gradients(loaded_compiler: None, kernel: Any) -> None:
    def gradients(function: Any) -> list[torch.Tensor]:
        heads = drawn(time=9)
        heads = replace(heads, **{name: getattr(heads, name).requires_grad_() for name in FLOATING})
        output, relations = function(heads, "sigmoid")
        (output.sum() + relations.square().sum()).backward()
        return [output, relations, *(getattr(heads, name).grad for name in FLOATING[:-1])]

    plain = kernel.attended_symbols_and_relations
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True, dynamic=False)
    for found, expected in zip(gradients(compiled), gradients(plain), strict=True):
        assert torch.equal(found, expected)

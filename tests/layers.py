"""What tests of kernels, positions, mixers and models share: inputs, layers and comparisons, all in float64."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from numerate.architectures.delta import DeltaNet, DeltaProduct, GatedDeltaNet
from numerate.mixers.mixer import Context, Mixer
from numerate.positions.position import Position

DELTA_NETS = [
    DeltaNet(num_heads=2),
    DeltaNet(num_heads=2, eigenvalue_range="[-1,1]", conv_kernel=None, head_dim=5),
    GatedDeltaNet(num_heads=2),
    DeltaProduct(num_heads=2, num_householder=3),
    DeltaProduct(num_heads=2, eigenvalue_range="[0,1]", gated=True),
]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normally distributed numbers that are the same in each run."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def delta_inputs(time: int, steps: int = 1, gated: bool = False, largest: float = 1.0) -> list[Tensor]:
    """Queries, keys of length 1, values (one wider), betas up to `largest`, and gates that reach down to 0.05."""
    queries, keys = drawn(2, time, 3, 5), normalize(drawn(2, time * steps, 3, 5, seed=1), dim=-1)
    values, betas = drawn(2, time * steps, 3, 6, seed=2), largest * drawn(2, time * steps, 3, seed=3).sigmoid()
    return [queries, keys, values, betas, *([-3 * drawn(2, time, 3, seed=4).sigmoid()] if gated else [])]


def made(
    spec: Mixer,
    width: int = 6,
    layer: int = 0,
    depth: int = 1,
    positions: Sequence[Position] = (),
    noise: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> Any:
    """A layer in evaluation; with `noise` its parameters are moved away from their initialization, as by training."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part = spec.build(width, layer, depth, positions).to(dtype).eval()
    with torch.no_grad():
        for number, parameter in enumerate(part.parameters() if noise else ()):
            parameter.add_(noise * drawn(*parameter.shape, seed=number))
    return part


def context(lengths: Sequence[int], positions: int = 0, **more: Any) -> Context:
    """The context of rows of these lengths, with as many positional encodings."""
    return Context(torch.tensor(lengths), (torch.arange(max(lengths))[None],) * positions, **more)


def read(part: Any, x: Tensor, positions: int = 0, **more: Any) -> Tensor:
    """The layer's output for whole rows."""
    output: Tensor = part(x, context([x.shape[1]] * len(x), positions, **more))
    return output


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    else:
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def gradients(outputs: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a sum of all outputs with weights that are the same in each run; 0 where there is none."""
    weighted = (one * drawn(*one.shape, seed=n, dtype=one.dtype) for n, one in enumerate(tensors_in(outputs), start=5))
    total = sum(one.sum().abs() for one in weighted)
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total, leaves, retain_graph=True, materialize_grads=True)


def assert_same(
    found: Any, expected: Any, leaves: Sequence[Tensor] = (), atol: float = 1e-9, rtol: float = 1e-9
) -> None:
    """Tensors, or tuples of them, are equal; and so are their finite gradients by `leaves`."""
    for one, other in zip(tensors_in(found), tensors_in(expected), strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=rtol)
    if leaves:
        for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
            assert one.isfinite().all()
            torch.testing.assert_close(one, other, atol=atol, rtol=rtol)


def load_from(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copies tensors into the parameters of these names."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            module.get_parameter(name).copy_(tensor)


def published_tensor(shape: list[int], salt: int, amp: float, offset: float, **_: Any) -> Tensor:
    """The formula of the published cases of dual attention:
    offset + amp sin(0.1 (7 i0 + 3 i1 + 2 i2 + 5 i3 + 1) + 1.1 salt)."""
    axes = torch.meshgrid(*(torch.arange(size, dtype=torch.float64) for size in shape), indexing="ij")
    index = sum(factor * axis for factor, axis in zip((7, 3, 2, 5), axes, strict=False))
    return offset + amp * torch.sin(0.1 * (index + 1) + 1.1 * salt)


def filled(case: dict[str, Any]) -> dict[str, Tensor]:
    """The weights and inputs of a published case of dual attention."""
    return {name: published_tensor(**how) for kind in ("weights", "inputs") for name, how in case[kind].items()}


def hides_keys(mixer: Any) -> bool:
    """Whether a mixer supports blocked keys: all of its layers attend."""
    return all(one.has_attention() for one in getattr(mixer, "mixers", (mixer,)))

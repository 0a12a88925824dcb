"""The scan against the recurrence as it is written, in both of its forms, real and complex, and its gradient."""

from typing import Any

import pytest
import torch

from numerate.kernels import linear_scan as scan
from numerate.kernels.linear_scan import linear_scan

EXACT = {"atol": 1e-11, "rtol": 1e-11}
KINDS = [torch.float64, torch.complex128]


def sequential_scan(a: torch.Tensor, b: torch.Tensor, initial_state: torch.Tensor | None = None) -> torch.Tensor:
    """The recurrence step by step."""
    a, h, found = (
        a.expand(-1, b.shape[1], -1),
        torch.zeros_like(b[:, 0]) if initial_state is None else initial_state,
        [],
    )
    for place in range(b.shape[1]):
        h = a[:, place] * h + b[:, place]
        found.append(h)
    return torch.stack(found, dim=1)


def drawn(*shape: int, kind: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=kind, generator=torch.Generator().manual_seed(seed))


def factors(*shape: int, kind: torch.dtype = torch.float64) -> torch.Tensor:
    a = drawn(*shape, kind=kind, seed=1)
    return a / (a.abs() + 0.1)


@pytest.fixture(params=[1, 10**9], ids=["place by place", "chunk by chunk"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MIN_SEQUENTIAL_SIZE", request.param)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("time", [1, 2, 17, 50, 64, 131])
def test_it_is_the_recurrence_as_written(time: int, kind: torch.dtype) -> None:
    a, b, start = factors(3, time, 4, kind=kind), drawn(3, time, 4, kind=kind), drawn(3, 4, kind=kind, seed=2)
    for first in (None, start):
        torch.testing.assert_close(linear_scan(a, b, first), sequential_scan(a, b, first), **EXACT)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(3, 37, 4), (1, 37, 4), (3, 1, 4), (1, 1, 4)], ids=str)
@pytest.mark.parametrize("begins", [False, True])
def test_its_gradient_is_that_of_the_recurrence(shape: tuple[int, ...], kind: torch.dtype, begins: bool) -> None:
    given = [factors(*shape, kind=kind), drawn(3, 37, 4, kind=kind), *([drawn(3, 4, kind=kind)] if begins else [])]
    for tensor in given:
        tensor.requires_grad_()
    weights = drawn(3, 37, 4, kind=kind, seed=5)
    ours, theirs = (
        torch.autograd.grad((form(*given) * weights).sum().abs(), given) for form in (linear_scan, sequential_scan)
    )
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.usefixtures("form")
def test_decays_of_nothing_and_of_all_stay_exact_over_long_rows() -> None:
    a = torch.zeros(1, 3000, 3, dtype=torch.float32)
    a[..., 1], a[..., 2] = 1, -1
    found = linear_scan(a, torch.ones(1, 3000, 3))[0]
    assert torch.equal(found[:, 0], torch.ones(3000))
    assert torch.equal(found[:, 1], torch.arange(1, 3001).float())
    assert torch.equal(found[:, 2], (torch.arange(1, 3001) % 2).float())


@pytest.mark.usefixtures("form")
def test_half_precision_counts_beyond_its_own_numbers() -> None:
    a = torch.ones(1, 400, 1, dtype=torch.bfloat16)
    found = linear_scan(a, torch.ones_like(a))
    assert found.dtype == torch.float32
    assert found[0, -1] == 400, "the first number that bf16 cannot count to is 257"


@pytest.mark.parametrize("dims", [(0, 0, 0), (None, 0, None), (0, None, None), (1, 2, 0), (None, 0, 0)])
def test_members_of_a_stack_are_scanned_as_alone(dims: tuple[int | None, ...]) -> None:
    given: list[Any] = [factors(1, 20, 4), drawn(3, 20, 4), drawn(3, 4)]
    for number, dim in enumerate(dims):
        if dim is not None:
            several = torch.stack([given[number] * (0.5 + member) for member in range(2)])
            given[number] = several.movedim(0, dim)
    found = torch.vmap(linear_scan, in_dims=dims)(*given)
    for member in range(2):
        own = [x if dim is None else x.select(dim, member) for x, dim in zip(given, dims, strict=True)]
        torch.testing.assert_close(found[member], sequential_scan(*own), **EXACT)


def test_what_it_keeps_for_the_gradient_does_not_grow_with_its_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MIN_SEQUENTIAL_SIZE", 10**9)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        linear_scan(factors(2, 64, 8).requires_grad_(), drawn(2, 64, 8))
    assert sum(kept) == 2 * 2 * 64 * 8, "a and h"

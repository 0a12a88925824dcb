"""A stand-in for the few operations of `triton.language` that our kernels use, on tensors of torch.

It runs their lines where triton is not installed, and tests their arithmetic, their masks and their addresses, and not
what Triton's compiler makes of them.
"""

import importlib
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch


class Pointer:
    """The numbers of a tensor in memory, from a place on."""

    def __init__(self, flat: torch.Tensor, at: Any = 0) -> None:
        self.flat, self.at = flat, at
        self.dtype = type("Kind", (), {"element_ty": flat.dtype})

    def __add__(self, more: Any) -> "Pointer":
        return Pointer(self.flat, self.at + more)


class Kernel:
    """A function of a program, or a part of one. Programs run one after the other."""

    program: tuple[int, ...] = ()

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.function(*given, **named)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*given: Any, num_warps: int, num_stages: int = 3, **named: Any) -> None:
            assert num_warps & (num_warps - 1) == 0
            passed = [
                Pointer(
                    one.as_strided((one.untyped_storage().nbytes() // one.element_size(),), (1,), 0),
                    one.storage_offset(),
                )
                if isinstance(one, torch.Tensor)
                else one
                for one in given
            ]
            for Kernel.program in itertools.product(*map(range, grid)):
                self.function(*passed, **named)

        return run


def load(at: Pointer, mask: Any = True, other: float = 0) -> torch.Tensor:
    mask = torch.as_tensor(mask)
    assert bool((mask <= torch.as_tensor(at.at >= 0)).all())
    found = at.flat[torch.where(mask, at.at, 0)]  # an address beyond the tensor raises
    return torch.where(mask, found, torch.tensor(other, dtype=found.dtype))


def store(at: Pointer, found: torch.Tensor, mask: Any = True) -> None:
    places, found, mask = torch.broadcast_tensors(torch.as_tensor(at.at), found, torch.as_tensor(mask))
    at.flat[places[mask]] = found[mask].to(at.flat.dtype)


def dot(one: torch.Tensor, other: torch.Tensor, input_precision: str) -> torch.Tensor:
    assert one.dtype == other.dtype
    assert min(*one.shape[-2:], other.shape[-1]) >= 16
    return one.float() @ other.float()


def stand_in() -> dict[str, ModuleType]:
    """The modules by name."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    both: dict[str, Any] = {"cdiv": lambda one, other: -(-one // other)}
    vars(triton).update(both, jit=Kernel, next_power_of_2=lambda n: 1 << (n - 1).bit_length(), language=language)
    vars(language).update(
        both,
        constexpr=int,
        float32=torch.float32,
        int64=torch.int64,
        program_id=lambda axis: torch.tensor(Kernel.program[axis]),
        arange=torch.arange,
        zeros=lambda shape, kind: torch.zeros(shape, dtype=kind),
        full=lambda shape, value, kind: torch.full(shape, value, dtype=kind),
        minimum=lambda one, other: torch.minimum(torch.as_tensor(one), torch.as_tensor(other)),
        maximum=lambda one, other: torch.maximum(one, torch.as_tensor(other, dtype=one.dtype)),
        where=lambda shown, one, other: torch.where(shown, one, other),
        max=lambda x, axis: x.amax(axis),
        sum=lambda x, axis: x.sum(axis),
        exp=torch.exp,
        log=torch.log,
        permute=torch.permute,
        load=load,
        store=store,
        dot=dot,
    )
    triton.__spec__ = language.__spec__ = ModuleSpec("triton", None)
    return {"triton": triton, "triton.language": language}


@contextmanager
def imported(name: str, patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module with kernels, imported where nothing but a stand-in for triton is at hand."""
    for own, module in stand_in().items():
        patch.setitem(sys.modules, own, module)
    patch.setenv("TRITON_INTERPRET", "1")
    patch.delitem(sys.modules, name, raising=False)
    folder, _, file = name.rpartition(".")
    yield importlib.import_module(name)
    sys.modules.pop(name, None)
    vars(sys.modules[folder]).pop(file, None)

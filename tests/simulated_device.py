"""A device that is not the CPU, simulated: its tensors hold real values, and the CPU computes every operator.

`with simulated_device() as log:` runs code on tensors of `DEVICE`, among others whole training steps. As on CUDA,

- an operator on tensors of both devices raises `RuntimeError`. A CPU tensor of 0 dimensions may enter an elementwise
  operator; indices on the CPU may not, which CUDA would copy and wait for. Numpy reads no tensor of the device.
- `log.waits` has what waits for the device, with the line of numerate that asks for it: values that Python reads,
  operators whose output size depends on values, copies to the host, copies from memory that is not pinned.
- `log.operators` counts operators; a fused attention or LSTM counts as one, each way.

It does not show whether CUDA has a kernel for an operator and a dtype, its rounding, its memory and time, generators of
a device (random numbers are those of the CPU's), half precision, and what is chosen by `is_cuda`
(flash-linear-attention).
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import optimizer
from torch.utils import _foreach_utils, backend_registration
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import numerate

NAME = "simulated"

WAITING = {
    "_local_scalar_dense",
    "_unique",
    "_unique2",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
}
"""Operators that wait: Python reads a value, or the size of the output depends on values."""

SCALAR_FROM_CPU = {"fill_", "index_put", "index_put_", "masked_fill", "masked_fill_"}
"""Operators that take a CPU tensor of 0 dimensions, beside the elementwise ones."""

LENGTHS_FROM_CPU = {"_pack_padded_sequence", "_pack_padded_sequence_backward", "_pad_packed_sequence", "lstm"}
"""Operators that want the lengths of rows on the CPU."""

FUSED = ("scaled_dot_product_attention", "rms_norm", "lstm.input", "lstm.data", "gru.input", "rnn_tanh.input")
"""Operators that CUDA fuses, and that torch composes of many others on a device of which it knows nothing."""

FACTORIES = (
    "arange",
    "arange.start",
    "arange.start_step",
    "eye.m",
    "linspace",
    "randperm.generator",
    "tril_indices",
    "triu_indices",
)
"""Operators without a tensor among their arguments, beside those that fill an empty one."""


@dataclass(frozen=True)
class Wait:
    """A wait for the device: the operator, and the line of numerate that it is for, such as `batch.py:97 to`."""

    operator: str
    line: str


@dataclass
class DeviceLog:
    """What ran on the device."""

    operators: Counter[str] = field(default_factory=Counter)
    waits: list[Wait] = field(default_factory=list)

    def clear(self) -> None:
        self.operators.clear()
        self.waits.clear()


class SimulatedTensor(Tensor):
    """A tensor of the device; `values` is the tensor of the CPU that it stands for."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> "SimulatedTensor":
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        tensor = Tensor._make_wrapper_subclass(cls, values.size(), **layout, device=DEVICE)
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy; use Tensor.cpu() first")

    def __deepcopy__(self, memo: Any) -> Tensor:
        copied = SimulatedTensor(self.values.clone()).requires_grad_(self.requires_grad)
        return Parameter(copied, self.requires_grad) if isinstance(self, Parameter) else copied

    def __repr__(self) -> str:
        return f"{self.values!r} on {DEVICE}"


@contextlib.contextmanager
def simulated_device() -> Iterator[DeviceLog]:
    """Counts what runs on `DEVICE` within; `log.clear()` starts again."""
    global _log
    previous, _log = _log, DeviceLog()
    previous_lift = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=DEVICE) is made on the CPU and copied
    # Backward passes in this thread: the threads of a device would be started, or not, once for the whole process.
    with (
        torch.autograd.set_multithreading_enabled(False),
        mock.patch.object(Module, "_apply", _apply),
        mock.patch.object(Tensor, "pin_memory", _pin_memory),
        mock.patch.object(Tensor, "is_pinned", lambda tensor, *args: getattr(tensor, "_simulated_pin", False)),
    ):
        try:
            yield _log
        finally:
            _log = previous
            torch._C._set_only_lift_cpu_tensors(previous_lift)


_log: DeviceLog | None = None


_module_apply = Module._apply


def _apply(module: Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Module:
    """`Module.to`, by which parameters stay the same objects on the device, so that tied ones stay tied."""
    with mock.patch.object(torch.__future__, "get_swap_module_params_on_conversion", return_value=True):
        return _module_apply(module, fn, recurse)


def _pin_memory(tensor: Tensor, *args: Any) -> Tensor:
    pinned = tensor.clone()
    pinned._simulated_pin = True  # type: ignore[attr-defined]
    return pinned


# Operators ------------------------------------------------------------------------------------------------------------


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """An operator with a tensor of the device among its arguments."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    name = func._schema.name.partition("::")[2]
    _check_devices(name, func, args, tensors)
    _record(name, args, kwargs)
    # Below autograd torch does not look at the mark of a conjugated view.
    func = {torch.ops.aten._conj.default: torch.ops.aten.conj_physical.default}.get(func, func)
    cpu_args, cpu_kwargs = tree_map(_to_cpu, (args, kwargs))
    inputs = {id(_to_cpu(tensor)): tensor for tensor in tensors}
    to_host = kwargs.get("device") is not None and torch.device(kwargs["device"]).type != NAME

    def wrap(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) not in inputs:
            return x if to_host else SimulatedTensor(x)
        same = inputs[id(x)]  # an operator in place
        if (same.shape, same.stride()) != (x.shape, x.stride()):
            raise NotImplementedError(f"{func} changes the shape of a tensor in place; simulated_device.py cannot")
        return same

    return tree_map(wrap, func(*cpu_args, **cpu_kwargs))


def _to_cpu(x: Any) -> Any:
    if isinstance(x, SimulatedTensor):
        return x.values
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == NAME else x


def _check_devices(name: str, func: Any, args: Any, tensors: list[Tensor]) -> None:
    foreign = [tensor for tensor in tensors if not isinstance(tensor, SimulatedTensor)]
    if not foreign or name == "copy_" or name in LENGTHS_FROM_CPU:
        return
    takes_scalars = torch.Tag.pointwise in func.tags or name in SCALAR_FROM_CPU or name.startswith("_foreach_")
    indices = [id(index) for index in args[1]] if name in ("index_put", "index_put_") else []
    if not takes_scalars or any(tensor.dim() or id(tensor) in indices for tensor in foreign):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in foreign)
        raise RuntimeError(f"{func}: expected all tensors on {DEVICE}, but some are on the CPU; their shapes: {shapes}")


def _record(name: str, args: Any, kwargs: Any) -> None:
    if _log is None:
        return
    _log.operators[name] += 1
    if (reason := _wait(name, args, kwargs)) is not None:
        _log.waits.append(Wait(reason, _line_of_numerate()))


def _wait(name: str, args: Any, kwargs: Any) -> str | None:
    """What an operator waits for, if it does."""
    if name == "copy_":
        target, source, *non_blocking = args
        if not isinstance(target, SimulatedTensor):
            return "copy to the host"
        is_async = (non_blocking or [kwargs.get("non_blocking", False)])[0] and source.is_pinned()
        return None if isinstance(source, SimulatedTensor) or is_async else "copy from memory that is not pinned"
    if name == "_to_copy":
        device = kwargs.get("device")
        return None if device is None or device.type == NAME else "copy to the host"
    if name == "repeat_interleave":
        return None if kwargs.get("output_size") is not None else name
    if name in ("index", "index_put", "index_put_"):
        masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
        is_masked_fill = name != "index" and args[2].numel() == 1 and len(args[1]) == 1
        return f"{name} with a mask" if masks and not is_masked_fill else None
    return name if name in WAITING else None


def _line_of_numerate() -> str:
    frame, line = sys._getframe(1), "outside of numerate"
    source = str(Path(numerate.__file__).parent)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(source):
            return f"{Path(code.co_filename).relative_to(source)}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    return line


# The device -----------------------------------------------------------------------------------------------------------


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return _is_available()

    def has_primary_context(self, device_index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def _is_available() -> bool:
    return _log is not None


_GUARD, _HOOKS = _Guard(), _Hooks()
_LIBRARY = torch.library.Library("aten", "IMPL")


@cache
def _register() -> torch.device:
    """Registers the device, once for a process."""
    # The first backward pass of a process starts a thread for each device, after which the process cannot be forked.
    torch.zeros((), requires_grad=True).backward()
    module = ModuleType(NAME)
    vars(module).update(
        current_device=lambda: 0,
        device_count=lambda: 1,
        is_available=_is_available,  # elsewhere libraries would take the device for an accelerator
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
        get_amp_supported_dtype=lambda: [],
    )
    backend_registration._setup_privateuseone_for_python_backend(NAME, module, _HOOKS, _GUARD)
    _LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
    _LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
    for name in FACTORIES:
        _LIBRARY.impl(name, _factory(name), "PrivateUse1")
    for name in FUSED:
        _LIBRARY.impl(name, _fused(name), "AutogradPrivateUse1")
    return torch.device(NAME, 0)


def _operator(name: str) -> tuple[str, Any]:
    packet, _, overload = name.partition(".")
    return packet, getattr(getattr(torch.ops.aten, packet), overload or "default")


def _factory(name: str) -> Callable[..., Tensor]:
    packet, func = _operator(name)

    def make(*args: Any, device: Any = None, pin_memory: Any = None, **options: Any) -> Tensor:
        _record(packet, args, options)
        return SimulatedTensor(func(*args, **options))

    return make


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any) -> Tensor:
    return SimulatedTensor(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    return SimulatedTensor(torch.empty_strided(size, stride, dtype=dtype))


def _fused(name: str) -> Callable[..., Any]:
    """An operator that CUDA fuses, as one operator with one gradient."""
    packet, func = _operator(name)

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree_flatten((args, kwargs))
        _check_devices(packet, func, args, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
        return _Fused.apply(packet, func, structure, *leaves)

    return run


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, func: Any, structure: Any, *leaves: Any) -> Any:
        inputs = [
            leaf.values.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, SimulatedTensor) else leaf
            for leaf in leaves
        ]
        args, kwargs = tree_unflatten(inputs, structure)
        _record(name, args, kwargs)
        with torch.enable_grad():
            result = func(*args, **kwargs)
        ctx.name, ctx.inputs, ctx.result = name, inputs, result
        return tree_map(lambda x: SimulatedTensor(x.detach()) if isinstance(x, Tensor) else x, result)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _record(f"{ctx.name}_backward", (), {})
        wanted = [x for x in ctx.inputs if isinstance(x, Tensor) and x.requires_grad]
        results = [ctx.result] if isinstance(ctx.result, Tensor) else ctx.result
        given = [(out, grad.values) for out, grad in zip(results, gradients, strict=True) if out.requires_grad]
        found = iter(torch.autograd.grad([out for out, _ in given], wanted, [grad for _, grad in given]))
        return (
            None,
            None,
            None,
            *(SimulatedTensor(next(found)) if isinstance(x, Tensor) and x.requires_grad else None for x in ctx.inputs),
        )


DEVICE = _register()
for _types in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
    _types.append(SimulatedTensor)  # clipping and the optimizer take all parameters at once, as on CUDA

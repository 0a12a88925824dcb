"""Functions that a compiled graph calls as one operator, gradients included.

`torch.compile` would write a loop over a row out, which takes minutes, once for every length. Inside a compiled graph
such a function is one custom operator (`torch.library.custom_op`), and its gradient another. Elsewhere nothing changes.
"""

import ast
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import unwrap
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Tensors = Sequence[Tensor | None]

_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


def as_operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """One operator for an autograd function with `setup_context` that returns a tuple, called as by its `apply`; or for
    a function that returns a tuple of tensors, whose gradient computes it again.

    It must be found under its name in its module. Its arguments are tensors, numbers, booleans, strings or None.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    plain: Callable[..., Any] = getattr(function, "apply", function)

    @wraps(function)
    def guarded(*inputs: Any) -> Any:
        return _call(name, inputs) if torch.compiler.is_compiling() else plain(*inputs)

    return guarded


def _call(name: str, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    constants = ["" if isinstance(x, Tensor) else repr(x) for x in inputs]
    device = tensors[0].device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return tuple(torch.ops.numerate.call(name, tensors, constants, autocast))


def _merge(tensors: Sequence[Any], constants: Sequence[str]) -> list[Any]:
    """The arguments in their order: tensors where a constant is the empty string."""
    rest = iter(tensors)
    return [ast.literal_eval(text) if text else next(rest) for text in constants]


class _Recomputed:
    """A function with the methods of an autograd function."""

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.forward = function

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
        ctx.constants = ["" if isinstance(x, Tensor) else repr(x) for x in inputs]

    def backward(self, ctx: Any, *gradients: Tensor) -> list[Tensor | None]:
        needed = [need for need, text in zip(ctx.needs_input_grad, ctx.constants, strict=True) if not text]
        places = [place for place, need in enumerate(needed) if need]

        def of_needed(*tensors: Tensor) -> tuple[Tensor, ...]:
            given = dict(enumerate(ctx.saved_tensors)) | dict(zip(places, tensors, strict=True))
            return self.forward(*_merge(list(given.values()), ctx.constants))

        inputs = tuple(ctx.saved_tensors[place] for place in places)
        found = iter(torch.autograd.functional.vjp(of_needed, inputs, gradients)[1])  # type: ignore[no-untyped-call]
        return [next(found) if need else None for need in ctx.needs_input_grad]


class _Context(SimpleNamespace):
    """The `ctx` of an autograd function."""

    saved_tensors: Tensors = ()
    without_gradient: Sequence[Tensor] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.without_gradient = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Missing gradients are zeros."""


def _resolve(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found = attrgetter(qualname)(sys.modules[module])
    return found if isinstance(found, type) else _Recomputed(unwrap(found))


def _forward(
    name: str, tensors: Sequence[Tensor], constants: Sequence[str], autocast: torch.dtype | None
) -> list[Tensor]:
    """The outputs."""
    with _autocast(tensors, autocast):
        outputs = _resolve(name).forward(*_merge(tensors, constants))
    return _own_memory(outputs, tensors)


def _backward(
    name: str,
    saved: Tensors,
    gradients: Tensors,
    attributes: str,
    needed: Sequence[bool],
    autocast: torch.dtype | None,
) -> list[Tensor]:
    """The gradients of the inputs that need one, from those of the outputs."""
    ctx = _Context(saved_tensors=saved, needs_input_grad=tuple(needed), **ast.literal_eval(attributes))
    # Some compute their outputs again and differentiate them; inside an operator autograd is off.
    with _autocast(saved, autocast), torch._C._SetExcludeDispatchKeyGuard(_AUTOGRAD, False):
        found = _resolve(name).backward(ctx, *gradients)
    return _own_memory([x for x, is_needed in zip(found, needed, strict=False) if is_needed], [*saved, *gradients])


def _autocast(tensors: Tensors, dtype: torch.dtype | None) -> torch.autocast:
    """An operator runs where the autocast around its call is over."""
    device = next(x.device.type for x in tensors if x is not None)
    return torch.autocast(device, dtype=dtype, enabled=dtype is not None)


def _own_memory(outputs: Sequence[Tensor], inputs: Tensors) -> list[Tensor]:
    """Contiguous outputs that share no memory with each other or an input, as an operator must return."""
    made, taken = [], {x.untyped_storage()._cdata for x in inputs if x is not None}
    for x in outputs:
        x = x.resolve_conj()
        is_own = x.is_contiguous() and x.untyped_storage()._cdata not in taken
        made.append(x if is_own else x.clone(memory_format=torch.contiguous_format))
        taken.add(made[-1].untyped_storage()._cdata)
    return made


def _without_data(compute: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """An operator for tensors that have shapes only. A graph is traced several times, and a long loop takes a while:
    it is computed once for each set of shapes."""
    known: dict[Any, list[tuple[torch.Size, torch.dtype]]] = {}

    def fake(*given: Any) -> list[Tensor]:
        parts = [x for part in given for x in (part if isinstance(part, list) else [part])]
        tensors = [x for x in parts if isinstance(x, Tensor)]
        if any(not isinstance(size, int) for x in tensors for size in x.shape):
            return compute(*given)
        key = tuple((x.shape, x.dtype, x.device) if isinstance(x, Tensor) else x for x in parts)
        if key not in known:
            known[key] = [(x.shape, x.dtype) for x in compute(*given)]
        return [tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in known[key]]

    return fake


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    name, tensors, constants, ctx.autocast = inputs
    seen = _Context()
    _resolve(name).setup_context(seen, tuple(_merge(tensors, constants)), tuple(output))
    ctx.save_for_backward(*seen.__dict__.pop("saved_tensors"))
    without_gradient = {id(x) for x in seen.__dict__.pop("without_gradient", ())}
    ctx.name, ctx.constants, ctx.has_gradient = name, constants, [id(x) not in without_gradient for x in output]
    ctx.attributes = repr(vars(seen))


def _differentiate(ctx: Any, by_outputs: list[Tensor]) -> tuple[Any, ...]:
    needed = ctx.needs_input_grad[1]
    gradients = [x if has_gradient else None for x, has_gradient in zip(by_outputs, ctx.has_gradient, strict=True)]
    is_needed = [bool(x) for x in _merge(needed, [text and "False" for text in ctx.constants])]
    found = iter(
        torch.ops.numerate.call_backward(
            ctx.name, ctx.saved_tensors, gradients, ctx.attributes, is_needed, ctx.autocast
        )
    )
    return None, [next(found) if need else None for need in needed], None, None


def _register() -> None:
    """Dropout inside makes two equal calls different."""
    call = torch.library.custom_op(
        "numerate::call",
        _forward,
        mutates_args=(),
        schema="(str name, Tensor[] tensors, str[] constants, ScalarType? autocast) -> Tensor[]",
        tags=torch.Tag.nondeterministic_seeded,
    )
    call.register_fake(_without_data(_forward))
    call.register_autograd(_differentiate, setup_context=_setup_context)
    call_backward = torch.library.custom_op(
        "numerate::call_backward",
        _backward,
        mutates_args=(),
        schema="(str name, Tensor?[] saved, Tensor?[] gradients, str attributes, bool[] needed, ScalarType? autocast)"
        " -> Tensor[]",
    )
    call_backward.register_fake(_without_data(_backward))


_register()

"""Specs made of functions, whose arguments are the settings: `wrap_model`, `wrap_loss`."""

import inspect
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields, make_dataclass
from typing import Any, ClassVar

from numerate.config.settings import Spec, setting
from numerate.errors import UserError


class FunctionSpec(Spec, ABC):
    """The base of specs that `spec_from_function` makes."""

    function: ClassVar[Callable[..., Any]]

    def call_function(self, *inputs: Any) -> Any:
        """Calls the function with these inputs, and with the settings as further arguments."""
        return self.function(*inputs, **{field.name: getattr(self, field.name) for field in fields(self)})  # type: ignore[arg-type]


def spec_from_function(
    function: Callable[..., Any], base: type[FunctionSpec], decorator: str, inputs: Sequence[str]
) -> Any:
    """A spec class with the name, module and docstring of a function or class. The arguments behind the `inputs` are
    its settings; the default of one may be `setting(...)`, with its meaning and bounds.

    Raises `UserError` for what has no name, is defined inside a function, or does not take the inputs, and for a
    setting without a default, or with one that can be changed in place.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        found = name or f"a {type(function).__name__}"
        raise UserError(
            f"{decorator}: must decorate a function or class (`def name({', '.join(inputs)}): ...`), not {found}"
        )
    if function.__qualname__ != name:
        outer = function.__qualname__.removesuffix(f".{name}").removesuffix(".<locals>")
        raise UserError(
            f"{decorator}: {name} must be defined at the top level of a file, where a saved run finds it, not in "
            f"{outer}; what varies is an argument with a default"
        )
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < len(inputs):
        raise UserError(f"{name}: must take {' and '.join(inputs)} as its first arguments")
    settings: list[tuple[str, Any, Any]] = []
    for parameter in parameters[len(inputs) :]:
        default = parameter.default
        if default is inspect.Parameter.empty:
            raise UserError(f"{name}: {parameter.name} has no default; every setting needs one")
        if parameter.name in dir(base):
            raise UserError(f"{name}: no setting can be called {parameter.name!r}, which is taken; rename it")
        if isinstance(getattr(default, "default", default), list | dict | set):
            raise UserError(f"{name}: the default of {parameter.name} can be changed in place; use a tuple or a text")
        declared = default if isinstance(default, Field) else setting(default, f"argument {parameter.name} of {name}")
        settings.append((parameter.name, _type_hint(parameter, declared), declared))
    spec = make_dataclass(name, settings, bases=(base,), frozen=True, namespace={"function": staticmethod(function)})
    spec.__module__, spec.__qualname__ = function.__module__, function.__qualname__
    spec.__doc__ = inspect.cleandoc(function.__doc__ or f"{name}, a function of {function.__module__}.")
    return spec


def _type_hint(parameter: inspect.Parameter, declared: Any) -> Any:
    """The annotation of an argument; without one, the type of its default."""
    if parameter.annotation is not inspect.Parameter.empty:
        return parameter.annotation
    default = declared.default
    return type(default) if default is not MISSING and type(default) in (bool, int, float, str) else Any

"""Annotations such as `Float[Tensor, "rows time"]` in exported folders, where jaxtyping is not installed."""

from typing import Any


class _Shaped:
    def __class_getitem__(cls, type_and_shape: tuple[Any, str]) -> Any:
        return type_and_shape[0]


Bool = Complex = Float = Inexact = Int = Num = Shaped = _Shaped

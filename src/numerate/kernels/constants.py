"""Tensors of a module that follow from its settings."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Constants(nn.Module):
    """A module with buffers that no file of weights has. Their values are kept on the CPU, too: `to_empty` empties such
    buffers, and nothing fills them afterwards."""

    def register_constant(self, name: str, compute: Callable[[], Tensor]) -> None:
        """Registers what `compute` returns, on whatever device modules are built."""
        with torch.device("cpu"):
            value = compute()
        self._constants = getattr(self, "_constants", {}) | {name: value}
        self.register_buffer(name, value.to(torch.empty(0).device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Constants":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in getattr(self, "_constants", {}).items():
            setattr(self, name, value.to(self.get_buffer(name)))
        return self

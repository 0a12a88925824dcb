"""The number tokens of a vocabulary and their values, as tensors."""

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Int
from torch import Tensor, nn

from numerate.errors import UserError

NO_EXPONENT = -1000
"""The significance of a token without a power of ten of its own."""


class NumberTable(nn.Module):
    """The tokens with a value, as non-persistent buffers.

    - `ids` [n] are their ids, rising; `values` [n] (float64, whatever a model is cast to) what they are worth.
    - `digits` [n] is how many digits a token writes: 1 for `7`, 3 for `007`, 0 for one that is no run of digits (`-5`).
    - `significance` [n] is the power of ten that a token itself has (`_5_2_` has 2), `NO_EXPONENT` for an ordinary one.
    - `index` [width] is the index of each id among them, -1 for a token without a value.

    `spread` is the largest distance between two values and `closest` the smallest that is not 0.

    >>> table = NumberTable.of({4: 0.0, 5: 1.0, 6: 10.0}, width=8)
    >>> table.spread, table.closest, table.index.tolist()
    (10.0, 1.0, [-1, -1, -1, -1, 0, 1, 2, -1])
    """

    ids: Tensor
    values: Tensor
    digits: Tensor
    significance: Tensor
    order: Tensor
    index: Tensor

    def __init__(
        self,
        values: Mapping[int, float],
        width: int,
        digits: Mapping[int, int] | None = None,
        significance: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__()
        ids = sorted(values)
        if not ids:
            raise UserError("number tokens: no token has a value; give {id: value} for those that do")
        if ids[0] < 0 or ids[-1] >= width:
            outside = ids[0] if ids[0] < 0 else ids[-1]
            raise UserError(f"number tokens: id {outside} is outside the vocabulary; 0 to {width - 1} are inside")
        for i in ids:
            if not math.isfinite(values[i]):
                raise UserError(f"number tokens: id {i} has the value {values[i]}; a finite number is right")
        worth = torch.tensor([float(values[i]) for i in ids], dtype=torch.float64)
        counted = [digit_count(float(values[i])) if digits is None else digits.get(i, 0) for i in ids]
        index = torch.full((width,), -1, dtype=torch.int64)
        index[ids] = torch.arange(len(ids))
        self.width, self.largest = width, ids[-1]
        gaps = worth.sort().values.diff()
        self.spread = float(worth.max() - worth.min())
        self.closest = float(gaps[gaps > 0].min()) if bool((gaps > 0).any()) else 0.0
        exponents = [NO_EXPONENT if significance is None else significance.get(i, NO_EXPONENT) for i in ids]
        for name, buffer in {
            "ids": torch.tensor(ids),
            "values": worth,
            "digits": torch.tensor(counted),
            "significance": torch.tensor(exponents),
            "order": worth.argsort(stable=True),
            "index": index,
        }.items():
            self.register_buffer(name, buffer, persistent=False)

    @classmethod
    def of(
        cls,
        values: Mapping[int, float],
        width: int,
        digits: Mapping[int, int] | None = None,
        significance: Mapping[int, int] | None = None,
    ) -> "NumberTable":
        """From `{id: value}`, for logits of at least `width` entries.

        `digits` says how many digits each id writes, for tokens such as `007`; without it, whole numbers write theirs.
        Raises `UserError` where there is none, for an id outside the vocabulary, and for a value that is not finite.
        """
        return cls(values, width, digits, significance)

    @property
    def count(self) -> int:
        """How many tokens have a value."""
        return len(self.ids)

    def of_labels(self, labels: Int[Tensor, "*places"]) -> Int[Tensor, "*places"]:
        """Which of the number tokens each label is; -1 for any other label, and for what is ignored."""
        inside = (labels >= 0) & (labels < self.width)
        return torch.where(inside, self.index[torch.where(inside, labels, 0)], -1)

    def check(self, width: int, labels: Tensor | None = None, ignore_index: int = -100) -> None:
        """Raises `UserError` for logits too narrow for these tokens, and, where looking is cheap, for labels outside.

        Logits may be wider than the table: vocabularies are padded.
        """
        if self.largest >= width:
            raise UserError(
                f"logits: {width} wide, but token {self.largest} has a value; "
                f"they must be as wide as the vocabulary, {self.width} here"
            )
        if labels is None or labels.device.type != "cpu" or labels.numel() == 0 or traced(labels):
            return
        low, high = (int(end) for end in labels.aminmax())
        if high >= width or low < 0:
            real = labels[labels != ignore_index]
            if real.numel() and (int(real.min()) < 0 or int(real.max()) >= width):
                wrong = int(real.min()) if int(real.min()) < 0 else int(real.max())
                raise UserError(
                    f"labels: {wrong} is outside the vocabulary; 0 to {width - 1} are inside, "
                    f"and {ignore_index} is ignored"
                )

    @staticmethod
    def belong(places: torch.Size, labels: torch.Size) -> None:
        """Raises `UserError` for labels whose shape is not that of the logits without the vocabulary."""
        if tuple(places) != tuple(labels):
            raise UserError(f"labels: {tuple(labels)} places, and the logits have {tuple(places)}; as many are right")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NumberTable":
        device = fn(self.ids).device
        wide = torch.float32 if device.type == "mps" else torch.float64
        for name in ("ids", "digits", "significance", "order", "index"):
            setattr(self, name, getattr(self, name).to(device))
        self.values = self.values.to(device, wide)
        return self


def traced(tensor: Tensor) -> bool:
    """Whether the values of a tensor cannot be read: while compiling, or inside vmap."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def digit_count(value: float) -> int:
    """Number of digits of a non-negative integer; 0 for any other number."""
    return len(str(int(value))) if value >= 0 and value.is_integer() else 0

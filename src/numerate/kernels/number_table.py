"""The number tokens of a vocabulary and their values, as tensors."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy

import torch
from jaxtyping import Int
from torch import Tensor, nn

from numerate.errors import UserError, raise_first

NO_EXPONENT = -1000
"""The significance of a token without its own power of ten."""


class NumberTokenTable(nn.Module):
    """The tokens with a value, as tensors that follow the module to its device.

    They are no buffers, and also kept on the CPU, so that their values outlast the meta device, `to_empty` and
    `from_pretrained` of transformers.

    - `ids` [n] are their ids, ascending; `values` [n] their values (float64, even if the model is cast).
    - `digit_counts` [n] is the number of digits of each token: 1 for `7`, 3 for `007`, 0 for one that is not all digits
      (`-5`).
    - `significance` [n] is the power of ten of a token that has its own (`_5_2_` has 2), `NO_EXPONENT` for others.
    - `starts_number` [n] is whether a token never continues a number, such as ` 7` with its space.
    - `index_of_id` [vocabulary_size] is the index of each id among them, -1 for a token without a value.

    `max_distance` is the largest distance between two values and `min_distance` the smallest that is not 0.

    >>> table = NumberTokenTable.from_values({4: 0.0, 5: 1.0, 6: 10.0}, vocabulary_size=8)
    >>> table.max_distance, table.min_distance, table.index_of_id.tolist()
    (10.0, 1.0, [-1, -1, -1, -1, 0, 1, 2, -1])
    """

    ids: Tensor
    values: Tensor
    digit_counts: Tensor
    significance: Tensor
    starts_number: Tensor
    value_order: Tensor
    index_of_id: Tensor
    logit_ids: Tensor

    def __init__(
        self,
        values: Mapping[int, float],
        vocabulary_size: int,
        digit_counts: Mapping[int, int] | None = None,
        significance: Mapping[int, int] | None = None,
        starting_ids: Collection[int] = (),
    ) -> None:
        super().__init__()
        ids = sorted(values)
        raise_first(_value_problems(values, vocabulary_size))
        value_tensor = torch.tensor([float(values[i]) for i in ids], dtype=torch.float64)
        token_digit_counts = [
            digit_count(float(values[i])) if digit_counts is None else digit_counts.get(i, 0) for i in ids
        ]
        index_of_id = torch.full((vocabulary_size,), -1, dtype=torch.int64)
        index_of_id[ids] = torch.arange(len(ids))
        self.vocabulary_size, self.max_id = vocabulary_size, ids[-1]
        gaps = value_tensor.sort().values.diff()
        self.max_distance = float(value_tensor.max() - value_tensor.min())
        self.min_distance = float(gaps[gaps > 0].min()) if bool((gaps > 0).any()) else 0.0
        exponents = [NO_EXPONENT if significance is None else significance.get(i, NO_EXPONENT) for i in ids]
        self._constants = {
            "ids": torch.tensor(ids),
            "values": value_tensor,
            "digit_counts": torch.tensor(token_digit_counts),
            "significance": torch.tensor(exponents),
            "starts_number": torch.tensor([i in starting_ids for i in ids]),
            "value_order": value_tensor.argsort(stable=True),
            "index_of_id": index_of_id,
        }
        self.read_logits_of(())
        self._copies: dict[torch.device, NumberTokenTable] = {}

    @classmethod
    def from_values(
        cls,
        values: Mapping[int, float],
        vocabulary_size: int,
        digit_counts: Mapping[int, int] | None = None,
        significance: Mapping[int, int] | None = None,
        starting_ids: Collection[int] = (),
    ) -> "NumberTokenTable":
        """From `{id: value}`, for logits of at least `vocabulary_size` entries.

        `digit_counts` says how many digits each id writes, for tokens such as `007`; without it, whole numbers write
        theirs. `starting_ids` never continue a number. Raises `UserError` if there is none, for an id outside the
        vocabulary, and for a value that is not finite.
        """
        with torch.device("cpu"):
            return cls(values, vocabulary_size, digit_counts, significance, starting_ids)

    def read_logits_of(self, more_ids: Sequence[int]) -> None:
        """Makes `logit_ids` the ids of these tokens, followed by `more_ids`."""
        more = torch.tensor(more_ids, dtype=torch.int64, device="cpu")
        self._constants["logit_ids"] = torch.cat([self._constants["ids"], more])
        self.__dict__.update(self._constants)

    @property
    def count(self) -> int:
        """Number of tokens with a value."""
        return len(self.ids)

    def on(self, device: torch.device) -> "NumberTokenTable":
        """The table on the device of some labels, which are counted before they are copied to that of the model."""
        if self.ids.device == device:
            return self
        if device not in self._copies:
            self._copies[device] = deepcopy(self).to(device)
        return self._copies[device]

    def number_indices(self, labels: Int[Tensor, "*positions"]) -> Int[Tensor, "*positions"]:
        """The number token index of each label; -1 for any other or ignored label."""
        valid_mask = (labels >= 0) & (labels < self.vocabulary_size)
        return torch.where(valid_mask, self.index_of_id[torch.where(valid_mask, labels, 0)], -1)

    def count_numbers(self, labels: Int[Tensor, "*positions"]) -> int:
        """How many labels, on any device, are number tokens."""
        return int((self.on(labels.device).number_indices(labels) >= 0).sum())

    def check_logits_and_labels(self, num_logits: int, labels: Tensor | None = None, ignore_index: int = -100) -> None:
        """Raises `UserError` for logits too narrow for these tokens, and, if checking is cheap, for labels outside the
        vocabulary. Logits may be wider than the table, as vocabularies are often padded.
        """
        if self.max_id >= num_logits:
            raise UserError(
                f"logits: {num_logits} wide, but token {self.max_id} has a value; "
                f"they must be as wide as the vocabulary, {self.vocabulary_size} here"
            )
        if labels is None or labels.numel() == 0 or not can_read_values(labels):
            return
        low, high = (int(end) for end in labels.aminmax())
        if high >= num_logits or low < 0:
            valid_labels = labels[labels != ignore_index]
            if valid_labels.numel() and (int(valid_labels.min()) < 0 or int(valid_labels.max()) >= num_logits):
                invalid_label = int(valid_labels.min()) if int(valid_labels.min()) < 0 else int(valid_labels.max())
                raise UserError(
                    f"labels: {invalid_label} is outside the vocabulary; 0 to {num_logits - 1} are inside, "
                    f"and {ignore_index} is ignored"
                )

    @staticmethod
    def check_same_shape(logits_shape: torch.Size, labels_shape: torch.Size) -> None:
        """Raises `UserError` for labels whose shape is not that of the logits without the vocabulary."""
        if tuple(logits_shape) != tuple(labels_shape):
            raise UserError(
                f"labels: must have the shape of the logits without the vocabulary, {tuple(logits_shape)}, "
                f"not {tuple(labels_shape)}"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NumberTokenTable":
        device = fn(self.ids).device
        float_dtype = torch.float32 if device.type == "mps" else torch.float64
        for name, value in self._constants.items():
            setattr(self, name, value.to(device, float_dtype if value.is_floating_point() else value.dtype))
        return self


def can_read_values(tensor: Tensor) -> bool:
    """Whether its values can be read without waiting for a device or breaking a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def digit_count(value: float) -> int:
    """Number of digits of a non-negative integer; 0 for any other number."""
    return len(str(int(value))) if value >= 0 and value.is_integer() else 0


def _value_problems(values: Mapping[int, float], vocabulary_size: int) -> Iterator[str]:
    """What is wrong with the values of number tokens."""
    if not values:
        yield "number tokens: there must be at least one token with a value; pass {id: value}"
    for i, value in sorted(values.items()):
        if not 0 <= i < vocabulary_size:
            yield f"number tokens: ids must be from 0 to {vocabulary_size - 1}, not {i}"
        if not math.isfinite(value):
            yield f"number tokens: the value of id {i} must be finite, not {value}"

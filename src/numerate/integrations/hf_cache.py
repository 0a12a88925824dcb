"""A cache of numerate models that transformers' `generate` can hold, reorder and crop."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.batch import Model, Tokens
from numerate.errors import UserError
from numerate.mixers.mixer import OfAllRows
from numerate.vocabulary import PAD

_Cache: Any = import_module("transformers.cache_utils").Cache  # of which little is typed

SPARE = 64
"""Spare positions of a cache beyond twice the longest row, where `generate` gives no length."""


class NumerateCache(_Cache):  # type: ignore[misc]
    """The state of `Model.start` and `Model.step`, with all columns read so far: a cache for any mixer.

    One more token is one step. All else (a crop by assisted decoding, a prompt continued by several tokens, a row
    longer than `capacity`) reads all columns again.

    >>> cache = NumerateCache(capacity=64)
    >>> model(ids, past_key_values=cache, use_cache=True)
    >>> cache.get_seq_length()
    5
    """

    def __init__(self, capacity: int = 0) -> None:
        super().__init__(layers=[])
        self.capacity = capacity
        self.ids: Int[Tensor, "rows columns"] | None = None
        self.seen: Bool[Tensor, "rows columns"] | None = None
        self.state: Any = None
        self._room = 0

    # What a model does with it ----------------------------------------------------------------------------------------

    def extend(self, ids: Int[Tensor, "rows new"], seen: Bool[Tensor, "rows new"]) -> bool:
        """Adds further columns. Returns whether one step can read them."""
        before = self.get_seq_length()
        if self.ids is None or self.seen is None or not before:
            self.ids, self.seen = ids, seen
        elif self.ids.shape[0] != ids.shape[0]:
            raise UserError(
                f"past_key_values: has {self.ids.shape[0]} rows, input_ids {ids.shape[0]}; their own cache is right"
            )
        else:
            self.ids, self.seen = torch.cat([self.ids, ids], dim=1), torch.cat([self.seen, seen], dim=1)
        known = self.state is not None and ids.shape[1] == 1 and before + 1 <= self._room
        return known and bool(seen.all())

    def start(self, model: Model, tokens: Tokens) -> Float[Tensor, "rows 1 width"]:
        """Reads all columns, moved to the left, and returns the hidden states at each row's last token."""
        columns = self.get_seq_length()
        self._room = max(self.capacity, columns + 1) if self.capacity > columns else 2 * columns + SPARE
        started = model.start(tokens, capacity=self._room)
        self.state = started.state
        return started.output.hidden

    def step(self, model: Model, ids: Int[Tensor, " rows"]) -> Float[Tensor, "rows 1 width"]:
        started = model.step(ids, None, self.state)
        self.state = started.state
        return started.output.hidden

    # What transformers does with it -----------------------------------------------------------------------------------

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many columns were read, padding included."""
        return 0 if self.ids is None else int(self.ids.shape[1])

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return self.ids is not None

    @property
    def is_croppable(self) -> bool:
        return True

    @property
    def batch_size(self) -> int:
        return -1 if self.ids is None else int(self.ids.shape[0])

    def reset(self) -> None:
        self.ids = self.seen = self.state = None

    def crop(self, tokens_to_remove: int) -> None:
        """Removes columns: above 0 so many of the last (below 0 too, as older releases count); 0 does nothing."""
        if self.ids is None or self.seen is None or not tokens_to_remove:
            return
        kept = max(0, self.get_seq_length() - abs(tokens_to_remove))
        self.ids, self.seen, self.state = self.ids[:, :kept], self.seen[:, :kept], None

    def reorder_cache(self, beam_idx: Int[Tensor, " chosen"]) -> None:
        """These rows, in this order, some of them perhaps several times."""
        if self.ids is None or self.seen is None:
            return
        chosen, before = beam_idx.to(self.ids.device), self.ids.shape[0]
        self.ids, self.seen = self.ids[chosen], self.seen[chosen]
        if self.state is not None:
            self.state = rows_of(self.state, chosen, before)

    def batch_select_indices(self, indices: Int[Tensor, " chosen"]) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.ids is not None:
            self.reorder_cache(torch.arange(self.ids.shape[0], device=self.ids.device).repeat_interleave(repeats))


def rows_of(state: Any, chosen: Int[Tensor, " chosen"], rows: int) -> Any:
    """A state of `rows` rows with the chosen ones, or None where the batch dimension of a part is unknown.

    Tensors have rows first, or, as torch's recurrent nets have them, one layer first and then rows; tuples, lists,
    dicts and dataclasses are traversed.
    """
    try:
        return _taken(state, lambda tensor: _of_tensor(tensor, chosen, rows))
    except _NotByRowError:
        return None


class _NotByRowError(Exception):
    """A state has a part with an unknown batch dimension."""


def _of_tensor(tensor: Tensor, chosen: Tensor, rows: int) -> Tensor:
    if tensor.dim() == 0:
        return tensor
    alone = rows == 1  # which dimension are the rows?
    if tensor.shape[0] == rows and not (alone and len(chosen) != 1):
        return tensor.index_select(0, chosen)
    if tensor.dim() == 3 and tensor.shape[:2] == (1, rows) and not alone:
        return tensor.index_select(1, chosen)
    raise _NotByRowError


def _taken(part: Any, of_tensor: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, Tensor):
        return of_tensor(part)
    if part is None or isinstance(part, bool | int | float | str | OfAllRows):
        return part
    if isinstance(part, dict):
        return {key: _taken(one, of_tensor) for key, one in part.items()}
    if isinstance(part, list):
        return [_taken(one, of_tensor) for one in part]
    if isinstance(part, tuple):
        each = [_taken(one, of_tensor) for one in part]
        return type(part)(*each) if type(part) is not tuple else tuple(each)
    if is_dataclass(part) and not isinstance(part, type):
        new = object.__new__(type(part))
        for field in fields(part):
            object.__setattr__(new, field.name, _taken(getattr(part, field.name), of_tensor))
        return new
    raise _NotByRowError


def moved_left(
    ids: Int[Tensor, "rows columns"], seen: Bool[Tensor, "rows columns"]
) -> tuple[Tokens, Int[Tensor, "rows columns"] | None]:
    """Rows whose real tokens stand at their beginning, as a model of ours reads them, and where each column went.

    Columns that are not `seen` are nowhere: what stands before, behind or between real tokens changes no place. None
    where nothing moved. Raises `UserError` for a row without a real token.
    """
    rows, columns = ids.shape
    row = torch.arange(rows, device=ids.device)
    lengths = seen.sum(dim=1)
    least = int(lengths.min())
    if least == columns:
        return Tokens(ids, lengths, row), None
    if least == 0:
        raise UserError(
            "attention_mask: a row has no token at all; one or more, such as the one that begins a text, is right"
        )
    order = (~seen).to(torch.uint8).argsort(dim=1, stable=True)
    time = int(lengths.max())
    real = torch.arange(time, device=ids.device) < lengths[:, None]
    moved = torch.where(real, ids.gather(1, order)[:, :time], PAD)
    return Tokens(moved, lengths, row), order.argsort(dim=1).clamp(max=time - 1)

"""A cache for numerate models that transformers' `generate` can reorder and crop."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.batch import Model, Tokens
from numerate.errors import UserError
from numerate.mixers.mixer import RowIndependentState
from numerate.vocabulary import PAD

_Cache: Any = import_module("transformers.cache_utils").Cache  # of which little is typed

EXTRA_CAPACITY = 64
"""Extra positions of a cache beyond twice the longest row, if `generate` specifies no length."""


class NumerateCache(_Cache):  # type: ignore[misc]
    """The state of `Model.prefill` and `Model.step`, with all columns read so far: a cache for any mixer.

    One more token is one step. All else (a crop by assisted decoding, a prompt continued by several tokens, a row
    longer than `capacity`) reads all columns again.

        cache = NumerateCache(capacity=64)
        model(ids, past_key_values=cache, use_cache=True)
        cache.get_seq_length()  # the columns of ids
    """

    def __init__(self, capacity: int = 0) -> None:
        super().__init__(layers=[])
        self.capacity = capacity
        self.ids: Int[Tensor, "rows columns"] | None = None
        self.attention_mask: Bool[Tensor, "rows columns"] | None = None
        self.state: Any = None
        self._state_capacity = 0

    # What a model does with it ----------------------------------------------------------------------------------------

    def extend(self, ids: Int[Tensor, "rows new"], attention_mask: Bool[Tensor, "rows new"]) -> bool:
        """Adds further columns. Returns whether one step can read them."""
        cached_length = self.get_seq_length()
        if self.ids is None or self.attention_mask is None or not cached_length:
            self.ids, self.attention_mask = ids, attention_mask
        elif self.ids.shape[0] != ids.shape[0]:
            raise UserError(
                f"past_key_values: has {self.ids.shape[0]} rows, input_ids {ids.shape[0]}; each batch needs its own "
                "cache"
            )
        else:
            self.ids, self.attention_mask = (
                torch.cat([self.ids, ids], dim=1),
                torch.cat([self.attention_mask, attention_mask], dim=1),
            )
        can_step = self.state is not None and ids.shape[1] == 1 and cached_length + 1 <= self._state_capacity
        return can_step and bool(attention_mask.all())

    def prefill(self, model: Model, tokens: Tokens) -> Float[Tensor, "rows 1 width"]:
        """Reads all columns, moved to the left, and returns the hidden states at each row's last token."""
        columns = self.get_seq_length()
        self._state_capacity = (
            max(self.capacity, columns + 1) if self.capacity > columns else 2 * columns + EXTRA_CAPACITY
        )
        decoding_step = model.prefill(tokens, capacity=self._state_capacity)
        self.state = decoding_step.state
        return decoding_step.output.hidden_states

    def step(self, model: Model, ids: Int[Tensor, " rows"]) -> Float[Tensor, "rows 1 width"]:
        decoding_step = model.step(ids, None, self.state)
        self.state = decoding_step.state
        return decoding_step.output.hidden_states

    # What transformers does with it -----------------------------------------------------------------------------------

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of columns read, including padding."""
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
        self.ids = self.attention_mask = self.state = None

    def crop(self, tokens_to_remove: int) -> None:
        """Removes columns: above 0 so many of the last (below 0 too, as older releases count); 0 does nothing."""
        if self.ids is None or self.attention_mask is None or not tokens_to_remove:
            return
        new_length = max(0, self.get_seq_length() - abs(tokens_to_remove))
        self.ids, self.attention_mask, self.state = self.ids[:, :new_length], self.attention_mask[:, :new_length], None

    def reorder_cache(self, beam_idx: Int[Tensor, " chosen"]) -> None:
        """Selects these rows, in this order, possibly repeated."""
        if self.ids is None or self.attention_mask is None:
            return
        row_indices, num_rows = beam_idx.to(self.ids.device), self.ids.shape[0]
        self.ids, self.attention_mask = self.ids[row_indices], self.attention_mask[row_indices]
        if self.state is not None:
            self.state = select_state_rows(self.state, row_indices, num_rows)

    def batch_select_indices(self, indices: Int[Tensor, " chosen"]) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.ids is not None:
            self.reorder_cache(torch.arange(self.ids.shape[0], device=self.ids.device).repeat_interleave(repeats))


def select_state_rows(state: Any, row_indices: Int[Tensor, " chosen"], num_rows: int) -> Any:
    """A state of `num_rows` rows with the chosen ones, or None where the batch dimension of a part is unknown.

    Tensors have rows first, or, as torch's recurrent nets have them, one layer first and then rows; tuples, lists,
    dicts and dataclasses are traversed.
    """
    try:
        return _map_tensors(state, lambda tensor: _select_tensor_rows(tensor, row_indices, num_rows))
    except _UnknownBatchDimensionError:
        return None


class _UnknownBatchDimensionError(Exception):
    """A state has a part with an unknown batch dimension."""


def _select_tensor_rows(tensor: Tensor, row_indices: Tensor, num_rows: int) -> Tensor:
    if tensor.dim() == 0:
        return tensor
    is_single_row = num_rows == 1  # find the batch dimension
    if tensor.shape[0] == num_rows and not (is_single_row and len(row_indices) != 1):
        return tensor.index_select(0, row_indices)
    if tensor.dim() == 3 and tensor.shape[:2] == (1, num_rows) and not is_single_row:
        return tensor.index_select(1, row_indices)
    raise _UnknownBatchDimensionError


def _map_tensors(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(state, Tensor):
        return function(state)
    if state is None or isinstance(state, bool | int | float | str | RowIndependentState):
        return state
    if isinstance(state, dict):
        return {key: _map_tensors(item, function) for key, item in state.items()}
    if isinstance(state, list):
        return [_map_tensors(one, function) for one in state]
    if isinstance(state, tuple):
        items = [_map_tensors(one, function) for one in state]
        return type(state)(*items) if type(state) is not tuple else tuple(items)
    if is_dataclass(state) and not isinstance(state, type):
        copy = object.__new__(type(state))
        for field in fields(state):
            object.__setattr__(copy, field.name, _map_tensors(getattr(state, field.name), function))
        return copy
    raise _UnknownBatchDimensionError


def to_right_padding(
    ids: Int[Tensor, "rows columns"], attention_mask: Bool[Tensor, "rows columns"]
) -> tuple[Tokens, Int[Tensor, "rows columns"] | None]:
    """Rows whose real tokens stand at their beginning, as a model of ours reads them, and where each column went.

    Columns that are not `attention_mask` are nowhere: what stands before, behind or between real tokens changes no
    place. None where nothing moved. Raises `UserError` for a row without a real token.
    """
    rows, columns = ids.shape
    row_index = torch.arange(rows, device=ids.device)
    lengths = attention_mask.sum(dim=1)
    min_length = int(lengths.min())
    if min_length == columns:
        return Tokens(ids, lengths, row_index), None
    if min_length == 0:
        raise UserError("attention_mask: every row must have at least one token, such as the BOS token")
    order = (~attention_mask).to(torch.uint8).argsort(dim=1, stable=True)
    time = int(lengths.max())
    is_token = torch.arange(time, device=ids.device) < lengths[:, None]
    new_ids = torch.where(is_token, ids.gather(1, order)[:, :time], PAD)
    return Tokens(new_ids, lengths, row_index), order.argsort(dim=1).clamp(max=time - 1)

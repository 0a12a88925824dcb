"""The Abacus embedding for any model. This file depends on PyTorch only and can be copied into other projects."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn


class AbacusEmbedding(nn.Module):
    """A learned vector for the index of each digit in its number, to be added to the embedding of the token.

    McLeish et al. (2024), "Transformers Can Do Arithmetic with the Right Embeddings", https://arxiv.org/abs/2405.17399.

    Each run of digits is counted from the left: 1, 2, 3, ...; every other token (signs, letters, padding) has position
    id 0, which has a separate vector. In training one random offset is added to the position ids of all digits of a
    row, from 0 to `max_offset`, both included, so that the vectors of longer numbers are trained too; in evaluation the
    offset is 0. Numbers must be written least significant digit first: then equal position ids mean equal significance.

    - `digit_ids`: the token ids of the ten digits; a token must be a single digit.
    - `embedding_dim`: of the model's embeddings.
    - `max_offset`: the largest training offset; 100 in the paper, 99 in its stand-alone file. 0: none.
    - `max_digits`: the maximum number of digits of a number, in training and evaluation. The table has
      max_offset + max_digits + 1 rows. Position ids above max_offset + the longest number of *training* are never
      trained.
    - `offset_per`: whether each row has a separate offset or the whole batch shares one, as published.

    >>> abacus = AbacusEmbedding(range(4, 14), embedding_dim=64, max_offset=100, max_digits=200).eval()
    >>> ids = torch.tensor([[7, 6, 5, 14, 10, 9, 8, 17]])  # 321+654=
    >>> abacus.position_ids(ids).tolist()
    [[1, 2, 3, 0, 1, 2, 3, 0]]
    >>> abacus(ids).shape
    torch.Size([1, 8, 64])

    A row may be padded on either side, and several texts may be packed into one row if there is a token between
    them that is not a digit; they then share the offset of the row. A model that reads token by token (with a cache)
    must count over the whole row and keep the last position: `abacus(row)[:, -1:]`.

    Raises `ValueError` for invalid settings, and for rows with a number longer than the table allows.
    """

    def __init__(
        self,
        digit_ids: Iterable[int],
        embedding_dim: int,
        max_offset: int = 100,
        *,
        max_digits: int = 512,
        offset_per: Literal["row", "batch"] = "row",
    ) -> None:
        super().__init__()
        self.digit_ids = ids = sorted({int(i) for i in digit_ids})
        if not ids:
            raise ValueError("digit_ids: must not be empty; pass the token ids of the ten digits")
        if max_offset < 0 or max_digits < 1:
            raise ValueError(f"max_offset {max_offset} must be 0 or more, and max_digits {max_digits} 1 or more")
        if offset_per not in ("row", "batch"):
            raise ValueError(f"offset_per: must be 'row' or 'batch', not {offset_per!r}")
        self.max_offset, self.max_digits, self.offset_per = max_offset, max_digits, offset_per
        # Ranges of ids instead of a buffer, which `from_pretrained` of transformers would leave uninitialized.
        self._first_ids, self._last_ids = [i for i in ids if i - 1 not in ids], [i for i in ids if i + 1 not in ids]
        self.embedding = nn.Embedding(max_offset + max_digits + 1, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=embedding_dim**-0.5)

    def forward(
        self, input_ids: Tensor, *, offset: int | Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """From token ids `[rows, time]` to vectors `[rows, time, embedding_dim]`; arguments as of `position_ids`."""
        embeddings: Tensor = self.embedding(self.position_ids(input_ids, offset=offset, generator=generator))
        return embeddings

    def position_ids(
        self, input_ids: Tensor, *, offset: int | Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """The index into the table of each token, `[rows, time]`.

        `offset` (one number, or one per row) is used unchanged, in evaluation too. By default training draws one, from
        `generator` or from PyTorch's default generator, and evaluation uses 0. Raises `ValueError` for a negative
        one, and for an index beyond the table; in a compiled model the embedding raises an error instead.
        """
        rows, time = input_ids.shape
        is_digit = torch.zeros_like(input_ids, dtype=torch.bool)
        for first, last in zip(self._first_ids, self._last_ids, strict=True):
            is_digit = is_digit | ((input_ids >= first) & (input_ids <= last))
        digit_count = is_digit.long().cumsum(dim=1)
        count_before_run = torch.where(is_digit, 0, digit_count).cummax(dim=1).values
        position_ids = digit_count - count_before_run
        has_offset = offset is not None
        if has_offset and not torch.compiler.is_compiling() and (torch.as_tensor(offset) < 0).any():
            least = int(torch.as_tensor(offset).min())
            raise ValueError(f"offset: must be 0 or more, not {least}; position id 0 is that of other tokens")
        if not has_offset and self.training and self.max_offset:
            shape = (rows, 1) if self.offset_per == "row" else (1, 1)
            offset = torch.randint(self.max_offset + 1, shape, generator=generator, device=input_ids.device)
        if isinstance(offset, Tensor):
            offset = offset.to(input_ids.device).reshape(-1, 1)
        if offset is not None:
            position_ids = torch.where(is_digit, position_ids + offset, 0)
        # No number has more digits than its row has tokens, so short rows need no device synchronization.
        if (has_offset or time > self.max_digits) and not torch.compiler.is_compiling():
            self._check_range(position_ids)
        return position_ids

    def _check_range(self, position_ids: Tensor) -> None:
        if not position_ids.numel():
            return
        if (max_id := int(position_ids.max())) >= self.embedding.num_embeddings:
            raise ValueError(
                f"a digit has position id {max_id}, and the table ends at {self.embedding.num_embeddings - 1} "
                f"(max_offset {self.max_offset} + max_digits {self.max_digits}); longer numbers need a larger "
                "max_digits="
            )

"""The Abacus embedding for any model. This file needs torch and nothing else: it may be copied as it is."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn


class AbacusEmbedding(nn.Module):
    """A learned vector for the place of each digit in its number, to be added to the embedding of the token.

    McLeish et al. (2024), "Transformers Can Do Arithmetic with the Right Embeddings", https://arxiv.org/abs/2405.17399.

    Each run of digits is counted from the left: 1, 2, 3, ...; every other token (signs, letters, padding) has place 0,
    which has a vector of its own. In training all digits of a row are raised by one number drawn from 0 to
    `max_offset`, both included, so that the vectors of longer numbers are trained too; in evaluation nothing is raised.
    Numbers must be written least significant digit first: then equal places mean equal significance.

    - `digit_ids`: the token ids of the ten digits; a token must be a single digit.
    - `width`: of the model's embeddings.
    - `max_offset`: the largest training offset; 100 in the paper, 99 in its stand-alone file. 0: none.
    - `longest`: the most digits of a number that will ever be read, evaluation included. The table has
      max_offset + longest + 1 rows. Places above max_offset + the longest number of *training* are never trained.
    - `per`: whether each row draws an offset of its own or the whole batch shares one, as published.

    >>> abacus = AbacusEmbedding(range(4, 14), width=64, max_offset=100, longest=200)
    >>> ids = torch.tensor([[7, 6, 5, 14, 10, 9, 8, 17]])  # 321+654=
    >>> abacus.places(ids).tolist()
    [[1, 2, 3, 0, 1, 2, 3, 0]]
    >>> abacus(ids).shape
    torch.Size([1, 8, 64])

    A row may be padded on either side, and several texts may be packed into one row as long as something that is no
    digit stands between them; they then share the offset of the row. A model that reads token by token (with a cache)
    must count over the whole row and keep the last place: `abacus(row)[:, -1:]`.

    Raises `ValueError` for settings without sense, and for rows with a number that the table has no place for.
    """

    digit_ids: Tensor

    def __init__(
        self,
        digit_ids: Iterable[int],
        width: int,
        max_offset: int = 100,
        *,
        longest: int = 512,
        per: Literal["row", "batch"] = "row",
    ) -> None:
        super().__init__()
        ids = torch.as_tensor(list(digit_ids), dtype=torch.long)
        if not ids.numel():
            raise ValueError("digit_ids: no token is a digit; give the ids of the ten digits")
        if max_offset < 0 or longest < 1:
            raise ValueError(f"max_offset {max_offset} must be 0 or more, and longest {longest} 1 or more")
        if per not in ("row", "batch"):
            raise ValueError(f"per: {per!r} is neither 'row' nor 'batch'")
        self.max_offset, self.longest, self.per = max_offset, longest, per
        self.register_buffer("digit_ids", ids, persistent=False)
        self.vectors = nn.Embedding(max_offset + longest + 1, width)
        nn.init.normal_(self.vectors.weight, std=width**-0.5)

    def forward(
        self, input_ids: Tensor, *, offset: int | Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """From token ids `[rows, time]` to vectors `[rows, time, width]`; arguments as of `places`."""
        vectors: Tensor = self.vectors(self.places(input_ids, offset=offset, generator=generator))
        return vectors

    def places(
        self, input_ids: Tensor, *, offset: int | Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """The row of the table that each token gets, `[rows, time]`.

        `offset` (one number, or one per row) is taken as it is, in evaluation too. Without it training draws one, from
        `generator` or from torch's own, and evaluation takes 0. Raises `ValueError` for a place beyond the table; a
        compiled forward leaves that to the embedding, which raises an error of its own.
        """
        rows, time = input_ids.shape
        is_digit = (input_ids[..., None] == self.digit_ids).any(dim=-1)
        seen = is_digit.long().cumsum(dim=1)
        before_run = torch.where(is_digit, 0, seen).cummax(dim=1).values
        places = seen - before_run
        given = offset is not None
        if not given and self.training and self.max_offset:
            shape = (rows, 1) if self.per == "row" else (1, 1)
            offset = torch.randint(self.max_offset + 1, shape, generator=generator, device=input_ids.device)
        if isinstance(offset, Tensor):
            offset = offset.to(input_ids.device).reshape(-1, 1)
        if offset is not None:
            places = torch.where(is_digit, places + offset, 0)
        # No number has more digits than its row has tokens, so short rows need not wait for the device.
        if (given or time > self.longest) and not torch.compiler.is_compiling():
            self._check(places)
        return places

    def _check(self, places: Tensor) -> None:
        if not places.numel():
            return
        last, first = int(places.max()), int(places.min())
        if last >= self.vectors.num_embeddings or first < 0:
            raise ValueError(
                f"a digit has place {last if first >= 0 else first}, and the table ends at "
                f"{self.vectors.num_embeddings - 1} (max_offset {self.max_offset} + longest {self.longest}); "
                "numbers that are longer need a larger longest="
            )

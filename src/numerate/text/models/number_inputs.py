"""Number embeddings and number heads, for any model.

A number embedding changes token embeddings by the tokens' numbers. A number head predicts a number per position.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log, pi
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.config import Spec, setting
from numerate.errors import UserError
from numerate.kernels.constants import Constants
from numerate.number_tables import MAX_VALUE, digit_and_exponent, regression_transformer_vectors
from numerate.vocabulary import Vocabulary

NUMBER_TOKEN = "[NUM]"
"""The text that stands for any number, which `Tokens.number_values` carries."""


Embeddings = Float[Tensor, "rows time width"]
Ids = Int[Tensor, "rows time"]
Values = Float[Tensor, "rows time"]


class NumberEmbeddingModule(nn.Module, ABC):
    """The part behind a `NumberEmbedding`."""

    @abstractmethod
    def forward(self, embeddings: Embeddings, ids: Ids, number_values: Values | None) -> Embeddings:
        """The token embeddings with their numbers embedded. Raises `UserError` where required values are missing."""


class NumberEmbedding(Spec, ABC):
    """The spec of a number embedding: a frozen dataclass."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary, width: int) -> NumberEmbeddingModule:
        """The module for a model of this width. Raises `UserError` for a vocabulary without the tokens it needs."""


@dataclass(frozen=True)
class RegressionTransformerEmbedding(NumberEmbedding):
    """Fixed vectors of digit x 10^order, added to the embeddings of `_5_2_` tokens (Regression Transformer).

    Born and Manica (2023), https://arxiv.org/abs/2202.01338; on a logarithmic scale as in Zausinger et al. (2025),
    https://arxiv.org/abs/2411.02083. See `numerate.number_tables.regression_transformer_vectors`.

    >>> from numerate.models import T5
    >>> spec = T5(number_embedding=RegressionTransformerEmbedding(scale="linear"))
    """

    scale: Literal["log", "linear"] = setting("log", "scale of the value in the embedding: log or linear")
    encoding_type: Literal["float", "integer"] = setting(
        "float", "float: shares of the value; integer: its sines and cosines"
    )
    max_value: float = setting(MAX_VALUE, "value at which the first component is 10", above=1)

    def build(self, vocabulary: Vocabulary, width: int) -> "FixedNumberEmbedding":
        digits_and_orders = {
            i: value for i, value in enumerate(map(digit_and_exponent, vocabulary.tokens)) if value is not None
        }
        if not digits_and_orders:
            raise UserError(
                "model.number_embedding: the tokenizer has no tokens such as _5_2_; use the number format "
                "RegressionTransformer"
            )
        digits, orders = np.array(list(digits_and_orders.values())).T
        vectors = regression_transformer_vectors(
            digits, orders, width, form=self.encoding_type, scale=self.scale, max_value=self.max_value
        )
        table_rows = np.zeros(vocabulary.size, dtype=np.int64)
        table_rows[list(digits_and_orders)] = np.arange(1, len(digits_and_orders) + 1)
        table = np.concatenate([np.zeros_like(vectors[:1]), vectors])
        return FixedNumberEmbedding(torch.from_numpy(table), torch.from_numpy(table_rows))


class FixedNumberEmbedding(Constants, NumberEmbeddingModule):
    """Adds a fixed vector: row `metric_rows[id]` of a table whose row 0 is zero."""

    table: Tensor
    table_rows: Tensor

    def __init__(self, table: Tensor, table_rows: Tensor) -> None:
        super().__init__()
        self.register_constant("table", lambda: table.to(torch.get_default_dtype()))
        self.register_constant("table_rows", lambda: table_rows)

    def forward(self, embeddings: Embeddings, ids: Ids, number_values: Values | None) -> Embeddings:
        return embeddings + self.table[self.table_rows[ids]].to(embeddings.dtype)


@dataclass(frozen=True)
class XValScaling(NumberEmbedding):
    """The embedding of [NUM] times the number (xVal).

    Golkar et al. (2023), https://arxiv.org/abs/2310.02989. The number x is first put on a `scale`.

    - `log10`: sign(x) log10(|x| + 1) x 10 / log10(3e9): 54 is 1.836, 3e9 is 10;
    - `linear`: x + 1; both as in the T5 of Zausinger et al. (2025), https://arxiv.org/abs/2411.02083;
    - `ln`: sign(x) ln(1 + |x|), as in its Numformer;
    - `none`: x itself, for numbers that are small already.
    """

    scale: Literal["log10", "linear", "ln", "none"] = setting(
        "log10", "transformation of a number before it scales the embedding"
    )

    def build(self, vocabulary: Vocabulary, width: int) -> "XValEmbedding":
        return XValEmbedding(self.scale, number_token_id(vocabulary, "model.number_embedding"))


class XValEmbedding(NumberEmbeddingModule):
    """The part behind `XValScaling`."""

    def __init__(self, scale: str, number_token_id: int) -> None:
        super().__init__()
        self.scale, self.number_token_id = scale, number_token_id

    def forward(self, embeddings: Embeddings, ids: Ids, number_values: Values | None) -> Embeddings:
        is_number = ids == self.number_token_id
        factor = torch.where(
            is_number, scale_numbers(_mask_numbers(number_values, is_number).to(embeddings.dtype), self.scale), 1.0
        )
        return embeddings * factor[..., None]


@dataclass(frozen=True)
class FoNEEmbedding(NumberEmbedding):
    """Fourier number embedding: a linear map of one cosine and sine per digit, added at [NUM] (FoNE).

    Zhou et al. (2025), https://arxiv.org/abs/2502.09741: cos and sin of 2 pi x / T with T = 10^i, where i = 1 encodes
    the ones, 2 the tens, 0 the tenths. Values are float32, which has 7 significant digits.
    """

    integer_digits: int = setting(5, "digits before the decimal point", at_least=0)
    fraction_digits: int = setting(5, "digits after the decimal point", at_least=0)

    def build(self, vocabulary: Vocabulary, width: int) -> "FourierNumberEmbedding":
        if self.integer_digits + self.fraction_digits < 1:
            raise UserError("integer_digits: must not be 0 together with fraction_digits")
        token_id = number_token_id(vocabulary, "model.number_embedding")
        return FourierNumberEmbedding(range(1 - self.fraction_digits, self.integer_digits + 1), width, token_id)


class FourierNumberEmbedding(NumberEmbeddingModule):
    """The part behind `FoNEEmbedding`."""

    def __init__(self, orders: range, width: int, number_token_id: int) -> None:
        super().__init__()
        self.orders, self.number_token_id = orders, number_token_id
        self.proj = nn.Linear(2 * len(orders), width, bias=False)

    def forward(self, embeddings: Embeddings, ids: Ids, number_values: Values | None) -> Embeddings:
        is_number = ids == self.number_token_id
        number_embeddings: Tensor = self.proj(
            self.fourier_features(_mask_numbers(number_values, is_number)).to(embeddings.dtype)
        )
        return embeddings + torch.where(is_number[..., None], number_embeddings, 0.0)

    def fourier_features(self, number_values: Float[Tensor, "rows time"]) -> Float[Tensor, "rows time features"]:
        """Cosine and sine at each order, in float64: float32 is too inexact for sines of large numbers."""
        periods = 10.0 ** torch.tensor(list(self.orders), dtype=torch.float64, device=number_values.device)
        angles = 2 * pi * (number_values.double()[..., None] / periods).remainder(1.0)
        return torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(-2)


@dataclass(frozen=True)
class NumberHead(Spec):
    """Number head: one linear layer, or two with a GELU between.

    `scale="ln"`: it predicts sign(x) ln(1 + |x|) of a number x; generation and metrics use x itself. `read_at="start"`
    is a regression head: it reads only the answer's first position, and that number is the prediction at all positions.
    """

    num_layers: int = setting(1, "linear layers: 1, or 2 with a GELU between", at_least=1, at_most=2)
    intermediate_size: int | None = setting(
        None, "with two layers: intermediate size; null: 4 x hidden_size", at_least=1
    )
    scale: Literal["number", "ln"] = setting("number", "what is predicted: the number itself, or its signed logarithm")
    read_at: Literal["place", "start"] = setting(
        "place", "one number per position (place), or one at the answer's start, a regression head (start)"
    )

    def build(self, width: int) -> "NumberHeadModule":
        return NumberHeadModule(self, width)


class NumberHeadModule(nn.Module):
    """The part behind `NumberHead`."""

    def __init__(self, spec: NumberHead, width: int) -> None:
        super().__init__()
        self.scale, self.read_at = spec.scale, spec.read_at
        intermediate_size = spec.intermediate_size or 4 * width
        single_layer = [nn.Linear(width, 1)]
        self.layers = nn.Sequential(
            *(
                single_layer
                if spec.num_layers == 1
                else [nn.Linear(width, intermediate_size), nn.GELU(), nn.Linear(intermediate_size, 1)]
            )
        )

    def forward(self, hidden: Float[Tensor, "rows positions width"]) -> Float[Tensor, "rows positions"]:
        output: Tensor = self.layers(hidden)
        return output.squeeze(-1)

    def unscale(self, scaled: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """The predicted numbers with their scaling undone."""
        return scaled.sign() * scaled.abs().expm1() if self.scale == "ln" else scaled

    def flops(self, num_positions: int) -> int:
        return 2 * num_positions * sum(part.weight.numel() for part in self.layers if isinstance(part, nn.Linear))


def scale_numbers(numbers: Float[Tensor, "*any"], scale: str) -> Float[Tensor, "*any"]:
    """Numbers on one of the scales of `XValScaling`.

    >>> scale_numbers(torch.tensor([54.0, 3e9]), "log10")
    tensor([ 1.8364, 10.0000])
    """
    if scale == "linear":
        return numbers + 1
    if scale == "none":
        return numbers
    factor = 10 / log(MAX_VALUE) if scale == "log10" else 1.0
    return numbers.sign() * numbers.abs().log1p() * factor


def number_token_id(vocabulary: Vocabulary, where: str) -> int:
    """The id of [NUM]. Raises `UserError` for a vocabulary that has none."""
    if NUMBER_TOKEN not in vocabulary.token_to_id:
        raise UserError(f"{where}: the tokenizer has no {NUMBER_TOKEN} token; use the number format XVal")
    return vocabulary.token_to_id[NUMBER_TOKEN]


def _mask_numbers(number_values: Tensor | None, is_number: Tensor) -> Tensor:
    """The numbers at [NUM], 1 elsewhere."""
    if number_values is None:
        if bool(is_number.any()):
            raise UserError(
                f"model.number_embedding: {NUMBER_TOKEN} has no value here; generating numbers needs a number_head"
            )
        return torch.ones(is_number.shape, device=is_number.device)
    return torch.where(is_number, number_values, 1.0)

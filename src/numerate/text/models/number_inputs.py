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

from numerate.config import setting
from numerate.errors import UserError
from numerate.number_tables import LARGEST, digit_and_order, regression_transformer_vectors
from numerate.vocabulary import Vocabulary

NUMBER_TOKEN = "[NUM]"
"""The text that stands for any number, which `Tokens.values` carries."""


class NumberEmbeddingPart(nn.Module, ABC):
    """The part behind a `NumberEmbedding`."""

    @abstractmethod
    def forward(
        self,
        vectors: Float[Tensor, "rows time width"],
        ids: Int[Tensor, "rows time"],
        values: Float[Tensor, "rows time"] | None,
    ) -> Float[Tensor, "rows time width"]:
        """The token embeddings with their numbers embedded. Raises `UserError` where required values are missing."""


class NumberEmbedding(ABC):
    """The spec of a number embedding: a frozen dataclass."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary, width: int) -> NumberEmbeddingPart:
        """The module for a model of this width. Raises `UserError` for a vocabulary without the tokens it needs."""


@dataclass(frozen=True)
class RegressionTransformerEmbedding(NumberEmbedding):
    """Fixed vectors of digit x 10^order, added to the embeddings of `_5_2_` tokens (Regression Transformer).

    Born and Manica (2023), https://arxiv.org/abs/2202.01338; on a logarithmic scale as in Zausinger et al. (2025),
    https://arxiv.org/abs/2411.02083. See `numerate.number_tables.regression_transformer_vectors`.

    >>> T5(number_embedding=RegressionTransformerEmbedding(scale="linear"))
    """

    scale: Literal["log", "linear"] = setting("log", "scale of the value in the embedding: log or linear")
    form: Literal["float", "integer"] = setting("float", "float: shares of the value; integer: its sines and cosines")
    max_value: float = setting(LARGEST, "value at which the first component is 10")

    def __post_init__(self) -> None:
        if not 1 < self.max_value < float("inf"):
            raise UserError(f"max_value: {self.max_value} cannot be mapped to 10; 3e9 was published")

    def build(self, vocabulary: Vocabulary, width: int) -> "FixedVectors":
        found = {i: value for i, value in enumerate(map(digit_and_order, vocabulary.symbols)) if value is not None}
        if not found:
            raise UserError(
                "model.number_embedding: the tokenizer has no tokens such as _5_2_; RegressionTransformer spells them"
            )
        digits, orders = np.array(list(found.values())).T
        vectors = regression_transformer_vectors(
            digits, orders, width, form=self.form, scale=self.scale, largest=self.max_value
        )
        index = torch.zeros(vocabulary.size, dtype=torch.long)
        index[torch.tensor(list(found))] = torch.arange(1, len(found) + 1)
        return FixedVectors(torch.from_numpy(np.concatenate([np.zeros_like(vectors[:1]), vectors])), index)


class FixedVectors(NumberEmbeddingPart):
    """Adds a fixed vector: row `index[id]` of a table whose row 0 is zero."""

    table: Tensor
    index: Tensor

    def __init__(self, table: Tensor, index: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table.to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("index", index, persistent=False)

    def forward(
        self,
        vectors: Float[Tensor, "rows time width"],
        ids: Int[Tensor, "rows time"],
        values: Float[Tensor, "rows time"] | None,
    ) -> Float[Tensor, "rows time width"]:
        return vectors + self.table[self.index[ids]].to(vectors.dtype)


@dataclass(frozen=True)
class XValScaling(NumberEmbedding):
    """The embedding of [NUM] times the number (xVal).

    Golkar et al. (2023), https://arxiv.org/abs/2310.02989. The number x is put on a scale first:

    - `log10`: sign(x) log10(|x| + 1) x 10 / log10(3e9): 54 is 1.836, 3e9 is 10;
    - `linear`: x + 1; both as in the T5 of Zausinger et al. (2025), https://arxiv.org/abs/2411.02083;
    - `ln`: sign(x) ln(1 + |x|), as in its Numformer;
    - `none`: x itself, for numbers that are small already.
    """

    scale: Literal["log10", "linear", "ln", "none"] = setting(
        "log10", "transformation of a number before it scales the embedding"
    )

    def build(self, vocabulary: Vocabulary, width: int) -> "ScaledNumber":
        return ScaledNumber(self.scale, number_token(vocabulary, "model.number_embedding"))


class ScaledNumber(NumberEmbeddingPart):
    """The part behind `XValScaling`."""

    def __init__(self, scale: str, number: int) -> None:
        super().__init__()
        self.scale, self.number = scale, number

    def forward(
        self,
        vectors: Float[Tensor, "rows time width"],
        ids: Int[Tensor, "rows time"],
        values: Float[Tensor, "rows time"] | None,
    ) -> Float[Tensor, "rows time width"]:
        here = ids == self.number
        factor = torch.where(here, scaled(_there(values, here).to(vectors.dtype), self.scale), 1.0)
        return vectors * factor[..., None]


@dataclass(frozen=True)
class FoNEEmbedding(NumberEmbedding):
    """Fourier number embedding: a linear map of one cosine and sine per digit, added at [NUM] (FoNE).

    Zhou et al. (2025), https://arxiv.org/abs/2502.09741: cos and sin of 2 pi x / T with T = 10^i, where i = 1 encodes
    the ones, 2 the tens, 0 the tenths. Values are float32, which has 7 significant digits.
    """

    integer_digits: int = setting(5, "digits before the decimal point")
    fraction_digits: int = setting(5, "digits after the decimal point")

    def __post_init__(self) -> None:
        if self.integer_digits < 0 or self.fraction_digits < 0 or self.integer_digits + self.fraction_digits < 1:
            raise UserError(
                f"integer_digits: {self.integer_digits} and {self.fraction_digits} decimals tell nothing of a "
                f"number; 5 and 5 do"
            )

    def build(self, vocabulary: Vocabulary, width: int) -> "FourierNumber":
        number = number_token(vocabulary, "model.number_embedding")
        return FourierNumber(range(1 - self.fraction_digits, self.integer_digits + 1), width, number)


class FourierNumber(NumberEmbeddingPart):
    """The part behind `FoNEEmbedding`."""

    def __init__(self, orders: range, width: int, number: int) -> None:
        super().__init__()
        self.orders, self.number = orders, number
        self.map = nn.Linear(2 * len(orders), width, bias=False)

    def forward(
        self,
        vectors: Float[Tensor, "rows time width"],
        ids: Int[Tensor, "rows time"],
        values: Float[Tensor, "rows time"] | None,
    ) -> Float[Tensor, "rows time width"]:
        here = ids == self.number
        added: Tensor = self.map(self.features(_there(values, here)).to(vectors.dtype))
        return vectors + torch.where(here[..., None], added, 0.0)

    def features(self, values: Float[Tensor, "rows time"]) -> Float[Tensor, "rows time features"]:
        """Cosine and sine at each order, in float64: float32 is too inexact for sines of large numbers."""
        periods = 10.0 ** torch.tensor(list(self.orders), dtype=torch.float64, device=values.device)
        angles = 2 * pi * (values.double()[..., None] / periods).remainder(1.0)
        return torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(-2)


@dataclass(frozen=True)
class NumberHead:
    """Number head: one linear layer, or two with a GELU between.

    `scale="ln"`: it predicts sign(x) ln(1 + |x|) of a number x; generation and metrics use x itself. `read_at="start"`
    is a regression head: it reads only the answer's first position, and that number is the prediction at all positions.
    """

    num_layers: int = setting(1, "linear layers: 1, or 2 with a GELU between")
    intermediate_size: int | None = setting(None, "with two layers: intermediate size; null: 4 x hidden_size")
    scale: Literal["number", "ln"] = setting("number", "what is predicted: the number itself, or its signed logarithm")
    read_at: Literal["place", "start"] = setting(
        "place", "one number per position (place), or one at the answer's start"
    )

    def __post_init__(self) -> None:
        if self.num_layers not in (1, 2):
            raise UserError(f"num_layers: {self.num_layers}; a number head has 1 linear map, or 2")
        if self.intermediate_size is not None and self.intermediate_size < 1:
            raise UserError(f"intermediate_size: {self.intermediate_size} is no width; 1 or more is right, or null")

    def build(self, width: int) -> "NumberHeadPart":
        return NumberHeadPart(self, width)


class NumberHeadPart(nn.Module):
    """The part behind `NumberHead`."""

    def __init__(self, spec: NumberHead, width: int) -> None:
        super().__init__()
        self.scale, self.reads = spec.scale, spec.read_at
        inner = spec.intermediate_size or 4 * width
        one = [nn.Linear(width, 1)]
        self.maps = nn.Sequential(
            *(one if spec.num_layers == 1 else [nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, 1)])
        )

    def forward(self, hidden: Float[Tensor, "rows places width"]) -> Float[Tensor, "rows places"]:
        scaled: Tensor = self.maps(hidden)
        return scaled.squeeze(-1)

    def unscaled(self, scaled: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """The predicted numbers with their scaling undone."""
        return scaled.sign() * scaled.abs().expm1() if self.scale == "ln" else scaled

    def flops(self, places: int) -> int:
        return 2 * places * sum(part.weight.numel() for part in self.maps if isinstance(part, nn.Linear))


def scaled(values: Float[Tensor, "*any"], scale: str) -> Float[Tensor, "*any"]:
    """Numbers on one of the scales of `XValScaling`.

    >>> scaled(torch.tensor([54.0, 3e9]), "log10")
    tensor([ 1.8364, 10.0000])
    """
    if scale == "linear":
        return values + 1
    if scale == "none":
        return values
    by = 10 / log(LARGEST) if scale == "log10" else 1.0
    return values.sign() * values.abs().log1p() * by


def number_token(vocabulary: Vocabulary, where: str) -> int:
    """The id of [NUM]. Raises `UserError` for a vocabulary that has none."""
    if NUMBER_TOKEN not in vocabulary.ids:
        raise UserError(f"{where}: the tokenizer has no {NUMBER_TOKEN}, which carries a number; XVal spells it")
    return vocabulary.ids[NUMBER_TOKEN]


def _there(values: Tensor | None, here: Tensor) -> Tensor:
    """The numbers at [NUM], 1 elsewhere."""
    if values is None:
        if bool(here.any()):
            raise UserError(f"model.number_embedding: {NUMBER_TOKEN} carries no value here; a number_head says values")
        return torch.ones(here.shape, device=here.device)
    return torch.where(here, values, 1.0)

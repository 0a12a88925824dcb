"""Symbols: the values of relational attention, which identify tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from numerate.config import Spec, setting
from numerate.errors import UserError
from numerate.mixers.attention_maps import attention_weights
from numerate.mixers.mixer import Context, check_divides


class Symbols(Spec, ABC):
    """The spec of symbols: a frozen dataclass that builds the module for a model's width."""

    @abstractmethod
    def build(self, width: int) -> "TokenSymbols | DistanceSymbols":
        """The module of one layer. Raises `UserError` for invalid settings."""

    def build_layers(self, width: int, depth: int) -> "Sequence[TokenSymbols | DistanceSymbols]":
        """The modules of all layers: one shared module by default."""
        return [self.build(width)] * depth


class TokenSymbols(nn.Module, ABC):
    """Gives every token its symbol."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "#rows time width"]:
        """The symbols of whole rows, or in a decoding step of the newest tokens; x is the input of the mixer. If
        symbols depend on the position only, the first dimension may be 1."""

    def attention_maps(
        self, x: Float[Tensor, "rows time width"], context: Context
    ) -> Float[Tensor, "rows heads time symbols"] | None:
        """The attention weights of tokens over a library of symbols; None for symbols without attention."""
        return None

    def self_initialized_parameters(self) -> set[str]:
        """Names of parameters that this module initializes itself."""
        return set()

    def flops(self, time: int) -> int:
        """Floating-point operations for one row of this length."""
        return 0


class DistanceSymbols(nn.Module, ABC):
    """Gives every pair of tokens a symbol that depends on the distance between them."""

    @abstractmethod
    def forward(self, time: int) -> Float[Tensor, "time width"]:
        """The symbols of the distances time - 1, ..., 1, 0."""

    def self_initialized_parameters(self) -> set[str]:
        return {name for name, _ in self.named_parameters()}


@dataclass(frozen=True)
class SymbolicAttention(Symbols):
    """Symbolic attention: tokens attend to a library of learned symbols by learned templates.

    Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727, section 2: with templates F and symbols S, each
    `num_symbols` x width and split into heads, the symbol of a token x is softmax(scale (W x + b) F^T) S, head by head.
    Templates and symbols are initialized from N(0, 1).

    As published, x is the residual stream before the norm of the block (with `normalized`, the input of the mixer), and
    all layers share one module. With W = 0 and b = 0 every token gets the mean of all symbols.
    """

    num_symbols: int = setting(64, "number of learned symbols in the library", at_least=1)
    num_heads: int = setting(4, "number of heads of the attention over symbols; must divide hidden_size", at_least=1)
    scale: float | None = setting(None, "factor on the logits; null: 1 / sqrt(head_dim)", above=0)
    trainable: bool = setting(True, "whether the symbols (values) are trained; the templates (keys) always are")
    sharing: Literal["shared", "library", "own"] = setting(
        "shared", "what layers share: everything (shared), only the symbols (library), or nothing (own)"
    )
    normalized: bool = setting(
        False,
        "whether symbolic attention reads the normalized input of the mixer; "
        "false: the residual stream before the norm",
    )
    initialization: Literal["model", "uniform"] = setting(
        "model",
        "initialization of the query projection: the model's, or uniform: U(-b, b), b = 1 / sqrt(hidden_size)",
    )

    def build(self, width: int) -> "SymbolicAttentionPart":
        check_divides("symbols.num_heads", self.num_heads, width)
        return SymbolicAttentionPart(self, width)

    def build_layers(self, width: int, depth: int) -> Sequence[TokenSymbols | DistanceSymbols]:
        if self.sharing == "shared":
            return super().build_layers(width, depth)
        modules = [self.build(width) for _ in range(depth)]
        if self.sharing == "library":
            for module in modules[1:]:
                module.symbol_library = modules[0].symbol_library
        return modules


class SymbolicAttentionPart(TokenSymbols):
    """The module of `SymbolicAttention`."""

    symbol_library: Tensor

    def __init__(self, spec: SymbolicAttention, width: int) -> None:
        super().__init__()
        self.heads, self.scale, self.normalized = spec.num_heads, spec.scale, spec.normalized
        self.q_proj, self.is_uniform = nn.Linear(width, width), spec.initialization == "uniform"
        self.template_features = nn.Parameter(torch.randn(spec.num_symbols, width))
        symbols = torch.randn(spec.num_symbols, width)
        if spec.trainable:
            self.symbol_library = nn.Parameter(symbols)
        else:
            self.register_buffer("symbol_library", symbols)

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "#rows time width"]:
        queries, templates, symbols = self._split(x, context)
        dtype = queries.dtype
        output = scaled_dot_product_attention(queries, templates.to(dtype), symbols.to(dtype), scale=self.scale)
        return torch.unflatten(output[0].transpose(0, 1).flatten(1), 0, x.shape[:2])

    def attention_maps(self, x: Float[Tensor, "rows time width"], context: Context) -> Tensor | None:
        queries, templates, _ = self._split(x, context)
        visible = torch.ones(1, 1, 1, templates.shape[2], dtype=torch.bool, device=x.device)
        weights = attention_weights(queries, templates.to(queries.dtype), visible, self.scale)
        return torch.unflatten(weights[0], 1, x.shape[:2]).transpose(0, 1)

    def _split(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of tokens, templates and symbols, by head: 1 x heads x count x head width each. The tokens of all
        rows are concatenated into one, so that templates and symbols are not repeated."""
        inputs = x if self.normalized or context.residual is None else context.residual
        queries, templates, symbols = (
            torch.unflatten(tensor, -1, (self.heads, -1)).transpose(-3, -2)[None]
            for tensor in (self.q_proj(inputs).flatten(0, 1), self.template_features, self.symbol_library)
        )
        return queries, templates, symbols

    def self_initialized_parameters(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if self.is_uniform or not name.startswith("q_proj.")}

    def flops(self, time: int) -> int:
        return 2 * time * (self.q_proj.weight.numel() + 2 * self.template_features.numel())


@dataclass(frozen=True)
class PositionalSymbols(Symbols):
    """A symbol for each position, learned or sinusoidal.

    Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727. The symbol depends only on the position of a
    token; rows longer than the table raise an error. Sinusoidal symbols have no maximum length. All layers share one
    module.
    """

    embedding: Literal["learned", "sinusoidal"] = setting(
        "learned", "learned or sinusoidal position embeddings as symbols"
    )
    max_position_embeddings: int = setting(512, "number of learned position embeddings", at_least=1)

    def build(self, width: int) -> "PositionalSymbolsPart":
        if self.embedding == "sinusoidal" and width % 2:
            raise UserError(
                f"model.mixer.symbols.embedding: sinusoidal embeddings need an even width, not {width}; use learned"
            )
        return PositionalSymbolsPart(self, width)


class PositionalSymbolsPart(TokenSymbols):
    """The module of `PositionalSymbols`."""

    def __init__(self, spec: PositionalSymbols, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.max_position_embeddings, width) if spec.embedding == "learned" else None

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "#rows time width"]:
        _, time, width = x.shape
        positions, max_length = torch.arange(time, device=x.device)[None], time
        if context.cache_position is not None:
            positions, max_length = context.cache_position[:, None], context.cached_length
        if self.embedding is None:
            return sinusoidal_embedding(positions, width).to(x.dtype)
        num_embeddings = self.embedding.num_embeddings
        if max_length > num_embeddings:
            raise UserError(
                f"model.mixer.symbols.max_position_embeddings: position {max_length - 1} is outside the table of "
                f"{num_embeddings} positions; "
                f"use shorter rows or model.mixer.symbols.max_position_embeddings={max_length}"
            )
        symbols: Tensor = self.embedding(positions)
        return symbols


def sinusoidal_embedding(positions: Tensor, width: int) -> Float[Tensor, "rows time {width}"]:
    """Sines in the first half and cosines in the second, of position x 10000^(-2i / width): Vaswani et al. (2017)."""
    rates = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)
    angles = positions[..., None].double() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


@dataclass(frozen=True)
class PositionRelativeSymbols(Symbols):
    """A learned symbol for each distance between two tokens, up to `max_distance`.

    Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727, after the relative positions of Shaw et al. (2018),
    https://arxiv.org/abs/1803.02155. With max_distance=2 the symbol of the token itself is the last row of the table,
    of the token before it the row above, and of all others the first. All layers share one table.

    The published table also has `max_distance` vectors for later tokens, which a causal model never reads; with
    `future_distances` the table has them too, after the others.
    """

    max_distance: int = setting(64, "distances beyond this share one symbol", at_least=1)
    future_distances: bool = setting(
        False, "whether the table also has entries for future tokens, which are never used"
    )

    def build(self, width: int) -> "PositionRelativeSymbolsPart":
        return PositionRelativeSymbolsPart(self, width)


class PositionRelativeSymbolsPart(DistanceSymbols):
    """The module of `PositionRelativeSymbols`, with Glorot and Bengio's (2010) uniform initialization."""

    def __init__(self, spec: PositionRelativeSymbols, width: int) -> None:
        super().__init__()
        self.max_distance = spec.max_distance
        count = 2 * spec.max_distance + 1 if spec.future_distances else spec.max_distance + 1
        self.rel_pos_embeddings = nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, width)))

    def forward(self, time: int) -> Float[Tensor, "{time} width"]:
        missing = time - self.max_distance - 1
        near = self.rel_pos_embeddings[max(0, -missing) : self.max_distance + 1]
        return near if missing <= 0 else torch.cat([self.rel_pos_embeddings[:1].expand(missing, -1), near])

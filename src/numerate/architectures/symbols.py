"""Symbols: the values of relational attention, which identify tokens."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.attention_maps import attention_weights
from numerate.mixers.mixer import Context

SymbolFunction = Callable[[Float[Tensor, "rows time width"], Context], Float[Tensor, "#rows time width"]]
"""Gives every token its symbol, from what the mixer reads."""


class Symbols(ABC):
    """The spec of symbols: a frozen dataclass that builds the module for a model's width."""

    @abstractmethod
    def build(self, width: int) -> "TokenSymbols | DistanceSymbols":
        """The part of one layer. Raises `UserError` for what cannot be built."""

    def build_layers(self, width: int, depth: int) -> "Sequence[TokenSymbols | DistanceSymbols]":
        """Those of all layers: one shared module, unless a spec overrides it."""
        return [self.build(width)] * depth


class TokenSymbols(nn.Module, ABC):
    """Gives every token its symbol."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "#rows time width"]:
        """The symbols of whole rows, or in a step of the newest tokens; x is what the mixer reads. Where they depend on
        the position alone, the first dimension may be 1."""

    def decoding_function(self) -> "SymbolFunction":
        """As `forward`, for the steps of one decoding, without gradients: with everything that does not depend on the
        token precomputed."""
        return self

    def attention_maps(
        self, x: Float[Tensor, "rows time width"], context: Context
    ) -> Float[Tensor, "rows heads time symbols"] | None:
        """How much of each symbol of a library every token takes; None for symbols without attention weights."""
        return None

    def self_initialized_parameters(self) -> set[str]:
        """Names of parameters that it initializes itself."""
        return set()

    def flops(self, time: int) -> int:
        """Floating-point operations for one row of this length."""
        return 0


class DistanceSymbols(nn.Module, ABC):
    """Gives every pair of tokens a symbol, by how far one stands before the other."""

    @abstractmethod
    def forward(self, time: int) -> Float[Tensor, "time width"]:
        """The symbols of the distances up to so many, the farthest first and that of distance 0 last."""

    def self_initialized_parameters(self) -> set[str]:
        return {name for name, _ in self.named_parameters()}


@dataclass(frozen=True)
class SymbolicAttention(Symbols):
    """Symbolic attention: tokens attend to a library of learned symbols by learned templates.

    Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727, section 2: with templates F and symbols S, each
    `num_symbols` x width and split into heads, a token x gets softmax(scale (W x + b) F^T) S, head by head. Templates
    and symbols begin as N(0, 1).

    As published it reads the residual stream before the norm of its block (with `normalized`, what the mixer reads),
    and all layers have one and the same. With the map at 0 every token gets the mean of all symbols.
    """

    num_symbols: int = setting(64, "number of symbols in the library")
    num_heads: int = setting(4, "number of attention heads over the library; must divide hidden_size")
    scale: float | None = setting(None, "factor on the logits; null: 1 / sqrt(head_dim)")
    trainable: bool = setting(True, "whether the symbols are trained; the templates always are")
    sharing: Literal["shared", "library", "own"] = setting(
        "shared", "what layers share: everything, only the symbol library, or nothing"
    )
    normalized: bool = setting(
        False, "whether it reads the normalized input of the mixer; false: the residual stream before the norm"
    )
    initialization: Literal["model", "uniform"] = setting(
        "model",
        "initialization of the query projection: the model's, or uniform: U(-b, b), b = 1 / sqrt(hidden_size)",
    )

    def __post_init__(self) -> None:
        for name in ("num_symbols", "num_heads"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: must be 1 or more, not {getattr(self, name)}")
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise UserError(f"scale: must be above 0, not {self.scale}")

    def build(self, width: int) -> "SymbolicAttentionPart":
        if width % self.num_heads:
            raise UserError(f"model.mixer.symbols.num_heads: must divide the width {width}, unlike {self.num_heads}")
        return SymbolicAttentionPart(self, width)

    def build_layers(self, width: int, depth: int) -> Sequence[TokenSymbols | DistanceSymbols]:
        if self.sharing == "shared":
            return super().build_layers(width, depth)
        made = [self.build(width) for _ in range(depth)]
        if self.sharing == "library":
            for part in made[1:]:
                part.symbol_library = made[0].symbol_library
        return made


class SymbolicAttentionPart(TokenSymbols):
    """The part behind `SymbolicAttention`."""

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
        asking, templates, symbols = self._split(x, context)
        kind = asking.dtype
        found = scaled_dot_product_attention(asking, templates.to(kind), symbols.to(kind), scale=self.scale)
        return torch.unflatten(found[0].transpose(0, 1).flatten(1), 0, x.shape[:2])

    def decoding_function(self) -> SymbolFunction:
        heads, scale = self.heads, self.scale
        templates, symbols = (
            torch.unflatten(one, -1, (heads, -1)) for one in (self.template_features, self.symbol_library)
        )
        # Head by head, and templates with a place for each component, which is how one token reads them the quickest.
        scale = templates.shape[-1] ** -0.5 if scale is None else scale
        templates, symbols = (templates * scale).permute(1, 2, 0).contiguous(), symbols.transpose(0, 1).contiguous()

        def found(x: Tensor, context: Context) -> Tensor:
            asking = self.q_proj(x if self.normalized or context.residual is None else context.residual)
            asking = asking.view(-1, heads, templates.shape[1]).transpose(0, 1)
            scores = torch.bmm(asking, templates.to(asking.dtype))
            chosen = torch.bmm(scores.softmax(-1), symbols.to(asking.dtype))
            return chosen.transpose(0, 1).reshape(x.shape)

        return found

    def attention_maps(self, x: Float[Tensor, "rows time width"], context: Context) -> Tensor | None:
        asking, templates, _ = self._split(x, context)
        everything = torch.ones(1, 1, 1, templates.shape[2], dtype=torch.bool, device=x.device)
        weights = attention_weights(asking, templates.to(asking.dtype), everything, self.scale)
        return torch.unflatten(weights[0], 1, x.shape[:2]).transpose(0, 1)

    def _split(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of tokens, templates and symbols, by head: 1 x heads x count x head width each. All tokens of all
        rows are one row, so that templates and symbols are not repeated."""
        read = x if self.normalized or context.residual is None else context.residual
        asking, templates, symbols = (
            torch.unflatten(one, -1, (self.heads, -1)).transpose(-3, -2)[None]
            for one in (self.q_proj(read).flatten(0, 1), self.template_features, self.symbol_library)
        )
        return asking, templates, symbols

    def self_initialized_parameters(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if self.is_uniform or not name.startswith("q_proj.")}

    def flops(self, time: int) -> int:
        return 2 * time * (self.q_proj.weight.numel() + 2 * self.template_features.numel())


@dataclass(frozen=True)
class PositionalSymbols(Symbols):
    """A symbol for each position, learned or sinusoidal.

    Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727. The first token gets the first vector of the table,
    whatever it is; rows longer than the table are refused. Sinusoidal symbols are those of `Sinusoidal` and have no
    maximum length. All layers have the same.
    """

    embedding: Literal["learned", "sinusoidal"] = setting(
        "learned", "learned or sinusoidal position embeddings as symbols"
    )
    max_position_embeddings: int = setting(512, "number of learned position embeddings")

    def __post_init__(self) -> None:
        if self.max_position_embeddings < 1:
            raise UserError(
                "max_position_embeddings: must be 1 or more, at least the longest row's length, not "
                f"{self.max_position_embeddings}"
            )

    def build(self, width: int) -> "PositionalSymbolsPart":
        if self.embedding == "sinusoidal" and width % 2:
            raise UserError(
                f"model.mixer.symbols.embedding: sinusoidal embeddings need an even width, not {width}; use learned"
            )
        return PositionalSymbolsPart(self, width)


class PositionalSymbolsPart(TokenSymbols):
    """The part behind `PositionalSymbols`."""

    def __init__(self, spec: PositionalSymbols, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.max_position_embeddings, width) if spec.embedding == "learned" else None

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "#rows time width"]:
        _, time, width = x.shape
        places, longest = torch.arange(time, device=x.device)[None], time
        if context.cache_position is not None:
            places, longest = context.cache_position[:, None], context.cached_length
        if self.embedding is None:
            return sinusoidal_embedding(places, width).to(x.dtype)
        table = self.embedding.num_embeddings
        if longest > table:
            raise UserError(
                f"model.mixer.symbols.max_position_embeddings: position {longest - 1} is outside the table of "
                f"{table} positions; "
                f"use shorter rows or model.mixer.symbols.max_position_embeddings={longest}"
            )
        found: Tensor = self.embedding(places)
        return found


def sinusoidal_embedding(positions: Tensor, width: int) -> Float[Tensor, "rows time {width}"]:
    """Sines in the first half and cosines in the second, of place x 10000^(-2i / width): Vaswani et al. (2017)."""
    rates = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)
    angles = positions[..., None].double() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


@dataclass(frozen=True)
class PositionRelativeSymbols(Symbols):
    """A learned symbol for each distance between two tokens, up to `max_distance`.

    Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727, after the relative positions of Shaw et al. (2018),
    https://arxiv.org/abs/1803.02155. With max_distance=2 the symbol of the token itself is the last row of the table,
    of the token before it the row above, and of all others the first. All layers have the same.

    The published table has as many vectors again for tokens that come later, which a causal model never reads; it has
    them here with `future_distances`, behind the others.
    """

    max_distance: int = setting(64, "distances beyond this share one symbol")
    future_distances: bool = setting(
        False, "whether the table also has entries for future tokens, which are never used"
    )

    def __post_init__(self) -> None:
        if self.max_distance < 1:
            raise UserError(f"max_distance: must be 1 or more, not {self.max_distance}")

    def build(self, width: int) -> "PositionRelativeSymbolsPart":
        return PositionRelativeSymbolsPart(self, width)


class PositionRelativeSymbolsPart(DistanceSymbols):
    """The part behind `PositionRelativeSymbols`; its table begins as that of Glorot and Bengio (2010), uniform."""

    def __init__(self, spec: PositionRelativeSymbols, width: int) -> None:
        super().__init__()
        self.max_distance = spec.max_distance
        count = 2 * spec.max_distance + 1 if spec.future_distances else spec.max_distance + 1
        self.rel_pos_embeddings = nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, width)))

    def forward(self, time: int) -> Float[Tensor, "{time} width"]:
        missing = time - self.max_distance - 1
        near = self.rel_pos_embeddings[max(0, -missing) : self.max_distance + 1]
        return near if missing <= 0 else torch.cat([self.rel_pos_embeddings[:1].expand(missing, -1), near])

"""The published dual attention models: in the code of their results, in today's, and with its bugs fixed.

Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727, and https://github.com/Awni00/abstract_transformer. Each
is a `Decoder` with ordinary settings, so that any of them can be changed or crossed with another's.
"""

from dataclasses import dataclass
from typing import Any, Literal

from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention, Symbols
from numerate.errors import UserError
from numerate.kernels.relational import Activation, Kind
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Mixer
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward, Norm
from numerate.models.decoder import Decoder
from numerate.models.initialization import Normal, TorchDefault
from numerate.positions.added import Learned
from numerate.positions.position import Position
from numerate.positions.rotary import Rotary

SymbolKind = Literal["symbolic", "position_relative", "positional"]


@dataclass(frozen=True)
class PublishedArguments:
    """The arguments of a published model, with the defaults of Tiny Stories.

    - `width`, `depth`, `self_heads`, `relational_heads`: without relational heads it is a plain Transformer.
    - `symbols`: by symbolic attention (`symbol_count` of them in `symbol_heads` heads; null: as many as the context),
      by distance up to the context, or by place. With `trainable_symbols=False` the library of symbolic attention is
      frozen. `symbol_layers` is what layers share of it.
    - `variant`: relational, rca or disrca attention; `symmetric`, `relations`, `relation_activation`: its relations.
    - `key_value_heads`, `shared_queries`: of grouped keys and values, and of queries that both sorts of heads share.
    - `context`: tokens; so many learned places, symbols and distances there are.
    - `hidden`: width of the feed-forward, null for the code's own; `activation`, where GELU is its tanh form.
    """

    width: int = 64
    depth: int = 4
    self_heads: int = 4
    relational_heads: int = 4
    symbols: SymbolKind | None = "symbolic"
    symmetric: bool = False
    variant: Kind = "relational"
    context: int = 512
    positions: Literal["rotary", "learned"] = "rotary"
    trainable_symbols: bool = True
    dropout: float = 0.1
    hidden: int | None = None
    norm_first: bool = True
    norm: Norm = "layer"
    activation: Literal["swiglu", "gelu", "relu"] = "swiglu"
    relations: int | None = None
    relation_activation: Activation | None = None
    key_value_heads: int | None = None
    shared_queries: bool = False
    symbol_count: int | None = None
    symbol_heads: int = 4
    symbol_layers: Literal["shared", "library", "own"] = "shared"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "PublishedArguments":
        """Raises `UserError` for an unknown argument."""
        for name in given:
            if name not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise UserError(f"{name}: not an argument of published models; there are: {known}")
        return cls(**given)

    def place(self) -> tuple[Position, ...]:
        return (Rotary(),) if self.positions == "rotary" else (Learned(max_position_embeddings=self.context),)


def published(**arguments: Any) -> Decoder:
    """A model in the code of the published Tiny Stories results (May 2024), by `PublishedArguments`.

    The head is untied and has a bias, there is no final norm, initialisation is that of `torch.nn`, the intermediate
    size is 4 x width with swiglu too, and all relation queries (and keys) together are as wide as the model.
    Feed-forwards have biases with dual attention and none in the plain Transformer.

    With the defaults and 32,000 tokens it has 4,488,256 parameters; the Transformer of equal width and depth
    (`self_heads=8, relational_heads=0`) has 4,391,168. Raises `UserError` for arguments that do not fit together.
    """
    given = PublishedArguments.of(arguments)
    return _decoder(
        given,
        _mixer(given, relation_width=_as_wide_as_the_model(given)),
        FeedForward(
            given.activation,
            expansion=4.0,
            bias=given.relational_heads > 0,
            intermediate_size=given.hidden,
            gelu_approximate="tanh",
        ),
        dropped_twice=True,
        tie_word_embeddings=False,
        head_bias=True,
        final_norm=False,
        initialization=TorchDefault(),
    )


def current(**arguments: Any) -> Decoder:
    """A model in the code since August 2024, and in the package `dual-attention` 0.0.7.

    Embeddings are tied, there is a final norm, weights are N(0, 0.02^2), those of attention's output projections and of
    the up projection of swiglu divided by sqrt(2 x depth), the intermediate size of swiglu is int(8/3 width), and all
    relation queries (and keys) together are as wide as the relational heads.

    With the defaults and 32,000 tokens it has 2,325,264 parameters. Raises `UserError` for arguments that do not fit.
    """
    given = PublishedArguments.of(arguments)
    return _decoder(
        given,
        _mixer(given),
        _later_feed_forward(given, biases=given.relational_heads > 0),
        dropped_twice=True,
        tie_word_embeddings=True,
        head_bias=False,
        final_norm=True,
        initialization=Normal(0.02, residual_count="blocks", scaled_projection="gated"),
    )


def corrected(**arguments: Any) -> Decoder:
    """`current` with every bug fixed that changes results. By their numbers in the list of bugs:

    - 1, RCA and DisRCA: they work; the published code raises a NameError.
    - 4, intermediate size: `hidden` is used; the published code overrides `--dff`.
    - 5, residual initialisation: the down projection of swiglu is divided by sqrt(2 x depth), not the up projection.
    - 5b, initial symbols: symbolic attention reads the normed stream, through a projection initialised as U(-b, b) with
      b = 1/sqrt(width), so that tokens start with different symbols; there all start with the same one.
    - 6, biases: feed-forwards have none, as in the Transformer that dual attention is compared with.
    - 7, dropout: on the input embeddings, and on attention outputs once, not twice.
    - 8, 9, 10: symbolic attention has no dropout in evaluation, a token always sees itself, a softmax of relations is
      over the visible keys, and any number of relations is allowed. This holds here for all three.
    - 11, dropout of the feed-forward: with post-norm it is on the residual branch, as with pre-norm.

    With the defaults and 32,000 tokens it has 2,323,648 parameters. Raises `UserError` for arguments that do not fit.
    """
    given = PublishedArguments.of(arguments)
    return _decoder(
        given,
        _mixer(given, mended=True),
        _later_feed_forward(given, biases=False),
        dropped_twice=False,
        tie_word_embeddings=True,
        head_bias=False,
        final_norm=True,
        initialization=Normal(0.02, residual_count="blocks"),
    )


PRESETS = {"published": published, "current": current, "corrected": corrected}


def _decoder(
    given: PublishedArguments, mixer: Mixer, feed_forward: FeedForward, *, dropped_twice: bool, **settings: Any
) -> Decoder:
    return Decoder(
        hidden_size=given.width,
        backbone=Stack(num_layers=given.depth),
        mixer=mixer,
        feed_forward=feed_forward,
        positions=given.place(),
        norm=given.norm,
        norm_first=given.norm_first,
        dropout=given.dropout,
        mixer_dropout=given.dropout if dropped_twice else 0.0,
        embedding_dropout=0.0 if dropped_twice else given.dropout,
        dropout_on="stream" if dropped_twice and not given.norm_first else "branch",
        **settings,
    )


def _later_feed_forward(given: PublishedArguments, biases: bool) -> FeedForward:
    times = 8 / 3 if given.activation == "swiglu" else 4.0
    return FeedForward(
        given.activation, times, biases, intermediate_size=given.hidden, rounding="down", gelu_approximate="tanh"
    )


def _as_wide_as_the_model(given: PublishedArguments) -> int | None:
    relations = given.relations or given.relational_heads
    if given.variant != "relational" or not relations:
        return None
    if given.width % relations:
        raise UserError(
            f"relations: width {given.width} does not divide into {relations} relations; a divisor is right"
        )
    return given.width // relations


def _mixer(given: PublishedArguments, relation_width: int | None = None, mended: bool = False) -> Mixer:
    if not given.relational_heads and given.key_value_heads is None:
        return Attention(given.self_heads, dropout=given.dropout)
    return DualAttention(
        given.self_heads,
        given.relational_heads,
        _symbols(given, mended) if given.relational_heads else SymbolicAttention(),
        variant=given.variant,
        num_relations=given.relations,
        relation_dim=relation_width,
        symmetric=given.symmetric and given.relational_heads > 0,
        activation=given.relation_activation,
        num_key_value_heads=given.key_value_heads,
        shared_queries=given.shared_queries,
        dropout=given.dropout,
    )


def _symbols(given: PublishedArguments, mended: bool) -> Symbols:
    if given.symbols is None:
        raise UserError("symbols: relational heads say whose relations they are by symbols; symbolic was published")
    if given.symbols == "symbolic":
        return SymbolicAttention(
            given.symbol_count or given.context,
            given.symbol_heads,
            trainable=given.trainable_symbols,
            sharing=given.symbol_layers,
            normalized=mended,
            initialization="spread" if mended else "model",
        )
    if given.symbols == "position_relative":
        return PositionRelativeSymbols(given.context, future_distances=True)
    return PositionalSymbols(max_position_embeddings=given.context)

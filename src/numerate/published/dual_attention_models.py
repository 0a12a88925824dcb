"""The published dual attention models: in the code of their results, in today's, and with its bugs fixed.

Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727, and https://github.com/Awni00/abstract_transformer. Each
is a `Decoder` with ordinary settings, so that any of them can be changed or crossed with another's.
"""

from dataclasses import dataclass
from typing import Any, Literal

from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention, Symbols
from numerate.errors import UserError, check_choice
from numerate.kernels.relational import Activation, Variant
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Mixer
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward, NormType
from numerate.models.decoder import Decoder
from numerate.models.initialization import Normal, TorchDefault
from numerate.positions.added import Learned
from numerate.positions.position import Position
from numerate.positions.rotary import Rotary

SymbolKind = Literal["symbolic", "position_relative", "positional"]


@dataclass(frozen=True)
class PublishedArguments:
    """The arguments of a published model, with the defaults of Tiny Stories.

    - `hidden_size`, `num_layers`, `num_self_heads`, `num_relational_heads`: without relational heads it is a plain
      Transformer.
    - `symbols`: by symbolic attention (`num_symbols` of them in `num_symbol_heads` heads; null: as many as the
      context), by distance up to the context, or by place. With `trainable_symbols=False` the library of symbolic
      attention is frozen. `symbol_sharing` is what layers share of it.
    - `variant`: relational, rca or disrca attention; `symmetric`, `num_relations`, `relation_activation`: its
      relations.
    - `num_key_value_heads`, `shared_queries`: of grouped keys and values, and of queries that both sorts of heads
      share.
    - `context_length`: tokens; so many learned places, symbols and distances there are.
    - `intermediate_size`: width of the feed-forward, null for the code's own; `activation`, where GELU is its tanh
      form.
    """

    hidden_size: int = 64
    num_layers: int = 4
    num_self_heads: int = 4
    num_relational_heads: int = 4
    symbols: SymbolKind | None = "symbolic"
    symmetric: bool = False
    variant: Variant = "relational"
    context_length: int = 512
    positions: Literal["rotary", "learned"] = "rotary"
    trainable_symbols: bool = True
    dropout: float = 0.1
    intermediate_size: int | None = None
    norm_first: bool = True
    norm: NormType = "layer"
    activation: Literal["swiglu", "gelu", "relu"] = "swiglu"
    num_relations: int | None = None
    relation_activation: Activation | None = None
    num_key_value_heads: int | None = None
    shared_queries: bool = False
    num_symbols: int | None = None
    num_symbol_heads: int = 4
    symbol_sharing: Literal["shared", "library", "own"] = "shared"

    @classmethod
    def from_dict(cls, arguments: dict[str, Any]) -> "PublishedArguments":
        """Raises `UserError` for an unknown argument."""
        for name in arguments:
            check_choice("arguments of published models", name, cls.__dataclass_fields__)
        return cls(**arguments)

    def build_positions(self) -> tuple[Position, ...]:
        return (Rotary(),) if self.positions == "rotary" else (Learned(max_position_embeddings=self.context_length),)


def published(**arguments: Any) -> Decoder:
    """A model in the code of the published Tiny Stories results (May 2024), by `PublishedArguments`.

    The head is untied and has a bias, there is no final norm, initialization is that of `torch.nn`, the intermediate
    size is 4 x width with swiglu too, and all relation queries (and keys) together are as wide as the model.
    Feed-forwards have biases with dual attention and none in the plain Transformer.

    With the defaults and 32,000 tokens it has 4,488,256 parameters; the Transformer of equal width and depth
    (`num_self_heads=8, num_relational_heads=0`) has 4,391,168. Raises `UserError` for arguments that do not fit
    together.
    """
    args = PublishedArguments.from_dict(arguments)
    return _build_decoder(
        args,
        _build_mixer(args, relation_dim=_published_relation_dim(args)),
        FeedForward(
            args.activation,
            expansion=4.0,
            bias=args.num_relational_heads > 0,
            intermediate_size=args.intermediate_size,
            gelu_approximate="tanh",
        ),
        double_dropout=True,
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
    args = PublishedArguments.from_dict(arguments)
    return _build_decoder(
        args,
        _build_mixer(args),
        _current_feed_forward(args, bias=args.num_relational_heads > 0),
        double_dropout=True,
        tie_word_embeddings=True,
        head_bias=False,
        final_norm=True,
        initialization=Normal(0.02, residual_count="blocks", scaled_projection="gated"),
    )


def corrected(**arguments: Any) -> Decoder:
    """`current` with every bug fixed that changes results. By their numbers in the list of bugs:

    - 1, RCA and DisRCA: they work; the published code raises a NameError.
    - 4, intermediate size: `intermediate_size` is used; the published code overrides `--dff`.
    - 5, residual initialization: the down projection of swiglu is divided by sqrt(2 x depth), not the up projection.
    - 5b, initial symbols: symbolic attention reads the normed stream, through a projection initialized as U(-b, b) with
      b = 1/sqrt(width), so that tokens start with different symbols; there all start with the same one.
    - 6, biases: feed-forwards have none, as in the Transformer that dual attention is compared with.
    - 7, dropout: on the input embeddings, and on attention outputs once, not twice.
    - 8, 9, 10: symbolic attention has no dropout in evaluation, a token always sees itself, a softmax of relations is
      over the visible keys, and any number of relations is allowed. This holds here for all three.
    - 11, dropout of the feed-forward: with post-norm it is on the residual branch, as with pre-norm.

    With the defaults and 32,000 tokens it has 2,323,648 parameters. Raises `UserError` for arguments that do not fit.
    """
    args = PublishedArguments.from_dict(arguments)
    return _build_decoder(
        args,
        _build_mixer(args, fix_bugs=True),
        _current_feed_forward(args, bias=False),
        double_dropout=False,
        tie_word_embeddings=True,
        head_bias=False,
        final_norm=True,
        initialization=Normal(0.02, residual_count="blocks"),
    )


PRESETS = {"published": published, "current": current, "corrected": corrected}


def _build_decoder(
    args: PublishedArguments, mixer: Mixer, feed_forward: FeedForward, *, double_dropout: bool, **settings: Any
) -> Decoder:
    return Decoder(
        hidden_size=args.hidden_size,
        backbone=Stack(num_layers=args.num_layers),
        mixer=mixer,
        feed_forward=feed_forward,
        positions=args.build_positions(),
        norm=args.norm,
        norm_first=args.norm_first,
        dropout=args.dropout,
        mixer_dropout=args.dropout if double_dropout else 0.0,
        embedding_dropout=0.0 if double_dropout else args.dropout,
        dropout_on="residual_stream" if double_dropout and not args.norm_first else "branch",
        **settings,
    )


def _current_feed_forward(args: PublishedArguments, bias: bool) -> FeedForward:
    expansion = 8 / 3 if args.activation == "swiglu" else 4.0
    return FeedForward(
        args.activation,
        expansion,
        bias,
        intermediate_size=args.intermediate_size,
        rounding="down",
        gelu_approximate="tanh",
    )


def _published_relation_dim(args: PublishedArguments) -> int | None:
    num_relations = args.num_relations or args.num_relational_heads
    if args.variant != "relational" or not num_relations:
        return None
    if args.hidden_size % num_relations:
        raise UserError(f"num_relations: must divide hidden_size ({args.hidden_size}), not {num_relations}")
    return args.hidden_size // num_relations


def _build_mixer(args: PublishedArguments, relation_dim: int | None = None, fix_bugs: bool = False) -> Mixer:
    if not args.num_relational_heads and args.num_key_value_heads is None:
        return Attention(args.num_self_heads, dropout=args.dropout)
    return DualAttention(
        args.num_self_heads,
        args.num_relational_heads,
        _build_symbols(args, fix_bugs) if args.num_relational_heads else SymbolicAttention(),
        variant=args.variant,
        num_relations=args.num_relations,
        relation_dim=relation_dim,
        symmetric=args.symmetric and args.num_relational_heads > 0,
        activation=args.relation_activation,
        num_key_value_heads=args.num_key_value_heads,
        shared_queries=args.shared_queries,
        dropout=args.dropout,
    )


def _build_symbols(args: PublishedArguments, fix_bugs: bool) -> Symbols:
    if args.symbols is None:
        raise UserError("symbols: must be set where there are relational heads; symbolic in the paper")
    if args.symbols == "symbolic":
        return SymbolicAttention(
            args.num_symbols or args.context_length,
            args.num_symbol_heads,
            trainable=args.trainable_symbols,
            sharing=args.symbol_sharing,
            normalized=fix_bugs,
            initialization="uniform" if fix_bugs else "model",
        )
    if args.symbols == "position_relative":
        return PositionRelativeSymbols(args.context_length, future_distances=True)
    return PositionalSymbols(max_position_embeddings=args.context_length)

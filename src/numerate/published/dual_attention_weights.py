"""Weights of the published code of dual attention, as a `Decoder` has them, and back.

Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727: checkpoints of
https://github.com/Awni00/abstract_transformer, of the code of its Tiny Stories numbers (May 2024) and of today's, and
of the package `dual-attention` 0.0.7 on PyPI. What differs: queries and keys of rotary heads turn neighbouring numbers
there and the two halves of a head here, so their rows are in another order; maps that read the same lie in one matrix
here; what is one tensor there stands in a file under each of its names, or under one of them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.strict_weights import StrictWeights
from numerate.positions.added import Learned
from numerate.positions.position import Position
from numerate.positions.rotary import Rotary

_PREFIX = re.compile(r"^(module\.|_orig_mod\.)*(layers\.)?")
"""Of models that were wrapped by DistributedDataParallel, torch.compile or both, in any order."""
_EARLIER = (
    ("abstract_attn.", "dual_attn."),
    ("relational_cross_attention.", "relational_attention."),
    (".wr.weight", ".wr"),
    ("symbol_retriever.", "symbol_retrievers.0."),
    ("token_embedder.weights.", "final_out."),
)
"""Names of May 2024, and what they became."""


@dataclass(frozen=True)
class RowSlice:
    """Some rows of a tensor of ours, and where they are theirs.

    `theirs` are the names that their tensor has, more than one where modules share it. `size` is how many rows of ours
    it has, 0 for any number; it may have as many `unread` ones behind them. `turned` is the width of heads whose rows
    are in the other order, 0 for none. `shape` is that of their tensor where it is another.
    """

    theirs: tuple[str, ...]
    size: int = 0
    turned: int = 0
    unread: int = 0
    shape: tuple[int, ...] | None = None


def from_published(weights: Mapping[str, Tensor], spec: Decoder, *, where: str = "weights") -> dict[str, Tensor]:
    """The weights of a published model by the names of a `Decoder` of `spec`, for `load_state_dict`.

    Prefixes of `torch.compile` and DDP are left out. Raises `UserError`, which begins with `where`, for a weight that
    is missing, left over or of another shape, for two that differ and are one in the spec, and for a spec that no
    published model has.

    >>> spec = published(width=64, depth=4, self_heads=4, relational_heads=4)
    >>> model = spec.build(vocabulary, seed=0)
    >>> model.load_state_dict(from_published(torch.load("ckpt.pt", weights_only=True)["model"], spec))
    """
    pieces = _pieces(spec)
    file = StrictWeights(weights, where, settings=[*_settings(weights, spec)], plain=_plain)
    made: dict[str, Tensor] = {}
    for ours, of in pieces.items():
        parts = [_ours(file.take(piece.theirs, ours), piece, where) for piece in of]
        if len({part.shape[1:] for part in parts}) > 1:
            names = " and ".join(piece.theirs[0] for piece in of)
            raise UserError(f"{where}: {names} have rows of different widths; are they of one model?")
        made[ours] = torch.cat(parts) if len(parts) > 1 else parts[0].clone()
    file.finish()
    return made


def to_published(weights: Mapping[str, Tensor], spec: Decoder) -> dict[str, Tensor]:
    """The other way round: a Decoder's `state_dict` by the names of today's published code, for its `load_state_dict`.

    Symbols of later tokens, which are never read, are 0 where `spec` has none. Raises `UserError` for a spec that no
    published model has."""
    made: dict[str, Tensor] = {}
    for ours, pieces in _pieces(spec).items():
        parts = torch.split(weights[ours], [piece.size for piece in pieces]) if len(pieces) > 1 else [weights[ours]]
        for piece, part in zip(pieces, parts, strict=True):
            tensor = _theirs(part, piece)
            made |= {f"layers.{name}": tensor.clone() for name in piece.theirs}
    return made


def _plain(name: str) -> str:
    name = _PREFIX.sub("", name)
    for earlier, now in _EARLIER:
        name = name.replace(earlier, now)
    return name


def _settings(weights: Mapping[str, Tensor], spec: Decoder) -> Iterator[tuple[str, str]]:
    """The settings by which weights would fit that do not fit this spec."""
    layers = spec.backbone.layers()
    numbers = [name.split(".")[1] for name in map(_plain, weights) if name.startswith("blocks.")]
    depth = max((int(number) + 1 for number in numbers if number.isdigit()), default=0)
    if depth > layers:
        further = "|".join(map(str, range(layers, depth)))
        yield rf"^(blocks|symbol_retrievers)\.({further})\.", f"model.backbone.num_layers={depth}"
    mixer = spec.mixer
    if isinstance(mixer, DualAttention) and mixer.symmetric:
        yield r"\.wk_rel\.", "model.mixer.symmetric=false"
    if isinstance(mixer, DualAttention) and mixer.shared_queries:
        yield r"\.w[qk]_attn\.", "model.mixer.shared_queries=false"
    if isinstance(mixer, DualAttention) and isinstance(mixer.symbols, SymbolicAttention):
        yield r"\.symbol_library$", "model.mixer.symbols.sharing=own"
        yield r"\.(template_features|q_proj\.\w+)$", "model.mixer.symbols.sharing=library"
    if spec.tie_word_embeddings:
        yield r"^final_out\.weight$", "model.tie_word_embeddings=false"
    if not spec.head_bias:
        yield r"^final_out\.bias$", "model.head_bias=true"
    yield r"^norm\.", "model.final_norm=true"
    yield r"\.ff_block\.linear\d\.bias$", "model.feed_forward.bias=true"
    yield r"^positional_embedder\.", "model.positions=[Learned(max_position_embeddings=..)]"


def _pieces(spec: Decoder) -> dict[str, list[RowSlice]]:
    """Every weight of ours, with what it is made of."""
    _refuse(spec)
    table, head = "token_embedder.weight", "final_out.weight"
    made = {"embedding.weight": [RowSlice((table, head) if spec.tie_word_embeddings else (table,))]}
    for number, position in enumerate(spec.positions):
        if isinstance(position, Learned):
            made[f"input_positions.{number}.vectors.weight"] = [RowSlice(("positional_embedder.weight",))]
    for layer in range(spec.backbone.layers()):
        mine, theirs = f"trunk.blocks.{layer}.", f"blocks.{layer}."
        for ours, name in (("mixer_norm", "norm1"), ("feed_forward_norm", "norm2")):
            made |= _norm(spec, mine + ours, theirs + name)
        mixing = _attention if isinstance(spec.mixer, Attention) else _dual
        for ours, pieces in mixing(spec, layer):
            made[f"{mine}mixer.{ours}"] = pieces
        made |= _fed(spec, mine, theirs)
    if spec.norm_first if spec.final_norm is None else spec.final_norm:
        made |= _norm(spec, "final_norm", "norm")
    made["head.weight"] = [RowSlice((table, head) if spec.tie_word_embeddings else (head,))]
    if spec.head_bias:
        made["head.bias"] = [RowSlice(("final_out.bias",))]
    return made


def _norm(spec: Decoder, ours: str, theirs: str) -> dict[str, list[RowSlice]]:
    names = {"layer": ("weight", "bias"), "rms": ("weight",), "none": ()}[spec.norm]
    return {f"{ours}.{name}": [RowSlice((f"{theirs}.{name}",))] for name in names}


def _fed(spec: Decoder, mine: str, theirs: str) -> dict[str, list[RowSlice]]:
    fed, made = spec.feed_forward, {}
    assert fed is not None
    hidden, gated = fed.hidden_width(spec.hidden_size), fed.activation in ("swiglu", "geglu")
    for kind in ("weight", "bias") if fed.bias else ("weight",):
        inward = ("linear1", "linear3") if gated else ("linear1",)
        made[f"{mine}feed_forward.inward.{kind}"] = [
            RowSlice((f"{theirs}ff_block.{name}.{kind}",), hidden) for name in inward
        ]
        made[f"{mine}feed_forward.out.{kind}"] = [RowSlice((f"{theirs}ff_block.linear2.{kind}",), spec.hidden_size)]
    return made


def _attention(spec: Decoder, layer: int) -> Iterator[tuple[str, list[RowSlice]]]:
    mixer, width = spec.mixer, spec.hidden_size
    assert isinstance(mixer, Attention)
    theirs, turned = f"blocks.{layer}.self_attn.", _turned(spec, width // mixer.num_heads)
    named = {"wq": turned, "wk": turned, "wv": 0}
    yield "inward.weight", [RowSlice((f"{theirs}{name}.weight",), width, turn) for name, turn in named.items()]
    yield "out.weight", [RowSlice((f"{theirs}wo.weight",), width)]


def _dual(spec: Decoder, layer: int) -> Iterator[tuple[str, list[RowSlice]]]:
    mixer = spec.mixer
    assert isinstance(mixer, DualAttention)
    own, other = mixer.num_self_heads, mixer.num_relational_heads
    size = spec.hidden_size // (own + other)
    own_keys, keys, turned = mixer.num_key_value_heads or own, mixer.num_key_value_heads or other, _turned(spec, size)
    mine = f"blocks.{layer}.dual_attn.self_attention." if other else f"blocks.{layer}.self_attn."
    theirs, split = f"blocks.{layer}.dual_attn.relational_attention.", "" if mixer.variant == "rca" else "_attn"
    kinds = ("weight", "bias") if mixer.bias else ("weight",)
    outs = ("weight", "bias") if mixer.out_bias else ("weight",)

    def both(name: str, kind: str, first: int, second: int) -> list[RowSlice]:
        own_name, other_name = f"{mine}{name}.{kind}", f"{theirs}{name}{split}.{kind}"
        if other and mixer.shared_queries:
            return [RowSlice((own_name, other_name), first * size, turned)]
        found = [RowSlice((own_name,), first * size, turned)] if own else []
        return found + ([RowSlice((other_name,), second * size, turned)] if other else [])

    yield "queries.weight", both("wq", "weight", own, other)
    for kind in kinds:
        yield f"keys.{kind}", both("wk", kind, own_keys, keys)
        if own:
            yield f"values.{kind}", [RowSlice((f"{mine}wv.{kind}",), own_keys * size)]
        if other:
            yield f"symbol_values.{kind}", [RowSlice((f"{theirs}wv.{kind}",), keys * size)]
    for kind in outs:
        if own:
            yield f"own_out.{kind}", [RowSlice((f"{mine}wo.{kind}",), own * size)]
        if other:
            yield f"out.{kind}", [RowSlice((f"{theirs}wo.{kind}",), other * size)]
    if not other:
        return
    if mixer.variant != "rca":
        asking, target_positions = f"{theirs}wq_rel.weight", f"{theirs}wk_rel.weight"
        yield "relation_queries.weight", [RowSlice((asking, target_positions) if mixer.symmetric else (asking,))]
        if not mixer.symmetric:
            yield "relation_keys.weight", [RowSlice((target_positions,))]
    if mixer.variant == "relational":
        relations = mixer.num_relations or other
        yield "relation_map.weight", [RowSlice((f"{theirs}wr",), other * size, shape=(other, size, relations))]
    yield from _symbols(mixer, layer, spec.backbone.layers())


def _symbols(mixer: DualAttention, layer: int, layers: int) -> Iterator[tuple[str, list[RowSlice]]]:
    symbols, of_all = mixer.symbols, range(layers)
    if isinstance(symbols, PositionRelativeSymbols):
        names = tuple(f"symbol_retrievers.{one}.rel_pos_enc.rel_pos_embeddings" for one in of_all)
        whole = 2 * symbols.max_distance + 1
        size = whole if symbols.future_distances else symbols.max_distance + 1
        yield "symbols.vectors", [RowSlice(names, size, unread=whole - size)]
    elif isinstance(symbols, PositionalSymbols):
        names = tuple(f"symbol_retrievers.{one}.symbol_library.weight" for one in of_all)
        yield "symbols.vectors.weight", [RowSlice(names)]
    elif isinstance(symbols, SymbolicAttention):
        for ours, name in {
            "symbols": "symbol_library",
            "templates": "template_features",
            "map.weight": "q_proj.weight",
            "map.bias": "q_proj.bias",
        }.items():
            shared = symbols.sharing == "shared" or (symbols.sharing == "library" and ours == "symbols")
            those = of_all if shared else (layer,)
            yield f"symbols.{ours}", [RowSlice(tuple(f"symbol_retrievers.{one}.{name}" for one in those))]


def _turned(spec: Decoder, head_width: int) -> int:
    return head_width if any(isinstance(position, Rotary) for position in spec.positions) else 0


def _in_order(tensor: Tensor, size: int, order: Callable[[int], list[int]]) -> Tensor:
    return torch.unflatten(tensor, 0, (-1, size))[:, order(size)].flatten(0, 1) if size else tensor


def _halves(size: int) -> list[int]:
    """Which of neighbours stand first, for heads that turn halves."""
    return [*range(0, size, 2), *range(1, size, 2)]


def _neighbours(size: int) -> list[int]:
    return [place // 2 + (size // 2) * (place % 2) for place in range(size)]


def _ours(tensor: Tensor, piece: RowSlice, where: str) -> Tensor:
    tensor, rows = tensor.detach(), piece.size + piece.unread
    if tuple(tensor.shape) == piece.shape:
        tensor = tensor.flatten(0, 1)
    if not tensor.ndim:
        raise UserError(f"{where}: {piece.theirs[0]} is a single number; is it of another model?")
    if piece.size and len(tensor) != rows:
        raise UserError(f"{where}: {piece.theirs[0]} has {len(tensor)} rows, the model {rows}; is it of another model?")
    return _in_order(tensor[: piece.size or None], piece.turned, _halves)


def _theirs(tensor: Tensor, piece: RowSlice) -> Tensor:
    tensor = _in_order(tensor.detach(), piece.turned, _neighbours)
    if piece.unread:
        return torch.cat([tensor, tensor.new_zeros(piece.unread, tensor.shape[1])])
    return tensor if piece.shape is None else tensor.reshape(piece.shape)


def _refuse(spec: Decoder) -> None:
    """Raises `UserError` for what the published code cannot be."""
    mixer, wrong = spec.mixer, ""
    if not isinstance(mixer, Attention | DualAttention) or (isinstance(mixer, Attention) and mixer.bias):
        wrong = "mixer: Attention without biases or DualAttention"
    elif isinstance(mixer, DualAttention) and not isinstance(
        mixer.symbols, SymbolicAttention | PositionRelativeSymbols | PositionalSymbols
    ):
        wrong = "mixer.symbols: SymbolicAttention, PositionRelativeSymbols or PositionalSymbols"
    elif not isinstance(spec.backbone, Stack) or not isinstance(spec.feed_forward, FeedForward):
        wrong = "backbone: a Stack of blocks with a FeedForward"
    elif len(spec.positions) != 1 or not _placed(spec.positions[0]):
        wrong = "positions: one, Rotary(base=10000) of whole heads or Learned"
    elif spec.head_projection or spec.embedding_norm or spec.head_feed_forward is not None or not spec.residual:
        wrong = "head_projection, embedding_norm, head_feed_forward, residual: as by default"
    if wrong:
        raise UserError(f"{wrong} is what published dual attention has; this spec has something else")


def _placed(position: Position) -> bool:
    if isinstance(position, Rotary):
        return (position.base, position.partial_rotary_factor) == (10000.0, 1.0)
    return isinstance(position, Learned)

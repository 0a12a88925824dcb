"""Weights of the published code of dual attention, as a `Decoder` has them, and back.

Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727: checkpoints of
https://github.com/Awni00/abstract_transformer, of the code of its Tiny Stories numbers and of today's, and of the
package `dual-attention` 0.0.7 on PyPI. What differs: queries and keys of rotary heads turn neighbouring numbers there
and the two halves of a head here, so their rows are in another order; maps that read the same lie in one matrix here;
what layers share has a name in each of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from numerate.errors import Mistake
from numerate.mixers.attention import Attention
from numerate.mixers.dual_attention import DualAttention
from numerate.mixers.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.trunk import Stack
from numerate.positions.added import Learned
from numerate.positions.rotary import Rotary

IGNORED = ("freqs_cos", "freqs_sin", "freqs_cis")
"""Tables of angles that some checkpoints hold."""


@dataclass(frozen=True)
class Piece:
    """Some rows of a tensor of ours, and where they are theirs.

    `theirs` are the names it may have, the first being the one that is written. `turned` is the width of heads whose
    rows are in the other order, 0 for none. `shape` is that of their tensor, without its first dimension where that is
    -1; None where it is ours. `size` is how many rows there are.
    """

    theirs: tuple[str, ...]
    size: int
    turned: int = 0
    shape: tuple[int, ...] | None = None


def from_published(weights: Mapping[str, Tensor], spec: Decoder) -> dict[str, Tensor]:
    """The weights of a published model by the names of a `Decoder` of `spec`, for `load_state_dict`.

    Prefixes of `torch.compile` and DDP are left out. Raises `Mistake` where a weight is missing, is of another shape or
    is left over, and for a spec that no published model has.

    >>> spec = published(width=64, depth=4, self_heads=4, relational_heads=4)
    >>> model = spec.build(vocabulary, seed=0)
    >>> model.load_state_dict(from_published(torch.load("ckpt.pt", weights_only=True)["model"], spec))
    """
    given = {_plain(name): tensor for name, tensor in weights.items()}
    made: dict[str, Tensor] = {}
    used: set[str] = set()
    for ours, pieces in _pieces(spec).items():
        parts = []
        for piece in pieces:
            name = next((name for name in piece.theirs if name in given), None)
            if name is None:
                raise Mistake(f"weights: there is no {piece.theirs[0]}, which {ours} is made of; is the spec another?")
            used.update(piece.theirs)
            parts.append(_ours(given[name], piece, name))
        made[ours] = torch.cat(parts) if len(parts) > 1 else parts[0].clone()
    left = [name for name in given if name not in used and name not in IGNORED and not _shared(name, spec)]
    if left:
        raise Mistake(
            f"weights: {len(left)} are of nothing in the spec, such as {', '.join(sorted(left)[:3])}; is it another?"
        )
    return made


def to_published(weights: Mapping[str, Tensor], spec: Decoder) -> dict[str, Tensor]:
    """The other way round: a Decoder's `state_dict` by the published names, for their `load_state_dict`.

    Symbols of later tokens, which are never read, are 0 where `spec` has none. Raises `Mistake` for a spec that no
    published model has."""
    made: dict[str, Tensor] = {}
    for ours, pieces in _pieces(spec).items():
        parts = torch.split(weights[ours], [piece.size for piece in pieces]) if len(pieces) > 1 else [weights[ours]]
        for piece, part in zip(pieces, parts, strict=True):
            made[f"layers.{piece.theirs[0]}"] = _theirs(part, piece).clone()
    return made


def _plain(name: str) -> str:
    for prefix in ("module.", "_orig_mod.", "layers."):
        name = name.removeprefix(prefix)
    return name


def _shared(name: str, spec: Decoder) -> bool:
    """Whether a weight is another one's, under a second name."""
    mixer = spec.mixer
    if not isinstance(mixer, DualAttention):
        return False
    second = [".relational_attention.wk_rel."] if mixer.symmetric else []
    second += [".relational_attention.wq_attn.", ".relational_attention.wk_attn."] if mixer.shared_queries else []
    return any(part in name for part in second)


def _pieces(spec: Decoder) -> dict[str, list[Piece]]:
    """Every weight of ours, with what it is made of."""
    _refuse(spec)
    made = {"embedding.weight": [Piece(("token_embedder.weight",), 0)]}
    for number, position in enumerate(spec.positions):
        if isinstance(position, Learned):
            made[f"input_positions.{number}.vectors.weight"] = [Piece(("positional_embedder.weight",), 0)]
    for layer in range(spec.trunk.layers()):
        mine, theirs = f"trunk.blocks.{layer}.", f"blocks.{layer}."
        for ours, name in (("mixer_norm", "norm1"), ("feed_forward_norm", "norm2")):
            made |= _norm(spec, mine + ours, theirs + name)
        mixing = _attention if isinstance(spec.mixer, Attention) else _dual
        for ours, pieces in mixing(spec, layer):
            made[f"{mine}mixer.{ours}"] = pieces
        made |= _fed(spec, mine, theirs)
    if spec.norm_first if spec.final_norm is None else spec.final_norm:
        made |= _norm(spec, "final_norm", "norm")
    own = ("token_embedder.weights", "final_out") if spec.head_bias else ("final_out", "token_embedder.weights")
    tied = ("token_embedder",) if spec.tied else ()
    made["head.weight"] = [Piece(tuple(f"{name}.weight" for name in (*own, *tied)), 0)]
    if spec.head_bias:
        made["head.bias"] = [Piece(tuple(f"{name}.bias" for name in own), 0)]
    return made


def _norm(spec: Decoder, ours: str, theirs: str) -> dict[str, list[Piece]]:
    names = {"layer": ("weight", "bias"), "rms": ("weight",), "none": ()}[spec.norm]
    return {f"{ours}.{name}": [Piece((f"{theirs}.{name}",), 0)] for name in names}


def _fed(spec: Decoder, mine: str, theirs: str) -> dict[str, list[Piece]]:
    fed, made = spec.feed_forward, {}
    assert fed is not None
    hidden, gated = fed.hidden_width(spec.width), fed.activation in ("swiglu", "geglu")
    for kind in ("weight", "bias") if fed.biases else ("weight",):
        inward = ("linear1", "linear3") if gated else ("linear1",)
        made[f"{mine}feed_forward.inward.{kind}"] = [
            Piece((f"{theirs}ff_block.{name}.{kind}",), hidden) for name in inward
        ]
        made[f"{mine}feed_forward.out.{kind}"] = [Piece((f"{theirs}ff_block.linear2.{kind}",), spec.width)]
    return made


def _attention(spec: Decoder, layer: int) -> Iterator[tuple[str, list[Piece]]]:
    mixer, width = spec.mixer, spec.width
    assert isinstance(mixer, Attention)
    theirs, turned = f"blocks.{layer}.self_attn.", _turned(spec, width // mixer.heads)
    named = {"wq": turned, "wk": turned, "wv": 0}
    yield "inward.weight", [Piece((f"{theirs}{name}.weight",), width, turn) for name, turn in named.items()]
    yield "out.weight", [Piece((f"{theirs}wo.weight",), width)]


def _dual(spec: Decoder, layer: int) -> Iterator[tuple[str, list[Piece]]]:
    mixer = spec.mixer
    assert isinstance(mixer, DualAttention)
    own, other = mixer.self_heads, mixer.relational_heads
    size = spec.width // (own + other)
    own_keys, keys, turned = mixer.key_value_heads or own, mixer.key_value_heads or other, _turned(spec, size)
    mine = f"blocks.{layer}.dual_attn.self_attention." if other else f"blocks.{layer}.self_attn."
    theirs, split = f"blocks.{layer}.dual_attn.relational_attention.", "" if mixer.variant == "rca" else "_attn"
    kinds = ("weight", "bias") if mixer.biases else ("weight",)
    outs = ("weight", "bias") if mixer.out_biases else ("weight",)
    alone = other and not mixer.shared_queries

    def both(name: str, kind: str, first: int, second: int) -> list[Piece]:
        found = [Piece((f"{mine}{name}.{kind}",), first * size, turned)] if own else []
        return found + ([Piece((f"{theirs}{name}{split}.{kind}",), second * size, turned)] if alone else [])

    yield "queries.weight", both("wq", "weight", own, other)
    for kind in kinds:
        yield f"keys.{kind}", both("wk", kind, own_keys, keys)
        if own:
            yield f"values.{kind}", [Piece((f"{mine}wv.{kind}",), own_keys * size)]
        if other:
            yield f"symbol_values.{kind}", [Piece((f"{theirs}wv.{kind}",), keys * size)]
    for kind in outs:
        if own:
            yield f"own_out.{kind}", [Piece((f"{mine}wo.{kind}",), own * size)]
        if other:
            yield f"out.{kind}", [Piece((f"{theirs}wo.{kind}",), other * size)]
    if not other:
        return
    if mixer.variant != "rca":
        yield "relation_queries.weight", [Piece((f"{theirs}wq_rel.weight",), 0)]
        if not mixer.symmetric:
            yield "relation_keys.weight", [Piece((f"{theirs}wk_rel.weight",), 0)]
    if mixer.variant == "relational":
        relations = mixer.relations or other
        yield "relation_map.weight", [Piece((f"{theirs}wr",), other * size, shape=(other, size, relations))]
    yield from _symbols(mixer, layer)


def _symbols(mixer: DualAttention, layer: int) -> Iterator[tuple[str, list[Piece]]]:
    symbols = mixer.symbols
    # One that all layers share has the name of each layer in a `state_dict`, and the first's alone elsewhere.
    own = isinstance(symbols, SymbolicAttention) and symbols.layers == "own"
    library = isinstance(symbols, SymbolicAttention) and symbols.layers == "library"
    first = () if own else ("symbol_retrievers.0.",)
    if isinstance(symbols, SymbolicAttention):
        names = {
            "templates": "template_features",
            "symbols": "symbol_library",
            "map.weight": "q_proj.weight",
            "map.bias": "q_proj.bias",
        }
    else:
        relative = isinstance(symbols, PositionRelativeSymbols)
        names = (
            {"vectors": "rel_pos_enc.rel_pos_embeddings"} if relative else {"vectors.weight": "symbol_library.weight"}
        )
    size = symbols.farthest + 1 if isinstance(symbols, PositionRelativeSymbols) and not symbols.later_too else 0
    for ours, name in names.items():
        others = () if library and ours.startswith("map") else first
        yield f"symbols.{ours}", [Piece(tuple(f"{at}{name}" for at in (f"symbol_retrievers.{layer}.", *others)), size)]


def _turned(spec: Decoder, head_width: int) -> int:
    return head_width if any(isinstance(position, Rotary) for position in spec.positions) else 0


def _in_order(tensor: Tensor, size: int, order: Callable[[int], list[int]]) -> Tensor:
    return torch.unflatten(tensor, 0, (-1, size))[:, order(size)].flatten(0, 1) if size else tensor


def _halves(size: int) -> list[int]:
    """Which of neighbours stand first, for heads that turn halves."""
    return [*range(0, size, 2), *range(1, size, 2)]


def _neighbours(size: int) -> list[int]:
    return [place // 2 + (size // 2) * (place % 2) for place in range(size)]


def _ours(tensor: Tensor, piece: Piece, name: str) -> Tensor:
    if piece.shape is not None:
        if tuple(tensor.shape) != piece.shape:
            raise Mistake(f"weights: {name} is {tuple(tensor.shape)}, the spec has {piece.shape}; is it another?")
        tensor = tensor.flatten(0, 1)
    tensor = tensor.detach()
    if _is_relative(piece):
        return tensor[: piece.size or None]
    if piece.size and len(tensor) != piece.size:
        raise Mistake(f"weights: {name} has {len(tensor)} rows, the spec {piece.size}; is it another?")
    return _in_order(tensor, piece.turned, _halves)


def _theirs(tensor: Tensor, piece: Piece) -> Tensor:
    tensor = _in_order(tensor.detach(), piece.turned, _neighbours)
    if _is_relative(piece) and piece.size:
        return torch.cat([tensor, tensor.new_zeros(piece.size - 1, tensor.shape[1])])
    return tensor if piece.shape is None else tensor.reshape(piece.shape)


def _is_relative(piece: Piece) -> bool:
    return piece.theirs[0].endswith("rel_pos_embeddings")


def _refuse(spec: Decoder) -> None:
    """Raises `Mistake` for what the published code cannot be."""
    mixer, wrong = spec.mixer, ""
    if not isinstance(mixer, Attention | DualAttention) or (isinstance(mixer, Attention) and mixer.biases):
        wrong = "mixer: Attention without biases or DualAttention"
    elif isinstance(mixer, DualAttention) and not isinstance(
        mixer.symbols, SymbolicAttention | PositionRelativeSymbols | PositionalSymbols
    ):
        wrong = "mixer.symbols: SymbolicAttention, PositionRelativeSymbols or PositionalSymbols"
    elif not isinstance(spec.trunk, Stack) or not isinstance(spec.feed_forward, FeedForward):
        wrong = "trunk: a Stack of blocks with a FeedForward"
    elif len(spec.positions) != 1 or not isinstance(spec.positions[0], Rotary | Learned) or _partly(spec.positions[0]):
        wrong = "positions: one, Rotary of whole heads or Learned"
    elif spec.adapter or spec.embedding_norm or spec.head_feed_forward is not None or not spec.residual:
        wrong = "adapter, embedding_norm, head_feed_forward, residual: as by default"
    if wrong:
        raise Mistake(f"{wrong} is what published dual attention has; this spec has something else")


def _partly(position: Any) -> bool:
    return isinstance(position, Rotary) and position.share != 1.0

"""Weights of the published code of dual attention, as a `Decoder` has them, and back.

Altabaa and Lafferty (2024), https://arxiv.org/abs/2405.16727: checkpoints of
https://github.com/Awni00/abstract_transformer, of the code of its Tiny Stories numbers (May 2024) and of today's, and
of the package `dual-attention` 0.0.7 on PyPI. What differs: queries and keys of rotary heads rotate adjacent components
there and the two halves of a head here, so their rows are in another order; maps that read the same lie in one matrix
here; what is one tensor there stands in a file under each of its names, or under one of them.
"""

import re
from collections.abc import Iterator, Mapping
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
_RENAMED = (
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

    `published_names` are the names that their tensor has, more than one where modules share it. `num_rows` is how many
    rows of ours it has, 0 for any number; it may have as many `num_unused_rows` ones behind them. `rotary_head_dim` is
    the width of heads whose rows are in the other order, 0 for none. `published_shape` is that of their tensor where it
    is another.
    """

    published_names: tuple[str, ...]
    num_rows: int = 0
    rotary_head_dim: int = 0
    num_unused_rows: int = 0
    published_shape: tuple[int, ...] | None = None


def from_published(weights: Mapping[str, Tensor], spec: Decoder, *, where: str = "weights") -> dict[str, Tensor]:
    """The weights of a published model by the names of a `Decoder` of `spec`, for `load_state_dict`.

    Prefixes of `torch.compile` and DDP are left out. Raises `UserError`, which begins with `where`, for a weight that
    is missing, left over or of another shape, for two that differ and are one in the spec, and for a spec that no
    published model has.

        spec = published(hidden_size=64, num_layers=4, num_self_heads=4, num_relational_heads=4)
        model = spec.build(vocabulary, seed=0)
        model.load_state_dict(from_published(torch.load("ckpt.pt", weights_only=True)["model"], spec))
    """
    row_slices = _row_slices(spec)
    file = StrictWeights(weights, where, normalize_name=_normalize_name)
    state_dict: dict[str, Tensor] = {}
    for name, slices in row_slices.items():
        parts = [_rows_from_published(file.take(piece.published_names, name), piece, where) for piece in slices]
        if len({part.shape[1:] for part in parts}) > 1:
            names = " and ".join(piece.published_names[0] for piece in slices)
            raise UserError(f"{where}: {names} have rows of different widths; are they of one model?")
        state_dict[name] = torch.cat(parts) if len(parts) > 1 else parts[0].clone()
    file.check_all_used()
    return state_dict


def to_published(weights: Mapping[str, Tensor], spec: Decoder) -> dict[str, Tensor]:
    """The other way round: a Decoder's `state_dict` by the names of today's published code, for its `load_state_dict`.

    Symbols of later tokens, which are never read, are 0 where `spec` has none. Raises `UserError` for a spec that no
    published model has."""
    state_dict: dict[str, Tensor] = {}
    for own_name, slices in _row_slices(spec).items():
        sizes = [row_slice.num_rows for row_slice in slices] if len(slices) > 1 else [len(weights[own_name])]
        for piece, part in zip(slices, torch.split(weights[own_name], sizes), strict=True):
            tensor = _rows_to_published(part, piece)
            state_dict |= {f"layers.{name}": tensor.clone() for name in piece.published_names}
    return state_dict


def _normalize_name(name: str) -> str:
    name = _PREFIX.sub("", name)
    for old, new in _RENAMED:
        name = name.replace(old, new)
    return name


def _row_slices(spec: Decoder) -> dict[str, list[RowSlice]]:
    """Every weight of ours, with what it is made of."""
    _check_supported(spec)
    table, head = "token_embedder.weight", "final_out.weight"
    slices = {"embedding.weight": [RowSlice((table, head) if spec.tie_word_embeddings else (table,))]}
    for number, position in enumerate(spec.positions):
        if isinstance(position, Learned):
            slices[f"input_positions.{number}.embedding.weight"] = [RowSlice(("positional_embedder.weight",))]
    for layer in range(spec.backbone.num_blocks()):
        own_prefix, published_prefix = f"backbone.blocks.{layer}.", f"blocks.{layer}."
        for ours, name in (("mixer_norm", "norm1"), ("feed_forward_norm", "norm2")):
            slices |= _norm_slices(spec, own_prefix + ours, published_prefix + name)
        mixer_slices = _attention_slices if isinstance(spec.mixer, Attention) else _dual_attention_slices
        for ours, mixer_rows in mixer_slices(spec, layer):
            slices[f"{own_prefix}mixer.{ours}"] = mixer_rows
        slices |= _feed_forward_slices(spec, own_prefix, published_prefix)
    if spec.norm_first if spec.final_norm is None else spec.final_norm:
        slices |= _norm_slices(spec, "final_norm", "norm")
    slices["head.weight"] = [RowSlice((table, head) if spec.tie_word_embeddings else (head,))]
    if spec.head_bias:
        slices["head.bias"] = [RowSlice(("final_out.bias",))]
    return slices


def _norm_slices(spec: Decoder, own_prefix: str, published_prefix: str) -> dict[str, list[RowSlice]]:
    names = {"layer": ("weight", "bias"), "rms": ("weight",), "none": ()}[spec.norm]
    return {f"{own_prefix}.{name}": [RowSlice((f"{published_prefix}.{name}",))] for name in names}


def _feed_forward_slices(spec: Decoder, own_prefix: str, published_prefix: str) -> dict[str, list[RowSlice]]:
    feed_forward, slices = spec.feed_forward, {}
    assert feed_forward is not None
    intermediate_size = feed_forward.resolve_intermediate_size(spec.hidden_size)
    input_names = ("linear1", "linear3") if feed_forward.activation in ("swiglu", "geglu") else ("linear1",)
    for kind in ("weight", "bias") if feed_forward.bias else ("weight",):
        slices[f"{own_prefix}feed_forward.in_proj.{kind}"] = [
            RowSlice((f"{published_prefix}ff_block.{name}.{kind}",), intermediate_size) for name in input_names
        ]
        slices[f"{own_prefix}feed_forward.out_proj.{kind}"] = [
            RowSlice((f"{published_prefix}ff_block.linear2.{kind}",), spec.hidden_size)
        ]
    return slices


def _attention_slices(spec: Decoder, layer: int) -> Iterator[tuple[str, list[RowSlice]]]:
    mixer, width = spec.mixer, spec.hidden_size
    assert isinstance(mixer, Attention)
    prefix, rotary_dim = f"blocks.{layer}.self_attn.", _rotary_head_dim(spec, width // mixer.num_heads)
    rotary_dims = {"wq": rotary_dim, "wk": rotary_dim, "wv": 0}
    yield "qkv_proj.weight", [RowSlice((f"{prefix}{name}.weight",), width, dim) for name, dim in rotary_dims.items()]
    yield "out_proj.weight", [RowSlice((f"{prefix}wo.weight",), width)]


def _dual_attention_slices(spec: Decoder, layer: int) -> Iterator[tuple[str, list[RowSlice]]]:
    mixer = spec.mixer
    assert isinstance(mixer, DualAttention)
    num_heads = num_self_heads, num_relational_heads = mixer.num_self_heads, mixer.num_relational_heads
    num_key_heads = tuple(mixer.num_key_value_heads or number for number in num_heads)
    head_dim = spec.hidden_size // sum(num_heads)
    self_prefix = f"blocks.{layer}.dual_attn.self_attention." if num_relational_heads else f"blocks.{layer}.self_attn."
    relational_prefix = f"blocks.{layer}.dual_attn.relational_attention."
    suffix = "" if mixer.variant == "rca" else "_attn"

    def both(name: str, kind: str, numbers: tuple[int, ...]) -> list[RowSlice]:
        """The rows of heads of both sorts, for queries and keys."""
        names = f"{self_prefix}{name}.{kind}", f"{relational_prefix}{name}{suffix}.{kind}"
        rotary_dim = _rotary_head_dim(spec, head_dim)
        if num_relational_heads and mixer.shared_queries:
            return [RowSlice(names, numbers[0] * head_dim, rotary_dim)]
        return [RowSlice((names[sort],), numbers[sort] * head_dim, rotary_dim) for sort in (0, 1) if num_heads[sort]]

    yield "q_proj.weight", both("wq", "weight", num_heads)
    for kind in ("weight", "bias") if mixer.bias else ("weight",):
        yield f"k_proj.{kind}", both("wk", kind, num_key_heads)
        if num_self_heads:
            yield f"v_proj.{kind}", [RowSlice((f"{self_prefix}wv.{kind}",), num_key_heads[0] * head_dim)]
        if num_relational_heads:
            yield f"symbol_v_proj.{kind}", [RowSlice((f"{relational_prefix}wv.{kind}",), num_key_heads[1] * head_dim)]
    for kind in ("weight", "bias") if mixer.out_bias else ("weight",):
        if num_self_heads:
            yield f"self_out_proj.{kind}", [RowSlice((f"{self_prefix}wo.{kind}",), num_self_heads * head_dim)]
        if num_relational_heads:
            rows = RowSlice((f"{relational_prefix}wo.{kind}",), num_relational_heads * head_dim)
            yield f"relational_out_proj.{kind}", [rows]
    if not num_relational_heads:
        return
    if mixer.variant != "rca":
        query, key = f"{relational_prefix}wq_rel.weight", f"{relational_prefix}wk_rel.weight"
        yield "relation_q_proj.weight", [RowSlice((query, key) if mixer.symmetric else (query,))]
        if not mixer.symmetric:
            yield "relation_k_proj.weight", [RowSlice((key,))]
    if mixer.variant == "relational":
        shape = (num_relational_heads, head_dim, mixer.num_relations or num_relational_heads)
        rows = RowSlice((f"{relational_prefix}wr",), num_relational_heads * head_dim, published_shape=shape)
        yield "relation_proj.weight", [rows]
    yield from _symbol_slices(mixer, layer, spec.backbone.num_blocks())


def _symbol_slices(mixer: DualAttention, layer: int, layers: int) -> Iterator[tuple[str, list[RowSlice]]]:
    symbols, all_layers = mixer.symbols, range(layers)
    if isinstance(symbols, PositionRelativeSymbols):
        names = tuple(f"symbol_retrievers.{one}.rel_pos_enc.rel_pos_embeddings" for one in all_layers)
        num_published_rows = 2 * symbols.max_distance + 1
        size = num_published_rows if symbols.future_distances else symbols.max_distance + 1
        yield "symbols.rel_pos_embeddings", [RowSlice(names, size, num_unused_rows=num_published_rows - size)]
    elif isinstance(symbols, PositionalSymbols):
        names = tuple(f"symbol_retrievers.{one}.symbol_library.weight" for one in all_layers)
        yield "symbols.embedding.weight", [RowSlice(names)]
    elif isinstance(symbols, SymbolicAttention):
        for name in ("symbol_library", "template_features", "q_proj.weight", "q_proj.bias"):
            shared = symbols.sharing == "shared" or (symbols.sharing == "library" and name == "symbol_library")
            used_layers = all_layers if shared else (layer,)
            yield f"symbols.{name}", [RowSlice(tuple(f"symbol_retrievers.{one}.{name}" for one in used_layers))]


def _rotary_head_dim(spec: Decoder, head_width: int) -> int:
    return head_width if any(isinstance(position, Rotary) for position in spec.positions) else 0


def _transpose_rows(tensor: Tensor, sizes: tuple[int, int]) -> Tensor:
    """The rows of heads, of which each is a table of this size, in the order of the table's columns."""
    return tensor.reshape(-1, *sizes, *tensor.shape[1:]).transpose(1, 2).flatten(0, 2)


def _rows_from_published(tensor: Tensor, row_slice: RowSlice, where: str) -> Tensor:
    tensor, rows = tensor.detach(), row_slice.num_rows + row_slice.num_unused_rows
    if tuple(tensor.shape) == row_slice.published_shape:
        tensor = tensor.flatten(0, 1)
    if not tensor.ndim:
        raise UserError(f"{where}: {row_slice.published_names[0]} is a single number; is it of another model?")
    if row_slice.num_rows and len(tensor) != rows:
        raise UserError(
            f"{where}: {row_slice.published_names[0]} has {len(tensor)} rows, the model {rows}; is it of another model?"
        )
    tensor, head_dim = tensor[: row_slice.num_rows or None], row_slice.rotary_head_dim
    return _transpose_rows(tensor, (head_dim // 2, 2)) if head_dim else tensor


def _rows_to_published(tensor: Tensor, row_slice: RowSlice) -> Tensor:
    tensor, head_dim = tensor.detach(), row_slice.rotary_head_dim
    tensor = _transpose_rows(tensor, (2, head_dim // 2)) if head_dim else tensor
    if row_slice.num_unused_rows:
        return torch.cat([tensor, tensor.new_zeros(row_slice.num_unused_rows, tensor.shape[1])])
    return tensor if row_slice.published_shape is None else tensor.reshape(row_slice.published_shape)


def _check_supported(spec: Decoder) -> None:
    """Raises `UserError` for what the published code cannot be."""
    mixer, requirement = spec.mixer, ""
    if not isinstance(mixer, Attention | DualAttention) or (isinstance(mixer, Attention) and mixer.bias):
        requirement = "mixer: Attention without biases or DualAttention"
    elif isinstance(mixer, DualAttention) and not isinstance(
        mixer.symbols, SymbolicAttention | PositionRelativeSymbols | PositionalSymbols
    ):
        requirement = "mixer.symbols: SymbolicAttention, PositionRelativeSymbols or PositionalSymbols"
    elif not isinstance(spec.backbone, Stack) or not isinstance(spec.feed_forward, FeedForward):
        requirement = "backbone: a Stack of blocks with a FeedForward"
    elif len(spec.positions) != 1 or not _is_supported_position(spec.positions[0]):
        requirement = "positions: one, Rotary(base=10000) of whole heads or Learned"
    elif spec.head_projection or spec.embedding_norm or spec.head_feed_forward is not None or not spec.residual:
        requirement = "head_projection, embedding_norm, head_feed_forward, residual: as by default"
    if requirement:
        raise UserError(f"{requirement} is required for the weights of published dual attention")


def _is_supported_position(position: Position) -> bool:
    if isinstance(position, Rotary):
        return (position.base, position.partial_rotary_factor) == (10000.0, 1.0)
    return isinstance(position, Learned)

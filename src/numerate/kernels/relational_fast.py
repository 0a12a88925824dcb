"""Relational attention without numbers for all pairs at once: exact, and quicker than the definition."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention

from numerate.kernels.relational import Activation, Heads, Kind, activated, distances, plain
from numerate.kernels.relational_tiles import has_kernel, in_tiles, why_not_tiled
from numerate.kernels.token_shift import uncompiled

Form = Literal["auto", "plain", "values", "chunks", "triton", "tiles"]

QUERIES = {"cpu": 64, "cuda": 256}
"""How many queries are read at a time."""

KEPT = 2**24
"""More attention weights than this (64 MiB of float32) are computed again in the backward instead of being kept."""


def relational_attention(
    heads: Heads, kind: Kind, activation: Activation, form: Form = "auto"
) -> Float[Tensor, "rows heads query head_width"]:
    """As `plain`, in one of its exact forms.

    - `values`: relations that are plain products need not be known pair by pair. The sum over j of a_ij (q_i . k_j) is
      q_i times the sum of a_ij k_j, so relation keys are attended to like values, beside the symbols.
    - `chunks`: so many queries at a time, with only the keys that they see; for every activation.
    - `triton`: kernels for a CUDA device that make relations once for all heads and write none of them down, for
      `relational` with activations one by one, whole rows with nothing hidden; `tiles` is what they do in plain torch,
      for comparison. Some queries of a row (decoding) take `chunks` in their place.

    Symbols that depend on the distance are multiplied, in `values` and `chunks`, with weights that are moved from keys
    to distances. Raises `UserError` for a form requested by name that is not available.
    """
    form = chosen(heads, kind, activation) if form == "auto" else form
    if form in ("triton", "tiles"):
        if heads.places is None:
            return in_tiles(heads, kind, activation, form)
        form = "chunks"
    heads = _each(heads)
    if heads.dropout and heads.kept is None and (form == "plain" or heads.places is not None):
        heads = replace(heads, kept=_drawn(_row_of(heads), heads.dropout).kept)
    if form == "plain":
        return plain(heads, kind, activation)
    if heads.places is not None:
        far = None if heads.by_distance is None else distances(heads)
        attended, related = _read(_row_of(heads), kind, activation, heads.dropout, far)
    elif form == "values":
        attended, related = _by_values(heads, kind)
    else:
        attended, related = _in_chunks(heads, kind, activation)
    if related is None:
        return attended
    assert heads.relation_map is not None
    return attended + related @ heads.relation_map.mT


def chosen(heads: Heads, kind: Kind, activation: Activation) -> Form:
    """The form that `auto` takes: `values` where there is one and it is the quicker.

    On a CUDA device with triton it is the kernel for what that can do and the device has shared memory for
    (`relational_tiles.SHARED_MEMORY`), unless values are plain products no wider than 128 in all: those are what the
    fused attention of torch is made for. (Where the line is was not measured.)

    For a pair of tokens `values` multiplies heads x relations x width numbers, `chunks` a fraction of them but with
    passes over memory for every relation. Of both, on one core of a CPU and rows of 512, the line between them:
    4 x 4 x 64 take equally long, 8 x 8 x 64 1.6 times as long as values, 8 x 32 x 8 1.6 times as long in chunks.
    """
    if heads.places is None and why_not_tiled(heads, kind, activation) is None and has_kernel(heads, activation):
        return "triton"
    if not has_values(kind, activation) or heads.places is not None:
        return "chunks"
    if heads.relation_keys is None or heads.queries.is_cuda:
        return "values"
    _, relations, _, width = heads.relation_keys.shape
    products = heads.queries.shape[1] * relations * width
    return "values" if products <= 700 + relations * (90 + 2 * width) else "chunks"


def has_values(kind: Kind, activation: Activation) -> bool:
    """Whether there is a form `values`: the weights must be those of a softmax, and relations plain products."""
    return (kind, activation) in (("relational", "identity"), ("rca", "softmax"))


def _each(heads: Heads) -> Heads:
    """With keys and symbols for each head, where some share them."""
    count = heads.queries.shape[1]

    def each(x: Tensor) -> Tensor:
        return x if x.shape[1] == count else x.repeat_interleave(count // x.shape[1], dim=1)

    symbols, far = (None if x is None else each(x) for x in (heads.symbols, heads.by_distance))
    return replace(heads, keys=each(heads.keys), symbols=symbols, by_distance=far)


# Pieces of a row ---------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """The tensors of `Heads` that differ from row to row, or their gradients."""

    queries: Any
    keys: Any
    symbols: Any
    by_distance: Any
    relation_queries: Any
    relation_keys: Any
    bias: Any
    visible: Any
    kept: Any

    def pieces(self) -> Iterator[tuple[int, int]]:
        time, size = self.keys.shape[2], QUERIES.get(self.keys.device.type, 64)
        return ((start, min(start + size, time)) for start in range(0, time, size))

    def cut(self, start: int, end: int) -> "_Row":
        """The queries from `start` to `end` and the keys that they see: views, so that gradients are added in place."""
        cuts = {
            **dict.fromkeys(("queries", "relation_queries"), (..., slice(start, end), slice(None))),
            **dict.fromkeys(("keys", "symbols", "relation_keys"), (..., slice(0, end), slice(None))),
            **dict.fromkeys(("bias", "visible", "kept"), (..., slice(start, end), slice(0, end))),
        }
        if self.by_distance is not None:
            cuts["by_distance"] = (..., slice(self.by_distance.shape[2] - end, None), slice(None))
        named = self._asdict()
        return _Row(**{name: one if one is None else one[cuts[name]] for name, one in named.items()})

    def room(self, needed: tuple[bool, ...]) -> "_Row":
        """Zeros for the gradients; none for the biases of pairs, which are many, where they need none."""
        floating = [x is not None and x.is_floating_point() for x in self]
        found = [torch.zeros_like(x) if there else None for x, there in zip(self, floating, strict=True)]
        return _Row(*found) if needed[_Row._fields.index("bias")] else _Row(*found)._replace(bias=None)


def _row_of(heads: Heads) -> _Row:
    return _Row(*(getattr(heads, name) for name in _Row._fields))


def _weights(row: _Row) -> Tensor:
    """The weights of attention of the last queries of a row."""
    scores = (row.queries * row.queries.shape[-1] ** -0.5) @ row.keys.mT
    if row.bias is not None:
        scores = scores + row.bias
    kept = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.masked_fill(~_visible(row), float("-inf")).softmax(-1, dtype=kept)
    alike: Tensor = weights.to(row.queries.dtype)
    return alike


def _visible(row: _Row) -> Tensor:
    if row.visible is not None:
        seen: Tensor = row.visible
        return seen
    queries, keys = row.queries.shape[2], row.keys.shape[2]
    return torch.ones(queries, keys, dtype=torch.bool, device=row.keys.device).tril(keys - queries)[None, None]


def _drawn(row: _Row, dropout: float) -> _Row:
    """With which weights are kept; in the backward these are known."""
    if not dropout or row.kept is not None:
        return row
    kept = row.queries.new_empty(*row.queries.shape[:3], row.keys.shape[2], dtype=torch.bool)
    return row._replace(kept=kept.bernoulli_(1 - dropout))


def _dropped(weights: Tensor, row: _Row, dropout: float) -> Tensor:
    return weights if row.kept is None else weights * row.kept * (1 / (1 - dropout))


def _moved(weights: Tensor) -> Tensor:
    """Weights of keys as weights of distances, the farthest first: the last row stays, each one above it moves one more
    to the right. What moves out is of keys that a query does not see, which is 0.

    >>> _moved(torch.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]]))[0].tolist()
    [0.0, 1.0, 2.0]
    """
    queries, keys = weights.shape[-2:]
    return torch.unflatten(pad(weights.flatten(-2), (queries - 1, 1)), -1, (queries, keys + 1))[..., :-1]


def _moved_back(weights: Tensor) -> Tensor:
    """The gradient of `_moved`."""
    queries, keys = weights.shape[-2:]
    return torch.unflatten(pad(weights, (0, 1)).flatten(-2)[..., queries - 1 : -1], -1, (queries, keys))


def _folded(members: int, dims: tuple[int | None, ...], given: tuple[Any, ...]) -> list[Any]:
    """Under `torch.vmap` the members of a stack become further rows."""
    rows = given[0].shape[1 if dims[0] == 0 else 0]
    folded: list[Any] = []
    for x, dim in zip(given, dims, strict=True):
        if isinstance(x, Tensor) and not (dim is None and len(x) == 1):
            x = x.expand(members, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.expand(members, rows, *x.shape[2:]).flatten(0, 1)
        folded.append(x)
    return folded


# Values ------------------------------------------------------------------------------------------------------------


def _by_values(heads: Heads, kind: Kind) -> tuple[Tensor, Tensor | None]:
    count, head_width = heads.queries.shape[1], heads.queries.shape[-1]
    parts = [] if heads.symbols is None else [heads.symbols.expand(len(heads.keys), -1, -1, -1)]
    if kind == "relational":
        assert heads.relation_keys is not None
        parts.append(heads.relation_keys.transpose(1, 2).flatten(2)[:, None].expand(-1, count, -1, -1))
    values = torch.cat(parts, dim=-1) if parts else heads.keys[..., :0]
    row = _row_of(heads)._replace(symbols=values, relation_queries=None, relation_keys=None)
    if heads.by_distance is None and _by_torch(row, heads.dropout):
        output = attended(heads.queries, heads.keys, values, heads.visible, heads.bias, heads.dropout)
    else:
        output = _attended(row, heads.dropout)
    if kind == "rca":
        return output, None
    symbols, keys = torch.split(output, [head_width, output.shape[-1] - head_width], dim=-1)
    assert heads.relation_queries is not None
    asking = heads.relation_queries.transpose(1, 2)[:, None]
    related = (asking * torch.unflatten(keys, -1, asking.shape[-2:])).sum(-1)
    return symbols, related * asking.shape[-1] ** -0.5


def attended(
    queries: Float[Tensor, "rows heads query width"],
    keys: Float[Tensor, "rows heads key width"],
    values: Float[Tensor, "rows heads key value_width"],
    visible: Bool[Tensor, "#rows 1 query key"] | None = None,
    bias: Float[Tensor, "#rows #heads query key"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "rows heads query value_width"]:
    """Attention, by torch or by `_Attended`, whichever is quicker: causal; fewer queries than keys, without a mask, see
    all of them."""
    row = _Row(queries, keys, values, None, None, None, bias, visible, None)
    if not _by_torch(row, dropout):
        return _attended(row, dropout)
    mask = visible
    if visible is not None and bias is not None:
        mask = bias.masked_fill(~visible, float("-inf"))
    if mask is None and queries.shape[2] == keys.shape[2]:
        return scaled_dot_product_attention(queries, keys, values, dropout_p=dropout, is_causal=True)
    return scaled_dot_product_attention(queries, keys, values, mask, dropout_p=dropout)


def _by_torch(row: _Row, dropout: float) -> bool:
    """Torch has nothing fused for a CPU where values are wider than keys, or weights are dropped."""
    some = row.queries.shape[2] != row.keys.shape[2]
    alike = row.symbols.shape[-1] == row.queries.shape[-1] and not dropout and row.kept is None
    return bool(row.queries.is_cuda or some or alike)


@uncompiled
def _attended(row: _Row, dropout: float) -> Tensor:
    output: Tensor = _Attended.apply(*row, dropout)[0]  # type: ignore[no-untyped-call]
    return output


class _Attended(Function):
    """Causal attention whose values (`symbols`) may be wider than its keys, some queries at a time, with only the keys
    that these see; before them come the weighted symbols by distance.

    The gradient of a softmax, with o = the sum of a_j v_j and g the gradient of o: a_j (g . v_j - g . o). The weights
    are further outputs, so that they can be kept.
    """

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        *tensors, dropout = given
        row = _Row(*tensors)
        far = 0 if row.by_distance is None else row.by_distance.shape[-1]
        output = row.queries.new_empty(*row.queries.shape[:3], far + row.symbols.shape[-1])
        keep = row.queries[..., 0].numel() * row.keys.shape[2] <= 2 * KEPT
        tiles, drawn = [], []
        for start, end in row.pieces():
            now = _drawn(row.cut(start, end), dropout)
            weights = _weights(now)
            tiles += [weights] if keep else []
            drawn += [now.kept] if row.kept is None and dropout else []
            weights = _dropped(weights, now, dropout)
            if far:
                output[:, :, start:end, :far] = _moved(weights) @ now.by_distance
            output[:, :, start:end, far:] = weights @ now.symbols
        return output, *drawn, *tiles

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        *tensors, ctx.dropout = inputs
        ctx.given = len(tensors)
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        row, output, more = _Row(*saved[: ctx.given]), saved[ctx.given], iter(saved[ctx.given + 1 :])
        pieces, found = list(row.pieces()), row.room(ctx.needs_input_grad)
        drawn = [next(more) for _ in pieces] if row.kept is None and ctx.dropout else []
        tiles = list(more)
        far = 0 if row.by_distance is None else row.by_distance.shape[-1]
        scale, mean = row.queries.shape[-1] ** -0.5, (gradient * output).sum(-1, keepdim=True)
        for number, (start, end) in enumerate(pieces):
            now, into, given = row.cut(start, end), found.cut(start, end), gradient[:, :, start:end]
            now = now._replace(kept=drawn[number]) if drawn else now
            weights = tiles[number] if tiles else _weights(now)
            dropped, g = _dropped(weights, now, ctx.dropout), given[..., far:]
            of_weights = g @ now.symbols.mT
            into.symbols.add_(dropped.mT @ g)
            if far:
                g = given[..., :far]
                of_weights += _moved_back(g @ now.by_distance.mT)
                into.by_distance.add_((_moved(dropped).mT @ g).sum_to_size(into.by_distance.shape))
            of_scores = (_dropped(of_weights, now, ctx.dropout) - mean[:, :, start:end]).mul_(weights)
            if into.bias is not None:
                into.bias.add_(of_scores.sum_to_size(into.bias.shape))
            of_scores *= scale
            into.queries.add_(of_scores @ now.keys)
            into.keys.add_(of_scores.mT @ now.queries)
        return (*found, None)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> tuple[tuple[Tensor], tuple[int]]:
        output = _Attended.apply(*_folded(info.batch_size, dims, given))[0]  # type: ignore[no-untyped-call]
        return (torch.unflatten(output, 0, (info.batch_size, -1)),), (0,)


# Chunks ------------------------------------------------------------------------------------------------------------


@uncompiled
def _in_chunks(heads: Heads, kind: Kind, activation: Activation) -> tuple[Tensor, Tensor | None]:
    made = _Chunks.apply(*_row_of(heads), kind, activation, heads.dropout)  # type: ignore[no-untyped-call]
    return made[0], made[1] if kind == "relational" else None


class _Chunks(Function):
    """What `_read` gives, so many queries at a time; in the backward each is read again."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        row, settings = _Row(*given[:-3]), given[-3:]
        rows = [_drawn(row.cut(*piece), settings[-1]) for piece in row.pieces()]
        pieces = [_made(_read(now, *settings)) for now in rows]
        drawn = [now.kept for now in rows] if row.kept is None and settings[-1] else []
        return *(torch.cat(parts, dim=2) for parts in zip(*pieces, strict=True)), *drawn

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.settings = inputs[-3:]
        made = 2 if inputs[-3] == "relational" else 1
        ctx.mark_non_differentiable(*output[made:])
        ctx.save_for_backward(*inputs[:-3], *output[made:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        count = len(_Row._fields)
        row, drawn = _Row(*ctx.saved_tensors[:count]), ctx.saved_tensors[count:]
        found = row.room(ctx.needs_input_grad)
        for number, (start, end) in enumerate(row.pieces()):
            into = found.cut(start, end)
            wanted = [name for name, room in into._asdict().items() if room is not None]
            with torch.enable_grad():
                now = row.cut(start, end)
                now = now._replace(kept=drawn[number]) if drawn else now
                leaves = {name: getattr(now, name).detach().requires_grad_() for name in wanted}
                outputs = _made(_read(now._replace(**leaves), *ctx.settings))
                given = [gradient[:, :, start:end] for gradient in gradients[: len(outputs)]]
                made = torch.autograd.grad(outputs, list(leaves.values()), given)
            for name, one in zip(wanted, made, strict=True):
                getattr(into, name).add_(one)
        return (*found, None, None, None)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        made = _Chunks.apply(*_folded(info.batch_size, dims, given))  # type: ignore[no-untyped-call]
        return tuple(torch.unflatten(one, 0, (info.batch_size, -1)) for one in made), (0,) * len(made)


def _made(both: tuple[Tensor, Tensor | None]) -> list[Tensor]:
    return [one for one in both if one is not None]


def _read(
    row: _Row, kind: Kind, activation: Activation, dropout: float, far: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """What is attended to, rows x heads x queries x head width; and for `relational` the relations attended to, rows x
    heads x queries x relations. The queries are the last of a row, or so `far` from each key (see `distances`)."""
    visible = _visible(row)
    if kind == "rca" and activation != "softmax":
        scores = (row.queries * row.queries.shape[-1] ** -0.5) @ row.keys.mT
        weights = activated(scores if row.bias is None else scores + row.bias, visible, activation) * visible
    else:
        weights = _weights(row)
    weights, related = _dropped(weights, row, dropout).to(row.queries.dtype), None
    if kind != "rca":
        compared = (row.relation_queries * row.relation_keys.shape[-1] ** -0.5) @ row.relation_keys.mT
        relations = activated(compared, visible, activation)
        if kind == "disrca":
            weights = weights * relations
        else:
            related = (weights.transpose(1, 2) @ relations.permute(0, 2, 3, 1)).transpose(1, 2)
    if row.symbols is not None:
        return weights @ row.symbols, related
    if far is None:
        return _moved(weights) @ row.by_distance, related
    by_distance = torch.zeros_like(weights).scatter_add(-1, far[:, None].expand(weights.shape), weights)
    return by_distance @ row.by_distance, related

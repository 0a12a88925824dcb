"""A decoder-only language model: embedding, positions, backbone, norm, head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.batch import Loops, Model, ModelSpec, Output, Started, StepContext, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Context, Mixer, OfAllRows
from numerate.models.backbone import Backbone, Stack
from numerate.models.block import Block, Drops, FeedForward, Norm, make_norm
from numerate.models.initialization import FanIn, Initialization
from numerate.positions.position import InputPosition, Position
from numerate.vocabulary import Vocabulary


@dataclass(frozen=True)
class Decoder(ModelSpec):
    """Decoder-only language model with any backbone, mixer and position schemes.

    `positions=()` is a model without positions (NoPE, Kazemnejad et al., 2023, https://arxiv.org/abs/2305.19466).

    >>> spec = Decoder(hidden_size=64, backbone=Stack(num_layers=3), positions=(Rotary(base=500.0),))
    >>> model = spec.build(Vocabulary.of(["+", "="]), seed=0)

    Raises `UserError` for positions that act inside attention where the mixer has none; `build` raises it for a width
    that does not divide into the heads.

    Between backbone and head there may be `head_feed_forward` (without a residual connection), the final norm and
    `head_projection`. The published Abacus models have all three, and are post-norm:

    >>> Decoder(hidden_size=1024, backbone=Loop(num_layers=8, num_loops=2), mixer=Attention(num_heads=16),
    ...     feed_forward=FeedForward("geglu", expansion=1.0, bias=False), norm_first=False, norm_eps=1e-12,
    ...     embedding_norm=True, head_feed_forward=FeedForward("geglu", expansion=1.0, bias=False), final_norm=True,
    ...     head_projection=True, initialization=DeepNorm())

    Without `residual`, norms and feed-forward it is a bare recurrent net between embedding and head:

    >>> Decoder(hidden_size=128, backbone=Stack(num_layers=1), mixer=LSTM(), feed_forward=None, norm="none",
    ...     residual=False)
    """

    hidden_size: int = setting(128, "hidden size of the residual stream")
    backbone: Backbone = setting(Stack(), "how blocks are composed: stacked or looped, and how many")
    mixer: Mixer = setting(Attention(), "token mixer: attention or a recurrence")
    feed_forward: FeedForward | None = setting(FeedForward(), "feed-forward network of each block; null: none")
    positions: tuple[Position, ...] = setting((), "position schemes; empty: none (NoPE)")
    norm: Norm = setting("layer", "LayerNorm, RMSNorm or none")
    norm_first: bool = setting(True, "pre-norm; false: post-norm")
    embedding_norm: bool = setting(False, "whether the input embeddings are normalized before the first block")
    tie_word_embeddings: bool = setting(False, "whether input and output embeddings share weights")
    dropout: float = setting(0.0, "dropout of each block's output")
    initialization: Initialization = setting(FanIn(), "weight initialization")
    norm_eps: float = setting(1e-5, "epsilon of the norms; above 0", later=True)
    final_norm: bool | None = setting(None, "whether a norm precedes the output head; null: with pre-norm", later=True)
    head_feed_forward: FeedForward | None = setting(
        None, "a feed-forward network without residual connection before the final norm; null: none", later=True
    )
    head_projection: bool = setting(
        False, "whether a linear layer without bias stands between final norm and output head", later=True
    )
    residual: bool = setting(True, "whether mixers and feed-forward networks have residual connections", later=True)
    embedding_scale: float | Literal["root"] = setting(
        1.0, "factor on token embeddings before positions are added; root: sqrt(hidden_size)", later=True
    )
    head_bias: bool = setting(False, "whether the output head has a bias", later=True)
    embedding_dropout: float = setting(0.0, "dropout of the input embeddings", later=True)
    mixer_dropout: float = setting(0.0, "additional dropout of the mixer's output", later=True)
    dropout_on: Drops = setting(
        "branch",
        "where dropout applies: to each residual branch (branch), or to the stream behind each mixer (stream)",
        later=True,
    )

    def __post_init__(self) -> None:
        if self.hidden_size < 1:
            raise UserError(f"hidden_size: {self.hidden_size} is no width; 1 or more is right")
        for name in ("dropout", "embedding_dropout", "mixer_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name}: {getattr(self, name)} is not a share; from 0 to below 1 is right")
        if not 0 < self.norm_eps < float("inf"):
            raise UserError(f"norm_eps: {self.norm_eps} would not keep a norm from dividing by 0; 1e-5 is usual")
        if self.embedding_scale != "root" and (
            isinstance(self.embedding_scale, str) or not 0 < self.embedding_scale < float("inf")
        ):
            raise UserError(
                f"embedding_scale: {self.embedding_scale!r} would hide every token; a number above 0, or root"
            )
        for number, position in enumerate(self.positions):
            inside = position.build_attention(2, 8) is not None
            if inside and not self.mixer.attends():
                raise UserError(
                    f"positions.{number}: {type(position).__name__} acts inside attention, "
                    f"which {type(self.mixer).__name__} does not have; Learned or Sinusoidal would do, or none: "
                    "model.positions=[]"
                )
            if not position.position_ids.whole and not position.fractions:
                raise UserError(
                    f"positions.{number}.position_ids: {type(position.position_ids).__name__} gives fractions of a "
                    f"row, and {type(position).__name__} wants whole places; Scalar takes fractions"
                )

    def build(self, vocabulary: Vocabulary, seed: int) -> "DecoderModel":
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return DecoderModel(self, vocabulary, seed)


@dataclass
class DecoderState:
    """The generation state: token ids, their number, and the state of the backbone. `numbered` has the position ids up
    to the maximum length where they are known in advance; token ids are then not kept."""

    tokens: Tokens
    trunk: list[Any]
    position_offset: int
    seen: int
    numbered: "_Numbered | None" = None


class _Numbered(OfAllRows):
    """Position ids of all rows, for each position scheme of the model: 1 x capacity each."""

    def __init__(self, places: tuple[Tensor, ...]) -> None:
        self.places = places


class DecoderModel(Model):
    """The model behind `Decoder`."""

    kinds: Tensor

    def __init__(self, spec: Decoder, vocabulary: Vocabulary, seed: int) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("kinds", torch.from_numpy(vocabulary.kinds).long(), persistent=False)
        self.embedding = nn.Embedding(vocabulary.size, spec.hidden_size)
        self.embedding_scale = spec.hidden_size**0.5 if spec.embedding_scale == "root" else float(spec.embedding_scale)
        inputs = [position.build_input(spec.hidden_size) for position in spec.positions]
        self.input_positions = nn.ModuleDict({str(i): part for i, part in enumerate(inputs) if part is not None})
        self.embedding_norm = _norm(spec, spec.embedding_norm)
        self.embedding_dropout = nn.Dropout(spec.embedding_dropout)
        self._operations_of_row: dict[tuple[int, Loops | tuple[int, int] | int | None], int] = {}
        mixers = spec.mixer.build_layers(spec.hidden_size, spec.backbone.layers(), spec.positions)
        blocks = [
            Block(
                spec.hidden_size,
                mixer,
                spec.feed_forward.build(spec.hidden_size) if spec.feed_forward is not None else None,
                norm=spec.norm,
                norm_first=spec.norm_first,
                dropout=spec.dropout,
                epsilon=spec.norm_eps,
                residual=spec.residual,
                mixer_dropout=spec.mixer_dropout,
                drops=spec.dropout_on,
            )
            for mixer in mixers
        ]
        self.trunk = spec.backbone.build(blocks, spec.hidden_size, seed, spec.feed_forward)
        fed = spec.head_feed_forward
        self.head_feed_forward = fed.build(spec.hidden_size) if fed is not None else nn.Identity()
        self.final_norm = _norm(spec, spec.norm_first if spec.final_norm is None else spec.final_norm)
        self.adapter = (
            nn.Linear(spec.hidden_size, spec.hidden_size, bias=False) if spec.head_projection else nn.Identity()
        )
        self.head = nn.Linear(spec.hidden_size, vocabulary.size, bias=spec.head_bias)
        if spec.tie_word_embeddings:
            self.head.weight = self.embedding.weight
        spec.initialization.apply(
            self,
            self._claimed(),
            [linear for block in blocks for linear in block.outward()],
            torch.Generator().manual_seed(seed),
            shared=(self.head,) if spec.tie_word_embeddings else (),
            fused={
                f"{name}.{own}": made
                for name, block in self.named_modules()
                if isinstance(block, Block)
                for own, made in block.fused().items()
            },
            depth=spec.backbone.layers() * spec.backbone.loops(),
            reads={f"{name}.{own}": count for name, part in self._mixers() for own, count in part.reads().items()},
        )

    # The interface of `Model` -----------------------------------------------------------------------------------

    def assign_positions(self, tokens: Tokens, draw: StepContext) -> Tokens:
        kinds = self.kinds[tokens.ids]
        places = []
        for position in self.spec.positions:
            fixed = draw
            if not draw.training:
                fixed = StepContext.fixed(draw.position_offset % position.position_ids.position_offsets())
            places.append(position.position_ids.assign(tokens, kinds, fixed))
        self._fits(places)
        return replace(tokens, position_ids=tuple(places))

    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        _no_source(source)
        if tokens.position_ids is None:
            tokens = self.assign_positions(tokens, StepContext.fixed())
        x, context = self._embedded(tokens)
        x = self.trunk(x, context, target_positions, loops)
        return Output(self._finished(x), self.head, target_positions=target_positions)

    def start(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> Started:
        _no_source(source)
        if (ahead := self.sees_future()) is not None:
            raise UserError(f"model: {ahead}; it cannot be decoded token by token")
        tokens = self.assign_positions(tokens, StepContext.fixed(position_offset))
        x, context = self._embedded(tokens)
        context.capacity = capacity
        x, states = self.trunk.prefill(x, context)
        last = torch.take_along_dim(x, (tokens.lengths - 1)[:, None, None], dim=1)
        time = tokens.ids.shape[1]
        held = replace(
            tokens,
            ids=nn.functional.pad(tokens.ids, (0, capacity - time)),
            blocked_keys=None
            if tokens.blocked_keys is None
            else nn.functional.pad(tokens.blocked_keys, (0, capacity - time)),
            position_ids=None,
        )
        state = DecoderState(
            held, states, position_offset, int(tokens.lengths.max()), self._numbered(held, position_offset)
        )
        return Started(Output(self._finished(last), self.head), state)

    def step(self, ids: Int[Tensor, " rows"], values: Tensor | None, state: DecoderState) -> Started:
        index, held, hidden, seen = state.tokens.lengths, state.tokens.ids, state.tokens.blocked_keys, state.seen + 1
        if state.numbered is None:
            held = held.scatter(1, index[:, None], ids[:, None])
        tokens = replace(state.tokens, ids=held, lengths=index + 1)
        if state.numbered is not None:
            numbered = tuple(places[:, :seen] for places in state.numbered.places)
            self._fits(numbered)
        else:
            # Position ids are computed again from all tokens so far, which is correct for every scheme.
            now = replace(tokens, ids=held[:, :seen], blocked_keys=None if hidden is None else hidden[:, :seen])
            numbered = self.assign_positions(now, StepContext.fixed(state.position_offset)).position_ids or ()
        x = self._vectors(ids)[:, None]
        for name, part in self.input_positions.items():
            places = numbered[int(name)].expand(ids.shape[0], -1).gather(1, index[:, None])
            x = part(x, places)
        x = self.embedding_norm(x)
        context = Context(tokens.lengths, numbered, raw=x, hidden=hidden, index=index, seen=seen)
        x, states = self.trunk.step(x, context, state.trunk)
        after = DecoderState(tokens, states, state.position_offset, seen, state.numbered)
        return Started(Output(self._finished(x), self.head), after)

    def position_offsets(self) -> int:
        return max((position.position_ids.position_offsets() for position in self.spec.positions), default=1)

    def check(self, tokens: Tokens, trained: Tokens | None = None) -> list[str]:
        warnings = []
        for number, position in enumerate(self.spec.positions):
            size, highest = position.size(), 0
            if size is None:
                continue
            highest = self._highest(number, tokens)
            if highest >= size:
                raise self._too_far(number, highest)
            if trained is not None:
                reached = position.position_ids.reach(self._highest(number, trained, position_offsets=1))
                if reached >= size:
                    raise self._too_far(number, reached)
                if highest > reached:
                    warnings.append(
                        f"model.positions.{number}: place {reached + 1} is the first that no training example had; "
                        f"here places up to {highest} are read, whose vectors are as initialised"
                    )
        return warnings

    def settings_by_parameter(self) -> dict[str, tuple[float, bool]]:
        plain = {}
        for name, module in self.named_modules():
            for own, parameter in module.named_parameters(recurse=False):
                decays = parameter.dim() >= 2 and not isinstance(module, nn.LayerNorm | nn.RMSNorm)
                plain[f"{name}.{own}" if name else own] = (1.0, decays)
        for name, part in self._mixers():
            plain.update({f"{name}.{own}": wish for own, wish in part.settings_by_parameter().items()})
        named = {name for name, _ in self.named_parameters()}
        return {name: wish for name, wish in plain.items() if name in named}

    def flops(self, rows: int, time: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        # Cached: called several times per step, for few lengths, and walking 24 layers takes milliseconds.
        if (time, loops) not in self._operations_of_row:
            ends = (self.head_feed_forward, self.adapter, self.head)
            matrices = [part.weight.numel() for end in ends for part in end.modules() if isinstance(part, nn.Linear)]
            self._operations_of_row[time, loops] = 2 * time * sum(matrices) + self.trunk.flops(time, loops)
        return rows * self._operations_of_row[time, loops]

    def loops(self) -> int:
        return self.spec.backbone.loops()

    def sees_future(self) -> str | None:
        for number, position in enumerate(self.spec.positions):
            if not position.position_ids.causal:
                name = type(position.position_ids).__name__
                return f"the numbering {name} of positions.{number} tells every place how long its row will be"
        return None

    # Inside ------------------------------------------------------------------------------------------------------

    def _embedded(self, tokens: Tokens) -> tuple[Tensor, Context]:
        assert tokens.position_ids is not None
        x = self._vectors(tokens.ids)
        for name, part in self.input_positions.items():
            assert isinstance(part, InputPosition)
            x = part(x, tokens.position_ids[int(name)])
        x = self.embedding_dropout(self.embedding_norm(x))
        return x, Context(tokens.lengths, tokens.position_ids, raw=x, hidden=tokens.blocked_keys)

    def _fits(self, places: Sequence[Tensor]) -> None:
        """Raises `UserError` for positions beyond an embedding table; only on CPU, since it would synchronise a
        device."""
        for number, (position, numbers) in enumerate(zip(self.spec.positions, places, strict=True)):
            size = position.size()
            if size is not None and numbers.device.type == "cpu" and int(numbers.max()) >= size:
                raise self._too_far(number, int(numbers.max()))

    def _numbered(self, held: Tokens, position_offset: int) -> "_Numbered | None":
        """Position ids up to the capacity, where they do not depend on the tokens."""
        numberings = [position.position_ids for position in self.spec.positions]
        if not all(numbering.by_place() for numbering in numberings):
            return None
        kinds = self.kinds[held.ids]
        fixed = (StepContext.fixed(position_offset % numbering.position_offsets()) for numbering in numberings)
        return _Numbered(tuple(one.assign(held, kinds, draw) for one, draw in zip(numberings, fixed, strict=True)))

    def _vectors(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(ids)
        return vectors if self.embedding_scale == 1.0 else vectors * self.embedding_scale

    def _finished(self, x: Float[Tensor, "rows places width"]) -> Float[Tensor, "rows places width"]:
        """The head's input, from the backbone's output."""
        finished: Tensor = self.adapter(self.final_norm(self.head_feed_forward(x)))
        return finished

    def _mixers(self) -> list[tuple[str, Any]]:
        return [
            (f"{name}.mixer", module.mixer)
            for name, module in self.named_modules()
            if isinstance(module, Block) and module.mixer is not None
        ]

    def _claimed(self) -> set[str]:
        parts = [*self._mixers(), *((f"input_positions.{n}", part) for n, part in self.input_positions.items())]
        return {f"{name}.{own}" for name, part in parts for own in part.claimed()}

    def _highest(self, number: int, tokens: Tokens, position_offsets: int | None = None) -> int:
        """The highest position id at any fixed offset, or at the first few."""
        numbering = self.spec.positions[number].position_ids
        kinds = self.kinds[tokens.ids]
        count = numbering.position_offsets() if position_offsets is None else position_offsets
        each = [numbering.assign(tokens, kinds, StepContext.fixed(i)).max() for i in range(count)]
        return int(torch.stack(each).max())

    def _too_far(self, number: int, highest: int) -> UserError:
        position = self.spec.positions[number]
        return UserError(
            f"model.positions.{number}: place {highest} is beyond the table of {type(position).__name__}, which has "
            f"{position.size()} places (0 to {(position.size() or 0) - 1}); "
            f"shorter examples or model.positions.{number}.max_position_embeddings={highest + 1} are right"
        )


def _norm(spec: Decoder, wanted: bool) -> nn.Module:
    return make_norm(spec.norm if wanted else "none", spec.hidden_size, spec.norm_eps)


def _no_source(source: Tokens | None) -> None:
    if source is not None:
        raise UserError("model: a Decoder reads one text; for pairs (layout Seq2Seq) an encoder-decoder is needed")

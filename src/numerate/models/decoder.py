"""A decoder-only language model: embedding, positions, backbone, norm, head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from numerate.batch import DecodingStep, Loops, Model, ModelSpec, Output, StepContext, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.constants import Constants
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Context, Mixer, RowIndependentState
from numerate.models.backbone import Backbone, Loop, Stack
from numerate.models.block import Block, DropoutLocation, FeedForward, NormType, build_norm
from numerate.models.initialization import FanIn, Initialization
from numerate.positions.position import InputPosition, Position
from numerate.vocabulary import Vocabulary


@dataclass(frozen=True)
class Decoder(ModelSpec):
    """Decoder-only language model with any backbone, mixer and positional encodings.

    `positions=()` is a model without positions (NoPE, Kazemnejad et al., 2023, https://arxiv.org/abs/2305.19466).

    >>> from numerate.positions import Rotary
    >>> spec = Decoder(hidden_size=64, backbone=Stack(num_layers=3), positions=(Rotary(base=500.0),))
    >>> model = spec.build(Vocabulary.with_digits(["+", "="]), seed=0)

    Raises `UserError` for positions inside attention if the mixer has no attention; `build` raises it for a width
    that does not divide into the heads.

    Between backbone and head there may be `head_feed_forward` (without a residual connection), the final norm and
    `head_projection`. The published Abacus models have all three, and are post-norm:

    >>> from numerate.models import DeepNorm, Loop
    >>> feed_forward = FeedForward("geglu", expansion=1.0, bias=False)
    >>> spec = Decoder(
    ...     hidden_size=1024, backbone=Loop(num_layers=8, num_loops=2), mixer=Attention(num_heads=16),
    ...     feed_forward=feed_forward, norm_first=False, norm_eps=1e-12, embedding_norm=True, final_norm=True,
    ...     head_feed_forward=feed_forward, head_projection=True, initialization=DeepNorm()
    ... )

    Without `residual`, norms and feed-forward it is a bare recurrent net between embedding and head:

    >>> from numerate.mixers import LSTM
    >>> spec = Decoder(
    ...     hidden_size=128, backbone=Stack(num_layers=1), mixer=LSTM(), feed_forward=None, norm="none", residual=False
    ... )
    """

    hidden_size: int = setting(128, "hidden size of the residual stream", at_least=1)
    backbone: Backbone = setting(Stack(), "how blocks are composed: stacked or looped, and how many")
    mixer: Mixer = setting(Attention(), "token mixer: attention or a recurrence")
    feed_forward: FeedForward | None = setting(FeedForward(), "feed-forward network of each block; null: none")
    positions: tuple[Position, ...] = setting((), "positional encodings; empty: none (NoPE)")
    norm: NormType = setting("layer", "LayerNorm, RMSNorm or none")
    norm_first: bool = setting(True, "pre-norm; false: post-norm")
    embedding_norm: bool = setting(False, "whether the input embeddings are normalized before the first block")
    tie_word_embeddings: bool = setting(False, "whether input and output embeddings share weights")
    dropout: float = setting(
        0.0, "dropout of the residual branches (or the residual stream, see dropout_on)", at_least=0, below=1
    )
    initialization: Initialization = setting(FanIn(), "weight initialization")
    norm_eps: float = setting(1e-5, "epsilon of the norms; above 0", above=0)
    final_norm: bool | None = setting(None, "whether a norm precedes the output head; null: only with pre-norm")
    head_feed_forward: FeedForward | None = setting(
        None, "a feed-forward network without residual connection before the final norm; null: none"
    )
    head_projection: bool = setting(
        False, "whether a linear layer without bias stands between final norm and output head"
    )
    residual: bool = setting(True, "whether mixers and feed-forward networks have residual connections")
    embedding_scale: float | Literal["sqrt"] = setting(
        1.0, "factor on token embeddings before positions are added; sqrt: sqrt(hidden_size)", above=0
    )
    head_bias: bool = setting(False, "whether the output head has a bias")
    embedding_dropout: float = setting(0.0, "dropout of the input embeddings", at_least=0, below=1)
    mixer_dropout: float = setting(0.0, "additional dropout of the mixer's output", at_least=0, below=1)
    dropout_on: DropoutLocation = setting(
        "branch",
        "where dropout applies: to each residual branch (branch), or, after each mixer, to the residual_stream",
    )

    def conflicts(self) -> Iterator[str]:
        for index, position in enumerate(self.positions):
            # the sizes do not matter here
            acts_inside_attention = position.build_attention(heads=2, head_width=8) is not None
            if acts_inside_attention and not self.mixer.has_attention():
                yield (
                    f"positions.{index}: {type(position).__name__} acts inside attention, "
                    f"which {type(self.mixer).__name__} does not have; use Learned or Sinusoidal, or none: "
                    "model.positions=[]"
                )
            if not position.position_ids.is_integer and not position.accepts_fractions:
                yield (
                    f"positions.{index}.position_ids: {type(position.position_ids).__name__} has fractional position "
                    f"ids, and {type(position).__name__} needs integers; Scalar accepts fractions"
                )

    def small(self) -> "Decoder":
        """Width 32, and at most 2 blocks and 2 loops, if it is wider than 128."""
        if self.hidden_size <= 128:
            return self
        backbone, feed_forward = self.backbone, self.feed_forward
        if isinstance(backbone, Stack | Loop):
            backbone = replace(backbone, num_layers=min(backbone.num_layers, 2))
        if isinstance(backbone, Loop):
            backbone = replace(backbone, num_loops=min(backbone.num_loops, 2))
        if feed_forward is not None:
            feed_forward = replace(feed_forward, intermediate_size=None)
        return replace(self, hidden_size=32, backbone=backbone, mixer=self.mixer.small(), feed_forward=feed_forward)

    def build(self, vocabulary: Vocabulary, seed: int) -> "DecoderModel":
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return DecoderModel(self, vocabulary, seed)


@dataclass
class DecoderState:
    """The generation state: token ids, their number, and the state of the backbone. `position_offset` is an index into
    the fixed evaluation offsets (`PositionIds.num_position_offsets`). `fixed_position_ids` has the position ids up to
    the maximum length where they are known in advance; token ids are then not kept. `head` is a copy of the model's,
    where that is faster."""

    tokens: Tokens
    layer_states: list[Any]
    position_offset: int
    cached_length: int
    fixed_position_ids: "_FixedPositionIds | None" = None
    head: "_HeadByColumns | None" = None


class _FixedPositionIds(RowIndependentState):
    """Position ids of all rows, for each positional encoding of the model: 1 x capacity each."""

    def __init__(self, position_ids: tuple[Tensor, ...]) -> None:
        self.position_ids = position_ids


class _HeadByColumns(RowIndependentState):
    """The head with its weight stored column by column. A large one is then read from memory twice as fast on a CPU,
    for one row; copying it takes as long as 10 tokens (measured at 32,000 x 256)."""

    def __init__(self, head: nn.Linear) -> None:
        self.weight, self.bias = head.weight.t().contiguous().t(), head.bias

    def __call__(self, x: Float[Tensor, "rows 1 width"]) -> Float[Tensor, "rows 1 vocabulary"]:
        return linear(x, self.weight, self.bias)


class DecoderModel(Constants, Model):
    """The model of `Decoder`."""

    token_kinds: Tensor

    def __init__(self, spec: Decoder, vocabulary: Vocabulary, seed: int) -> None:
        super().__init__()
        self.spec = spec
        self.register_constant("token_kinds", lambda: torch.from_numpy(vocabulary.token_kinds).long())
        self.embedding = nn.Embedding(vocabulary.size, spec.hidden_size)
        self.embedding_scale = spec.hidden_size**0.5 if spec.embedding_scale == "sqrt" else float(spec.embedding_scale)
        input_modules = [position.build_input(spec.hidden_size) for position in spec.positions]
        self.input_positions = nn.ModuleDict({str(i): part for i, part in enumerate(input_modules) if part is not None})
        self.embedding_norm = _build_norm(spec, spec.embedding_norm)
        self.embedding_dropout = nn.Dropout(spec.embedding_dropout)
        ids = [position.position_ids for position in spec.positions]
        self._first_with_same_ids = [ids.index(one) for one in ids]
        self._flops_per_row: dict[tuple[int, Loops | tuple[int, int] | int | None], int] = {}
        mixers = spec.mixer.build_layers(spec.hidden_size, spec.backbone.num_blocks(), spec.positions)
        blocks = [
            Block(
                spec.hidden_size,
                mixer,
                spec.feed_forward.build(spec.hidden_size) if spec.feed_forward is not None else None,
                norm=spec.norm,
                norm_first=spec.norm_first,
                dropout=spec.dropout,
                norm_eps=spec.norm_eps,
                residual=spec.residual,
                mixer_dropout=spec.mixer_dropout,
                dropout_on=spec.dropout_on,
            )
            for mixer in mixers
        ]
        self.backbone = spec.backbone.build(blocks, spec.hidden_size, seed, spec.feed_forward)
        head_feed_forward = spec.head_feed_forward
        self.head_feed_forward = (
            head_feed_forward.build(spec.hidden_size) if head_feed_forward is not None else nn.Identity()
        )
        self.final_norm = _build_norm(spec, spec.norm_first if spec.final_norm is None else spec.final_norm)
        self.head_projection = (
            nn.Linear(spec.hidden_size, spec.hidden_size, bias=False) if spec.head_projection else nn.Identity()
        )
        self.head = nn.Linear(spec.hidden_size, vocabulary.size, bias=spec.head_bias)
        if spec.tie_word_embeddings:
            self.head.weight = self.embedding.weight
        spec.initialization.apply(
            self,
            self._self_initialized_parameters(),
            [linear for block in blocks for linear in block.output_projections()],
            torch.Generator().manual_seed(seed),
            tied_modules=(self.head,) if spec.tie_word_embeddings else (),
            packed_projections={
                f"{name}.{child_name}": components
                for name, block in self.named_modules()
                if isinstance(block, Block)
                for child_name, components in block.packed_projections().items()
            },
            effective_depth=spec.backbone.num_blocks() * spec.backbone.default_num_loops(),  # blocks a token passes
            fan_in_by_layer={
                f"{name}.{own}": count
                for name, part in self._named_mixers()
                for own, count in part.fan_in_by_layer().items()
            },
        )

    # The interface of `Model` -----------------------------------------------------------------------------------

    def assign_positions(self, tokens: Tokens, step_context: StepContext) -> Tokens:
        position_ids = self._assign_position_ids(tokens, step_context)
        self._check_position_ids(position_ids)
        return replace(tokens, position_ids=tuple(position_ids))

    def _assign_position_ids(self, tokens: Tokens, step_context: StepContext) -> list[Tensor]:
        token_kinds = self._kinds_of(tokens.ids)
        position_ids: list[Tensor] = []
        for index, position in enumerate(self.spec.positions):
            if (first := self._first_with_same_ids[index]) < index:
                position_ids.append(position_ids[first])
                continue
            encoding_context = step_context
            if not step_context.training:
                encoding_context = StepContext.for_evaluation(
                    step_context.position_offset % position.position_ids.num_position_offsets()
                )
            position_ids.append(position.position_ids.assign(tokens, token_kinds, encoding_context))
        return position_ids

    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        _check_no_source(source)
        if tokens.position_ids is None:
            tokens = self.assign_positions(tokens, StepContext.for_evaluation())
        x, context = self._embed(tokens)
        x = self.backbone(x, context, target_positions, loops)
        return Output(self._to_head_input(x), self.head, target_positions=target_positions)

    def prefill(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> DecodingStep:
        _check_no_source(source)
        if (reason := self.non_causal_reason()) is not None:
            raise UserError(f"model: {reason}; it cannot generate token by token")
        tokens = self.assign_positions(tokens, StepContext.for_evaluation(position_offset))
        x, context = self._embed(tokens)
        context.capacity = capacity
        x, layer_states = self.backbone.prefill(x, context)
        last_hidden = torch.take_along_dim(x, (tokens.lengths - 1)[:, None, None], dim=1)
        time = tokens.ids.shape[1]
        padded_tokens = replace(
            tokens,
            ids=nn.functional.pad(tokens.ids, (0, capacity - time)),
            blocked_keys=None
            if tokens.blocked_keys is None
            else nn.functional.pad(tokens.blocked_keys, (0, capacity - time)),
            position_ids=None,
        )
        state = DecoderState(
            padded_tokens,
            layer_states,
            position_offset,
            int(tokens.lengths.max()),
            self._compute_fixed_position_ids(padded_tokens, position_offset),
            self._head_for_decoding(last_hidden, capacity - time),
        )
        return DecodingStep(Output(self._to_head_input(last_hidden), self.head), state)

    def step(self, ids: Int[Tensor, " rows"], number_values: Tensor | None, state: DecoderState) -> DecodingStep:
        new_positions, all_ids, blocked_keys, cached_length = (
            state.tokens.lengths,
            state.tokens.ids,
            state.tokens.blocked_keys,
            state.cached_length + 1,
        )
        if state.fixed_position_ids is None:
            all_ids = all_ids.scatter(1, new_positions[:, None], ids[:, None])
        tokens = replace(state.tokens, ids=all_ids, lengths=new_positions + 1)
        if state.fixed_position_ids is not None:
            position_ids = tuple(
                position_ids[:, :cached_length] for position_ids in state.fixed_position_ids.position_ids
            )
            self._check_position_ids(position_ids)
        else:
            # Position ids are computed again from all tokens so far, which is correct for every encoding.
            cached_tokens = replace(
                tokens,
                ids=all_ids[:, :cached_length],
                blocked_keys=None if blocked_keys is None else blocked_keys[:, :cached_length],
            )
            found = self._assign_position_ids(cached_tokens, StepContext.for_evaluation(state.position_offset))
            # A token that does not belong into an answer, such as another operator, may lead beyond an embedding table.
            limits = [position.position_limit() for position in self.spec.positions]
            position_ids = tuple(
                ids if limit is None else ids.clamp(max=limit - 1) for ids, limit in zip(found, limits, strict=True)
            )
        x = self._embed_tokens(ids)[:, None]
        for name, module in self.input_positions.items():
            new_position_ids = position_ids[int(name)].expand(ids.shape[0], -1).gather(1, new_positions[:, None])
            x = module(x, new_position_ids)
        x = self.embedding_norm(x)
        context = Context(
            tokens.lengths,
            position_ids,
            input_embeddings=x,
            blocked_keys=blocked_keys,
            cache_position=new_positions,
            cached_length=cached_length,
        )
        x, layer_states = self.backbone.step(x, context, state.layer_states)
        new_state = replace(state, tokens=tokens, layer_states=layer_states, cached_length=cached_length)
        return DecodingStep(Output(self._to_head_input(x), state.head or self.head), new_state)

    def num_position_offsets(self) -> int:
        return max((position.position_ids.num_position_offsets() for position in self.spec.positions), default=1)

    def check_tokens(self, tokens: Tokens, training_tokens: Tokens | None = None) -> list[str]:
        warnings = []
        for index, position in enumerate(self.spec.positions):
            limit, max_position = position.position_limit(), 0
            if limit is None:
                continue
            max_position = self._max_position(index, tokens)
            if max_position >= limit:
                raise self._position_limit_error(index, max_position)
            if training_tokens is not None:
                max_trained_position = position.position_ids.max_training_position(
                    self._max_position(index, training_tokens, num_offsets=1)
                )
                if max_trained_position >= limit:
                    raise self._position_limit_error(index, max_trained_position)
                if max_position > max_trained_position:
                    warnings.append(
                        f"model.positions.{index}: position {max_trained_position + 1} and later ones do not occur in "
                        f"training; these tokens use positions up to {max_position}, whose embeddings are untrained"
                    )
        return warnings

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        options_by_name = {}
        for name, module in self.named_modules():
            for child_name, parameter in module.named_parameters(recurse=False):
                has_weight_decay = parameter.dim() >= 2 and not isinstance(module, nn.LayerNorm | nn.RMSNorm)
                options_by_name[f"{name}.{child_name}" if name else child_name] = (1.0, has_weight_decay)
        for name, mixer in self._named_mixers():
            options_by_name |= {
                f"{name}.{own}": options for own, options in mixer.optimizer_options_by_parameter().items()
            }
        parameter_names = {name for name, _ in self.named_parameters()}
        return {name: options for name, options in options_by_name.items() if name in parameter_names}

    def flops(self, batch_size: int, sequence_length: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        # Cached: called several times per step, for few lengths, and walking 24 layers takes milliseconds.
        if (sequence_length, loops) not in self._flops_per_row:
            output_modules = (self.head_feed_forward, self.head_projection, self.head)
            matrix_sizes = [
                part.weight.numel()
                for module in output_modules
                for part in module.modules()
                if isinstance(part, nn.Linear)
            ]
            self._flops_per_row[sequence_length, loops] = 2 * sequence_length * sum(matrix_sizes) + self.backbone.flops(
                sequence_length, loops
            )
        return batch_size * self._flops_per_row[sequence_length, loops]

    def default_num_loops(self) -> int:
        return self.spec.backbone.default_num_loops()

    def non_causal_reason(self) -> str | None:
        for index, position in enumerate(self.spec.positions):
            if not position.position_ids.causal:
                name = type(position.position_ids).__name__
                return f"the position ids {name} of positions.{index} depend on the length of the whole row"
        return None

    # Inside ------------------------------------------------------------------------------------------------------

    def _embed(self, tokens: Tokens) -> tuple[Tensor, Context]:
        assert tokens.position_ids is not None
        x = self._embed_tokens(tokens.ids)
        for name, module in self.input_positions.items():
            assert isinstance(module, InputPosition)
            x = module(x, tokens.position_ids[int(name)])
        x = self.embedding_dropout(self.embedding_norm(x))
        return x, Context(tokens.lengths, tokens.position_ids, input_embeddings=x, blocked_keys=tokens.blocked_keys)

    def _kinds_of(self, ids: Int[Tensor, "rows time"]) -> Int[Tensor, "rows time"]:
        """The kind of each token. Batches on the CPU get their positions there, also if the model is on a device."""
        is_on_cpu = ids.device.type == "cpu"
        kinds: Tensor = (self._constants["token_kinds"] if is_on_cpu else self.token_kinds)[ids]
        return kinds

    def _check_position_ids(self, position_ids: Sequence[Tensor]) -> None:
        """Raises `UserError` for positions beyond an embedding table; only on CPU, since it would synchronize a
        device."""
        for index, (position, ids) in enumerate(zip(self.spec.positions, position_ids, strict=True)):
            limit = position.position_limit()
            if limit is not None and ids.device.type == "cpu" and int(ids.max()) >= limit:
                raise self._position_limit_error(index, int(ids.max()))

    def _compute_fixed_position_ids(self, tokens: Tokens, position_offset: int) -> "_FixedPositionIds | None":
        """Position ids up to the capacity, where they do not depend on the tokens."""
        specs = [position.position_ids for position in self.spec.positions]
        if not all(spec.is_same_for_all_rows() for spec in specs):
            return None
        token_kinds = self._kinds_of(tokens.ids)
        contexts = (StepContext.for_evaluation(position_offset % spec.num_position_offsets()) for spec in specs)
        return _FixedPositionIds(
            tuple(
                spec.assign(tokens, token_kinds, step_context)
                for spec, step_context in zip(specs, contexts, strict=True)
            )
        )

    def _head_for_decoding(self, x: Tensor, num_tokens: int) -> _HeadByColumns | None:
        weight = self.head.weight
        is_faster = weight.device.type == "cpu" and weight.numel() >= 2**22 and num_tokens >= 32
        is_usable = type(self.head) is nn.Linear and x.dtype == weight.dtype and x.element_size() >= 4
        is_usable &= not (torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"))
        return _HeadByColumns(self.head) if is_faster and is_usable else None

    def _embed_tokens(self, ids: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(ids)
        return embeddings if self.embedding_scale == 1.0 else embeddings * self.embedding_scale

    def _to_head_input(self, x: Float[Tensor, "rows positions width"]) -> Float[Tensor, "rows positions width"]:
        """The head's input, from the backbone's output."""
        head_input: Tensor = self.head_projection(self.final_norm(self.head_feed_forward(x)))
        return head_input

    def _named_mixers(self) -> list[tuple[str, Any]]:
        return [
            (f"{name}.mixer", module.mixer)
            for name, module in self.named_modules()
            if isinstance(module, Block) and module.mixer is not None
        ]

    def _self_initialized_parameters(self) -> set[str]:
        modules = [
            *self._named_mixers(),
            *((f"input_positions.{n}", module) for n, module in self.input_positions.items()),
        ]
        return {f"{name}.{child_name}" for name, part in modules for child_name in part.self_initialized_parameters()}

    def _max_position(self, index: int, tokens: Tokens, num_offsets: int | None = None) -> int:
        """The highest position id at any fixed offset, or at the first few."""
        spec = self.spec.positions[index].position_ids
        token_kinds = self._kinds_of(tokens.ids)
        count = spec.num_position_offsets() if num_offsets is None else num_offsets
        maxima = [spec.assign(tokens, token_kinds, StepContext.for_evaluation(i)).max() for i in range(count)]
        return int(torch.stack(maxima).max())

    def _position_limit_error(self, index: int, max_position: int) -> UserError:
        position = self.spec.positions[index]
        return UserError(
            f"model.positions.{index}: position {max_position} is out of range for {type(position).__name__}, which "
            f"has {position.position_limit()} positions (0 to {(position.position_limit() or 0) - 1}); use shorter "
            f"examples, or model.positions.{index}.max_position_embeddings={max_position + 1}"
        )


def _build_norm(spec: Decoder, enabled: bool) -> nn.Module:
    return build_norm(spec.norm if enabled else "none", spec.hidden_size, spec.norm_eps)


def _check_no_source(source: Tokens | None) -> None:
    if source is not None:
        raise UserError("model: a Decoder has no encoder; use T5 for the layout Seq2Seq")

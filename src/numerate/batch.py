"""The interface between data and models: `Batch`, `Tokens`, `Output`, `Model`.

Tasks, tokenizers and evaluation produce a `Batch`; models compute an `Output` from its `Tokens`; losses read both.

Dimension names, the same everywhere: `rows` (examples of a batch), `time` (all positions of a row), `targets`
(positions with a label), `positions` (`time` or `targets`, whichever an output covers), `width` (hidden size of the
model), `vocabulary`, `heads`, `head_width`.

A layout (`numerate.tokenizers.layout`) says how question and answer become inputs and targets: the answer continues the
question (`Continuation`), a decoder generates it (`Seq2Seq`), mask tokens stand for it (`MaskedLM`), or each token has
a label (`TokenClassification`).
In xVal (Golkar et al., 2023, https://arxiv.org/abs/2310.02989) one token [NUM], which carries the value, stands for any
number."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from numerate.config import Spec
from numerate.errors import UserError
from numerate.vocabulary import PAD
from numerate.vocabulary import Vocabulary as Vocabulary

IGNORE_INDEX = -100
"""The label of positions without a target: `ignore_index` of `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True)
class StepContext:
    """The source of randomness of a forward pass: random numbers, except those of dropout, depend only on it and
    on each row's example index.

    `StepContext(seed, step)` is for a training step: position offsets are drawn by a counter-based hash of (seed, step,
    example index). `StepContext.for_evaluation(i)` is for evaluation: nothing is random; `position_offset` is an index:
    position ids are shifted by the i-th of the model's fixed evaluation offsets (the 0-th is 0)."""

    seed: int = 0
    step: int | None = None
    position_offset: int = 0

    @classmethod
    def for_evaluation(cls, position_offset: int = 0) -> "StepContext":
        return cls(position_offset=position_offset)

    @property
    def training(self) -> bool:
        return self.step is not None


@dataclass(frozen=True)
class Tokens:
    """The input of a model. Rows are padded on the right.

    - `ids` are token ids ([PAD] beyond a row's length); `lengths` are the numbers of tokens per row without padding.
    - `example_indices` is the global index of each example in its stream of data, used to seed per-row random numbers.
    - `number_values` is the number that each [NUM] carries (xVal), 1 at other tokens; None if the tokenizer has no
      [NUM].
    - `blocked_keys` is True at keys that are masked for all queries, None if there are none.
    - `position_ids` has one tensor per positional encoding of the model, set by `Model.assign_positions`.
    """

    ids: Int[Tensor, "rows time"]
    lengths: Int[Tensor, " rows"]
    example_indices: Int[Tensor, " rows"]
    number_values: Float[Tensor, "rows time"] | None = None
    blocked_keys: Bool[Tensor, "rows time"] | None = None
    position_ids: tuple[Tensor, ...] | None = None

    def to(self, device: torch.device) -> "Tokens":
        return _on_device(self, device)

    def append(self, ids: Int[Tensor, " rows"], number_values: Tensor | None = None) -> "Tokens":
        """Rows with one more token each, without position ids."""
        ends, values = self.lengths[:, None], self.number_values
        if number_values is not None or values is not None:
            new_values = torch.ones_like(ids, dtype=torch.float32) if number_values is None else number_values
            values = torch.ones_like(self.ids, dtype=new_values.dtype) if values is None else values
            values = pad(values, (0, 1), value=1.0).scatter(1, ends, new_values[:, None].to(values.dtype))
        return replace(
            self,
            ids=pad(self.ids, (0, 1), value=PAD).scatter(1, ends, ids[:, None]),
            lengths=self.lengths + 1,
            number_values=values,
            blocked_keys=None if self.blocked_keys is None else pad(self.blocked_keys, (0, 1)),
            position_ids=None,
        )


@dataclass(frozen=True)
class Batch:
    """Inputs and labels.

    - `targets[r, t]` is the label of position t (already shifted), `IGNORE_INDEX` if it has none.
    - `target_positions` lists the positions of each row that have a label, in order; rows with fewer than others repeat
      their last position, where `target_ids` is `IGNORE_INDEX`.
    - `target_number_values` are the `number_values` of the targets.
    - `source` is the encoder's input with the layout Seq2Seq; None for other layouts.
    - `counts` are the denominators of means, known before the forward pass: `{"tokens": labels, "examples": rows}`.
    - `num_input_tokens` is the number of input tokens that are not padding.
    """

    tokens: Tokens
    targets: Int[Tensor, "rows time"]
    target_positions: Int[Tensor, "rows targets"]
    target_ids: Int[Tensor, "rows targets"]
    counts: Mapping[str, int]
    num_input_tokens: int
    target_number_values: Float[Tensor, "rows time"] | None = None
    source: Tokens | None = None

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device; the CPU does not wait for a CUDA device."""
        return _on_device(self, device)

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory, which takes the CPU a while; `to` does it where it was not done before."""
        return _map_tensors(self, Tensor.pin_memory)

    @property
    def target_positions_or_none(self) -> Tensor | None:
        """`target_positions`; None if some row has a label at every position, so that no position can be skipped."""
        return self.target_positions if self.target_positions.shape[1] < self.tokens.ids.shape[1] else None

    def targets_for(self, output: "Output") -> Tensor:
        """The labels of the positions that an output covers: all of them, or only `target_positions`."""
        return self.targets if output.target_positions is None else self.target_ids


Fields = TypeVar("Fields", Tokens, Batch)


def _on_device(instance: Fields, device: torch.device) -> Fields:
    return _map_tensors(instance, lambda tensor: to_device(tensor, device))


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, for which the CPU does not wait if it copies from page-locked memory."""
    if tensor.device.type == "cpu" and copies_from_pinned_memory(device):
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def copies_from_pinned_memory(device: torch.device) -> bool:
    """Whether the device copies from page-locked memory while the CPU continues."""
    return device.type not in ("cpu", "mps", "meta")


def _map_tensors(instance: Fields, change: Callable[[Tensor], Tensor]) -> Fields:
    def changed(value: Any) -> Any:
        if isinstance(value, Tokens):
            return _map_tensors(value, change)
        if isinstance(value, tuple):
            return tuple(map(change, value))
        return change(value) if isinstance(value, Tensor) else value

    return replace(instance, **{name: changed(value) for name, value in vars(instance).items()})


class Output:
    """The output of a model: hidden states, the language modeling head, and the number head if there is one.

    A number head predicts one number per position, in xVal that of [NUM]. If it predicts sign(x) ln(1 + |x|) of a
    number x, `unscale` maps its predictions back to numbers; else it is None.

    Logits are computed on access, so that a fused loss can use `hidden_states` and `lm_head` without rows x time x
    vocabulary logits in memory. With `target_positions`, `hidden_states` covers only those positions of each row."""

    def __init__(
        self,
        hidden_states: Float[Tensor, "rows positions width"],
        lm_head: Callable[[Tensor], Tensor],
        *,
        target_positions: Int[Tensor, "rows targets"] | None = None,
        number_head: Callable[[Tensor], Tensor] | None = None,
        unscale: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.hidden_states = hidden_states
        self.lm_head = lm_head
        self.target_positions = target_positions
        self.number_head = number_head
        self.unscale = unscale

    @property
    def logits(self) -> Float[Tensor, "rows positions vocabulary"]:
        return self.lm_head(self.hidden_states)

    @property
    def scaled_numbers(self) -> Float[Tensor, "rows positions"] | None:
        """The predictions of the number head, on its own scale; None without a number head."""
        return None if self.number_head is None else self.number_head(self.hidden_states)

    @property
    def number_predictions(self) -> Float[Tensor, "rows positions"] | None:
        """The predicted numbers themselves, comparable to `Tokens.number_values`."""
        scaled_numbers = self.scaled_numbers
        return scaled_numbers if scaled_numbers is None or self.unscale is None else self.unscale(scaled_numbers)


class Loops(NamedTuple):
    """Number of loops of a looped model, which applies the same blocks repeatedly: `no_grad_loops` without a gradient,
    then `grad_loops` with one.

    With `average_gradients` the gradient of the looped parameters (only) is divided by `grad_loops`.

    >>> Loops.from_argument(None, default=4)
    Loops(no_grad_loops=0, grad_loops=4, average_gradients=False)
    >>> Loops.from_argument((3, 1), default=4).total
    4
    """

    no_grad_loops: int
    grad_loops: int
    average_gradients: bool = False

    @classmethod
    def from_argument(cls, loops: "Loops | tuple[int, int] | int | None", default: int) -> "Loops":
        """Parses the `loops` argument of `Model.forward`. Raises `UserError` for fewer than one loop with a
        gradient, or a negative number of loops without one."""
        if loops is None:
            loops = default
        result = loops if isinstance(loops, Loops) else cls(*loops) if isinstance(loops, tuple) else cls(0, loops)
        if result.no_grad_loops < 0 or result.grad_loops < 1:
            raise UserError(
                "loops: the number of loops without a gradient must be at least 0 and with one at least 1, not "
                f"{result.no_grad_loops} and {result.grad_loops}"
            )
        return result

    @property
    def total(self) -> int:
        """All loops, with a gradient or without."""
        return self.no_grad_loops + self.grad_loops


class Model(nn.Module, ABC):
    """The interface of models for training and evaluation."""

    regression_token_id: int | None = None
    """The id of [NUM] for a model with a regression head (a number head that predicts the whole answer as one number at
    its first token); otherwise None."""

    other_end_ids: tuple[int, ...] = ()
    """The ids besides [EOS] that end a text: those of a pretrained model's tokenizer and generation configuration."""

    @abstractmethod
    def assign_positions(self, tokens: Tokens, step_context: StepContext) -> Tokens:
        """Sets the position ids. All randomness of a forward pass but dropout happens here, outside compiled code."""

    @abstractmethod
    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        """Processes complete rows. If `position_ids` is missing, the evaluation position ids are used.

        `loops`, for looped models: the number of loops, or (loops without gradient, loops with gradient); None: the
        model's default."""

    @abstractmethod
    def prefill(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> "DecodingStep":
        """Prefills prompts of different lengths; returns the output at each row's last token, and the decoding state.
        `capacity` is the maximum length of a row; `position_offset` is an index into the fixed evaluation offsets."""

    @abstractmethod
    def step(self, ids: Int[Tensor, " rows"], number_values: Tensor | None, state: Any) -> "DecodingStep":
        """Decodes one more token per row."""

    def num_position_offsets(self) -> int:
        """Number of fixed offsets for evaluation: 1 unless position ids are shifted or sampled."""
        return 1

    @abstractmethod
    def check_tokens(self, tokens: Tokens, training_tokens: Tokens | None = None) -> list[str]:
        """Raises `UserError` if the model cannot process these tokens (a position beyond its position embeddings).
        Returns warnings, such as the first position that never occurs in training (`training_tokens` are the longest
        training rows)."""

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Per parameter name: (factor of the learning rate, whether weight decay applies). By default it applies to
        matrices and tables."""
        return {name: (1.0, parameter.dim() >= 2) for name, parameter in self.named_parameters()}

    @abstractmethod
    def flops(self, batch_size: int, sequence_length: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        """Floating-point operations of one forward pass, a multiply-add counted as two; `loops` as in `forward`.

        The backward pass costs twice the forward pass of the loops that have gradients: 2 * flops(rows, time,
        grad_loops).
        """

    def source_flops(self, batch_size: int, sequence_length: int, source_length: int) -> int:
        """Additional floating-point operations of a forward pass for an encoder input of this length; 0 without an
        encoder."""
        return 0

    def reorder_rows(self, state: Any, rows: Int[Tensor, " reorder_rows"]) -> Any:
        """The state of these rows, in this order, possibly repeated, for beam search; the given state is consumed. None
        if the model does not support it; prompts are then prefilled again."""
        return None

    def attention_maps(self, tokens: "Tokens", source: "Tokens | None" = None) -> Any:
        """Attention weights of one forward pass, one tensor per layer, if the model returns them itself; None if its
        mixers record them (`numerate.mixers.attention_maps`)."""
        return None

    def blocks(self) -> list[nn.Module]:
        """The layers of a model that does not consist of `numerate.models.block.Block`s, such as a Hugging Face
        model."""
        return []

    def pretrained_config(self) -> dict[str, Any] | None:
        """The configuration (JSON) from which a pretrained model can be rebuilt without its pretrained weights; None
        for other models."""
        return None

    def default_num_loops(self) -> int:
        """Default number of loops; 1 for a model that is not looped."""
        return 1

    def max_length(self) -> int | None:
        """The longest row that it can read, padding included; None for any."""
        return None

    def non_causal_reason(self) -> str | None:
        """A description of how its outputs depend on later tokens; None for a causal model.

        Under teacher forcing a non-causal model sees the answer, so its scores are meaningless, and it cannot
        generate: `prefill` raises `UserError`."""
        return None


@dataclass(frozen=True)
class DecodingStep:
    """The output at one position per row, and the state after it."""

    output: Output
    state: Any


class ModelSpec(Spec, ABC):
    """The spec of a model: a frozen dataclass of its settings, which builds it.

    Everywhere in numerate a spec is the configuration and `build` makes the `nn.Module`, so that recipes are stored,
    compared and identified without building anything."""

    is_hugging_face: ClassVar[bool] = False
    """Whether it is a model of transformers, possibly with pretrained weights."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary, seed: int) -> Model:
        """Builds the model with weights initialized from `seed`. Raises `UserError` for invalid settings."""

    def rebuild(self, vocabulary: Vocabulary, seed: int, pretrained_config: Mapping[str, Any] | None = None) -> Model:
        """Builds the model to load a checkpoint into. With `pretrained_config` (`Model.pretrained_config`, from the
        checkpoint), a pretrained model gets random weights instead of its pretrained ones."""
        if pretrained_config is None:
            return self.build(vocabulary, seed)
        return self.build_from_config(vocabulary, seed, pretrained_config)

    def pretrained_config(self, vocabulary: Vocabulary) -> dict[str, Any] | None:
        """The configuration of its pretrained weights, from which `build_from_config` builds it; None without any.
        Raises `UserError` where it cannot be read."""
        return None

    def small(self) -> "ModelSpec":
        """A small model of this kind, for `preset=debug`; itself if it is small."""
        return self

    def build_from_config(self, vocabulary: Vocabulary, seed: int, pretrained_config: Mapping[str, Any]) -> Model:
        """The pretrained model that a configuration describes, with random weights, to be loaded afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has no pretrained weights")

    def build_on_meta(
        self, vocabulary: Vocabulary, seed: int, pretrained_config: Mapping[str, Any] | None = None
    ) -> Model:
        """The model on torch's meta device (shapes without memory), for counting parameters.

        `pretrained_config` is as for `rebuild`. Raises torch's `RuntimeError` or `NotImplementedError` for a model that
        cannot be built there."""
        with torch.device("meta"):
            return self.rebuild(vocabulary, seed, pretrained_config)

"""The interface between data and models: `Batch`, `Tokens`, `Output`, `Model`.

Tasks, tokens, losses and evaluation make a `Batch`; models (with positions and mixers) compute an `Output` from its
`Tokens`. Neither side imports the other.

Dimension names, the same everywhere: `rows` (examples of a batch), `time` (positions), `targets` (positions with a
label), `width` (hidden size of the model), `vocabulary`, `heads`, `head_width`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.errors import UserError
from numerate.vocabulary import Vocabulary as Vocabulary

IGNORE = -100
"""The label of positions without a target: `ignore_index` of `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True)
class StepContext:
    """The random state of a forward: its random numbers are a function of this and of the rows.

    `StepContext(seed, step)` is a training step: position ids draw their offsets from a counter hash of (seed, step,
    row). `StepContext.fixed(i)` is evaluation: nothing is drawn; position ids take their i-th fixed offset (the 0-th
    is none). `StepContext.of_several(draws, rows)` is for the concatenated rows of several runs, `rows` of each: every
    row draws what it would in its own run (see `numerate.positions.counter`).
    """

    seed: int = 0
    step: int | None = None
    position_offset: int = 0
    several: tuple["StepContext", ...] = ()
    rows: int = 0

    @classmethod
    def fixed(cls, position_offset: int = 0) -> "StepContext":
        return cls(position_offset=position_offset)

    @classmethod
    def of_several(cls, draws: Sequence["StepContext"], rows: int) -> "StepContext":
        return cls(several=tuple(draws), rows=rows)

    @property
    def training(self) -> bool:
        return self.step is not None or bool(self.several)


@dataclass(frozen=True)
class Tokens:
    """The input of a model. Rows are padded on the right.

    - `ids` are token ids (PAD beyond a row's length); `lengths` are the numbers of real tokens of each row.
    - `row` is the global index of each example in its stream of data, the key of draws per row.
    - `values` is the number at each token (xVal), None where the tokenizer has none.
    - `blocked_keys` is True at keys that are masked for all queries, None where there are none.
    - `position_ids` has one tensor per position scheme of the model, set by `Model.assign_positions`.
    """

    ids: Int[Tensor, "rows time"]
    lengths: Int[Tensor, " rows"]
    row: Int[Tensor, " rows"]
    values: Float[Tensor, "rows time"] | None = None
    blocked_keys: Bool[Tensor, "rows time"] | None = None
    position_ids: tuple[Tensor, ...] | None = None

    def to(self, device: torch.device) -> "Tokens":
        return replace(self, **_moved(self, device))


@dataclass(frozen=True)
class Batch:
    """Inputs and labels.

    - `targets[r, t]` is the label of position t (already shifted); `IGNORE` where there is none.
    - `target_positions` lists the positions of each row that have a label, in order; rows with fewer than others repeat
      their last position, where `target_ids` is IGNORE.
    - `target_values` are the numbers of the targets where the tokenizer has values.
    - `source` is the encoder's input (layout Seq2Seq), None elsewhere.
    - `counts` are the denominators of means, known before any forward: `{"tokens": labels, "examples": rows}`.
    - `real` is the number of input tokens that are not padding.
    """

    tokens: Tokens
    targets: Int[Tensor, "rows time"]
    target_positions: Int[Tensor, "rows targets"]
    target_ids: Int[Tensor, "rows targets"]
    counts: Mapping[str, int]
    real: int
    target_values: Float[Tensor, "rows time"] | None = None
    source: Tokens | None = None

    def to(self, device: torch.device) -> "Batch":
        return replace(self, **_moved(self, device))

    @property
    def fewer(self) -> Tensor | None:
        """`target_positions`, None where a row has labels at all positions, so that none can be skipped."""
        return self.target_positions if self.target_positions.shape[1] < self.tokens.ids.shape[1] else None

    def targets_of(self, output: "Output") -> Tensor:
        """The labels of the positions that an output covers: all of them, or only `target_positions`."""
        return self.targets if output.target_positions is None else self.target_ids


def _moved(holder: Any, device: torch.device) -> dict[str, Any]:
    moved: dict[str, Any] = {}
    for name, value in vars(holder).items():
        if isinstance(value, Tensor | Tokens):
            moved[name] = value.to(device)
        elif isinstance(value, tuple):
            moved[name] = tuple(item.to(device) for item in value)
    return moved


class Output:
    """The output of a model: hidden states and the language modelling head.

    Logits are computed on access, so that a fused loss may take `hidden` and `head` without the memory of rows x time x
    vocabulary. With `target_positions`, `hidden` covers only those positions of each row.
    """

    def __init__(
        self,
        hidden: Float[Tensor, "rows places width"],
        head: Callable[[Tensor], Tensor],
        *,
        target_positions: Int[Tensor, "rows targets"] | None = None,
        number_head: Callable[[Tensor], Tensor] | None = None,
        unscaled: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.hidden = hidden
        self.head = head
        self.target_positions = target_positions
        self.number_head = number_head
        self.unscaled = unscaled

    @property
    def logits(self) -> Float[Tensor, "rows places vocabulary"]:
        return self.head(self.hidden)

    @property
    def numbers(self) -> Float[Tensor, "rows places"] | None:
        """The number head's predictions on the scale of training, None without a number head."""
        return None if self.number_head is None else self.number_head(self.hidden)

    @property
    def values(self) -> Float[Tensor, "rows places"] | None:
        """The predicted numbers, as in `Tokens.values`: `numbers` with their scaling undone."""
        numbers = self.numbers
        return numbers if numbers is None or self.unscaled is None else self.unscaled(numbers)


class Loops(NamedTuple):
    """Number of loops of a looped model: `no_grad_loops` without a gradient, then `grad_loops` with one.

    With `divided` the gradient of the looped parameters (only) is divided by `grad_loops`.

    >>> Loops.of(None, default=4)
    Loops(no_grad_loops=0, grad_loops=4, divided=False)
    >>> Loops.of((3, 1), default=4).whole
    4
    """

    no_grad_loops: int
    grad_loops: int
    divided: bool = False

    @classmethod
    def of(cls, loops: "Loops | tuple[int, int] | int | None", default: int) -> "Loops":
        """From the argument of a forward. Raises `UserError` for zero loops, or a negative number of them."""
        if loops is None:
            loops = default
        found = loops if isinstance(loops, Loops) else cls(*loops) if isinstance(loops, tuple) else cls(0, loops)
        if found.no_grad_loops < 0 or found.grad_loops < 1:
            raise UserError(
                f"loops: {found.no_grad_loops} without a gradient and {found.grad_loops} with one cannot be; "
                "0 or more and 1 or more can"
            )
        return found

    @property
    def whole(self) -> int:
        """All loops, with a gradient or without."""
        return self.no_grad_loops + self.grad_loops


class Model(nn.Module, ABC):
    """The interface of models for training and evaluation."""

    regression: int | None = None
    """For a model with a regression head, the id of the token whose number is the whole answer; else None."""

    @abstractmethod
    def assign_positions(self, tokens: Tokens, draw: StepContext) -> Tokens:
        """Sets the position ids. All randomness of a forward is here, before anything compiled."""

    @abstractmethod
    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        """Whole rows. Tokens without `position_ids` get those of evaluation.

        `loops`, for looped models: the number of loops, or (without, with a gradient); None is the model's default."""

    @abstractmethod
    def start(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> "Started":
        """Prefills prompts of different lengths; returns the output at each row's last token, and the state.
        `capacity` is the maximum length of a row."""

    @abstractmethod
    def step(self, ids: Int[Tensor, " rows"], values: Tensor | None, state: Any) -> "Started":
        """Reads one more token per row."""

    @abstractmethod
    def position_offsets(self) -> int:
        """Number of fixed offsets for evaluation: 1 unless position ids are shifted or sampled."""

    @abstractmethod
    def check(self, tokens: Tokens, trained: Tokens | None = None) -> list[str]:
        """Raises `UserError` if these tokens cannot be read (a position beyond an embedding table). Returns warnings,
        such as the first position that no token of the training task (`trained`, its longest rows) has."""

    @abstractmethod
    def settings_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Per parameter name: (factor of the learning rate, whether weight decay applies)."""

    @abstractmethod
    def flops(self, rows: int, time: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        """Floating-point operations of one forward, a multiply-add counted as two; `loops` as in `forward`.

        Its backward costs twice what it goes back through: 2 * flops(rows, time, grad_loops).
        """

    def source_flops(self, rows: int, time: int, source: int) -> int:
        """Floating-point operations that a source of this length adds to a forward; 0 without an encoder."""
        return 0

    def chosen(self, state: Any, rows: Int[Tensor, " chosen"]) -> Any:
        """The state of these rows, in this order, possibly repeated, for beam search; the given state is consumed. None
        where a model cannot reorder, so that prompts are prefilled again."""
        return None

    def blocks(self) -> list[nn.Module]:
        """Its layers, where they are not `numerate.models.block.Block`s: those of a Hugging Face model."""
        return []

    def origin(self) -> dict[str, Any] | None:
        """What rebuilds a model of pretrained weights without them, as JSON; None for every other model."""
        return None

    def loops(self) -> int:
        """Default number of loops; 1 for a model without a loop."""
        return 1

    def sees_future(self) -> str | None:
        """Why its outputs depend on later tokens, in words; None for a causal model.

        Scores of a model that is not causal leak the answer under teacher forcing and prove nothing, and it cannot
        generate: `start` raises `UserError`."""
        return None


@dataclass(frozen=True)
class Started:
    """The output at one position per row, and the state after it."""

    output: Output
    state: Any


class ModelSpec(ABC):
    """The spec of a model: a frozen dataclass that builds it."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary, seed: int) -> Model:
        """Builds the model with weights that are a function of `seed`. Raises `UserError` for impossible settings."""

    def rebuild(self, vocabulary: Vocabulary, seed: int, origin: Mapping[str, Any] | None = None) -> Model:
        """Builds the model to load a checkpoint into. With `origin` (`Model.origin`, from the checkpoint), a pretrained
        model gets random weights instead of its pretrained ones."""
        return self.build(vocabulary, seed)

    def build_on_meta(self, vocabulary: Vocabulary, seed: int, origin: Mapping[str, Any] | None = None) -> Model:
        """The model on torch's meta device (shapes without memory), for counting parameters.

        `origin` is as for `rebuild`. Raises torch's `RuntimeError` or `NotImplementedError` for a model that cannot be
        built there."""
        with torch.device("meta"):
            return self.rebuild(vocabulary, seed, origin)

"""What the two wings of the house may know of each other.

The wing that asks (tasks, tokens, losses, evaluation) makes a `Batch`; the wing that thinks (positions, mixers, models)
answers its `Tokens` with an `Output`. Neither imports the other: both import this file.

Dimension names, the same everywhere: `rows` (examples of a batch), `time` (places), `target_positions` (places where
something is asked), `width` (of the model), `vocabulary`, `heads`, `head_width`.
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
"""The target where nothing is asked (also what `torch.nn.functional.cross_entropy` ignores)."""


@dataclass(frozen=True)
class StepContext:
    """Where the random numbers of a forward come from. They are a function of it and of the rows, and of nothing else.

    `StepContext(seed, step)` is a training step: numberings draw their offsets from a counter hash of (seed, step,
    row). `StepContext.fixed(i)` is an evaluation: nothing is drawn; a numbering takes its i-th fixed placement (the
    0-th is the one without any offset). `StepContext.of_several(draws, rows)` is for the rows of several runs one below
    the other, `rows` of each: every row draws what it would in its own run, by `numerate.positions.counter`, which all
    draws go through.
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
    """What a model reads. Rows are padded on the right.

    - `ids` are token ids (PAD beyond a row's length); `lengths` are the numbers of real tokens of each row.
    - `row` is the global index of each example in its stream of data: what per-row draws are keyed by.
    - `values` is the number that a token carries (xVal), None where the tokenizer has none.
    - `blocked_keys` is True at keys that nobody may attend to, None where there are none.
    - `position_ids` are the numbers that each place gets, one tensor per numbering of the model, filled in by
      `Model.assign_positions`.
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
    """Questions with what must be said to them.

    - `targets[r, t]` is what the output at place t must say (already shifted); `IGNORE` where nothing is asked.
    - `target_positions` lists the places of each row where something is asked, in order; rows that ask less than others
      are filled up with their last place, and `target_ids` is IGNORE there.
    - `target_values` are the numbers behind the targets where the tokenizer has values.
    - `source` is what an encoder reads (layout Seq2Seq), None elsewhere.
    - `counts` are what sums are divided by, known before any forward: `{"tokens": places asked, "examples": rows}`.
    - `real` is the number of input tokens that are not padding.
    """

    tokens: Tokens
    targets: Int[Tensor, "rows time"]
    target_positions: Int[Tensor, "rows asked"]
    target_ids: Int[Tensor, "rows asked"]
    counts: Mapping[str, int]
    real: int
    target_values: Float[Tensor, "rows time"] | None = None
    source: Tokens | None = None

    def to(self, device: torch.device) -> "Batch":
        return replace(self, **_moved(self, device))

    @property
    def fewer(self) -> Tensor | None:
        """`target_positions`, None where a row asks something at every place: nothing is then saved by asking
        for some."""
        return self.target_positions if self.target_positions.shape[1] < self.tokens.ids.shape[1] else None

    def targets_of(self, output: "Output") -> Tensor:
        """The targets at the places that an output covers: all of them, or only those asked."""
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
    """What a model says: hidden states and the head that would turn them into logits.

    Logits are made when asked for, so that a loss may take `hidden` and `head` and fuse the two without ever holding
    rows x time x vocabulary. With `target_positions` given, `hidden` covers only those places of each row.
    """

    def __init__(
        self,
        hidden: Float[Tensor, "rows places width"],
        head: Callable[[Tensor], Tensor],
        *,
        target_positions: Int[Tensor, "rows asked"] | None = None,
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
        """What the number head says, for models that have one, on the scale that it is trained on."""
        return None if self.number_head is None else self.number_head(self.hidden)

    @property
    def values(self) -> Float[Tensor, "rows places"] | None:
        """The numbers that the number head means, as in `Tokens.values`: `numbers` with their scale undone."""
        numbers = self.numbers
        return numbers if numbers is None or self.unscaled is None else self.unscaled(numbers)


class Loops(NamedTuple):
    """How often a looped model goes round: `no_grad_loops` times without a gradient, then `grad_loops` with one.

    With `divided` the gradient of the looped parameters, and of no others, is divided by `grad_loops`.

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
        """From what a forward may be given. Raises `UserError` for no turn at all, or a negative number of them."""
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
        """All turns, with a gradient or without."""
        return self.no_grad_loops + self.grad_loops


class Model(nn.Module, ABC):
    """What training and evaluation know of a model: never more than this."""

    regression: int | None = None
    """The id of the token whose number is the whole answer, of a model with a regression head; None of all others."""

    @abstractmethod
    def assign_positions(self, tokens: Tokens, draw: StepContext) -> Tokens:
        """Gives every token its place numbers. All randomness of a forward is here, before anything compiled."""

    @abstractmethod
    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows asked"] | None = None,
    ) -> Output:
        """Reads whole rows. Tokens without `position_ids` are placed as in evaluation.

        `loops` is for models with loops: how often they go round, as a number or as (without, with a gradient); None is
        as often as the recipe says."""

    @abstractmethod
    def start(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> "Started":
        """Reads prompts of different lengths and returns the output at each row's last token, with the state to go on
        from. `capacity` is the longest a row may become."""

    @abstractmethod
    def step(self, ids: Int[Tensor, " rows"], values: Tensor | None, state: Any) -> "Started":
        """Reads one more token per row."""

    @abstractmethod
    def position_offsets(self) -> int:
        """How many fixed placements there are to evaluate at: 1 unless a numbering shifts or samples its places."""

    @abstractmethod
    def check(self, tokens: Tokens, trained: Tokens | None = None) -> list[str]:
        """Raises `UserError` if these tokens cannot be read (a place beyond a table), before any work is done. Returns
        warnings, such as the first place that no token of the training task (`trained`, its longest rows) ever had."""

    @abstractmethod
    def settings_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Per parameter name: (factor of the learning rate, whether weight decay applies)."""

    @abstractmethod
    def flops(self, rows: int, time: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        """Floating-point operations of one forward, a multiply-add counted as two; `loops` as in `forward`.

        Its backward costs twice what it goes back through: 2 * flops(rows, time, grad_loops).
        """

    def source_flops(self, rows: int, time: int, source: int) -> int:
        """Floating-point operations that a source of so many places adds to a forward; 0 for a model without an
        encoder."""
        return 0

    def chosen(self, state: Any, rows: Int[Tensor, " chosen"]) -> Any:
        """The state of these rows, in this order, some of them perhaps several times, for a search that goes on from
        several of its answers; the state that it is taken of is used up. None where a model cannot: what was read is
        then read again."""
        return None

    def loops(self) -> int:
        """How often a forward goes round its looped blocks by default; 1 for a model without a loop."""
        return 1

    def sees_future(self) -> str | None:
        """Why what it says at a place depends on what comes later, in words; None for a causal model.

        One that does knows something of the answer when it is scored at every place of a whole row, so nothing that is
        measured on it is a claim, and it cannot be decoded: `start` raises `UserError`."""
        return None


@dataclass(frozen=True)
class Started:
    """An output at one place per row (`hidden` has one place) and the state behind it."""

    output: Output
    state: Any


class ModelSpec(ABC):
    """The description of a model in a recipe: a frozen dataclass that can build it."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary, seed: int) -> Model:
        """Builds the model with weights that are a function of `seed`. Raises `UserError` for what cannot be built."""

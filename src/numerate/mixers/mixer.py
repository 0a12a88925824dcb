"""The two forms of every mixer: over whole rows, and over one more token with an explicit state."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.errors import UserError
from numerate.positions.position import Position


@dataclass
class Context:
    """What a mixer may know besides its input.

    - `lengths`: real tokens per row so far. `hidden`: True at keys that nobody may attend to.
    - `places`: per position of the model, the numbers of all places so far (first dimension 1 where all rows agree).
    - `raw`: the embedded input, before any block. `stream`: what the norm before the mixer read, in this block.
    - `index`: in a step, the place of the newest token in each row; None over whole rows.
    - `seen`: in a step, how many places of the state need looking at (the longest row so far).
    - `capacity`: in a prefill, the longest a row may become.
    - `prepared`: what layers share within one forward, such as the cosines of rotary positions.
    """

    lengths: Int[Tensor, " rows"]
    position_ids: tuple[Tensor, ...]
    raw: Tensor | None = None
    stream: Tensor | None = None
    hidden: Bool[Tensor, "rows time"] | None = None
    index: Int[Tensor, " rows"] | None = None
    seen: int = 0
    capacity: int = 0
    prepared: dict[Any, Any] = field(default_factory=dict)


class OfAllRows:
    """A part of a state that is not of rows, such as weights made ready for its steps: a state of other rows of the
    batch has the very same."""


class TokenMixer(nn.Module, ABC):
    """A layer's mixer. `forward` and `step` agree: reading at once and token by token give the same (a promise).

    No place may see a later one, no row another, and padding on the right changes nothing (promises too).
    """

    @abstractmethod
    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        """Mixes whole rows."""

    def forward_at(
        self, x: Float[Tensor, "rows time width"], context: Context, target_positions: Int[Tensor, "rows asked"]
    ) -> Float[Tensor, "rows asked width"]:
        """`forward` at some places of each row only. Mixers that can leave out the work of the others override it."""
        return at_places(self(x, context), target_positions)

    @abstractmethod
    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, Any]:
        """As `forward`, and the state behind each row's last real token."""

    @abstractmethod
    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: Any) -> tuple[Tensor, Any]:
        """One more token per row, and the state behind it."""

    def maps(self, x: Float[Tensor, "rows time width"], context: Context) -> dict[Any, Tensor]:
        """Who attends to whom in `forward`, by the sorts of `numerate.mixers.maps`: rows x heads x query x key each,
        the very weights that it uses. Empty for a mixer that does not attend."""
        return {}

    def claimed(self) -> set[str]:
        """Names of parameters that this part initialises itself; a model's named initialisation leaves them alone."""
        return set()

    def settings_by_parameter(self) -> dict[str, tuple[float, bool]]:
        """Parameters with wishes of their own: (factor of the learning rate, whether weight decay applies)."""
        return {}

    def fused(self) -> Mapping[str, Sequence[str]]:
        """Linear maps that are several of one size, one above the other, by their names here, with what each makes:
        `{"inward": ("queries", "keys", "values")}`. Initialisations that tell them apart draw them one by one."""
        return {}

    def reads(self) -> Mapping[str, int]:
        """Linear maps by their names here, with how many numbers each output reads where that is not their width, for
        initialisations that go by it."""
        return {}

    def outward(self) -> Sequence[nn.Linear]:
        """The linear maps that write to the residual stream: initialisations make them small."""
        return ()

    @abstractmethod
    def flops(self, time: int) -> int:
        """Floating-point operations of one forward over one row of this length."""


class Mixer(ABC):
    """The description of a mixer in a recipe: a frozen dataclass that builds one layer's `TokenMixer`."""

    @abstractmethod
    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> TokenMixer:
        """The mixer of layer `layer` (from 0) of `depth`. `positions` are the model's, in the order of
        `Context.places`; a mixer uses those that act inside attention. Raises `UserError` for what cannot be built."""

    def build_layers(self, width: int, depth: int, positions: Sequence[Position]) -> list[TokenMixer]:
        """The mixers of all layers; a spec whose layers share parts makes them here."""
        return [self.build(width, layer, depth, positions) for layer in range(depth)]

    def why_not_stacked(self) -> str | None:
        """Why models with it cannot be stacked into one (`numerate.training.stacked`), in words; None if they can."""
        return None

    def attends(self) -> bool:
        """Whether positions that act inside attention have something to act in."""
        return False

    def hides(self) -> bool:
        """Whether tokens may be hidden from it; what carries a state reads every token."""
        return self.attends()


def nothing_hidden(context: Context, mixer: str) -> None:
    """Raises `UserError` where keys are hidden: a mixer that carries a state reads every token."""
    if context.hidden is not None:
        raise UserError(f"model.mixer: {mixer} reads every token and cannot hide any; Attention can")


def at_places(
    x: Float[Tensor, "rows time width"], target_positions: Int[Tensor, "rows asked"]
) -> Float[Tensor, "rows asked width"]:
    """The states at some places of each row."""
    return x[torch.arange(x.shape[0], device=x.device)[:, None], target_positions]

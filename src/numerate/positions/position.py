"""What is done with the number of a place: added to the input, or used inside attention."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.positions.numbering import PositionIds


class Position(ABC):
    """A use of place numbers: a frozen spec with `position_ids`. It acts on the input or inside attention, not both."""

    position_ids: PositionIds

    fractions: ClassVar[bool] = False
    """Whether it takes a numbering whose numbers are fractions, such as `Zooming`."""

    def build_input(self, width: int) -> "InputPosition | None":
        """The part that acts on the embedded input, or None for a position that acts inside attention."""
        return None

    def build_attention(self, heads: int, head_width: int) -> "Rotation | Bias | Contextual | None":
        """The part that acts inside one layer's attention, or None for a position that acts on the input."""
        return None

    def shares_layers(self) -> bool:
        """Whether all layers of a model use one and the same part inside attention."""
        return False

    def size(self) -> int | None:
        """How many different places there is room for, None where any number will do."""
        return None


class InputPosition(nn.Module, ABC):
    """Changes the embedded tokens by their places, which are whole unless the position takes fractions."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "rows time width"], places: Int[Tensor, "#rows time"]
    ) -> Float[Tensor, "rows time width"]: ...

    def claimed(self) -> set[str]:
        """Names of parameters that this part initialises itself; a model's named initialisation leaves them alone."""
        return set()


class Rotation(nn.Module, ABC):
    """Turns queries and keys by their places."""

    @abstractmethod
    def prepare(self, places: Int[Tensor, "#rows time"]) -> Any:
        """What depends on the places alone: made once in a forward and shared by all layers that rotate alike."""

    @abstractmethod
    def turn(
        self, x: Float[Tensor, "rows heads time head_width"], prepared: Any
    ) -> Float[Tensor, "rows heads time head_width"]: ...


class Bias(nn.Module, ABC):
    """Adds to the attention scores a number that depends on the places of query and key."""

    @abstractmethod
    def bias(
        self, queries: Int[Tensor, "#rows query"], keys: Int[Tensor, "#rows key"]
    ) -> Float[Tensor, "#rows heads query key"]: ...


class Contextual(nn.Module, ABC):
    """Adds to the attention scores a number that depends on what query and keys hold."""

    @abstractmethod
    def bias(
        self,
        queries: Float[Tensor, "rows heads query head_width"],
        keys: Float[Tensor, "rows heads key head_width"],
        visible: Bool[Tensor, "#rows 1 query key"],
    ) -> Float[Tensor, "rows heads query key"]:
        """What is added to the scores; `visible` is True where a query may see a key."""

    @abstractmethod
    def flops(self, heads: int, time: int) -> int:
        """Floating-point operations of its matrix products for one row of this length."""

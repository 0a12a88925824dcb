"""What recurrences share: one method for whole rows and single tokens, and diagonal scans."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from jaxtyping import Float, Inexact
from torch import Tensor, nn

from numerate.kernels.linear_scan import linear_scan
from numerate.kernels.token_shift import gather_last_tokens
from numerate.mixers.mixer import Context, Mixer, TokenMixer, check_no_blocked_keys


class Recurrence(TokenMixer, ABC):
    """A mixer whose state has a constant size. A member implements `run`, in which whole rows and single tokens share
    all but the recurrence itself; `output_layer` names the layer that writes to the residual stream."""

    output_layer: ClassVar[str] = "out_proj"

    def __init__(self, spec: Mixer) -> None:
        super().__init__()
        self.mixer_name = type(spec).__name__

    @abstractmethod
    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        """The outputs, rows x time x width like x, and the state after x.

        If `state` is None, x is whole rows, and the new state that after the first `lengths` tokens of each; without
        `lengths` it is not used. Otherwise x is one more token per row, and `lengths` None.
        """

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        check_no_blocked_keys(context, self.mixer_name)
        return self.run(x, context, None, None)[0]

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, Any]:
        check_no_blocked_keys(context, self.mixer_name)
        return self.run(x, context, None, context.lengths)

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: Any) -> tuple[Tensor, Any]:
        return self.run(x, context, state, None)

    def output_projections(self) -> Sequence[nn.Linear]:
        layer = getattr(self, self.output_layer)
        return (layer,) if isinstance(layer, nn.Linear) else ()

    def flops(self, time: int) -> int:
        """A multiply-add for each token and weight of a matrix; members add those of their recurrence."""
        return 2 * time * sum(weight.numel() for weight in self.parameters() if weight.dim() >= 2)


class DiagonalRecurrence(Recurrence):
    """h_t = a_t h_{t-1} + b_t for each cell by itself, real or complex; the state is h, rows x cells."""

    @abstractmethod
    def decays_and_inputs(
        self, x: Float[Tensor, "rows time width"]
    ) -> tuple[Inexact[Tensor, "#rows #time cells"], Inexact[Tensor, "rows time cells"]]:
        """a and b of each token."""

    @abstractmethod
    def read(
        self, states: Inexact[Tensor, "rows time cells"], x: Float[Tensor, "rows time width"]
    ) -> Float[Tensor, "rows time width"]:
        """The outputs, from the states after the tokens x."""

    def states(
        self, x: Float[Tensor, "rows time width"], state: Inexact[Tensor, "rows cells"] | None = None
    ) -> Inexact[Tensor, "rows time cells"]:
        """The state after each token of whole rows, or after one more token."""
        decays, inputs = self.decays_and_inputs(x)
        return linear_scan(decays, inputs) if state is None else decays * state[:, None] + inputs

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        states = self.states(x, state)
        return self.read(states, x), gather_last_tokens(states, lengths)

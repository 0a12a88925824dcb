"""One layer of a model: norm, mixer, feed-forward, each on the residual stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from numerate.config import setting
from numerate.errors import Mistake
from numerate.mixers.mixer import Context, TokenMixer, at_places

Norm = Literal["layer", "rms", "none"]


def make_norm(kind: Norm, width: int, epsilon: float = 1e-5) -> nn.Module:
    """LayerNorm (Ba et al., 2016), RMSNorm (Zhang and Sennrich, 2019), or nothing."""
    if kind == "layer":
        return nn.LayerNorm(width, eps=epsilon)
    if kind == "rms":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.Identity()


@dataclass(frozen=True)
class FeedForward:
    """Two linear maps with something in between, at every place alone.

    - `gelu`, `relu`: out(f(in(x))).
    - `swiglu`, `geglu`: out(f(gate(x)) * in(x)), Shazeer (2020), https://arxiv.org/abs/2002.05202; f is SiLU or GELU.
      One linear map makes gate and value side by side.
    """

    activation: Literal["gelu", "relu", "swiglu", "geglu"] = setting("gelu", "what stands between the two linear maps")
    times: float = setting(4.0, "hidden width, in multiples of the model's width")
    biases: bool = setting(True, "whether the linear maps have bias vectors")

    def __post_init__(self) -> None:
        if not 0 < self.times < float("inf"):
            raise Mistake(f"times: a hidden width of {self.times} widths is nothing; 4 is usual")

    def build(self, width: int, reads: int | None = None) -> "FeedForwardPart":
        """The part for a model of this width; with `reads` it reads vectors of another width than it writes."""
        return FeedForwardPart(width, max(1, round(width * self.times)), self.activation, self.biases, reads)


class FeedForwardPart(nn.Module):
    """The part behind `FeedForward`."""

    def __init__(self, width: int, hidden: int, activation: str, biases: bool, reads: int | None = None) -> None:
        super().__init__()
        self.gated = activation in ("swiglu", "geglu")
        forms: dict[str, Callable[[Tensor], Tensor]] = {"gelu": gelu, "relu": relu, "swiglu": silu, "geglu": gelu}
        self.activation = forms[activation]
        self.inward = nn.Linear(reads or width, hidden * (2 if self.gated else 1), bias=biases)
        self.out = nn.Linear(hidden, width, bias=biases)

    def forward(self, x: Float[Tensor, "rows time reads"]) -> Float[Tensor, "rows time width"]:
        hidden = self.inward(x)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * value
        else:
            hidden = self.activation(hidden)
        out: Tensor = self.out(hidden)
        return out

    def operations(self, time: int) -> int:
        return 2 * time * (self.inward.weight.numel() + self.out.weight.numel())


class Block(nn.Module):
    """Mixer and feed-forward, each added to the residual stream; each may be None.

    Pre-norm: x + f(norm(x)), Xiong et al. (2020), https://arxiv.org/abs/2002.04745. Post-norm: norm(x + f(x)), as in
    Vaswani et al. (2017). Without `residual` each takes the place of what it read.
    """

    def __init__(
        self,
        width: int,
        mixer: TokenMixer | None,
        feed_forward: FeedForwardPart | None,
        *,
        norm: Norm = "layer",
        norm_first: bool = True,
        dropout: float = 0.0,
        epsilon: float = 1e-5,
        residual: bool = True,
    ) -> None:
        super().__init__()
        self.norm_first, self.residual = norm_first, residual
        self.mixer, self.feed_forward = mixer, feed_forward
        self.mixer_norm = make_norm(norm, width, epsilon) if mixer is not None else None
        self.feed_forward_norm = make_norm(norm, width, epsilon) if feed_forward is not None else None
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        asked: Int[Tensor, "rows asked"] | None = None,
    ) -> Float[Tensor, "rows places width"]:
        """With `asked`, only those places come back, and nothing is computed for others that these do not need."""
        context.stream = x
        if self.mixer is not None and self.mixer_norm is not None:
            read = self.mixer_norm(x) if self.norm_first else x
            if asked is None:
                mixed = self.mixer(read, context)
            else:
                x, mixed = at_places(x, asked), self.mixer.forward_at(read, context, asked)
            x = self._joined(x, mixed, self.mixer_norm)
        elif asked is not None:
            x = at_places(x, asked)
        return self._fed(x)

    def prefill(self, x: Tensor, context: Context) -> tuple[Tensor, Any]:
        state, context.stream = None, x
        if self.mixer is not None and self.mixer_norm is not None:
            mixed, state = self.mixer.prefill(self.mixer_norm(x) if self.norm_first else x, context)
            x = self._joined(x, mixed, self.mixer_norm)
        return self._fed(x), state

    def step(self, x: Tensor, context: Context, state: Any) -> tuple[Tensor, Any]:
        context.stream = x
        if self.mixer is not None and self.mixer_norm is not None:
            mixed, state = self.mixer.step(self.mixer_norm(x) if self.norm_first else x, context, state)
            x = self._joined(x, mixed, self.mixer_norm)
        return self._fed(x), state

    def _fed(self, x: Tensor) -> Tensor:
        if self.feed_forward is None or self.feed_forward_norm is None:
            return x
        return self._joined(
            x, self.feed_forward(self.feed_forward_norm(x) if self.norm_first else x), self.feed_forward_norm
        )

    def _joined(self, x: Tensor, change: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.dropout(change) if self.residual else self.dropout(change)
        return x if self.norm_first else norm(x)

    def operations(self, time: int) -> int:
        """Floating-point operations of one forward over one row of this length."""
        return sum(part.operations(time) for part in (self.mixer, self.feed_forward) if part is not None)

    def outward(self) -> Sequence[nn.Linear]:
        """The linear maps that write to the residual stream."""
        fed = (self.feed_forward.out,) if self.feed_forward is not None else ()
        return (*(self.mixer.outward() if self.mixer is not None else ()), *fed)

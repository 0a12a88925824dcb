"""One layer of a model: norm, mixer, feed-forward, each on the residual stream."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.mixer import Context, TokenMixer, at_places
from numerate.models.gating import gated

Norm = Literal["layer", "rms", "none"]
Drops = Literal["branch", "stream"]


def make_norm(kind: Norm, width: int, epsilon: float = 1e-5) -> nn.Module:
    """LayerNorm (Ba et al., 2016), RMSNorm (Zhang and Sennrich, 2019), or nothing."""
    if kind == "layer":
        return nn.LayerNorm(width, eps=epsilon)
    if kind == "rms":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.Identity()


@dataclass(frozen=True)
class FeedForward:
    """Position-wise feed-forward network (MLP), plain or gated.

    - `gelu`, `relu`: out(f(in(x))).
    - `swiglu`, `geglu`: out(f(gate(x)) * in(x)), Shazeer (2020), https://arxiv.org/abs/2002.05202; f is SiLU or GELU.
      One linear layer computes gate and value.

    The intermediate size is `expansion` x width, rounded to the nearest whole number or with `rounding="down"` down:
    for swiglu with expansion=8/3 and a width of 64, 171 or 170. `intermediate_size` sets it directly.
    """

    activation: Literal["gelu", "relu", "swiglu", "geglu"] = setting("gelu", "activation between the two linear layers")
    expansion: float = setting(4.0, "intermediate size over hidden size")
    bias: bool = setting(True, "whether the linear layers have biases")
    intermediate_size: int | None = setting(None, "intermediate size itself; null: by expansion", later=True)
    rounding: Literal["nearest", "down"] = setting("nearest", "rounding of the intermediate size", later=True)
    gelu_approximate: Literal["none", "tanh"] = setting(
        "none", "GELU of gelu and geglu: exact, or its tanh approximation", later=True
    )

    def __post_init__(self) -> None:
        if not 0 < self.expansion < float("inf"):
            raise UserError(f"expansion: a hidden width of {self.expansion} widths is nothing; 4 is usual")
        if self.intermediate_size is not None and self.intermediate_size < 1:
            raise UserError(
                f"intermediate_size: a hidden width of {self.intermediate_size} is nothing; 1 or more is right, or null"
            )

    def hidden_width(self, width: int) -> int:
        """The intermediate size in a model of this width."""
        made = floor(width * self.expansion) if self.rounding == "down" else round(width * self.expansion)
        return max(1, made) if self.intermediate_size is None else self.intermediate_size

    def build(self, width: int, reads: int | None = None) -> "FeedForwardPart":
        """The module for a model of this width; `reads` is the input width where it differs."""
        tanh = self.gelu_approximate == "tanh"
        return FeedForwardPart(width, self.hidden_width(width), self.activation, self.bias, reads, tanh=tanh)


class FeedForwardPart(nn.Module):
    """The part behind `FeedForward`."""

    def __init__(
        self, width: int, hidden: int, activation: str, biases: bool, reads: int | None = None, *, tanh: bool = False
    ) -> None:
        super().__init__()
        self.gated = activation in ("swiglu", "geglu")
        curve = partial(gelu, approximate="tanh") if tanh else gelu
        forms: dict[str, Callable[[Tensor], Tensor]] = {"gelu": curve, "relu": relu, "swiglu": silu, "geglu": curve}
        self.activation = forms[activation]
        self.inward = nn.Linear(reads or width, hidden * (2 if self.gated else 1), bias=biases)
        self.out = nn.Linear(hidden, width, bias=biases)

    def forward(self, x: Float[Tensor, "rows time reads"]) -> Float[Tensor, "rows time width"]:
        hidden = self.inward(x)
        hidden = gated(hidden, self.activation) if self.gated else self.activation(hidden)
        out: Tensor = self.out(hidden)
        return out

    def flops(self, time: int) -> int:
        return 2 * time * (self.inward.weight.numel() + self.out.weight.numel())


class Block(nn.Module):
    """Mixer and feed-forward, each added to the residual stream; each may be None.

    Pre-norm: x + f(norm(x)), Xiong et al. (2020), https://arxiv.org/abs/2002.04745. Post-norm: norm(x + f(x)), as in
    Vaswani et al. (2017). Without `residual` there are no residual connections.

    `dropout` is on each residual branch; `mixer_dropout` on the mixer's output, before that. With `drops="stream"`
    dropout is only on the stream after the mixer and its norm.
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
        mixer_dropout: float = 0.0,
        drops: Drops = "branch",
    ) -> None:
        super().__init__()
        self.norm_first, self.residual, self.drops = norm_first, residual, drops
        self.mixer, self.feed_forward = mixer, feed_forward
        self.mixer_norm = make_norm(norm, width, epsilon) if mixer is not None else None
        self.feed_forward_norm = make_norm(norm, width, epsilon) if feed_forward is not None else None
        self.dropout, self.mixer_dropout = nn.Dropout(dropout), nn.Dropout(mixer_dropout)

    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Float[Tensor, "rows places width"]:
        """With `target_positions`, only those positions are returned, and the work for others is skipped."""
        context.stream = x
        if self.mixer is not None and self.mixer_norm is not None:
            read = self.mixer_norm(x) if self.norm_first else x
            if target_positions is None:
                mixed = self.mixer(read, context)
            else:
                x, mixed = at_places(x, target_positions), self.mixer.forward_at(read, context, target_positions)
            x = self._mixed(x, mixed, self.mixer_norm)
        elif target_positions is not None:
            x = at_places(x, target_positions)
        return self._fed(x)

    def prefill(self, x: Tensor, context: Context) -> tuple[Tensor, Any]:
        state, context.stream = None, x
        if self.mixer is not None and self.mixer_norm is not None:
            mixed, state = self.mixer.prefill(self.mixer_norm(x) if self.norm_first else x, context)
            x = self._mixed(x, mixed, self.mixer_norm)
        return self._fed(x), state

    def step(self, x: Tensor, context: Context, state: Any) -> tuple[Tensor, Any]:
        context.stream = x
        if self.mixer is not None and self.mixer_norm is not None:
            mixed, state = self.mixer.step(self.mixer_norm(x) if self.norm_first else x, context, state)
            x = self._mixed(x, mixed, self.mixer_norm)
        return self._fed(x), state

    def _fed(self, x: Tensor) -> Tensor:
        if self.feed_forward is None or self.feed_forward_norm is None:
            return x
        return self._joined(
            x, self.feed_forward(self.feed_forward_norm(x) if self.norm_first else x), self.feed_forward_norm
        )

    def _mixed(self, x: Tensor, change: Tensor, norm: nn.Module) -> Tensor:
        if not self.training:
            return self._joined(x, change, norm)
        x = self._joined(x, self.mixer_dropout(change), norm)
        dropped: Tensor = self.dropout(x) if self.drops == "stream" else x
        return dropped

    def _joined(self, x: Tensor, change: Tensor, norm: nn.Module) -> Tensor:
        change = self.dropout(change) if self.training and self.drops == "branch" else change
        x = x + change if self.residual else change
        return x if self.norm_first else norm(x)

    def flops(self, time: int) -> int:
        """Floating-point operations of one forward over one row of this length."""
        return sum(part.flops(time) for part in (self.mixer, self.feed_forward) if part is not None)

    def outward(self) -> Sequence[nn.Linear]:
        """The linear maps that write to the residual stream."""
        fed = (self.feed_forward.out,) if self.feed_forward is not None else ()
        return (*(self.mixer.outward() if self.mixer is not None else ()), *fed)

    def fused(self) -> Mapping[str, Sequence[str]]:
        """Linear maps by their names here, with what they make where initialisations tell them apart."""
        made = {f"mixer.{name}": makes for name, makes in self.mixer.fused().items()} if self.mixer is not None else {}
        if self.feed_forward is not None and self.feed_forward.gated:
            made |= {"feed_forward.inward": ("gate", "gated"), "feed_forward.out": ("fed",)}
        return made

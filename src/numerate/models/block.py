"""One layer of a model: norm, mixer, feed-forward, each on the residual stream."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from numerate.config import Spec, setting
from numerate.mixers.mixer import Context, TokenMixer, gather_positions

NormType = Literal["layer", "rms", "none"]
DropoutLocation = Literal["branch", "residual_stream"]


def build_norm(norm_type: NormType, width: int, eps: float = 1e-5) -> nn.Module:
    """LayerNorm (Ba et al., 2016), RMSNorm (Zhang and Sennrich, 2019), or nothing."""
    if norm_type == "layer":
        return nn.LayerNorm(width, eps=eps)
    if norm_type == "rms":
        return nn.RMSNorm(width, eps=eps)
    return nn.Identity()


@dataclass(frozen=True)
class FeedForward(Spec):
    """Position-wise feed-forward network (MLP), plain or gated.

    - `gelu`, `relu`: out(f(in(x))).
    - `swiglu`, `geglu`: out(f(gate(x)) * in(x)), Shazeer (2020), https://arxiv.org/abs/2002.05202; f is SiLU or GELU.
      One linear layer computes gate and value.

    The intermediate size is `expansion` x width, rounded to the nearest integer or with `rounding="down"` down:
    for swiglu with expansion=8/3 and a width of 64, 171 or 170. `intermediate_size` sets it directly.
    """

    activation: Literal["gelu", "relu", "swiglu", "geglu"] = setting("gelu", "activation; swiglu and geglu are gated")
    expansion: float = setting(4.0, "intermediate size over hidden size", above=0)
    bias: bool = setting(True, "whether the linear layers have biases")
    intermediate_size: int | None = setting(None, "intermediate size itself; null: by expansion", at_least=1)
    rounding: Literal["nearest", "down"] = setting(
        "nearest", "rounding of the intermediate size if expansion does not give an integer"
    )
    gelu_approximate: Literal["none", "tanh"] = setting(
        "none", "GELU in gelu and geglu: exact (none), or approximated by tanh (tanh)"
    )

    def resolve_intermediate_size(self, width: int) -> int:
        """The intermediate size in a model of this width."""
        size = floor(width * self.expansion) if self.rounding == "down" else round(width * self.expansion)
        return max(1, size) if self.intermediate_size is None else self.intermediate_size

    def build(self, width: int, in_features: int | None = None) -> "FeedForwardModule":
        """The module for a model of this width; `in_features` is the input width where it differs."""
        return FeedForwardModule(self, width, in_features or width)


class FeedForwardModule(nn.Module):
    """The module of `FeedForward`."""

    def __init__(self, spec: FeedForward, width: int, in_features: int) -> None:
        super().__init__()
        self.is_gated, size = spec.activation in ("swiglu", "geglu"), spec.resolve_intermediate_size(width)
        gelu_function = partial(gelu, approximate="tanh") if spec.gelu_approximate == "tanh" else gelu
        activations: dict[str, Callable[[Tensor], Tensor]] = {
            "gelu": gelu_function,
            "relu": relu,
            "swiglu": silu,
            "geglu": gelu_function,
        }
        self.activation = activations[spec.activation]
        self.in_proj = nn.Linear(in_features, size * (2 if self.is_gated else 1), bias=spec.bias)
        self.out_proj = nn.Linear(size, width, bias=spec.bias)

    def forward(self, x: Float[Tensor, "rows time reads"]) -> Float[Tensor, "rows time width"]:
        hidden = self.in_proj(x)
        if self.is_gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * value
        else:
            hidden = self.activation(hidden)
        output: Tensor = self.out_proj(hidden)
        return output

    def flops(self, time: int) -> int:
        return 2 * time * (self.in_proj.weight.numel() + self.out_proj.weight.numel())


class Block(nn.Module):
    """Mixer and feed-forward, each added to the residual stream; each may be None.

    Pre-norm: x + f(norm(x)), Xiong et al. (2020), https://arxiv.org/abs/2002.04745. Post-norm: norm(x + f(x)), as in
    Vaswani et al. (2017). Without `residual` there are no residual connections.

    `dropout` is on each residual branch; `mixer_dropout` on the mixer's output, before that. With
    `dropout_on="residual_stream"` dropout is only on the stream after the mixer and its norm.
    """

    def __init__(
        self,
        width: int,
        mixer: TokenMixer | None,
        feed_forward: FeedForwardModule | None,
        *,
        norm: NormType = "layer",
        norm_first: bool = True,
        dropout: float = 0.0,
        norm_eps: float = 1e-5,
        residual: bool = True,
        mixer_dropout: float = 0.0,
        dropout_on: DropoutLocation = "branch",
    ) -> None:
        super().__init__()
        self.norm_first, self.residual, self.dropout_on = norm_first, residual, dropout_on
        self.mixer, self.feed_forward = mixer, feed_forward
        self.mixer_norm = build_norm(norm, width, norm_eps) if mixer is not None else None
        self.feed_forward_norm = build_norm(norm, width, norm_eps) if feed_forward is not None else None
        self.dropout, self.mixer_dropout = nn.Dropout(dropout), nn.Dropout(mixer_dropout)

    def forward(
        self,
        x: Float[Tensor, "rows time width"],
        context: Context,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Float[Tensor, "rows positions width"]:
        """With `target_positions`, only those positions are returned, and the work for others is skipped."""
        context.residual = x
        if self.mixer is not None and self.mixer_norm is not None:
            mixer_input = self.mixer_norm(x) if self.norm_first else x
            if target_positions is None:
                mixer_output = self.mixer(mixer_input, context)
            else:
                x, mixer_output = (
                    gather_positions(x, target_positions),
                    self.mixer.forward_at(mixer_input, context, target_positions),
                )
            x = self._add_mixer_output(x, mixer_output, self.mixer_norm)
        elif target_positions is not None:
            x = gather_positions(x, target_positions)
        return self._apply_feed_forward(x)

    def prefill(self, x: Tensor, context: Context) -> tuple[Tensor, Any]:
        state, context.residual = None, x
        if self.mixer is not None and self.mixer_norm is not None:
            mixer_output, state = self.mixer.prefill(self.mixer_norm(x) if self.norm_first else x, context)
            x = self._add_mixer_output(x, mixer_output, self.mixer_norm)
        return self._apply_feed_forward(x), state

    def step(self, x: Tensor, context: Context, state: Any) -> tuple[Tensor, Any]:
        context.residual = x
        if self.mixer is not None and self.mixer_norm is not None:
            mixer_output, state = self.mixer.step(self.mixer_norm(x) if self.norm_first else x, context, state)
            x = self._add_mixer_output(x, mixer_output, self.mixer_norm)
        return self._apply_feed_forward(x), state

    def _apply_feed_forward(self, x: Tensor) -> Tensor:
        if self.feed_forward is None or self.feed_forward_norm is None:
            return x
        return self._add_residual(
            x, self.feed_forward(self.feed_forward_norm(x) if self.norm_first else x), self.feed_forward_norm
        )

    def _add_mixer_output(self, x: Tensor, mixer_output: Tensor, norm: nn.Module) -> Tensor:
        if not self.training:
            return self._add_residual(x, mixer_output, norm)
        x = self._add_residual(x, self.mixer_dropout(mixer_output), norm)
        output: Tensor = self.dropout(x) if self.dropout_on == "residual_stream" else x
        return output

    def _add_residual(self, x: Tensor, branch_output: Tensor, norm: nn.Module) -> Tensor:
        branch_output = self.dropout(branch_output) if self.training and self.dropout_on == "branch" else branch_output
        x = x + branch_output if self.residual else branch_output
        return x if self.norm_first else norm(x)

    def flops(self, time: int) -> int:
        """Floating-point operations of one forward pass over one row of this length."""
        return sum(part.flops(time) for part in (self.mixer, self.feed_forward) if part is not None)

    def output_projections(self) -> Sequence[nn.Linear]:
        """The linear layers whose outputs are added to the residual stream."""
        feed_forward_projections = (self.feed_forward.out_proj,) if self.feed_forward is not None else ()
        return (*(self.mixer.output_projections() if self.mixer is not None else ()), *feed_forward_projections)

    def packed_projections(self) -> Mapping[str, Sequence[str]]:
        """Linear layers that pack several projections, by name, with the components that an initialization may draw
        separately."""
        packed = (
            {f"mixer.{name}": makes for name, makes in self.mixer.packed_projections().items()}
            if self.mixer is not None
            else {}
        )
        if self.feed_forward is not None and self.feed_forward.is_gated:
            packed |= {"feed_forward.in_proj": ("gate", "gated"), "feed_forward.out_proj": ("fed",)}
        return packed

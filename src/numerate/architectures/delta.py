"""Linear recurrences that write by the delta rule: DeltaNet, Gated DeltaNet and DeltaProduct."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.backends import Kernel, refuse_other_kernels, takes_fla
from numerate.kernels.delta_rule import chunked, flops, recurrent
from numerate.kernels.token_shift import ShortConvolution, real
from numerate.mixers.mixer import Context, Mixer, TokenMixer, nothing_hidden
from numerate.positions.position import Position

Eigenvalues = Literal["[0,1]", "[-1,1]"]


@dataclass(frozen=True)
class _Delta(Mixer):
    """The settings that all three share. Values are as wide as keys."""

    num_heads: int = setting(4, "number of heads, each with its own state")
    head_dim: int | None = setting(None, "dimension of a head's keys and values; null: hidden_size / num_heads")
    eigenvalue_range: Eigenvalues = setting(
        "[0,1]", "eigenvalues of the state transition: beta up to 1, or up to 2 for [-1,1]"
    )
    conv_kernel: int | None = setting(4, "kernel size of the short convolutions; null: none")
    backend: Kernel = setting("auto", "torch, fla (flash-linear-attention, CUDA), or auto: the faster available one")

    def __post_init__(self) -> None:
        if self.num_heads < 1:
            raise UserError(f"num_heads: {self.num_heads} heads remember nothing; 1 or more is right")
        if self.head_dim is not None and self.head_dim < 1:
            raise UserError(f"head_dim: {self.head_dim} is no width; 1 or more is right, or null for width / heads")
        if self.eigenvalue_range not in get_args(Eigenvalues):
            raise UserError(
                f"eigenvalue_range: {self.eigenvalue_range!r} is none of: {', '.join(get_args(Eigenvalues))}"
            )
        if self.conv_kernel is not None and self.conv_kernel < 1:
            raise UserError(f"conv_kernel: {self.conv_kernel} taps see nothing; 1 or more is right, or null for none")
        refuse_other_kernels(self.backend)

    @abstractmethod
    def parts(self) -> tuple[int, bool]:
        """How many writes a token makes, and whether there are gates."""

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "DeltaMixer":
        if self.head_dim is None and width % self.num_heads:
            fitting = [heads for heads in range(1, width + 1) if width % heads == 0 and heads <= 4 * self.num_heads]
            raise UserError(
                f"model.mixer.num_heads: width {width} does not divide into {self.num_heads} heads; "
                f"{', '.join(map(str, fitting))} heads would do, or a head_dim"
            )
        steps, gated = self.parts()
        return DeltaMixer(self, width, self.head_dim or width // self.num_heads, steps, gated)

    def why_not_stacked(self) -> str | None:
        return "model.mixer.backend: torch.vmap has no rule for fla" if self.backend == "fla" else None


@dataclass(frozen=True)
class DeltaNet(_Delta):
    """DeltaNet: linear attention with the delta rule, which replaces the value at a key.

    Yang et al. (2024), https://arxiv.org/abs/2406.06484; the rule is that of Schlag et al. (2021),
    https://arxiv.org/abs/2102.11174. Queries, keys and values pass a short convolution and SiLU, queries and keys are
    then brought to length 1; what a head reads is normed (RMS) before the linear map back.

    With eigenvalue_range="[-1,1]" a token can turn a direction of the memory round, which parity needs and which no
    eigenvalue from 0 up can do (Grazzi et al., 2024, https://arxiv.org/abs/2411.12537).
    """

    def parts(self) -> tuple[int, bool]:
        return 1, False


@dataclass(frozen=True)
class GatedDeltaNet(_Delta):
    """Gated DeltaNet: DeltaNet with a token-dependent forget gate and a gated output.

    Yang et al. (2024), https://arxiv.org/abs/2412.06464. The gate of a head is exp(-exp(A) softplus(x W + b)), as in
    Mamba-2. Values are as wide as keys; the published models have values twice as wide (and keys of 3/4 the width).
    """

    def parts(self) -> tuple[int, bool]:
        return 1, True


@dataclass(frozen=True)
class DeltaProduct(_Delta):
    """DeltaProduct: DeltaNet with several writes per token; transitions are products of Householder matrices.

    Siems et al. (2025), https://arxiv.org/abs/2502.10297. Two reflections make a rotation: with num_householder=2 and
    eigenvalue_range="[-1,1]" a layer can count modulo any number, with one it can count modulo 2.
    """

    eigenvalue_range: Eigenvalues = setting(
        "[-1,1]", "eigenvalues of each factor of the transition: beta up to 1, or up to 2 for [-1,1]"
    )
    num_householder: int = setting(2, "Householder updates per token")
    gated: bool = setting(False, "whether state decay and output are gated, as in GatedDeltaNet")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_householder < 1:
            raise UserError(
                f"num_householder: a token that writes {self.num_householder} times writes nothing; 1 or more"
            )

    def parts(self) -> tuple[int, bool]:
        return self.num_householder, self.gated


@dataclass
class DeltaState:
    """Each head's memory (rows x heads x head width x head width) and the last inputs of the convolutions."""

    memory: Tensor
    inputs: Tensor | None


class DeltaMixer(TokenMixer):
    """One layer of any of the three. A token writes `steps` times.

    `inward` makes, one below the other, queries, then the keys of each write, the values of each write, and the
    output gate where there is one; `rates` makes the betas of each write and the memory's gates.
    """

    def __init__(self, spec: _Delta, width: int, head_width: int, steps: int, gated: bool) -> None:
        super().__init__()
        self.name, self.kernel = type(spec).__name__, spec.backend
        self.heads, self.head_width, self.steps, self.gated = spec.num_heads, head_width, steps, gated
        self.largest_beta = 2.0 if spec.eigenvalue_range == "[-1,1]" else 1.0
        inner = spec.num_heads * head_width
        self.inward = nn.Linear(width, (1 + 2 * steps + gated) * inner, bias=False)
        self.rates = nn.Linear(width, (steps + gated) * spec.num_heads, bias=False)
        channels = (1 + 2 * steps) * inner
        self.convolution = ShortConvolution(channels, spec.conv_kernel, biases=False) if spec.conv_kernel else None
        if gated:
            # As drawn in the published code (and in Mamba-2): rates up to 16, times from 0.001 to 0.1, log-uniformly.
            times = torch.exp(torch.empty(spec.num_heads).uniform_(math.log(0.001), math.log(0.1)))
            self.log_rate = nn.Parameter(torch.empty(spec.num_heads).uniform_(0.001, 16).log())
            self.time_bias = nn.Parameter(times + torch.log(-torch.expm1(-times)))  # softplus of it is the time
        self.norm = nn.RMSNorm(head_width, eps=1e-5)
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        nothing_hidden(context, self.name)
        mixing, gate = self._projected(x)
        betas, log_gates = self._rates(x)
        read, _ = self._read(self._convolved(mixing), betas, log_gates, keep=False)
        return self._written(read, gate)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, DeltaState]:
        nothing_hidden(context, self.name)
        mixing, gate = self._projected(x)
        betas, log_gates = self._rates(x)
        there = real(context.lengths, x.shape[1])[..., None]
        betas = betas * there.repeat_interleave(self.steps, dim=1)
        if log_gates is not None:
            log_gates = log_gates * there
        read, memory = self._read(self._convolved(mixing), betas, log_gates, keep=True)
        assert memory is not None
        inputs = None if self.convolution is None else self.convolution.state(mixing, context.lengths)
        return self._written(read, gate), DeltaState(memory, inputs)

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: DeltaState) -> tuple[Tensor, DeltaState]:
        mixing, gate = self._projected(x)
        betas, log_gates = self._rates(x)
        inputs = state.inputs
        if self.convolution is not None:
            assert inputs is not None
            mixing, inputs = self.convolution.step(mixing, inputs)
        with torch.autocast(x.device.type, enabled=False):
            read, memory = recurrent(*self._normed(silu(mixing)), betas, log_gates, state.memory)
        return self._written(read.to(x.dtype), gate), DeltaState(memory, inputs)

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What is mixed (queries, keys and values before the convolution), and the output gate."""
        projected = self.inward(x)
        if not self.gated:
            return projected, None
        inner = self.heads * self.head_width
        mixing, gate = projected.split([(1 + 2 * self.steps) * inner, inner], dim=2)
        return mixing, gate

    def _rates(
        self, x: Float[Tensor, "rows time width"]
    ) -> tuple[Float[Tensor, "rows writes heads"], Float[Tensor, "rows time heads"] | None]:
        """The betas of all writes, and the logarithms of the memory's gates, both at least in fp32."""
        rates = self.rates(x)
        rates = rates.float() if rates.element_size() < 4 else rates
        betas, fades = rates.split([self.steps * self.heads, self.gated * self.heads], dim=2)
        betas = self.largest_beta * betas.reshape(x.shape[0], -1, self.heads).sigmoid()
        return betas, -self.log_rate.exp() * softplus(fades + self.time_bias) if self.gated else None

    def _convolved(self, mixing: Tensor) -> Tensor:
        return silu(mixing if self.convolution is None else self.convolution(mixing))

    def _read(
        self, mixing: Tensor, betas: Tensor, log_gates: Tensor | None, keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        """What the heads read at each place (rows x time x heads x head width), and the memory behind the last one."""
        half_only = not (self.gated and self.steps == 1)
        if takes_fla(self.kernel, mixing, self.name, half_only=half_only):
            return self._read_by_fla(mixing, betas, log_gates, keep, half_only)
        with torch.autocast(mixing.device.type, enabled=False):
            read, memory = chunked(*self._normed(mixing), betas, log_gates)
        return read.to(mixing.dtype), memory

    def _read_by_fla(
        self, mixing: Tensor, betas: Tensor, log_gates: Tensor | None, keep: bool, half_only: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The kernels take rows x time x heads x width, bring queries and keys to length 1 and scale queries."""
        from fla.ops.delta_rule import chunk_delta_rule
        from fla.ops.gated_delta_product import chunk_gated_delta_product
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        dtype = mixing.dtype
        if half_only and mixing.element_size() == 4:
            mixing = mixing.bfloat16()
        queries, keys, values = (part.flatten(1, 2) for part in self._parts(mixing))
        more = {"output_final_state": keep, "use_qk_l2norm_in_kernel": True}
        if self.steps > 1:
            found = chunk_gated_delta_product(
                queries, keys, values, log_gates, betas.to(mixing.dtype), num_householder=self.steps, **more
            )
        elif self.gated:
            found = chunk_gated_delta_rule(queries, keys, values, log_gates, betas.to(mixing.dtype), **more)
        else:
            found = chunk_delta_rule(queries, keys, values, betas.to(mixing.dtype), **more)
        read, memory = found
        return read.to(dtype), memory

    def _normed(self, mixing: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as the delta rule takes them, at least in fp32: a token's writes in a row."""
        queries, keys, values = self._parts(mixing.float() if mixing.element_size() < 4 else mixing)
        queries, keys = _of_length(queries, self.head_width**-0.5), _of_length(keys, 1.0)
        return queries.flatten(1, 2), keys.flatten(1, 2), values.flatten(1, 2)

    def _parts(self, mixing: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: rows x time x writes (one of queries) x heads x head width."""
        rows, time, _ = mixing.shape
        parts = mixing.reshape(rows, time, 1 + 2 * self.steps, self.heads, self.head_width)
        queries, keys, values = torch.split(parts, [1, self.steps, self.steps], dim=2)
        return queries, keys, values

    def _written(self, read: Tensor, gate: Tensor | None) -> Tensor:
        normed = self.norm(read).flatten(2)
        out: Tensor = self.out(normed if gate is None else normed * silu(gate))
        return out

    def fused(self) -> Mapping[str, Sequence[str]]:
        writes = ["keys"] * self.steps + ["values"] * self.steps
        return {"inward": ("queries", *writes, *[""] * self.gated)}

    def claimed(self) -> set[str]:
        own = {"log_rate", "time_bias"} if self.gated else set()
        return own | ({"convolution.weight"} if self.convolution is not None else set())

    def settings_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {"log_rate": (1.0, False), "time_bias": (1.0, False)} if self.gated else {}

    def outward(self) -> Sequence[nn.Linear]:
        return (self.out,)

    def flops(self, time: int) -> int:
        maps = sum(part.weight.numel() for part in (self.inward, self.rates, self.out))
        taps = 0 if self.convolution is None else self.convolution.weight.numel()
        return 2 * time * (maps + taps) + self.heads * flops(time, self.steps, self.head_width, self.head_width)


def _of_length(x: Float[Tensor, "*places head_width"], length: float) -> Float[Tensor, "*places head_width"]:
    return x * (length * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6))

"""Linear recurrences with the delta rule: DeltaNet, Gated DeltaNet and DeltaProduct."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from numerate.config import setting
from numerate.kernels.backends import Backend, should_use_fla
from numerate.kernels.delta_rule import chunked_delta_rule, delta_rule_flops, recurrent_delta_rule
from numerate.kernels.token_shift import ShortConvolution, length_mask
from numerate.mixers.mixer import Context, Mixer, TokenMixer, check_divides, check_no_blocked_keys
from numerate.positions.position import Position

Eigenvalues = Literal["[0,1]", "[-1,1]"]


@dataclass(frozen=True)
class _DeltaBase(Mixer):
    """The settings that all three share. Values are as wide as keys."""

    num_heads: int = setting(4, "number of heads, each with its own state", at_least=1)
    head_dim: int | None = setting(
        None, "dimension of a head's keys and values; null: hidden_size / num_heads", at_least=1
    )
    eigenvalue_range: Eigenvalues = setting(
        "[0,1]", "eigenvalues of the state transition: beta up to 1, or up to 2 for [-1,1]"
    )
    conv_kernel: int | None = setting(4, "kernel size of the short convolutions; null: none", at_least=1)
    backend: Backend = setting("auto", "torch, fla (flash-linear-attention, CUDA), or auto: the faster available one")

    @abstractmethod
    def transition_settings(self) -> tuple[int, bool]:
        """The number of writes per token, and whether there are gates."""

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "DeltaMixer":
        if self.head_dim is None:
            check_divides("num_heads", self.num_heads, width, advice="; or set head_dim")
        num_householder, gated = self.transition_settings()
        return DeltaMixer(self, width, self.head_dim or width // self.num_heads, num_householder, gated)

    def why_not_stacked(self) -> str | None:
        return "model.mixer.backend: torch.vmap has no rule for fla" if self.backend == "fla" else None


@dataclass(frozen=True)
class DeltaNet(_DeltaBase):
    """DeltaNet: linear attention with the delta rule, which replaces the value at a key.

    Yang et al. (2024), https://arxiv.org/abs/2406.06484; the rule is that of Schlag et al. (2021),
    https://arxiv.org/abs/2102.11174. Queries, keys and values pass a short convolution and SiLU, queries and keys are
    then brought to length 1; what a head reads is normed (RMS) before the linear map back.

    With eigenvalue_range="[-1,1]" a token can reflect a direction of the state, which parity needs and which no
    eigenvalue from 0 up can do (Grazzi et al., 2024, https://arxiv.org/abs/2411.12537).
    """

    def transition_settings(self) -> tuple[int, bool]:
        return 1, False


@dataclass(frozen=True)
class GatedDeltaNet(_DeltaBase):
    """Gated DeltaNet: DeltaNet with a token-dependent forget gate and a gated output.

    Yang et al. (2024), https://arxiv.org/abs/2412.06464. The gate of a head is exp(-exp(A) softplus(x W + b)), as in
    Mamba-2. Values are as wide as keys; the published models have values twice as wide (and keys of 3/4 the width).
    """

    def transition_settings(self) -> tuple[int, bool]:
        return 1, True


@dataclass(frozen=True)
class DeltaProduct(_DeltaBase):
    """DeltaProduct: DeltaNet with several writes per token; transitions are products of Householder matrices.

    Siems et al. (2025), https://arxiv.org/abs/2502.10297. Two reflections make a rotation: with num_householder=2 and
    eigenvalue_range="[-1,1]" a layer can count modulo any number, with one it can count modulo 2.
    """

    eigenvalue_range: Eigenvalues = setting(
        "[-1,1]", "eigenvalues of each factor of the transition: beta up to 1, or up to 2 for [-1,1]"
    )
    num_householder: int = setting(2, "Householder updates per token", at_least=1)
    gated: bool = setting(False, "whether state decay and output are gated, as in GatedDeltaNet")

    def transition_settings(self) -> tuple[int, bool]:
        return self.num_householder, self.gated


@dataclass
class DeltaState:
    """Each head's memory (rows x heads x head width x head width) and the last inputs of the convolutions."""

    recurrent_state: Tensor
    conv_state: Tensor | None


class DeltaMixer(TokenMixer):
    """One layer of any of the three. A token writes `num_householder` times.

    `in_proj` packs queries, then the keys of each write, the values of each write, and the
    output gate if there is one; `ba_proj` makes the betas of each write and the memory's gates.
    """

    def __init__(self, spec: _DeltaBase, width: int, head_width: int, num_householder: int, gated: bool) -> None:
        super().__init__()
        self.mixer_name, self.backend = type(spec).__name__, spec.backend
        self.heads, self.head_width, self.num_householder, self.gated = (
            spec.num_heads,
            head_width,
            num_householder,
            gated,
        )
        self.max_beta = 2.0 if spec.eigenvalue_range == "[-1,1]" else 1.0
        inner_width = spec.num_heads * head_width
        self.in_proj = nn.Linear(width, (1 + 2 * num_householder + gated) * inner_width, bias=False)
        self.ba_proj = nn.Linear(width, (num_householder + gated) * spec.num_heads, bias=False)
        channels = (1 + 2 * num_householder) * inner_width
        self.conv1d = ShortConvolution(channels, spec.conv_kernel, biases=False) if spec.conv_kernel else None
        if gated:
            # As drawn in the published code (and in Mamba-2): rates up to 16, times from 0.001 to 0.1, log-uniformly.
            dt = torch.exp(torch.empty(spec.num_heads).uniform_(math.log(0.001), math.log(0.1)))
            self.A_log = nn.Parameter(torch.empty(spec.num_heads).uniform_(0.001, 16).log())
            self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # softplus of it is the time
        self.norm = nn.RMSNorm(head_width, eps=1e-5)
        self.out_proj = nn.Linear(inner_width, width, bias=False)

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        check_no_blocked_keys(context, self.mixer_name)
        qkv, gate = self._project(x)
        betas, log_gates = self._betas_and_log_gates(x)
        output, _ = self._delta_rule(self._convolve(qkv), betas, log_gates, output_final_state=False)
        return self._output(output, gate)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, DeltaState]:
        check_no_blocked_keys(context, self.mixer_name)
        qkv, gate = self._project(x)
        betas, log_gates = self._betas_and_log_gates(x)
        mask = length_mask(context.lengths, x.shape[1])[..., None]
        betas = betas * mask.repeat_interleave(self.num_householder, dim=1)
        if log_gates is not None:
            log_gates = log_gates * mask
        output, recurrent_state = self._delta_rule(self._convolve(qkv), betas, log_gates, output_final_state=True)
        assert recurrent_state is not None
        conv_state = None if self.conv1d is None else self.conv1d.state(qkv, context.lengths)
        return self._output(output, gate), DeltaState(recurrent_state, conv_state)

    def step(self, x: Float[Tensor, "rows 1 width"], context: Context, state: DeltaState) -> tuple[Tensor, DeltaState]:
        qkv, gate = self._project(x)
        betas, log_gates = self._betas_and_log_gates(x)
        conv_state = state.conv_state
        if self.conv1d is not None:
            assert conv_state is not None
            qkv, conv_state = self.conv1d.step(qkv, conv_state)
        with torch.autocast(x.device.type, enabled=False):
            output, recurrent_state = recurrent_delta_rule(
                *self._normalized_qkv(silu(qkv)), betas, log_gates, state.recurrent_state
            )
        return self._output(output.to(x.dtype), gate), DeltaState(recurrent_state, conv_state)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What is mixed (queries, keys and values before the convolution), and the output gate."""
        projected = self.in_proj(x)
        if not self.gated:
            return projected, None
        inner_width = self.heads * self.head_width
        qkv, gate = projected.split([(1 + 2 * self.num_householder) * inner_width, inner_width], dim=2)
        return qkv, gate

    def _betas_and_log_gates(
        self, x: Float[Tensor, "rows time width"]
    ) -> tuple[Float[Tensor, "rows writes heads"], Float[Tensor, "rows time heads"] | None]:
        """The betas of all writes, and the logarithms of the memory's gates, both at least in fp32."""
        projected = self.ba_proj(x)
        projected = projected.float() if projected.element_size() < 4 else projected
        betas, gate_logits = projected.split([self.num_householder * self.heads, self.gated * self.heads], dim=2)
        betas = self.max_beta * betas.reshape(x.shape[0], -1, self.heads).sigmoid()
        return betas, -self.A_log.exp() * softplus(gate_logits + self.dt_bias) if self.gated else None

    def _convolve(self, qkv: Tensor) -> Tensor:
        return silu(qkv if self.conv1d is None else self.conv1d(qkv))

    def _delta_rule(
        self, qkv: Tensor, betas: Tensor, log_gates: Tensor | None, output_final_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The outputs of the heads at each position (rows x time x heads x head width), and the final state."""
        requires_half_precision = not (self.gated and self.num_householder == 1)
        if should_use_fla(self.backend, qkv, self.mixer_name, requires_half_precision=requires_half_precision):
            return self._delta_rule_fla(qkv, betas, log_gates, output_final_state, requires_half_precision)
        with torch.autocast(qkv.device.type, enabled=False):
            output, recurrent_state = chunked_delta_rule(*self._normalized_qkv(qkv), betas, log_gates)
        return output.to(qkv.dtype), recurrent_state

    def _delta_rule_fla(
        self,
        qkv: Tensor,
        betas: Tensor,
        log_gates: Tensor | None,
        output_final_state: bool,
        requires_half_precision: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The kernels take rows x time x heads x width, bring queries and keys to length 1 and scale queries."""
        from fla.ops.delta_rule import chunk_delta_rule
        from fla.ops.gated_delta_product import chunk_gated_delta_product
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        dtype = qkv.dtype
        if requires_half_precision and qkv.element_size() == 4:
            qkv = qkv.bfloat16()
        queries, keys, values = (tensor.flatten(1, 2) for tensor in self._split_qkv(qkv))
        options = {"output_final_state": output_final_state, "use_qk_l2norm_in_kernel": True}
        if self.num_householder > 1:
            result = chunk_gated_delta_product(
                queries, keys, values, log_gates, betas.to(qkv.dtype), num_householder=self.num_householder, **options
            )
        elif self.gated:
            result = chunk_gated_delta_rule(queries, keys, values, log_gates, betas.to(qkv.dtype), **options)
        else:
            result = chunk_delta_rule(queries, keys, values, betas.to(qkv.dtype), **options)
        output, recurrent_state = result
        return output.to(dtype), recurrent_state

    def _normalized_qkv(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as the delta rule takes them, at least in fp32: a token's writes in a row."""
        queries, keys, values = self._split_qkv(qkv.float() if qkv.element_size() < 4 else qkv)
        queries, keys = _scale_to_norm(queries, self.head_width**-0.5), _scale_to_norm(keys, 1.0)
        return queries.flatten(1, 2), keys.flatten(1, 2), values.flatten(1, 2)

    def _split_qkv(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: rows x time x writes (one of queries) x heads x head width."""
        rows, time, _ = qkv.shape
        heads = qkv.reshape(rows, time, 1 + 2 * self.num_householder, self.heads, self.head_width)
        queries, keys, values = torch.split(heads, [1, self.num_householder, self.num_householder], dim=2)
        return queries, keys, values

    def _output(self, output: Tensor, gate: Tensor | None) -> Tensor:
        normed = self.norm(output).flatten(2)
        projected: Tensor = self.out_proj(normed if gate is None else normed * silu(gate))
        return projected

    def packed_projections(self) -> Mapping[str, Sequence[str]]:
        names = ["keys"] * self.num_householder + ["values"] * self.num_householder
        return {"in_proj": ("queries", *names, *[""] * self.gated)}

    def self_initialized_parameters(self) -> set[str]:
        names = {"A_log", "dt_bias"} if self.gated else set()
        return names | ({"conv1d.weight"} if self.conv1d is not None else set())

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {"A_log": (1.0, False), "dt_bias": (1.0, False)} if self.gated else {}

    def output_projections(self) -> Sequence[nn.Linear]:
        return (self.out_proj,)

    def flops(self, time: int) -> int:
        num_weights = sum(linear.weight.numel() for linear in (self.in_proj, self.ba_proj, self.out_proj))
        num_conv_weights = 0 if self.conv1d is None else self.conv1d.weight.numel()
        return 2 * time * (num_weights + num_conv_weights) + self.heads * delta_rule_flops(
            time, self.num_householder, self.head_width, self.head_width
        )


def _scale_to_norm(x: Float[Tensor, "*positions head_width"], norm: float) -> Float[Tensor, "*positions head_width"]:
    return x * (norm * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6))

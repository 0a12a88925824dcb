"""Linear recurrences with the delta rule: DeltaNet, Gated DeltaNet and DeltaProduct."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from numerate.architectures.mamba import initial_dt_bias
from numerate.config import setting
from numerate.kernels.backends import Backend, should_use_fla
from numerate.kernels.delta_rule import chunked_delta_rule, delta_rule_flops, recurrent_delta_rule
from numerate.kernels.token_shift import ShortConvolution, upcast, zero_padding
from numerate.mixers.mixer import Context, Mixer, check_divides
from numerate.mixers.recurrence import Recurrence
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


class DeltaMixer(Recurrence):
    """The module of all three. A token writes `num_householder` times.

    Its state: the window of the convolution, and each head's memory, rows x heads x head width x head width. `in_proj`
    packs queries, then the keys of each write, the values of each write, and the output gate if there is one; `ba_proj`
    makes the betas of each write and the memory's gates.
    """

    def __init__(self, spec: _DeltaBase, width: int, head_width: int, num_householder: int, gated: bool) -> None:
        super().__init__(spec)
        self.backend, self.heads, self.head_width = spec.backend, spec.num_heads, head_width
        self.num_householder, self.gated = num_householder, gated
        self.max_beta = 2.0 if spec.eigenvalue_range == "[-1,1]" else 1.0
        inner_width = spec.num_heads * head_width
        self.in_proj = nn.Linear(width, (1 + 2 * num_householder + gated) * inner_width, bias=False)
        self.ba_proj = nn.Linear(width, (num_householder + gated) * spec.num_heads, bias=False)
        channels = (1 + 2 * num_householder) * inner_width
        self.conv1d = ShortConvolution(channels, spec.conv_kernel, biases=False) if spec.conv_kernel else None
        if gated:
            dt_bias = initial_dt_bias(spec.num_heads)
            self.A_log = nn.Parameter(torch.empty(spec.num_heads).uniform_(0.001, 16).log())
            self.dt_bias = nn.Parameter(dt_bias)
        self.norm = nn.RMSNorm(head_width, eps=1e-5)
        self.out_proj = nn.Linear(inner_width, width, bias=False)

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        window, memory = state or (None, None)
        qkv, gate = self.in_proj(x), None
        if self.gated:
            inner_width = self.heads * self.head_width
            qkv, gate = qkv.split([(1 + 2 * self.num_householder) * inner_width, inner_width], dim=2)
        if self.conv1d is not None:
            qkv, window = self.conv1d.run(qkv, window, lengths)
        output, memory = self._delta_rule(silu(qkv), *self._betas_and_log_gates(x, lengths), memory)
        normed = self.norm(output).flatten(2)
        return self.out_proj(normed if gate is None else normed * silu(gate)), (window, memory)

    def _betas_and_log_gates(
        self, x: Float[Tensor, "rows time width"], lengths: Tensor | None
    ) -> tuple[Float[Tensor, "rows writes heads"], Float[Tensor, "rows time heads"] | None]:
        """The betas of all writes, and the logarithms of the memory's gates, both at least in fp32; 0 at padding."""
        logits = upcast(self.ba_proj(x))
        sizes = [self.num_householder * self.heads, self.gated * self.heads]
        logits, gate_logits = torch.split(logits, sizes, dim=2)
        betas = self.max_beta * logits.reshape(x.shape[0], -1, self.heads).sigmoid()
        betas = zero_padding(betas, None if lengths is None else self.num_householder * lengths)
        if not self.gated:
            return betas, None
        return betas, zero_padding(-self.A_log.exp() * softplus(gate_logits + self.dt_bias), lengths)

    def _delta_rule(
        self, qkv: Tensor, betas: Tensor, log_gates: Tensor | None, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The outputs of the heads at each position (rows x time x heads x head width), and the final memory."""
        needs_half = not (self.gated and self.num_householder == 1)
        if memory is None and should_use_fla(self.backend, qkv, self.mixer_name, requires_half_precision=needs_half):
            half = qkv.bfloat16() if needs_half and qkv.element_size() == 4 else qkv
            queries, keys, values = (part.flatten(1, 2) for part in self._split_qkv(half))
            output, memory = delta_rule_fla(queries, keys, values, betas, log_gates)
            return output.to(qkv.dtype), memory
        with torch.autocast(qkv.device.type, enabled=False):
            # Queries and keys are brought to length 1; a token's writes stand in a row.
            queries, keys, values = self._split_qkv(upcast(qkv))
            queries, keys = _scale_to_norm(queries, self.head_width**-0.5), _scale_to_norm(keys, 1.0)
            queries, keys, values = (part.flatten(1, 2) for part in (queries, keys, values))
            if memory is None:
                output, memory = chunked_delta_rule(queries, keys, values, betas, log_gates)
            else:
                output, memory = recurrent_delta_rule(queries, keys, values, betas, log_gates, memory)
        return output.to(qkv.dtype), memory

    def _split_qkv(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values: rows x time x writes (one of queries) x heads x head width."""
        heads = qkv.reshape(*qkv.shape[:2], 1 + 2 * self.num_householder, self.heads, self.head_width)
        return torch.split(heads, [1, self.num_householder, self.num_householder], dim=2)

    def packed_projections(self) -> Mapping[str, Sequence[str]]:
        names = ["keys"] * self.num_householder + ["values"] * self.num_householder
        return {"in_proj": ("queries", *names, *[""] * self.gated)}

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {"A_log": (1.0, False), "dt_bias": (1.0, False)} if self.gated else {}

    def flops(self, time: int) -> int:
        width = self.head_width
        return super().flops(time) + self.heads * delta_rule_flops(time, self.num_householder, width, width)


def _scale_to_norm(x: Float[Tensor, "*positions head_width"], norm: float) -> Float[Tensor, "*positions head_width"]:
    return x * (norm * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6))


def delta_rule_fla(
    queries: Float[Tensor, "rows time heads head_width"],
    keys: Float[Tensor, "rows writes heads head_width"],
    values: Float[Tensor, "rows writes heads head_width"],
    betas: Float[Tensor, "rows writes heads"],
    log_gates: Float[Tensor, "rows time heads"] | None,
) -> tuple[Tensor, Tensor]:
    """The delta rule by kernels of flash-linear-attention, which bring queries and keys to length 1 and scale queries:
    the outputs, and the final memory."""
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_product import chunk_gated_delta_product
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    betas, writes = betas.to(queries.dtype), keys.shape[1] // queries.shape[1]
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    if writes > 1:
        found = chunk_gated_delta_product(queries, keys, values, log_gates, betas, num_householder=writes, **options)
    elif log_gates is not None:
        found = chunk_gated_delta_rule(queries, keys, values, log_gates, betas, **options)
    else:
        found = chunk_delta_rule(queries, keys, values, betas, **options)
    output, memory = found
    return output, memory

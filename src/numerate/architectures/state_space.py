"""What state-space mixers share: HiPPO-LegS, kernels of diagonal recurrences, causal convolutions, the layer."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import dropout, gelu, glu, pad

from numerate.kernels.operators import as_operator
from numerate.kernels.token_shift import upcast
from numerate.mixers.mixer import Context, Mixer
from numerate.mixers.recurrence import Recurrence

Complex128 = NDArray[np.complex128]

CHUNK_SIZE = 32
"""Most tokens per chunk in a convolution by matrix products."""

FFT_MIN_LENGTH = 512
"""Rows longer than this are convolved by FFT."""


class NPLR(NamedTuple):
    """HiPPO-LegS in the basis in which its normal part is diagonal, one of each conjugate pair.

    A = V diag(eigenvalues) V* - P P^T with V = [basis, its conjugate]; `P` is basis* P, `B` is basis* B.
    """

    eigenvalues: Complex128
    P: Complex128
    B: Complex128
    basis: Complex128


def hippo_legs(states: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """HiPPO-LegS: the matrix A (states x states) and the vector B.

    Gu et al. (2020), https://arxiv.org/abs/2008.07669: A[n, k] is -root((2n + 1)(2k + 1)) below the diagonal, -(n + 1)
    on it, 0 above; B[n] is root(2n + 1). With 2 states A is [[-1, 0], [-1.732, -2]] and B [1, 1.732].
    """
    n = np.arange(states)
    roots = np.sqrt(2.0 * n + 1)
    return -np.tril(np.outer(roots, roots), -1) - np.diag(n + 1.0), roots


def nplr_legs(states: int) -> NPLR:
    """HiPPO-LegS as a normal matrix less one of rank 1: S4, section 3.2 and appendix C.1.

    With P[n] = root(n + 1/2), A + P P^T is -1/2 on the diagonal and skew-symmetric beside it; so its eigenvalues are
    -1/2 + i w, and its eigenvectors are orthogonal.
    """
    a, b = hippo_legs(states)
    p = np.sqrt(np.arange(states) + 0.5)
    skew = a + np.outer(p, p) + 0.5 * np.eye(states)
    frequencies, vectors = np.linalg.eigh(-1j * skew)
    basis = vectors[:, states // 2 :]
    P, B = (basis.conj().T @ part.astype(np.complex128) for part in (p, b))
    return NPLR(-0.5 + 1j * frequencies[states // 2 :], P, B, basis)


class ImpulseResponses(Function):
    """Impulse responses of diagonal recurrences: `Re sum_n weights[h, j, n] base[h, n]^l` at [h, j, l], with as many l
    as `times` has elements.

    The powers are made by doubling, in log2(time) products, outside the graph: the gradients are one product of
    matrices with the same powers.
    """

    @staticmethod
    def forward(weights: Tensor, base: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        powers = torch.view_as_real(complex_powers(base, len(times))).flatten(-2)
        return torch.view_as_real(weights.conj().resolve_conj()).flatten(-2) @ powers.mT, powers

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        weights, powers = ctx.saved_tensors
        given = gradients[0]
        kinds, time = given.shape[-2:]
        # The derivative of Re(w b^l) by b is w l b^(l-1): summed over l, a product with the powers one place earlier.
        earlier = pad(given * torch.arange(time, device=given.device, dtype=given.dtype), (-1, 1))
        both = torch.cat([given, earlier], dim=-2) @ powers
        found = as_complex(_split_pairs(both)).conj()
        return found[..., :kinds, :], (found[..., kinds:, :] * weights.conj()).sum(-2), None


def impulse_responses(
    weights: Complex[Tensor, "width kinds pairs"], base: Complex[Tensor, "width pairs"], time: int
) -> Float[Tensor, "width kinds time"]:
    """`ImpulseResponses`, without the powers that it keeps."""
    # As the length of a tensor: a graph for any length has no other number for it.
    return _apply_impulse_responses(weights, base, torch.empty(time, device=base.device))[0]  # type: ignore[no-any-return]


def complex_powers(base: Complex[Tensor, "*width pairs"], time: int) -> Complex[Tensor, "*width time pairs"]:
    """base^0 to base^(time - 1)."""
    found, factor = torch.ones_like(base)[..., None, :], base[..., None, :]
    while found.shape[-2] < time:
        found, factor = torch.cat([found, found * factor], dim=-2), factor * factor
    return found[..., :time, :].contiguous()


class Convolution(Function):
    """Causal convolutions of signals, width x time x rows, with each channel's kernel, width x time, by matrices.

    Time is cut into chunks of at most `CHUNK_SIZE`. One Toeplitz matrix, time x chunk, is what a chunk adds to itself
    and to all later ones; a later chunk uses the upper part of it.
    """

    @staticmethod
    def forward(kernel: Tensor, signal: Tensor) -> tuple[Tensor, Tensor]:
        time = kernel.shape[-1]
        pieces = -(-time // CHUNK_SIZE)
        size = -(-time // pieces)
        matrix = pad(kernel, (size - 1, 0)).unfold(-1, size, 1).flip(-1)
        out = matrix @ signal[..., :size, :]
        for first in range(size, time, size):
            out[..., first:, :] += matrix[..., : time - first, : time - first] @ signal[..., first : first + size, :]
        return out, matrix

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[1], output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        signal, matrix = ctx.saved_tensors
        given = gradients[0].contiguous()
        time, size = matrix.shape[-2:]
        to_matrix = given @ signal[..., :size, :].mT
        to_signal = [matrix.mT @ given]
        for first in range(size, time, size):
            left, later = time - first, given[..., first:, :]
            to_matrix[..., :left, :left] += later @ signal[..., first : first + size, :].mT
            to_signal.append(matrix[..., :left, :left].mT @ later)
        return _sum_diagonals(to_matrix), torch.cat(to_signal, dim=-2)


def _sum_diagonals(matrix: Float[Tensor, "width time piece"]) -> Float[Tensor, "width time"]:
    """At [h, l] the sum of all [h, i, j] with i - j = l.

    Square by square: rows written one after the other with as many zeros between them, then read in rows shorter by
    one, stand one further to the right each.
    """
    time, size = matrix.shape[-2:]
    pieces = -(-time // size)
    width = matrix.shape[:-2]
    squares = pad(matrix.flip(-1), (0, size, 0, pieces * size - time)).view(*width, pieces, 2 * size * size)
    sums = pad(squares[..., :-size].reshape(*width, pieces, size, 2 * size - 1).sum(-2), (0, 1))
    own, next_one = sums[..., :size].flatten(-2), sums[..., size:].flatten(-2)
    return (pad(own, (0, size)) + pad(next_one, (size, 0)))[..., size - 1 : size - 1 + time]


def causal_convolution(
    kernel: Float[Tensor, "width time"], signal: Float[Tensor, "width time rows"]
) -> Float[Tensor, "width time rows"]:
    """The causal convolution of signals with each channel's kernel: by matrices, very long ones by FFT."""
    if kernel.shape[-1] > FFT_MIN_LENGTH:
        return _fft_convolution(kernel[..., None], signal, dim=-2)
    return _apply_convolution(kernel, signal)[0]  # type: ignore[no-any-return]


def series_product(
    first: Float[Tensor, "width time"], second: Float[Tensor, "width time"]
) -> Float[Tensor, "width time"]:
    """The product of power series, cut at their length."""
    return _fft_convolution(first, second, dim=-1)


class SeriesQuotient(Function):
    """The power series above / (1 + beside), width x time each, cut at their length: what becomes of a signal `above`
    that is answered by minus `beside` of itself. above = 1 and beside = -z give 1, 1, 1 ...

    The first coefficients of r = 1 / (1 + beside) solve a triangular system; then each round of Newton's iteration,
    r <- r (2 - (1 + beside) r), doubles how many of them are correct.
    """

    @staticmethod
    def forward(above: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
        time = above.shape[-1]
        size = min(CHUNK_SIZE, time)
        one = torch.eye(size, dtype=above.dtype, device=above.device)
        matrix = one + pad(beside[..., :size], (size - 1, 0)).unfold(-1, size, 1).flip(-1)
        first = one[:, :1].expand(*above.shape[:-1], size, 1)
        reciprocal = torch.linalg.solve_triangular(matrix, first, upper=False)[..., 0]
        while (right := reciprocal.shape[-1]) < time:
            longer = pad(reciprocal, (0, min(right, time - right)))
            read = longer + series_product(beside[..., : longer.shape[-1]], longer)
            reciprocal = 2 * longer - series_product(longer, read)
        return series_product(reciprocal, above), reciprocal

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        answered, reciprocal = ctx.saved_tensors
        # What a product takes forwards in time, its gradient takes backwards.
        to_above = series_product(gradients[0].flip(-1), reciprocal)
        return to_above.flip(-1), -series_product(to_above, answered).flip(-1)


def series_quotient(
    numerator: Float[Tensor, "width time"], feedback: Float[Tensor, "width time"]
) -> Float[Tensor, "width time"]:
    """`SeriesQuotient`, without the reciprocal that it keeps. The first coefficient of `feedback` must not be -1."""
    return _apply_series_quotient(numerator, feedback)[0]  # type: ignore[no-any-return]


_apply_impulse_responses, _apply_convolution, _apply_series_quotient = map(
    as_operator, (ImpulseResponses, Convolution, SeriesQuotient)
)


def _fft_convolution(first: Tensor, second: Tensor, dim: int) -> Tensor:
    time = first.shape[dim]
    size = -(-2 * time // 16) * 16
    spectra = torch.fft.rfft(first, n=size, dim=dim) * torch.fft.rfft(second, n=size, dim=dim)
    whole: Tensor = torch.fft.irfft(spectra, n=size, dim=dim)
    return whole.narrow(dim, 0, time)


def _split_pairs(flat: Float[Tensor, "*shape twice"]) -> Float[Tensor, "*shape half 2"]:
    return flat.view(*flat.shape[:-1], flat.shape[-1] // 2, 2)


def as_complex(real: Float[Tensor, "*shape 2"]) -> Complex[Tensor, "*shape"]:
    """Complex numbers from real pairs, as which parameters and states are kept; in single precision at least."""
    return torch.view_as_complex(upcast(real))


def complex_parameter(values: Complex128, width: int) -> nn.Parameter:
    """A parameter of real pairs, width x count x 2, the same in each channel."""
    apart = torch.from_numpy(np.stack([values.real, values.imag], axis=-1)).to(torch.get_default_dtype())
    return nn.Parameter(apart.expand(width, -1, -1).clone())


class StateSpaceSpec(Mixer):
    """The spec of a state-space mixer."""

    dt_min: float
    dt_ratio: float
    learning_rate_factor: float
    dropout: float


class StateSpaceMixer(Recurrence):
    """One linear state-space model for each channel, a skip, GELU, and a linear map with a gate (GLU).

    The order of Gu et al. (2022), https://arxiv.org/abs/2111.00396, in the authors' code: y = kernel * u + skip u, then
    GLU(out(GELU(y))). In training `dropout` leaves out whole channels of a row, behind GELU and behind GLU, as their
    example of a model does (https://github.com/state-spaces/s4/blob/main/example.py).

    The state is rows x width x pairs x 2: one of each conjugate pair, as its real and imaginary part. Real parts of the
    eigenvalues are -exp(log_A_real), so that they stay negative whatever is learned.
    """

    def __init__(self, spec: StateSpaceSpec, width: int, eigenvalues: Complex128, **fixed: Complex128) -> None:
        """`fixed` are further complex parameters, initially the same in each channel."""
        super().__init__(spec)
        self.width, self.dropout, self.learning_rate_factor = width, spec.dropout, spec.learning_rate_factor
        self.D = nn.Parameter(torch.randn(width))
        self.out_proj = nn.Linear(width, 2 * width)
        real, imaginary = complex_parameter(eigenvalues, width).detach().unbind(-1)
        self.log_A_real, self.A_imag = nn.Parameter((-real).log()), nn.Parameter(imaginary.clone())
        for name, values in fixed.items():
            self.register_parameter(name, complex_parameter(values, width))
        self.C = nn.Parameter(torch.randn(width, len(eigenvalues), 2) * 0.5**0.5)  # complex standard normal
        # Step sizes are log-uniform.
        self.log_dt = nn.Parameter(math.log(spec.dt_min) + math.log(spec.dt_ratio) * torch.rand(width))

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        own = {name for name, _ in self.named_parameters(recurse=False)} - {"D"}
        return {name: (self.learning_rate_factor, name == "C") for name in own}

    def eigenvalues(self) -> Complex[Tensor, "width pairs"]:
        return torch.complex(-upcast(self.log_A_real).exp(), upcast(self.A_imag))

    @abstractmethod
    def kernel(self, time: int) -> Float[Tensor, "width time"]:
        """The impulse response of each channel."""

    @abstractmethod
    def final_states(
        self, signal: Float[Tensor, "width time rows"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows width pairs 2"]:
        """The state after the first `lengths` tokens of each row."""

    @abstractmethod
    def recurrent_step(
        self, u: Float[Tensor, "rows width"], state: Float[Tensor, "rows width pairs 2"]
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width pairs 2"]]:
        """The output of the recurrence for one more input, and the new state."""

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        if state is None:
            signal = upcast(x.permute(2, 1, 0).contiguous())
            if lengths is not None:
                with torch.autocast(x.device.type, enabled=False):
                    state = self.final_states(signal, lengths)
            y = self._convolve(signal).permute(2, 1, 0).contiguous()
        else:
            with torch.autocast(x.device.type, enabled=False):
                y, state = self.recurrent_step(x[:, 0].to(state.dtype), state)
            y = y[:, None]
        y = torch.addcmul(y, x, self.D).to(x.dtype)
        return self._channel_dropout(glu(self.out_proj(self._channel_dropout(gelu(y))))), state

    def _convolve(self, signal: Float[Tensor, "width time rows"]) -> Float[Tensor, "width time rows"]:
        with torch.autocast(signal.device.type, enabled=False):
            return causal_convolution(self.kernel(signal.shape[1]), signal)

    def _channel_dropout(self, y: Float[Tensor, "rows time width"]) -> Float[Tensor, "rows time width"]:
        if not self.training or self.dropout == 0.0:
            return y
        return y * dropout(y.new_ones(y.shape[0], 1, y.shape[2]), self.dropout)

    def output_projections(self) -> Sequence[nn.Linear]:
        """None: what `out_proj` makes is gated before it is added to the residual stream."""
        return ()

    def packed_projections(self) -> dict[str, tuple[str, ...]]:
        return {"out_proj": ("values", "gates")}

    def flops(self, time: int) -> int:
        """The convolution as the triangle that it is, and the linear map; the kernel is computed once for all rows."""
        return self.width * time * (time + 1) + 2 * time * self.out_proj.weight.numel()


def reverse_rows(
    signal: Float[Tensor, "width time rows"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "width time rows"]:
    """Each row reversed from its last real entry, with zeros after its first one."""
    width, time, rows = signal.shape
    places = lengths - 1 - torch.arange(time, device=signal.device)[:, None]
    turned = signal.gather(1, places.clamp(min=0).expand(width, time, rows))
    return turned.masked_fill(places < 0, 0)


def weighted_sums(
    powers: Complex[Tensor, "width time pairs"], signal: Float[Tensor, "width time rows"]
) -> Complex[Tensor, "rows width pairs"]:
    """Sums over time of signals, latest first, times the powers."""
    sums = torch.view_as_real(powers).flatten(-2).mT @ signal
    return as_complex(_split_pairs(sums.permute(2, 0, 1).contiguous()))

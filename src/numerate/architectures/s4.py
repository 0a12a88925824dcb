"""S4: a linear state-space model per channel, whose matrix is normal plus one of rank 1."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from numerate.architectures.state_space import (
    StateSpaceMixer,
    StateSpaceSpec,
    as_complex,
    causal_convolution,
    complex_powers,
    impulse_responses,
    nplr_legs,
    reverse_rows,
    series_product,
    series_quotient,
    weighted_sums,
)
from numerate.config import setting
from numerate.kernels.token_shift import upcast
from numerate.positions.position import Position


@dataclass(frozen=True)
class S4(StateSpaceSpec):
    """Structured state spaces (S4): HiPPO-LegS, diagonal plus rank 1, bilinear.

    Gu et al. (2022), https://arxiv.org/abs/2111.00396.

    Each channel has a state-space model of its own, x' = A x + B u, y = C x, with A = diag(eigenvalues) - P P*, which
    starts as HiPPO-LegS. A state of 64 is 32 conjugate pairs, whose other halves are never computed. Real parts of the
    eigenvalues are -exp(log_A_real), so that A stays in the left half plane whatever is learned. Step sizes start
    log-uniform, C complex normal, the skip normal.

    A, B, P and the step sizes learn at `learning_rate_factor` times the learning rate and do not decay, C learns at
    `learning_rate_factor` times it and decays: at a learning rate of 0.01 the default is the authors' 0.001.

    Unlike in the authors' code, C is the C of the recurrence at every length: theirs has a factor for the length of the
    first rows. With 103 tokens, a model of one layer has the published 92,672 weights:

    >>> from numerate.models import Decoder, Stack
    >>> from numerate.vocabulary import Vocabulary
    >>> spec = Decoder(backbone=Stack(num_layers=1), mixer=S4(dropout=0.1), feed_forward=None, final_norm=False)
    >>> model = spec.build(Vocabulary.from_words([str(number) for number in range(99)]), seed=0)
    >>> sum(parameter.numel() for parameter in model.parameters())
    92672
    """

    state_pairs: int = setting(32, "conjugate pairs of states per channel; 32 are a state size of 64", at_least=1)
    dt_min: float = setting(0.001, "smallest initial step size", above=0)
    dt_ratio: float = setting(100.0, "largest over smallest initial step size", at_least=1)
    learning_rate_factor: float = setting(0.1, "learning rate factor of the state space parameters", at_least=0)
    dropout: float = setting(0.0, "dropout of channels; published: 0.1", at_least=0, below=1)

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "S4Mixer":
        return S4Mixer(self, width)


class S4Mixer(StateSpaceMixer):
    """The module of `S4`.

    The bilinear rule x_t - x_(t-1) = step A (x_t + x_(t-1))/2 + step B u_t with A = diag(e) - P P* is a diagonal
    recurrence that reads B u_t - P f_t, where f_t = P*(x_t + x_(t-1))/2 is one number. With the impulse responses cb,
    cp, pb and pp of that diagonal recurrence (read through C or P*, fed by B or P), and m = (1 + z)/2 as a power
    series, f = m pb u / (1 + m pp), and the kernel is cb - cp m pb / (1 + m pp). All are power series cut at the length
    of the rows, so that the kernel is exact: nothing is folded back as with a generating function at roots of unity.
    (1 + m pp has a real part of 1 or more in the unit disc: the division magnifies no error.)
    """

    P: Tensor
    B: Tensor

    def __init__(self, spec: S4, width: int) -> None:
        found = nplr_legs(2 * spec.state_pairs)
        super().__init__(spec, width, found.eigenvalues, P=found.P, B=found.B)

    def kernel(self, time: int) -> Float[Tensor, "width time"]:
        base, fed, P = self._discretize()
        read = torch.stack([as_complex(self.C), P.conj()], dim=-2)
        # Twice the real part of one of each conjugate pair is the sum over both.
        weights = (2 * read[..., :, None, :] * fed[..., None, :, :]).flatten(-3, -2)
        kernels = impulse_responses(weights, base, time)
        return kernels[..., 0, :] - series_product(kernels[..., 1, :], _feedback_response(kernels[..., 2:, :]))

    def final_states(
        self, signal: Float[Tensor, "width time rows"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows width pairs 2"]:
        base, fed, P = self._discretize()
        weights = 2 * P.conj()[..., None, :] * fed
        loop = causal_convolution(_feedback_response(impulse_responses(weights, base, signal.shape[1])), signal)
        powers = complex_powers(base, signal.shape[1])
        through_b, through_p = (weighted_sums(powers, reverse_rows(part, lengths)) for part in (signal, loop))
        return torch.view_as_real(fed[:, 0] * through_b - fed[:, 1] * through_p)

    def recurrent_step(
        self, u: Float[Tensor, "rows width"], state: Float[Tensor, "rows width pairs 2"]
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width pairs 2"]]:
        """(1 - step/2 A) x_t = (1 + step/2 A) x_(t-1) + step B u_t, solved by Woodbury's identity."""
        x, P, step = as_complex(state), as_complex(self.P), upcast(self.log_dt).exp()[:, None]
        half = step / 2 * self.eigenvalues()
        seen = _read_state(P.conj(), x)
        right = (1 + half) * x - step / 2 * P * seen + step * as_complex(self.B) * u[..., None]
        right, turned = right / (1 - half), P / (1 - half)
        loop = 1 + step / 2 * _read_state(P.conj(), turned)
        after = right - step / 2 * turned * _read_state(P.conj(), right) / loop
        return _read_state(as_complex(self.C), after)[..., 0], torch.view_as_real(after)

    def _discretize(self) -> tuple[Tensor, Tensor, Tensor]:
        """The diagonal recurrence of the bilinear rule: its factors (width x pairs), what feeds it (width x 2 x
        pairs, B and P), and P."""
        step, P = upcast(self.log_dt).exp()[:, None], as_complex(self.P)
        inverse = (1 - 0.5 * step * self.eigenvalues()).reciprocal()
        fed = (step * inverse)[..., None, :] * torch.stack([as_complex(self.B), P], dim=-2)
        return 2 * inverse - 1, fed, P


def _read_state(reader: Complex[Tensor, "*reader pairs"], x: Complex[Tensor, "*x pairs"]) -> Tensor:
    """What a row vector reads off a state given by one of each conjugate pair: real, with a last dimension of 1."""
    return 2 * (reader * x).real.sum(-1, keepdim=True)


def _feedback_response(kernels: Float[Tensor, "width 2 time"]) -> Float[Tensor, "width time"]:
    """From pb and pp the power series m pb / (1 + m pp), m = (1 + z)/2."""
    above, beside = (0.5 * (kernels + pad(kernels, (1, -1)))).unbind(-2)
    return series_quotient(above, beside)

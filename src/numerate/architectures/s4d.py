"""S4D: a diagonal linear state-space model per channel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from numerate.architectures.state_space import (
    StateSpaceMixer,
    StateSpaceSpec,
    as_complex,
    complex_powers,
    impulse_responses,
    nplr_legs,
    reverse_rows,
    weighted_sums,
)
from numerate.config import setting
from numerate.kernels.token_shift import upcast
from numerate.positions.position import Position


@dataclass(frozen=True)
class S4D(StateSpaceSpec):
    """Diagonal state spaces (S4D): S4 without its correction of rank 1.

    Gu et al. (2022), https://arxiv.org/abs/2206.11893.

    `initialization` says where they start, with n from 0 and N = 2 `state_pairs` states (section 4):

    - `lin`: -1/2 + i pi n;
    - `inv`: -1/2 + i N/pi (N/(2n + 1) - 1);
    - `legs`: those of the normal part of HiPPO-LegS, which `inv` comes near to.

    Real parts are -exp(log_A_real), so that they stay negative. B is 1 (only its product with C matters); C starts
    complex normal, step sizes log-uniform, the skip normal. `discretization` makes the recurrence discrete:
    `zoh` holds each input for a step (factor exp(step e)), `bilinear` is (1 + step e/2)/(1 - step e/2).

    Learning rates and decay are those of `S4`; so is the layer around it.
    """

    state_pairs: int = setting(32, "conjugate pairs of states per channel; 32 are a state size of 64", at_least=1)
    initialization: Literal["lin", "inv", "legs"] = setting("legs", "initialization of the eigenvalues")
    discretization: Literal["zoh", "bilinear"] = setting("zoh", "discretization: zero-order hold or bilinear")
    dt_min: float = setting(0.001, "smallest initial step size", above=0)
    dt_ratio: float = setting(100.0, "largest over smallest initial step size", at_least=1)
    learning_rate_factor: float = setting(0.1, "learning rate factor of the state space parameters", at_least=0)
    dropout: float = setting(0.0, "dropout of channels", at_least=0, below=1)

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "S4DMixer":
        return S4DMixer(self, width)


class S4DMixer(StateSpaceMixer):
    """The module of `S4D`."""

    def __init__(self, spec: S4D, width: int) -> None:
        super().__init__(spec, width, _initial_eigenvalues(spec.initialization, spec.state_pairs))
        self.discretization = spec.discretization

    def kernel(self, time: int) -> Float[Tensor, "width time"]:
        base, fed = self._discretize()
        return impulse_responses((2 * as_complex(self.C) * fed)[..., None, :], base, time)[..., 0, :]

    def final_states(
        self, signal: Float[Tensor, "width time rows"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows width pairs 2"]:
        base, fed = self._discretize()
        powers = complex_powers(base, signal.shape[1])
        return torch.view_as_real(fed * weighted_sums(powers, reverse_rows(signal, lengths)))

    def recurrent_step(
        self, u: Float[Tensor, "rows width"], state: Float[Tensor, "rows width pairs 2"]
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width pairs 2"]]:
        base, fed = self._discretize()
        after = base * as_complex(state) + fed * u[..., None]
        return 2 * (as_complex(self.C) * after).real.sum(-1), torch.view_as_real(after)

    def _discretize(self) -> tuple[Tensor, Tensor]:
        """The factors of the discrete recurrence and what an input of 1 adds to it, width x pairs each."""
        eigenvalues = self.eigenvalues()
        step = upcast(self.log_dt).exp()[:, None]
        if self.discretization == "zoh":
            base = (step * eigenvalues).exp()
            return base, (base - 1) / eigenvalues
        inverse = (1 - 0.5 * step * eigenvalues).reciprocal()
        return 2 * inverse - 1, step * inverse


def _initial_eigenvalues(name: str, pairs: int) -> NDArray[np.complex128]:
    n: NDArray[np.complex128] = np.arange(pairs).astype(np.complex128)
    if name == "lin":
        return -0.5 + 1j * np.pi * n
    if name == "inv":
        inverse: NDArray[np.complex128] = -0.5 + 2j * pairs / np.pi * (2 * pairs / (2 * n + 1) - 1)
        return inverse
    return nplr_legs(2 * pairs).eigenvalues

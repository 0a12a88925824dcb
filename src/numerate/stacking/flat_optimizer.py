"""The weights of several models as one matrix, and one step of their optimisers on it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adamw import adamw

from numerate.errors import UserError
from numerate.training.optimizer import AdamW


@dataclass
class _Run:
    """Adjacent parameters of one model with the same settings, as one vector. `count` is their number of steps."""

    factor: float
    decays: bool
    weights: Tensor
    gradients: Tensor
    means: Tensor
    squares: Tensor
    count: Tensor
    others: Tensor


class Flat:
    """The trainable weights of models of one shape: members x weights, and so their gradients and their moments.

    The parameters of each model, and the state of its optimiser, become views of it, so that evaluating or saving a
    model uses these values. Parameters stand in the order of their settings (factor of the rate, whether they decay),
    so that a step of AdamW is one call on a few long vectors. Raises `UserError` for parameters of several types or
    devices.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        settings: Mapping[str, tuple[float, bool]],
    ) -> None:
        named = [(name, p) for name, p in models[0].named_parameters() if p.requires_grad]
        named.sort(key=lambda one: settings[one[0]])
        self.names = [name for name, _ in named]
        self.settings = [settings[name] for name in self.names]
        self.shapes = [p.shape for _, p in named]
        ends = torch.tensor([0, *(p.numel() for _, p in named)]).cumsum(0).tolist()
        self.spans = list(itertools.pairwise(ends))
        every = [dict(model.named_parameters()) for model in models]
        self.parameters = [[own[name] for name in self.names] for own in every]
        self.optimizers = optimizers
        if len({(p.dtype, p.device) for own in self.parameters for p in own}) > 1:
            raise UserError("stack: the parameters are of several types, or on several devices")
        with torch.no_grad():
            self.weights = torch.stack([torch.cat([p.detach().flatten() for p in own]) for own in self.parameters])
        self.gradients, self.means, self.squares = (torch.zeros_like(self.weights) for _ in range(3))
        self.counts = torch.zeros(len(models), len(named), device=self.weights.device)
        for member, own in enumerate(self.parameters):
            for at, (parameter, (start, end)) in enumerate(zip(own, self.spans, strict=True)):
                parameter.data = self.weights[member, start:end].view(parameter.shape)
                if state := optimizers[member].state.get(parameter):
                    self.means[member, start:end] = state["exp_avg"].flatten()
                    self.squares[member, start:end] = state["exp_avg_sq"].flatten()
                    self.counts[member, at] = state["step"]
        self._used: list[tuple[bool, ...]] = [() for _ in models]
        self._runs: list[list[_Run]] = [[] for _ in models]
        self._leaves: dict[str, Tensor] = {}

    def leaves(self, members: Sequence[int]) -> dict[str, Tensor]:
        """The weights of some members by name, each members x its shape, to be differentiated by."""
        if len(members) < len(self.weights):
            return self._cut(self.weights[list(members)])
        self._leaves = self._leaves or self._cut(self.weights)
        return self._leaves

    def take(self, members: Sequence[int], gradients: Sequence[Tensor | None]) -> None:
        """Takes the gradients of some members, in the order of `leaves`; None for parameters that had no part."""
        count = len(members)
        parts = [
            self.weights.new_zeros(count, end - start) if gradient is None else gradient.reshape(count, -1)
            for gradient, (start, end) in zip(gradients, self.spans, strict=True)
        ]
        if count == len(self.weights):
            torch.cat(parts, dim=1, out=self.gradients)
        else:
            self.gradients[list(members)] = torch.cat(parts, dim=1)
        used = tuple(gradient is not None for gradient in gradients)
        for member in members:
            if self._used[member] != used:
                self._arrange(member, used)

    def clip(self, most: Float[Tensor, " members"]) -> Float[Tensor, " members"]:
        """Scales each member's gradient down to the norm `most` (infinite: any); returns the norms before."""
        norms: Tensor = torch.linalg.vector_norm(self.gradients, dim=1)
        self.gradients.mul_((most / (norms + 1e-6)).clamp(max=1.0)[:, None])
        return norms

    def step(self, optimizers: Sequence[AdamW], rates: Sequence[float]) -> None:
        """A step of each member's AdamW at its own learning rate."""
        alike: dict[tuple[float, float, tuple[float, float], float], list[_Run]] = {}
        for spec, rate, runs in zip(optimizers, rates, self._runs, strict=True):
            for run in runs:
                decay = spec.weight_decay if run.decays else 0.0
                alike.setdefault((rate * run.factor, decay, spec.betas, spec.eps), []).append(run)
        with torch.no_grad():
            for (rate, decay, betas, epsilon), runs in alike.items():
                adamw(
                    [run.weights for run in runs],
                    [run.gradients for run in runs],
                    [run.means for run in runs],
                    [run.squares for run in runs],
                    [],
                    [run.count for run in runs],
                    fused=True,
                    amsgrad=False,
                    beta1=betas[0],
                    beta2=betas[1],
                    lr=rate,
                    weight_decay=decay,
                    eps=epsilon,
                    maximize=False,
                )

    def settle(self) -> None:
        """Brings the states of the optimisers up to date."""
        for runs in self._runs:
            for run in runs:
                run.others.fill_(run.count)

    def release(self, member: int) -> None:
        """Gives a model's parameters, and the state of its optimiser, memory of their own."""
        state = self.optimizers[member].state
        for parameter in self.parameters[member]:
            parameter.data = parameter.data.clone()
            for name, value in state.get(parameter, {}).items():
                state[parameter][name] = value.clone()

    def _cut(self, weights: Tensor) -> dict[str, Tensor]:
        return {
            name: weights[:, start:end].view(len(weights), *shape).detach().requires_grad_()
            for name, (start, end), shape in zip(self.names, self.spans, self.shapes, strict=True)
        }

    def _arrange(self, member: int, used: tuple[bool, ...]) -> None:
        """Cuts a member's weights into runs, which leave out what had no part in its gradient: such a parameter is not
        stepped, and does not decay."""
        self.settle()
        counts = self.counts[member].tolist()
        kinds = [(*self.settings[at], counts[at]) if used[at] else None for at in range(len(used))]
        self._used[member], self._runs[member], first = used, [], 0
        for at in range(1, len(kinds) + 1):
            if at < len(kinds) and kinds[at] == kinds[first]:
                continue
            if (kind := kinds[first]) is not None:
                own = slice(self.spans[first][0], self.spans[at - 1][1])
                run = _Run(
                    factor=kind[0],
                    decays=kind[1],
                    weights=self.weights[member, own],
                    gradients=self.gradients[member, own],
                    means=self.means[member, own],
                    squares=self.squares[member, own],
                    count=self.counts[member, first],
                    others=self.counts[member, first + 1 : at],
                )
                self._runs[member].append(run)
            first = at
        state = self.optimizers[member].state
        for at, (parameter, (start, end)) in enumerate(zip(self.parameters[member], self.spans, strict=True)):
            if used[at]:
                state[parameter] = {
                    "step": self.counts[member, at],
                    "exp_avg": self.means[member, start:end].view(parameter.shape),
                    "exp_avg_sq": self.squares[member, start:end].view(parameter.shape),
                }

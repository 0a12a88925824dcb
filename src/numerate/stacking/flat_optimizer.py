"""The weights of several models as one matrix, and joint optimizer steps."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adamw import adamw

from numerate.batch import to_device
from numerate.errors import UserError
from numerate.training.optimizer import AdamW


@dataclass
class _ParameterGroup:
    """Adjacent parameters of one model with the same settings, as one vector. `step_count` is their number of steps."""

    lr_factor: float
    has_weight_decay: bool
    weights: Tensor
    gradients: Tensor
    exp_avgs: Tensor
    exp_avg_sqs: Tensor
    step_count: Tensor
    other_step_counts: Tensor


class FlatParameters:
    """The trainable weights of models of one shape: members x weights, and so their gradients and their moments.

    The parameters of each model, and the state of its optimizer, become views of it, so that evaluating or saving a
    model uses these values. Parameters are sorted by their options (learning rate factor, weight decay),
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
        self.parameter_options = [settings[name] for name in self.names]
        self.shapes = [p.shape for _, p in named]
        ends = torch.tensor([0, *(p.numel() for _, p in named)]).cumsum(0).tolist()
        self.spans = list(itertools.pairwise(ends))
        parameters_by_name = [dict(model.named_parameters()) for model in models]
        self.parameters = [[member_parameters[name] for name in self.names] for member_parameters in parameters_by_name]
        self.optimizers = optimizers
        if len({(p.dtype, p.device) for own in self.parameters for p in own}) > 1:
            raise UserError("stack: the parameters are of several types, or on several devices")
        with torch.no_grad():
            self.weights = torch.stack([torch.cat([p.detach().flatten() for p in own]) for own in self.parameters])
        self.gradients, self.exp_avgs, self.exp_avg_sqs = (torch.zeros_like(self.weights) for _ in range(3))
        self.step_counts = torch.zeros(len(models), len(named), device=self.weights.device)
        for member, own in enumerate(self.parameters):
            for index, (parameter, (start, end)) in enumerate(zip(own, self.spans, strict=True)):
                parameter.data = self.weights[member, start:end].view(parameter.shape)
                if state := optimizers[member].state.get(parameter):
                    self.exp_avgs[member, start:end] = state["exp_avg"].flatten()
                    self.exp_avg_sqs[member, start:end] = state["exp_avg_sq"].flatten()
                    self.step_counts[member, index] = state["step"]
        self._has_gradient: list[tuple[bool, ...]] = [() for _ in models]
        self._groups: list[list[_ParameterGroup]] = [[] for _ in models]
        self._leaf_weights: dict[str, Tensor] = {}

    def member_index(self, members: Sequence[int]) -> "slice | Tensor":
        """The index of some members: a slice if it is all of them, else a tensor, which a device does not wait for."""
        if len(members) == len(self.weights):
            return slice(None)
        return to_device(torch.tensor(members), self.weights.device)

    def leaf_weights(self, members: Sequence[int]) -> dict[str, Tensor]:
        """The weights of some members by name, each members x its shape, to be differentiated by."""
        if len(members) < len(self.weights):
            return self._split_by_parameter(self.weights[self.member_index(members)])
        self._leaf_weights = self._leaf_weights or self._split_by_parameter(self.weights)
        return self._leaf_weights

    def set_gradients(self, members: Sequence[int], gradients: Sequence[Tensor | None]) -> None:
        """Takes the gradients of some members, in the order of `leaf_weights`; None for unused parameters."""
        count = len(members)
        parts = [
            self.weights.new_zeros(count, end - start) if gradient is None else gradient.reshape(count, -1)
            for gradient, (start, end) in zip(gradients, self.spans, strict=True)
        ]
        if count == len(self.weights):
            torch.cat(parts, dim=1, out=self.gradients)
        else:
            self.gradients[self.member_index(members)] = torch.cat(parts, dim=1)
        has_gradient = tuple(gradient is not None for gradient in gradients)
        for member in members:
            if self._has_gradient[member] != has_gradient:
                self._rebuild_groups(member, has_gradient)

    def clip_grad_norm(self, max_norms: Float[Tensor, " members"]) -> Float[Tensor, " members"]:
        """Clips the gradient norm of each member to `max_norms` (infinite: no clipping); returns the norms before."""
        norms: Tensor = torch.linalg.vector_norm(self.gradients, dim=1)
        self.gradients.mul_((max_norms / (norms + 1e-6)).clamp(max=1.0)[:, None])
        return norms

    def step(self, optimizers: Sequence[AdamW], learning_rates: Sequence[float]) -> None:
        """A step of each member's AdamW at its own learning rate."""
        groups_by_options: dict[tuple[float, float, tuple[float, float], float], list[_ParameterGroup]] = {}
        for spec, learning_rate, groups in zip(optimizers, learning_rates, self._groups, strict=True):
            for group in groups:
                decay = spec.weight_decay if group.has_weight_decay else 0.0
                groups_by_options.setdefault((learning_rate * group.lr_factor, decay, spec.betas, spec.eps), []).append(
                    group
                )
        with torch.no_grad():
            for (learning_rate, decay, betas, epsilon), groups in groups_by_options.items():
                adamw(
                    [run.weights for run in groups],
                    [run.gradients for run in groups],
                    [run.exp_avgs for run in groups],
                    [run.exp_avg_sqs for run in groups],
                    [],
                    [run.step_count for run in groups],
                    fused=True,
                    amsgrad=False,
                    beta1=betas[0],
                    beta2=betas[1],
                    lr=learning_rate,
                    weight_decay=decay,
                    eps=epsilon,
                    maximize=False,
                )

    def sync_step_counts(self) -> None:
        """Copies the step counts into the optimizer states."""
        for runs in self._groups:
            for run in runs:
                run.other_step_counts.fill_(run.step_count)

    def detach_member(self, member: int) -> None:
        """Gives a model's parameters, and the state of its optimizer, their own memory."""
        state = self.optimizers[member].state
        for parameter in self.parameters[member]:
            parameter.data = parameter.data.clone()
            for name, value in state.get(parameter, {}).items():
                state[parameter][name] = value.clone()

    def _split_by_parameter(self, weights: Tensor) -> dict[str, Tensor]:
        return {
            name: weights[:, start:end].view(len(weights), *shape).detach().requires_grad_()
            for name, (start, end), shape in zip(self.names, self.spans, self.shapes, strict=True)
        }

    def _rebuild_groups(self, member: int, has_gradient: tuple[bool, ...]) -> None:
        """Divides a member's weights into contiguous spans without unused parameters, which are neither updated nor
        decayed."""
        self.sync_step_counts()
        counts = self.step_counts[member].tolist()
        options = [
            (*self.parameter_options[index], counts[index]) if has_gradient[index] else None
            for index in range(len(has_gradient))
        ]
        self._has_gradient[member], self._groups[member], first = has_gradient, [], 0
        for at in range(1, len(options) + 1):
            if at < len(options) and options[at] == options[first]:
                continue
            if (group_options := options[first]) is not None:
                span = slice(self.spans[first][0], self.spans[at - 1][1])
                run = _ParameterGroup(
                    lr_factor=group_options[0],
                    has_weight_decay=group_options[1],
                    weights=self.weights[member, span],
                    gradients=self.gradients[member, span],
                    exp_avgs=self.exp_avgs[member, span],
                    exp_avg_sqs=self.exp_avg_sqs[member, span],
                    step_count=self.step_counts[member, first],
                    other_step_counts=self.step_counts[member, first + 1 : at],
                )
                self._groups[member].append(run)
            first = at
        state = self.optimizers[member].state
        for at, (parameter, (start, end)) in enumerate(zip(self.parameters[member], self.spans, strict=True)):
            if has_gradient[at]:
                state[parameter] = {
                    "step": self.step_counts[member, at],
                    "exp_avg": self.exp_avgs[member, start:end].view(parameter.shape),
                    "exp_avg_sq": self.exp_avg_sqs[member, start:end].view(parameter.shape),
                }

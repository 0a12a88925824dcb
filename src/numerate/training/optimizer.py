"""Optimizers, with parameter groups by learning rate factor and weight decay."""

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from numerate.batch import Model
from numerate.config import Spec, setting


class Optimizer(Spec, ABC):
    """The spec of an optimizer: a frozen dataclass."""

    learning_rate: float
    max_grad_norm: float | None

    def parameter_options(self, model: Model) -> dict[str, tuple[float, bool]]:
        """Per parameter name: (factor of the learning rate, whether weight decay applies), as set by the model's
        modules."""
        return dict(model.optimizer_options_by_parameter())

    @abstractmethod
    def build(self, model: nn.Module, options: dict[str, tuple[float, bool]]) -> torch.optim.Optimizer:
        """Builds the optimizer; `options` are those of `parameter_options`. Each parameter group has an entry
        `factor`."""


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Loshchilov and Hutter (2019), https://arxiv.org/abs/1711.05101.

    Weight decay applies to matrices and embeddings, but not to biases, norms and parameters that a module exempts. With
    `decay_parameters="matrices"` it applies to exactly the parameters with at least two dimensions, as in nanoGPT,
    llama2.c and the published dual attention, where it includes the symbol libraries. Raises `UserError` for invalid
    settings."""

    learning_rate: float = setting(1e-3, "peak learning rate", above=0)
    betas: tuple[float, float] = setting((0.9, 0.98), "decay rates of the moment estimates", at_least=0, below=1)
    eps: float = setting(1e-8, "epsilon, for numerical stability", at_least=0)
    weight_decay: float = setting(0.01, "decoupled weight decay", at_least=0)
    max_grad_norm: float | None = setting(
        1.0, "gradient clipping: largest gradient norm; null: none", above=0, at_most=math.inf
    )
    decay_parameters: Literal["by_module", "matrices"] = setting(
        "by_module",
        "parameters with weight decay: by_module (matrices and embeddings, with exceptions that modules specify), or "
        "matrices (all of 2 dimensions or more)",
    )

    def parameter_options(self, model: Model) -> dict[str, tuple[float, bool]]:
        options = super().parameter_options(model)
        if self.decay_parameters == "by_module":
            return options
        return {name: (options[name][0], parameter.dim() >= 2) for name, parameter in model.named_parameters()}

    def build(self, model: nn.Module, options: dict[str, tuple[float, bool]]) -> torch.optim.Optimizer:
        parameters_by_options: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameters_by_options.setdefault(options[name], []).append(parameter)
        groups = [
            {"params": parameters, "factor": lr_factor, "weight_decay": self.weight_decay if has_weight_decay else 0.0}
            for (lr_factor, has_weight_decay), parameters in parameters_by_options.items()
        ]
        can_fuse = all(p.device.type in ("cpu", "cuda") and type(p) is nn.Parameter for p in model.parameters())
        fused = can_fuse or None  # False would turn foreach off, too
        return _EagerAdamW(groups, lr=self.learning_rate, betas=self.betas, eps=self.eps, fused=fused)


class _EagerAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` without the decorators that keep it out of compiled code: each of them imports torch._dynamo,
    which takes longer than all other imports of a small run together."""

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))

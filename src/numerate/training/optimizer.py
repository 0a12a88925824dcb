"""AdamW with parameter groups by name."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from numerate.batch import Model
from numerate.config import setting
from numerate.errors import UserError


class Optimizer(ABC):
    """The description of an optimizer in a recipe: a frozen dataclass."""

    learning_rate: float
    max_grad_norm: float | None

    def parameter_options(self, model: Model) -> dict[str, tuple[float, bool]]:
        """Per parameter name: (factor of the rate, whether it decays), as the modules of the model set them."""
        return dict(model.optimizer_options_by_parameter())

    @abstractmethod
    def build(self, model: nn.Module, options: dict[str, tuple[float, bool]]) -> torch.optim.Optimizer:
        """`options` are per parameter name (factor of the rate, whether it decays). Groups carry `factor`."""


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Loshchilov and Hutter (2019), https://arxiv.org/abs/1711.05101.

    Matrices and tables decay, embeddings among them; biases and norms do not, nor what a module exempts. With
    `decay_parameters="matrices"` every parameter of two dimensions or more decays and no other, without exemptions: as
    in nanoGPT and llama2.c, and so in the published dual attention, whose symbol libraries decay. Raises `UserError`
    for invalid settings.
    """

    learning_rate: float = setting(1e-3, "peak learning rate")
    betas: tuple[float, float] = setting((0.9, 0.98), "decay rates of the moment estimates")
    eps: float = setting(1e-8, "epsilon, for numerical stability")
    weight_decay: float = setting(0.01, "decoupled weight decay")
    max_grad_norm: float | None = setting(1.0, "gradient clipping: largest gradient norm; null: none")
    decay_parameters: Literal["by_module", "matrices"] = setting(
        "by_module",
        "parameters with weight decay: by_module (matrices and embeddings, with exceptions that modules specify), or "
        "matrices (all of 2 dimensions or more)",
    )

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise UserError(
                f"learning_rate: must be above 0; it is {self.learning_rate} (1e-3 is usual for small models)"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"betas: must each be at least 0 and below 1; they are {self.betas}")
        if self.eps < 0:
            raise UserError(f"eps: must be 0 or more; it is {self.eps} (1e-8 is usual)")
        if self.weight_decay < 0:
            raise UserError(f"weight_decay: must be 0 or more; it is {self.weight_decay}")
        if self.max_grad_norm is not None and self.max_grad_norm <= 0:
            raise UserError(f"max_grad_norm: must be above 0, or null for none; it is {self.max_grad_norm}")

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
        fused = all(p.device.type in ("cpu", "cuda") and type(p) is nn.Parameter for p in model.parameters())
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas, eps=self.eps, fused=fused)

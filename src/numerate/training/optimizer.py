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
    """The description of an optimiser in a recipe: a frozen dataclass."""

    learning_rate: float
    max_grad_norm: float | None

    def settings_of(self, model: Model) -> dict[str, tuple[float, bool]]:
        """Per parameter name: (factor of the rate, whether it decays), as the model's parts wish."""
        return dict(model.settings_by_parameter())

    @abstractmethod
    def build(self, model: nn.Module, settings: dict[str, tuple[float, bool]]) -> torch.optim.Optimizer:
        """`settings` are per parameter name (factor of the rate, whether it decays). Groups carry `factor`."""


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Loshchilov and Hutter (2019), https://arxiv.org/abs/1711.05101.

    Matrices and tables decay, embeddings among them; biases and norms do not, nor what a module exempts. With
    `decay_parameters="matrices"` every parameter of two dimensions or more decays and no other, without exemptions: as
    in nanoGPT and llama2.c, and so in the published dual attention, whose symbol libraries decay. Raises `UserError`
    for settings that cannot be.
    """

    learning_rate: float = setting(1e-3, "peak learning rate")
    betas: tuple[float, float] = setting((0.9, 0.98), "decay rates of the moment estimates")
    eps: float = setting(1e-8, "epsilon, for numerical stability")
    weight_decay: float = setting(0.01, "decoupled weight decay")
    max_grad_norm: float | None = setting(1.0, "gradient clipping: largest gradient norm; null: none")
    decay_parameters: Literal["parts", "matrices"] = setting(
        "parts",
        "parameters with weight decay: parts (matrices and embeddings without exempted ones), or all of 2 "
        "dimensions or more",
        later=True,
    )

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise UserError(
                f"learning_rate: {self.learning_rate} learns nothing; a number above 0 is right, 1e-3 is usual "
                f"for small ones"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"betas: {self.betas}: each is from 0 to below 1")
        if self.eps < 0:
            raise UserError(f"eps: {self.eps} is negative; 0 or more is right, 1e-8 is usual")
        if self.weight_decay < 0:
            raise UserError(f"weight_decay: {self.weight_decay} is negative; 0 or more is right")
        if self.max_grad_norm is not None and self.max_grad_norm <= 0:
            raise UserError(
                f"max_grad_norm: {self.max_grad_norm} would stop all learning; a number above 0, or null for none"
            )

    def settings_of(self, model: Model) -> dict[str, tuple[float, bool]]:
        found = super().settings_of(model)
        if self.decay_parameters == "parts":
            return found
        return {name: (found[name][0], own.dim() >= 2) for name, own in model.named_parameters()}

    def build(self, model: nn.Module, settings: dict[str, tuple[float, bool]]) -> torch.optim.Optimizer:
        kinds: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                kinds.setdefault(settings[name], []).append(parameter)
        groups = [
            {"params": members, "factor": factor, "weight_decay": self.weight_decay if decays else 0.0}
            for (factor, decays), members in kinds.items()
        ]
        fused = all(p.device.type in ("cpu", "cuda") and type(p) is nn.Parameter for p in model.parameters())
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas, eps=self.eps, fused=fused)

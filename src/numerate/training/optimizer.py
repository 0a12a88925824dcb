"""AdamW with parameter groups by name."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from numerate.config import setting
from numerate.errors import Mistake


class Optimizer(ABC):
    """The description of an optimiser in a recipe: a frozen dataclass."""

    rate: float
    clip: float | None

    @abstractmethod
    def build(self, model: nn.Module, settings: dict[str, tuple[float, bool]]) -> torch.optim.Optimizer:
        """`settings` are per parameter name (factor of the rate, whether it decays). Groups carry `factor`."""


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Loshchilov and Hutter (2019), https://arxiv.org/abs/1711.05101.

    Only matrices and tables decay; biases and norms do not, nor what a part exempts.
    """

    rate: float = setting(1e-3, "the highest learning rate")
    betas: tuple[float, float] = setting((0.9, 0.98), "decay of the running mean and of the running square")
    epsilon: float = setting(1e-8, "added to the root of the running square")
    decay: float = setting(0.01, "weight decay per unit of learning rate")
    clip: float | None = setting(1.0, "largest norm of the gradient, or null")

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise Mistake(f"rate: {self.rate} learns nothing; a number above 0 is right, 1e-3 is usual for small ones")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise Mistake(f"betas: {self.betas}: each is from 0 to below 1")
        if self.epsilon < 0:
            raise Mistake(f"epsilon: {self.epsilon} is negative; 0 or more is right, 1e-8 is usual")
        if self.decay < 0:
            raise Mistake(f"decay: {self.decay} is negative; 0 or more is right")
        if self.clip is not None and self.clip <= 0:
            raise Mistake(f"clip: {self.clip} would stop all learning; a number above 0, or null for none")

    def build(self, model: nn.Module, settings: dict[str, tuple[float, bool]]) -> torch.optim.Optimizer:
        kinds: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                kinds.setdefault(settings[name], []).append(parameter)
        groups = [
            {"params": members, "factor": factor, "weight_decay": self.decay if decays else 0.0}
            for (factor, decays), members in kinds.items()
        ]
        fused = all(p.device.type in ("cpu", "cuda") and type(p) is nn.Parameter for p in model.parameters())
        return torch.optim.AdamW(groups, lr=self.rate, betas=self.betas, eps=self.epsilon, fused=fused)

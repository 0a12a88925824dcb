"""Running sums between two lines of metrics, on the device, and the line made of them."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from numerate.errors import OperationalError
from numerate.training import checkpoint
from numerate.training.distributed import World
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from numerate.training.training_state import TrainingState
from numerate.training.validation import short


class RunningSums:
    """Sums by name, with no wait for the device until a line is logged or a checkpoint written."""

    def __init__(self, recipe: Recipe, world: World) -> None:
        self.recipe, self.world = recipe, world
        self._running: dict[str, float | torch.Tensor] = {}

    def add(self, name: str, value: float | torch.Tensor) -> None:
        """Adds on the device, in double precision where it has that."""
        number = value.detach().double() if isinstance(value, torch.Tensor) and value.device.type != "mps" else value
        self._running[name] = self._running.get(name, 0.0) + number

    def settle(self, into: dict[str, float], step: int, folder: RunFolder | None) -> None:
        """Adds what was summed up since the last time to the plain numbers `into`, the same on every process.

        Raises `OperationalError` if the loss or its gradient is not finite: nothing is written after that.
        """
        new = {name: float(self._running[name]) for name in sorted(self._running)}
        self._running.clear()
        losses = {name: value for name, value in new.items() if name.startswith("loss")}
        new.update(self.world.sum_values(losses))
        for name, value in new.items():
            into[name] = into.get(name, 0.0) + value
        what = next((name for name in ("loss", "gradient norm") if not math.isfinite(into.get(name, 0.0))), None)
        if what is not None:
            good = checkpoint.steps(folder.checkpoints) if folder else []
            kept = "there is no checkpoint yet"
            if folder and good:
                kept = f"the last good checkpoint is {checkpoint.name_of(good[-1])} in {folder.checkpoints}"
            raise OperationalError(f"step {step}: the {what} is not finite; {kept}. {self._advice(step)}")

    def _advice(self, step: int) -> str:
        """What may help where a loss is not finite; before the first update nothing that changes updates."""
        if step > 1:
            return (
                f"A lower optimizer.learning_rate (now {self.recipe.optimizer.learning_rate:g}) or "
                f"optimizer.max_grad_norm may help"
            )
        recipe = self.recipe
        task, loss = (
            type(part).__name__ for part in (recipe.task, getattr(recipe.objective, "loss", recipe.objective))
        )
        return (
            "That was before any update, so no optimizer.learning_rate or optimizer.max_grad_norm helps: look at what "
            "the first batch holds "
            f"({task}), at the loss ({loss}), and at training.precision"
        )


LAYER = "gradient norm of "
"""What the sum of a layer's gradient norms is called, before its name."""


def line(sums: Mapping[str, float], spent: TrainingState, rate: float) -> dict[str, Any]:
    """A line of `metrics.jsonl`: means per step since the line before, and what the run has used."""
    taken = sums["steps"]
    layers = {name.removeprefix(LAYER): short(value / taken) for name, value in sums.items() if name.startswith(LAYER)}
    return {
        "step": spent.step,
        "examples": spent.examples,
        "tokens": spent.tokens,
        "flops": spent.flops,
        "loss": short(sums["loss"] / taken),
        **{name: short(value / taken) for name, value in sums.items() if name.startswith("loss ")},
        "rate": short(rate),
        "gradient_norm": short(sums["gradient norm"] / taken),
        **({"gradient_norms": layers} if layers else {}),
        "padding": round(1 - sums["real tokens"] / sums["padded tokens"], 4),
    }

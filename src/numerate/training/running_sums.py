"""Running sums of metrics between two log lines, on the device, and the records made of them."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from numerate.errors import OperationalError
from numerate.training import checkpoint
from numerate.training.distributed import World
from numerate.training.run_folder import RunFolder
from numerate.training.training_state import TrainingState
from numerate.training.validation import round_significant


class MetricSums:
    """Sums by name, without synchronization until a line is logged or a checkpoint is written."""

    def __init__(self, learning_rate: float, world: World) -> None:
        self.learning_rate, self.world = learning_rate, world
        self._sums: dict[str, float | torch.Tensor] = {}

    def add(self, name: str, value: float | torch.Tensor) -> None:
        """Adds on the device, in double precision if it supports that."""
        number = value.detach().double() if isinstance(value, torch.Tensor) and value.device.type != "mps" else value
        self._sums[name] = self._sums.get(name, 0.0) + number

    def flush(self, totals: dict[str, float], step: int, folder: RunFolder | None) -> None:
        """Adds the sums since the last call to `totals` (Python numbers, equal on all processes).

        Raises `OperationalError` if the loss or its gradient is not finite: nothing is written after that.
        """
        new_sums = {name: float(self._sums[name]) for name in sorted(self._sums)}
        self._sums.clear()
        new_sums |= self.world.sum_values({name: sum_ for name, sum_ in new_sums.items() if name.startswith("loss")})
        for name, value in new_sums.items():
            totals[name] = totals.get(name, 0.0) + value
        for name, what in (("loss", "loss"), ("grad_norm", "gradient norm")):
            if not math.isfinite(totals.get(name, 0.0)):
                saved = "there is no checkpoint yet"
                if folder is not None and (last := max(checkpoint.list_steps(folder.checkpoints), default=0)):
                    saved = f"the last good checkpoint is {checkpoint.step_folder(last)} in {folder.checkpoints}"
                advice = (
                    f"a lower optimizer.learning_rate (now {self.learning_rate:g}) or optimizer.max_grad_norm may help"
                )
                if step == 1:
                    advice = "that was before any update: check the data, the loss, initial weights and precision"
                raise OperationalError(f"step {step}: the {what} is not finite; {saved}; {advice}")


LAYER_PREFIX = "grad_norm of "
"""The prefix of the names of the sums of layer gradient norms."""


def metrics_record(sums: Mapping[str, float], state: TrainingState, learning_rate: float) -> dict[str, Any]:
    """A record of `metrics.jsonl`: means per step since the last one, and the totals of the run."""
    num_steps = sums["steps"]
    layers = {
        name.removeprefix(LAYER_PREFIX): round_significant(value / num_steps)
        for name, value in sums.items()
        if name.startswith(LAYER_PREFIX)
    }
    return {
        "step": state.step,
        "examples": state.examples,
        "tokens": state.tokens,
        "flops": state.flops,
        "loss": round_significant(sums["loss"] / num_steps),
        **{name: round_significant(value / num_steps) for name, value in sums.items() if name.startswith("loss_")},
        "learning_rate": round_significant(learning_rate),
        "grad_norm": round_significant(sums["grad_norm"] / num_steps),
        **({"layer_grad_norms": layers} if layers else {}),
        "padding": round(1 - sums["real_tokens"] / sums["padded_tokens"], 4),
    }

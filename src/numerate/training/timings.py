"""Throughput of a run: tokens and FLOPs per second, model FLOPs utilization (MFU), peak memory.

These depend on the machine, so they are stored in a separate file, `timings.jsonl`.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from numerate.training.distributed import World
from numerate.training.peak_flops import peak_flops
from numerate.training.recipe import Training
from numerate.training.training_state import TrainingState


class Timings:
    """Makes a record of `timings.jsonl` for each record of metrics except the first of a session, which includes
    compilation and warm-up.

    `tokens_per_second` and `flops_per_second` are those of all processes together during training: time for evaluations
    and checkpoints counts only in `seconds`. Tokens exclude padding; FLOPs include it, as in budgets.
    `flops_utilization` is the fraction of `peak`, the peak FLOP/s of all devices (see `numerate.training.peak_flops`),
    left out if unknown. `peak_memory_bytes` is the peak memory so far.
    """

    def __init__(self, world: World, training: Training) -> None:
        is_cuda = world.device.type == "cuda"
        rounds = training.precision == "fp32" and training.tf32 and is_cuda
        self.world, self.matmul_precision = world, "tf32" if rounds else training.precision
        self.peak = peak_flops(torch.cuda.get_device_name(world.device), self.matmul_precision) if is_cuda else None
        self._previous: tuple[float, int, int] | None = None
        self._paused_seconds = 0.0

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """The context of anything other than training."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused_seconds += time.monotonic() - began

    def next_record(self, state: TrainingState) -> dict[str, Any] | None:
        """The record since the last one; None for the first."""
        now, previous, paused = time.monotonic(), self._previous, self._paused_seconds
        self._previous, self._paused_seconds = (now, state.tokens, state.flops), 0.0
        if previous is None:
            return None
        seconds = max(now - previous[0], 1e-9)
        training = max(seconds - paused, 1e-9)
        flops = (state.flops - previous[2]) / training
        record: dict[str, Any] = {
            "step": state.step,
            "tokens_per_second": round((state.tokens - previous[1]) / training),
            "seconds": round(seconds, 3),
            "training_seconds": round(training, 3),
            "flops_per_second": float(f"{flops:.4g}"),
        }
        if self.peak is not None:
            record["flops_utilization"] = float(f"{flops / (self.peak * self.world.size):.3g}")
            record["peak"] = {"flops_per_second": self.peak, "precision": self.matmul_precision}
        if (memory := peak_memory_bytes(self.world.device)) is not None:
            record["peak_memory_bytes"] = memory
        return record


def peak_memory_bytes(device: torch.device) -> int | None:
    """Peak memory so far, in bytes: allocated by torch on a CUDA device, else by the system for this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def format_throughput(record: Mapping[str, Any]) -> str:
    """A record as shown next to the progress bar.

    >>> format_throughput({"tokens_per_second": 12345, "flops_utilization": 0.312})
    '12.3k tokens/s (31% of peak)'
    """
    tokens, share = record["tokens_per_second"], record.get("flops_utilization")
    count = f"{tokens / 1e3:.1f}k" if tokens >= 10_000 else f"{tokens:,}"
    count = f"{tokens / 1e6:.2f}M" if tokens >= 999_950 else count
    return f"{count} tokens/s" + ("" if share is None else f" ({share:.{0 if share >= 0.01 else 1}%} of peak)")

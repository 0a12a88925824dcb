"""Whether a row fits into memory in evaluation: Linux grants more than there is, and kills the process that uses it."""

import contextlib
import math
import re
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from numerate.batch import Model, StepContext, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import MAX_TOKENS_PER_BATCH, select_rows
from numerate.reports.opened_run import OpenedRun
from numerate.runs.out_of_memory import total_memory
from numerate.tokenizers.layout import Seq2Seq
from numerate.training.disk import format_bytes
from numerate.training.distributed import resolve_device

NUM_MEASURED_TOKENS = 4_096
"""The memory of rows of this many tokens and of half as many is measured, and extrapolated."""


def check_row_fits(run: OpenedRun, tokens: Tokens) -> None:
    """Raises `UserError` for rows that are too long for the memory of the device, with the length that would fit.

    A row of up to `MAX_TOKENS_PER_BATCH` tokens is not checked: it needs about as much as a batch of shorter rows. Nor
    is a model with an encoder, or of Hugging Face.
    """
    length, recipe = tokens.ids.shape[1], run.recipe
    if length <= MAX_TOKENS_PER_BATCH or recipe.model.is_hugging_face or isinstance(recipe.layout, Seq2Seq):
        return
    measured, available = NUM_MEASURED_TOKENS, available_memory(resolve_device(run.device or recipe.device))
    half, full = (forward_memory(run.untrained_model, tokens, count) for count in (measured // 2, measured))
    quadratic = max(0.0, 2 * (full - 2 * half) / measured**2)
    linear = full / measured - quadratic * measured
    needed = linear * length + quadratic * length**2
    if needed > available:
        fitting = 2 * available / (linear + math.sqrt(linear**2 + 4 * quadratic * available))
        raise UserError(
            f"{length:,} tokens in a row need about {format_bytes(needed)} of memory, and {format_bytes(available)} "
            f"are available; about {int(fitting):,} tokens, {fitting / length:.0%} of this length, would fit"
        )


@torch.no_grad()
def forward_memory(model: Model, tokens: Tokens, num_tokens: int) -> int:
    """The memory of one forward pass on the CPU besides the weights, in bytes: over the first row, cut to this many
    tokens."""
    row = select_rows(tokens, slice(0, 1))
    row = replace(
        row,
        ids=row.ids[:, :num_tokens],
        lengths=row.lengths.clamp(max=num_tokens),
        number_values=None if row.number_values is None else row.number_values[:, :num_tokens],
        blocked_keys=None if row.blocked_keys is None else row.blocked_keys[:, :num_tokens],
    )
    row = model.eval().assign_positions(row, StepContext.for_evaluation())
    meter = _MemoryMeter(model)
    with meter:
        model(row)
    return meter.peak


class _MemoryMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of tensors other than weights, from the operation that makes one to where it is freed."""

    def __init__(self, model: Model) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocated: int = 0
        self.peak: int = 0
        weights = (tensor.untyped_storage() for tensor in model.state_dict().values())
        self._live: dict[int, Any] = {storage._cdata: None for storage in weights}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for storage in (one.untyped_storage() for one in tree_leaves(result) if isinstance(one, Tensor)):
            key, size = storage._cdata, storage.nbytes()
            if key not in self._live:
                self._live[key] = weakref.ref(storage, partial(self._release, key, size))
                self.allocated += size
                self.peak = max(self.peak, self.allocated)
        return result

    def _release(self, key: int, size: int, _: object) -> None:
        del self._live[key]
        self.allocated -= size


def available_memory(device: torch.device, root: Path = Path("/")) -> float:
    """The memory of a GPU, or what is available of this machine's and within the limits of its container or job
    (cgroups, version 2), in bytes; infinite where it is unknown."""
    if device.type != "cpu":
        return total_memory(device)
    available, group = [math.inf], ""
    with contextlib.suppress(OSError):
        if found := re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE):
            available.append(1024.0 * int(found[1]))
    with contextlib.suppress(OSError):
        if found := re.search(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE):
            group = found[1]
    for folder in (path := root / "sys/fs/cgroup" / group, *path.parents):
        with contextlib.suppress(OSError, ValueError):  # no limit is `max`
            limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
            # cached files can be dropped
            cached = re.findall(r"^(?:in)?active_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
            available.append(limit - used + sum(map(int, cached)))
    return max(0.0, min(available))

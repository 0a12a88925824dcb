"""Whether a row fits into memory in evaluation, and if not how long a row would."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from numerate.batch import Model, StepContext, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import MAX_TOKENS_PER_BATCH, select_rows
from numerate.experiments.device_estimate import total_memory
from numerate.experiments.stored_run import StoredRun
from numerate.tokenizers.layout import Seq2Seq
from numerate.training.disk import format_bytes
from numerate.training.distributed import resolve_device
from numerate.training.memory import META, MemoryMeter, simulated_gpu

NUM_SAMPLED_TOKENS = 8_192
"""The memory of rows of this many tokens and of half as many is estimated, and extrapolated by a power law."""


def check_row_fits(run: StoredRun, tokens: Tokens, sizes: Mapping[str, int] | None = None) -> None:
    """Raises `UserError` for rows that are too long for the memory of the device, with the number of tokens that would
    fit, and of the lengths among `sizes`, such as the digits of each operand, about those that would.

    A row of up to `MAX_TOKENS_PER_BATCH` tokens is not checked: it needs about as much as a batch of shorter rows. Nor
    is a model whose memory cannot be estimated without running it, or one with an encoder.
    """
    num_tokens, recipe = tokens.ids.shape[1], run.recipe
    if num_tokens <= MAX_TOKENS_PER_BATCH or recipe.model.is_hugging_face or isinstance(recipe.layout, Seq2Seq):
        return
    try:
        model = recipe.model.build_on_meta(run.evaluation_data.vocabulary, recipe.seed).to(META).eval()
        half, full = (forward_memory(model, tokens, count) for count in (NUM_SAMPLED_TOKENS // 2, NUM_SAMPLED_TOKENS))
    except (NotImplementedError, RuntimeError):
        return
    exponent = max(1.0, math.log2(full / half))
    needed = full * (num_tokens / NUM_SAMPLED_TOKENS) ** exponent
    available = available_memory(resolve_device(run.device or recipe.device))
    if needed > available:
        fitting = NUM_SAMPLED_TOKENS * (available / full) ** (1 / exponent)
        share = fitting / num_tokens
        lengths = {axis: size for axis, size in (sizes or {}).items() if axis.endswith(("digits", "length"))}
        fitting_sizes = ", ".join(f"{axis}={max(1, int(size * share)):,}" for axis, size in lengths.items())
        raise UserError(
            f"{num_tokens:,} tokens in a row need about {format_bytes(needed)} of memory, and "
            f"{format_bytes(available)} are available; about {int(fitting):,} tokens, {share:.0%} of this length, "
            f"would fit{f': {fitting_sizes}' if fitting_sizes else ''}"
        )


@torch.no_grad()
def forward_memory(model: Model, tokens: Tokens, num_tokens: int) -> int:
    """The memory of one forward pass of a model on the meta device, in bytes, besides its weights: over the first row,
    cut to this many tokens."""
    row = select_rows(tokens, slice(0, 1))
    row = replace(
        row,
        ids=row.ids[:, :num_tokens],
        lengths=row.lengths.clamp(max=num_tokens),
        number_values=None if row.number_values is None else row.number_values[:, :num_tokens],
        blocked_keys=None if row.blocked_keys is None else row.blocked_keys[:, :num_tokens],
    )
    row = model.assign_positions(row, StepContext.for_evaluation()).to(META)
    meter = MemoryMeter()
    with meter, simulated_gpu():
        model(row)
    return meter.peak


def available_memory(device: torch.device, root: Path = Path("/")) -> float:
    """The memory of a GPU, or what is available of this machine's and within the limits of its container or job
    (cgroups), in bytes; infinite where it is unknown."""
    if device.type != "cpu":
        return total_memory(device)
    available = [math.inf]
    with contextlib.suppress(OSError):
        if found := re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE):
            available.append(1024.0 * int(found[1]))
    for folder in _cgroup_folders(root):
        for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with contextlib.suppress(OSError, ValueError):  # no limit is `max`
                limit, used = (int((folder / name).read_text()) for name in names)
                lines = re.findall(r"^(\w+) (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
                stat = {name: int(size) for name, size in lines}
                # Cached files can be dropped. In version 1 only the total has those of the groups within a group.
                cached = [stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file")]
                available.append(limit - used + sum(cached))
    return max(0.0, min(available))


def _cgroup_folders(root: Path) -> Iterator[Path]:
    """The folders of version 2 and 1 that may limit the memory of this process: its cgroup and those that contain
    it."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
                parts = Path(path).parts[1:]
                yield from (top.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))

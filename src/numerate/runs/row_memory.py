"""Whether a row fits into memory in evaluation, and if not how long a row would.

Memory is that of a forward pass on torch's meta device, where operations compute shapes but no values.
"""

import contextlib
import math
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from numerate.batch import Model, StepContext, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import MAX_TOKENS_PER_BATCH, select_rows
from numerate.runs.out_of_memory import total_memory
from numerate.runs.stored_run import StoredRun
from numerate.tokenizers.layout import Seq2Seq
from numerate.training.disk import format_bytes
from numerate.training.distributed import resolve_device

META = torch.device("meta")

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
    meter = _MemoryMeter()
    with _without_autocast(), _FusedAttention(), meter:
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


class _MemoryMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of tensors on the meta device, each from where an operation makes it to where it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocated, self.peak = 0, 0
        self._live: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            return False  # a condition on values, such as whether no row is padded
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device == META:
                self._track(tensor.untyped_storage())
        return result

    def _track(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if size and key not in self._live:
            self._live[key] = weakref.ref(storage, partial(self._release, key, size))
            self.allocated += size
            self.peak = max(self.peak, self.allocated)

    def _release(self, key: int, size: int, _: object) -> None:
        del self._live[key]
        self.allocated -= size


class _FusedAttention(TorchFunctionMode):
    """Attention by a kernel that stores only its output and a number per query, which the meta device does not use."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_attention = getattr(func, "__name__", "") == "scaled_dot_product_attention" and args[0].dim() == 4
        return (_fused_attention if is_attention else func)(*args, **(kwargs or {}))


def _fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, enable_gqa: bool = False, **_: Any
) -> Tensor:
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.empty_like(attn_mask, dtype=query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    output: Tensor = attend(query, key, value, attn_mask, compute_log_sumexp=False)[0]
    return output


@contextlib.contextmanager
def _without_autocast() -> Iterator[None]:
    """A context with `torch.autocast` on the meta device, where torch has none: it is never enabled."""
    autocast, is_enabled = torch.autocast, torch.is_autocast_enabled

    def autocast_elsewhere(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return contextlib.nullcontext() if device_type == "meta" else autocast(device_type, *args, **kwargs)

    def is_enabled_elsewhere(*device_type: str) -> bool:
        return device_type != ("meta",) and is_enabled(*device_type)

    torch.autocast, torch.is_autocast_enabled = autocast_elsewhere, is_enabled_elsewhere  # type: ignore
    try:
        yield
    finally:
        torch.autocast, torch.is_autocast_enabled = autocast, is_enabled  # type: ignore

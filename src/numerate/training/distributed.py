"""The processes of one run: ranks, collective operations, and joint termination."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from numerate.errors import OperationalError, UserError

_ERROR_KEY = "ended"
_num_joins = 0
_rendezvous_result: Any = None


@dataclass(frozen=True)
class World:
    """This process among those of the run; a single process is rank 0 of 1.

    Small values that should not wait for a device (counts, flags, texts) use gloo; gradients and weights on CUDA
    devices use `nccl_group` (NCCL).
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    nccl_group: Any = None
    store: Any = None
    launcher_pid: int = 0

    @classmethod
    def join(cls, device: str = "auto") -> "World":
        """Joins the other processes that `torchrun` started (RANK and WORLD_SIZE in the environment), if any. Raises
        `UserError` in all of them if one lacks the device.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            only_device = resolve_device(device)
            if only_device.type == "cuda":
                torch.cuda.set_device(only_device)  # whose generators `torch.cuda.manual_seed` seeds
            return cls(only_device)
        store, rank, size = _rendezvous()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        try:
            resolved_device, problem = resolve_device(device, int(os.environ.get("LOCAL_RANK", "0"))), ""
        except UserError as failure:
            resolved_device, problem = torch.device("cpu"), str(failure)
        world = cls(resolved_device, rank, size, None, store, os.getppid())
        devices_and_problems: list[tuple[str, str]] = world.all_gather((resolved_device.type, problem))
        problems = [text for _, text in devices_and_problems if text]
        if not problems and len({kind for kind, _ in devices_and_problems}) > 1:
            problems = [
                f"device: must be of one type in all processes ({', '.join(kind for kind, _ in devices_and_problems)})"
            ]
        if problems:
            error = world.shared_error(UserError(problems[0]))
            world.leave()
            raise error
        if resolved_device.type == "cuda":
            torch.cuda.set_device(resolved_device)
            world = cls(resolved_device, rank, size, dist.new_group(backend="nccl"), store, os.getppid())
        return world

    @classmethod
    @contextlib.contextmanager
    def connect(cls, device: str = "auto") -> Iterator["World"]:
        """Joins, and leaves at the end. An error in one process ends all of them, and is reported by one."""
        world = cls.join(device)
        try:
            yield world
        except BaseException as error:
            shared = world.shared_error(error)
            if shared is error:
                raise
            raise shared from error
        finally:
            world.leave()

    def shared_error(self, error: BaseException) -> BaseException:
        """Shares the error that ends this process. Returns the error to raise: `error` itself if this process failed
        first, otherwise that of the first one, which only that process reports (`error.is_reporter` is False)."""
        if self.size == 1:
            return error
        kind = "UserError" if isinstance(error, UserError) else "OperationalError"
        text = str(error) if isinstance(error, UserError | OperationalError) else f"{type(error).__name__}: {error}"
        if _is_lost(error):
            error = OperationalError(
                f"another of the {self.size} processes ended without an error message (killed? out of memory?); "
                "the same command resumes from the last checkpoint"
            )
            text = str(error)
        own_message = json.dumps([self.rank, kind, text])
        first_message = own_message
        with contextlib.suppress(RuntimeError):  # the launcher, which keeps the store, may be gone
            first_message = self.store.compare_set(_ERROR_KEY, "", own_message).decode()
        is_reporter = first_message == own_message
        if not is_reporter:
            _, kind, text = json.loads(first_message)
            error = UserError(text) if kind == "UserError" else OperationalError(text)
        if isinstance(error, UserError | OperationalError):
            error.should_print = is_reporter
        return error

    def leave(self) -> None:
        """Closes the connection, so that nothing hangs or warns at exit."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0, which writes the files."""
        return self.rank == 0

    @property
    def is_orphaned(self) -> bool:
        """Whether the launcher has ended, so that nothing else would end this process."""
        return self.size > 1 and os.getppid() != self.launcher_pid

    def sum_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Integers by name, summed over all processes."""
        return self._sum(counts, torch.int64)

    def sum_values(self, values: Mapping[str, float]) -> dict[str, float]:
        """Numbers by name, summed over all processes in double precision."""
        return self._sum(values, torch.float64)

    def _sum(self, values: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
        if self.size == 1:
            return dict(values)
        total = torch.tensor(list(values.values()), dtype=dtype)
        dist.all_reduce(total)
        return dict(zip(values, total.tolist(), strict=True))

    def all_reduce_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sums the gradients of all processes by one all-reduce of their concatenation in parameter order.

        The order does not depend on timing, so a resumed run adds in the same order.
        """
        if self.size == 1:
            return
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat_gradient = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat_gradient, group=self.nccl_group)
        parts = torch.split(flat_gradient, [p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def max_over_processes(self, number: int) -> int:
        """The maximum over all processes."""
        if self.size == 1:
            return number
        maximum = torch.tensor([number])
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum.item())

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0, broadcast to all processes."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def all_gather(self, value: Any) -> list[Any]:
        """The value of each process, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """A barrier: returns once all processes are here."""
        if self.size > 1:
            dist.barrier()


def _rendezvous() -> tuple[Any, int, int]:
    """The store of the launcher (or of rank 0, if it has none), with separate keys for every join."""
    global _num_joins, _rendezvous_result
    if _rendezvous_result is None:
        _rendezvous_result = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
    store, rank, size = _rendezvous_result
    _num_joins += 1
    return dist.PrefixStore(f"numerate-{_num_joins}", store), rank, size  # type: ignore[attr-defined]


def _is_lost(error: BaseException) -> bool:
    """Whether the error means that another process has ended, for which gloo has no error type."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def resolve_device(text: str, local_rank: int | None = None) -> torch.device:
    """The device of a setting; with `local_rank`, that of one of several processes on a machine.

    Raises `UserError` if it is not there.
    """
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")  # which is refused, too
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(
            f"device: must be auto, cpu, cuda, cuda:1 or mps, not {text!r}"
            + ("; a GPU is device=cuda" if "gpu" in text.lower() else "")
        )
    if device.type == "cuda":
        if local_rank is not None and device.index is not None:
            raise UserError(f"device: {text} is one device for several processes; device=cuda gives each its own")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = device.index if device.index is not None else (local_rank or 0)
        if index >= count:
            available = "no CUDA device is visible"
            if count:
                available = f"there are {count} CUDA devices (cuda:0 to cuda:{count - 1})"
            process_text = f" for process {index} of this machine" if local_rank else ""
            raise UserError(f"device: {text}{process_text}: {available}; device=cpu works everywhere")
        return torch.device("cuda", index)
    if device.type == "mps" and local_rank is not None:
        raise UserError("device: must be cpu, not mps, for several processes")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device: mps: this machine has no Apple GPU that torch can use; device=cpu works everywhere")
    return device

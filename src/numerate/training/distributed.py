"""The processes of one run: their ranks, their collective operations, and how they end together."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from numerate.errors import OperationalError, UserError

_ENDED = "ended"
_joins = 0
_launched: Any = None


@dataclass(frozen=True)
class World:
    """This process among those of the run; alone it is rank 0 of 1.

    Small values that must never wait for a device (counts, flags, texts) go over gloo; gradients and weights on CUDA
    devices go over `group` (NCCL).
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    group: Any = None
    store: Any = None
    launcher: int = 0

    @classmethod
    def join(cls, device: str = "auto") -> "World":
        """Joins the other processes that `torchrun` started (RANK and WORLD_SIZE in the environment), if any.

        Raises `UserError`, in all of them, where the device is missing in one of them.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls(device_of(device))
        store, rank, size = _rendezvous()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        try:
            found, problem = device_of(device, int(os.environ.get("LOCAL_RANK", "0"))), ""
        except UserError as failure:
            found, problem = torch.device("cpu"), str(failure)
        world = cls(found, rank, size, None, store, os.getppid())
        kinds: list[tuple[str, str]] = world.all_gather((found.type, problem))
        problems = [text for _, text in kinds if text]
        if not problems and len({kind for kind, _ in kinds}) > 1:
            problems = [f"device: the processes have different ones ({', '.join(kind for kind, _ in kinds)})"]
        if problems:
            error = world.shared_error(UserError(problems[0]))
            world.leave()
            raise error
        if found.type == "cuda":
            torch.cuda.set_device(found)
            world = cls(found, rank, size, dist.new_group(backend="nccl"), store, os.getppid())
        return world

    @classmethod
    @contextlib.contextmanager
    def joined(cls, device: str = "auto") -> Iterator["World"]:
        """Joins and leaves. An error in one process ends all of them, and is reported by one."""
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
        """Shares the error that ends this process. Returns what to raise: `error` itself, if this process failed first;
        else the error of the first one, which only that one reports (`error.speaker` is False)."""
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
        own = json.dumps([self.rank, kind, text])
        first = own
        with contextlib.suppress(RuntimeError):  # the launcher, which keeps the store, may be gone
            first = self.store.compare_set(_ENDED, "", own).decode()
        speaker = first == own
        if not speaker:
            _, kind, text = json.loads(first)
            error = UserError(text) if kind == "UserError" else OperationalError(text)
        if isinstance(error, UserError | OperationalError):
            error.speaker = speaker
        return error

    def leave(self) -> None:
        """Ends the connection, so that nothing hangs or warns at exit."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def orphaned(self) -> bool:
        """Whether the launcher is gone: nothing else would then end this process."""
        return self.size > 1 and os.getppid() != self.launcher

    def sum_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Whole numbers by name, summed over all processes."""
        if self.size == 1:
            return dict(counts)
        total = torch.tensor(list(counts.values()), dtype=torch.int64)
        dist.all_reduce(total)
        return dict(zip(counts, total.tolist(), strict=True))

    def sum_values(self, values: Mapping[str, float]) -> dict[str, float]:
        """Numbers by name, summed over all processes in double precision."""
        if self.size == 1:
            return dict(values)
        total = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(total)
        return dict(zip(values, total.tolist(), strict=True))

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Adds the gradients of all processes: one all-reduce of all of them end to end, in parameter order.

        The order never depends on when a gradient was ready, so a resumed run adds in the same order as before.
        """
        if self.size == 1:
            return
        own = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([gradient.flatten() for gradient in own])
        dist.all_reduce(flat, group=self.group)
        parts = torch.split(flat, [p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def highest(self, number: int) -> int:
        """The highest of the numbers of all processes."""
        if self.size == 1:
            return number
        found = torch.tensor([number])
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found.item())

    def said_by_first(self, value: Any) -> Any:
        """The value of rank 0, broadcast to all."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def all_gather(self, value: Any) -> list[Any]:
        """The value of each process, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """A barrier: returns once all processes are here."""
        if self.size > 1:
            dist.barrier()


def _rendezvous() -> tuple[Any, int, int]:
    """The store that the launcher keeps (or rank 0, where it keeps none), with keys of its own for every join."""
    global _joins, _launched
    if _launched is None:
        _launched = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
    store, rank, size = _launched
    _joins += 1
    return dist.PrefixStore(f"numerate-{_joins}", store), rank, size  # type: ignore[attr-defined]


def _is_lost(error: BaseException) -> bool:
    """Whether the error means that another process is gone: gloo has no error type for that."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def device_of(text: str, local: int | None = None) -> torch.device:
    """The device a setting names; with `local`, the device of that process of several on a machine.

    Raises `UserError` if it is not there.
    """
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise UserError(f"device: {text!r} is no device; cpu, cuda, cuda:1 and mps are, or auto") from error
    if device.type == "cuda":
        if local is not None and device.index is not None:
            raise UserError(f"device: {text} is one device for several processes; device=cuda gives each its own")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = device.index if device.index is not None else (local or 0)
        if index >= count:
            there = "no CUDA device is visible"
            if count:
                there = f"there are {count} CUDA devices (cuda:0 to cuda:{count - 1})"
            many = f" for process {index} of this machine" if local else ""
            raise UserError(f"device: {text}{many}: {there}; device=cpu works everywhere")
        return torch.device("cuda", index)
    if device.type == "mps" and local is not None:
        raise UserError("device: mps is one device, and several processes cannot share it; device=cpu works everywhere")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device: mps: this machine has no Apple GPU that torch can use; device=cpu works everywhere")
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device: {text!r} is not supported; cpu, cuda, cuda:1 and mps are")
    return device

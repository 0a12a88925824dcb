"""The processes of one run: ranks, collective operations, and joint termination."""

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from numerate.errors import OperationalError, UserError

_join_numbers = itertools.count()


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
        `UserError` in all of them if one lacks the device."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            world = cls(resolve_device(device))
        else:
            launcher_store, rank, size = _rendezvous()
            store = dist.PrefixStore(f"numerate-{next(_join_numbers)}", launcher_store)  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            world = cls(torch.device("cpu"), rank, size, None, store, os.getppid())
            world = replace(world, device=world._common_device(device))
        if world.device.type == "cuda":
            torch.cuda.set_device(world.device)  # whose generators `torch.cuda.manual_seed` seeds
            if world.size > 1:
                world = replace(world, nccl_group=dist.new_group(backend="nccl"))
        return world

    def _common_device(self, text: str) -> torch.device:
        device, problem = self.device, ""
        try:
            device = resolve_device(text, int(os.environ.get("LOCAL_RANK", "0")))
        except UserError as error:
            problem = str(error)
        answers = self.all_gather((device.type, problem))
        problems = [text for _, text in answers if text]
        if len({kind for kind, _ in answers}) > 1:
            problems.append(f"device: must be of one type in all processes ({', '.join(kind for kind, _ in answers)})")
        if problems:
            shared_error = self.shared_error(UserError(problems[0]))
            self.leave()
            raise shared_error
        return device

    @classmethod
    @contextlib.contextmanager
    def connect(cls, device: str = "auto") -> Iterator["World"]:
        """Joins, and leaves at the end. An error in one process ends all of them, and is reported by one."""
        world = cls.join(device)
        try:
            yield world
        except BaseException as error:
            if (shared := world.shared_error(error)) is error:
                raise
            raise shared from error
        finally:
            world.leave()

    def shared_error(self, error: BaseException) -> BaseException:
        """The error to raise where `error` ends this process: that of the process that failed first. Only that process
        reports it (`error.should_print`)."""
        if self.size == 1:
            return error
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
            error = OperationalError(
                f"another of the {self.size} processes ended without an error message (killed? out of memory?); "
                "the same command resumes from the last checkpoint"
            )
        text = str(error) if isinstance(error, UserError | OperationalError) else f"{type(error).__name__}: {error}"
        own_message = json.dumps([self.rank, isinstance(error, UserError), text])
        first_message = own_message
        with contextlib.suppress(RuntimeError):  # the launcher, which keeps the store, may be gone
            first_message = self.store.compare_set("ended", "", own_message).decode()
        if first_message != own_message:
            _, is_user_error, text = json.loads(first_message)
            error = UserError(text) if is_user_error else OperationalError(text)
        if isinstance(error, UserError | OperationalError):
            error.should_print = first_message == own_message
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

    def max_over_processes(self, number: int) -> int:
        """The maximum over all processes."""
        return max(int(value) for value in self.all_gather(number))

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0."""
        return self.all_gather(value if self.is_main_process else None)[0]

    def all_gather(self, value: Any) -> list[Any]:
        """The value of each process, in the order of ranks."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Returns once all processes are here."""
        self.all_gather(None)


@functools.cache
def _rendezvous() -> tuple[Any, int, int]:
    """The store of the launcher (or of rank 0, if it has none), the rank, and the number of processes."""
    return next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined, no-any-return]


def resolve_device(text: str, local_rank: int | None = None) -> torch.device:
    """The device of a setting; with `local_rank`, that of one of several processes on a machine. Raises `UserError` if
    it is not there."""
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")  # which is refused, too
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device: must be auto, cpu, cuda (a GPU; cuda:1 is the second) or mps, not {text!r}")
    if device.type == "mps" and (local_rank is not None or not torch.backends.mps.is_available()):
        raise UserError("device: mps is one Apple GPU for one process; device=cpu works everywhere")
    if device.type != "cuda":
        return device
    if local_rank is not None and device.index is not None:
        raise UserError(f"device: {text} is one device for several processes; device=cuda gives each its own")
    index = device.index if device.index is not None else (local_rank or 0)
    if index < (count := torch.cuda.device_count() if torch.cuda.is_available() else 0):
        return torch.device("cuda", index)
    process_text = f" for process {index} of this machine" if local_rank else ""
    raise UserError(f"device: {text}{process_text}: torch sees {count} CUDA devices here; device=cpu works everywhere")

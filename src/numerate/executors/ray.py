"""Workers on a Ray cluster: actors that load their libraries once and do one item after the other."""

import contextlib
import importlib
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.config import UserFile, setting, user_files
from numerate.errors import OperationalError, UserError
from numerate.executors import pool
from numerate.executors.executor import Executor, Failure, Finished, Work
from numerate.executors.local import cores
from numerate.executors.memory import KernelKills
from numerate.executors.worker import Reply, Worker
from numerate.training.stopping import Stop

PATIENCE = 30.0
"""Seconds without any worker until a warning says what the cluster lacks."""

_STORE = 256 * 2**20  # bytes of shared memory of a cluster of ours; items and results pass through one by one


@dataclass(frozen=True)
class Ray(Executor):
    """Actors on a Ray cluster: one that is there (`executor.address=auto`), or one begun on this machine for the work.

    Each actor reserves `num_cpus` and `num_gpus`, fractions too, so that several share a GPU. A cluster that is there
    needs numerate on every node, at the same version, and a file system that all nodes see. When the command dies, Ray
    ends its actors at once, and the next start resumes from the last checkpoints. See docs.ray.io, "Actors".
    """

    address: str | None = setting(
        None, "an existing cluster: auto, host:port, ray://host:port; null: $RAY_ADDRESS, or a new local one"
    )
    num_cpus: float | None = setting(None, "CPUs reserved per worker, as 0.5; null: threads")
    num_gpus: float = setting(0.0, "GPUs reserved per worker, as 0.25")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UserError(f"{name}: {value} cannot be reserved; a number from 0 is right, as 0.5")
            if value is not None and value > 1 and value != int(value):
                raise UserError(f"{name}: {value} is above 1 and no whole number; Ray shares one, or gives whole ones")

    def ready(self) -> None:
        if not _library().is_initialized():
            _refuse_silence(_address(self.address))

    def run(
        self,
        work: Work,
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Iterator[Finished]:
        self.ready()
        ray = _library()
        try:
            packed: bytes = ray.cloudpickle.dumps(work)
        except Exception as error:
            raise UserError(f"{type(work).__name__} cannot be sent to a worker: {error}") from error
        return self._run(ray, packed, work, items, stop or Stop(), tick)

    def _run(
        self, ray: Any, packed: bytes, work: Work, items: Sequence[Any], stop: Stop, tick: Callable[[], None]
    ) -> Iterator[Finished]:
        reserved = {"CPU": float(self.threads if self.num_cpus is None else self.num_cpus), "GPU": float(self.num_gpus)}
        with _cluster(ray, self.address, (self.workers or 1) * reserved["CPU"]):
            workers = min(self.workers or self._fitting(ray, reserved), max(1, len(items)))
            backend = Actors(ray, packed, reserved, self.threads, self.memory)
            yield from pool.Pool(backend, work, items, workers, self.timeout, stop, tick).run()

    def _fitting(self, ray: Any, reserved: Mapping[str, float]) -> int:
        """How many workers the nodes of the cluster hold at once, each whole on one node."""
        nodes = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive")]
        requested = {name: amount for name, amount in reserved.items() if amount} or {"CPU": 1.0}
        count = sum(
            min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in requested.items()) for node in nodes
        )
        if not count:
            there = {name: sum(node.get(name, 0.0) for node in nodes) for name in requested}
            raise UserError(
                f"executor: no node of the Ray cluster can hold a worker that reserves {_amounts(requested)}; all "
                f"{len(nodes)} of them together have {_amounts(there)}. Set executor.num_cpus= and "
                f"executor.num_gpus=, or "
                "workers= if more nodes will join"
            )
        return count


class Actors(pool.Backend):
    """Ray actors as workers."""

    def __init__(
        self, ray: Any, work: bytes, reserved: Mapping[str, float], threads: int, memory: float | None
    ) -> None:
        self._ray, self._reserved = ray, reserved
        self._work = ray.put(work)
        self._kills = KernelKills()
        made = ray.remote(num_cpus=reserved["CPU"], num_gpus=reserved["GPU"], concurrency_groups={"control": 1})(
            _actor(ray)
        )
        self._hire: Callable[[], Any] = lambda: made.remote(threads, memory)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        self._opened: set[int] = set()
        self._hired = 0
        self._begun = time.monotonic()

    def hire(self, index: int) -> Hashable:
        self._hired += 1
        actor = self._actors[self._hired] = self._hire()
        self._pending[actor.open.remote([self._work], user_files(), list(sys.path), os.getcwd())] = self._hired
        return self._hired

    def pack(self, item: Any) -> bytes:
        return self._ray.cloudpickle.dumps(item)  # type: ignore[no-any-return]

    def give(self, worker: Any, item: bytes) -> None:
        self._pending[self._actors[worker].do.remote(item)] = worker

    def request_stop(self, worker: Any) -> None:
        self._actors[worker].request_stop.remote()

    def wait(self, seconds: float) -> list[pool.Event]:
        if not self._pending:
            time.sleep(seconds)
            return []
        self._complain()
        with _readable():
            ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=seconds)
            if ready and len(self._pending) > 1:
                ready, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
            return [self._event(reference, self._pending.pop(reference)) for reference in ready]

    def _event(self, reference: Any, worker: int) -> pool.Event:
        try:
            message = self._ray.get(reference)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.RayTaskError) as error:
            return self._gone(worker, error)
        except self._ray.exceptions.OutOfMemoryError as error:
            return self._gone(worker, error)
        if isinstance(message, Reply):
            return pool.Event(worker, "over", reply=message)
        if isinstance(message, Failure):
            self.dismiss(worker)
            return pool.Event(worker, "refused", failure=message)
        self._opened.add(worker)
        return pool.Event(worker, "ready", name=message)

    def _gone(self, worker: int, error: Exception) -> pool.Event:
        opened = worker in self._opened
        self.kill(worker)
        text = str(error)
        out = isinstance(error, self._ray.exceptions.OutOfMemoryError) or "running low on memory" in text
        if out or ("End of file" in text and self._kills.one_more()):
            how = "its worker was killed, since its node had no memory left"
            failure = Failure("out of memory", f"{how}; fewer workers at once, or a smaller batch or model, need less")
        elif opened:
            failure = Failure("died", f"its worker died ({_why(text)}); the same command resumes", trace=text)
        else:
            failure = Failure("died", f"no worker could begin on the Ray cluster: {_why(text)}", trace=text)
        return pool.Event(worker, "gone", failure=failure)

    def dismiss(self, worker: Any) -> None:
        del self._actors[worker]  # an actor ends by itself when nobody holds it
        self._opened.discard(worker)
        for reference in [reference for reference, of in self._pending.items() if of == worker]:
            del self._pending[reference]

    def kill(self, worker: Any) -> None:
        with contextlib.suppress(Exception):  # it may be gone already
            self._ray.kill(self._actors[worker])
        self.dismiss(worker)

    def close(self) -> None:
        for worker in list(self._actors):
            self.kill(worker)

    def _complain(self) -> None:
        if self._opened or self._begun == math.inf or time.monotonic() - self._begun < PATIENCE:
            return
        self._begun = math.inf
        free = {name: self._ray.available_resources().get(name, 0.0) for name in self._reserved}
        warnings.warn(
            f"no worker has begun for {PATIENCE:.0f} s: each reserves {_amounts(self._reserved)}, and the Ray cluster "
            f"has {_amounts(free)} free; waiting",
            stacklevel=2,
        )


def _actor(ray: Any) -> type:
    """The class of the actors, made here so that nothing of it is imported where there is no Ray."""

    class NumerateWorker:
        """A worker as a Ray actor. `request_stop` has its own thread, so that it is handled while an item is done."""

        def __init__(self, threads: int, memory: float | None) -> None:
            self.worker = Worker(threads=threads, limit=memory, pack=_library().cloudpickle.dumps)

        def open(self, work: list[Any], files: Sequence[UserFile], path: list[str], folder: str) -> Any:
            """The worker's name, or the `Failure` of its start. `path` and `folder` are where the command finds
            modules and files; on another machine they may mean nothing."""
            sys.path.extend(entry for entry in path if entry not in sys.path)
            with contextlib.suppress(OSError):
                os.chdir(folder)
            return self.worker.open(_library().get(work[0]), files) or self.worker.name

        def do(self, item: bytes) -> Reply:
            return self.worker.do(item)

        @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
        def request_stop(self) -> None:
            self.worker.stop.ask()

    return NumerateWorker


def _library() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")  # it is reported as a failure
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError("executor: Ray needs the package ray; pip install 'numerate[ray]'") from error


@contextlib.contextmanager
def _cluster(ray: Any, address: str | None, cpus: float) -> Iterator[None]:
    """A cluster to work on: the one that this process is connected to, the one at an address, or one of our own."""
    if ray.is_initialized():
        yield
        return
    address = _address(address)
    _refuse_silence(address)
    given: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address == "local":
        given |= {
            "num_cpus": max(cores(), math.ceil(cpus)),
            "include_dashboard": False,
            "object_store_memory": _STORE,
            "_node_ip_address": "127.0.0.1",
        }
    with _quiet(), _signals_kept():
        try:
            ray.init(address, **given)
        except Exception as error:
            raise _no_cluster(address, error) from error
    try:
        yield
    finally:
        with _quiet(), _signals_kept():
            ray.shutdown()


def _address(given: str | None) -> str:
    return given or os.environ.get("RAY_ADDRESS") or "local"


def _refuse_silence(address: str) -> None:
    """Raises `UserError` at once where nobody listens; Ray itself would try for minutes."""
    found = re.fullmatch(r"(ray://)?\[?([^/\[\]]+?)\]?(?::([0-9]+))?", address)
    if address in ("local", "auto") or (found is None and "://" in address):
        return
    if found is None or (found[1] is None and found[3] is None):
        raise UserError(f"executor.address: {address!r} is none; right are auto, host:port (6379) and ray://host:10001")
    try:
        socket.create_connection((found[2], int(found[3] or 10001)), timeout=10).close()
    except (OSError, OverflowError) as error:
        message = getattr(error, "strerror", None) or error
        raise UserError(
            f"executor.address: nobody answers at {address} ({message}); `ray status` there says more"
        ) from error


def _no_cluster(address: str, error: Exception) -> UserError | OperationalError:
    message = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    if "InvalidAuthToken" in "".join(traceback.format_exception(error)):
        message = "it needs a token: put the cluster's into ~/.ray/auth_token and set RAY_AUTH_MODE=token"
    if address == "local":
        return OperationalError(f"executor: no Ray cluster could be begun on this machine: {message}")
    return UserError(f"executor.address: no Ray cluster could be reached at {address}: {message}")


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Turns the loss of a whole cluster into a fault."""
    try:
        yield
    except (ConnectionError, importlib.import_module("ray").exceptions.RaySystemError) as error:
        message = next(iter(str(error).splitlines()), "")
        raise OperationalError(
            f"the Ray cluster is gone ({message}); what is done is kept, the same command resumes"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Ray's notices from the user while it begins or ends."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restores the signal handlers that Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={amount:g}" for name, amount in resources.items() if amount or name == "CPU")


def _why(text: str) -> str:
    """What Ray's report says of how an actor ended, without its general advice."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["Ray does not say how"]
    reason = next((line for line in reversed(lines) if "Worker exit detail:" in line or "Error: " in line), lines[-1])
    return reason.partition("Worker exit detail:")[2].strip().partition(" Some common causes")[0] or reason[:300]

"""Workers on a Ray cluster: actors that import their libraries once and process one item after the other."""

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
from numerate.errors import OperationalError, UserError, import_extra
from numerate.executors import pool
from numerate.executors.executor import Executor, Failure, ItemOutcome, Work, pickle_with
from numerate.executors.local import num_available_cpus
from numerate.executors.memory import OOMKillCounter
from numerate.executors.worker import Reply, Worker
from numerate.training.stopping import Stop

WARN_AFTER = 30.0
"""Seconds without any worker before a warning about the missing resources of the cluster."""

_OBJECT_STORE_MEMORY = (
    256 * 2**20
)  # bytes of shared memory of a new local cluster; items and results pass through one by one


@dataclass(frozen=True)
class Ray(Executor):
    """Actors on a Ray cluster: an existing one (`executor.address=auto`), or one started on this machine for the work.

    Each actor reserves `num_cpus` and `num_gpus`, which may be fractions, so that several share a GPU. An existing
    cluster needs numerate on every node, at the same version, and a file system shared by all nodes. If the command
    dies, Ray ends its actors immediately, and the same command resumes from the last checkpoints. See docs.ray.io,
    "Actors".
    """

    address: str | None = setting(
        None, "an existing cluster: auto, host:port, ray://host:port; null: $RAY_ADDRESS, or a new local one"
    )
    num_cpus: float | None = setting(None, "CPUs reserved per worker, such as 0.5; null: threads", at_least=0)
    num_gpus: float = setting(0.0, "GPUs reserved per worker, such as 0.25", at_least=0)

    def conflicts(self) -> Iterator[str]:
        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            if value is not None and value > 1 and value != int(value):
                yield f"{name}: must be an integer if above 1, not {value:g}"

    def check_available(self) -> None:
        if not _import_ray().is_initialized():
            _check_reachable(_resolve_address(self.address))

    def run(
        self,
        work: Work,
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> Iterator[ItemOutcome]:
        self.check_available()
        ray = _import_ray()
        pickled_work = pickle_with(ray.cloudpickle.dumps, work, type(work).__name__)
        return self._run(ray, pickled_work, work, items, stop or Stop(), on_tick)

    def _run(
        self, ray: Any, pickled_work: bytes, work: Work, items: Sequence[Any], stop: Stop, on_tick: Callable[[], None]
    ) -> Iterator[ItemOutcome]:
        resources = {
            "CPU": float(self.threads if self.num_cpus is None else self.num_cpus),
            "GPU": float(self.num_gpus),
        }
        with _connected_cluster(ray, self.address, (self.workers or 1) * resources["CPU"]):
            workers = min(self.workers or self._max_workers(ray, resources), max(1, len(items)))
            backend = ActorBackend(ray, pickled_work, resources, self.threads, self.memory)
            yield from pool.Pool(backend, work, items, workers, self.timeout, stop, on_tick).run()

    def _max_workers(self, ray: Any, resources: Mapping[str, float]) -> int:
        """The number of workers that fit on the nodes of the cluster at once, each on one node."""
        nodes = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive")]
        requested = {name: amount for name, amount in resources.items() if amount} or {"CPU": 1.0}
        count = sum(
            min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in requested.items()) for node in nodes
        )
        if not count:
            available = {name: sum(node.get(name, 0.0) for node in nodes) for name in requested}
            raise UserError(
                "executor: no node of the Ray cluster has room for a worker that reserves "
                f"{_resources_text(requested)}; all {len(nodes)} of them together have {_resources_text(available)}. "
                "Set executor.num_cpus= and executor.num_gpus=, or workers= if more nodes will join"
            )
        return count


class ActorBackend(pool.Backend):
    """Ray actors as workers."""

    def __init__(
        self, ray: Any, work: bytes, resources: Mapping[str, float], threads: int, memory: float | None
    ) -> None:
        self._ray, self._resources, self.dumps = ray, resources, ray.cloudpickle.dumps
        self._work = ray.put(work)
        self._oom_kills = OOMKillCounter()
        actor_class = ray.remote(
            num_cpus=resources["CPU"], num_gpus=resources["GPU"], concurrency_groups={"control": 1}
        )(_make_actor_class(ray))
        self._create_actor: Callable[[], Any] = lambda: actor_class.remote(threads, memory)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        self._num_started = 0
        self._warn_at = time.monotonic() + WARN_AFTER

    def start_worker(self, slot: int) -> Hashable:
        self._num_started += 1
        actor = self._actors[self._num_started] = self._create_actor()
        self._pending[actor.open.remote([self._work], user_files(), list(sys.path), os.getcwd())] = self._num_started
        return self._num_started

    def send_item(self, worker: Any, item: bytes) -> None:
        self._pending[self._actors[worker].do.remote(item)] = worker

    def request_stop(self, worker: Any) -> None:
        self._actors[worker].request_stop.remote()

    def wait(self, seconds: float) -> list[tuple[Hashable, pool.Message]]:
        if not self._pending:
            time.sleep(seconds)
            return []
        if time.monotonic() >= self._warn_at:
            self._warn_no_workers()
        with _explain_lost_cluster():
            ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=seconds)
            if ready and len(self._pending) > 1:
                ready, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
            return [(self._pending.pop(reference), self._receive(reference)) for reference in ready]

    def _receive(self, reference: Any) -> pool.Message:
        exceptions = self._ray.exceptions
        try:
            message: pool.Message = self._ray.get(reference)
        except (exceptions.RayActorError, exceptions.RayTaskError, exceptions.OutOfMemoryError) as error:
            text = str(error)
            is_out_of_memory = isinstance(error, exceptions.OutOfMemoryError) or "running low on memory" in text
            is_out_of_memory = is_out_of_memory or ("End of file" in text and self._oom_kills.has_new_kill())
            start_text = f"no worker could start on the Ray cluster: {_exit_reason(text)}"
            start_failure = Failure("died", start_text, traceback=text)
            return pool.Exit(f"died ({_exit_reason(text)})", start_failure, is_out_of_memory, text)
        self._warn_at = math.inf  # there is a worker
        return message

    def release(self, worker: Any) -> None:
        del self._actors[worker]  # an actor ends by itself when it is no longer referenced
        for reference in [reference for reference, owner in self._pending.items() if owner == worker]:
            del self._pending[reference]

    def kill(self, worker: Any) -> None:
        with contextlib.suppress(Exception):  # it may already have ended
            self._ray.kill(self._actors[worker])
        self.release(worker)

    def close(self) -> None:
        for worker in list(self._actors):
            self.kill(worker)

    def _warn_no_workers(self) -> None:
        self._warn_at = math.inf
        free = {name: self._ray.available_resources().get(name, 0.0) for name in self._resources}
        warnings.warn(
            f"no worker has started for {WARN_AFTER:.0f} s: each reserves {_resources_text(self._resources)}, and the "
            f"Ray cluster has {_resources_text(free)} free; waiting",
            stacklevel=2,
        )


def _make_actor_class(ray: Any) -> type:
    """The actor class, defined here so that ray is imported only when it is used."""

    class NumerateWorker:
        """A worker as a Ray actor. `request_stop` has its own thread, so that it is handled while an item is done."""

        def __init__(self, threads: int, memory: float | None) -> None:
            self.worker = Worker(threads=threads, memory_limit=memory, dumps=_import_ray().cloudpickle.dumps)

        def open(self, work: list[Any], files: Sequence[UserFile], path: list[str], folder: str) -> Any:
            """The worker's name, or the `Failure` of its start. `path` and `folder` are the module path and working
            directory of the command; they may not exist on another machine."""
            sys.path.extend(entry for entry in path if entry not in sys.path)
            with contextlib.suppress(OSError):
                os.chdir(folder)
            return self.worker.open(_import_ray().get(work[0]), files) or self.worker.name

        def do(self, item: bytes) -> Reply:
            return self.worker.run_item(item)

        @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
        def request_stop(self) -> None:
            self.worker.stop.request()

    return NumerateWorker


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")  # it is reported as a failure
    return import_extra("ray", "executor", "ray")


@contextlib.contextmanager
def _connected_cluster(ray: Any, address: str | None, cpus: float) -> Iterator[None]:
    """Connects to a cluster: the one that this process is connected to, the one at an address, or a new local one."""
    if ray.is_initialized():
        yield
        return
    address = _resolve_address(address)
    _check_reachable(address)
    init_options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address == "local":
        init_options |= {
            "num_cpus": max(num_available_cpus(), math.ceil(cpus)),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_MEMORY,
            "_node_ip_address": "127.0.0.1",
        }
    with _quietly():
        try:
            ray.init(address, **init_options)
        except Exception as error:
            raise _connection_error(address, error) from error
    try:
        yield
    finally:
        with _quietly():
            ray.shutdown()


def _resolve_address(address: str | None) -> str:
    return address or os.environ.get("RAY_ADDRESS") or "local"


def _check_reachable(address: str) -> None:
    """Raises `UserError` immediately if the address does not answer; Ray itself would try for minutes."""
    match = re.fullmatch(r"(ray://)?\[?([^/\[\]]+?)\]?(?::([0-9]+))?", address)
    if address in ("local", "auto") or (match is None and "://" in address):
        return
    if match is None or (match[1] is None and match[3] is None):
        raise UserError(f"executor.address: must be auto, host:port (6379) or ray://host:10001, not {address!r}")
    try:
        socket.create_connection((match[2], int(match[3] or 10001)), timeout=10).close()
    except (OSError, OverflowError) as error:
        message = getattr(error, "strerror", None) or error
        raise UserError(f"executor.address: no answer from {address} ({message}); run `ray status` there") from error


def _connection_error(address: str, error: Exception) -> UserError | OperationalError:
    message = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    if "InvalidAuthToken" in "".join(traceback.format_exception(error)):
        message = "it needs a token: put the cluster's into ~/.ray/auth_token and set RAY_AUTH_MODE=token"
    if address == "local":
        return OperationalError(f"executor: no Ray cluster could be started on this machine: {message}")
    return UserError(f"executor.address: no Ray cluster could be reached at {address}: {message}")


@contextlib.contextmanager
def _explain_lost_cluster() -> Iterator[None]:
    """Turns the loss of a whole cluster into an `OperationalError`."""
    try:
        yield
    except (ConnectionError, importlib.import_module("ray").exceptions.RaySystemError) as error:
        message = next(iter(str(error).splitlines()), "")
        raise OperationalError(
            f"the Ray cluster is no longer reachable ({message}); finished items are kept, the same command resumes"
        ) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Hides Ray's messages while it starts or stops, and restores the signal handlers that it replaces."""
    logger = logging.getLogger("ray")
    old_level = logger.level
    old_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(old_level)
        if threading.current_thread() is threading.main_thread():
            for number, handler in old_handlers.items():
                if handler is not None:
                    signal.signal(number, handler)


def _resources_text(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={amount:g}" for name, amount in resources.items() if amount or name == "CPU")


def _exit_reason(text: str) -> str:
    """The reason in Ray's report of how an actor ended, without its general advice."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["Ray does not say how"]
    reason = next((line for line in reversed(lines) if "Worker exit detail:" in line or "Error: " in line), lines[-1])
    return reason.partition("Worker exit detail:")[2].strip().partition(" Some common causes")[0] or reason[:300]

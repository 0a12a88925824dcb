"""Workers on a Ray cluster: each item is a task of Ray, on an existing cluster or one of this machine."""

import contextlib
import faulthandler
import logging
import math
import os
import signal
import socket
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numerate.config import setting
from numerate.errors import OperationalError, UserError, error_text, import_extra
from numerate.runs.engines import engine, failures, worker
from numerate.runs.engines.engine import Engine, Failure, Function, OnTick, Outcome, not_started
from numerate.runs.engines.machine import num_available_cpus
from numerate.training.stopping import Stop

_OBJECT_STORE_MEMORY = 256 * 2**20  # bytes of shared memory of a new local cluster; items and results are small


@dataclass(frozen=True)
class Ray(Engine):
    """Tasks on a Ray cluster: an existing one (`engine.address=auto`), or one started on this machine for the work.

    Each task reserves `num_cpus` and `num_gpus`, which may be fractions, so that several share a GPU. An existing
    cluster needs numerate on every node, at the same version, and a file system shared by all nodes. If the command
    dies, Ray ends its tasks immediately, and the same command resumes from the last checkpoints. See docs.ray.io,
    "Tasks".
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
        if not import_ray().is_initialized():
            _reachable(self.address)

    def _map(
        self, function: Function, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: OnTick
    ) -> Iterator[Outcome]:
        ray, cpus = import_ray(), self.threads if self.num_cpus is None else self.num_cpus
        job = worker.Job.of(function, self, ray.cloudpickle.dumps)
        with connected_cluster(self.address, (self.workers or 1) * cpus):
            num_workers = self._num_workers(cpus)
            # Workers that died are replaced here: Ray's own retries would not know which ones were late.
            task = ray.remote(num_cpus=cpus, num_gpus=self.num_gpus, max_retries=0)(_do)
            waiting, tries = deque(range(len(items))), Counter[int]()
            running: dict[Any, tuple[int, float]] = {}
            kill_at, last_tick = math.inf, time.monotonic()
            try:
                while waiting or running:
                    if stop.requested:
                        yield from (not_started(index, stop) for index in waiting)
                        waiting.clear()
                        if kill_at == math.inf or time.monotonic() >= kill_at:
                            for reference in running:
                                ray.cancel(reference, force=kill_at < math.inf)
                            kill_at = time.monotonic() + engine.STOP_TIMEOUT
                    while waiting and len(running) < num_workers:
                        index = waiting.popleft()
                        item = ray.cloudpickle.dumps(items[index])
                        running[task.remote(job, item, engine.STOP_TIMEOUT)] = (index, time.monotonic())
                    ready, _ = ray.wait(list(running), timeout=engine.TICK_INTERVAL) if running else ([], [])
                    for reference in ready:
                        index, start_time = running.pop(reference)
                        tries[index] += 1
                        outcome = self._outcome(reference, index, time.monotonic() - start_time, tries[index], stop)
                        if outcome is None:
                            waiting.appendleft(index)
                        else:
                            yield outcome
                    if time.monotonic() - last_tick >= engine.TICK_INTERVAL:
                        on_tick()
                        last_tick = time.monotonic()
            finally:
                if running:
                    is_hurried = stop.requested  # a second Ctrl-C
                    for reference in running:
                        ray.cancel(reference, force=is_hurried)
                    ray.wait(list(running), num_returns=len(running), timeout=0 if is_hurried else engine.STOP_TIMEOUT)

    def _outcome(self, reference: Any, index: int, seconds: float, tries: int, stop: Stop) -> Outcome | None:
        """The outcome of a task that is over; None if its worker died and it is tried again."""
        ray = import_ray()
        try:
            return worker.received(index, ray.get(reference))
        except ray.exceptions.RayTaskError as error:  # the function could not be loaded
            raise replace(failures.failure_from_exception(error.cause), traceback=str(error)).to_error() from None
        except ray.exceptions.RaySystemError:
            raise
        except ray.exceptions.RayError as error:
            if stop.requested or isinstance(error, ray.exceptions.TaskCancelledError):
                failure = failures.stopped_failure(stop)
            elif self.timeout is not None and seconds >= self.timeout + engine.STOP_TIMEOUT:
                failure = failures.timeout_failure(self.timeout)
            elif tries < engine.MAX_TRIES:
                return None
            elif isinstance(error, ray.exceptions.OutOfMemoryError):
                text = "its worker was killed, since no memory was left; use fewer workers, or a smaller batch or model"
                failure = Failure("out of memory", text)
            else:
                failure = failures.died_failure("died on the Ray cluster", tries, str(error))
        return Outcome(index, failure=failure)

    def _num_workers(self, cpus: float) -> int:
        """The number of tasks at once: by default as many as fit on the nodes of the cluster, each on one node."""
        nodes = [node.get("Resources", {}) for node in import_ray().nodes() if node.get("Alive")]
        requested = {"CPU": cpus, "GPU": self.num_gpus}
        requested = {name: amount for name, amount in requested.items() if amount} or {"CPU": 1.0}
        count = sum(min(int(node.get(name, 0) / amount + 1e-9) for name, amount in requested.items()) for node in nodes)
        if not count:
            resources = ", ".join(f"{name}={amount:g}" for name, amount in requested.items())
            text = f"engine: no node of the Ray cluster has room for a worker that reserves {resources}"
            if self.workers is None:
                raise UserError(f"{text}. Set engine.num_cpus= and engine.num_gpus=, or workers= if nodes will join")
            warnings.warn(f"{text}; waiting for more nodes", stacklevel=2)
        return self.workers or count


def _do(job: worker.Job, item: bytes, stop_timeout: float) -> bytes:
    """A task of Ray. `ray.cancel` interrupts it as Ctrl-C does, which requests the stop of its item."""
    worker.load_function(job)
    stop = worker.ItemStop(job.timeout, handles_signals=True)
    if job.timeout is not None:
        faulthandler.dump_traceback_later(job.timeout + stop_timeout, exit=True)
    try:
        with stop:
            return worker.run_item(job, item, stop)
    finally:
        faulthandler.cancel_dump_traceback_later()


def import_ray() -> Any:
    """Imports the package. Raises `UserError` if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "worker died or was killed")  # it is told
    return import_extra("ray", "engine", "ray")


@contextlib.contextmanager
def connected_cluster(address: str | None, cpus: float) -> Iterator[None]:
    """Connects to a cluster: the one that this process is connected to, the one at an address, or a new local one with
    at least so many CPUs. Raises `UserError` if there is none, and `OperationalError` if it is lost."""
    ray = import_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        address = _reachable(address)
        options: dict[str, Any] = {"num_cpus": max(num_available_cpus(), math.ceil(cpus)), "include_dashboard": False}
        options |= {"object_store_memory": _OBJECT_STORE_MEMORY, "_node_ip_address": "127.0.0.1"}
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            with _unchanged_handler():
                ray.init(address, log_to_driver=False, configure_logging=False, **options if address == "local" else {})
        except Exception as error:
            text = f"engine.address: no Ray cluster could be reached at {address}: {error_text(error)}"
            raise UserError(text) from error
    try:
        yield
    except (ConnectionError, ray.exceptions.RaySystemError) as error:
        text = f"the Ray cluster is lost ({error_text(error)}); finished items are kept, the same command resumes"
        raise OperationalError(text) from error
    finally:
        if is_ours:
            with _unchanged_handler():
                ray.shutdown()


@contextlib.contextmanager
def _unchanged_handler() -> Iterator[None]:
    """Restores the handler of SIGTERM, which Ray replaces when it starts and ends."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, TypeError):  # outside the main thread, where Ray replaces none
            signal.signal(signal.SIGTERM, handler)


def _reachable(address: str | None) -> str:
    """The address, or the default one. Raises `UserError` immediately if it does not answer; Ray itself would try for
    minutes."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address not in ("local", "auto"):
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, ValueError, OverflowError) as error:
            text = f"engine.address: no answer from {address} ({error}); it must be auto, host:6379 or ray://host:10001"
            raise UserError(text) from error
    return address

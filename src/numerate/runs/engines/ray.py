"""Workers on a Ray cluster: each item is a task, which Ray starts again when its worker dies."""

import math
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numerate.config import setting
from numerate.errors import UserError
from numerate.runs.engines import engine, failures, worker
from numerate.runs.engines.engine import Engine, Failure, Function, OnTick, Outcome, not_started
from numerate.runs.engines.ray_cluster import check_reachable, connected_cluster, explain_lost_cluster, import_ray
from numerate.training.stopping import Stop


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
            check_reachable(self.address)

    def _map(
        self, function: Function, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: OnTick
    ) -> Iterator[Outcome]:
        ray = import_ray()
        job = worker.Job.of(function, self, ray.cloudpickle.dumps)
        resources = {
            "CPU": float(self.threads if self.num_cpus is None else self.num_cpus),
            "GPU": float(self.num_gpus),
        }
        with connected_cluster(ray, self.address, (self.workers or 1) * resources["CPU"]), explain_lost_cluster(ray):
            num_workers = self._num_workers(ray, resources)
            options = {"num_cpus": resources["CPU"], "num_gpus": resources["GPU"], "max_retries": engine.MAX_TRIES - 1}
            task = ray.remote(**options)(_do)
            waiting, running = deque(range(len(items))), dict[Any, tuple[int, float]]()
            kill_at = math.inf
            last_tick = time.monotonic()
            try:
                while waiting or running:
                    if stop.requested:
                        yield from (not_started(index, stop) for index in waiting)
                        waiting.clear()
                        if time.monotonic() >= kill_at or kill_at == math.inf:
                            for reference in running:
                                ray.cancel(reference, force=kill_at < math.inf)
                            kill_at = time.monotonic() + engine.STOP_TIMEOUT
                    while waiting and len(running) < num_workers:
                        index = waiting.popleft()
                        try:
                            item = ray.cloudpickle.dumps(items[index])
                        except Exception as error:
                            yield failures.not_sent(index, error)
                            continue
                        running[task.remote(job, item, engine.STOP_TIMEOUT)] = (index, time.monotonic())
                    ready, _ = ray.wait(list(running), timeout=engine.TICK_INTERVAL) if running else ([], [])
                    for reference in ready:
                        index, start_time = running.pop(reference)
                        yield self._outcome(ray, reference, index, start_time, stop)
                    if time.monotonic() - last_tick >= engine.TICK_INTERVAL:
                        on_tick()
                        last_tick = time.monotonic()
            finally:
                if running:
                    is_hurried = stop.requested  # a second Ctrl-C
                    for reference in running:
                        ray.cancel(reference, force=is_hurried)
                    ray.wait(list(running), num_returns=len(running), timeout=0 if is_hurried else engine.STOP_TIMEOUT)

    def _outcome(self, ray: Any, reference: Any, index: int, start_time: float, stop: Stop) -> Outcome:
        seconds, exceptions = time.monotonic() - start_time, ray.exceptions
        try:
            return worker.received(index, ray.get(reference))
        except exceptions.TaskCancelledError:
            failure = failures.stopped_failure(stop)
        except exceptions.OutOfMemoryError:
            text = "its worker was killed, since no memory was left; use fewer workers, or a smaller batch or model"
            failure = Failure("out of memory", text)
        except exceptions.RayTaskError as error:  # the function could not be loaded
            raise replace(failures.failure_from_exception(error.cause), traceback=str(error)).to_error() from None
        except (exceptions.RaySystemError, ConnectionError):
            raise
        except exceptions.RayError as error:
            text = str(error)
            if stop.requested:
                failure = failures.stopped_failure(stop)
            elif self.timeout is not None and seconds > self.timeout:
                failure = failures.timeout_failure(self.timeout)
            else:
                failure = failures.died_failure(f"died ({_exit_reason(text)})", engine.MAX_TRIES, text)
        return Outcome(index, failure=failure, seconds=seconds)

    def _num_workers(self, ray: Any, resources: Mapping[str, float]) -> int:
        """The number of tasks at once: by default as many as fit on the nodes of the cluster, each on one node."""
        nodes = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive")]
        requested = {name: amount for name, amount in resources.items() if amount} or {"CPU": 1.0}
        count = sum(
            min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in requested.items()) for node in nodes
        )
        if not count:
            available = {name: sum(node.get(name, 0.0) for node in nodes) for name in requested}
            text = (
                "engine: no node of the Ray cluster has room for a worker that reserves "
                f"{_resources_text(requested)}; all {len(nodes)} of them together have {_resources_text(available)}"
            )
            if self.workers is None:
                advice = "Set engine.num_cpus= and engine.num_gpus=, or workers= if more nodes will join"
                raise UserError(f"{text}. {advice}")
            warnings.warn(f"{text}; waiting for more nodes", stacklevel=2)
        return self.workers or count


def _do(job: worker.Job, item: bytes, stop_timeout: float) -> bytes:
    """A task of Ray. `ray.cancel` interrupts it as Ctrl-C does, which requests the stop of its item."""
    killer = None
    if job.timeout is not None:
        killer = threading.Timer(job.timeout + stop_timeout, os._exit, [1])
        killer.daemon = True
    try:
        worker.load_function(job)
        stop = worker.ItemStop(job.timeout, handles_signals=True)
        with stop:
            if killer is not None:
                killer.start()
            return worker.run_item(job, item, stop, import_ray().cloudpickle.dumps)
    finally:
        if killer is not None:
            killer.cancel()


def _resources_text(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={amount:g}" for name, amount in resources.items() if amount or name == "CPU")


def _exit_reason(text: str) -> str:
    """The reason in Ray's report of how a worker ended, without its general advice."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["Ray does not say how"]
    reason = next((line for line in reversed(lines) if "Worker exit detail:" in line or "Error: " in line), lines[-1])
    return reason.partition("Worker exit detail:")[2].strip().partition(" Some common causes")[0] or reason[:300]

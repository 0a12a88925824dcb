"""Worker processes on this machine: each imports its libraries once and processes one item after the other."""

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from numerate.config import user_files
from numerate.executors import pool
from numerate.executors.executor import Executor, Failure, ItemOutcome, Work, pickle_with
from numerate.executors.memory import OOMKillCounter
from numerate.executors.worker import Worker, thread_variables
from numerate.training.stopping import Stop

ORPHAN_TIMEOUT = 30.0
"""Seconds that a worker may continue its item after the command has ended."""

_STOP = b"stop"
_UNGUARDED = 87  # exit status of a worker that was about to start workers itself
_GUARD_MESSAGE = (
    "a script that starts workers needs `if __name__ == '__main__':` around its code, since each worker imports "
    "the script again; without executor=, workers=1 starts none"
)


@dataclass(frozen=True)
class Local(Executor):
    """Worker processes on this machine, one per core by default; GPUs are assigned round-robin.

    The processes are spawned (not forked) with one pipe each, so that a crash of one affects no other. They ignore
    Ctrl-C, which the command handles for all of them, and end when the command does, at the next safe point of their
    items. A script that uses this needs `if __name__ == "__main__":`.
    """

    @property
    def num_workers(self) -> int:
        return self.workers or max(1, num_available_cpus() // self.threads)

    def run(
        self,
        work: Work,
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> Iterator[ItemOutcome]:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            os._exit(_UNGUARDED)
        pickled_work = pickle.dumps((pickle_with(pickle.dumps, work, type(work).__name__), user_files()))
        return self._run(pickled_work, work, items, stop or Stop(), on_tick)

    def _run(
        self, pickled_work: bytes, work: Work, items: Sequence[Any], stop: Stop, on_tick: Callable[[], None]
    ) -> Iterator[ItemOutcome]:
        workers = min(self.num_workers, max(1, len(items)))
        backend = ProcessBackend(pickled_work, self.threads, self.memory, visible_gpus())
        yield from pool.Pool(backend, work, items, workers, self.timeout, stop, on_tick).run()


class ProcessBackend(pool.Backend):
    """Worker processes, each with its own pipe: there is no shared lock that a killed one could leave locked."""

    dumps = staticmethod(pickle.dumps)

    def __init__(self, work: bytes, threads: int, memory: float | None, gpus: Sequence[str]) -> None:
        self._work, self._threads, self._memory, self._gpus = work, threads, memory, gpus
        self._pipes: dict[Any, Connection] = {}
        self._exiting: list[Any] = []
        self._context = multiprocessing.get_context("spawn")
        self._oom_kills = OOMKillCounter()
        self._owner_pid = os.getpid()
        atexit.register(self.close)  # before multiprocessing waits for its processes

    def start_worker(self, slot: int) -> Hashable:
        parent_end, child_end = self._context.Pipe()
        variables = thread_variables(self._threads)
        if self._gpus:
            variables["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        process = self._context.Process(target=_worker_main, args=(child_end, os.getpid(), self._threads, self._memory))
        try:
            with temporary_environment(variables), block_interrupts():
                process.start()
        except BaseException:
            parent_end.close()
            raise
        finally:
            child_end.close()
        self._pipes[process] = parent_end
        return process

    def send_item(self, worker: Any, item: bytes) -> None:
        with suppress(OSError):
            self._pipes[worker].send_bytes(item)

    def request_stop(self, worker: Any) -> None:
        self.send_item(worker, _STOP)

    def wait(self, seconds: float) -> list[tuple[Hashable, pool.Message]]:
        worker_by_pipe: dict[Any, Any] = {pipe: worker for worker, pipe in self._pipes.items()}
        worker_by_sentinel = {worker.sentinel: worker for worker in self._pipes}
        ready = wait([*worker_by_pipe, *worker_by_sentinel], seconds)
        workers = [worker_by_pipe[one] if one in worker_by_pipe else worker_by_sentinel[one] for one in ready]
        if not workers:  # a process that a dead worker left behind may hold its pipes open
            workers = [worker for worker in self._pipes if not worker.is_alive()]
        self._exiting = [worker for worker in self._exiting if not _has_exited(worker, 0)]
        messages = ((worker, self._receive(worker)) for worker in dict.fromkeys(workers))
        return [(worker, message) for worker, message in messages if message is not None]

    def _receive(self, worker: Any) -> pool.Message | None:
        pipe = self._pipes[worker]
        try:
            if not pipe.poll() and worker.is_alive():
                return None
            message = pickle.loads(pipe.recv_bytes()) if pipe.poll() else None
        except (EOFError, OSError):
            message = None
        if message is None:
            return self._exit_of(worker)
        if message == "here":
            self.send_item(worker, self._work)
            return None
        return message  # type: ignore[no-any-return]

    def _exit_of(self, worker: Any) -> pool.Exit:
        worker.join(1.0)
        code = worker.exitcode
        reason = _exit_text(code)
        start_failure = Failure(
            "died",
            f"no worker could start: its process {reason} while it was starting. If this is a script: {_GUARD_MESSAGE}",
        )
        if code == _UNGUARDED:
            start_failure = Failure("user error", _GUARD_MESSAGE, 2)
        return pool.Exit(reason, start_failure, is_out_of_memory=code == -9 and self._oom_kills.has_new_kill())

    def release(self, worker: Any) -> None:
        self._pipes.pop(worker).close()
        self._exiting.append(worker)

    def kill(self, worker: Any) -> None:
        worker.kill()
        self.release(worker)

    def close(self) -> None:
        if os.getpid() != self._owner_pid:
            return  # a fork of the command, which owns no workers
        for worker in list(self._pipes):
            self.release(worker)
        end = time.monotonic() + pool.STOP_TIMEOUT
        try:
            while self._exiting:
                if _has_exited(self._exiting[0], max(0.0, end - time.monotonic())):
                    self._exiting.pop(0)
                elif time.monotonic() >= end:
                    self._exiting[0].kill()
                    end += 1.0
        finally:
            for worker in self._exiting:
                worker.kill()
            atexit.unregister(self.close)


def _has_exited(process: Any, seconds: float) -> bool:
    """Whether a process has ended within a number of seconds; its resources are then released."""
    process.join(seconds)
    if process.exitcode is None:
        return False
    process.close()
    return True


def _exit_text(code: int | None) -> str:
    if code is None:
        return "no longer answered"
    if code >= 0:
        return f"ended by itself with exit status {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed by signal {-code}"


def _worker_main(pipe: Connection, parent: int, threads: int, memory_limit: float | None) -> None:
    """A worker process: opens the work, then processes one item after the other until there are none. Its warnings are
    issued by the command, which prints each once."""
    texts: dict[str, None] = {}
    warnings.showwarning = lambda message, *_: texts.update({str(message): None})
    worker = Worker(threads=threads, memory_limit=memory_limit)
    inbox: SimpleQueue[bytes | None] = SimpleQueue()

    def on_signal(number: int, frame: object) -> None:
        worker.stop.signal = signal.Signals(number)
        worker.stop.request()
        inbox.put(None)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_receive_messages, args=(pipe, parent, worker.stop, inbox), daemon=True).start()
    try:
        pipe.send_bytes(pickle.dumps("here"))
        work = inbox.get()
        if work is None:
            return
        failure = worker.open(*pickle.loads(work))
        pipe.send_bytes(pickle.dumps(failure or worker.name))
        while failure is None and not worker.stop.requested and (item := inbox.get()) is not None:
            reply = replace(worker.run_item(item), warnings=tuple(texts))
            texts.clear()
            pipe.send_bytes(pickle.dumps(reply))
            if reply.is_last:
                return
    except OSError:
        return  # the command is gone


def _receive_messages(pipe: Connection, parent: int, stop: Stop, inbox: "SimpleQueue[bytes | None]") -> None:
    """Receives the command's messages, and stops the current item when the command is gone."""
    while True:
        try:
            if not pipe.poll(1.0):
                if os.getppid() != parent:  # where a process that the command left behind holds its pipes open
                    break
                continue
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            break
        if message == _STOP:
            stop.request()
        else:
            inbox.put(message)
    stop.request()
    inbox.put(None)
    time.sleep(ORPHAN_TIMEOUT)
    os._exit(1)


@contextmanager
def temporary_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Changes the environment, such as while a process starts: libraries read it when they are imported."""
    old_values = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in old_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Blocks Ctrl-C while a process starts; the process inherits this until it is ready to ignore the signal."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would let signals through again
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def num_available_cpus() -> int:
    """The number of CPUs that this process may use: its CPU affinity, limited by its control group."""
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(num_cpus, cgroup_cpu_limit(Path("/")) or num_cpus))


def cgroup_cpu_limit(system: Path) -> int | None:
    """The CPU limit of this process's control group (`cpu.max`, or `cpu.cfs_quota_us`), rounded up; None without a
    limit."""
    groups = system / "sys/fs/cgroup"
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join((groups / name).read_text() for name in files).split()
            return -(-int(quota) // int(period)) if int(quota) > 0 else None
    return None


def visible_gpus(system: Path = Path("/")) -> list[str]:
    """The GPUs visible to this process, named as in `CUDA_VISIBLE_DEVICES`, found without any library."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [] if visible.strip() in ("", "-1") else [name.strip() for name in visible.split(",")]
    cards = list((system / "proc/driver/nvidia/gpus").glob("*")) or list((system / "dev").glob("nvidia[0-9]*"))
    return [str(number) for number in range(len(cards))]

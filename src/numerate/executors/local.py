"""Worker processes on this machine: each loads its libraries once and does one item after the other."""

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from numerate.config import user_files
from numerate.errors import UserError
from numerate.executors import pool
from numerate.executors.executor import Executor, Failure, Finished, Work
from numerate.executors.memory import KernelKills
from numerate.executors.worker import Reply, Worker, threads_in
from numerate.training.stopping import Stop

ORPHAN = 30.0
"""Seconds that a worker may continue its item after the command is gone, until it ends itself."""

_STOP = b"stop"
_UNGUARDED = 87  # exit status of a worker that was about to start workers itself
_GUARD = (
    "a script that begins workers needs `if __name__ == '__main__':` around what it does, since each worker imports "
    "the script anew"
)


@dataclass(frozen=True)
class Local(Executor):
    """Worker processes on this machine, one per core by default; GPUs are assigned round-robin.

    The processes are spawned (not forked) with one pipe each, so that a crash of one affects no other. They ignore
    Ctrl-C, which the command handles for all of them, and end when the command does, at the next safe point of their
    items. A script that uses this needs `if __name__ == "__main__":`.
    """

    def run(
        self,
        work: Work,
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Iterator[Finished]:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            os._exit(_UNGUARDED)
        try:
            packed = pickle.dumps((pickle.dumps(work), user_files()))
        except Exception as error:
            raise UserError(f"{type(work).__name__} cannot be sent to a worker: {error}") from error
        return self._run(packed, work, items, stop or Stop(), tick)

    def _run(
        self, packed: bytes, work: Work, items: Sequence[Any], stop: Stop, tick: Callable[[], None]
    ) -> Iterator[Finished]:
        workers = min(self.workers or max(1, cores() // self.threads), max(1, len(items)))
        backend = Processes(packed, self.threads, self.memory, gpus())
        yield from pool.Pool(backend, work, items, workers, self.timeout, stop, tick).run()


class Processes(pool.Backend):
    """Worker processes. Each has a pipe of its own: no shared lock that a killed one could leave locked."""

    def __init__(self, work: bytes, threads: int, memory: float | None, gpus: Sequence[str]) -> None:
        self._work, self._threads, self._memory, self._gpus = work, threads, memory, gpus
        self._pipes: dict[Any, Connection] = {}
        self._opened: set[Any] = set()
        self._leaving: list[Any] = []
        self._context = multiprocessing.get_context("spawn")
        self._kills = KernelKills()
        self._owner = os.getpid()
        atexit.register(self.close)  # before multiprocessing waits for its processes

    def hire(self, index: int) -> Hashable:
        ours, theirs = self._context.Pipe()
        changed = threads_in(self._threads)
        if self._gpus:
            changed["CUDA_VISIBLE_DEVICES"] = self._gpus[index % len(self._gpus)]
        process = self._context.Process(target=_serve, args=(theirs, os.getpid(), self._threads, self._memory))
        try:
            with _environment(changed), _no_interrupt():
                process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._pipes[process] = ours
        return process

    def pack(self, item: Any) -> bytes:
        return pickle.dumps(item)

    def give(self, worker: Any, item: bytes) -> None:
        with suppress(OSError):
            self._pipes[worker].send_bytes(item)

    def request_stop(self, worker: Any) -> None:
        with suppress(OSError):
            self._pipes[worker].send_bytes(_STOP)

    def wait(self, seconds: float) -> list[pool.Event]:
        by_pipe: dict[Any, Any] = {pipe: worker for worker, pipe in self._pipes.items()}
        by_sentinel = {worker.sentinel: worker for worker in self._pipes}
        there = wait([*by_pipe, *by_sentinel], seconds)
        found = [by_pipe[one] if one in by_pipe else by_sentinel[one] for one in there]
        if not found:  # a process that a dead worker left behind may hold its pipes open
            found = [worker for worker in self._pipes if not worker.is_alive()]
        self._leaving = [worker for worker in self._leaving if not _ended(worker, 0)]
        return [event for worker in dict.fromkeys(found) if (event := self._event(worker)) is not None]

    def _event(self, worker: Any) -> pool.Event | None:
        pipe = self._pipes[worker]
        try:
            if not pipe.poll() and worker.is_alive():
                return None
            message = pickle.loads(pipe.recv_bytes()) if pipe.poll() else None
        except (EOFError, OSError):
            message = None
        if message is None:
            return self._gone(worker)
        if isinstance(message, Reply):
            return pool.Event(worker, "over", reply=message)
        if isinstance(message, Failure):
            self.dismiss(worker)
            return pool.Event(worker, "refused", failure=message)
        if message == "here":
            self.give(worker, self._work)
            return None
        self._opened.add(worker)
        return pool.Event(worker, "ready", name=message)

    def _gone(self, worker: Any) -> pool.Event:
        worker.join(1.0)
        code = worker.exitcode
        opened = worker in self._opened
        self.kill(worker)
        if code == -9 and self._kills.one_more():
            how = "the kernel killed its worker, since there was no memory left"
            failure = Failure("out of memory", f"{how}; fewer workers at once, or a smaller batch or model, need less")
            return pool.Event(worker, "gone", failure=failure)
        if code == _UNGUARDED and not opened:
            return pool.Event(worker, "refused", failure=Failure("mistake", _GUARD, 2))
        if opened:
            text = f"its worker {_how(code)}; the same command resumes"
        else:
            text = (
                f"no worker could begin: its process {_how(code)} while it was starting. If this is a script: {_GUARD}"
            )
        return pool.Event(worker, "gone", failure=Failure("died", text))

    def dismiss(self, worker: Any) -> None:
        self._pipes.pop(worker).close()
        self._opened.discard(worker)
        self._leaving.append(worker)

    def kill(self, worker: Any) -> None:
        worker.kill()
        self.dismiss(worker)

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a fork of the command, which has no workers
        for worker in list(self._pipes):
            self.dismiss(worker)
        end = time.monotonic() + pool.GRACE
        try:
            while self._leaving:
                if _ended(self._leaving[0], max(0.0, end - time.monotonic())):
                    self._leaving.pop(0)
                elif time.monotonic() >= end:
                    self._leaving[0].kill()
                    end += 1.0
        finally:
            for worker in self._leaving:
                worker.kill()
            atexit.unregister(self.close)


def _ended(process: Any, seconds: float) -> bool:
    """Whether a process has ended within so many seconds; its resources are then released."""
    process.join(seconds)
    if process.exitcode is None:
        return False
    process.close()
    return True


def _how(code: int | None) -> str:
    if code is None:
        return "no longer answered"
    if code >= 0:
        return f"ended by itself with exit status {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed by signal {-code}"


def _serve(pipe: Connection, parent: int, threads: int, limit: float | None) -> None:
    """A worker process: opens the work, then does one item after the other until there are none."""
    worker = Worker(threads=threads, limit=limit)
    inbox: SimpleQueue[bytes | None] = SimpleQueue()

    def on_signal(number: int, frame: object) -> None:
        worker.stop.signal = signal.Signals(number)
        worker.stop.ask()
        inbox.put(None)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_signal)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_listen, args=(pipe, parent, worker.stop, inbox), daemon=True).start()
    try:
        pipe.send_bytes(pickle.dumps("here"))
        work = inbox.get()
        if work is None:
            return
        failure = worker.open(*pickle.loads(work))
        pipe.send_bytes(pickle.dumps(failure or worker.name))
        while failure is None and not worker.stop.requested and (item := inbox.get()) is not None:
            reply = worker.do(item)
            pipe.send_bytes(pickle.dumps(reply))
            if reply.last:
                return
    except OSError:
        return  # the command is gone


def _listen(pipe: Connection, parent: int, stop: Stop, inbox: "SimpleQueue[bytes | None]") -> None:
    """Receives what the command sends, and stops the current item when the command is gone."""
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
            stop.ask()
        else:
            inbox.put(message)
    stop.ask()
    inbox.put(None)
    time.sleep(ORPHAN)
    os._exit(1)


@contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    """The environment changed while a process is begun: libraries read it before any line of ours runs there."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Holds Ctrl-C back while a process is begun, which inherits that until it is ready to ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cores() -> int:
    """The CPUs that this process may use: those it is bound to, and no more than its control group grants."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(bound, granted(Path("/")) or bound))


def granted(system: Path) -> int | None:
    """The CPUs that the control group of this process grants (`cpu.max`, or `cpu.cfs_quota_us`), rounded up; None
    where it grants all."""
    groups = system / "sys/fs/cgroup"
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join((groups / name).read_text() for name in files).split()
            return -(-int(quota) // int(period)) if int(quota) > 0 else None
    return None


def gpus(system: Path = Path("/")) -> list[str]:
    """The GPUs that this process may see, as `CUDA_VISIBLE_DEVICES` names them, found without any library."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [] if named.strip() in ("", "-1") else [name.strip() for name in named.split(",")]
    cards = list((system / "proc/driver/nvidia/gpus").glob("*")) or list((system / "dev").glob("nvidia[0-9]*"))
    return [str(number) for number in range(len(cards))]

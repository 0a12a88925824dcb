"""What workers do in the tests of executors. Workers import this file by its name, hence one that nobody else has."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.executors import local
from numerate.executors.executor import ItemOutcome, Work, WorkerContext
from numerate.training.disk import format_bytes


def done(found: list[ItemOutcome]) -> dict[int, Any]:
    """The results of items, each of which came back once, or the kinds of their failures."""
    assert len(found) == len({one.index for one in found})
    return {one.index: one.result if one.failure is None else one.failure.kind for one in found}


class Unreadable:
    """Can be sent, but not read where it arrives."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("nobody can read this")


@dataclass(frozen=True)
class Deeds(Work):
    """An item is the name of a deed and what it takes: `("square", 3)`."""

    opened: str = ""
    """A file that gets a line for each time that a worker opens this."""
    orphan: float = 30.0

    def open(self, context: WorkerContext) -> Callable[[tuple[Any, ...]], Any]:
        local.ORPHAN_TIMEOUT = self.orphan
        if self.opened:
            with open(self.opened, "a") as file:
                file.write(f"{context.worker}\n")
        return lambda item: getattr(Deed(context), item[0])(*item[1:])

    def item_name(self, item: tuple[Any, ...]) -> str:
        return f"the deed {item[0]}"


@dataclass(frozen=True)
class Failing(Work):
    """Work that cannot be opened."""

    how: str

    def open(self, context: WorkerContext) -> Callable[[Any], Any]:
        return getattr(Deed(context), self.how)()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Deed:
    context: WorkerContext

    def square(self, number: int) -> int:
        return number * number

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=1)

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def meet(self, folder: str, count: int) -> str:
        """Waits until so many workers are here; the GPUs that this one may see."""
        (Path(folder) / self.context.worker).touch()
        self.wait_for(folder, count)
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def wait_for(self, folder: str, count: int) -> str:
        end = time.monotonic() + 60
        while len(list(Path(folder).iterdir())) < count and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.2)
        return "there"

    def put(self, folder: str) -> None:
        (Path(folder) / "put").touch()

    def where(self) -> tuple[str, int, str, bool, int]:
        here = (self.context.worker, os.getpid(), os.environ["OMP_NUM_THREADS"])
        return (*here, "torch" in sys.modules, self.context.threads)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_of_memory(self, count: str) -> None:
        Path(count).write_text("1")
        self.die()

    def leave(self) -> None:
        os._exit(3)

    def mistake(self) -> None:
        raise UserError("this name is none")

    def fault(self) -> None:
        raise OperationalError("the disk is full")

    def error(self) -> None:
        format_bytes("nothing")  # type: ignore[arg-type]

    def slip(self) -> None:
        raise ZeroDivisionError("by nothing")

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    def call(self, thing: Any) -> Any:
        return thing()

    def exit(self) -> None:
        sys.exit(4)

    def loop(self) -> None:
        while True:
            pass

    def stuck(self, began: str = "") -> None:
        if began:
            Path(began).touch()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(1000)

    def patient(self, began: str = "", ended: str = "") -> None:
        """Runs until stop is requested, then ends well."""
        if began:
            Path(began).write_text(str(os.getpid()))
        end = time.monotonic() + 60
        while not self.context.stop.requested and time.monotonic() < end:
            time.sleep(0.01)
        if ended:
            Path(ended).write_text("well")
        raise KeyboardInterrupt

    def take(self, count: int) -> int:
        return len(bytearray(count))

    def unreadable(self) -> Any:
        return Unreadable()

    def same(self, value: Any) -> Any:
        return value

    def ask_us(self) -> str:
        """What `kill PID` does to a worker."""
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 10
        while not self.context.stop.requested and time.monotonic() < end:
            time.sleep(0.01)
        raise KeyboardInterrupt

"""What workers do in the tests of engines. Workers import this file by its name, hence one that nobody else has."""

import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.runs.engines.engine import Outcome
from numerate.runs.engines.worker import current_stop
from numerate.training.disk import format_bytes


def done(found: list[Outcome]) -> dict[int, Any]:
    """The results of items, each of which came back once, or the kinds of their failures."""
    assert len(found) == len({one.index for one in found})
    return {one.index: one.result if one.failure is None else one.failure.kind for one in found}


@dataclass(frozen=True)
class Deeds:
    """An item is the name of a deed and what it takes: `("square", 3)`."""

    folder: str = ""

    def __call__(self, item: tuple[Any, ...]) -> Any:
        return getattr(self, item[0])(*item[1:])

    def name_of(self, item: tuple[Any, ...]) -> str:
        return f"the deed {item[0]}"

    def square(self, number: int) -> int:
        return number * number

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=1)

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def meet(self, folder: str, count: int) -> str:
        """Waits until so many workers are here; the GPUs that this one may see."""
        (Path(folder) / str(os.getpid())).touch()
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

    def where(self) -> tuple[int, str, int]:
        import torch

        return os.getpid(), os.environ["OMP_NUM_THREADS"], torch.get_num_threads()

    def die(self, number: int = signal.SIGKILL) -> None:
        os.kill(os.getpid(), number)

    def die_at_first(self, times: int) -> str:
        """Dies so many times, then ends well."""
        tries = Path(self.folder) / "tries"
        with open(tries, "a") as file:
            file.write("x")
        if len(tries.read_text()) <= times:
            self.die()
        return tries.read_text()

    def leave(self, status: int) -> None:
        os._exit(status)

    def mistake(self) -> None:
        raise UserError("this name is none")

    def fault(self) -> None:
        raise OperationalError("the disk is full")

    def error(self) -> None:
        format_bytes("nothing")  # type: ignore[arg-type]

    def slip(self) -> None:
        raise ZeroDivisionError("by nothing")

    def forget(self) -> None:
        raise MemoryError("no room")

    def call(self, thing: Any) -> Any:
        return thing()

    def exit(self) -> None:
        sys.exit(4)

    def loop(self) -> None:
        while True:
            pass

    def stuck(self, began: str = "") -> None:
        if began:
            with open(began, "a") as file:
                file.write("x")
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(1000)

    def patient(self, began: str = "", ended: str = "") -> None:
        """Runs until stop is requested, then ends well."""
        if began:
            Path(began).write_text(str(os.getpid()))
        end = time.monotonic() + 60
        while not current_stop().requested and time.monotonic() < end:
            time.sleep(0.01)
        if ended:
            Path(ended).write_text("well")
        raise KeyboardInterrupt

    def ask_us(self) -> str:
        """What `kill PID` does to a worker."""
        os.kill(os.getpid(), signal.SIGTERM)
        return self.patient()  # type: ignore[func-returns-value]


class Closed(Deeds):
    """Cannot be loaded in a worker."""

    def __reduce__(self) -> Any:
        return getattr, (Deeds(), "nowhere")

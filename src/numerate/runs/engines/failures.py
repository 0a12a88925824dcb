"""What is said of an item that failed: every exception, and every death of a worker, as a `Failure`."""

import signal
import traceback

from numerate.errors import OperationalError, UserError, describe_error, user_code_location
from numerate.runs.engines import memory
from numerate.runs.engines.engine import Failure
from numerate.training import disk
from numerate.training.lock import LockedError
from numerate.training.stopping import Stop


def stopped_failure(stop: Stop) -> Failure:
    """The failure of an item that was stopped."""
    return Failure("stopped", "stopped; the same command resumes from here", stop.status or 130)


def timeout_failure(seconds: float) -> Failure:
    """The failure of an item that took too long."""
    return Failure("timeout", f"took longer than timeout={seconds:g} s")


def died_failure(reason: str, tries: int, traceback: str | None = None) -> Failure:
    """The failure of an item whose worker died each time, at last for a reason such as "was killed by signal 9"."""
    text = f"its worker {reason}, the last of {tries} tries; the same command resumes"
    return Failure("died", text, traceback=traceback)


def exit_text(code: int | None) -> str:
    """How a process ended, as in "its worker was killed by signal 11 (Segmentation fault)"."""
    if code is None or code >= 0:
        return f"ended by itself with exit status {code}"
    advice = ", as by the kernel if there is no memory left" if code == -signal.SIGKILL else ""
    return f"was killed by signal {-code} ({signal.strsignal(-code)}){advice}"


def failure_from_exception(error: BaseException) -> Failure:
    """Converts an exception to a `Failure`. An unexpected one is a user error if it comes from a user's file, otherwise
    an error of the program."""
    trace, notes = "".join(traceback.format_exception(error)), "\n".join(getattr(error, "__notes__", [])) or None
    if (cause := memory.out_of_memory_error(error)) is not None:
        is_explained = isinstance(error, OperationalError) and memory.is_on_gpu(cause)
        return Failure("out of memory", str(error) if is_explained else memory.out_of_memory_text(cause), 1, trace)
    if disk.is_full(error):
        return Failure("disk full", str(error), 1, trace)
    if isinstance(error, LockedError):
        return Failure("busy", str(error), 2)
    if isinstance(error, UserError):
        return Failure("user error", str(error), 2, notes)
    if isinstance(error, OperationalError):
        return Failure("operational error", str(error), 1, notes)
    if user_code_location(error) is not None:
        return Failure("user error", describe_error(error), 2, trace)
    return Failure("error", f"{describe_error(error)} (--traceback shows where)", 1, trace)


def failure_to_record(error: Exception) -> Failure:
    """The failure of a run that ended with an error. Raises the error again if it is not the run's own: another process
    trains it, the disk is full, or its worker has no memory left."""
    failure = failure_from_exception(error)
    if failure.kind in ("busy", "disk full", "out of memory"):
        raise error
    return failure

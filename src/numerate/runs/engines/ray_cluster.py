"""The connection to a Ray cluster, and what is said if there is none."""

import contextlib
import logging
import math
import os
import re
import signal
import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from numerate.errors import OperationalError, UserError, import_extra
from numerate.runs.engines.engine import MAX_TRIES
from numerate.runs.engines.machine import num_available_cpus

_OBJECT_STORE_MEMORY = 256 * 2**20  # bytes of shared memory of a new local cluster; items and results are small


def import_ray() -> Any:
    """Imports the package. Raises `UserError` if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "worker died or was killed|retries remaining")  # it is told
    os.environ.setdefault("RAY_task_oom_retries", str(MAX_TRIES - 1))  # for ever, otherwise
    return import_extra("ray", "engine", "ray")


@contextlib.contextmanager
def connected_cluster(ray: Any, address: str | None, cpus: float) -> Iterator[None]:
    """Connects to a cluster: the one that this process is connected to, the one at an address, or a new local one."""
    if ray.is_initialized():
        yield
        return
    address = check_reachable(address)
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


def check_reachable(address: str | None) -> str:
    """The address, or the default one. Raises `UserError` immediately if it does not answer; Ray itself would try for
    minutes."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    match = re.fullmatch(r"(ray://)?\[?([^/\[\]]+?)\]?(?::([0-9]+))?", address)
    if address in ("local", "auto") or (match is None and "://" in address):
        return address
    if match is None or (match[1] is None and match[3] is None):
        raise UserError(f"engine.address: must be auto, host:port (6379) or ray://host:10001, not {address!r}")
    try:
        socket.create_connection((match[2], int(match[3] or 10001)), timeout=10).close()
    except (OSError, OverflowError) as error:
        message = getattr(error, "strerror", None) or error
        raise UserError(f"engine.address: no answer from {address} ({message}); run `ray status` there") from error
    return address


def _connection_error(address: str, error: Exception) -> UserError | OperationalError:
    message = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    if "InvalidAuthToken" in "".join(traceback.format_exception(error)):
        message = "it needs a token: put the cluster's into ~/.ray/auth_token and set RAY_AUTH_MODE=token"
    if address == "local":
        return OperationalError(f"engine: no Ray cluster could be started on this machine: {message}")
    return UserError(f"engine.address: no Ray cluster could be reached at {address}: {message}")


@contextlib.contextmanager
def explain_lost_cluster(ray: Any) -> Iterator[None]:
    """Turns the loss of a whole cluster into an `OperationalError`."""
    try:
        yield
    except (ConnectionError, ray.exceptions.RaySystemError) as error:
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

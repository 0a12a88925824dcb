"""Studies of tiny runs, and two quick ways to do them: in this process, and in processes that need import nothing."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.context import ForkContext
from pathlib import Path
from typing import Any

import pytest

from failures import small_disk
from numerate.errors import OperationalError
from numerate.positions.added import Learned
from numerate.recipes.study import Study
from numerate.results import page
from numerate.runs.engines.engine import Engine
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.study import run_study
from numerate.training.recipe import Recipe
from small_runs import TINY

__all__ = ["small_disk"]

_LEARNED = replace(TINY, title="learned", model=replace(TINY.model, positions=(Learned(),)))


@pytest.fixture(scope="session")
def tiny() -> Recipe:
    """Four steps of a tiny model."""
    return TINY


@pytest.fixture(scope="session")
def pair() -> Study:
    """Two variants of it."""
    return Study("pair", "Which of two?", (TINY, _LEARNED))


@pytest.fixture
def here() -> Engine:
    return InProcess()


def _no_report(folder: Path, question: str, states: Any) -> Path:
    """In the place of drawing a report, which takes longer than all the tiny runs."""
    path = folder / "report.html"
    path.write_text("drawn")
    return path


@pytest.fixture
def local_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands begin no processes: what they give to `Local` is done in this one."""
    monkeypatch.setattr(Local, "_map", InProcess._map)


@pytest.fixture(scope="session")
def quietly() -> Callable[[Study, Path], None]:
    """quietly(study, runs): does a study in this process, without a report."""

    def quietly(study: Study, runs: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page, "write_study_page", _no_report)
            _, done = run_study(study, runs_dir=runs, engine=InProcess())
        assert [one.error for one in done] == [None] * len(done)

    return quietly


class Command:
    """A study at work in a process of its own, with workers of its own: forked, so that nothing is imported anew."""

    def __init__(self, study: Study, runs: Path, log: Path, **more: Any) -> None:
        self.runs, self.log = runs, log
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._work(study, more)
        self.status: int | None = None

    def _work(self, study: Study, more: dict[str, Any]) -> None:
        status = 70
        try:
            os.setsid()
            number = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(number, 1)
            os.dup2(number, 2)
            sys.stdout = sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            page.write_study_page = _no_report
            multiprocessing.get_context = lambda kind: ForkContext()  # type: ignore[assignment, return-value]
            more = {"engine": Local(workers=2), **more}
            _, done = run_study(study, runs_dir=self.runs, **more)
            status = max(one.exit_status for one in done)
        except OperationalError as error:
            print(error)
            status = 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit status, negative for a signal."""
        end = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                self.kill_all()
                raise AssertionError(f"still at work after {seconds} s: {self.output}")
            else:
                time.sleep(0.01)
        return self.status

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def over(self) -> bool:
        if self.status is None and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.status = -signal.SIGKILL
        return self.status is not None

    def workers(self) -> list[int]:
        """The processes of its workers."""
        try:
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:
            return []

    def kill_a_worker(self) -> bool:
        """Kills one of its workers, if it has any."""
        for pid in self.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def kill_all(self) -> None:
        """It and its workers, by one signal."""
        with contextlib.suppress(ProcessLookupError):  # it may have come to its end just now
            os.killpg(self.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def warm(quietly: Callable[[Study, Path], None], tmp_path_factory: pytest.TempPathFactory) -> None:
    """All that a first run imports is imported, so that no forked worker does it again."""
    quietly(Study("warm", "?", [TINY]), tmp_path_factory.mktemp("warm"))


@pytest.fixture
def begin(warm: None, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """begin(study, runs): a `Command` at work on it. What is left of them is killed at the end."""
    if sys.platform != "linux":
        pytest.skip("finds the workers of a process in /proc")
    begun: list[Command] = []

    def begin(study: Study, runs: Path, **more: Any) -> Command:
        begun.append(Command(study, runs, tmp_path / f"command-{len(begun)}.txt", **more))
        return begun[-1]

    yield begin
    for command in begun:
        with contextlib.suppress(ProcessLookupError):
            command.kill_all()
        if command.status is None:
            os.waitpid(command.pid, 0)

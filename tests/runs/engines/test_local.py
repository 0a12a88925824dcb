"""Promises of workers: every item comes back once, and nothing that one does is another's concern. Those that Ray keeps
too are tested on its tasks as well."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # workers look for modules where we do

from engine_deeds import Closed, Deeds, done

from numerate.config import load_user_parts
from numerate.errors import OperationalError
from numerate.runs.engines import Local, Ray, engine, local, machine
from numerate.runs.engines.engine import Outcome
from numerate.runs.engines.failures import failure_from_exception
from numerate.runs.engines.memory import out_of_memory_error
from numerate.training.stopping import Stop

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is needed of a process")


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STOP_TIMEOUT", 2.0)


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.slow)])
def anywhere(request: pytest.FixtureRequest) -> Any:
    """The class of an engine that has workers."""
    if request.param == "local":
        return Local
    request.getfixturevalue("cluster")
    return Ray


def text_of(found: list[Outcome], index: int) -> str:
    failure = next(one.failure for one in found if one.index == index)
    assert failure is not None
    return failure.text


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# Every item comes back once -------------------------------------------------------------------------------------------


def test_every_item_comes_back_once_with_its_result(anywhere: Any) -> None:
    items = [*[("square", number) for number in range(60)], ("mistake",), ("error",)]
    found = list(anywhere(workers=2).map(Deeds(), items))
    assert done(found) == {number: number * number for number in range(60)} | {60: "user error", 61: "error"}


def test_items_come_back_as_they_are_completed_and_not_in_their_order(tmp_path: Path) -> None:
    found = Local(workers=2).map(Deeds(), [("wait_for", str(tmp_path), 1), ("square", 1), ("put", str(tmp_path))])
    assert [one.index for one in found] == [1, 2, 0]


def test_warnings_of_workers_are_those_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="^thin ice$"):
        assert done(list(Local(workers=1).map(Deeds(), [("warn", "thin ice"), ("square", 3)]))) == {0: None, 1: 9}
    assert capfd.readouterr().err == ""


def test_a_worker_keeps_to_its_threads(anywhere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = list(anywhere(workers=1, threads=2).map(Deeds(), [("where",)]))
    pid, environment, threads = found[0].result
    assert (environment, threads) == ("2", 2)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert pid != os.getpid()


def test_gpus_are_dealt_out_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    found = list(Local(workers=3).map(Deeds(), [("meet", str(tmp_path), 3)] * 3))
    assert sorted(one.result for one in found) == ["4", "4", "6"]


def test_the_gpus_of_a_machine_are_counted_without_any_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    assert machine.visible_gpus(tmp_path) == ["0", "1"]
    for given, seen in {"": [], "-1": [], "GPU-8a, GPU-9b": ["GPU-8a", "GPU-9b"]}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        assert machine.visible_gpus(tmp_path) == seen


@pytest.mark.parametrize(("limit", "count"), [("max 100000", 64), ("150000 100000", 2)])
def test_a_container_has_the_cores_that_it_is_granted(
    tmp_path: Path, limit: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert machine.num_available_cpus(tmp_path) == 64
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(limit)
    assert machine.num_available_cpus(tmp_path) == count


def test_an_error_in_a_file_of_the_users_own_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import json\n"
        "class Bad:\n    def __init__(self, how): self.how = how\n"
        "    def __call__(self):\n"
        "        if self.how == 'raise':\n            raise ValueError('boom\\n  and more ' + 'x' * 500)\n"
        "        return self.how if self.how == 'well' else json.loads('{')\n"
    )
    bad = load_user_parts(path).Bad
    found = list(Local(workers=1).map(Deeds(), [("call", bad(how)) for how in ("raise", "library", "well")]))
    assert done(found) == {0: "user error", 1: "user error", 2: "well"}
    assert text_of(found, 0).startswith("ValueError in mine.py, line 6: boom and more xxx")
    assert len(text_of(found, 0)) < 340
    assert text_of(found, 1).startswith("JSONDecodeError in mine.py, line 7: Expecting")


# What fails is one item -----------------------------------------------------------------------------------------------


def test_an_exception_is_the_failure_of_its_item_alone_in_the_words_of_its_kind() -> None:
    items = [("mistake",), ("fault",), ("error",), ("exit",), ("square", 3), ("slip",), ("forget",)]
    found = list(Local(workers=1).map(Deeds(), items))
    kinds = ["user error", "operational error", "error", "user error", 9, "user error", "out of memory"]
    assert done(found) == dict(enumerate(kinds))
    failures = [one.failure for one in found if one.failure is not None]
    assert [failure.status for failure in failures] == [2, 1, 1, 2, 2, 1]
    assert re.fullmatch(r"SystemExit in engine_deeds\.py, line \d+: 4", failures[3].text)
    assert re.fullmatch(r"ZeroDivisionError in engine_deeds\.py, line \d+: by nothing", failures[4].text)
    assert [failure.text for failure in failures[:2]] == ["this name is none", "the disk is full"]
    message = "internal error, please report it: TypeError: '<' not supported between instances of 'str' and 'int'"
    assert failures[2].text == f"{message} (--traceback shows where)"
    assert "in error" in str(failures[2].traceback)
    assert failures[5].text.startswith("the machine is out of memory (MemoryError:")
    assert not any(failure.is_transient for failure in failures)


def test_an_item_whose_worker_dies_is_tried_three_times_and_the_others_are_unaffected(
    anywhere: Any, tmp_path: Path
) -> None:
    items = [("die",), ("square", 2), ("leave", 3), ("square", 3), ("die_at_first", 2), ("leave", 0)]
    found = list(anywhere(workers=2).map(Deeds(str(tmp_path)), items))
    assert done(found) == {0: "died", 1: 4, 2: "died", 3: 9, 4: "xxx", 5: "died"}
    for index in (0, 2, 5):
        assert text_of(found, index).startswith("its worker ")
        assert text_of(found, index).endswith("; the same command resumes")
        assert len(text_of(found, index).splitlines()[0]) == len(text_of(found, index)) < 200
    if anywhere is Local:
        assert "was killed by signal 9 (Killed)" in text_of(found, 0)
        for index, status in ((2, 3), (5, 0)):
            assert f"ended by itself with exit status {status}" in text_of(found, index)


def test_the_item_of_a_worker_that_died_comes_first_again(tmp_path: Path) -> None:
    """A search proposes a point by the trials before it."""
    found = Local(workers=1).map(Deeds(str(tmp_path)), [("die_at_first", 2), ("square", 2)])
    assert [one.index for one in found] == [0, 1]


def test_an_item_whose_worker_is_stopped_from_outside_is_tried_again_as_after_a_death() -> None:
    found = list(Local(workers=1).map(Deeds(), [("ask_us",), ("square", 2)]))
    assert done(found) == {0: "died", 1: 4}
    assert text_of(found, 0) == "its worker was stopped from outside, the last of 3 tries; the same command resumes"


def test_a_worker_that_never_starts_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TICK_INTERVAL", 0.0)
    monkeypatch.setattr(local, "START_TIMEOUT", 0.0)
    with pytest.raises(OperationalError, match=r"no worker could start: its process did not start within 0 s\."):
        list(Local(workers=1).map(Deeds(), [("square", 2)]))


# Items that never end -------------------------------------------------------------------------------------------------


def test_items_that_never_end_are_given_up_one_that_can_ends_well_and_no_other_is_held_up(
    anywhere: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STOP_TIMEOUT", 0.7)
    ended = tmp_path / "ended"
    items = [("loop",), ("stuck",), ("patient", "", str(ended)), ("square", 3)]
    found = list(anywhere(workers=2, timeout=0.7).map(Deeds(), items))
    assert done(found) == {0: "timeout", 1: "timeout", 2: "timeout", 3: 9}
    assert text_of(found, 0) == "took longer than timeout=0.7 s"
    assert not any(one.failure.is_transient for one in found if one.failure is not None)
    assert ended.read_text() == "well"


def test_a_clock_that_is_set_forward_ends_no_item(monkeypatch: pytest.MonkeyPatch) -> None:
    shift, real = [0.0], time.time

    def ask() -> None:
        shift[0] = 86400.0

    monkeypatch.setattr(time, "time", lambda: real() + shift[0])
    assert done(list(Local(workers=1, timeout=30).map(Deeds(), [("sleep", 2.0)], on_tick=ask))) == {0: "slept"}


# Memory ---------------------------------------------------------------------------------------------------------------


def test_memory_that_ran_out_is_known_from_every_library_that_says_so() -> None:
    class OutOfMemoryError(RuntimeError):
        """As torch.cuda's."""

    torch_says = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
    for error in (MemoryError(), RuntimeError(torch_says), OSError(12, "Cannot allocate memory"), OutOfMemoryError()):
        assert out_of_memory_error(error) is error
    fault, cause = OperationalError("the step failed"), MemoryError("here")
    fault.__cause__ = cause
    assert out_of_memory_error(fault) is cause
    assert out_of_memory_error(ValueError("out of memory of a person")) is None


def test_advice_for_a_gpu_out_of_memory_reaches_the_command() -> None:
    fault = OperationalError("the GPU is out of memory: training.micro_batch_size=4 needs less")
    fault.__cause__ = RuntimeError("CUDA out of memory")
    failure = failure_from_exception(fault)
    assert (failure.kind, failure.text) == ("out of memory", str(fault))


# Stopping -------------------------------------------------------------------------------------------------------------


def test_when_stopped_items_at_hand_end_well_and_the_others_are_not_begun(anywhere: Any, tmp_path: Path) -> None:
    began, ended, stop = tmp_path / "began", tmp_path / "ended", Stop()

    def ask() -> None:
        if began.exists():
            stop.signal = signal.SIGTERM
            stop.request()

    items = [("square", 2), ("patient", str(began), str(ended)), ("square", 3), ("square", 4)]
    found = list(anywhere(workers=1).map(Deeds(), items, stop=stop, on_tick=ask))
    assert done(found) == {0: 4, 1: "stopped", 2: "not started", 3: "not started"}
    assert all(one.failure.is_transient for one in found if one.failure is not None)
    assert ended.read_text() == "well"


@LINUX
def test_whoever_needs_no_more_results_leaves_no_worker_behind(tmp_path: Path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    found = Local(workers=2).map(Deeds(), [("patient", str(began), str(ended)), ("square", 1), *[("sleep", 0.1)] * 20])
    assert isinstance(found, Iterator)
    next(found)
    assert wait_until(began.exists)
    found.close()  # type: ignore[attr-defined]
    assert ended.read_text() == "well"
    assert not alive(int(began.read_text()))


# Work that cannot begin -----------------------------------------------------------------------------------------------


def test_a_function_that_cannot_be_loaded_says_why_and_is_not_tried_for_every_item(anywhere: Any) -> None:
    with pytest.raises(OperationalError, match="AttributeError: 'Deeds' object has no attribute 'nowhere'") as raised:
        list(anywhere(workers=1).map(Closed(), [("square", 1)] * 3))
    assert "load_function" in "".join(raised.value.__notes__)


def script(folder: Path, body: str) -> list[str]:
    path = folder / "script.py"
    here = str(Path(__file__).parent)
    head = f"import sys\nsys.path.append({here!r})\nfrom engine_deeds import Deeds\n"
    path.write_text(head + "from numerate.runs.engines import Local, engine\n" + textwrap.dedent(body))
    return [sys.executable, str(path)]


def test_workers_that_cannot_start_end_the_command_and_a_script_without_a_guard_is_explained(tmp_path: Path) -> None:
    body = """
        open("imports", "a").write("x")
        engine.MAX_TRIES = 10**6
        numerate.run_study(Study("s", "?", [numerate.recipe("addition_rotary")]), runs_dir="runs", workers=2)
        """
    command = script(tmp_path, f"import numerate\nfrom numerate.recipes.study import Study\n{textwrap.dedent(body)}")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert len((tmp_path / "imports").read_text()) <= 1 + 2, "no worker is started again"
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    assert "OperationalError: no worker could start: its process ended by itself with exit status 78" in ended.stderr
    assert "If this is a script, it needs `if __name__ == '__main__':` around its code" in ended.stderr


GUARDED = """
from numerate.training.stopping import Stop
engine.STOP_TIMEOUT = {stop_timeout}
if __name__ == "__main__":
    with Stop() as stop:
        for one in Local(workers=2).map(Deeds(), {items}, stop=stop):
            print(one.index, one.failure.kind, one.failure.status, flush=True)
"""


@contextmanager
def begun(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process as a terminal begins it, in a group of its own; whatever is left of that is ended."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, start_new_session=True, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def begun_items(place: Path, *, stop_timeout: float) -> Iterator[tuple["subprocess.Popen[str]", list[int], Path]]:
    """A command, its workers at an item that stops and one that does not, and the file of the first one's end."""
    began, stuck, ended = place / "began", place / "stuck", place / "ended"
    items = [("patient", str(began), str(ended)), ("stuck", str(stuck)), ("square", 2)]
    with begun(script(place, GUARDED.format(items=items, stop_timeout=stop_timeout))) as process:
        assert wait_until(lambda: began.exists() and stuck.exists())
        yield process, children_of(process.pid), ended


@LINUX
def test_workers_end_soon_and_well_when_the_command_is_killed(tmp_path: Path) -> None:
    with begun_items(tmp_path, stop_timeout=1.0) as (process, workers, ended):
        process.kill()
        assert wait_until(ended.exists, 5)
        assert wait_until(lambda: not any(map(alive, workers)), 15)


@LINUX
def test_ctrl_c_is_answered_once_and_a_second_one_ends_all_at_once(tmp_path: Path) -> None:
    with begun_items(tmp_path, stop_timeout=30.0) as (process, workers, ended):
        assert process.stdout is not None
        os.killpg(process.pid, signal.SIGINT)
        lines = [process.stdout.readline().strip() for _ in range(2)]
        assert sorted(lines) == ["0 stopped 130", "2 not started 130"]
        assert ended.exists()
        time.sleep(0.2)  # a terminal's own repetition within 0.1 s does not count
        os.killpg(process.pid, signal.SIGINT)
        began_ending = time.monotonic()
        _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began_ending < 8
    assert errors.count("SIGINT: stopping") == 1
    assert errors.count("Traceback") == 1
    assert wait_until(lambda: not any(map(alive, workers)), 5)

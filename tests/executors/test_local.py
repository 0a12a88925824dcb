"""Promises of workers: every item comes back once, and nothing that one does is another's concern. Those of the pool
are tested on processes of this machine and on actors of a Ray cluster."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # workers look for modules where we do

from executor_deeds import Deeds, Failing, done

from numerate.config import load_user_parts
from numerate.errors import OperationalError, UserError
from numerate.executors import Local, Ray, local, pool
from numerate.executors.executor import ItemOutcome
from numerate.executors.memory import OOMKillCounter, out_of_memory_error
from numerate.executors.worker import Worker
from numerate.training.stopping import Stop

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is needed of a process")


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STOP_TIMEOUT", 2.0)


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.slow)])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of an executor that has a pool of workers."""
    if request.param == "local":
        return Local
    request.getfixturevalue("cluster")
    monkeypatch.setattr("numerate.executors.ray.WARN_AFTER", 300.0)  # for busy machines
    return Ray


def text_of(found: list[ItemOutcome], index: int) -> str:
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


# Every item comes back once -------------------------------------------------------------------------------------------


def test_every_item_comes_back_once_with_its_result_and_each_worker_opens_the_work_once(
    anywhere: Any, tmp_path: Path
) -> None:
    opened = tmp_path / "opened"
    items = [*[("square", number) for number in range(60)], ("mistake",), ("error",)]
    found = list(anywhere(workers=2).run(Deeds(str(opened)), items))
    assert done(found) == {number: number * number for number in range(60)} | {60: "user error", 61: "error"}
    names = opened.read_text().split()
    assert len(names) == len(set(names)) <= 2
    assert {one.worker for one in found} <= set(names)


def test_items_come_back_as_they_are_completed_and_not_in_their_order(tmp_path: Path) -> None:
    found = Local(workers=2).run(Deeds(), [("wait_for", str(tmp_path), 1), ("square", 1), ("put", str(tmp_path))])
    assert [one.index for one in found] == [1, 2, 0]


def test_warnings_of_workers_are_those_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="^thin ice$"):
        assert done(list(Local(workers=1).run(Deeds(), [("warn", "thin ice"), ("square", 3)]))) == {0: None, 1: 9}
    assert capfd.readouterr().err == ""


def test_there_are_no_workers_for_no_items() -> None:
    assert list(Local(workers=4).run(Deeds(), [])) == []


def test_a_worker_keeps_to_its_threads_and_imports_nothing_heavy_by_itself(
    anywhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = list(anywhere(workers=1, threads=2).run(Deeds(), [("where",)]))
    name, pid, environment, torch, threads = found[0].result
    assert (environment, threads, torch) == ("2", 2, False)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert str(pid) in name.split("-")
    assert pid != os.getpid()


def test_gpus_are_dealt_out_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    found = list(Local(workers=3).run(Deeds(), [("meet", str(tmp_path), 3)] * 3))
    assert sorted(one.result for one in found) == ["4", "4", "6"]


def test_the_gpus_of_a_machine_are_counted_without_any_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local.visible_gpus(tmp_path) == []
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert local.visible_gpus(tmp_path) == ["0", "1"]
    for given, seen in {"": [], "-1": [], "3": ["3"], "GPU-8a, GPU-9b": ["GPU-8a", "GPU-9b"]}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        assert local.visible_gpus(tmp_path) == seen


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_a_container_has_the_cores_that_it_is_granted(tmp_path: Path, files: dict[str, str], count: int | None) -> None:
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert local.cgroup_cpu_limit(tmp_path) == count


def test_a_class_in_a_file_of_the_users_own_is_known_to_the_workers(tmp_path: Path) -> None:
    path = tmp_path / "of_the_user.py"
    path.write_text("class Thing:\n    def __init__(self, size):\n        self.size = size\n")
    thing = load_user_parts(path).Thing(5)
    found = list(Local(workers=1).run(Deeds(), [("same", thing)]))
    assert found[0].result.size == 5


def test_an_error_in_a_file_of_the_users_own_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import json, sys\n"
        "class Bad:\n    def __init__(self, how): self.how = how\n"
        "    def __call__(self):\n"
        "        if self.how == 'raise':\n            raise ValueError('boom\\n  and more ' + 'x' * 500)\n"
        "        if self.how == 'exit':\n            sys.exit(3)\n"
        "        json.loads('{')\n"
    )
    bad = load_user_parts(path).Bad
    found = list(Local(workers=1).run(Deeds(), [("call", bad(how)) for how in ("raise", "exit", "library")]))
    assert done(found) == {0: "user error", 1: "error", 2: "user error"}
    assert text_of(found, 0).startswith("ValueError in mine.py, line 6: boom and more xxx")
    assert len(text_of(found, 0)) < 340
    assert text_of(found, 1) == "it called sys.exit(3) in mine.py, line 8"
    assert text_of(found, 2).startswith("JSONDecodeError in mine.py, line 9: Expecting")


# What fails is one item -----------------------------------------------------------------------------------------------


def test_an_exception_is_the_failure_of_its_item_alone_in_the_words_of_its_kind() -> None:
    items = [("mistake",), ("fault",), ("error",), ("exit",), ("square", 3), ("interrupt",), ("slip",)]
    found = list(Local(workers=1).run(Deeds(), items))
    assert done(found) == {
        0: "user error",
        1: "operational error",
        2: "error",
        3: "error",
        4: 9,
        5: "error",
        6: "user error",
    }
    failures = [one.failure for one in found if one.failure is not None]
    assert [failure.status for failure in failures] == [2, 1, 1, 1, 1, 2]
    assert failures[3].text.startswith("it called sys.exit(4) in executor_deeds.py, line ")
    assert re.fullmatch(r"ZeroDivisionError in executor_deeds\.py, line \d+: by nothing", failures[5].text)
    assert "KeyboardInterrupt" in failures[4].text
    assert [failure.text for failure in failures[:2]] == ["this name is none", "the disk is full"]
    message = "internal error, please report it: TypeError: '<' not supported between instances of 'str' and 'int'"
    assert failures[2].text == f"{message} (--traceback shows where)"
    assert "in error" in str(failures[2].traceback)
    assert not any(failure.is_transient for failure in failures)


def test_what_cannot_be_sent_or_read_is_the_failure_of_its_item(anywhere: Any) -> None:
    items = [("call", threading.Lock), ("unreadable",), ("same", threading.Lock()), ("square", 3)]
    found = list(anywhere(workers=1).run(Deeds(), items))
    assert done(found) == {0: "error", 1: "user error", 2: "error", 3: 9}
    assert "the result cannot be sent to the command" in text_of(found, 0)
    assert "nobody can read this" in text_of(found, 1)
    assert "the deed same cannot be sent to a worker" in text_of(found, 2)


def test_work_that_cannot_be_sent_is_refused_before_anything_is_begun() -> None:
    work = Deeds()
    object.__setattr__(work, "opened", lambda: 0)
    with pytest.raises(UserError, match="Deeds cannot be sent to a worker"):
        Local(workers=1).run(work, [("square", 1)])


@LINUX
def test_a_worker_that_dies_or_takes_too_much_memory_takes_one_item_with_it_and_is_replaced(anywhere: Any) -> None:
    items = [("die",), ("square", 2), ("take", 10**9), ("square", 3), ("leave",), ("square", 4)]
    found = list(anywhere(workers=1, memory=2e8).run(Deeds(), items))
    assert done(found) == {0: "died", 1: 4, 2: "out of memory", 3: 9, 4: "died", 5: 16}
    assert len({one.worker for one in found}) == 4
    for index in (0, 4):
        assert text_of(found, index).startswith("its worker ")
        assert text_of(found, index).endswith("; the same command resumes")
        assert len(text_of(found, index).splitlines()[0]) == len(text_of(found, index)) < 200
    assert text_of(found, 2).startswith("out of memory in the deed take: its worker may take 200.0 MB (MemoryError);")
    if anywhere is Local:
        assert "was killed by signal 9 (SIGKILL)" in text_of(found, 0)
        assert "ended by itself with exit status 3" in text_of(found, 4)


def test_a_worker_that_is_stopped_from_outside_ends_its_item_well_and_is_replaced() -> None:
    found = list(Local(workers=1).run(Deeds(), [("ask_us",), ("square", 2)]))
    assert done(found) == {0: "stopped", 1: 4}
    assert found[0].worker != found[1].worker
    assert found[0].failure is not None
    assert found[0].failure.status == 143


def test_items_that_end_their_worker_do_not_keep_the_others_from_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_CONSECUTIVE_DEATHS", 4)
    found = list(Local(workers=1).run(Deeds(), [*[("leave",)] * 3, ("square", 3)] * 2))
    assert done(found) == {**dict.fromkeys(range(7), "died"), 3: 9, 7: 9}


def test_when_all_workers_die_without_an_item_done_the_rest_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_CONSECUTIVE_DEATHS", 8)
    found: list[ItemOutcome] = []
    with pytest.raises(OperationalError, match=r"8 consecutive workers died without finishing an item.*signal 9"):
        found.extend(Local(workers=1).run(Deeds(), [("die",)] * 50))
    assert done(found) == dict.fromkeys(range(8), "died")


# Items that never end -------------------------------------------------------------------------------------------------


def test_items_that_never_end_are_given_up_one_that_can_ends_well_and_no_other_is_held_up(
    anywhere: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "STOP_TIMEOUT", 0.7)
    ended = tmp_path / "ended"
    items = [("loop",), ("stuck",), ("patient", "", str(ended)), ("square", 3)]
    found = list(anywhere(workers=2, timeout=0.7).run(Deeds(), items))
    assert done(found) == {0: "timeout", 1: "timeout", 2: "timeout", 3: 9}
    assert text_of(found, 0) == "took longer than timeout=0.7 s"
    assert not any(one.failure.is_transient for one in found if one.failure is not None)
    assert ended.read_text() == "well"


# Memory ---------------------------------------------------------------------------------------------------------------


def test_a_worker_that_the_kernel_killed_for_memory_is_distinguished_from_one_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    monkeypatch.setattr(OOMKillCounter, "count", lambda self: int(count.read_text()) if count.exists() else 0)
    found = list(Local(workers=1).run(Deeds(), [("die",), ("die_of_memory", str(count)), ("die",)]))
    assert done(found) == {0: "died", 1: "out of memory", 2: "died"}
    assert text_of(found, 1).startswith("out of memory in the deed die_of_memory: its worker was killed, since")


@pytest.mark.parametrize(
    ("groups", "place"),
    [
        ("0::/job/7\n", "sys/fs/cgroup/job/7/memory.events"),
        ("0::/\n", "sys/fs/cgroup/memory.events"),
        ("5:cpu:/\n4:memory:/job/7\n0::/\n", "sys/fs/cgroup/memory/job/7/memory.oom_control"),
        ("4:hugetlb,memory:/docker/1f\n", "sys/fs/cgroup/memory/memory.oom_control"),
        ("0::/nowhere\n", "proc/vmstat"),
    ],
)
def test_the_kernels_count_of_processes_killed_for_memory_is_found(tmp_path: Path, groups: str, place: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text(groups)
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    kills = OOMKillCounter(tmp_path)
    assert not kills.has_new_kill(), "without any of these files"
    path.write_text("low 0\noom 9\noom_kill 3\noom_group_kill 5\n")
    kills = OOMKillCounter(tmp_path)
    assert not kills.has_new_kill()
    path.write_text("low 0\noom 9\noom_kill 5\noom_group_kill 5\n")
    assert [kills.has_new_kill() for _ in range(3)] == [True, True, False]


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
    no_thread = RuntimeError("can't start new thread")
    assert out_of_memory_error(no_thread) is None
    assert out_of_memory_error(no_thread, is_limited=True) is no_thread


def test_advice_for_a_gpu_out_of_memory_reaches_the_command() -> None:
    fault = OperationalError("the GPU is out of memory: training.micro_batch_size=4 needs less")
    fault.__cause__ = RuntimeError("CUDA out of memory")
    failure = Worker(threads=1, memory_limit=None)._to_failure(fault, "one run")
    assert (failure.kind, failure.text) == ("out of memory", f"out of memory in one run: {fault}")


# Stopping -------------------------------------------------------------------------------------------------------------


def test_when_stopped_items_at_hand_end_well_and_the_others_are_not_begun(anywhere: Any, tmp_path: Path) -> None:
    began, ended, stop = tmp_path / "began", tmp_path / "ended", Stop()

    def ask() -> None:
        if began.exists():
            stop.signal = signal.SIGTERM
            stop.request()

    items = [("square", 2), ("patient", str(began), str(ended)), ("square", 3), ("square", 4)]
    found = list(anywhere(workers=1).run(Deeds(), items, stop=stop, on_tick=ask))
    assert done(found) == {0: 4, 1: "stopped", 2: "not started", 3: "not started"}
    assert [one.failure.status for one in found if one.failure is not None] == [143, 143, 143]
    assert all(one.failure.is_transient for one in found if one.failure is not None)
    assert ended.read_text() == "well"


def test_who_is_stopped_before_the_first_item_begins_none() -> None:
    stop = Stop()
    stop.request()
    found = list(Local(workers=2).run(Deeds(), [("square", 1), ("square", 2)], stop=stop))
    assert done(found) == {0: "not started", 1: "not started"}
    assert [one.failure.status for one in found if one.failure is not None] == [130, 130]


@LINUX
def test_whoever_needs_no_more_results_leaves_no_worker_behind(tmp_path: Path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    found = Local(workers=2).run(Deeds(), [("patient", str(began), str(ended)), ("square", 1), *[("sleep", 0.1)] * 20])
    assert isinstance(found, Iterator)
    next(found)
    assert wait_until(began.exists)
    found.close()  # type: ignore[attr-defined]
    assert ended.read_text() == "well"
    assert not alive(int(began.read_text()))


# Work that cannot begin -----------------------------------------------------------------------------------------------


def test_work_that_cannot_be_opened_says_why_and_is_not_tried_for_every_item(anywhere: Any) -> None:
    with pytest.raises(UserError, match="this name is none"):
        list(anywhere(workers=2).run(Failing("mistake"), [1, 2, 3]))
    with pytest.raises(OperationalError, match="internal error, please report it: TypeError") as raised:
        list(anywhere(workers=1).run(Failing("error"), [1, 2, 3]))
    assert "in error" in "".join(raised.value.__notes__)
    where = " on the Ray cluster" if anywhere is Ray else ": its process ended by itself with exit status 3"
    with pytest.raises(OperationalError, match=f"no worker could start{where}"):
        list(anywhere(workers=1).run(Failing("leave"), [1, 2, 3]))


def script(folder: Path, body: str) -> list[str]:
    path = folder / "script.py"
    here = str(Path(__file__).parent)
    head = f"import sys\nsys.path.append({here!r})\nfrom executor_deeds import Deeds\n"
    path.write_text(head + "from numerate.executors import Local\n" + textwrap.dedent(body))
    return [sys.executable, str(path)]


def test_a_script_without_a_guard_ends_with_an_explanation(tmp_path: Path) -> None:
    command = script(tmp_path, "print(list(Local(workers=2).run(Deeds(), [('square', 1)] * 3)))")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    assert "UserError: a script that starts workers needs `if __name__ == '__main__':`" in ended.stderr


GUARDED = """
from numerate.training.stopping import Stop
if __name__ == "__main__":
    with Stop() as stop:
        for one in Local(workers=2).run(Deeds(orphan={orphan}), {items}, stop=stop):
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


@LINUX
def test_workers_end_soon_and_well_when_the_command_is_killed(tmp_path: Path) -> None:
    began, stuck, ended = tmp_path / "began", tmp_path / "stuck", tmp_path / "ended"
    items = [("patient", str(began), str(ended)), ("stuck", str(stuck)), ("square", 2)]
    command = script(tmp_path, GUARDED.format(items=items, orphan=1.0))
    with begun(command) as process:
        assert wait_until(lambda: began.exists() and stuck.exists())
        workers = workers_of(process.pid)
        assert len(workers) == 2
        process.kill()
        assert wait_until(ended.exists, 5)
        assert wait_until(lambda: not any(map(alive, workers)), 15)


def workers_of(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command_line = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"spawn_main" in command_line:
            found.append(int(path.parent.name))
    return found


@LINUX
def test_ctrl_c_is_answered_once_and_a_second_one_ends_all_at_once(tmp_path: Path) -> None:
    began, stuck, ended = tmp_path / "began", tmp_path / "stuck", tmp_path / "ended"
    items = [("patient", str(began), str(ended)), ("stuck", str(stuck)), ("square", 2)]
    command = script(tmp_path, GUARDED.format(items=items, orphan=30.0))
    with begun(command) as process:
        assert process.stdout is not None
        assert wait_until(lambda: began.exists() and stuck.exists())
        workers = workers_of(process.pid)
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


def test_workers_work_for_a_thread_too(tmp_path: Path) -> None:
    found: list[ItemOutcome] = []
    thread = threading.Thread(target=lambda: found.extend(Local(workers=1).run(Deeds(), [("square", 3)])))
    thread.start()
    thread.join()
    assert done(found) == {0: 9}

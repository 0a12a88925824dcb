"""Promises of workers on a Ray cluster: the same as of processes, by the same rules."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # workers look for modules where we do

from executor_deeds import Deeds, Failing

from numerate.errors import OperationalError, UserError
from numerate.executors import Local, Ray, pool
from numerate.executors import ray as rays
from numerate.executors.executor import ItemOutcome
from numerate.training.stopping import Stop

ray = pytest.importorskip("ray", reason="the package ray is not installed; pip install 'numerate[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One cluster of two CPUs for all tests, since its start takes seconds."""
    with rays._connected_cluster(rays._import_ray(), None, 2):
        yield


def in_a_cluster(test: Any) -> Any:
    """A test that needs the cluster."""
    return pytest.mark.slow(pytest.mark.usefixtures("cluster")(test))


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STOP_TIMEOUT", 2.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def done(found: list[ItemOutcome]) -> dict[int, Any]:
    assert len(found) == len({one.index for one in found})
    return {one.index: one.result if one.failure is None else one.failure.kind for one in found}


@in_a_cluster
def test_results_are_those_of_local_and_each_worker_opens_the_work_once(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    items = [("square", number) for number in range(40)] + [("mistake",), ("error",)]
    found = list(Ray(workers=2).run(Deeds(str(opened)), items))
    assert done(found) == done(list(Local(workers=2).run(Deeds(), items)))
    names = opened.read_text().split()
    assert len(names) == len(set(names)) <= 2
    assert {one.worker for one in found} <= set(names)


@in_a_cluster
def test_a_worker_keeps_to_its_threads() -> None:
    found = list(Ray(workers=1, threads=2, num_cpus=0.5).run(Deeds(), [("where",)]))
    _, pid, environment, _, threads = found[0].result
    assert (environment, threads) == ("2", 2)
    assert pid != os.getpid()


@in_a_cluster
def test_a_worker_that_dies_or_runs_out_of_memory_takes_one_item_with_it() -> None:
    items = [("die",), ("square", 2), ("take", 10**9), ("square", 3), ("leave",), ("square", 4)]
    found = list(Ray(workers=1, memory=2e8).run(Deeds(), items))
    memory = "out of memory" if sys.platform == "linux" else 10**9
    assert done(found) == {0: "died", 1: 4, 2: memory, 3: 9, 4: "died", 5: 16}
    texts = {one.index: one.failure.text for one in found if one.failure is not None}
    assert texts[0].startswith("its worker died (")
    assert texts[0].endswith("; the same command resumes")
    assert "\n" not in texts[0]
    assert len(texts[0]) < 200
    assert len({one.worker for one in found}) == 4


@in_a_cluster
def test_items_that_never_end_are_given_up_and_one_that_can_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "STOP_TIMEOUT", 0.7)
    ended = tmp_path / "ended"
    items = [("loop",), ("stuck",), ("patient", "", str(ended)), ("square", 3)]
    found = list(Ray(workers=2, timeout=0.7).run(Deeds(), items))
    assert done(found) == {0: "timeout", 1: "timeout", 2: "timeout", 3: 9}
    assert ended.read_text() == "well"


@in_a_cluster
def test_when_stopped_items_at_hand_end_well_and_the_others_are_not_begun(tmp_path: Path) -> None:
    began, ended, stop = tmp_path / "began", tmp_path / "ended", Stop()

    def ask() -> None:
        if began.exists():
            stop.signal = signal.SIGTERM
            stop.request()

    items = [("patient", str(began), str(ended)), ("square", 3)]
    found = list(Ray(workers=1).run(Deeds(), items, stop=stop, on_tick=ask))
    assert done(found) == {0: "stopped", 1: "not started"}
    assert [one.failure.status for one in found if one.failure is not None] == [143, 143]
    assert ended.read_text() == "well"


@in_a_cluster
def test_what_cannot_be_sent_or_read_is_the_failure_of_its_item() -> None:
    items = [("unreadable",), ("same", Path), ("same", threading.Lock()), ("square", 3)]
    found = list(Ray(workers=1).run(Deeds(), items))
    assert done(found) == {0: "user error", 1: Path, 2: "error", 3: 9}


@in_a_cluster
def test_work_that_cannot_be_opened_says_why() -> None:
    with pytest.raises(UserError, match="this name is none"):
        list(Ray(workers=1).run(Failing("mistake"), [1, 2, 3]))
    with pytest.raises(OperationalError, match="no worker could start on the Ray cluster"):
        list(Ray(workers=1).run(Failing("leave"), [1, 2, 3]))


@in_a_cluster
def test_a_worker_that_no_node_can_hold_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        UserError, match=r"no node of the Ray cluster has room for a worker that reserves CPU=1, GPU=0.5"
    ):
        list(Ray(num_gpus=0.5).run(Deeds(), [("square", 1)]))


@in_a_cluster
def test_workers_that_find_no_place_are_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rays, "WARN_AFTER", 0.5)
    stop, waited = Stop(), time.monotonic()

    def ask() -> None:
        if time.monotonic() - waited > 2:
            stop.request()

    with pytest.warns(
        UserWarning, match="no worker has started for .* s: each reserves CPU=64, and the Ray cluster has"
    ):
        found = list(Ray(workers=1, num_cpus=64).run(Deeds(), [("square", 1)], stop=stop, on_tick=ask))
    assert done(found) == {0: "not started"}


@pytest.mark.parametrize(
    ("setting", "value"), [("num_cpus", -1.0), ("num_gpus", 1.5), ("num_cpus", float("inf")), ("workers", 0)]
)
def test_an_amount_that_cannot_be_reserved_is_refused(setting: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{setting}: "):
        Ray(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "somewhere", "a b", "auto"])
@pytest.mark.slow
def test_an_address_where_nobody_answers_is_refused_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where Ray looks for a cluster of this machine
    with pytest.raises(UserError, match=r"^executor\.address: "):
        list(Ray(address=address).run(Deeds(), [("square", 1)]))
    if address != "auto":  # whose cluster only Ray can find
        with pytest.raises(UserError, match=r"^executor\.address: "):
            Ray(address=address).check_available()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"the package ray is not installed; pip install 'numerate\[ray\]'"):
        Ray().run(Deeds(), [("square", 1)])
    with pytest.raises(UserError, match=r"the package ray is not installed"):
        Ray().check_available()


SCRIPT = """
import os, signal, sys
sys.path.append({here!r})
from executor_deeds import Deeds
from numerate.executors import Ray
from numerate.executors.executor import Work
from numerate.training.stopping import Stop

class Own(Work):
    def open(self, context):
        return lambda item: item + context.threads if item else os.kill(os.getpid(), signal.SIGKILL)

with Stop() as stop:
    for one in Ray(workers=2).run(Own(), [1, 2, 0]):
        print(one.index, one.result)
    os.kill(os.getpid(), signal.SIGTERM)
    print(stop.status)
"""


@pytest.mark.slow
def test_a_cluster_is_begun_and_ended_quietly_for_a_class_of_the_script_itself(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT.format(here=str(Path(__file__).parent))))
    ended = subprocess.run([sys.executable, "-W", "error", str(path)], capture_output=True, text=True, timeout=120)
    lines = ended.stdout.splitlines()
    assert sorted(lines[:-1]) == ["0 2", "1 3", "2 None"]
    assert lines[-1] == "143"
    assert [line for line in ended.stderr.splitlines() if line] == ["SIGTERM: stopping after the current batch"]
    assert ended.returncode == 0

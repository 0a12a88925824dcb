"""Promises of Ray clusters; those of the workers on them are in test_local.py."""

import importlib.util
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # workers look for modules where we do

from engine_deeds import Deeds, done

from numerate.errors import UserError
from numerate.runs.engines import Ray, engine
from numerate.training.stopping import Stop

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")


def in_a_cluster(test: Any) -> Any:
    """A test that needs the cluster."""
    return pytest.mark.slow(pytest.mark.usefixtures("cluster")(test))


@in_a_cluster
def test_a_worker_that_no_node_can_hold_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        UserError, match=r"no node of the Ray cluster has room for a worker that reserves CPU=1, GPU=0.5"
    ):
        list(Ray(num_gpus=0.5).map(Deeds(), [("square", 1)]))


@in_a_cluster
def test_workers_that_find_no_place_are_spoken_of() -> None:
    stop, waited = Stop(), time.monotonic()

    def ask() -> None:
        if time.monotonic() - waited > 2:
            stop.request()

    with pytest.warns(UserWarning, match=r"no node of the Ray cluster has room .*CPU=64; waiting for more nodes"):
        found = list(Ray(workers=1, num_cpus=64).map(Deeds(), [("square", 1)], stop=stop, on_tick=ask))
    assert done(found) == {0: "stopped"}


@in_a_cluster
def test_an_item_that_ignores_its_time_limit_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STOP_TIMEOUT", 0.7)
    began = tmp_path / "began"
    assert done(list(Ray(workers=1, timeout=0.7).map(Deeds(), [("stuck", str(began))]))) == {0: "timeout"}
    assert began.read_text() == "x"


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
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where Ray looks for a cluster of this machine
    with pytest.raises(UserError, match=r"^engine\.address: "):
        list(Ray(address=address).map(Deeds(), [("square", 1)]))
    if address != "auto":  # whose cluster only Ray can find
        with pytest.raises(UserError, match=r"^engine\.address: "):
            Ray(address=address).check_available()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"the package ray is not installed; pip install 'numerate\[ray\]'"):
        list(Ray().map(Deeds(), [("square", 1)]))
    with pytest.raises(UserError, match=r"the package ray is not installed"):
        Ray().check_available()


SCRIPT = """
import os, signal, sys
sys.path.append({here!r})
from engine_deeds import Deeds
from numerate.runs.engines import Ray, engine
from numerate.training.stopping import Stop

class Own:
    def __call__(self, item):
        return item + int(os.environ["OMP_NUM_THREADS"]) if item else os.kill(os.getpid(), signal.SIGKILL)

with Stop() as stop:
    for one in Ray(workers=2).map(Own(), [1, 2, 0]):
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

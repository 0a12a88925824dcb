"""Promises of Slurm: what is submitted, and that tasks, commands and nodes may come and go.

A few scripts stand in for a cluster: see `slurm_cluster.py`.
"""

import importlib.util
import os
import pickle
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # workers look for modules where we do

import slurm_cluster
from engine_deeds import done as results
from slurm_diary import Diary

from numerate import recipe
from numerate.config import load_user_parts, to_tree
from numerate.errors import OperationalError, UserError
from numerate.recipes.study import Study
from numerate.runs.end import read_end
from numerate.runs.engines import Local, Slurm, slurm, slurm_queue
from numerate.runs.engines.engine import Failure, Outcome
from numerate.runs.engines.slurm_queue import Queue
from numerate.runs.engines.slurm_task import ArrayTask
from numerate.runs.engines.worker import Job
from numerate.runs.item import MakeRun
from numerate.runs.study import run_study
from numerate.runs.study_folder import StudyRun
from numerate.runs.train import train
from numerate.training.stopping import Stop
from small_runs import TINY

pytestmark = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")

ONE = Slurm(array_tasks=1, workers=1, minutes=5)


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    (tmp_path / "diary").mkdir()
    return Diary(str(tmp_path / "diary"))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The commands of a cluster, and its folder."""
    folder = tmp_path / "cluster"
    slurm_cluster.install(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "POLL_INTERVAL", 0.2)
    return folder


def happen(diary: Diary, name: str) -> None:
    (Path(diary.folder) / name).touch()


def text_of(one: Outcome) -> str:
    assert one.failure is not None
    return one.failure.text


def kill(cluster: Path, task: str, number: int) -> None:
    os.kill(int((cluster / f"{task}.pid").read_text()), number)


def wait_until(true: Callable[[], bool], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


# The job script -------------------------------------------------------------------------------------------------------


def test_the_script_says_what_was_requested_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = Slurm(
        **{"partition": "gpu", "account": "sums", "qos": "low", "constraint": "a100", "minutes": 90, "mem_gb": 24},
        **{"array_tasks": 5, "array_parallelism": 2, "cpus_per_task": 8, "gpus_per_task": 2, "workers": 6},
        sbatch_options=("exclude=node7", "--exclusive"),
        setup=("module load cuda", "source venv/bin/activate"),
        python="venv/bin/python",
    )
    lines = engine.script(Diary(""), [f"run {number}" for number in range(13)], tmp_path).splitlines()
    assert lines[:3] == [
        "#!/bin/bash",
        "# 13 items in 5 tasks of at most 3, on 6 workers of 1 thread each.",
        "# Task 0: run 0, run 5, run 10",
    ]
    logs, name = tmp_path / "slurm" / "1", Queue(tmp_path / "slurm").name
    options = (
        f"account=sums array=0-4%2 constraint=a100 cpus-per-task=8 error={logs}/%A_%a_0_log.err exclude=node7 "
        f"exclusive gpus-per-node=2 job-name={name} mem=24576M nodes=1 ntasks-per-node=1 open-mode=append "
        f"output={logs}/%A_%a_0_log.out partition=gpu qos=low requeue signal=USR2@120 time=90"
    )
    assert sorted(line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")) == options.split()
    setup = lines.index("# setup")
    assert lines[setup + 1 : setup + 3] == ["module load cuda", "source venv/bin/activate"]
    assert lines[-1] == (
        f"srun --unbuffered --output {logs}/%A_%a_%t_log.out --error {logs}/%A_%a_%t_log.err --cpus-per-task=8 "
        f"venv/bin/python -u -m submitit.core._submit {logs}"
    )
    assert list(tmp_path.iterdir()) == []


def test_tasks_are_as_many_as_keeps_every_worker_busy_for_a_while() -> None:
    def tasks(count: int, **settings: Any) -> int:
        found = Slurm(**settings).split(range(count))
        assert sorted(index for indices in found for index in indices) == list(range(count))
        return len(found)

    assert tasks(200, cpus_per_task=8) == 6  # 33 items for 8 workers
    assert tasks(10, cpus_per_task=8) == 1
    assert tasks(200, cpus_per_task=8, threads=4) == 25
    assert tasks(40, cpus_per_task=8, gpus_per_task=1) == 10  # a worker per GPU
    assert tasks(200, items_per_task=100) == 2
    assert tasks(200, array_tasks=7) == 7
    assert tasks(3, array_tasks=7) == 3
    assert tasks(10**5, cpus_per_task=1) == 1000


# What is wrong --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [Slurm.check_available, lambda one: one.map(Diary(""), ["a"], folder=Path("runs"))])
def test_what_is_missing_is_reported_before_anything_is_written(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"engine: sbatch was not found; run this on a login node of the cluster"):
        check(Slurm())
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"submitit is not installed; pip install 'numerate\[slurm\]'"):
        check(ONE)
    with pytest.raises(UserError, match="sbatch_options: job-name cannot be set"):
        Slurm(sbatch_options=("job-name=mine",))
    assert list(tmp_path.iterdir()) == []


def test_what_is_stopped_or_refused_by_sbatch_is_not_submitted(cluster: Path, diary: Diary, tmp_path: Path) -> None:
    stop = Stop()
    stop.request()
    not_started = {0: "not started", 1: "not started"}
    assert results(list(ONE.map(diary, ["a", "b"], folder=tmp_path, stop=stop))) == not_started
    with pytest.raises(UserError, match="slurm needs a folder shared by all machines of the cluster"):
        list(ONE.map(diary, ["a"]))
    refused = "sbatch rejected the job: sbatch: error: invalid partition specified: nowhere"
    with pytest.raises(OperationalError, match=refused):
        list(Slurm(partition="nowhere", array_tasks=2).map(diary, ["a", "b"], folder=tmp_path))
    assert [path.name for path in (tmp_path / "slurm").iterdir()] == ["lock"]


def test_what_was_submitted_when_the_disk_is_full_is_cancelled(
    cluster: Path, diary: Diary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "symlink_to", lambda *_: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    with pytest.raises(OperationalError, match=r"the disk is full.* Nothing was submitted\."):
        list(ONE.map(diary, ["a"], folder=tmp_path))
    assert (cluster / "77").read_text() == "CANCELLED"
    assert [path.name for path in (tmp_path / "slurm").iterdir()] == ["lock"]


# What squeue says -----------------------------------------------------------------------------------------------------


def test_one_squeue_tells_of_all_jobs_and_three_answers_end_one(cluster: Path, tmp_path: Path) -> None:
    queue = Queue(tmp_path / "slurm")
    for job, name in (("77", queue.name), ("78", queue.name), ("79", Queue(tmp_path / "other").name)):
        (cluster / f"{job}.name").write_text(name)
        (cluster / f"{job}_0").write_text("RUNNING")
    assert f"the jobs of an earlier command: Slurm jobs {queue.name} (`squeue --name=" in str(queue.obstacle())
    (cluster / "77_0").unlink()
    for _ in range(slurm_queue.CONFIRMATIONS):
        (cluster / "blink").touch()
        assert queue.obstacle() is not None, "an empty answer is none"
        assert queue.obstacle() is not None
    (cluster / "78_0").write_text("NODE_FAIL")
    (cluster / "mute").touch()
    for _ in range(slurm_queue.CONFIRMATIONS):
        assert "an answer of squeue (slurm_load_jobs error: Unable" in str(queue.obstacle())
    (cluster / "mute").unlink()
    assert [queue.obstacle() is None for _ in range(slurm_queue.CONFIRMATIONS)] == [False, False, True]
    assert queue.times_ended.keys() == {"77_0", "78_0"}
    assert (queue.states["77_0"], queue.states["78_0"]) == ("unknown to squeue", "NODE_FAIL")
    assert Queue(tmp_path / "slurm").obstacle() is None, "what has ended before concerns nobody"


def test_a_command_does_not_wait_for_ever_for_squeue(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_queue, "MAX_SILENT", 3)
    (cluster / "mute").touch()
    silent = r"gave up waiting for an answer of squeue \(slurm_load_jobs .*; the same command tries again"
    with pytest.raises(OperationalError, match=silent):
        list(ONE.map(Diary(""), ["a"], folder=tmp_path))
    capfd.readouterr()
    with pytest.raises(OperationalError, match=silent):  # neither once its jobs are submitted
        list(ONE._follow({"77": [0]}, tmp_path, Queue(tmp_path), lambda index: False, Stop(), lambda: None))
    assert capfd.readouterr().err.count("numerate: waits for an answer of squeue (slurm_load_jobs error") == 1


# A cluster of scripts -------------------------------------------------------------------------------------------------


PARTS = """
    from dataclasses import dataclass
    from pathlib import Path

    @dataclass(frozen=True)
    class Double:
        folder: str

        def __call__(self, item):
            Path(self.folder, str(item)).write_text(str(item * 2))

        def done(self, item):
            return Path(self.folder, str(item)).exists()
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", "script"])
def test_an_array_runs_as_its_script_was_shown_with_a_function_of_the_users_own(
    place: str, cluster: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_parts.py").write_text(textwrap.dedent(PARTS))
    double = load_user_parts(tmp_path / "my_parts.py").Double
    if place == "script":  # a class that no task can import
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(textwrap.dedent(PARTS).replace("@dataclass(frozen=True)", "@dataclass"), namespace)
        double = namespace["Double"]
    function = double(str(tmp_path))
    engine = Slurm(array_tasks=2, workers=1, cpus_per_task=1)
    shown = engine.script(function, [1, 2, 3], tmp_path).splitlines()
    assert results(list(engine.map(function, [1, 2, 3], folder=tmp_path))) == {0: None, 1: None, 2: None}
    assert [(tmp_path / str(item)).read_text() for item in (1, 2, 3)] == ["2", "4", "6"]
    sent = (tmp_path / "slurm/1/77_submission.sh").read_text().splitlines()
    assert [shown[0], *shown[3:]] == sent
    assert not (cluster / "asked").exists(), "no accounting is asked"


@pytest.mark.slow
def test_stopping_leaves_the_jobs_running_and_the_same_again_waits_for_them_and_submits_the_rest(
    cluster: Path, diary: Diary, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stop, found = Stop(), []
    for one in ONE.map(diary, ["quick", "until go"], folder=tmp_path, stop=stop):
        found.append(one)
        stop.request()
    assert results(found) == {0: None, 1: "stopped"}
    assert text_of(found[1]) == "Slurm task 77 keeps running"
    jobs = str(Queue(tmp_path / "slurm"))
    assert f"1 item left to {jobs}. The same command waits" in capfd.readouterr().err
    without_wait = list(replace(ONE, wait=False).map(diary, ["new"], folder=tmp_path))
    assert text_of(without_wait[0]) == f"not submitted: it has to wait for the jobs of an earlier command: {jobs}"
    threading.Timer(1.0, happen, (diary, "go")).start()
    (cluster / "blink").touch()
    again = list(ONE.map(diary, ["until go", "new"], folder=tmp_path))
    assert results(again) == {0: None, 1: None}
    assert diary.count("done: new") == 1
    assert f"waits for the jobs of an earlier command: {jobs}" in capfd.readouterr().err
    assert diary.count("begun: until go") == 1
    assert diary.count("checkpoint: go") == 0
    wait_until(lambda: (cluster / "78").read_text() == "COMPLETED")
    (last,) = replace(ONE, wait=False).map(diary, ["last"], folder=tmp_path)
    assert last.failure == Failure("not started", "Slurm task 79 keeps running", 0)
    wait_until(lambda: (cluster / "79").read_text() == "COMPLETED")
    assert diary.count("done: last") == 1


@pytest.mark.slow
def test_two_commands_at_once_submit_nothing_twice(cluster: Path, diary: Diary, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as commands:
        found = commands.map(lambda _: results(list(ONE.map(diary, ["a", "b"], folder=tmp_path))), range(2))
    assert sorted(map(str, found)) == ["{0: None, 1: None}"] * 2
    assert [diary.count(f"begun: {item}") for item in ("a", "b")] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["warned", "preempted"])
def test_a_task_that_is_warned_or_preempted_lets_runs_write_checkpoints_and_continues_when_queued_again(
    how: str, cluster: Path, diary: Diary, tmp_path: Path
) -> None:
    found = []
    for one in ONE.map(diary, ["quick", "kill", "refuse", "until go", "last"], folder=tmp_path):
        found.append(one)
        if one.index == 0:  # each result arrives when it is there
            wait_until(lambda: diary.count("begun: until go") == 1)
            kill(cluster, "77", signal.SIGUSR2 if how == "warned" else signal.SIGTERM)
            wait_until(lambda: diary.count("checkpoint: go") == 1)
            if how == "preempted":  # Slurm queues it again when its grace time is over
                slurm_cluster.scontrol(cluster, "requeue", "77")
                kill(cluster, "77", signal.SIGKILL)
            wait_until(lambda: diary.count("begun: until go") == 2)
            happen(diary, "go")
    assert results(found) == dict.fromkeys(range(5))
    assert [diary.count(f"begun: {item}") for item in ("quick", "kill", "refuse")] == [1, 3, 1]
    assert [diary.count(f"failed: {item}") for item in ("kill", "refuse", "until go")] == [1, 1, 0]
    assert diary.count("user error: refuse: no") == 1
    log = (tmp_path / "slurm/1/77_0_log.err").read_text()
    assert "refuse: refuse: no\n" in log
    assert "kill: its worker was killed by signal 9" in log


@pytest.mark.slow
def test_tasks_that_are_cancelled_or_lost_or_whose_node_fails_take_no_item_down_and_silence_of_squeue_is_no_death(
    cluster: Path, diary: Diary, tmp_path: Path
) -> None:
    def fail() -> None:
        wait_until(lambda: all(diary.count(f"begun: until {name}") == 1 for name in ("a", "b", "c", "go")))
        (cluster / "mute").touch()
        kill(cluster, "77_0", signal.SIGKILL)
        slurm_cluster.scancel(cluster, "77_1")
        (cluster / "77_2").unlink()
        kill(cluster, "77_2", signal.SIGKILL)
        time.sleep(1.0)
        (cluster / "mute").unlink()

    failing = threading.Thread(target=fail)
    failing.start()
    found = []
    items = ["until a", "until b", "until c", "until go"]
    for one in Slurm(array_tasks=4, workers=1).map(diary, items, folder=tmp_path):
        assert not (cluster / "mute").exists()
        happen(diary, "go")
        found.append(one)
    failing.join()
    assert results(found) == {0: "stopped", 1: "stopped", 2: "stopped", 3: None}
    texts = {one.index: text_of(one) for one in found if one.failure is not None}
    for index, state in enumerate(("NODE_FAIL", "CANCELLED", "unknown to squeue")):
        assert f"its Slurm task 77_{index} ended ({state}) before it was done; log: {tmp_path}" in texts[index]
        assert texts[index].endswith("_0_log.err; the same command resumes")
    happen(diary, "a")
    assert results(list(ONE.map(diary, ["until a"], folder=tmp_path))) == {0: None}


@pytest.mark.slow
def test_a_run_whose_task_is_lost_has_not_failed_and_is_taken_up_by_the_same_command(
    cluster: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = "model.hidden_size=16 training.steps=2 training.batch_size=8 training.shuffle_window=1 evaluation.grid=1x1"
    study, runs = Study("s", "?", (recipe("addition_rotary", *small.split()),)), tmp_path / "runs"

    def lose() -> None:
        wait_until((cluster / "77.pid").exists)
        kill(cluster, "77", signal.SIGKILL)

    losing = threading.Thread(target=lose)
    losing.start()
    run_study(study, runs_dir=runs, engine=ONE)
    losing.join()
    assert "Slurm task 77 ended (NODE_FAIL) before it was done; log: " in capfd.readouterr().err
    assert not list(runs.glob("*/*/end.json"))
    run_study(study, runs_dir=runs, engine=ONE)
    (path,) = runs.glob("*/*/end.json")
    end = read_end(path.parent)
    assert end is not None
    assert end.status == "done"


@pytest.mark.slow
def test_tasks_evaluate_a_grid_in_the_folder_of_its_run(cluster: Path, tmp_path: Path) -> None:
    runs = [train(TINY, runs_dir=tmp_path / name, quiet=True).run for name in ("alone", "spread")]
    for run, engine in zip(runs, (None, replace(ONE, array_tasks=2)), strict=True):
        run.evaluate("1:2", count=4, predictions=True, engine=engine)
    for name in ("cells.jsonl", "predictions.jsonl"):
        assert (runs[0].path / name).read_bytes() == (runs[1].path / name).read_bytes()
    assert (runs[1].path / "slurm/1/77_submission.sh").exists()


# What tasks do --------------------------------------------------------------------------------------------------------


def test_what_is_queued_again_is_the_same_task_which_skips_what_is_done(diary: Diary) -> None:
    task = ArrayTask(Job.of(diary, Local()), (pickle.dumps("quick"), pickle.dumps("slow")), Local(workers=1))
    diary.note("done", "quick")
    again = task.checkpoint()
    assert again.function is task
    again.result()
    assert [diary.count(f"begun: {item}") for item in ("quick", "slow")] == [0, 1]
    assert diary.done("slow")
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def test_a_run_whose_worker_dies_has_failed_without_any_command_and_is_not_submitted_again(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, function = StudyRun.of("s/1", "key", to_tree(TINY)), MakeRun(str(tmp_path), "", str(tmp_path))
    died = Outcome(0, failure=Failure("died", "its worker was killed by signal 9; the same command resumes"))
    monkeypatch.setattr(Local, "map_job", lambda *_, **__: iter([died]))
    ArrayTask(Job.of(function, Local()), (pickle.dumps(item),), Local(workers=1))()
    end = read_end(tmp_path / "s/1")
    assert end is not None
    assert (end.status, end.kind, end.error) == ("failed", "died", "its worker was killed by signal 9")
    assert results(list(ONE.map(function, [item], folder=tmp_path))) == {0: None}
    assert function(item) == [], "nor done by a task that was submitted before"
    assert not list(cluster.glob("*.name"))

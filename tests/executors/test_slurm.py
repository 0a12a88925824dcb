"""Promises of Slurm: what is submitted, and that tasks, commands and nodes may come and go.

submitit's local executor stands in for a cluster, and a few scripts for sbatch, srun and squeue.
"""

import base64
import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from failures import Payload

sys.path.append(str(Path(__file__).parent))  # workers look for modules where we do

from executor_deeds import done as results
from slurm_diary import Closed, Diary

from numerate.config import load_user_parts
from numerate.errors import OperationalError, UserError
from numerate.executors import Local, Slurm, slurm
from numerate.executors import submission as submissions
from numerate.executors.array_task import (
    ArrayTask,
    PickledWork,
    _to_plain_data,
    outcome_from_record,
    outcome_record,
    pickle_value,
    split_round_robin,
)
from numerate.executors.executor import ItemOutcome
from numerate.executors.submission import Submission, item_key
from numerate.records.kinds import ITEM, TASK
from numerate.records.reading import read_records
from numerate.studies.work import RunWork
from numerate.training import disk
from numerate.training.stopping import Stop

pytestmark = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")

HERE = Slurm(cluster="local", array_tasks=1, workers=1, minutes=5)
"""The stand-in: a task is a process of this machine."""


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    (tmp_path / "diary").mkdir()
    return Diary(str(tmp_path / "diary"))


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    yield
    end = time.monotonic() + 20
    while slurm._running_jobs and time.monotonic() < end:
        slurm._running_jobs[:] = [job for job in slurm._running_jobs if not job.done()]
        time.sleep(0.02)
    assert not slurm._running_jobs


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    path = Submission.create_folder(
        tmp_path / "slurm", [("a", "key a"), ("b", "key b"), ("c", "key c")], split_round_robin(3, 2)
    )
    one = Submission.create(path, "slurm", ["77_0", "77_1"])
    one.pending = {0: 10, 1: 11, 2: 12}
    return one


def happen(diary: Diary, name: str) -> None:
    (Path(diary.folder) / name).touch()


def text_of(one: ItemOutcome) -> str:
    assert one.failure is not None
    return one.failure.text


def task_of(folder: Path, submission: int = 1) -> int:
    """The process of the first task, as it wrote it down last."""
    lines = read_records(folder / "slurm" / str(submission) / "tasks" / "0000.jsonl", TASK)
    return int([line["pid"] for line in lines if "started" in line][-1])


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


# The job script -------------------------------------------------------------------------------------------------------


def test_the_script_says_what_was_requested_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = Slurm(
        partition="gpu",
        account="sums",
        qos="low",
        constraint="a100",
        array_tasks=5,
        array_parallelism=2,
        minutes=90,
        cpus_per_task=8,
        gpus_per_task=2,
        workers=6,
        mem_gb=24,
        sbatch_options=("exclude=node7", "--exclusive"),
        setup=("module load cuda", "source venv/bin/activate"),
        python="venv/bin/python",
    )
    lines = executor.script(Diary(""), [f"run {number}" for number in range(13)], tmp_path).splitlines()
    assert lines[:3] == [
        "#!/bin/bash",
        "# 13 items in 5 tasks of at most 3, on 6 workers of 1 thread each.",
        "# Task 0: run 0, run 5, run 10",
    ]
    logs = tmp_path / "slurm" / "1" / "logs"
    assert {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")} == {
        "account=sums",
        "array=0-4%2",
        "constraint=a100",
        "cpus-per-task=8",
        f"error={logs}/%A_%a_0_log.err",
        "exclude=node7",
        "exclusive",
        "gpus-per-node=2",
        "job-name=numerate",
        "mem=24576M",
        "nodes=1",
        "ntasks-per-node=1",
        "open-mode=append",
        f"output={logs}/%A_%a_0_log.out",
        "partition=gpu",
        "qos=low",
        "requeue",
        "signal=USR2@120",
        "time=90",
    }
    setup = lines.index("# setup")
    assert lines[setup + 1 : setup + 3] == ["module load cuda", "source venv/bin/activate"]
    assert lines[-1] == (
        f"srun --unbuffered --output {logs}/%A_%a_%t_log.out --error {logs}/%A_%a_%t_log.err --cpus-per-task=8 "
        f"venv/bin/python -u -m submitit.core._submit {logs}"
    )
    assert list(tmp_path.iterdir()) == []


def test_one_task_is_no_array_and_what_is_not_given_is_left_to_the_cluster(tmp_path: Path) -> None:
    text = Slurm(minutes=1).script(Diary(""), ["a"], tmp_path)
    assert "# 1 item in 1 task of at most 1, on 4 workers of 1 thread each.\n# Task 0: a\n" in text
    assert "--signal=USR2@20" in text
    for word in ("array", "partition", "account", "qos", "constraint", "gpus", "mem", "wckey", "setup"):
        assert f"--{word}" not in text


def test_tasks_are_as_many_as_keeps_every_worker_busy_for_a_while() -> None:
    def tasks(count: int, **settings: Any) -> int:
        return Slurm(**settings)._num_tasks(count)

    assert tasks(200, cpus_per_task=8) == 6  # 33 items for 8 workers
    assert tasks(10, cpus_per_task=8) == 1
    assert tasks(200, cpus_per_task=8, threads=4) == 25
    assert tasks(40, cpus_per_task=8, gpus_per_task=1) == 10  # a worker per GPU
    assert tasks(200, items_per_task=100) == 2
    assert tasks(200, array_tasks=7) == 7
    assert tasks(3, array_tasks=7) == 3
    assert tasks(10**6, cpus_per_task=1) == 1000


# What is wrong --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [Slurm.check_available, lambda one: one.run(Diary(""), ["a"], folder=Path("runs"))])
def test_what_is_missing_is_reported_before_anything_is_written(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="slurm needs a folder shared by all machines of the cluster"):
        HERE.run(Diary(""), ["a"])
    monkeypatch.setenv("PATH", str(tmp_path))
    check(HERE)
    with pytest.raises(UserError, match=r"executor: sbatch was not found.*executor\.cluster=local runs"):
        check(Slurm())
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"submitit is not installed; pip install 'numerate\[slurm\]'"):
        check(HERE)
    with pytest.raises(UserError, match="setup: must be a single line"):
        Slurm(setup=("a\nb",))
    assert list(tmp_path.iterdir()) == []


def test_what_is_stopped_or_cannot_be_sent_or_is_refused_by_sbatch_is_not_submitted(
    cluster: Path, tmp_path: Path
) -> None:
    stop = Stop()
    stop.request()
    not_started = {0: "not started", 1: "not started"}
    assert results(list(HERE.run(Diary(""), ["a", "b"], folder=tmp_path, stop=stop))) == not_started
    with pytest.raises(UserError, match="cannot be sent to a worker: cannot pickle"):
        list(HERE.run(Diary(""), [threading.Lock()], folder=tmp_path))
    refused = "sbatch rejected the job: sbatch: error: invalid partition specified: nowhere"
    with pytest.raises(OperationalError, match=refused):
        list(Slurm(partition="nowhere", array_tasks=2).run(Diary(""), ["a", "b"], folder=tmp_path))
    assert [path.name for path in (tmp_path / "slurm").iterdir()] == ["lock"]


# The stand-in ---------------------------------------------------------------------------------------------------------


def test_each_result_arrives_when_it_is_there_and_a_dying_worker_takes_one_item(diary: Diary, tmp_path: Path) -> None:
    items = ["quick", "kill", "refuse", "until go"]
    found = []
    for one in HERE.run(diary, items, folder=tmp_path):
        found.append(one)
        if one.index == 0:
            happen(diary, "go")
    assert results(found) == {0: "QUICK", 1: "died", 2: "user error", 3: "UNTIL GO"}
    assert found[-1].index == 3
    refused = next(one for one in found if one.index == 2)
    assert text_of(refused) == "refuse: no"
    assert refused.failure is not None
    assert refused.failure.status == 2


@pytest.mark.slow
def test_a_task_that_is_killed_leaves_what_it_had_not_done_and_the_same_continues(diary: Diary, tmp_path: Path) -> None:
    found = []
    for one in HERE.run(diary, ["quick", "until go"], folder=tmp_path):
        found.append(one)
        if one.index == 0:
            wait_until(lambda: diary.count("begun: until go") == 1)
            os.kill(task_of(tmp_path), signal.SIGKILL)
    assert results(found) == {0: "QUICK", 1: "died"}
    assert "ended before the item was finished (ENDED); log: " in text_of(found[1])
    happen(diary, "go")
    assert results(list(HERE.run(diary, ["until go"], folder=tmp_path))) == {0: "UNTIL GO"}
    assert diary.count("done: quick") == 1


@pytest.mark.slow
def test_stopping_leaves_the_jobs_running_and_the_same_again_waits_for_them(
    diary: Diary, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stop, found = Stop(), []
    for one in HERE.run(diary, ["quick", "until go"], folder=tmp_path, stop=stop):
        found.append(one)
        stop.request()
    assert results(found) == {0: "QUICK", 1: "stopped"}
    assert "keeps running" in text_of(found[1])
    assert "1 item continues in processes of this machine" in capfd.readouterr().err
    assert HERE.script(diary, ["until go"], tmp_path).startswith("# Nothing to submit")
    again = replace(diary, command="another start")
    joined = HERE.run(again, ["until go", "new"], folder=tmp_path)
    assert next(joined).result == "NEW"
    happen(diary, "go")
    assert [one.result for one in joined] == ["UNTIL GO"]
    assert diary.count("begun: until go") == 1
    assert diary.count("checkpoint: go") == 0


@pytest.mark.slow
def test_without_waiting_the_command_ends_and_a_later_one_joins_what_is_still_at_work(
    diary: Diary, tmp_path: Path
) -> None:
    items = ["quick", "refuse", "until go"]
    left = list(replace(HERE, wait=False).run(diary, items, folder=tmp_path))
    assert results(left) == {0: "not started", 1: "not started", 2: "not started"}
    assert {one.failure.status for one in left if one.failure} == {0}
    wait_until(lambda: diary.count("begun: until go") == 1)
    joined = HERE.run(diary, items, folder=tmp_path)
    found = [next(joined), next(joined)]
    happen(diary, "go")
    assert results([*found, *joined]) == {0: "QUICK", 1: "user error", 2: "UNTIL GO"}
    assert [diary.count(f"begun: {item}") for item in items] == [1, 2, 1]  # what failed is done again when requested


@pytest.mark.slow
def test_what_is_requested_of_a_task_that_has_ended_is_submitted_anew(diary: Diary, tmp_path: Path) -> None:
    """What must outlive a command, an item has written itself: whoever requests it again does not have it."""
    list(HERE.run(diary, ["note a"], folder=tmp_path))
    wait_until(lambda: "finished" in (tmp_path / "slurm/1/tasks/0000.jsonl").read_text())
    assert results(list(HERE.run(diary, ["note a", "note b"], folder=tmp_path))) == {0: "NOTE A", 1: "NOTE B"}
    assert [diary.count(f"done: {item}") for item in ("note a", "note b")] == [2, 1]
    assert len(read_records(tmp_path / "slurm/2/items.jsonl", ITEM)) == 2


@pytest.mark.slow
def test_two_commands_at_once_submit_nothing_twice(diary: Diary, tmp_path: Path) -> None:
    items, found = ["a", "b", "until both"], [[], []]  # type: tuple[list[str], list[list[ItemOutcome]]]

    def command(number: int) -> None:
        for one in HERE.run(diary, items, folder=tmp_path):
            found[number].append(one)

    commands = [threading.Thread(target=command, args=(number,)) for number in (0, 1)]
    for thread in commands:
        thread.start()
    wait_until(lambda: diary.count("begun: until both") == 1 and not _locked(tmp_path))
    time.sleep(0.5)
    happen(diary, "both")
    for thread in commands:
        thread.join(30)
    assert len(list((tmp_path / "slurm").glob("*/submission.json"))) == 1
    assert found[0] != []
    assert "UNTIL BOTH" in results(found[0]).values()
    assert "UNTIL BOTH" in results(found[1]).values()
    assert all(diary.count(f"begun: {item}") == 1 for item in items)


def _locked(folder: Path) -> bool:
    return (folder / "slurm" / "lock").stat().st_size > 0


SCRIPT = """
    import sys
    from pathlib import Path
    from numerate.executors import Slurm
    from numerate.executors.executor import Work

    class Notes(Work):
        def __init__(self, folder):
            self.folder = folder

        def open(self, context):
            import time

            def do(item):
                with open(Path(self.folder) / "notes.txt", "a") as file:
                    file.write(item)
                while not (Path(self.folder) / item).exists():
                    if context.stop.requested:
                        raise KeyboardInterrupt
                    time.sleep(0.02)
                return item

            return do

    if __name__ == "__main__":
        executor = Slurm(cluster="local", array_tasks=1, workers=1, minutes=5)
        for one in executor.run(Notes(sys.argv[1]), ["a"], folder=Path(sys.argv[1])):
            print(one.result, flush=True)
"""


@pytest.mark.slow
def test_a_command_that_is_killed_is_taken_up_by_the_next_also_with_work_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "notes.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), str(tmp_path)]
    notes = tmp_path / "notes.txt"
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as first:
        wait_until(notes.exists)
        os.killpg(first.pid, signal.SIGINT)  # as a terminal does, to the command and to what it began
        first.kill()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as second:
        assert second.stderr is not None
        assert "1 item already submitted" in second.stderr.readline()
        (tmp_path / "a").touch()
        assert second.communicate(timeout=30)[0] == "a\n"
    assert notes.read_text() == "a"


# Queued again ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_task_that_is_warned_lets_runs_write_checkpoints_and_continues_when_queued_again(
    diary: Diary, tmp_path: Path
) -> None:
    found = []
    for one in HERE.run(diary, ["quick", "until go", "last"], folder=tmp_path):
        found.append(one)
        if one.index == 0:
            wait_until(lambda: diary.count("begun: until go") == 1)
            os.kill(task_of(tmp_path), signal.SIGUSR2)
            wait_until(lambda: diary.count("begun: until go") == 2)
            happen(diary, "go")
    assert results(found) == {0: "QUICK", 1: "UNTIL GO", 2: "LAST"}
    assert diary.count("checkpoint: go") == 1
    assert diary.count("begun: quick") == 1
    lines = read_records(tmp_path / "slurm/1/tasks/0000.jsonl", TASK)
    assert [next(iter(line)) for line in lines[:6]] == ["started", "item", "signal", "started", "item", "item"]


def test_what_is_queued_again_is_the_same_chunk_which_skips_what_is_done(diary: Diary, tmp_path: Path) -> None:
    carried = PickledWork.from_work(diary)
    items = tuple((number, (name, pickle_value(name, name))) for number, name in enumerate(["quick", "slow"]))
    chunk = ArrayTask(str(tmp_path / "0000.jsonl"), carried, items, Local(workers=1))
    disk.append_records(tmp_path / "0000.jsonl", [outcome_record(0, ItemOutcome(0, "QUICK", seconds=1.0))])
    again = chunk.checkpoint()
    assert again.function is chunk
    again.result()
    assert diary.count("begun: quick") == 0
    assert diary.count("done: slow") == 1
    assert read_records(tmp_path / "0000.jsonl", TASK)[-1] == {"finished": True}
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def test_work_that_cannot_be_opened_is_reported_in_its_own_words(submission: Submission) -> None:
    carried = PickledWork.from_work(Closed())
    chunk = ArrayTask(
        str(submission.path / "tasks" / "0000.jsonl"), carried, ((0, ("a", pickle_value("a", "a"))),), Local(workers=1)
    )
    with pytest.raises(UserError, match="closed today"):
        chunk()
    submission.read()
    found = list(submission.deliver(Closed()))
    assert results(found) == {10: "user error", 12: "user error"}
    assert text_of(found[0]) == "closed today"


# A cluster of scripts -------------------------------------------------------------------------------------------------

# The interpreter's path may have a space, which no first line of a script can name: a shell starts it.
SBATCH = """#!/bin/sh
    '''exec' "{python}" "$0" "$@"
    ' '''
    import os, re, subprocess, sys
    text = open(sys.argv[1]).read()
    if "nowhere" in text:
        sys.exit("sbatch: error: invalid partition specified: nowhere")
    tasks = int(re.search("array=0-([0-9]+)", text)[1]) + 1
    for task in range(tasks):
        more = dict(SLURM_JOB_ID="7" * (task + 3), SLURM_ARRAY_JOB_ID="77", SLURM_ARRAY_TASK_ID=str(task))
        nothing = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begun = subprocess.Popen(["bash", sys.argv[1]], env=os.environ | more, start_new_session=True, **nothing)
        open(f"{cluster}/77_{{task}}", "w").write(str(begun.pid))
        begun.returncode = 0
    print("Submitted batch job 77")
"""
SRUN = """#!/bin/bash
    while [[ $1 == --* ]]; do
      case $1 in --output|--error) shift 2;; *) shift;; esac
    done
    exec "$@" 2> "{cluster}/$SLURM_ARRAY_TASK_ID.err"
"""
SQUEUE = """#!/bin/bash
    if [ -e "{cluster}/mute" ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
    if [[ ! "$*" == *--jobs=77* ]]; then echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; fi
    for task in "{cluster}"/77_?; do
      kill -0 $(cat "$task") 2> /dev/null && echo "$(basename "$task")|RUNNING" || echo "$(basename "$task")|NODE_FAIL"
    done
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch, srun and squeue that do as if this machine were a cluster."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "squeue": SQUEUE}.items():
        (folder / name).write_text(
            textwrap.dedent(text).replace("\n    ", "\n").format(python=sys.executable, cluster=folder)
        )
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


PARTS = """
    from dataclasses import dataclass
    from numerate.executors.executor import Work

    @dataclass(frozen=True)
    class Double(Work):
        def open(self, context):
            return lambda item: item * 2
"""


@pytest.mark.slow
def test_an_array_runs_as_its_script_was_shown_with_work_of_a_users_file(cluster: Path, tmp_path: Path) -> None:
    (tmp_path / "my_parts.py").write_text(textwrap.dedent(PARTS))
    work = load_user_parts(tmp_path / "my_parts.py").Double()
    executor = Slurm(array_tasks=2, workers=1, cpus_per_task=1)
    shown = executor.script(work, [1, 2, 3], tmp_path).splitlines()
    assert results(list(executor.run(work, [1, 2, 3], folder=tmp_path))) == {0: 2, 1: 4, 2: 6}
    sent = (tmp_path / "slurm/1/logs/77_submission.sh").read_text().splitlines()
    assert [shown[0], *shown[3:]] == sent


@pytest.mark.slow
def test_a_task_whose_node_fails_takes_its_own_items_and_silence_of_squeue_is_no_death(
    cluster: Path, diary: Diary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "_interval", lambda *given: 0.2)
    (cluster / "mute").touch()

    def fail() -> None:
        wait_until(lambda: diary.count("begun: until never") == diary.count("begun: until go") == 1)
        os.kill(task_of(tmp_path), signal.SIGKILL)
        time.sleep(1.0)
        (cluster / "mute").unlink()

    failing = threading.Thread(target=fail)
    failing.start()
    found = []
    for one in Slurm(array_tasks=2, workers=1).run(diary, ["until never", "until go"], folder=tmp_path):
        assert not (cluster / "mute").exists()
        happen(diary, "go")
        found.append(one)
    failing.join()
    assert results(found) == {0: "died", 1: "UNTIL GO"}
    assert "its Slurm task 77_0 ended before the item was finished (NODE_FAIL)" in text_of(found[0])


def test_the_state_of_a_task_is_what_squeue_says_and_unknown_where_it_does_not_answer(
    cluster: Path, submission: Submission
) -> None:
    (cluster / "77_0").write_text(str(os.getpid()))
    (cluster / "77_1").write_text("0x")
    assert submission.states({0, 1}) == {0: "RUNNING", 1: "NODE_FAIL"}
    (cluster / "77_1").unlink()
    assert submission.states({0, 1}) == {0: "RUNNING", 1: "GONE"}
    (cluster / "mute").touch()
    assert submission.states({0, 1}) is None
    (cluster / "mute").unlink()
    submission.job_ids = ["99_0", "99_1"]
    assert submission.states({0, 1}) == {0: "GONE", 1: "GONE"}


def test_a_task_that_is_over_too_early_is_explained_by_its_state_and_its_log(submission: Submission) -> None:
    submission.ended |= {0: "CANCELLED", 1: "TIMEOUT"}
    assert (
        submission.failure(0).text
        == "its Slurm task 77_0 ended before the item was finished (CANCELLED); the same command resumes"
    )
    assert "if the machines of the cluster do not share this folder, runs_dir=" in submission.failure(1).text
    submission.error_log(1).write_text(
        "ModuleNotFoundError: No module named 'acme'\nsrun: error: node7: task 0: Exited\n"
    )
    failure = submission.failure(1)
    assert failure.is_transient
    assert failure.text == (
        "its Slurm task 77_1 ended before the item was finished (TIMEOUT); executor.minutes= gives a task more time; "
        f"log: {submission.error_log(1)} (ModuleNotFoundError: No module named 'acme'); the same command resumes"
    )
    assert results(list(submission.deliver(Diary("")))) == {10: "died", 11: "died", 12: "died"}


@pytest.mark.parametrize(
    "record",
    [
        {"seconds": 1.0, "worker": "w"},
        {"seconds": 1.0, "worker": "w", "result": [["first", "a message"]]},
        {"seconds": "long", "worker": "w", "result": []},
        {"seconds": 1.0, "worker": "w", "failure": {"kind": "unheard of", "text": "no"}},
    ],
)
def test_what_a_record_says_is_data_and_one_that_is_damaged_is_done_again(
    record: dict[str, Any], tmp_path: Path
) -> None:
    damaged = outcome_from_record(record, 3, RunWork("study", "numerate run", "here"))
    assert damaged.index == 3
    assert text_of(damaged) == "its recorded result is damaged; the same command repeats it"


def test_a_result_that_somebody_pickled_into_a_record_is_not_unpickled(submission: Submission, tmp_path: Path) -> None:
    pickled = base64.b64encode(pickle.dumps(Payload(tmp_path / "ran"))).decode()
    pickle.loads(base64.b64decode(pickled))
    assert (tmp_path / "ran").exists(), "the payload works"
    (tmp_path / "ran").unlink()
    disk.append_records(
        submission.path / "tasks" / "0000.jsonl",
        [
            {"item": 0, "seconds": 1.0, "worker": "w", "result": pickled},
            {"refused": {"kind": "operational error", "text": "no", "status": 1, "traceback": None, "result": pickled}},
        ],
    )
    submission.read()
    damaged, refused = submission.deliver(RunWork("study", "numerate run", "here"))
    assert text_of(damaged) == "its recorded result is damaged; the same command repeats it"
    assert text_of(refused) == "no"
    assert not (tmp_path / "ran").exists()


def test_a_result_that_is_no_plain_data_is_refused_with_the_name_of_its_item() -> None:
    with pytest.raises(UserError, match="the result of a must be JSON data, not object"):
        _to_plain_data(object(), "a")


# What is the same item ------------------------------------------------------------------------------------------------


def test_an_item_is_known_again_by_what_it_is_and_by_what_is_done_with_it() -> None:
    def key(item: Any, folder: str = "a", command: str = "") -> str:
        return item_key(Diary(folder, command), item)

    assert key("x") == key("x", command="numerate run again")
    assert key(print) == key(print)
    assert key(threading.Lock()) != key(threading.Lock())
    different = [key("x"), key("x", "b"), key("y"), key(Path("x")), key({"x": 1}), key(b"x"), key(("x", 3))]
    assert len(set(different)) == len(different)


def test_a_folder_of_a_later_version_is_refused(submission: Submission) -> None:
    head = json.loads((submission.path / "submission.json").read_text())
    (submission.path / "submission.json").write_text(json.dumps(head | {"format": 99}))
    with pytest.raises(UserError, match=r"format 99.*update numerate"):
        Submission.load_all(submission.path.parent)

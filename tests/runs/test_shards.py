"""A grid in shards: the same bytes for any number of hands, and nothing lost or done twice however it ends."""

import functools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from numerate.cli import main
from numerate.errors import OperationalError, UserError
from numerate.positions.added import Learned
from numerate.positions.position_ids import DigitIndex
from numerate.records.kinds import EVALUATION
from numerate.records.reading import read_records
from numerate.runs import store
from numerate.runs.engines.engine import Engine, Failure, Outcome
from numerate.runs.engines.worker import perform
from numerate.runs.plan import CellTask, EvaluationPlan
from numerate.runs.run import Run
from numerate.runs.shards import EvaluateShard, GridShard, make_shards
from numerate.runs.store import RecordKey
from numerate.training.stopping import Stop
from small_runs import ADDING

POSITIONS = (Learned(position_ids=DigitIndex(max_offset=8), max_position_embeddings=20),)
RECIPE = replace(ADDING, model=replace(ADDING.model, positions=POSITIONS))
KILLED = Failure("died", "its worker was killed by signal 9 (SIGKILL)")
FILES = ("cells.jsonl", "samples.jsonl", "predictions.jsonl")
SWEEP = ["model.dropout=0,0.5"]


@dataclass(frozen=True)
class Here(Engine):
    """In this process, each item as if it came from another; some fail."""

    failing: tuple[int, ...] = ()

    def _map(
        self, function: Any, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: Callable[[], None]
    ) -> Iterator[Outcome]:
        for index, item in enumerate(items):
            on_tick()
            if index in self.failing:
                yield Outcome(index, failure=KILLED)
            else:
                yield replace(perform(functools.partial(do, function, item), stop), index=index)

    def script(self, function: Callable[[Any], Any], items: Sequence[Any], folder: Path) -> str:
        return "\n".join(map(str, items))


def do(function: Callable[[Any], Any], item: Any) -> Any:
    """Does an item as another process would."""
    return pickle.loads(pickle.dumps(function))(pickle.loads(pickle.dumps(item)))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The cells that are computed from here on."""
    cells: list[tuple[int, ...]] = []
    real = EvaluationPlan.score

    def counted(self: EvaluationPlan, task: CellTask) -> Any:
        cells.append(tuple(size for _, size in task.cell))
        return real(self, task)

    monkeypatch.setattr(EvaluationPlan, "score", counted)
    return cells


def bytes_of(run: Run) -> list[bytes | None]:
    return [(run.path / name).read_bytes() if (run.path / name).exists() else None for name in FILES]


def cut(run: Run, grid: str, workers: int, *, checkpoint: str = "all", settings: Sequence[str] = ()) -> list[GridShard]:
    plan = EvaluationPlan(run, grid, checkpoint=checkpoint, settings=settings)
    return make_shards(plan, plan.missing(plan.tasks()), workers)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_evaluation_that_is_stopped_says_where_and_resumes_there(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, status: int
) -> None:
    real, words = EvaluationPlan.score, ["evaluate", str(run.path), "grid=1:2x1:2"]
    answers = iter([real, real, lambda *_: signal.raise_signal(number)])
    monkeypatch.setattr(EvaluationPlan, "score", lambda *given: next(answers, real)(*given))
    assert main(words) == status
    assert re.search(
        r"evaluate: stopped at 24 of \d+ questions; the same command resumes from here\n", capsys.readouterr().err
    )
    assert main(words) == 0
    assert re.search(r"evaluate 24/(\d+) questions .*\n.*evaluate \1/\1 questions", capsys.readouterr().err)


# Cutting -------------------------------------------------------------------------------------------------------------


def test_shards_hold_every_cell_of_every_model_once(run: Run) -> None:
    found = cut(run, "1:8", 3, settings=SWEEP)
    assert len(found) == 24
    requested = [task for shard in found for task in shard.tasks]
    assert set(Counter(requested).values()) == {1}
    assert len(requested) == 2 * 2 * 64
    assert [(p.number, p.total) for p in found] == [(number, 24) for number in range(1, 25)]


# Doing ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"predictions": True}, {"grid": "1:2", "checkpoint": "all", "predictions": True, "settings": SWEEP}]
)
def test_an_engine_leaves_the_same_bytes(copy: Callable[[str], Run], options: dict[str, Any]) -> None:
    alone, spread = copy("alone"), copy("spread")
    found = [run.evaluate(**options, engine=how) for run, how in ((alone, None), (spread, Here(workers=2)))]
    assert bytes_of(spread) == bytes_of(alone)
    assert list(found[0]) == list(found[1])


def test_progress_counts_the_questions_of_all_workers_from_what_is_known(run: Run) -> None:
    run.evaluate("1:2")
    on_progress: list[tuple[int, int]] = []
    run.evaluate(
        "1:3", on_progress=lambda *counts: on_progress.append(counts), engine=Here(workers=2), predictions=True
    )
    assert on_progress[0] == (0, 9 * 12), "four cells are scored, without predictions"
    assert on_progress[-1] == (9 * 12, 9 * 12)
    assert on_progress == sorted(on_progress)


@pytest.mark.parametrize(
    ("words", "cells", "left", "each"),
    [
        ((), "16 of 16 of the grid", "7 of 16; 9 are recorded", 12),
        (("shard=1/2",), "8 of 16 of the grid", " of 8; ", 12),
        (("count=5", "predictions=true"), "16 of 16 of the grid", "16 of 16; 0 are recorded", 5),
        (
            ("model.dropout=0,0.5",),
            "each 2 times (position offsets, checkpoints, settings)",
            "23 of 32; 9 are recorded",
            12,
        ),
    ],
)
def test_what_an_evaluation_would_take_here_is_shown_and_nothing_is_written(
    words: tuple[str, ...],
    cells: str,
    left: str,
    each: int,
    run: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from numerate.cli import main

    run.evaluate()
    monkeypatch.setattr(store, "WRITE_INTERVAL", 0.0)  # what is added is written at once
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["evaluate", str(run.path), "grid=1:4", "checkpoint=best", *words, "--dry-run"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert cells in shown["cells"]
    assert left in shown["remaining"]
    assert int(shown["questions"].split(",")[0]) == each * int(shown["remaining"].split()[0])
    assert re.fullmatch(r"about 0:\d\d here, estimated from a sample of \d cells", shown["time"])
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_the_command_spreads_a_grid_where_its_words_say_so(
    copy: Callable[[str], Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from numerate.cli import main
    from numerate.commands import engines

    begun: list[Engine] = []
    real = Here.map

    def noted(self: Here, *given: Any, **more: Any) -> Iterator[Outcome]:
        begun.append(self)
        return real(self, *given, **more)

    monkeypatch.setattr(Here, "map", noted)
    read = engines.parse_engine
    monkeypatch.setattr(engines, "parse_engine", lambda words: Here(workers=read(words).workers))
    alone, spread = copy("alone"), copy("spread")
    assert main(["evaluate", str(alone.path), "grid=1:3", "model.dropout=0,0.5"]) == 0
    assert not begun
    assert main(["evaluate", str(spread.path), "grid=1:3", "workers=2", "model.dropout=0,0.5"]) == 0
    assert [engine.workers for engine in begun] == [2]
    assert bytes_of(spread) == bytes_of(alone)
    capsys.readouterr()
    assert main(["evaluate", str(alone.path), "grid=1:4", "workers=1", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("shard 1 of 6 (")
    assert main(["evaluate", str(alone.path), "grid=1:4", "shard=1/2", "workers=1", "--dry-run"]) == 2
    assert "an engine splits the grid into shards itself" in capsys.readouterr().err
    assert main(["evaluate", str(alone.path), "worker=2"]) == 2
    assert "Did you mean 'workers'?" in capsys.readouterr().err
    assert bytes_of(alone) == bytes_of(spread), "nothing was written"


# Failing and going on ------------------------------------------------------------------------------------------------


def test_a_shard_that_fails_takes_no_other_with_it_and_is_named(
    copy: Callable[[str], Run], computed: list[tuple[int, ...]]
) -> None:
    undisturbed, run = copy("undisturbed"), copy("run")
    undisturbed.evaluate()
    computed.clear()
    text = (
        r"^shard 3 of 6 \(1 cell\): its worker was killed by signal 9 \(SIGKILL\); 1 more shard "
        r"failed\. What was recorded is kept; the same command resumes$"
    )
    with pytest.raises(OperationalError, match=text):
        run.evaluate(engine=Here(workers=1, failing=(2, 5)))
    kept = len(run.folder.records("cells.jsonl"))
    assert kept == len(computed) == 6
    run.evaluate(engine=Here(workers=1))
    assert len(computed) == len(set(computed)) == 9
    assert bytes_of(run) == bytes_of(undisturbed)


def test_a_worker_whose_records_are_not_to_be_seen_is_reported(run: Run) -> None:
    """On a machine without the file system of the command."""

    @dataclass(frozen=True)
    class Elsewhere(Here):
        def _map(self, function: Any, items: Sequence[Any], *_: Any) -> Iterator[Outcome]:
            return (Outcome(index, 1) for index, _ in enumerate(items))

    with pytest.raises(
        OperationalError, match=r"shard 1 of 6 .*lacks the records that it wrote; all workers must share this folder"
    ):
        run.evaluate(engine=Elsewhere(workers=1))


def test_a_grid_that_is_only_submitted_is_no_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from numerate.commands import engines

    monkeypatch.setattr(f"{__name__}.KILLED", Failure("not started", "Slurm task 7_0 keeps running", 0))
    monkeypatch.setattr(engines, "parse_engine", lambda words: Here(workers=1, failing=(0, 1)))
    assert main(["evaluate", str(run.path), "engine=slurm", "engine.wait=false"]) == 0
    said = "Slurm task 7_0 keeps running; the same command collects its records"
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_a_user_error_in_a_shard_is_a_user_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.KILLED", Failure("user error", "model: is too small", 2))
    with pytest.raises(UserError, match="model: is too small"):
        run.evaluate(engine=Here(workers=1, failing=(0,)))


def test_a_shard_that_is_given_once_more_does_only_what_is_missing(run: Run, computed: list[tuple[int, ...]]) -> None:
    """As Slurm does with tasks that reached their time limit: with what was known when they were submitted."""
    (shard,) = cut(run, "1:3", 1, checkpoint="8")[:1]
    function = EvaluateShard(EvaluationPlan(run, "1:3", checkpoint="8"))
    assert not function.done(shard)
    assert [do(function, shard) for _ in range(2)] == [len(shard.tasks), 0]
    assert function.done(shard)
    assert len(computed) == len(shard.tasks)


def test_it_continues_from_what_workers_recorded(copy: Callable[[str], Run], computed: list[tuple[int, ...]]) -> None:
    undisturbed, run = copy("undisturbed"), copy("run")
    undisturbed.evaluate(predictions=True)
    computed.clear()
    shard, *_ = cut(run, "1:3", 1, checkpoint="final")
    do(EvaluateShard(EvaluationPlan(run, "1:3", predictions=True)), shard)
    done = len(computed)
    for name in ("cells.jsonl", "predictions.jsonl"):
        with (run.path / name).open("ab") as file:
            file.write(b'{"cell": {"first_dig')
    run.evaluate(predictions=True)
    assert 0 < done < len(computed) == 9
    assert bytes_of(run) == bytes_of(undisturbed)


def test_what_another_process_recorded_meanwhile_is_not_recorded_again(run: Run) -> None:
    """Such as a worker whose command was killed; also after the file was sorted, which is then another one."""
    plans = [EvaluationPlan(run, "1:3") for _ in range(2)]
    tasks = plans[0].tasks()
    for plan in plans:
        plan.read()
    for one, other in ((tasks[:4], tasks[2:6]), (tasks[6:8], tasks[5:])):
        with plans[0].store, plans[1].store:
            for task in one:
                plans[0].perform(task)
            for task in other:
                plans[1].perform(task)
        plans[0].store.sort(False)
    lines = (run.path / "cells.jsonl").read_bytes().splitlines()
    assert len(lines) == len({*lines}) == 9
    before = bytes_of(run)
    run.evaluate("1:3")
    assert bytes_of(run)[0] == before[0]
    records = [record | {"digit_accuracy": 0.0} for record in run.folder.records("cells.jsonl")]
    stale = EvaluationPlan(run, "1:3")
    for record in records:
        stale.store.add(RecordKey.of(record), record)
    stale.store.flush()
    assert bytes_of(run)[0] == before[0], "the first record counts, which is read before the others are written"


def test_a_file_that_others_sorted_twice_is_read_again_though_its_inode_is_that_of_the_first(run: Run) -> None:
    """Which file systems give again: the line that was read last is then elsewhere."""
    run.evaluate("1:3")
    path, lines = run.path / "cells.jsonl", (run.path / "cells.jsonl").read_bytes().splitlines(keepends=True)
    for before, after in ((lines[4:6], lines), (lines, lines[:4]), (lines[:2], lines[:2])):
        plan = EvaluationPlan(run, "1:3")
        for content in (before, after):
            path.write_bytes(b"".join(content))
            plan.read()
        assert len(plan.store.records) == len({*before, *after})


def test_two_commands_with_shards_write_at_once_and_a_third_finds_all(
    copy: Callable[[str], Run], computed: list[tuple[int, ...]]
) -> None:
    undisturbed, run = copy("undisturbed"), copy("run")
    undisturbed.evaluate()
    computed.clear()
    with run.folder.lock("training"):
        for shard in ("1/2", "2/2"):
            run.evaluate(shard=shard)
    assert len(computed) == 9
    run.evaluate()
    assert len(computed) == 9
    assert bytes_of(run) == bytes_of(undisturbed)


# Real processes ------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import time

from numerate.runs.engines import Local
from numerate.runs import store
from numerate.runs.plan import EvaluationPlan
from numerate.runs.run import load

real = EvaluationPlan.score


def slow(*given, **more):
    time.sleep(0.08)
    return real(*given, **more)


EvaluationPlan.score, store.WRITE_INTERVAL = slow, 0.0
if __name__ == "__main__":
    load(sys.argv[1]).evaluate("1:6", checkpoint="all", engine=Local(workers=2))
    print("done")
"""


def begun(path: Path, place: Path) -> subprocess.Popen[str]:
    (place / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(place / "script.py"), str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def workers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    is_worker = [b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    return [int(child) for child, found in zip(children, is_worker, strict=True) if found]


def wait_for(there: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.slow
def test_killed_at_any_moment_it_continues_by_cell_and_ends_with_the_same_bytes(
    copy: Callable[[str], Run], tmp_path: Path, computed: list[tuple[int, ...]]
) -> None:
    run, whole = copy("run"), 2 * 36
    for whom in ("the command and a worker", "a worker"):
        before = recorded(run)
        process = begun(run.path, tmp_path)
        wait_for(lambda before=before: len(recorded(run)) >= len(before) + 5)
        workers = workers_of(process.pid)
        for pid in workers[:1] + [process.pid] * (whom != "a worker"):
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=120)
        assert ("done" in out) == (whom == "a worker"), err
        wait_for(lambda workers=workers: all(map(gone, workers)))
        assert before < recorded(run), "what was recorded stays"
    assert len(recorded(run)) == whole, "the shard of a worker that was killed is done by another"
    run.evaluate("1:6", checkpoint="all", engine=Here(workers=2))
    assert not computed, "what was recorded is not computed again"
    undisturbed = copy("undisturbed")
    undisturbed.evaluate("1:6", checkpoint="all")
    assert bytes_of(run) == bytes_of(undisturbed)


def recorded(run: Run) -> set[str]:
    """The cells that any file has, whole lines only."""
    records = read_records(run.path / "cells.jsonl", EVALUATION)
    return {json.dumps([record["cell"], record["step"]]) for record in records}

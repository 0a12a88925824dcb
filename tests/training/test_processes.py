"""Promises of many processes: they train what one would, they end together, and their checkpoints are anybody's.

This file is also the work of each process in `together`, which torchrun starts: `test_processes.py FOLDER GROUP`.
"""

import fcntl
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parent.parent))

import numerate
from launched import ended, launch
from numerate.api import load, recipe
from numerate.errors import UserError
from numerate.runs.train import train
from numerate.training.distributed import World, resolve_device
from numerate.training.recipe import Recipe

torch.set_num_threads(1)

WAYS = ("all_reduce", "ddp", "fsdp")
STEPS, LONGER = 24, {"plain": 30, "machines": 12}
GROUP_OF_RESUMED = {"plain": "further", "machines": "machines"}
SMALL = (
    "task.digits=1:4 model.hidden_size=24 model.mixer=Attention(num_heads=2) training.batch_size=24 "
    f"training.shuffle_window=4 training.steps={STEPS} training.log_every=1 "
    f"training.evaluate_every={STEPS // 2} training.checkpoint_every={STEPS} evaluation.validation_examples=16 "
    "schedule=Constant(warmup=10) device=cpu"
).split()
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "plain": ((), WAYS),
    "accumulated": (("training.gradient_accumulation_steps=2",), WAYS),
    "growing": (
        ("training.batch_size_warmup=0.6", "training.initial_batch_size=4", "training.steps=20"),
        ("all_reduce",),
    ),
    "tied": (("model.tie_word_embeddings=true", "model.norm=rms"), ("ddp", "fsdp")),
    "looped": (
        (
            "model.backbone=Loop(num_layers=2,num_loops=4,input_injection=none)",
            "objective=Progressive(alpha=0.5,throttle=described)",
            "training.steps=20",
        ),
        ("ddp", "fsdp"),
    ),
    "networks": (("model.positions=[FIRE,ScaledSinusoidal]", "training.steps=20"), ("fsdp",)),
    "shared": (
        ("model.positions=[FIRE(share_across_layers=true),T5Bias(share_across_layers=true)]", "training.steps=20"),
        ("fsdp",),
    ),
    "symbols": (
        (
            "model.mixer=DualAttention(num_self_heads=1,num_relational_heads=1)",
            "model.positions=[Rotary]",
            "model.tie_word_embeddings=true",
            "objective.loss.fused=always",
            "training.log_layer_grad_norms=true",
            "training.micro_batch_size=6",
            "training.steps=20",
        ),
        ("ddp", "fsdp"),
    ),
    "recurrent": (("model.mixer=LSTM", "model.hidden_size=25", "training.steps=20"), ("fsdp",)),
    "machines": (
        (
            "model.backbone=Loop(num_layers=2,num_loops=2,input_injection=linear)",
            "model.mixer=DualAttention(num_self_heads=1,num_relational_heads=1,symbols=SymbolicAttention(sharing=library))",
            "model.positions=[Rotary,FIRE(share_across_layers=true)]",
            "model.tie_word_embeddings=true",
            "training.gradient_accumulation_steps=2",
            "training.steps=8",
        ),
        ("fsdp",),
    ),
}
"""What is trained, and in which ways; a width that does not divide among the processes is one of them. `machines` has
looped blocks that share what they can, and is trained by two processes on each of two machines."""


def small(case: str, *more: str) -> Recipe:
    return recipe("addition_abacus", *SMALL, *CASES[case][0], *more)


def group_of(case: str) -> str:
    return case if case in ("plain", "machines") else "further"


def work(folder: Path, group: str) -> None:
    """What each process does: the cases of a group in every way; or further starts of runs that are there too."""
    torch.set_num_threads(1)
    for case, way in RUNS:
        if group_of(case) == group:
            train(small(case, f"training.parallel={way}"), runs_dir=folder / f"{case}-{way}")
    for case, way in RESUMED:
        if group == GROUP_OF_RESUMED[case]:
            longer = small(case, f"training.parallel={way}", f"training.steps={LONGER[case]}")
            train(longer, runs_dir=folder / f"from-one-{case}-{way}")
    for way in WAYS if group == "further" else ():
        for steps in (STEPS // 2, STEPS):
            chosen = (f"training.parallel={way}", f"training.steps={steps}", "model.dropout=0.1")
            train(small("plain", *chosen), runs_dir=folder / f"halves-{way}")
        train(small("plain", f"training.parallel={way}", "model.dropout=0.1"), runs_dir=folder / f"whole-{way}")


RUNS = [(case, way) for case, (_, ways) in CASES.items() for way in ways]
RESUMED = [(case, way) for case, way in RUNS if case in LONGER]
every_run = pytest.mark.parametrize(
    ("case", "way"), [pytest.param(*run, marks=[pytest.mark.slow] * (run[0] != "plain")) for run in RUNS]
)


def losses(runs: Path) -> list[float]:
    (file,) = runs.glob("*/*/metrics.jsonl")
    return [record["loss"] for record in map(json.loads, file.read_text().splitlines()) if "loss" in record]


def farthest(some: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(some, others, strict=True))


def files(runs: Path, step: int) -> dict[str, bytes]:
    (folder,) = runs.glob(f"*/*/checkpoints/step-{step:06d}")
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


Folders = Callable[[str], Path]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The runs of a case by one process."""

    @cache
    def runs(case: str) -> Path:
        folder = tmp_path_factory.mktemp("alone")
        train(small(case), runs_dir=folder, quiet=True)
        return folder

    return runs


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, alone: Folders) -> Folders:
    """What two processes did: `plain`, or `further`; and `machines`: what four did, started by a command on each
    of two machines, which are this one. Once for all workers of pytest."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    @cache
    def runs(group: str) -> Path:
        folder = shared / f"together-{group}"
        with open(shared / f"{group}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                unfinished = folder.with_suffix(".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)  # of a worker that failed
                train_together(group, unfinished, alone)
                unfinished.rename(folder)
        return folder

    return runs


def train_together(group: str, folder: Path, alone: Folders) -> None:
    for case, way in RESUMED:
        if group == GROUP_OF_RESUMED[case]:
            shutil.copytree(alone(case), folder / f"from-one-{case}-{way}")
    work = (__file__, str(folder), group)
    if group == "machines":
        line = f"-m torch.distributed.run --nnodes 2 --nproc-per-node 2 --rdzv-endpoint localhost:{free_port()}"
        jobs = [launch(*line.split(), "--rdzv-backend", "c10d", *work) for _ in range(2)]
    else:
        jobs = [launch(*work, processes=2)]
    for job in jobs:
        status, output = ended(job)
        assert status == 0, output


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


def folder_of(together: Folders, case: str, way: str) -> Path:
    return together(group_of(case)) / f"{case}-{way}"


@every_run
def test_several_processes_have_the_loss_curve_of_one(alone: Folders, together: Folders, case: str, way: str) -> None:
    one, several = losses(alone(case)), losses(folder_of(together, case, way))
    assert len(one) in (8, 20, STEPS)
    assert farthest(one, several) < 1e-4
    assert max(one) - min(one) > 0.1


@every_run
def test_a_checkpoint_of_several_processes_is_one_of_one(
    alone: Folders, together: Folders, case: str, way: str
) -> None:
    (one,), (two,) = (load_all(alone(case)), load_all(folder_of(together, case, way)))
    for group in ("weights", "optimizer"):
        own, other = one.read([group])[group], two.read([group])[group]
        assert own.keys() == other.keys()
        for name, tensor in own.items():
            assert tensor.shape == other[name].shape
            assert torch.allclose(tensor, other[name], atol=2e-3), name


def load_all(runs: Path) -> list[Any]:
    (head,) = runs.glob("*/*/recipe.yaml")
    return list(load(head.parent).checkpoints("final"))


@pytest.mark.slow
@pytest.mark.parametrize(("case", "way"), RESUMED)
def test_a_run_of_several_processes_answers_and_resumes_in_one_and_back(
    alone: Folders, together: Folders, case: str, way: str, tmp_path: Path
) -> None:
    resumed_by_several = together(GROUP_OF_RESUMED[case]) / f"from-one-{case}-{way}"
    shutil.copytree(folder_of(together, case, way), tmp_path / "several")
    shutil.copytree(alone(case), tmp_path / "one")
    lines: list[str] = []
    longer = small(case, f"training.steps={LONGER[case]}")
    train(longer, runs_dir=tmp_path / "several", quiet=True, on_message=lines.append)
    train(longer, runs_dir=tmp_path / "one", quiet=True)
    count = 4 if case == "machines" else 2
    assert any(f"was written by {count} processes and resumes with 1" in text for text in lines)
    assert len(losses(tmp_path / "one")) == LONGER[case]
    assert farthest(losses(tmp_path / "one"), losses(tmp_path / "several")) < 1e-4
    assert farthest(losses(tmp_path / "one"), losses(resumed_by_several)) < 1e-4
    assert load(next((tmp_path / "several").glob("*/*"))).ask("12+3=")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_go_on_to_the_bits_of_an_uninterrupted_run(together: Folders, way: str) -> None:
    assert files(together("further") / f"halves-{way}", STEPS) == files(together("further") / f"whole-{way}", STEPS)
    assert losses(together("further") / f"halves-{way}") == losses(together("further") / f"whole-{way}")
    assert farthest(losses(together("further") / f"whole-{way}"), losses(together("plain") / f"plain-{way}")) > 1e-4


@pytest.mark.slow
def test_sharded_processes_decode_and_judge_answers_as_one_does_and_stop_at_its_target(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from numerate.evaluation.kinds.answers import AnswerKind\n"
        "from numerate.tasks.arithmetic import Arithmetic\n"
        "@dataclass(frozen=True)\n"
        "class Judged(AnswerKind):\n"
        "    columns: ClassVar = {'judged': 'more for shorter answers'}\n"
        "    def score_answer(self, question, correct_answer, prediction):\n"
        "        return {'judged': 1 / (1 + len(prediction))}\n"
        "@dataclass(frozen=True)\n"
        "class JudgedSums(Arithmetic):\n"
        "    evaluation_kind: ClassVar = 'Judged'\n"
    )
    settings = (
        *("--parts", str(tmp_path / "mine.py"), *SMALL[1:], "task=JudgedSums", "evaluation.validation_examples=15"),
        *("training.evaluate_at_start=true", "training.evaluate_every=4", "training.target_accuracy=0.24"),
        *("samples.when=evaluation", "samples.prompts=[12+3=,7+80=]", "samples.max_new_tokens=6"),
    )
    jobs = [
        launch(
            *("-m", "numerate", "train", "addition_abacus", *settings, "training.parallel=fsdp"),
            *("training.checkpoint_every=null", f"runs_dir={tmp_path / str(processes)}"),
            processes=processes,
        )
        for processes in (1, 2)
    ]
    for job in jobs:
        status, output = ended(job)
        assert status == 0, output
    found = []
    for processes in ("1", "2"):
        (folder,) = (tmp_path / processes).glob("*/*")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        best = load(folder).checkpoints("best")[0].step
        found.append(([one for one in lines if "judged" in one], [(one["step"], one["text"]) for one in samples], best))
    assert found[0] == found[1]
    assert 0 < found[0][0][-1]["step"] < STEPS, "the target is reached in the middle"


def test_an_error_of_one_process_ends_all_and_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "from dataclasses import dataclass\n"
        "from numerate.errors import UserError\n"
        "from numerate.tasks.arithmetic import Arithmetic\n"
        "@dataclass(frozen=True)\n"
        "class Moody(Arithmetic):\n"
        "    def draw(self, draws, index):\n"
        "        if os.environ.get('RANK') == '1' and index[0] >= 4 * 24:\n"
        "            raise UserError('task: this process has had enough')\n"
        "        return super().draw(draws, index)\n"
    )
    status, output = ended(
        launch(
            *("-m", "numerate", "train", "addition_abacus", "--parts", str(tmp_path / "mine.py"), *SMALL[1:]),
            *("task=Moody", f"runs_dir={tmp_path / 'runs'}"),
            processes=2,
        )
    )
    assert status != 0
    assert output.count("numerate: task: this process has had enough") == 1
    assert str(Path(numerate.__file__).parent) not in output, "a traceback through the package was shown"
    assert "exitcode  : 2" in output


def test_several_processes_of_a_machine_need_a_device_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("auto", 1).type in ("cpu", "cuda")
    with pytest.raises(UserError, match="one device for several processes"):
        resolve_device("cuda:0", 1)
    with pytest.raises(UserError, match="device: mps is one Apple GPU for one process"):
        resolve_device("mps", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda", 1) == torch.device("cuda", 1)
    with pytest.raises(UserError, match=r"for process 2 of this machine: torch sees 2 CUDA devices here"):
        resolve_device("cuda", 2)


def test_a_process_alone_works_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert World.join("cuda:1").device == torch.device("cuda", 1)
    assert current == [torch.device("cuda", 1)], "on another one its dropout would not be seeded"


def test_a_process_alone_is_the_first_and_adds_nothing() -> None:
    world = World.join("cpu")
    assert (world.rank, world.size, world.is_main_process, world.is_orphaned) == (0, 1, True, False)
    assert world.sum_counts({"a": 3}) == {"a": 3}
    assert world.max_over_processes(143) == 143
    assert world.all_gather("x") == ["x"]


def test_of_several_processes_the_largest_status_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather_with_another(values: list[int], own: int) -> None:
        values[:] = own, 143

    monkeypatch.setattr(dist, "all_gather_object", gather_with_another)
    assert World(torch.device("cpu"), rank=1, size=2).max_over_processes(0) == 143


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2])

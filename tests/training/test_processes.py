"""Promises of many processes: they train what one would, they end together, and their checkpoints are anybody's.

This file is also the work of each process in `together`, which torchrun starts: `test_processes.py FOLDER GROUP`.
"""

import json
import shutil
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
from numerate.experiments.train import train
from numerate.models.decoder import Decoder
from numerate.positions.bias import FIRE
from numerate.positions.rotary import Rotary
from numerate.training.distributed import World, resolve_device
from numerate.training.parallel import parameters_shared_by_blocks
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary

torch.set_num_threads(1)

WAYS = ("all_reduce", "ddp", "fsdp")
STEPS, LONGER = 24, 30
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
}
"""What is trained, and in which ways; a width that does not divide among the processes is one of them."""


def small(case: str, *more: str) -> Recipe:
    return recipe("addition_abacus", *SMALL, *CASES[case][0], *more)


def work(folder: Path, group: str) -> None:
    """What each process does: the plain case in every way; or every other case, and further starts of runs that are
    there."""
    torch.set_num_threads(1)
    for case, way in RUNS:
        if (case == "plain") == (group == "plain"):
            train(small(case, f"training.parallel={way}"), runs_dir=folder / f"{case}-{way}")
    for way in WAYS if group == "further" else ():
        longer = small("plain", f"training.parallel={way}", f"training.steps={LONGER}")
        train(longer, runs_dir=folder / f"from-one-{way}")
        for steps in (STEPS // 2, STEPS):
            chosen = (f"training.parallel={way}", f"training.steps={steps}", "model.dropout=0.1")
            train(small("plain", *chosen), runs_dir=folder / f"halves-{way}")
        train(small("plain", f"training.parallel={way}", "model.dropout=0.1"), runs_dir=folder / f"whole-{way}")


RUNS = [(case, way) for case, (_, ways) in CASES.items() for way in ways]
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
    """What two processes did: `plain`, or `further`, while two others trained another run on the same machine."""

    @cache
    def runs(group: str) -> Path:
        folder = tmp_path_factory.mktemp("together")
        jobs = [launch(__file__, str(folder), group, processes=2)]
        if group == "further":
            for way in WAYS:
                shutil.copytree(alone("plain"), folder / f"from-one-{way}")
            beside = ("addition_rotary", *SMALL, "seed=5", f"runs_dir={folder / 'beside'}")
            jobs.append(launch("-m", "numerate", "train", *beside, processes=2))
        for job in jobs:
            status, output = ended(job)
            assert status == 0, output
        return folder

    return runs


def folder_of(together: Folders, case: str, way: str) -> Path:
    return together("plain" if case == "plain" else "further") / f"{case}-{way}"


@every_run
def test_two_processes_have_the_loss_curve_of_one(alone: Folders, together: Folders, case: str, way: str) -> None:
    one, two = losses(alone(case)), losses(folder_of(together, case, way))
    assert len(one) in (20, STEPS)
    assert farthest(one, two) < 1e-4
    assert max(one) - min(one) > 0.1


@every_run
def test_a_checkpoint_of_two_processes_is_one_of_one(alone: Folders, together: Folders, case: str, way: str) -> None:
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
@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_two_processes_answers_and_resumes_in_one(
    alone: Folders, together: Folders, way: str, tmp_path: Path
) -> None:
    shutil.copytree(folder_of(together, "plain", way), tmp_path / "two")
    shutil.copytree(alone("plain"), tmp_path / "one")
    lines: list[str] = []
    longer = small("plain", f"training.steps={LONGER}")
    train(longer, runs_dir=tmp_path / "two", quiet=True, on_message=lines.append)
    train(longer, runs_dir=tmp_path / "one", quiet=True)
    assert any("was written by 2 processes and resumes with 1" in text for text in lines)
    assert len(losses(tmp_path / "one")) == LONGER
    assert farthest(losses(tmp_path / "one"), losses(tmp_path / "two")) < 1e-4
    assert farthest(losses(tmp_path / "one"), losses(together("further") / f"from-one-{way}")) < 1e-4
    assert load(next((tmp_path / "two").glob("*/*"))).ask("12+3=")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_go_on_to_the_bits_of_an_uninterrupted_run(together: Folders, way: str) -> None:
    assert files(together("further") / f"halves-{way}", STEPS) == files(together("further") / f"whole-{way}", STEPS)
    assert losses(together("further") / f"halves-{way}") == losses(together("further") / f"whole-{way}")
    assert farthest(losses(together("further") / f"whole-{way}"), losses(together("plain") / f"plain-{way}")) > 1e-4


@pytest.mark.slow
def test_two_jobs_on_one_machine_do_not_disturb_each_other(together: Folders, tmp_path: Path) -> None:
    train(recipe("addition_rotary", *SMALL, "seed=5"), runs_dir=tmp_path, quiet=True)
    assert farthest(losses(tmp_path), losses(together("further") / "beside")) < 1e-4


@pytest.mark.slow
def test_an_error_is_reported_once_and_leaves_no_folder(tmp_path: Path) -> None:
    status, output = ended(
        launch(
            *("-m", "numerate", "train", "addition_abacus", "training.batch_size=15", f"runs_dir={tmp_path / 'runs'}"),
            processes=2,
        )
    )
    assert status != 0
    assert output.count("numerate: training.batch_size: 15 examples must divide equally into 2 processes") == 1
    assert "exitcode  : 2" in output
    assert str(Path(numerate.__file__).parent) not in output, "a traceback through the package was shown"
    assert not (tmp_path / "runs").exists()


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
    assert "exitcode  : 2" in output


def test_what_several_blocks_share_is_named() -> None:
    vocabulary = Vocabulary.with_digits(["+", "="])
    own, shared = (
        parameters_shared_by_blocks(
            Decoder(hidden_size=16, positions=(FIRE(share_across_layers=one), Rotary())).build(vocabulary, 0)
        )
        for one in (False, True)
    )
    assert own == []
    assert len(shared) == 6
    assert all(".attention_biases.0." in name for name in shared)


def test_several_processes_of_a_machine_need_a_device_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("auto", 1).type in ("cpu", "cuda")
    with pytest.raises(UserError, match="one device for several processes"):
        resolve_device("cuda:0", 1)
    with pytest.raises(UserError, match="device: must be cpu, not mps"):
        resolve_device("mps", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda", 1) == torch.device("cuda", 1)
    with pytest.raises(
        UserError, match=r"for process 2 of this machine: there are 2 CUDA devices \(cuda:0 to cuda:1\)"
    ):
        resolve_device("cuda", 2)


def test_a_process_alone_is_the_first_and_adds_nothing() -> None:
    world = World.join("cpu")
    assert (world.rank, world.size, world.is_main_process, world.is_orphaned) == (0, 1, True, False)
    assert world.sum_counts({"a": 3}) == {"a": 3}
    assert world.max_over_processes(143) == 143
    assert world.all_gather("x") == ["x"]


def test_of_several_processes_the_largest_status_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def reduce_with_another(tensor: torch.Tensor, operation: Any) -> None:
        tensor.fill_({dist.ReduceOp.MAX: max, dist.ReduceOp.MIN: min}[operation](int(tensor), 143))

    monkeypatch.setattr(dist, "all_reduce", reduce_with_another)
    assert World(torch.device("cpu"), rank=1, size=2).max_over_processes(0) == 143


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2])

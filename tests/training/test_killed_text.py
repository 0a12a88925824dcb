"""Promises of a language-modeling run that is killed in the middle of an epoch: going on gives the bits of one that was
not, dropout on, alone and with two processes.

This file is also the work of each process: `test_killed_text.py FOLDER RUN ...` trains each run in turn.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent))

from launched import ended, last_logged_step, launch
from numerate.architectures.dual_attention import DualAttention
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.runs.train import train
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER
from numerate.training.distributed import World
from numerate.training.recipe import Recipe
from numerate.training.trainer import Trainer
from text_corpus import recipe_of, task_in

torch.set_num_threads(1)

STEPS, EVERY = 50, 10


def dual(folder: Path, order: str = "shuffled") -> Recipe:
    """Dual attention on stories that make about 63 steps; the corpus stands in the folder."""
    places = (str(folder / "train"), str(folder / "validation"))
    task = LanguageModeling(*places, CHARACTER_TOKENIZER, context_length=16, order=order)  # type: ignore[arg-type]
    mixer = DualAttention(num_self_heads=1, num_relational_heads=1, dropout=0.1)
    model = Decoder(
        hidden_size=16,
        backbone=Stack(num_layers=2),
        mixer=mixer,
        positions=(Rotary(),),
        dropout=0.1,
        tie_word_embeddings=True,
    )
    found = recipe_of(task, STEPS)
    training = replace(
        found.training, gradient_accumulation_steps=2, evaluate_every=25, checkpoint_every=EVERY, keep_checkpoints=None
    )
    return replace(found, model=model, training=training, device="cpu")


def work(folder: Path, runs: list[str]) -> None:
    for run in runs:
        train(dual(folder), runs_dir=folder / run, quiet=True)


def killed_after(process: "subprocess.Popen[str]", runs: Path, step: int) -> None:
    """Waits for a step and kills all processes of the run at once, as a power cut does."""
    end = time.monotonic() + 120
    while last_logged_step(runs) < step:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.002)
    everybody = [process.pid, *workers(process.pid)]
    for one in everybody:
        os.kill(one, signal.SIGKILL)
    process.communicate()


def workers(launcher: int) -> list[int]:
    """The processes that a process has started, by what the system knows of them."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == launcher:
            found.append(int(place.name))
    return found


def bits(runs: Path) -> dict[str, bytes]:
    """The weights and moments of the last step, and all metrics."""
    (folder,) = runs.glob(f"*/*/checkpoints/step-{STEPS:06d}")
    found = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    return found | {"metrics": (folder.parent.parent / "metrics.jsonl").read_bytes()}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("tokenizers", reason="the extra huggingface has it")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    task = task_in(tmp_path)
    assert task.num_chunks("train") / 4 > STEPS, "an epoch is longer than the run"
    return tmp_path


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the processes of a run as Linux tells them")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.slow
def test_a_run_that_is_killed_resumes_to_the_bits_of_one_that_was_not(corpus: Path, processes: int) -> None:
    whole = ["whole"] if processes > 1 else []
    first = launch(__file__, str(corpus), *whole, "killed", processes=processes)
    killed_after(first, corpus / "killed", 2 * EVERY + 3)
    if processes == 1:
        work(corpus, ["whole", "killed"])
    else:
        status, output = ended(launch(__file__, str(corpus), "killed", processes=processes))
        assert status == 0, output
    assert bits(corpus / "killed") == bits(corpus / "whole")
    (head,) = (corpus / "killed").glob("*/*/starts.jsonl")
    assert len(head.read_text().splitlines()) == 2


def losses_of(folder: Path, backend: str) -> list[float]:
    """The losses of a few steps, compiled if a backend is named."""
    plain = torch.compile
    if backend:
        torch.compile = lambda model, **how: plain(model, **how, backend=backend)
    recipe = dual(folder)
    recipe = replace(recipe, training=replace(recipe.training, compile=bool(backend)))
    trainer = Trainer(recipe, World.join("cpu"))
    trainer.model.train()
    found = []
    for _ in range(4):
        trainer.training_step(4)
        trainer.save()
        found.append(trainer.state.sums.pop("loss"))
    return found


@pytest.mark.slow
def test_a_compiled_model_of_dual_attention_has_the_same_losses(corpus: Path) -> None:
    status, output = ended(launch(__file__, str(corpus), "--compiled", "eager"))  # without the shape checks of tests
    assert status == 0, output
    plain, compiled = map(json.loads, output.splitlines()[-2:])
    assert compiled == pytest.approx(plain, abs=1e-5)
    assert plain[0] != plain[-1]


if __name__ == "__main__":
    if "--compiled" in sys.argv:
        for backend in ("", sys.argv[-1]):
            print(json.dumps(losses_of(Path(sys.argv[1]), backend)))
    else:
        work(Path(sys.argv[1]), sys.argv[2:])

"""Small runs of additions, which train in a second, and what is read of them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from numerate.api import recipe
from numerate.config import Span
from numerate.evaluation.evaluator import Evaluation
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.position_ids import DigitIndex
from numerate.positions.rotary import Rotary
from numerate.runs.run import Run
from numerate.runs.train import TrainedRun
from numerate.tasks.arithmetic import Arithmetic
from numerate.training.recipe import Recipe, Training
from numerate.training.stopping import Stop

SMALL = (
    "task.digits=1:3 model.hidden_size=16 model.backbone.num_layers=1 model.mixer.num_heads=2 training.batch_size=16 "
    "training.shuffle_window=4 training.log_every=5 evaluation.validation_examples=16 device=cpu"
)
TINY = Recipe(
    task=Arithmetic(digits=Span(1, 2)),
    model=Decoder(hidden_size=16, positions=(Rotary(),)),
    training=Training(
        steps=4, batch_size=8, shuffle_window=2, threads=1, log_every=2, evaluate_every=2, checkpoint_every=2
    ),
    evaluation=Evaluation(grid="1:2x1:2", examples_per_cell=4, validation_examples=8),
    title="rotary",
)
ADDING = Recipe(
    task=Arithmetic(digits=Span(1, 2)),
    model=Decoder(
        hidden_size=32, positions=(Learned(position_ids=DigitIndex(max_offset=3), max_position_embeddings=12),)
    ),
    training=Training(
        steps=8,
        batch_size=16,
        shuffle_window=4,
        threads=1,
        log_every=2,
        evaluate_every=4,
        checkpoint_every=4,
        keep_checkpoints=None,
    ),
    evaluation=Evaluation(grid="1:3x1:3", examples_per_cell=12, validation_examples=16),
    name="small",
    title="adding",
)
"""8 steps, checkpoints at 4 and 8, and a table that ends at 12 digits."""


def small(settings: str, *more: str, name: str = "addition_abacus") -> Recipe:
    """A small recipe with further settings: several in a text, and each of `more`."""
    return recipe(name, *SMALL.split(), *settings.split(), *more)


def copied(run: Path, runs: Path) -> Path:
    """The folder of runs, with a copy of a run in it."""
    shutil.copytree(run, runs / run.parent.name / run.name)
    return runs


def metrics(made: TrainedRun) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`."""
    return [json.loads(line) for line in (made.run.path / "metrics.jsonl").read_text().splitlines()]


def best_step(run: Run) -> dict[str, Any]:
    """The best step so far, as the last checkpoint knows it."""
    progress = run.checkpoints("final")[0].state["progress"]
    return {"step": progress["best"], **{name: progress[f"best_{name}"] for name in ("score", "split", "metric")}}


def tensors(run: Run | TrainedRun, name: str = "final") -> dict[str, dict[str, torch.Tensor]]:
    """The weights and moments of a checkpoint."""
    (found,) = (run.run if isinstance(run, TrainedRun) else run).checkpoints(name)
    return found.read()


def weights(run: Run | TrainedRun, name: str = "final") -> dict[str, torch.Tensor]:
    return tensors(run, name)["weights"]


def same(some: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(tensor, others[name]) for name, tensor in some.items())


def stop_after(step: int | None) -> dict[str, Any]:
    """The arguments of `train` by which it is stopped after a step."""
    stop = Stop()

    def listen(kind: str, record: Mapping[str, Any]) -> None:
        if kind == "step" and record["step"] == step:
            stop.request()

    return {"stop": stop, "on_record": listen}

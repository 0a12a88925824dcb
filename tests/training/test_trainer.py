"""Promises of the loop: its budgets, its stops, its precisions, and what it says when something goes wrong."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import small_runs
from numerate.api import recipe
from numerate.errors import OperationalError, UserError
from numerate.evaluation import evaluation_data
from numerate.evaluation.exact_match import predict
from numerate.runs.train import TrainedRun, train
from numerate.training import validation
from numerate.training.distributed import World
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stop
from numerate.training.trainer import Trainer
from small_runs import SMALL, copied, metrics, same, weights

torch.set_num_threads(1)

OWN = (
    "training.steps=30 training.evaluate_every=10 training.checkpoint_every=10 training.keep_checkpoints=null "
    "schedule=Constant(warmup=4)"
)


def small(*more: str) -> Recipe:
    return small_runs.small(OWN, *more)


def trained(runs: Path, *more: str, lines: list[str] | None = None) -> TrainedRun:
    return train(small(*more), runs_dir=runs, quiet=True, on_message=(lines if lines is not None else []).append)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """30 steps, which no test changes."""
    return trained(tmp_path_factory.mktemp("finished"))


def test_a_larger_budget_resumes_a_finished_run_as_if_it_had_always_been_larger(
    finished: TrainedRun, tmp_path: Path
) -> None:
    longer = trained(copied(finished.run.path, tmp_path / "twice"), "training.steps=50")
    whole = trained(tmp_path / "whole", "training.steps=50")
    assert longer.stop_reason == whole.stop_reason == "budget"
    assert same(weights(longer), weights(whole))
    assert metrics(longer) == metrics(whole)


def test_dropout_is_drawn_anew_at_every_step_by_the_seed_of_the_run() -> None:
    def seeds(*more: str) -> list[int]:
        trainer, found = Trainer(small("model.dropout=0.1", *more), World.join("cpu")), list[int]()
        trainer.model.train().register_forward_pre_hook(lambda *_: found.append(torch.initial_seed()))
        for _ in range(3):
            trainer.training_step(3)
        return found

    assert len(set(seeds())) == 3
    assert seeds() == seeds()
    assert not set(seeds()) & set(seeds("seed=1"))


def test_a_finished_run_is_left_as_it_is(finished: TrainedRun, tmp_path: Path) -> None:
    lines: list[str] = []
    again = trained(copied(finished.run.path, tmp_path), lines=lines)
    assert again.stop_reason == "done"
    assert metrics(again) == metrics(finished)
    assert "already trained to step 30, with a budget of 30 steps; a larger training.steps= continues" in lines[-1]


def test_a_torn_last_checkpoint_falls_back_to_the_one_before_and_says_so(finished: TrainedRun, tmp_path: Path) -> None:
    runs = copied(finished.run.path, tmp_path)
    lines: list[str] = []
    (file,) = runs.glob("*/*/checkpoints/step-000030/weights.safetensors")
    file.write_bytes(file.read_bytes()[:-7])
    again = trained(runs, lines=lines)
    assert "weights.safetensors" in lines[0]
    assert "renamed to torn-000030" in lines[0]
    assert "resuming from step 20 of 30" in lines[1]
    assert same(weights(again), weights(finished))
    assert metrics(again) == metrics(finished)


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
def test_what_is_not_finite_stops_the_run_and_names_the_last_good_checkpoint(tmp_path: Path, what: str) -> None:
    world, chosen = World.join("cpu"), small("training.checkpoint_every=6")
    trainer = Trainer(chosen, world, RunFolder.create(tmp_path, "spoilt", "0", {"recipe": {}}))

    def spoil(kind: str, record: Mapping[str, Any]) -> None:
        if kind == "step" and record["step"] == (7 if what == "loss" else 9):
            head = next(p for name, p in trainer.model.named_parameters() if name == "head.weight")
            if what == "loss":
                head.data.fill_(torch.nan)
            else:
                head.register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]

    trainer.on_event = spoil
    with pytest.raises(
        OperationalError, match=f"step 10: the {what} is not finite; the last good checkpoint is step-000006"
    ):
        trainer.train()
    assert trainer.folder is not None
    assert [path.name for path in trainer.folder.checkpoints.iterdir()] == ["step-000006"]


def test_padding_is_a_share_of_all_that_is_read_by_an_encoder_too(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    t5 = "model=T5(hidden_size=16,num_layers=1,num_heads=2,head_dim=8,intermediate_size=16)"
    others = [word for word in f"{SMALL} {OWN}".split() if not word.startswith("model.")]
    pair = recipe("addition_rotary", *others, t5, "layout=Seq2Seq", "training.steps=5")
    made = train(pair, runs_dir=tmp_path, quiet=True)
    (padding,) = [line["padding"] for line in metrics(made) if "padding" in line]
    stream = Trainer(pair, World.join("cpu")).stream
    real = padded = 0
    for place in range(0, 80, 16):
        batch = stream.batch(place)
        assert batch.source is not None
        for ids in (batch.tokens.ids, batch.source.ids):
            padded += ids.numel()
        real += int(batch.tokens.lengths.sum() + batch.source.lengths.sum())
    assert 0 < padding < 1
    assert padding == pytest.approx(1 - real / padded, abs=1e-4)


def test_a_target_stops_the_run_and_a_higher_one_resumes_it(tmp_path: Path) -> None:
    easy = (
        "task.digits=1",
        "task.include_zero=true",
        "training.evaluate_every=5",
        "optimizer.learning_rate=0.01",
        "training.steps=400",
    )
    first = trained(tmp_path, *easy, "training.target_accuracy=0.1")
    reached = [
        line["step"] for line in metrics(first) if line.get("split") == "validation" and line["exact_match"] >= 0.1
    ]
    assert first.stop_reason == "target"
    assert reached == [metrics(first)[-1]["step"]]
    assert reached[0] < 400
    assert trained(tmp_path, *easy, "training.target_accuracy=0.1").stop_reason == "done"
    higher = trained(tmp_path, *easy, "training.target_accuracy=0.3")
    assert higher.stop_reason == "target"
    assert metrics(higher)[-1]["step"] > reached[0]


def test_minutes_are_a_cap_that_the_next_start_goes_beyond(tmp_path: Path) -> None:
    capped = ("training.steps=100000", "training.evaluate_every=100000", "training.minutes=0.003")
    lines: list[str] = []
    first = trained(tmp_path, *capped, lines=lines)
    step = first.run.checkpoints()[0].step
    assert (first.stop_reason, first.exit_status) == ("minutes", 0)
    assert 0 < step < 100000
    assert f"stopped at step {step} of 100000" in lines[-1]
    assert trained(tmp_path, *capped).run.checkpoints()[0].step > step


def test_a_stop_leaves_an_evaluation_after_the_batch_in_progress_and_the_run_resumes_bit_by_bit(
    stop_at: Callable[[int], Stop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_data, "MAX_TOKENS_PER_CPU_FORWARD", 40)  # so that evaluations have several batches
    chosen = ["training.steps=4", "training.evaluate_every=2", "training.log_every=1", "training.best_metric=loss"]
    chosen += [
        "training.evaluate_at_start=true",
        "samples.when=evaluation",
        "samples.prompts=['1+']",
        "samples.max_new_tokens=3",
    ]
    whole = trained(tmp_path / "whole", *chosen)
    undone, read = set(), []
    monkeypatch.setattr(
        validation, "predict", lambda *given, **more: read.append(stop.left > 0) or predict(*given, **more)
    )
    for nth in range(1, 100, 3):
        stop = stop_at(nth)
        parted = train(small(*chosen), runs_dir=tmp_path / "parted", quiet=True, stop=stop)
        if parted.stop_reason != "stopped":
            break
        undone.add(parted.run.checkpoints()[0].state["progress"]["pending"])
    assert undone >= {"evaluation", "samples"}
    assert all(read), "a batch was read after the stop"
    for file in ("metrics.jsonl", "samples.jsonl"):
        assert (parted.run.path / file).read_bytes() == (whole.run.path / file).read_bytes()
    ended, undisturbed = (one.run.checkpoints()[0].state for one in (parted, whole))
    assert ended | {"seconds": None} == undisturbed | {"seconds": None}
    assert same(weights(parted), weights(whole))


@pytest.mark.parametrize(
    ("budget", "steps"),
    [("examples=100", 7), ("epochs=2", 11), ("tokens=2000", None)],
)
def test_other_budgets_than_steps(tmp_path: Path, budget: str, steps: int | None) -> None:
    """One-digit sums are 9 x 9 questions: two epochs of batches of 16 are 162 / 16 steps, rounded up."""
    kept = trained(tmp_path, "task.digits=1", "training.steps=null", f"training.{budget}").run.checkpoints()[0]
    if steps is not None:
        assert kept.step == steps
    else:
        assert 2000 <= kept.state["progress"]["tokens"] < 2000 + 16 * 6


def test_init_from_takes_the_weights_and_nothing_else(finished: TrainedRun, tmp_path: Path) -> None:
    begun = trained(tmp_path, f"init_from={finished.run.path}", "optimizer.learning_rate=1e-12", "training.steps=2")
    assert begun.run.path != finished.run.path
    for name, tensor in weights(begun).items():
        assert torch.allclose(tensor, weights(finished)[name], atol=1e-9)
    assert metrics(begun)[0]["step"] == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "init_from={} task=Sorting evaluation.grid=null",
            r"^init_from: .* of this run \(Sorting, \d+ tokens\), not that of Arithmetic",
        ),
        ("init_from={} model.hidden_size=32", r"init_from: .*embedding.weight has the shape"),
        ("training.precision=fp16", r"training.precision: must be bf16 or fp32 .*fp16 needs a GPU"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_leaves_no_folder(
    settings: str, message: str, finished: TrainedRun, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        trained(tmp_path, *(word.format(finished.run.path) for word in settings.split()))
    assert list(tmp_path.iterdir()) == []


def test_bf16_trains_and_keeps_its_weights_in_fp32(finished: TrainedRun, tmp_path: Path) -> None:
    half = trained(tmp_path, "training.precision=bf16")
    own, full = ([line["loss"] for line in metrics(run) if "loss" in line] for run in (half, finished))
    assert own != full
    assert max(abs(a - b) for a, b in zip(own, full, strict=True)) < 0.05
    assert own[-1] < own[0]
    assert {tensor.dtype for tensor in weights(half).values()} == {torch.float32}

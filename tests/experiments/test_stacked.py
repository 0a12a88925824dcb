"""Promises of training several runs as one: each in its folder as if alone, whichever way resumes the other."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import small_runs
from numerate import catalogue
from numerate.api import recipe
from numerate.errors import OperationalError, UserError
from numerate.experiments.stacked import stack_key, train_stacked, why_not_stacked
from numerate.experiments.train import TrainedRun, train
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Context, TokenMixer
from numerate.positions.position import Position
from numerate.training.lock import Lock, LockedError
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stop

torch.set_num_threads(1)

OWN = (
    "training.batch_size=8 training.steps=20 training.evaluate_every=10 training.checkpoint_every=5 "
    "training.keep_checkpoints=null schedule=Constant(warmup=4) "
    "optimizer.eps=1e-3"  # a gradient of nothing but rounding would else be a whole step of Adam
)


def small(*more: str) -> Recipe:
    return small_runs.small(OWN, *more)


VARIED = [
    small(),
    small("seed=1", "optimizer.learning_rate=0.003", "schedule=Cosine(warmup=2)"),
    small("seed=2", "optimizer.weight_decay=0.2", "optimizer.max_grad_norm=null", "training.steps=12", "name=short"),
]
"""Runs of one stack."""


def stacked(recipes: Sequence[Recipe], runs: Path, **more: Any) -> list[TrainedRun]:
    """As `train_stacked`, and every one is well."""
    found = []
    for one in train_stacked(recipes, runs_dir=runs, **more):
        assert isinstance(one, TrainedRun), one
        found.append(one)
    return found


def alone(one: Recipe, runs: Path) -> TrainedRun:
    return train(one, runs_dir=runs, quiet=True)


@pytest.fixture(scope="module")
def each_alone(tmp_path_factory: pytest.TempPathFactory) -> list[TrainedRun]:
    """The runs, trained one by one, which no test changes."""
    return [alone(one, tmp_path_factory.mktemp("alone")) for one in VARIED]


@pytest.fixture(scope="module")
def heard() -> list[tuple[int, str, int]]:
    """What the listener of the stack below was told: the run, the kind of record, its step."""
    return []


@pytest.fixture(scope="module")
def all_as_one(tmp_path_factory: pytest.TempPathFactory, heard: list[tuple[int, str, int]]) -> list[TrainedRun]:
    """The same runs, trained as one, which no test changes."""
    runs = tmp_path_factory.mktemp("stacked")
    listen = lambda index, kind, record: heard.append((index, kind, record["step"]))  # noqa: E731
    return stacked(VARIED, runs, on_record=listen, command="numerate run mine")


def copied(runs: Sequence[TrainedRun], place: Path) -> Path:
    """A folder of runs with copies of these in it."""
    for one in runs:
        shutil.copytree(one.run.path, place / one.run.path.parent.name / one.run.path.name)
    return place


def stopping(step: int, at: int = 0) -> tuple[Stop, Any]:
    """A stop, and a listener of a stack that asks it when run `at` has made so many steps."""
    stop = Stop()

    def listen(index: int, kind: str, record: Mapping[str, Any]) -> None:
        if index == at and kind == "step" and record["step"] == step:
            stop.request()

    return stop, listen


def same_runs(expected: TrainedRun, found: TrainedRun, also: Sequence[int] = ()) -> None:
    """That two folders tell of the same training, but for rounding; the second has checkpoints at more places."""
    assert expected.stop_reason == found.stop_reason
    assert expected.run.folder.id == found.run.folder.id
    metrics = [one.run.folder.records("metrics.jsonl") for one in (expected, found)]
    assert len(metrics[0]) == len(metrics[1]) > 0
    for line, other in zip(*metrics, strict=True):
        assert line.keys() == other.keys()
        assert other == {
            k: v if isinstance(v, str) or v is None else pytest.approx(v, rel=1e-4) for k, v in line.items()
        }
    heads = [one.run.folder.metadata() for one in (expected, found)]
    for name in ("ended", "best", "recipe", "name", "variant", "parameters", "threads"):
        assert heads[0][name] == heads[1][name], name
    checkpoints = [one.run.checkpoints("all") for one in (expected, found)]
    assert sorted({*(one.step for one in checkpoints[0]), *also}) == [one.step for one in checkpoints[1]]
    for one, other in zip(checkpoints[0], (one for one in checkpoints[1] if one.step not in also), strict=True):
        tensors, others = one.read(), other.read()
        assert tensors.keys() == others.keys()
        for group in tensors:
            assert tensors[group].keys() == others[group].keys()
            for name, tensor in tensors[group].items():
                torch.testing.assert_close(others[group][name], tensor, rtol=1e-4, atol=1e-6)


def test_runs_trained_as_one_are_what_they_are_alone(
    each_alone: list[TrainedRun], all_as_one: list[TrainedRun]
) -> None:
    for expected, found in zip(each_alone, all_as_one, strict=True):
        same_runs(expected, found)
        files = [sorted(path.name for path in one.run.path.iterdir()) for one in (expected, found)]
        assert files[0] == files[1]
    assert all_as_one[2].run.folder.metadata()["ended"]["step"] == 12


@pytest.mark.parametrize("again", [stacked, lambda recipes, runs: [alone(one, runs) for one in recipes]])
def test_stopped_as_one_they_continue_as_one_or_each_alone(
    again: Callable[..., list[TrainedRun]], each_alone: list[TrainedRun], tmp_path: Path
) -> None:
    stop, listen = stopping(7, at=1)
    first = stacked(VARIED, tmp_path, stop=stop, on_record=listen)
    assert [one.stop_reason for one in first] == ["stopped"] * 3
    for expected, found in zip(each_alone, again(VARIED, tmp_path), strict=True):
        same_runs(expected, found, also=[7])


def test_what_was_stopped_alone_at_different_steps_continues_as_one(
    each_alone: list[TrainedRun], tmp_path: Path
) -> None:
    places = (6, 11, 3)
    for step, one in zip(places, VARIED, strict=True):
        stop, listen = stopping(step)
        train(
            one, runs_dir=tmp_path, quiet=True, stop=stop, on_record=lambda kind, record, of=listen: of(0, kind, record)
        )
    messages: list[str] = []
    found = stacked(VARIED, tmp_path, on_message=messages.append)
    for expected, one, step in zip(each_alone, found, places, strict=True):
        same_runs(expected, one, also=[step])
    assert [text.partition("resuming from ")[2] for text in messages if "resuming" in text] == [
        "step 6 of 20",
        "step 11 of 20",
        "step 3 of 12",
    ]


def test_what_is_done_is_left_as_it_is_and_the_others_go_on(
    each_alone: list[TrainedRun], all_as_one: list[TrainedRun], tmp_path: Path
) -> None:
    runs = copied([all_as_one[0], all_as_one[2]], tmp_path)
    again = stacked(VARIED, runs)
    assert [one.stop_reason for one in again] == ["done", "budget", "done"]
    same_runs(each_alone[1], again[1])
    everything = stacked(VARIED, runs)
    assert [one.stop_reason for one in everything] == ["done"] * 3


def test_a_target_that_is_reached_ends_its_own_run(tmp_path: Path) -> None:
    easy = [
        small(
            f"seed={seed}",
            "task.digits=1",
            "task.include_zero=true",
            "optimizer.learning_rate=0.01",
            "training.steps=150",
            target,
        )
        for seed, target in ((0, "training.target_accuracy=0.04"), (1, "training.target_accuracy=null"))
    ]
    found = stacked(easy, tmp_path / "as one")
    expected = [alone(one, tmp_path / "alone") for one in easy]
    assert [one.stop_reason for one in found] == ["target", "budget"]
    assert found[0].run.folder.metadata()["ended"]["step"] == expected[0].run.folder.metadata()["ended"]["step"] < 150


def test_a_run_that_another_process_writes_is_refused_and_the_others_are_trained(
    each_alone: list[TrainedRun], tmp_path: Path
) -> None:
    path = tmp_path / "addition_abacus" / each_alone[0].run.folder.id
    folder = RunFolder.create(tmp_path, "addition_abacus", path.name, {"recipe": {}})
    with folder.lock():
        ended = train_stacked(VARIED, runs_dir=tmp_path)
    assert isinstance(ended[0], LockedError)
    assert str(path) in str(ended[0])
    for expected, found in zip(each_alone[1:], ended[1:], strict=True):
        assert isinstance(found, TrainedRun)
        same_runs(expected, found)


def test_a_run_given_twice_is_trained_once(tmp_path: Path) -> None:
    ended = train_stacked([VARIED[2], VARIED[2]], runs_dir=tmp_path)
    assert isinstance(ended[0], TrainedRun)
    assert isinstance(ended[1], LockedError)


def test_a_loss_that_is_not_finite_is_the_fault_of_its_run_alone(each_alone: list[TrainedRun], tmp_path: Path) -> None:
    wild = small(
        "seed=7", "optimizer.learning_rate=1e38", "optimizer.max_grad_norm=null", "schedule=Constant(warmup=0)"
    )
    free: list[bool] = []

    def listen(index: int, kind: str, record: Mapping[str, Any]) -> None:
        if (index, kind, record["step"]) == (0, "step", 15):
            (folder,) = (path for path in tmp_path.glob("*/*/recipe.yaml") if "seed: 7" in path.read_text())
            free.append(Lock(folder.parent / "lock").holder() is None)

    ended = train_stacked([VARIED[0], wild, VARIED[1]], runs_dir=tmp_path, on_record=listen)
    assert isinstance(ended[1], OperationalError)
    assert "is not finite" in str(ended[1])
    assert free == [True], "while the others go on"
    for expected, found in zip(each_alone[:2], (ended[0], ended[2]), strict=True):
        assert isinstance(found, TrainedRun)
        same_runs(expected, found)
    with pytest.raises(OperationalError, match="is not finite"):
        alone(wild, tmp_path)


def test_a_run_that_cannot_be_trained_says_so_and_the_others_are_trained(tmp_path: Path) -> None:
    none = replace(VARIED[1], init_from="nobody")
    ended = train_stacked([VARIED[2], none], runs_dir=tmp_path)
    assert isinstance(ended[0], TrainedRun)
    assert isinstance(ended[1], UserError)
    assert "nobody" in str(ended[1])


def test_a_run_may_begin_with_the_weights_of_another(all_as_one: list[TrainedRun], tmp_path: Path) -> None:
    runs, other = copied(all_as_one[2:], tmp_path / "one"), copied(all_as_one[2:], tmp_path / "other")
    later = small("seed=5", "training.steps=4", "init_from=short")
    found = stacked([later, small("seed=6", "training.steps=4")], runs)
    same_runs(alone(later, other), found[0])


def test_no_runs_are_nothing_to_do(tmp_path: Path) -> None:
    assert train_stacked([], runs_dir=tmp_path) == []


def test_listeners_know_which_run_it_is_about(all_as_one: list[TrainedRun], heard: list[tuple[int, str, int]]) -> None:
    for index, one in enumerate(VARIED):
        steps = one.training.steps or 0
        assert [step for at, kind, step in heard if (at, kind) == (index, "step")] == list(range(1, steps + 1))
        assert (index, "log", 5) in heard
        assert (index, "evaluation", 10) in heard
        assert (index, "checkpoint", steps) in heard


def test_what_the_user_typed_is_noted_in_every_run(all_as_one: list[TrainedRun]) -> None:
    for one in all_as_one:
        assert one.run.folder.metadata()["command"] == "numerate run mine"
        assert [line["command"] for line in one.run.folder.records("starts.jsonl")] == ["numerate run mine"]


class Peeking(TokenMixer):
    """A mixer that looks at a value, which no stack can."""

    def forward(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        return x if float(x.detach().abs().sum()) > 0 else -x

    def prefill(self, x: torch.Tensor, context: Context) -> Any:
        raise NotImplementedError

    def step(self, x: torch.Tensor, context: Context, state: Any) -> Any:
        raise NotImplementedError

    def flops(self, time: int) -> int:
        return 1


def test_a_part_that_cannot_be_stacked_fails_all_at_once_and_frees_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(self: Attention, width: int, layer: int, depth: int, positions: Sequence[Position]) -> Any:
        return Peeking()

    monkeypatch.setattr(Attention, "build", build)
    with pytest.raises(RuntimeError, match="vmap"):
        train_stacked(VARIED, runs_dir=tmp_path)
    assert alone(VARIED[2], tmp_path).stop_reason == "budget"


# Which can be stacked -------------------------------------------------------------------------------------------------

ALIKE = [
    "seed=3",
    "optimizer.learning_rate=0.1",
    "optimizer.betas=[0.5,0.6]",
    "optimizer.eps=1e-4",
    "optimizer.weight_decay=0.3",
    "optimizer.max_grad_norm=null",
    "schedule=OneCycle()",
    "model.initialization=Normal(0.1)",
    "training.steps=7",
    "training.tokens=5000",
    "training.target_accuracy=0.5",
    "training.minutes=3",
    "training.shuffle_window=8",
    "training.log_every=1",
    "training.checkpoint_every=null",
    "evaluation.validation_examples=8",
    "evaluation.examples_per_cell=3",
    "name=mine",
    "group=ours",
    "title=other",
]
OTHER = [
    "task.digits=1:4",
    "model.hidden_size=32",
    "model.backbone.num_layers=2",
    "model.mixer.num_heads=4",
    "model.mixer.logit_scale=2.0",
    "model.positions=[]",
    "tokenizer.add_bos_token=true",
    "layout.targets=all",
    "objective.targets_only=false",
    "training.batch_size=16",
    "training.precision=bf16",
    "training.threads=2",
]
NOT = {
    "training.compile=true": "training.compile",
    "training.precision=fp16": "training.precision",
    "training.gradient_accumulation_steps=2": "training.gradient_accumulation_steps",
    "training.batch_size_warmup=0.5 training.initial_batch_size=4": "training.initial_batch_size",
    "model.dropout=0.1": "model.dropout",
    "model.mixer.dropout=0.1": "model.mixer.dropout",
    "model.mixer=LSTM": "model.mixer",
    "trackers=[tensorboard]": "trackers",
    "device=mps": "device",
}


@pytest.mark.parametrize("change", ALIKE)
def test_runs_that_differ_in_this_are_of_one_stack(change: str) -> None:
    assert stack_key(small(change)) == stack_key(small()) != None  # noqa: E711


@pytest.mark.parametrize("change", OTHER)
def test_runs_that_differ_in_this_are_not(change: str, tmp_path: Path) -> None:
    assert stack_key(small(change)) not in (None, stack_key(small()))
    with pytest.raises(UserError, match="may only differ in seed, optimizer"):
        train_stacked([small(), small(change)], runs_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("change", "where"), NOT.items())
def test_runs_that_cannot_be_stacked_say_why_not(change: str, where: str, tmp_path: Path) -> None:
    one = (
        small(*change.split()) if "LSTM" not in change else recipe("addition_abacus", "model.mixer=LSTM", "device=cpu")
    )
    assert stack_key(one) is None
    assert (why_not_stacked(one) or "").startswith(f"{where}: ")
    with pytest.raises(UserError, match=f"stack: {where}: "):
        train_stacked([one, one], runs_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", catalogue.parts_by_kind()["Recipe"])
def test_every_recipe_can_be_stacked_or_says_why_not(name: str) -> None:
    one = recipe(name)
    assert (stack_key(one) is None) == (why_not_stacked(one) is not None)


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from numerate.training.distributed import World

    monkeypatch.setattr(World, "join", classmethod(lambda cls, device="auto": World(torch.device("cpu"), 0, 2)))
    monkeypatch.setattr(World, "shared_error", lambda self, error: error)
    with pytest.raises(UserError, match="one process"):
        train_stacked(VARIED, runs_dir=tmp_path)

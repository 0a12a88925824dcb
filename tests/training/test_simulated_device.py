"""Promises of training on a device, held on one that is simulated (`simulated_device.py` says what that shows)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import backend_registration

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)


from numerate.api import recipe
from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention
from numerate.catalogue import all_classes
from numerate.config import override
from numerate.losses.number_token import NumberToken
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Loop
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned, Scalar
from numerate.positions.bias import FIRE
from numerate.positions.position_ids import DigitIndex, Shifted, Zooming
from numerate.positions.rotary import Rotary
from numerate.recipes.preset import debug
from numerate.runs.run import Run
from numerate.runs.train import TrainedRun, train
from numerate.text.models.t5 import T5
from numerate.training.distributed import World
from numerate.training.objective import Objective, Progressive, Supervised
from numerate.training.recipe import Recipe
from numerate.training.stopping import Stop
from numerate.training.trainer import Trainer
from simulated_device import DEVICE, DeviceLog, Wait, simulated_device
from small_runs import ADDING, metrics, stop_after
from text_corpus import recipe_of, task_in
from variants import FURTHER, TINY_TOKENIZER, every, name_of

TINY = (f"tokenizer.tokenizer={TINY_TOKENIZER}",)
MASKED = (
    "layout=MaskedLM",
    "model=Numformer(hidden_size=16,num_layers=1,num_heads=2,intermediate_size=16,max_position_embeddings=16,"
    "number_embedding=null,number_head=null,dropout=0)",
)
IN_PARTS = ("training.gradient_accumulation_steps=2", "training.log_layer_grad_norms=true")


def decoder(**settings: Any) -> Recipe:
    evaluation = replace(ADDING.evaluation, grid="1x2")
    return replace(ADDING, model=Decoder(**{"hidden_size": 16, **settings}), evaluation=evaluation)


def looped(objective: Objective, **settings: Any) -> Recipe:
    return replace(decoder(**{"backbone": Loop(num_loops=4), **settings}), objective=objective)


def with_loss(loss: Any) -> Recipe:
    return replace(decoder(), objective=Supervised(loss))


def labels(*settings: str, **model: Any) -> Recipe:
    """Of counting, where every token has a label."""
    found = debug(recipe("counting_mod10_nope"))
    return override(replace(found, model=Decoder(**{"hidden_size": 16, **model})), settings)


def number_loss(name: str) -> Recipe:
    found = override(recipe(f"number_loss_small_{name}"), TINY if name in ("rt", "xval", "regression") else ())
    t5 = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "head_dim": 8, "intermediate_size": 16}
    found = override(found, ["evaluation.grid=1"])
    return replace(found, model=replace(found.model, **(t5 if isinstance(found.model, T5) else {"hidden_size": 16})))


def named(parts: Sequence[Any], make: Callable[[Any], Recipe]) -> dict[str, Callable[[], Recipe]]:
    return {name_of(part): lambda part=part: make(part) for part in parts}


FAST: dict[str, Callable[[], Recipe]] = {
    "abacus": lambda: looped(
        Progressive(alpha=0.5, throttle="described"),
        positions=(Learned(position_ids=DigitIndex(max_offset=3), max_position_embeddings=20), FIRE()),
    ),
    "counting": lambda: labels(mixer=LSTM(), positions=(Learned(position_ids=Shifted(max_shift=3)),)),
    "dual attention": lambda: decoder(mixer=DualAttention(2, 2, SymbolicAttention()), positions=(Rotary(),)),
    "number loss": lambda: with_loss(NumberToken(reweigh=True)),
}
"""What crosses most."""

SLOW: dict[str, Callable[[], Recipe]] = {
    **named([part for part in every("Position") if part not in FURTHER["Position"]], lambda p: decoder(positions=(p,))),
    **named(
        [part() for part in all_classes("PositionIds") if part.causal and part.is_integer],
        lambda part: decoder(positions=(Learned(position_ids=part),)),
    ),
    **named([mixer for mixer in every("Mixer") if mixer not in FURTHER["Mixer"]], lambda part: decoder(mixer=part)),
    **named(
        [DualAttention(2, 2, symbols) for symbols in (PositionalSymbols(), PositionRelativeSymbols(max_distance=3))],
        lambda part: decoder(mixer=part),
    ),
    **named(
        [part for part in every("Loss") if getattr(part, "digit_order", "reversed") == "reversed"][1::2],
        lambda part: with_loss(part),
    ),
    **named(FURTHER["Backbone"][2::3], lambda part: decoder(backbone=part)),
    **named(["number_level", "rt", "xval", "regression"], number_loss),
    "jointly": lambda: override(debug(recipe("counting_universal_jointly")), ["training.precision=fp32"]),
    "Zooming": lambda: labels(positions=(Scalar(position_ids=Zooming()),)),
    "progressive": lambda: looped(
        Progressive(throttle="published"), backbone=Loop(input_injection="linear", initial_state="noise")
    ),
    "masked": lambda: override(decoder(), MASKED),
    "all targets": lambda: override(decoder(), ["layout=Continuation(targets=all)", "objective.targets_only=false"]),
    "in parts": lambda: override(decoder(tie_word_embeddings=True), IN_PARTS),
}


def nothing(x: torch.Tensor) -> object:
    return x + 1, x[:, :1].expand(2, 3), x.where(x > 0, 0.0), x.repeat_interleave(2, 1), x.masked_fill(x > 1, 0.0)


@pytest.mark.parametrize(
    ("work", "waits"),
    [
        (nothing, []),
        (lambda x: x.sum().item(), ["_local_scalar_dense"]),
        (lambda x: bool((x > 0).any()), ["_local_scalar_dense"]),
        (lambda x: x[x > 0], ["index with a mask"]),
        (lambda x: x.nonzero(), ["nonzero"]),
        (lambda x: x.tolist(), ["copy to the host"]),
        (lambda x: x.add_(torch.ones(2, 3).to(DEVICE)), ["copy from memory that is not pinned"]),
        (lambda x: x.add_(torch.ones(2, 3).pin_memory().to(DEVICE, non_blocking=True)), []),
        (lambda x: torch.tensor([0], device=DEVICE), ["copy from memory that is not pinned"]),
    ],
)
def test_what_waits_for_the_device_is_counted(work: Callable[[torch.Tensor], object], waits: list[str]) -> None:
    with simulated_device() as log:
        work(torch.zeros(2, 3, device=DEVICE))
        assert [wait.operator for wait in log.waits] == waits


def test_clipping_and_the_optimizer_take_all_parameters_at_once() -> None:
    with simulated_device() as log:
        trainer = Trainer(decoder(), World(DEVICE))
        trainer.start_training(Stop())
        trainer.training_step(1)
        log.clear()
        trainer.training_step(1)
    assert {"_foreach_norm", "_foreach_mul_", "_foreach_addcdiv_"} <= set(log.operators)
    assert not {"addcdiv_", "linalg_vector_norm"} & {name for name, count in log.operators.items() if count > 1}


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW if name not in FAST)]
)
def test_a_run_on_the_device_is_that_of_the_cpu_and_its_steps_wait_for_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("number_level", "rt", "xval", "regression", "masked"):
        pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    check((FAST | SLOW)[name](), tmp_path, monkeypatch)


def test_language_modeling_on_the_device_is_that_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check(recipe_of(task_in(tmp_path)), tmp_path, monkeypatch)


def check(found: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains, with a checkpoint from which it is resumed, evaluates and decodes on the CPU and on the device."""
    steps = {"steps": 6, "batch_size": 8, "log_every": 3, "evaluate_every": 6, "checkpoint_every": 3}
    training = replace(found.training, **steps, shuffle_window=2)
    evaluation = replace(found.evaluation, validation_examples=8, validation_batches=None)
    found = replace(found, training=training, evaluation=evaluation, title="short")
    on_cpu = trained(found, folder / "cpu", monkeypatch, torch.device("cpu"))
    expected = about([metrics(on_cpu), evaluated(on_cpu.run)])
    with simulated_device() as log:
        trained(found, folder / "device", monkeypatch, DEVICE, **stop_after(3))
        waits, on_record = waits_in_steps(log)
        on_device = trained(found, folder / "device", monkeypatch, DEVICE, on_record=on_record)
        results = [metrics(on_device), evaluated(on_device.run)]
    assert waits == []
    assert results == expected


def trained(
    found: Recipe, runs: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device, **more: Any
) -> TrainedRun:
    for module in ("training.distributed", "runs.run"):
        monkeypatch.setattr(f"numerate.{module}.resolve_device", lambda *args: device)
    return train(found, runs_dir=runs, quiet=True, **more)


def waits_in_steps(log: DeviceLog) -> tuple[list[Wait], Callable[[str, Mapping[str, Any]], None]]:
    """The waits from the end of step 4 to that of step 6, after which a line is logged; and what collects them."""
    waits: list[Wait] = []

    def on_record(kind: str, record: Mapping[str, Any]) -> None:
        if kind == "step" and record["step"] >= 4:
            waits.extend(log.waits if record["step"] > 4 else ())
            log.clear()

    return waits, on_record


def evaluated(run: Run) -> list[Any]:
    """The cells of the recipe's grid, decoded where there is something to decode, and a text that goes on."""
    found = run.recipe
    if found.task.is_language_modeling:
        (text,) = run.generate("Story 1", max_new_tokens=4, do_sample=False)
        return [run.evaluate(count=2).records, text.text, text.log_probability]
    decodes = type(found.layout).__name__ in ("Continuation", "Seq2Seq")
    records = run.evaluate(count=2, method="decoding" if decodes else "one pass").records
    # Of numbers their metrics: the sums that these are made of are exact decimals, in texts.
    return [record | ({"numbers": record["numbers"]["metrics"]} if "numbers" in record else {}) for record in records]


def about(value: Any) -> Any:
    """The same to rounding, which the branches for a device do in another order and Adam's first steps make larger."""
    if isinstance(value, Mapping):
        return {name: about(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [about(one) for one in value]
    return pytest.approx(value, rel=5e-3, abs=1e-4) if isinstance(value, float) else value

"""Objectives: what is drawn, which forwards are made of it, and what their gradients are divided by."""

import collections
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from numerate.batch import Batch, Model, StepContext
from numerate.config import Span
from numerate.losses.cross_entropy import CrossEntropy
from numerate.models.backbone import Loop, Stack
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.position_ids import DigitIndex
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters
from numerate.training.objective import Objective, Progressive, Supervised, default_loops

TASK, TOKENIZER = Arithmetic(digits=Span(1, 4)), Characters()
VOCABULARY = TOKENIZER.build_vocabulary(TASK)
PUBLISHED_THROTTLE = {1: 1.25, 2: 1.5, 4: 1.0, 8: 0.75, 16: 0.625}


def additions(rows: int = 6) -> Batch:
    written = TOKENIZER.encode_examples(TASK.examples("train", 0, 0, rows), VOCABULARY)
    return Continuation().build_batch(written, np.arange(rows))


def model_of(trunk: Any) -> Model:
    positions = (Learned(position_ids=DigitIndex(), max_position_embeddings=16),)
    return Decoder(hidden_size=16, backbone=trunk, positions=positions).build(VOCABULARY, 0).double()


def sums(objective: Objective, model: Model, step: int = 0, batch: Batch | None = None) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = objective.build(VOCABULARY)(
        model, batch or additions(), StepContext(seed=3, step=step)
    )
    return found


def gradient(model: Model, total: torch.Tensor) -> dict[str, torch.Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(total, parameters), strict=True))


# What is drawn -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("turns", "most"), [(1, None), (2, None), (4, None), (16, None), (4, 4), (5, 3), (3, 9)])
def test_turns_are_drawn_as_published(turns: int, most: int | None) -> None:
    """n uniform on 0 .. R - 1, then k uniform on 1 .. min(R - n, b): each pair as often as that says, and no other."""
    objective, steps = Progressive(max_grad_loops=most), 800
    found = collections.Counter(objective.sample_loops(turns, StepContext(seed=1, step=step)) for step in range(steps))
    limit = max(turns // 2, 1) if most is None else min(most, turns)
    expected = {
        (n, k): 1 / turns / min(turns - n, limit) for n in range(turns) for k in range(1, 1 + min(turns - n, limit))
    }
    assert set(found) <= set(expected)
    for pair, share in expected.items():
        assert abs(found[pair] / steps - share) <= 5 * (share * (1 - share) / steps) ** 0.5, pair


def test_what_is_drawn_depends_on_seed_and_step_alone() -> None:
    objective, model = Progressive(), model_of(Loop(num_loops=8))
    turns = [objective.sample_loops(8, StepContext(seed=1, step=step)) for step in range(20)]
    torch.manual_seed(4)
    assert turns == [objective.sample_loops(8, StepContext(seed=1, step=step)) for step in range(20)]
    assert turns != [objective.sample_loops(8, StepContext(seed=2, step=step)) for step in range(20)]
    whole = additions(6)
    written = TOKENIZER.encode_examples(TASK.examples("train", 0, 0, 6), VOCABULARY)
    parts = [
        Continuation().build_batch(written.take(slice(i, i + 2)), np.arange(i, i + 2)) for i in (0, 2, 4)
    ]  # as of ranks, or of a step in pieces
    for step in range(4):
        together = sum(sums(objective, model, step, part)["cross_entropy"] for part in parts)
        torch.testing.assert_close(together, sums(objective, model, step, whole)["cross_entropy"], rtol=1e-6, atol=1e-6)


# Which forwards are made ---------------------------------------------------------------------------------------------


class Recording(torch.nn.Module):
    """A model that notes how it is called."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.module, self.calls = model, []  # type: ignore[var-annotated]

    def forward(self, *given: Any, **named: Any) -> Any:
        self.calls.append((named["loops"], named["target_positions"] is not None))
        return self.module(*given, **named)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("most", [None, 3])
def test_the_loss_is_that_of_all_turns_and_that_of_drawn_ones(alpha: float, most: int | None) -> None:
    model, batch, bound = model_of(Loop(num_loops=4)), additions(), most or 2
    objective = Progressive(alpha=alpha, max_grad_loops=most)
    for step in range(5):
        drawn = objective.sample_loops(4, StepContext(seed=3, step=step))
        loss = CrossEntropy().build(VOCABULARY)
        of_all, of_drawn = (
            loss(model(batch.tokens, loops=turns), batch)["cross_entropy"] for turns in ((4 - bound, bound), drawn)
        )
        expected = (1 - alpha) * of_all + alpha * of_drawn
        watched = Recording(model)
        terms = objective.build(VOCABULARY)(watched, batch, StepContext(seed=3, step=step))
        torch.testing.assert_close(terms["cross_entropy"], expected, rtol=1e-6, atol=1e-6)
        forwards = [((4 - bound, bound), alpha < 1), (drawn, alpha > 0)]
        assert [turns[:2] for turns, _ in watched.calls] == [turns for turns, made in forwards if made]
        assert all(positions for _, positions in watched.calls)
        found, wanted = gradient(model, terms["cross_entropy"]), gradient(model, expected)
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("trunk", [Stack(2, "add"), Loop(2, 1, "linear", "noise")])
@pytest.mark.parametrize(
    "objective", [Progressive(), Progressive(alpha=0.4, throttle="described"), Progressive(alpha=0.0)]
)
def test_without_a_loop_it_is_plain_supervision(trunk: Any, objective: Progressive) -> None:
    model = model_of(trunk)
    plain, terms = sums(Supervised(), model), sums(objective, model)
    assert torch.equal(plain["cross_entropy"], terms["cross_entropy"])
    first, second = gradient(model, plain["cross_entropy"]), gradient(model, terms["cross_entropy"])
    assert all(torch.equal(first[name], second[name]) for name in first)
    watched = Recording(model)
    objective.build(VOCABULARY)(watched, additions(), StepContext(seed=0, step=0))
    assert len(watched.calls) == 1


def test_everywhere_and_at_targets_only_are_the_same_loss() -> None:
    model = model_of(Loop(num_layers=2, num_loops=4))
    for step in range(3):
        some, everywhere = (sums(Progressive(alpha=0.5, targets_only=only), model, step) for only in (True, False))
        torch.testing.assert_close(some["cross_entropy"], everywhere["cross_entropy"], rtol=1e-6, atol=1e-6)


def test_the_loops_of_a_wrapped_model_are_its_own() -> None:
    model = model_of(Loop(num_loops=6))
    assert (
        default_loops(model)
        == default_loops(Recording(model))
        == default_loops(torch.compile(model, backend="eager"))
        == 6
    )  # type: ignore[arg-type]
    assert default_loops(model_of(Stack())) == default_loops(torch.nn.Linear(2, 2)) == 1


# Throttles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("turns", "factor"), PUBLISHED_THROTTLE.items())
def test_the_published_throttle_is_a_factor_on_the_loss(turns: int, factor: float) -> None:
    objective = Progressive(throttle="published")
    assert objective.loss_factor(turns) == factor
    assert Progressive().loss_factor(turns) == Progressive(throttle="described").loss_factor(turns) == 1.0
    if turns < 16:
        model = model_of(Loop(num_loops=turns))
        throttled, plain = sums(objective, model, step=2), sums(Progressive(), model, step=2)
        torch.testing.assert_close(throttled["cross_entropy"], factor * plain["cross_entropy"])


def test_the_published_throttle_goes_by_the_most_turns_that_learn() -> None:
    assert Progressive(throttle="published", max_grad_loops=1).loss_factor(8) == 1.5
    assert Progressive(throttle="published", max_grad_loops=8).loss_factor(8) == pytest.approx(3 / 8)


def test_the_described_throttle_divides_the_gradient_of_the_trunk_by_its_turns() -> None:
    """Of each forward by its own number of turns with a gradient: k of the drawn one, b of the one of all turns."""
    model, batch, alpha = model_of(Loop(num_layers=2, num_loops=6, input_injection="linear")), additions(), 0.3
    several = set()
    for step in range(6):
        objective = Progressive(alpha=alpha, throttle="described")
        without, learning = objective.sample_loops(6, StepContext(seed=3, step=step))
        several.add(learning)
        found = gradient(model, sums(objective, model, step)["cross_entropy"])
        each = []
        for turns in ((3, 3), (without, learning)):
            loss = CrossEntropy().build(VOCABULARY)(model(batch.tokens, loops=turns), batch)
            each.append(gradient(model, loss["cross_entropy"]))
        for name in found:
            by = (3, learning) if name.startswith("backbone.") else (1, 1)
            expected = (1 - alpha) * each[0][name] / by[0] + alpha * each[1][name] / by[1]
            torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6, msg=name)
        plain = sums(replace(objective, throttle="none"), model, step)["cross_entropy"]
        assert torch.equal(plain, sums(objective, model, step)["cross_entropy"]), "the loss itself stays"
    assert len(several) > 1


# Operations ----------------------------------------------------------------------------------------------------------


def test_operations_are_a_forward_of_all_turns_and_a_backward_of_those_that_learn() -> None:
    model, batch = model_of(Loop(num_layers=2, num_loops=6, input_injection="ffn")), additions()
    rows, time = batch.tokens.ids.shape
    for alpha in (0.0, 0.5, 1.0):
        part = Progressive(alpha=alpha).build(VOCABULARY)
        mean = 0.0
        for step in range(400):
            pairs = [(3, 3)] * (alpha < 1) + [Progressive().sample_loops(6, StepContext(seed=3, step=step))] * (
                alpha > 0
            )
            expected = sum(model.flops(rows, time, pair) + 2 * model.flops(rows, time, pair[1]) for pair in pairs)
            assert part.flops(model, batch, StepContext(seed=3, step=step)) == expected
            mean += expected / 400
        assert part.flops(model, batch) == pytest.approx(mean, rel=0.05)
    for trunk in (Stack(3), Loop(3, 1)):
        once = model_of(trunk)
        for objective in (Progressive(), Supervised()):
            assert objective.build(VOCABULARY).flops(once, batch) == 3 * once.flops(rows, time)

"""Promises of stacked training: what can be stacked comes out as it does alone, and members leave by themselves."""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import numerate.stacking.stacked_trainer as stacked
import small_runs
from numerate.batch import Batch, Model, StepContext
from numerate.errors import UserError
from numerate.experiments.stacked import why_not_stacked
from numerate.models.backbone import Loop
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.bias import FIRE
from numerate.stacking.flat_optimizer import FlatParameters
from numerate.stacking.folding import FoldedAttentionMode
from numerate.stacking.stacked_trainer import StackedTrainer
from numerate.tokenizers.layout import Continuation, TokenClassification
from numerate.tokenizers.words import Words
from numerate.training.distributed import World
from numerate.training.objective import Objective, Progressive, Supervised, SupervisedModule
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe
from numerate.training.stopping import Stop
from numerate.training.trainer import Trainer, TrainingResult
from numerate.vocabulary import Vocabulary

torch.set_num_threads(1)

OWN = (
    "model.backbone.num_layers=2 training.batch_size=4 training.shuffle_window=2 training.steps=2 "
    "training.log_every=25 training.evaluate_every=100 evaluation.validation_examples=4 evaluation.grid=1:3x1:3 "
    "schedule=Constant(warmup=0) "
    "optimizer.eps=1e-3"  # a gradient of nothing but rounding would else be a whole step of Adam
)


@pytest.fixture(autouse=True)
def _recipes_are_known_to_be_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks before training take longer than the two steps."""
    monkeypatch.setattr("numerate.training.trainer.preflight", lambda parts: [])


def small(*more: str) -> Recipe:
    return small_runs.small(OWN, *more)


class Quiet(Trainer):
    """Trains and neither evaluates nor saves."""

    def _evaluate(self) -> None:
        """Nothing."""

    def save(self) -> None:
        self._flush_metrics()


def trainers(recipes: Sequence[Recipe]) -> list[Trainer]:
    return [Quiet(one, World.join("cpu")) for one in recipes]


def two(one: Recipe) -> list[Recipe]:
    """A recipe, and one of another seed and other scalars."""
    return [
        one,
        replace(one, seed=1, optimizer=AdamW(3e-3, betas=(0.8, 0.9), eps=3e-3, weight_decay=0.1, max_grad_norm=None)),
    ]


def trained_alone(recipes: Sequence[Recipe]) -> list[Trainer]:
    found = trainers(recipes)
    for trainer in found:
        trainer.train()
    return found


def trained_as_one(recipes: Sequence[Recipe]) -> list[Trainer]:
    found = trainers(recipes)
    outcomes = StackedTrainer(found).train(Stop())
    assert all(isinstance(outcome, TrainingResult) for outcome in outcomes), outcomes
    return found


def states(trainer: Trainer) -> dict[str, Tensor]:
    """Weights and moments by name."""
    return {
        **trainer.parallel_strategy.full_state_dict(),
        **trainer.parallel_strategy.full_optimizer_state(trainer.optimizer),
    }


def same(alone: Trainer, other: Trainer, rtol: float = 1e-4, atol: float = 3e-6) -> None:
    for name in ("step", "examples", "tokens", "flops"):
        assert getattr(alone.state, name) == getattr(other.state, name), name
    assert other.state.sums == pytest.approx(alone.state.sums, rel=1e-4)
    expected, found = states(alone), states(other)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


def agree(recipes: Sequence[Recipe]) -> None:
    for alone, other in zip(trained_alone(recipes), trained_as_one(recipes), strict=True):
        same(alone, other)


def agree_or_say_why(one: Recipe) -> None:
    if (why := why_not_stacked(one)) is not None:
        assert re.match(r"[a-z_.]+: ", why), "it names a setting"
    else:
        agree(two(one))


# Every part ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_any_model_stacks_as_alone_or_says_why_not(any_model: Any) -> None:
    agree_or_say_why(replace(small(), model=any_model))


@pytest.mark.where(any_position_ids=lambda part: part.causal)  # other models cannot continue a text
def test_any_position_ids_stacks_as_alone(any_position_ids: Any) -> None:
    agree_or_say_why(
        replace(small(), model=Decoder(hidden_size=16, positions=(Learned(position_ids=any_position_ids),)))
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_vectors_that_begin_as_waves_stack_as_alone(frozen: bool) -> None:
    position = Learned(initialization="sinusoidal", frozen=frozen)
    agree(two(replace(small(), model=Decoder(hidden_size=16, positions=(position,)))))


def test_what_is_hidden_is_not_stacked() -> None:
    why = why_not_stacked(replace(small(), layout=TokenClassification(blocked_tokens=("<pad>",))))
    assert why is not None
    assert why.startswith("layout.blocked_tokens: ")


@pytest.mark.where(any_task=lambda task: type(task).__name__ != "Summands")  # whose kind of evaluation is in its file
def test_any_task_stacks_as_alone(any_task: Any) -> None:
    labels = any_task.examples("train", 0, 0, 1).labels is not None
    layout = TokenClassification() if labels else Continuation()
    one = small("evaluation.grid=null")
    one = replace(one, tokenizer=Words()) if labels else one
    agree_or_say_why(replace(one, task=any_task, layout=layout, model=replace(one.model, positions=())))


@pytest.mark.where(any_tokenizer=lambda part: not isinstance(part, Words))  # which write no numbers
def test_any_tokenizer_and_layout_stacks_as_alone(any_tokenizer: Any) -> None:
    for layout in (Continuation(), Continuation(targets="all")):
        one = replace(small("model.positions=[]"), tokenizer=any_tokenizer, layout=layout)
        agree_or_say_why(replace(one, evaluation=replace(one.evaluation, grid=None)))


@pytest.mark.parametrize("targets_only", [True, False])
def test_any_loss_stacks_as_alone(any_loss: Any, targets_only: bool) -> None:
    order = getattr(any_loss, "digit_order", "reversed")  # in which the tokenizer has to write the numbers
    recipe = small(f"tokenizer.number_format.digit_order={order}")
    agree_or_say_why(replace(recipe, objective=Supervised(loss=any_loss, targets_only=targets_only)))


def test_any_schedule_stacks_as_alone(any_schedule: Any) -> None:
    one = small("training.steps=3")
    agree([replace(one, schedule=any_schedule), replace(one, seed=4)])


@pytest.mark.parametrize("objective", [Progressive(alpha=0.5), Progressive(throttle="described", targets_only=False)])
def test_a_loop_whose_turns_are_drawn_stacks_as_alone(objective: Progressive) -> None:
    looped = replace(
        small("training.steps=4").model,
        backbone=Loop(num_layers=1, num_loops=4, input_injection="none", initial_state="noise"),
    )
    one = replace(small("training.steps=4"), model=looped, objective=objective)
    agree([replace(one, seed=seed) for seed in range(4)])


def test_half_precision_stacks_as_alone_up_to_its_own_rounding() -> None:
    recipes = two(small("training.precision=bf16"))
    for alone, other in zip(trained_alone(recipes), trained_as_one(recipes), strict=True):
        assert other.state.sums == pytest.approx(alone.state.sums, rel=1e-2)
        for name, tensor in alone.parallel_strategy.full_state_dict().items():
            torch.testing.assert_close(other.parallel_strategy.full_state_dict()[name], tensor, rtol=1e-2, atol=2e-4)


@dataclass(frozen=True)
class Unknown(Objective):
    """An objective that does not say which of its steps are alike."""

    def build(self, vocabulary: Vocabulary) -> "UnknownPart":
        return UnknownPart(Supervised(), vocabulary)


class UnknownPart(SupervisedModule):
    def forward_key(self, model: Model, draw: StepContext) -> Hashable:
        return super(SupervisedModule, self).forward_key(model, draw)

    def forward(self, model: nn.Module, batch: Batch, draw: StepContext) -> dict[str, Tensor]:
        terms = super().forward(model, batch, draw)
        return {term: value * (1 + draw.seed) for term, value in terms.items()}


def test_members_keep_the_precision_that_they_began_with() -> None:
    agree([small(), small("seed=1", "training.precision=bf16"), small("seed=2")])


def test_an_objective_of_ones_own_is_computed_for_each_member_by_its_own_draw() -> None:
    agree(two(replace(small(), objective=Unknown())))


@pytest.mark.parametrize("most", [1.0, 3e6])
def test_members_computed_in_several_goes_are_what_they_are_in_one(
    most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes: list[int] = []
    set_gradients = FlatParameters.set_gradients

    def noting(flat: FlatParameters, group: Sequence[int], gradients: Any) -> None:
        goes.append(len(group))
        set_gradients(flat, group, gradients)

    monkeypatch.setattr(stacked, "MAX_STACKED_FLOPS", most)
    monkeypatch.setattr(FlatParameters, "set_gradients", noting)
    agree([small(f"seed={seed}") for seed in range(4)])
    assert len(goes) > 2, "there are two steps"
    assert set(goes) == {1} if most == 1.0 else max(goes) > 1


# Members --------------------------------------------------------------------------------------------------------------


def test_members_with_smaller_budgets_leave_and_the_others_go_on() -> None:
    recipes = [small(f"seed={seed}", f"training.steps={steps}") for seed, steps in enumerate((3, 1, 5, 3))]
    left: list[int] = []
    found = trainers(recipes)
    StackedTrainer(found).train(Stop(), lambda index, outcome: left.append(index))
    assert left == [1, 0, 3, 2]
    for trainer in found:
        own = [*trainer.model.parameters(), *trainer.parallel_strategy.full_optimizer_state(trainer.optimizer).values()]
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in own), "nobody else's memory is kept"
    for alone, other in zip(trained_alone(recipes), found, strict=True):
        same(alone, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda model: setattr(model.backbone.blocks[0].mixer, "logit_scale", 2.0),
            r"mixer.logit_scale is 1.0 .* and 2.0",
        ),
        (lambda model: model.register_buffer("more", torch.zeros(2)), "not of one shape"),
        (lambda model: model.head.requires_grad_(False), "not of one shape"),
    ],
)
def test_models_that_differ_in_more_than_weights_are_refused(change: Callable[[Any], Any], message: str) -> None:
    found = trainers(two(small()))
    change(found[1].model)
    with pytest.raises(UserError, match=message):
        StackedTrainer(found)


# Below ----------------------------------------------------------------------------------------------------------------


def test_a_parameter_without_a_gradient_is_neither_stepped_nor_decays() -> None:
    models = [nn.ParameterDict({name: nn.Parameter(torch.ones(2, 2)) for name in "abc"}) for _ in range(2)]
    settings = {"a": (1.0, True), "b": (1.0, True), "c": (1.0, True)}
    spec = AdamW(learning_rate=0.1, weight_decay=0.5)
    optimizers = [spec.build(model, settings) for model in models]
    flat = FlatParameters(models, optimizers, settings)
    gradient = torch.full((2, 2, 2), 3.0)
    for _ in range(2):
        flat.set_gradients([0, 1], [gradient, None, gradient])
        flat.step([spec, spec], [0.1, 0.2])
    flat.sync_step_counts()
    alone = nn.Parameter(torch.ones(2, 2))
    optimizer = spec.build(nn.ParameterDict({"a": alone}), settings)
    for _ in range(2):
        alone.grad = gradient[0]
        optimizer.step()
    for name in "ac":
        torch.testing.assert_close(models[0][name], alone)
        assert optimizers[0].state[models[0][name]]["step"] == 2
    assert torch.equal(models[0]["b"], torch.ones(2, 2))
    assert models[0]["b"] not in optimizers[0].state
    assert models[1]["a"].max() < models[0]["a"].min(), "the second has twice the rate"


def test_each_members_gradient_is_clipped_by_its_own_norm() -> None:
    models = [nn.Linear(2, 1, bias=False) for _ in range(3)]
    settings = {"weight": (1.0, True)}
    flat = FlatParameters(models, [AdamW().build(model, settings) for model in models], settings)
    flat.set_gradients([0, 1, 2], [torch.tensor([[[3.0, 4.0]], [[0.3, 0.4]], [[30.0, 40.0]]])])
    norms = flat.clip_grad_norm(torch.tensor([1.0, 1.0, float("inf")]))
    assert norms.tolist() == pytest.approx([5.0, 0.5, 50.0])
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [30.0, 40.0]])
    torch.testing.assert_close(flat.gradients, expected, rtol=1e-5, atol=0.0)


MASKS = {
    "none": lambda: None,
    "one for all": lambda: torch.ones(3, 5, dtype=torch.bool).tril(2),
    "one for each row": lambda: torch.rand(2, 1, 3, 5) < 0.7,
    "added, one for all rows": lambda: torch.randn(1, 4, 3, 5),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_folded_attention_is_that_of_each_member(mask: str, mapped: bool, learned: bool) -> None:
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(6, 2, 4, time, 8, requires_grad=True) for time in (3, 5, 5))
    given = [MASKS[mask]() for _ in range(6)] if mapped else [MASKS[mask]()] * 6
    every = None if given[0] is None else torch.stack(given) if mapped else given[0]
    if learned and every is not None and every.is_floating_point():
        every.requires_grad_()
    with FoldedAttentionMode():
        dims = (0, 0, 0, 0 if mapped and every is not None else None)
        out = torch.vmap(scaled_dot_product_attention, in_dims=dims)(queries, keys, values, every)
    each = [every if every is None or not mapped else every[member] for member in range(6)]
    expected = torch.stack([scaled_dot_product_attention(queries[m], keys[m], values[m], each[m]) for m in range(6)])
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    leaves = [x for x in (queries, keys, values, every) if x is not None and x.requires_grad]
    for ours, theirs in zip(*(torch.autograd.grad(x.square().sum(), leaves) for x in (out, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_rows_of_several_runs_draw_what_they_draw_in_their_own(
    any_position_ids: Any, make_tokens: Any, vocabulary: Vocabulary
) -> None:
    kinds = torch.from_numpy(vocabulary.token_kinds).long()
    tokens = [make_tokens([6, 3, 8], seed=seed, width=8) for seed in range(3)]
    draws = [StepContext(seed, step) for seed, step in ((0, 5), (1, 5), (2**40, 7))]
    joined = replace(
        tokens[0],
        **{name: torch.cat([getattr(own, name) for own in tokens]) for name in ("ids", "lengths", "example_indices")},
    )
    found = any_position_ids.assign(joined, kinds[joined.ids], StepContext.from_contexts(draws, 3)).expand(9, -1)
    for member, (own, draw) in enumerate(zip(tokens, draws, strict=True)):
        alone = any_position_ids.assign(own, kinds[own.ids], draw).expand(3, -1)
        assert torch.equal(found[3 * member : 3 * member + 3], alone)


def test_layers_that_share_a_bias_keep_their_own_weights_after_a_step() -> None:
    found = trainers(two(replace(small(), model=Decoder(hidden_size=16, positions=(FIRE(share_across_layers=True),)))))
    names = [name for name, _ in found[0].model.named_parameters()]
    StackedTrainer(found).train(Stop())
    for trainer in found:
        assert [name for name, p in trainer.model.named_parameters() if type(p) is nn.Parameter] == names

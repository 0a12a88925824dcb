"""The published Tiny Stories and FineWeb-Edu runs: what each trains, and the Transformers that are equal to them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import numerate
from cases import published_case
from numerate import catalogue
from numerate.architectures.dual_attention import DualAttention
from numerate.config import identity
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.models.decoder import Decoder
from numerate.published.dual_attention_models import current, published
from numerate.published.tiny_names import RUNS
from numerate.recipes.dual_attention import CONTROLS, family
from numerate.recipes.dual_attention_paper import matched_transformer
from numerate.recipes.papers import PAPERS
from numerate.recipes.preset import debug
from numerate.recipes.tiny_stories_controls import (
    match_transformer,
    num_parameters,
    step_flops,
    without_relational_heads,
)
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer
from numerate.text.tokenizers.token_ids import TokenIds, build_tokenizer_vocabulary
from numerate.training.schedule import Constant, Cosine

DUAL = "tiny_stories_d64_l4_4+4_symbolic"
FINEWEB = [name for name in catalogue.parts_by_kind()["Recipe"] if name.startswith("fineweb_edu_")]


def parameters(spec: Decoder, vocabulary: int) -> int:
    """Those that learn, of a tied head."""
    return num_parameters(spec) + vocabulary * spec.hidden_size


def test_every_published_run_has_a_recipe_of_its_own() -> None:
    recipes = [numerate.recipe(f"tiny_stories_{run.name}") for run in RUNS]
    assert sum(run.num_runs for run in RUNS) == 57
    assert len({identity(recipe) for recipe in recipes}) == len(RUNS) == 49
    assert {recipe.title for recipe in recipes} <= set(family())


def test_a_run_is_trained_as_published() -> None:
    for run in RUNS:
        recipe = numerate.recipe(f"tiny_stories_{run.name}")
        optimizer, training, task = recipe.optimizer, recipe.training, recipe.task
        assert isinstance(task, LanguageModeling)
        assert task.order == "published"
        assert training.batch_size * task.context_length == 131_072
        assert (training.batch_size // training.gradient_accumulation_steps, training.gradient_accumulation_steps) == (
            run.micro_batch_size,
            run.gradient_accumulation_steps,
        )
        assert (training.steps, training.evaluate_every, recipe.evaluation.validation_batches) == (100_001, 2000, 100)
        assert (training.shuffle_window, training.precision, training.evaluate_at_start) == (1, "bf16", True)
        assert (optimizer.learning_rate, optimizer.max_grad_norm) == (1e-3 if run.hidden_size < 512 else 5e-4, 1.0)
        assert (optimizer.betas, optimizer.weight_decay) == ((0.9, 0.95), 0.1)  # type: ignore[attr-defined]
        rate = recipe.schedule.multiplier
        if run.has_option("cosine"):
            assert [rate(step, 100_001) for step in (0, 1000)] == [0.0, 1.0]
            assert rate(100_000, 100_001) == pytest.approx(0.0, abs=1e-9)
            assert isinstance(recipe.schedule, Cosine)
        else:
            assert recipe.schedule == Constant(warmup=0)
            assert rate(0, 100_001) == 1.0
        assert recipe.paper in PAPERS


def test_the_cosine_is_the_published_schedule(shared: Path) -> None:
    expected = published_case(shared, "dual_attention.json", "lr_schedule_tiny_stories")["expected"]
    recipe = numerate.recipe("tiny_stories_d512_l8_8+0_cosine")
    for step, rate in expected.items():
        assert 5e-4 * recipe.schedule.multiplier(int(step), 100_001) == pytest.approx(rate, abs=1e-9), step


def test_losses_of_the_names_are_those_of_the_records(shared: Path) -> None:
    told = json.loads((shared / "cases" / "dual_attention.json").read_text())["reported_runs"]
    known = {(run["d_model"], run["n_layers"], run["last_iter"], run["val_loss"], run["hours"]) for run in told}
    assert {(run.hidden_size, run.num_layers, run.last_step, run.loss, run.hours) for run in RUNS} <= known
    assert family()[DUAL].summary == "Published: dual attention (symbolic), width 64, 4 layers, 4+4 heads; 1.7294 nats."


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_is_the_transformer_that_differs_in_one_thing_alone(control: str) -> None:
    recipe, beside = numerate.recipe(DUAL), numerate.recipe(f"{DUAL}_{control}")
    model: Any = beside.model
    assert isinstance(model.mixer, Attention)
    assert beside.title == f"{DUAL}_{control}"
    same = replace(beside, model=recipe.model, training=recipe.training, title=recipe.title)
    assert same == recipe
    if control == "iso_parameters":
        assert beside.training == recipe.training
        assert num_parameters(model) == pytest.approx(360_256, rel=2e-3)
        assert (model.hidden_size, model.backbone.num_layers, model.mixer.num_heads) == (80, 4, 8)
    else:
        assert model == published(num_self_heads=8, num_relational_heads=0)
        assert replace(beside.training, steps=100_001) == recipe.training


def test_equal_operations_and_hours_are_more_steps() -> None:
    run = next(run for run in RUNS if f"tiny_stories_{run.name}" == DUAL)
    flops, hours = (matched_transformer(run, kind) for kind in ("iso_operations", "iso_time"))
    recipe, steps = numerate.recipe(DUAL), flops.recipe.training.steps
    assert steps is not None
    found = step_flops(recipe, flops.recipe.model, 32_000) * steps  # type: ignore[arg-type]
    assert found == pytest.approx(step_flops(recipe, recipe.model, 32_000) * 100_001, rel=1e-4)  # type: ignore[arg-type]
    assert hours.recipe.training.steps == pytest.approx(100_001 * 12.73 / 2.8, rel=1e-4)
    assert flops.description.endswith("(+0.0%)")


@pytest.mark.parametrize(
    ("equal", "by", "nearest"),
    [("parameters", "depth", 6), ("flops", "depth", 8), ("time", "width", 96)],
)
def test_width_or_depth_are_found_whose_neighbours_are_farther_off(equal: Any, by: Any, nearest: int) -> None:
    recipe = replace(numerate.recipe(DUAL), model=current())
    control = match_transformer(equal, recipe, vary=by, ratio=1.5)
    spec: Any = control.recipe.model
    assert control.recipe.training == recipe.training
    measured = (lambda one: float(num_parameters(one))) if equal == "parameters" else None
    measured = measured or (lambda one: step_flops(recipe, one, 32_000))
    plain = without_relational_heads(current())
    wanted = {"parameters": control.target, "flops": measured(current()), "time": 1.5 * measured(plain)}[equal]
    off = {}
    for size in (-1, 0, 1):
        if by == "depth":
            one = replace(plain, backbone=replace(plain.backbone, num_layers=spec.backbone.num_layers + size))  # type: ignore[type-var]
        else:
            one = replace(plain, hidden_size=spec.hidden_size + 16 * size)
        off[size] = max(measured(one) / wanted, wanted / measured(one))
    assert min(off, key=lambda size: off[size]) == 0
    assert (spec.backbone.num_layers if by == "depth" else spec.hidden_size) == nearest, control.description


def test_what_cannot_be_equal_is_said() -> None:
    recipe = numerate.recipe(DUAL)
    with pytest.raises(UserError, match="vary: must be width or depth to match parameters"):
        match_transformer("parameters", recipe, vary="steps")
    with pytest.raises(UserError, match="ratio: must be given to match time"):
        match_transformer("time", recipe, vary="steps")
    with pytest.raises(UserError, match=r"model\.mixer: Attention must be DualAttention"):
        match_transformer("parameters", numerate.recipe("addition_rotary"), vary="depth")
    with pytest.raises(UserError, match="task: must be a language modeling task, not Arithmetic"):
        step_flops(numerate.recipe("addition_rotary"), Decoder())


SIZES = {
    "fineweb_edu_transformer_353m": 353,
    "fineweb_edu_transformer_757m": 757,
    "fineweb_edu_transformer_1_31b": 1311,
    "fineweb_edu_dual_343m": 344,
    "fineweb_edu_dual_343m_r32": 343,
    "fineweb_edu_dual_343m_r8": 343,
    "fineweb_edu_dual_368m": 368,
    "fineweb_edu_dual_734m": 734,
    "fineweb_edu_dual_1_27b": 1271,
    "fineweb_edu_dual_1_37b": 1372,
}


def test_fineweb_models_have_their_numbers_of_parameters() -> None:
    assert set(SIZES) == set(FINEWEB)
    for name, millions in SIZES.items():
        recipe = numerate.recipe(name)
        assert recipe.title == name
        assert isinstance(recipe.model, Decoder)
        assert parameters(recipe.model, 50_304) / 1e6 == pytest.approx(millions, abs=1.0), name


def test_the_vocabulary_is_filled_up_to_the_published_size(shared: Path) -> None:
    known = load_tokenizer(str(shared / "data" / "tokenizers" / "gpt2"))
    assert [build_tokenizer_vocabulary(known, multiple).size for multiple in (1, 128)] == [50_257, 50_304]
    assert build_tokenizer_vocabulary(known, 128).tokens[-1] == "[no piece 50303]"
    assert numerate.recipe("fineweb_edu_dual_343m").tokenizer == TokenIds(pad_to_multiple_of=128)


def test_fineweb_is_trained_as_published() -> None:
    recipe = numerate.recipe("fineweb_edu_dual_343m")
    training, mixer = recipe.training, recipe.model.mixer  # type: ignore[attr-defined]
    assert (training.steps, training.batch_size, training.micro_batch_size, recipe.task.context_length) == (
        19_073,
        512,
        16,
        1024,
    )  # type: ignore[attr-defined]
    rates = [recipe.schedule.multiplier(step, 19_073) for step in (0, 714, 19_072)]
    assert rates == pytest.approx([1 / 715, 1.0, 0.1], abs=1e-6)
    assert isinstance(mixer, DualAttention)
    assert (mixer.num_key_value_heads, mixer.num_relations, mixer.symbols.trainable) == (4, 64, False)  # type: ignore[attr-defined]


def test_every_recipe_is_small_in_a_rehearsal(vocabulary: Any) -> None:
    for name in ("fineweb_edu_dual_343m", "tiny_stories_d768_l8_8+4_symbolic_symmetric", f"{DUAL}_iso_parameters"):
        small = debug(numerate.recipe(name))
        spec: Any = small.model
        assert (spec.hidden_size <= 128, small.task.context_length) == (True, 64)  # type: ignore[attr-defined]
        assert spec.build(vocabulary, 0) is not None

"""The published counting recipes: every name is one, with the published weights, budget, places and counts.

There are 804, so what is slow looks at some of them, always the same. `SOME` has each model.
"""

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from numerate import catalogue
from numerate.batch import Model, StepContext
from numerate.config import override
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.grid import Grid
from numerate.mixers.attention import Attention
from numerate.models.decoder import Decoder
from numerate.models.initialization import Normal
from numerate.positions.added import Learned
from numerate.positions.position_ids import Sequential
from numerate.published.counting_files import published_files
from numerate.published.counting_names import PublishedTask, published_tasks
from numerate.recipes.inductive_counting import MODELS, family
from numerate.recipes.naming import load_recipe
from numerate.tokenizers.layout import TokenClassification
from numerate.tokenizers.words import Words
from numerate.training.recipe import Recipe
from numerate.training.schedule import Constant

NAMES = list(family())
TASKS = [name for name in published_tasks() if name != "debug"]
SOME = NAMES[::43]
TRANSFORMERS = [model for model in MODELS if model not in ("rnn", "lstm", "s4", "mamba", "rwkv")]


def of(task: str, model: str) -> Any:
    return load_recipe(f"{task.rstrip('_')}_{model}")


def built(recipe: Recipe) -> Model:
    return recipe.model.build(recipe.tokenizer.build_vocabulary(recipe.task), 0)


def weights(recipe: Recipe) -> int:
    return sum(parameter.numel() for parameter in built(recipe).parameters())


def more_ids(named: PublishedTask) -> int:
    """How many ids there are more than published: the four special tokens, and `<pad>` only where the task has it.
    Two published vocabularies have an `a` twice."""
    twice = len(named.vocabulary) - len(set(named.vocabulary))
    return 4 - ("<pad>" not in named.task.alphabet()) - twice


# Names -------------------------------------------------------------------------------------------------------------


def test_there_is_a_name_for_every_published_task_with_every_model() -> None:
    assert (len(TASKS), len(MODELS), len(NAMES)) == (67, 12, 804)
    assert [f"{task.rstrip('_')}_{model}" for task in TASKS for model in MODELS] == NAMES
    module = catalogue.family_modules("Recipe")["counting_TASK_MODEL"]
    assert f"each of its {len(TASKS)} tasks with each of {len(MODELS)} models" in catalogue.module_summary(module)
    assert {model for name in SOME for model in MODELS if name.endswith(f"_{model}")} == set(MODELS)


def test_no_name_is_a_recipe_of_the_list_as_well() -> None:
    assert not set(NAMES) & set(catalogue.parts_by_kind()["Recipe"])


@pytest.mark.parametrize("name", SOME)
def test_a_name_stands_for_the_task_that_it_says(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.paper, recipe.tokenizer) == ("counting", Words())
    assert recipe.task == published_tasks()[family()[name].summary.partition(",")[0]].task


# Sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", TRANSFORMERS)
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_transformer_has_the_published_number_of_weights(model: str, depth: int) -> None:
    """12 D^2 L + 13 D L + 2 V D + 2 D, and P D for learned places; `spe` has one feature of each token more."""
    recipe, width = of("counting_samesymbol", model), 32
    small = override(recipe, [f"model.hidden_size={width}", f"model.backbone.num_layers={depth}"])
    texts = 103 + more_ids(published_tasks()["counting_samesymbol"])
    learned = 128 * width if model.startswith("ape") else 0
    assert weights(small) == 12 * width**2 * depth + 13 * width * depth + 2 * texts * width + 2 * width + learned


def test_the_published_width_gives_the_published_millions() -> None:
    recipe = of("counting_samesymbol", "ape")
    assert (recipe.model.hidden_size, recipe.model.backbone.num_layers, recipe.model.mixer.num_heads) == (1024, 2, 8)
    published = 12 * 1024**2 * 2 + 13 * 1024 * 2 + 2 * 103 * 1024 + 2 * 1024 + 128 * 1024
    assert published == 25_536_512
    assert weights(recipe) == published + 2 * 3 * 1024


@pytest.mark.parametrize(
    ("model", "published", "for_each_id"),
    [
        ("rnn", 59_392, 2 * 128),
        ("lstm", 158_464, 2 * 128),
        ("s4", 92_672, 2 * 128),
        ("mamba", 246_528, 128),
        ("rwkv", 1_116_416, 2 * 128),
    ],
)
def test_a_recurrent_net_has_the_published_number_of_weights(model: str, published: int, for_each_id: int) -> None:
    """With the 103 published texts; Mamba's head is tied, so that an id has one vector."""
    assert weights(of("counting_samesymbol", model)) == published + 3 * for_each_id


def test_rwkv_is_a_version_6() -> None:
    recipe = of("counting_samesymbol", "rwkv")
    time_mix, channel_mix = recipe.model.mixer.mixers
    assert (type(time_mix).__name__, channel_mix.version, recipe.model.backbone.num_layers) == ("RWKV6", 6, 8)


def test_what_is_special_to_a_model_is_there() -> None:
    model = {name: of("counting_samesymbol_mod10", name).model for name in MODELS}
    assert [name for name in MODELS if model[name].embedding_scale != 1.0] == ["sine"]
    assert model["sine"].embedding_scale == "sqrt"
    assert [name for name in MODELS if not model[name].residual] == ["rnn", "lstm"]
    assert (model["mamba"].norm, model["mamba"].tie_word_embeddings, model["rwkv"].embedding_norm) == (
        "rms",
        True,
        True,
    )
    assert (model["s4"].mixer.dropout, model["rwkv"].dropout, model["rope"].dropout) == (0.1, 0.1, 0.0)
    assert {model[name].feed_forward.activation for name in TRANSFORMERS} == {"relu"}
    assert {model[name].hidden_size for name in MODELS if name not in TRANSFORMERS} == {128}
    assert {model[name].initialization for name in TRANSFORMERS} == {Normal(0.02)}


@pytest.mark.parametrize("task", TASKS)
def test_the_vocabulary_is_the_published_with_our_special_tokens(task: str) -> None:
    named = published_tasks()[task]
    vocabulary = Words().build_vocabulary(named.task)
    assert vocabulary.size == len(named.vocabulary) + more_ids(named)
    assert set(named.vocabulary) - {"<pad>"} == set(vocabulary.tokens[4:]) - {"<pad>"}


# Training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "model", "steps"),
    [
        ("counting_samesymbol_mod10", "rope", 312_500),
        ("counting_samesymbol_plain3_addbigram", "rope", 62_500),
        ("counting_samesymbol_shiftedstart4_addbigram_blkseq", "nope", 62_500),
        ("counting_samesymbol_mod11", "sine", 10 * 31_249),
        ("counting_samesymbol_mod10", "lstm", 5 * 31_250),
        ("counting_samesymbol_mod10", "mamba", 50 * 31_250),
        ("counting_samesymbol_mod10", "rwkv", 20 * 31_250),
    ],
)
def test_a_run_takes_the_published_steps_and_keeps_a_checkpoint_of_each_epoch(
    task: str, model: str, steps: int
) -> None:
    training = of(task, model).training
    assert training.steps == steps
    assert training.checkpoint_every == training.evaluate_every == ceil(sum(published_tasks()[task].num_rows) / 32)
    assert (training.batch_size, training.shuffle_window, training.keep_checkpoints, training.precision) == (
        32,
        1,
        None,
        "fp32",
    )


@pytest.mark.parametrize(
    ("model", "rate", "betas", "decay", "warmup"),
    [
        *((model, 1e-4, (0.9, 0.999), 0.01, 3000) for model in TRANSFORMERS),
        *((model, 0.01, (0.9, 0.999), 0.01, 0) for model in ("rnn", "lstm", "s4")),
        ("mamba", 1e-4, (0.9, 0.999), 0.0, 0),
        ("rwkv", 1e-4, (0.9, 0.99), 0.0, 0),
    ],
)
def test_the_optimiser_is_the_published(
    model: str, rate: float, betas: tuple[float, float], decay: float, warmup: int
) -> None:
    recipe = of("counting_selective_10items", model)
    optimizer = recipe.optimizer
    assert (optimizer.learning_rate, optimizer.betas, optimizer.weight_decay, optimizer.max_grad_norm) == (
        rate,
        betas,
        decay,
        1.0,
    )
    assert recipe.schedule == Constant(warmup=warmup)


def test_what_is_hidden_is_hidden_from_attention_alone() -> None:
    for task in TASKS:
        for model in ("sine", "lstm"):
            recipe = of(task, model)
            padded = "padhelper" in task and model == "sine"
            assert recipe.layout == TokenClassification(blocked_tokens=("<pad>",) if padded else ()), (task, model)
    mixer = of("counting_samesymbol_padhelper", "nope").model.mixer
    assert isinstance(mixer, Attention)
    assert not mixer.blocked_attend_to_themselves
    assert mixer.scale_by_inverse_layer_index


def test_helpers_have_the_number_of_the_next_token() -> None:
    recipe = override(of("counting_samesymbol_shiftedstart3_padhelper", "ape"), ["model.hidden_size=16"])
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    tokens = built(recipe).assign_positions(
        exam.batch(recipe.task.parse_question("5 <pad> a <pad> a <pad>")).tokens, StepContext.for_evaluation()
    )
    assert tokens.position_ids is not None
    assert tokens.position_ids[0].tolist() == [[0, 1, 1, 2, 2, 3]]
    for task in ("counting_samesymbol_shiftedstart3", "counting_samesymbol_shiftedstart3_padhelper"):
        randomised = of(task, "ape_randomised").model.positions[0].position_ids
        assert randomised.helper_positions == "next", "n + 1 places are drawn for n tokens, as published"
    assert of("counting_samesymbol_shiftedstart3", "rope").model.positions[0].position_ids == Sequential()


# Evaluation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", dict.fromkeys([*TASKS[::6], "counting_samesymbol_plain3_nobos_addbigram", TASKS[-2]]))
def test_the_grid_has_the_published_counts_and_those_the_best_is_chosen_on(task: str) -> None:
    named, recipe = published_tasks()[task], of(task, "rnn")
    rows = published_files(named.folder if named.folder in published_tasks() else task, count=1)
    published = {
        int(count)
        for name, blocks in rows.items()
        if name in (f"{named.folder}/val.txt", f"{named.folder}/ood_test.txt")
        for block in blocks()
        for count in block.metadata["count"]
    }
    grid = {cell[0][1] for cell in Grid.parse(recipe.evaluation.grid, ("count",)).cells()}
    ood_task = recipe.task.ood_validation_task()
    others = {count for part in (recipe.task, ood_task) for count in part.training_spans()["count"]}
    assert published <= grid
    assert grid <= published | others
    assert set(ood_task.training_spans()["count"]) <= grid


@pytest.mark.parametrize("task", TASKS)
def test_the_longest_row_fits_the_table_at_every_offset(task: str) -> None:
    recipe = override(of(task, "ape"), ["model.hidden_size=8"])
    model, exam = built(recipe), EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    numbering = recipe.model.positions[0].position_ids
    assert (
        numbering.shift_within
        == recipe.model.positions[0].max_position_embeddings
        == published_tasks()[task].max_position_embeddings
    )
    for corner in Grid.parse(recipe.evaluation.grid, ("count",)).corners():
        model.check_tokens(exam.longest_rows(recipe.task.at_cell(**dict(corner)), split="test", count=1))
    wider = replace(numbering, max_shift=numbering.max_shift + 2)
    assert isinstance(recipe.model, Decoder)
    if not task.endswith("raspL"):  # whose training rows fill the table
        over = replace(
            recipe.model, positions=(Learned(position_ids=wider, max_position_embeddings=numbering.shift_within),)
        )
        with pytest.raises(UserError, match="is out of range for Learned"):
            over.build(exam.vocabulary, 0).check_tokens(
                exam.longest_rows(recipe.task.at_cell(**dict(corner)), split="test", count=1)
            )


def test_the_largest_offset_leaves_one_position_behind_the_longest_row() -> None:
    longest = {"counting_samesymbol_mod10": 100, "counting_samesymbol_mod10bos": 101, "counting_selective_10items": 99}
    for task, tokens in longest.items():
        assert of(task, "ape").model.positions[0].position_ids.max_shift == 128 - 1 - tokens

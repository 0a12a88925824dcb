"""The small counting recipes: each trains, its places fit, and what a symmetry forbids is seen before any training."""

from typing import Any

import pytest
import torch

import numerate
from numerate.batch import StepContext
from numerate.config import Span, override
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.mixers.attention import Attention
from numerate.published.counting_names import published_tasks
from numerate.recipes.inductive_counting import ROWS
from numerate.tasks.counting import Counting
from numerate.training.recipe import Recipe

SMALL = [name for name, row in ROWS.items() if row.base == "counting_paper.small"]


@pytest.mark.parametrize("task", list(published_tasks()))
def test_counting_takes_every_published_task(task: str) -> None:
    recipe = override(numerate.recipe("counting"), [f"task={task}"])
    assert recipe.task == published_tasks()[task].task
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    batch = exam.batch(recipe.task.examples("train", 0, 0, 2))
    logits = recipe.model.build(exam.vocabulary, 0)(batch.tokens).logits
    assert bool(logits.isfinite().all())


def logits_along(recipe: Recipe, text: str) -> torch.Tensor:
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    model = recipe.model.build(exam.vocabulary, 0).double().eval()
    tokens = model.assign_positions(exam.batch(recipe.task.parse_question(text)).tokens, StepContext.for_evaluation())
    logits: torch.Tensor = model(tokens).logits[0].detach()
    return logits


@pytest.mark.parametrize("position", ["nope", "rotary", "alibi"])
def test_without_a_first_token_some_transformers_see_the_same_at_every_place(position: str) -> None:
    said = logits_along(numerate.recipe(f"counting_mod10_{position}"), " ".join("a" * 30))
    torch.testing.assert_close(said, said[:1].expand_as(said), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["counting_mod10bos_nope", "counting_mod10bos_rotary", "counting_mod10_sinusoidal"])
def test_a_first_token_or_other_places_break_the_symmetry(name: str) -> None:
    begin = "0 " if "bos" in name else ""
    said = logits_along(numerate.recipe(name), begin + " ".join("a" * 30))
    assert float((said[1:] - said[:-1]).abs().max(dim=1).values.min()) > 1e-5


def test_the_three_tasks_are_the_published_ones() -> None:
    assert numerate.recipe("counting_mod10_lstm").task == Counting(modulus=10)
    assert numerate.recipe("counting_shifted_lstm").task.at_cell(count=60).training_spans() == {"count": Span(60, 60)}
    assert numerate.recipe("counting_items_nope").task.alphabet()[-1] == "<bos>"
    models: list[Any] = [numerate.recipe(name).model for name in SMALL]
    assert {model.mixer.num_heads for model in models if isinstance(model.mixer, Attention)} == {4}

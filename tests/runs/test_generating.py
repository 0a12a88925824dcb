"""Promises of text generation: what is generated, when it ends, and what is refused."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from numerate.config import Span
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import Evaluation
from numerate.evaluation.prompts import QuestionPrompts
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.rotary import Rotary
from numerate.runs.run import Run
from numerate.runs.train import train
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.bitwise import BitwiseOr
from numerate.tasks.counting import Counting
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.tokenizers.layout import Continuation, NextToken, TokenClassification
from numerate.tokenizers.tokenizer import Characters
from numerate.tokenizers.words import Words
from numerate.training.recipe import Recipe, Training
from numerate.training.samples import Samples

torch.set_num_threads(1)

TINY = str(Path(__file__).parents[1] / "text" / "tiny")
CONTEXT = 24
STORY = "The 12 cats met 7 dögs. They said: «hello» 😀 and went on. "


def stories(folder: Path) -> Recipe:
    """A run on a few lines of text, in bytes for the most part."""
    known = load_tokenizer(TINY)
    for name, count in (("train", 40), ("val", 4)):
        ids, _ = known.encode([STORY * 2] * count)
        each = np.concatenate([[known.document_start_id], ids[: len(ids) // count]])
        np.concatenate([each] * count).astype(np.uint16).tofile(folder / f"{name}.bin")
    return Recipe(
        task=LanguageModeling(str(folder / "train.bin"), str(folder / "val.bin"), TINY, context_length=CONTEXT),
        tokenizer=TokenIds(),
        layout=NextToken(),
        model=Decoder(hidden_size=32, backbone=Stack(num_layers=1), positions=(Rotary(),)),
        training=Training(steps=1, batch_size=8, threads=1, evaluate_every=1, checkpoint_every=1),
        evaluation=Evaluation(validation_examples=4),
        samples=Samples(when="never"),
        device="cpu",
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A model that knows the story by heart."""
    folder = tmp_path_factory.mktemp("stories")
    recipe = stories(folder)
    training = replace(recipe.training, steps=100, evaluate_every=100, checkpoint_every=100)
    optimizer = replace(recipe.optimizer, learning_rate=1e-2)
    return train(replace(recipe, training=training, optimizer=optimizer), runs_dir=folder, quiet=True).run


def test_a_model_that_knows_a_text_continues_it(run: Run) -> None:
    [completion] = run.generate("The 12 c", max_new_tokens=12, do_sample=False)
    assert completion.prompt == "The 12 c"
    assert str(completion).startswith("The 12 cats")
    assert len(completion.tokens) == 12
    assert not completion.stopped
    assert completion.log_probability < 0


def test_what_is_reported_depends_on_prompt_sample_and_seed_and_not_on_what_else_is_generated(run: Run) -> None:
    together = run.generate(["The ", "", "met 7 d", ""], max_new_tokens=9, count=2, temperature=3.0, seed=3)
    assert [one.prompt for one in together] == ["The "] * 2 + [""] * 2 + ["met 7 d"] * 2 + [""] * 2
    assert [one.sample for one in together] == [0, 1, 0, 1, 0, 1, 2, 3]
    alone = run.generate("met 7 d", max_new_tokens=9, count=2, temperature=3.0, seed=3)
    assert [one.tokens for one in alone] == [one.tokens for one in together[4:6]]
    assert len({one.tokens for one in together[2:4] + together[6:]}) == 4, "empty prompts go on differently"
    again = run.generate("met 7 d", max_new_tokens=9, count=2, temperature=3.0, seed=4)
    assert [one.tokens for one in alone] != [one.tokens for one in again]


def test_a_text_is_reported_piece_by_piece_and_half_characters_are_held_back(run: Run) -> None:
    pieces: list[tuple[int, str]] = []
    completions = run.generate(
        ["met 7 d", "hello» "],
        max_new_tokens=16,
        do_sample=False,
        on_text=lambda completion, text: pieces.append((completion, text)),
    )
    for number, completion in enumerate(completions):
        assert "".join(text for at, text in pieces if at == number) == completion.text
    assert all("\N{REPLACEMENT CHARACTER}" not in text for _, text in pieces)
    assert len(pieces) > 10
    assert "ögs" in str(completions[0])


def test_a_completion_ends_behind_a_stop_text_and_at_the_end_of_a_document(run: Run) -> None:
    [completion] = run.generate("The 12 c", max_new_tokens=30, do_sample=False, stop="et 7", context_length=CONTEXT)
    assert completion.text.endswith("met 7")
    assert completion.stopped
    begin = load_tokenizer(TINY).document_start_id
    found = run.generate([""] * 40, max_new_tokens=CONTEXT, temperature=3.0)
    ended = [one for one in found if begin in one.tokens]
    assert ended
    assert all(one.stopped and one.tokens[-1] == begin and one.tokens.count(begin) == 1 for one in ended)
    assert all(one.stopped == (one.tokens[-1] == begin) for one in found)


def test_it_may_be_stopped_and_returns_what_was_generated(run: Run) -> None:
    pieces: list[str] = []
    [completion] = run.generate(
        "The ",
        max_new_tokens=20,
        do_sample=False,
        on_text=lambda _, text: pieces.append(text),
        should_stop=lambda: len(pieces) >= 4,
    )
    assert len(completion.tokens) < 20
    assert completion.text == "".join(pieces)
    assert not completion.stopped


def test_beyond_the_context_is_warned_of_and_a_table_that_ends_is_refused_before_anything_is_reported(
    run: Run, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(run.generate("The 12", do_sample=False)[0].tokens) <= CONTEXT
        run.generate("The 12", max_new_tokens=60, do_sample=False, context_length=CONTEXT)
    with pytest.warns(UserWarning, match=f"rows of training had {CONTEXT}"):
        assert len(run.generate("The 12", max_new_tokens=60, do_sample=False)[0].tokens) > CONTEXT
    recipe = replace(
        stories(tmp_path), model=Decoder(hidden_size=16, positions=(Learned(max_position_embeddings=CONTEXT),))
    )
    other = train(recipe, runs_dir=tmp_path, quiet=True).run
    with pytest.raises(UserError, match=rf"do not fit.*out of range for Learned.*context_length={CONTEXT}"):
        other.generate("The 12", max_new_tokens=60)
    assert len(other.generate("The 12", max_new_tokens=60, context_length=CONTEXT, seed=1)[0].tokens) > 0
    with pytest.raises(UserError, match="do not fit"):
        other.generate(STORY)
    assert other.generate(STORY, max_new_tokens=2, context_length=CONTEXT)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"count": 0}, "count"),
        ({"count": 2, "do_sample": False}, "count"),
        ({"context_length": 0}, "context_length"),
        ({"stop": ""}, "stop"),
        ({"temperature": -1.0}, "temperature"),
        ({"checkpoint": "step 77"}, "77"),
    ],
    ids=str,
)
def test_impossible_wishes_are_refused(run: Run, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run.generate("The", **wrong)


def test_a_run_on_sums_answers_questions_and_continues_with_texts(tmp_path: Path) -> None:
    recipe = Recipe(
        task=Arithmetic(digits=Span(1, 2)),
        model=Decoder(hidden_size=16),
        training=Training(steps=1, batch_size=8, threads=1),
        evaluation=Evaluation(grid="1:2x1:2", examples_per_cell=4, validation_examples=8),
        samples=Samples(when="end", prompts=("1+2=",), max_new_tokens=5),
    )
    run = train(recipe, runs_dir=tmp_path, quiet=True).run
    [completion] = run.generate("12+34=", do_sample=False)
    assert run.ask("12+34=").prediction.startswith(completion.text)
    assert run.generate("1", max_new_tokens=3, seed=1)[0].prompt == "1"
    with pytest.raises(UserError, match="prompt: must not be empty"):
        run.generate()
    with pytest.warns(UserWarning, match="does not know 'é'"):
        run.generate("é", max_new_tokens=2)
    drawn = [json.loads(line) for line in (run.path / "samples.jsonl").read_text().splitlines()]
    assert [one["prompt"] for one in drawn] == ["1+2="]
    run.evaluate()
    kept = [json.loads(line) for line in (run.path / "samples.jsonl").read_text().splitlines()]
    assert [one for one in kept if "prompt" in one] == drawn
    assert len(kept) > 1


def test_numbers_of_an_answer_are_restored_and_bits_stay_as_they_are() -> None:
    for task, question, text, restored in (
        (Arithmetic(), "12+34=", "64", "46"),
        (BitwiseOr(), "0000+01=", "0100", "0100"),
    ):
        prompts = QuestionPrompts(EvaluationData(task, Characters(), Continuation()))
        assert prompts.postprocess(prompts.encode(question), text) == restored


def test_a_run_that_labels_places_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    recipe = Recipe(
        task=Counting(),
        tokenizer=Words(),
        layout=TokenClassification(),
        model=Decoder(hidden_size=16),
        training=Training(steps=1, batch_size=8, threads=1),
        evaluation=Evaluation(examples_per_cell=4, validation_examples=8),
    )
    run = train(recipe, runs_dir=tmp_path, quiet=True).run
    with pytest.raises(UserError, match="TokenClassification cannot generate token by token"):
        run.generate("a")

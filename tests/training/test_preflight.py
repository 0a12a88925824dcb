"""Promises of the warnings before training: digits that a number loss does not see, rows that are left out."""

import json
import random
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hugging_face import pair_tokenizer
from numerate.api import recipe
from numerate.config import setting
from numerate.errors import UserError
from numerate.losses.cross_entropy import CrossEntropy
from numerate.losses.number_level import NumberLevel
from numerate.losses.number_token import NumberToken
from numerate.mixers.recurrent import LSTM, RecurrentMixer
from numerate.positions.added import Learned
from numerate.positions.position_ids import PositionIds
from numerate.runs.train import train
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import Example, Task
from numerate.text.tasks.question_files import QuestionFiles
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import PerDigit
from numerate.tokenizers.layout import Seq2Seq
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters
from numerate.training.distributed import World
from numerate.training.objective import Supervised
from numerate.training.preflight import TrainingParts, check_digit_order, check_number_coverage
from numerate.training.recipe import Recipe
from numerate.training.trainer import Trainer
from numerate.vocabulary import DIGIT

pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")

torch.set_num_threads(1)


@pytest.fixture
def pieces(tmp_path: Path) -> Path:
    pair_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def questions(path: Path, pairs: list[tuple[str, str]]) -> str:
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in pairs))
    return str(path)


def chosen(tokenizer: Subwords, task: QuestionFiles, loss: object) -> Recipe:
    found = recipe("addition_rotary")
    return replace(found, task=task, tokenizer=tokenizer, layout=Seq2Seq(), objective=Supervised(loss))  # type: ignore[arg-type]


def doubts(made: Recipe) -> list[str]:
    """The warnings about digits that the loss does not see."""
    objective = made.objective.build(made.tokenizer.build_vocabulary(made.task))
    return check_number_coverage(TrainingParts(made, torch.device("cpu"), None, None, objective))  # type: ignore[arg-type]


def test_digits_without_number_loss_give_a_warning_with_their_share_and_a_remedy(pieces: Path, tmp_path: Path) -> None:
    pairs = [(f"{n}+{n}=", str(2 * n)) for n in range(40)]  # 5 of 40 answers have one digit
    task = QuestionFiles(
        train_file=questions(tmp_path / "a.jsonl", pairs), validation_fraction=0.0, test_fraction=0.025
    )
    cut = Subwords(str(pieces))
    (warning,) = doubts(chosen(cut, task, NumberToken()))
    answers = [pair.answer for pair in task.splits.train.source.read_examples(task.splits.train.rows)]  # type: ignore[arg-type]
    share = sum(len(text) == 1 for text in answers) / sum(map(len, answers))
    assert warning.startswith(
        f"objective.loss: {share:.0%}".replace("%", " %") + " of the digit characters of a sample"
    )
    assert warning.endswith("tokenizer.number_format=PerDigit makes it 100 %")
    assert doubts(chosen(replace(cut, number_format=PerDigit()), task, NumberToken())) == []
    assert doubts(chosen(cut, task, NumberToken(number_tokens="numbers"))) == [], "then they all have a value"
    assert doubts(chosen(cut, task, CrossEntropy())) == []
    words = QuestionFiles(train_file=questions(tmp_path / "b.jsonl", [(f"{n}+{n}=", "+") for n in range(20)]))
    assert doubts(chosen(cut, words, NumberToken())) == [], "answers without digits lose none"


@pytest.mark.parametrize("loss", [NumberLevel, partial(NumberToken, digit_weight_ratio=10.0)])
@pytest.mark.parametrize("written", ["reversed", "normal", "answer_reversed"])
def test_a_loss_that_reads_numbers_in_another_order_than_the_tokenizer_writes_them_is_refused(
    loss: Any, written: Any
) -> None:
    right, wrong = ("normal", "reversed") if written == "normal" else ("reversed", "normal")
    made = replace(recipe("addition_rotary"), tokenizer=Characters(Digits(digit_order=written)))

    def check(made: Recipe) -> list[str]:
        objective = made.objective.build(made.tokenizer.build_vocabulary(made.task))
        return check_digit_order(TrainingParts(made, torch.device("cpu"), None, None, objective))  # type: ignore[arg-type]

    with pytest.raises(UserError, match=rf"^objective.loss.digit_order: must be {right}, .*, not {wrong}$"):
        check(replace(made, objective=Supervised(loss(digit_order=wrong))))
    assert check(replace(made, objective=Supervised(loss(digit_order=right)))) == []
    assert check(replace(made, objective=Supervised(NumberToken(digit_order=wrong)))) == [], "digits are read singly"
    assert check(replace(made, task=Sorting(), objective=Supervised(loss(digit_order=wrong)))) == [], "no number there"


def test_rows_left_out_of_training_give_a_warning_at_the_start(tmp_path: Path) -> None:
    pairs = [(f"{n % 10}+1=", str(n % 10 + 1)) for n in range(60)]
    path = questions(tmp_path / "a.jsonl", pairs)
    task = QuestionFiles(train_file=path)
    left = task.splits.num_duplicates_removed
    assert left > 20
    (warning,) = task.data_warnings()
    assert warning.startswith(f"task: {left} of {left + len(task.splits.train)} rows of training are left out, since")
    assert "task.keep_duplicates=true keeps them" in warning
    assert task.summary() in warning
    assert replace(task, keep_duplicates=True).data_warnings() == []
    assert recipe("addition_rotary").task.data_warnings() == []
    lines: list[str] = []
    small = (
        "model.hidden_size=16",
        "model.backbone.num_layers=1",
        "training.steps=1",
        "training.batch_size=4",
        "evaluation.validation_examples=4",
        "evaluation.grid=null",
    )
    made = train(
        replace(recipe("addition_rotary", *small, "device=cpu"), task=task),
        runs_dir=tmp_path / "runs",
        quiet=True,
        on_message=lines.append,
    )
    assert [text for text in lines if "rows of training are left out" in text] == [f"warning: {warning}"]
    assert warning in (made.run.path / "log.txt").read_text()


@pytest.mark.parametrize(("weight", "warned"), [(30.0, True), (0.3, False)])
def test_a_number_term_above_cross_entropy_in_the_first_line_of_metrics_warns_once(
    weight: float, warned: bool, tmp_path: Path
) -> None:
    made = recipe("addition_rotary")
    made = replace(
        made,
        objective=Supervised(NumberToken(weight=weight)),
        training=replace(made.training, steps=4, log_every=2, evaluate_every=4, batch_size=4),
    )
    on_progress: list[str] = []
    lines: list[str] = []
    train(made, runs_dir=tmp_path, on_record=lambda kind, record: on_progress.append(kind), on_message=lines.append)
    found = [text for text in lines if "number term" in text]
    assert len(found) == on_progress.count("warning") == warned
    assert all("(means over the first 2 steps)" in text for text in found)
    assert all(
        text.endswith("use a lower objective.loss.weight (now 30) or objective.loss.squash_factor=20") for text in found
    )


# Parts of users -------------------------------------------------------------------------------------------------------


TINY = ("model.hidden_size=32", "model.backbone.num_layers=1", "training.batch_size=8")


class LeakingModule(RecurrentMixer):
    def forward(self, x: Any, context: Any) -> Any:
        return super().forward(x.roll(-1, 1), context)


class GatedLeakModule(LeakingModule):
    """Sees nothing later as long as its gate is 0, as at the start; decodes nothing."""

    def forward(self, x: Any, context: Any) -> Any:
        return RecurrentMixer.forward(self, x, context) + self.gate * super().forward(x, context)

    def prefill(self, x: Any, context: Any) -> Any:
        raise NotImplementedError


class WrongStepModule(RecurrentMixer):
    def step(self, x: Any, context: Any, state: Any) -> Any:
        return super().step(2 * x, context, state)


@dataclass(frozen=True)
class OwnMixer(LSTM):
    module: type[RecurrentMixer] = RecurrentMixer

    def build(self, width: int, layer: int, depth: int, positions: Any) -> Any:
        made = super().build(width, layer, depth, positions)
        made.__class__ = self.module
        made.gate = nn.Parameter(torch.zeros(width))
        return made


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (LeakingModule, "LeakingModule depends on later tokens"),
        (GatedLeakModule, "GatedLeakModule depends on later tokens"),
        (WrongStepModule, "WrongStepModule must compute in prefill and step what it computes in forward"),
        (type("Right", (RecurrentMixer,), {}), None),
    ],
)
def test_a_users_mixer_is_refused_if_it_sees_later_tokens_or_steps_otherwise(module: Any, problem: str | None) -> None:
    made = recipe("addition_abacus", *TINY)
    made = replace(made, model=replace(made.model, mixer=OwnMixer(module=module), positions=made.model.positions[:1]))
    with pytest.raises(UserError, match=problem) if problem else nullcontext():
        Trainer(made, World.join("cpu"))


@dataclass(frozen=True)
class FromTheEnd(PositionIds):
    def assign(self, tokens: Any, token_kinds: Any, step_context: Any) -> Any:
        return (token_kinds == DIGIT).long().flip(1).cumsum(1).flip(1)


def test_position_ids_of_a_user_that_depend_on_later_tokens_are_refused() -> None:
    made = recipe("addition_abacus", *TINY)
    positions = (Learned(position_ids=FromTheEnd(), max_position_embeddings=64),)
    with pytest.raises(UserError, match="FromTheEnd depends on later tokens"):
        Trainer(replace(made, model=replace(made.model, positions=positions)), World.join("cpu"))


@dataclass(frozen=True)
class Shout(Task):
    """`ab` with the answer `ab!`, or `ab!` with the answer `ab`; of OOD validation, with another letter."""

    in_question: bool = setting(False, "whether the question has the mark")
    letters: str = setting("ab", "the letters of words")

    def ood_validation_task(self) -> "Shout":
        return replace(self, letters="ac")

    def example(self, rng: random.Random) -> Example:
        word = rng.choice(self.letters) + rng.choice(self.letters)
        return Example(f"{word}{'!' * self.in_question}>", f"{word}{'' if self.in_question else '!'}", {})

    def num_questions(self) -> int:
        return 4

    def alphabet(self) -> tuple[str, ...]:
        return ("a", "b", ">")


def test_what_the_alphabet_of_a_users_task_lacks_is_refused_in_answers_and_warned_of_in_questions() -> None:
    made = replace(recipe("addition_abacus", *TINY, "evaluation.grid=null"), task=Shout())
    with pytest.raises(UserError, match=r"task: Shout.alphabet\(\) lacks '!', .*answers would be \[UNK\]"):
        Trainer(made, World.join("cpu"))
    warnings = Trainer(replace(made, task=Shout(in_question=True)), World.join("cpu")).warnings
    assert "task: Shout.alphabet() lacks '!', which examples of train have: the model reads [UNK]" in warnings
    assert (
        "task: Shout.alphabet() lacks '!', 'c', which examples of ood_validation have: the model reads [UNK]"
        in warnings
    )

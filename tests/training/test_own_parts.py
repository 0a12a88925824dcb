"""What is wrong with a part of a user is refused before training, in one sentence that says what would be right."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

import numerate
from numerate.api import recipe
from numerate.batch import IGNORE_INDEX, Output, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.losses.loss import Loss, LossModule
from numerate.mixers.mixer import Mixer, TokenMixer
from numerate.positions.added import Learned
from numerate.positions.position_ids import PositionIds
from numerate.tasks.mixture import Mixture
from numerate.tasks.task import Example, Task
from numerate.tokenizers.layout import MaskedLM
from numerate.training import own_parts
from numerate.training.distributed import World
from numerate.training.recipe import Recipe
from numerate.training.trainer import Trainer

torch.set_num_threads(1)

TINY = recipe("addition_abacus", "model.hidden_size=32", "model.backbone.num_layers=1", "training.batch_size=8")
RANDOM = "has a forward that is random, also in evaluation mode; use nn.Dropout or dropout(x, p, self.training)"
ROWS = "computes something else for a row when other rows of the batch change; it must treat rows independently"


def assert_refused(made: Recipe, message: str | None) -> None:
    """The message is the begin of the error's; None if the recipe is accepted."""
    if message is None:
        Trainer(made, World.join("cpu"))
        return
    with pytest.raises(UserError, match=re.escape(message)):
        Trainer(made, World.join("cpu"))


@pytest.mark.parametrize("has_ids", [(True, False), (False, True), (True, True)])
def test_rows_of_which_one_has_no_position_ids_are_compared_without(has_ids: tuple[bool, bool]) -> None:
    ids = torch.arange(8)[None]
    rows = [
        Tokens(ids, torch.tensor([8]), torch.tensor([0]), None, position_ids=(ids,) if has else None) for has in has_ids
    ]
    stacked = own_parts._stack_rows(*rows)
    assert stacked.ids.shape == (2, 8)
    assert (stacked.position_ids is not None) == all(has_ids)


# Position ids --------------------------------------------------------------------------------------------------------

IDS: dict[str, tuple[Callable[[Any, Tensor, Any], Any], str | None]] = {
    "right": (lambda tokens, ids, context: ids, None),
    "negative": (lambda tokens, ids, context: ids - 3, "must return position ids from 0 on, not -3"),
    "negative in training": (
        lambda tokens, ids, context: ids - int(context.training),
        "must return position ids from 0 on, not -1",
    ),
    "random": (
        lambda tokens, ids, context: ids + torch.randint(0, 99, (len(tokens.ids), 1)) * context.training,
        "must return the same position ids for the same tokens and step_context; random offsets are numerate.positions",
    ),
    "of other rows": (
        lambda tokens, ids, context: (ids + (len(tokens.ids) > 1)).expand(tokens.ids.shape),
        "must return position ids of a row that do not depend on the other rows of the batch",
    ),
}


@dataclass(frozen=True)
class Ids(PositionIds):
    case: str = "right"

    def assign(self, tokens: Any, token_kinds: Any, step_context: Any) -> Any:
        ids = torch.arange(tokens.ids.shape[1])[None]
        return IDS[self.case][0](tokens, ids, step_context)


@pytest.mark.parametrize("case", IDS)
def test_position_ids_must_be_usable_and_not_random(case: str) -> None:
    positions = (Learned(), Learned(position_ids=Ids(case), max_position_embeddings=64))
    message = IDS[case][1] and f"model.positions.1.position_ids: Ids.assign {IDS[case][1]}"
    assert_refused(replace(TINY, model=replace(TINY.model, positions=positions)), message)  # type: ignore[type-var]


# Mixers and models ---------------------------------------------------------------------------------------------------

FORWARDS: dict[str, tuple[Callable[[Tensor], Any], str | None]] = {
    "right": (lambda x: x, None),
    "mean of rows": (lambda x: x + x.mean(0, keepdim=True), ROWS),
    "first row": (lambda x: x + x[:1], ROWS),
    "dropout": (lambda x: dropout(x, 0.5), RANDOM),
    "noise": (lambda x: x + torch.rand_like(x), RANDOM),
}


class Summing(TokenMixer):
    def __init__(self, width: int, case: str) -> None:
        super().__init__()
        self.linear, self.case = nn.Linear(width, width), case

    def forward(self, x: Tensor, context: Any) -> Any:
        return FORWARDS[self.case][0](self.linear(x).cumsum(1))

    def prefill(self, x: Tensor, context: Any) -> Any:
        raise NotImplementedError

    def step(self, x: Tensor, context: Any, state: Any) -> Any:
        raise NotImplementedError

    def flops(self, time: int) -> int:
        return 1


@dataclass(frozen=True)
class Sum(Mixer):
    case: str = "right"

    def build(self, width: int, layer: int, depth: int, positions: Any) -> Summing:
        return Summing(width, self.case)


@numerate.wrap_model
def summing(vocab_size: int, case: str = "right") -> nn.Module:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(vocab_size, 8), nn.Linear(8, vocab_size)

        def forward(self, ids: Tensor) -> Any:
            if case in ("dictionary", "tuple"):
                logits = self.head(self.embedding(ids))
                return {"logits": logits} if case == "dictionary" else (logits, None)
            return FORWARDS.get(case, FORWARDS["right"])[0](self.head(self.embedding(ids).cumsum(1)))

    return Module()


@pytest.mark.parametrize("case", FORWARDS)
def test_a_mixer_must_treat_rows_independently_and_not_be_random(case: str) -> None:
    message = FORWARDS[case][1]
    made = replace(TINY, model=replace(TINY.model, mixer=Sum(case), positions=()))  # type: ignore[type-var]
    assert_refused(made, message and f"model: Summing {message}")
    if case == "mean of rows":
        assert_refused(replace(made, layout=MaskedLM(), tokenizer=TINY.tokenizer), f"model: Summing {message}")


@pytest.mark.parametrize(
    ("case", "message"),
    [
        *((case, message) for case, (_, message) in FORWARDS.items()),
        ("dictionary", "must return logits, or an output with .logits, not dict"),
        ("tuple", "must return logits, or an output with .logits, not tuple"),
    ],
)
def test_a_wrapped_model_is_checked_in_the_same_way(case: str, message: str | None) -> None:
    assert_refused(replace(TINY, model=summing(case)), message and f"model: summing {message}")


def test_a_check_leaves_a_model_as_it_was() -> None:
    made = replace(TINY, model=replace(TINY.model, mixer=Sum(), positions=()))  # type: ignore[type-var]
    model = Trainer(made, World.join("cpu")).model
    again = made.model.build(made.tokenizer.build_vocabulary(made.task), made.seed)
    assert model.training
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


# Losses --------------------------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[[Tensor], Any]] = {
    "right": lambda each: {"own": each.sum()},
    "detached": lambda each: {"own": each.sum().detach()},
}


@dataclass(frozen=True)
class Own(Loss):
    case: str = "right"

    def build(self, vocabulary: Any) -> LossModule:
        return OwnModule(self.case)


class OwnModule(LossModule):
    weights = {"own": 1.0}  # noqa: RUF012

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case = case

    def counts(self, batch: Any) -> Any:
        return {"own": batch.counts["tokens"]}

    def forward(self, output: Output, batch: Any) -> Any:
        logits, targets = output.logits.flatten(0, 1), batch.targets_for(output).flatten()
        return LOSSES[self.case](cross_entropy(logits, targets, reduction="none", ignore_index=IGNORE_INDEX))


def test_what_pytorch_cannot_use_is_an_error_that_names_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORWARDS, "narrow", (lambda x: x[..., 1:], None))
    made = replace(TINY, model=replace(TINY.model, mixer=Sum("narrow"), positions=()))  # type: ignore[type-var]
    assert_refused(
        made, "Sum: what it computes cannot be used here: RuntimeError: The size of tensor a (32) must match"
    )
    monkeypatch.setitem(LOSSES, "detached", lambda losses: {"own": losses.sum().detach()})
    made = replace(TINY, objective=replace(TINY.objective, loss=Own("detached")))  # type: ignore[type-var]
    with pytest.raises(UserError, match=r"^Own: what it computes cannot be used here: RuntimeError: element 0 of"):
        numerate.train(made, runs_dir=tmp_path, quiet=True)


# Tasks ---------------------------------------------------------------------------------------------------------------

CALLS: list[int] = []
DRAWN: dict[str, Callable[[random.Random], tuple[Any, Any]]] = {
    "right": lambda rng: (f"{rng.randrange(10**6)}=", "1"),
    "global": lambda rng: (f"{random.randrange(10**6)}=", "1"),
    "answer": lambda rng: (f"{rng.randrange(10**6)}=", str(random.randrange(10**6))),
    "calls": lambda rng: (f"{CALLS.append(0) or len(CALLS)}=", "1"),  # type: ignore[func-returns-value]
}


@dataclass(frozen=True)
class Drawing(Task):
    case: str = setting("right", "how it draws")

    def example(self, rng: random.Random) -> Example:
        return Example(*DRAWN[self.case](rng))


@pytest.mark.parametrize("case", DRAWN)
@pytest.mark.parametrize("make", [Drawing, lambda case: Mixture((Drawing(case),))])
def test_a_task_must_be_a_function_of_its_key(make: Any, case: str) -> None:
    message = "task: Drawing draws other questions when it is asked again with the same random generator; all that is"
    made = replace(TINY, task=make(case), evaluation=replace(TINY.evaluation, grid=None))
    assert_refused(made, None if case == "right" else message)

"""Several cases in one test, where a test for each would cost more than what it does; cases of others; and texts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from numerate.tasks.plain import format_question


@contextmanager
def case(*parts: object) -> Iterator[None]:
    """Adds to an error within it what the case was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(str, parts))}")
        raise


def published_case(shared: Path, file: str, name: str) -> dict[str, Any]:
    """What published code computed; skips the test where this case is not handed out."""
    cases = json.loads((shared / "cases" / file).read_text(encoding="utf-8"))["cases"]
    found: dict[str, Any] | None = next((one for one in cases if name in (one.get("name"), one.get("id"))), None)
    if found is None:
        pytest.skip(f"the case {name} of {file} is not handed out")
    return found


def assert_published_values(case: dict[str, Any], loss: Any, tolerance: float) -> None:
    """The mean, each position's loss and the gradient of the mean, where the case has them."""
    import torch

    logits, expected = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True), case["expected"]
    labels = torch.tensor(case["labels"])
    mean = loss(logits, labels)
    (gradient,) = torch.autograd.grad(mean, logits)
    assert mean.item() == pytest.approx(expected["mean"], abs=tolerance)
    each = loss(logits, labels, reduction="none").detach()
    torch.testing.assert_close(each, torch.tensor(expected["none"]).double(), atol=tolerance, rtol=0)
    torch.testing.assert_close(gradient, torch.tensor(expected["grad_of_mean"]).double(), atol=tolerance, rtol=0)
    if "sum" in expected:
        assert loss(logits, labels, reduction="sum").item() == pytest.approx(expected["sum"], abs=5 * tolerance)


class TokensForNTLoss:
    """As much of a tokenizer as the package ntloss asks for."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return dict(self.vocabulary)

    def __len__(self) -> int:
        return len(self.vocabulary)

    def add_tokens(self, tokens: Any) -> int:
        return 0

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self.vocabulary.get(token)


def pairs(questions: Any) -> list[tuple[str, str]]:
    """Questions with their answers, as a person writes them."""
    assert questions is not None
    return [format_question(questions, row) for row in range(len(questions))]


def whole(task: Any, split: str) -> list[tuple[str, str]]:
    """All questions of a split."""
    return pairs(task.all_questions(split))

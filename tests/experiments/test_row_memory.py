"""Rows that do not fit into memory are refused before an evaluation starts."""

from typing import Any

import pytest
import torch

from numerate.errors import UserError
from numerate.experiments import row_memory
from numerate.experiments.run import Run


@pytest.mark.filterwarnings("ignore:.*do not occur in training")
@pytest.mark.parametrize(
    ("ask", "fits"),
    [
        (lambda run: run.evaluate("diagonal:8:9", count=1), r"would fit: first_digits=\d, second_digits=\d$"),
        (lambda run: run.ask("12345678+1="), "would fit$"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_what_would_fit(
    ask: Any, fits: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_memory, "MAX_TOKENS_PER_BATCH", 12)
    monkeypatch.setattr(row_memory, "NUM_SAMPLED_TOKENS", 12)
    monkeypatch.setattr(row_memory, "available_memory", lambda device: 20_000.0)
    need = r"\d\d tokens in a row need about .*B of memory, and 20.0 kB are available; about \d+ tokens.* "
    with pytest.raises(UserError, match=need + fits):
        ask(run)
    monkeypatch.setattr(row_memory, "available_memory", lambda device: 1e12)
    ask(run)


def test_the_available_memory_of_this_machine_is_known() -> None:
    assert row_memory.available_memory(torch.device("cpu")) > 1e7

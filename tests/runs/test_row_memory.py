"""Rows that do not fit into memory are refused before an evaluation starts."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from numerate.api import recipe
from numerate.batch import StepContext
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.runs import row_memory
from numerate.runs.run import Run

MODELS = [
    *(f"Attention model.positions={positions}" for positions in ("[Rotary]", "[ALiBi]")),
    *(f"{mixer} model.positions=[]" for mixer in ("DualAttention(2,2)", "Mamba", "RWKV7")),
]


@pytest.mark.parametrize("mixer", MODELS)
def test_a_long_row_is_refused_just_where_a_cpu_would_need_more_than_there_is(
    mixer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From rows a fourth as long: the memory is a line in the length, or a parabola."""
    found = recipe("addition_abacus", "device=cpu", *f"model.mixer={mixer}".split())
    data = EvaluationData(found.task, found.tokenizer, found.layout)
    tokens = data.longest_rows(found.task.at_cell(first_digits=600, second_digits=600), split="test")
    run: Any = SimpleNamespace(
        recipe=found, device=None, untrained_model=found.model.build(data.vocabulary, 0), evaluation_data=data
    )
    row = run.untrained_model.eval().assign_positions(tokens, StepContext.for_evaluation())
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run.untrained_model(row)
    events: Any = profiled.profiler and profiled.profiler.kineto_results.events()
    needed = max(itertools.accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
    monkeypatch.setattr(row_memory, "MAX_TOKENS_PER_BATCH", 12)
    monkeypatch.setattr(row_memory, "NUM_MEASURED_TOKENS", 512)
    monkeypatch.setattr(row_memory, "available_memory", lambda device: 0.8 * needed)
    with pytest.raises(UserError, match=r"1,\d\d\d tokens in a row need about .*; about [\d,]+ tokens, \d\d% of this"):
        row_memory.check_row_fits(run, tokens)
    monkeypatch.setattr(row_memory, "available_memory", lambda device: 1.2 * needed)
    row_memory.check_row_fits(run, tokens)


@pytest.mark.filterwarnings("ignore:.*do not occur in training")
@pytest.mark.parametrize("ask", [lambda run: run.evaluate("diagonal:8:9", count=1), lambda run: run.ask("12345678+1=")])
def test_a_row_that_does_not_fit_is_refused_with_what_would_fit(
    ask: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_memory, "MAX_TOKENS_PER_BATCH", 12)
    monkeypatch.setattr(row_memory, "NUM_MEASURED_TOKENS", 12)
    monkeypatch.setattr(row_memory, "available_memory", lambda device: 20_000.0)
    need = r"\d\d tokens in a row need about .*B of memory, and 20.0 kB are available; about \d+ tokens.* would fit$"
    with pytest.raises(UserError, match=need):
        ask(run)
    monkeypatch.setattr(row_memory, "available_memory", lambda device: 1e12)
    ask(run)


def test_a_job_may_have_less(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n",
        "proc/self/cgroup": "4:memory:/other\n0::/job/step",
        "sys/fs/cgroup/job/memory.max": "5000",
        "sys/fs/cgroup/job/memory.current": "3000",
        "sys/fs/cgroup/job/memory.stat": "file 7\ninactive_file 400\nactive_file 30\n",
        "sys/fs/cgroup/job/step/memory.max": "max",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    cpu = torch.device("cpu")
    assert row_memory.available_memory(cpu, tmp_path) == 5000 - 3000 + 430
    (tmp_path / "proc/self/cgroup").write_text("")
    assert row_memory.available_memory(cpu, tmp_path) == 8000 * 1024
    assert row_memory.available_memory(cpu, tmp_path / "absent") == float("inf")
    assert 1e7 < row_memory.available_memory(cpu) < float("inf")

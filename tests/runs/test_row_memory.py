"""Rows that do not fit into memory are refused before an evaluation starts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from numerate.api import recipe
from numerate.batch import StepContext, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.kernels import selective_scan
from numerate.runs import row_memory
from numerate.runs.row_memory import META, forward_memory
from numerate.runs.run import Run

MODELS = [
    *(f"Attention model.positions={positions}" for positions in ("[Rotary]", "[ALiBi]")),
    *(f"{mixer} model.positions=[]" for mixer in ("DualAttention(2,2)", "Mamba", "RWKV7")),
]


def model_and_row(mixer: str, digits: int = 300) -> tuple[Any, Tokens]:
    found = recipe("addition_abacus", *f"model.mixer={mixer}".split())
    data = EvaluationData(found.task, found.tokenizer, found.layout)
    tokens = data.longest_rows(found.task.at_cell(first_digits=digits, second_digits=digits), split="test")
    return found.model.build(data.vocabulary, 0).eval(), tokens


@pytest.mark.parametrize("mixer", MODELS)
def test_the_memory_of_a_forward_pass_is_what_a_cpu_allocates(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the chunks that a CPU has."""
    monkeypatch.setitem(selective_scan.MIN_ELEMENTS, "cuda", selective_scan.MIN_ELEMENTS["cpu"])
    model, tokens = model_and_row(mixer)
    row = model.assign_positions(tokens, StepContext.for_evaluation())
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        model(row)
    assert profiled.profiler is not None
    events = profiled.profiler.kineto_results.events()
    allocated = torch.tensor([event.nbytes() for event in events if event.name() == "[memory]"])
    estimated = forward_memory(model.to(META), tokens, tokens.ids.shape[1])
    assert estimated == pytest.approx(int(allocated.cumsum(0).max()), rel=0.15)


def test_attention_stores_no_weights_so_that_memory_is_proportional_to_length() -> None:
    model, tokens = model_and_row("Attention model.positions=[Rotary]", digits=2000)
    half, full = (forward_memory(model.to(META), tokens, count) for count in (3000, 6000))
    assert full / half == pytest.approx(2, rel=0.05), "stored weights would make it 4"
    with pytest.raises(RuntimeError):
        torch.autocast("meta")  # what is simulated ends


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


@pytest.mark.parametrize(
    ("cgroup", "folder", "limit", "used", "total"),
    [
        ("0::/job/step", "job", "memory.max", "memory.current", ""),
        ("0::/\n4:memory,hugetlb:/job/step", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ],
)
def test_a_job_may_have_less(cgroup: str, folder: str, limit: str, used: str, total: str, tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n",
        "proc/self/cgroup": cgroup,
        f"sys/fs/cgroup/{folder}/{limit}": "5000",
        f"sys/fs/cgroup/{folder}/{used}": "3000",
        f"sys/fs/cgroup/{folder}/memory.stat": f"inactive_file 5\n{total}inactive_file 400\n{total}active_file 30\n",
        "sys/fs/cgroup/job/step/memory.max": "max",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert row_memory.available_memory(torch.device("cpu"), tmp_path) == 5000 - 3000 + 430
    (tmp_path / "proc/self/cgroup").write_text("")
    assert row_memory.available_memory(torch.device("cpu"), tmp_path) == 8000 * 1024
    assert row_memory.available_memory(torch.device("cpu"), tmp_path / "absent") == float("inf")
    assert 1e7 < row_memory.available_memory(torch.device("cpu")) < float("inf")

"""Rows that do not fit into memory are refused before an evaluation starts."""

from pathlib import Path
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

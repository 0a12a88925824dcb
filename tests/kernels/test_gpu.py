"""Promises of what is asked of a GPU: that Triton can launch there, also inside of a compiled graph."""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from numerate.kernels import gpu


@pytest.fixture
def with_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine with Triton, gcc and Python's headers, which are in the folder."""
    for name in ("CC", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpu, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "Python.h").touch()
    gpu._can_build_launchers.cache_clear()
    yield tmp_path
    gpu._can_build_launchers.cache_clear()


def test_triton_is_used_where_it_can_build_what_launches_kernels(with_triton: Path) -> None:
    assert gpu.has_triton()


def test_without_a_compiler_or_headers_it_is_not_and_one_warning_says_so(
    with_triton: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (with_triton / "Python.h").unlink()
    with pytest.warns(UserWarning, match=r"kernels of Triton need the headers of Python \(python3-dev\)"):
        assert not gpu.has_triton()
    assert not gpu.has_triton(), "warnings are errors here: there is no second one"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    gpu._can_build_launchers.cache_clear()
    with pytest.warns(UserWarning, match=r"kernels of Triton need a C compiler \(gcc\)"):
        assert not gpu.has_triton()


COMPILED = """
import torch
from types import SimpleNamespace
from numerate.kernels import gpu
gpu.find_spec = lambda name: SimpleNamespace()
torch.compile(lambda x: x + gpu.has_triton(), backend="eager", fullgraph=True)(torch.zeros(1))
"""


def test_a_compiled_graph_takes_it_for_constant() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED], check=True)

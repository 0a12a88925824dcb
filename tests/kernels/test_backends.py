"""Which backend of a mixer runs, and its warnings. Tensors on a CUDA device are fake ones, without data."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from numerate.errors import UserError
from numerate.kernels import backends as kernels
from numerate.kernels.backends import Backend, should_use_fla


@pytest.fixture(autouse=True)
def no_warning_yet() -> Iterator[None]:
    kernels._warn_missing.cache_clear()
    yield
    kernels._warn_missing.cache_clear()


def on(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(2, 3, device=device, dtype=dtype)


def pretend(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(kernels, "is_fla_installed", lambda: installed)


@pytest.mark.parametrize(
    ("backend", "device", "dtype", "installed", "expected"),
    [
        ("auto", "cpu", torch.float32, True, False),
        ("torch", "cpu", torch.float32, False, False),
        ("torch", "cuda", torch.float32, True, False),
        *(("auto", "cuda", dtype, True, True) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
        ("auto", "cuda", torch.float64, True, False),  # float64 is exact only in torch
    ],
)
def test_auto_takes_the_kernel_on_a_device_where_it_is_installed(
    backend: Backend, device: str, dtype: torch.dtype, installed: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, installed)
    assert should_use_fla(backend, on(device, dtype), "Mamba2") == expected


def test_auto_rounds_nothing_for_a_kernel_that_knows_half_precision_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, True)
    assert should_use_fla("auto", on("cuda", torch.bfloat16), "DeltaNet", requires_half_precision=True)
    with pytest.warns(UserWarning, match=r"^DeltaNet runs in its chunked form in torch: .*training\.precision=bf16"):
        assert not should_use_fla("auto", on("cuda"), "DeltaNet", requires_half_precision=True)
    assert should_use_fla("fla", on("cuda"), "DeltaNet", requires_half_precision=True), "requested by name it may round"


def test_a_missing_package_is_warned_of_once_with_the_form_that_runs_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, False)
    with pytest.warns(UserWarning, match=r"^DeltaNet runs in its chunked form in torch: .*flash-linear-attention"):
        assert not should_use_fla("auto", on("cuda"), "DeltaNet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not should_use_fla("auto", on("cuda"), "DeltaNet")
    with pytest.warns(UserWarning, match=r"^RWKV6 runs"):
        assert not should_use_fla("auto", on("cuda"), "RWKV6")


def test_a_requested_kernel_that_cannot_run_is_refused_with_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, False)
    with pytest.raises(UserError, match=r"^model\.mixer\.backend: fla needs the package .*pip install.*backend=auto"):
        should_use_fla("fla", on("cuda"), "DeltaNet")
    pretend(monkeypatch, True)
    for x in (on("cpu"), on("cuda", torch.float64)):
        with pytest.raises(UserError, match=r"^model\.mixer\.backend: fla runs in fp32, bf16 or fp16 on a CUDA device"):
            should_use_fla("fla", x, "DeltaNet")


@pytest.mark.parametrize("there", [("fla",), ("triton",), ("fla", "triton")], ids=" ".join)
def test_the_package_counts_only_with_the_compiler_of_its_kernels(
    there: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: object() if name in there else None)
    assert kernels.is_fla_installed.__wrapped__() == (len(there) == 2)

"""The Triton kernels of relational attention compile for GPUs that are not there, fit them, and spill little."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

if not os.environ.get("GPU_READINESS"):
    pytest.skip("takes minutes: run by make test-gpu-readiness", allow_module_level=True)
if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from gpu.compiled import GPUS
from gpu.relational_attention import DTYPES, WIDTHS, launched, tables
from numerate.kernels.relational_kernel import KERNEL_ACTIVATIONS
from numerate.kernels.relational_tiles import Tiles

MAX_SPILLED_BYTES = 256
"""Per thread, which has 255 registers of 4 bytes. The kernels that held several relations spilled 28,000 to 50,000."""


def check(gpu: str, dtype: str, width: int, **options: object) -> None:
    kernels = launched(dtype, width, gpu, **options)  # type: ignore[arg-type]
    assert kernels is not None
    assert [kernel.constants.get("OF_KEYS") for kernel in kernels] == [None, False, False, True, True]
    for kernel in kernels:
        constants = kernel.constants
        heads = constants["HEADS" if "HEADS" in constants else "RELATIONS"]
        tiles = Tiles(heads, constants["QUERIES"], constants["KEYS"])
        widest = max(constants["WIDTH"], constants["RELATION_WIDTH"])
        assert kernel.shared_memory <= tiles.shared_memory(widest, DTYPES[dtype]) <= GPUS[gpu].shared_memory
        assert kernel.spilled_bytes <= MAX_SPILLED_BYTES
        assert GPUS[gpu].occupancy(kernel) > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("gpu", GPUS)
def test_the_kernels_fit_the_gpu_and_spill_little(gpu: str, width: int, dtype: str) -> None:
    if (dtype, width) == ("fp32", 128) and gpu != "gfx942":
        assert launched(dtype, width, gpu) is None, "split products of this width would spill more"
    else:
        check(gpu, dtype, width)


@pytest.mark.parametrize(("width", "relation_width"), [(16, 64), (64, 16), (128, 32)])
def test_so_they_do_where_relations_have_another_width(width: int, relation_width: int) -> None:
    check("sm86", "bf16", width, relation_width=relation_width)


@pytest.mark.parametrize("sizes", [(1, 1, 2), (6, 2, 20)], ids=str)
def test_so_they_do_for_sizes_that_are_no_powers_of_two_and_few_heads(sizes: tuple[int, int, int]) -> None:
    """Where no stride is known to be a multiple of 16: Triton compiles other kernels for those."""
    heads, groups, relations = sizes
    check("sm86", "fp32", 20, num_heads=heads, num_groups=groups, num_relations=relations, time=37)


@pytest.mark.parametrize("activation", KERNEL_ACTIVATIONS)
def test_every_activation_compiles(activation: str) -> None:
    check("sm90", "bf16", 16, activation=activation)


def test_the_page_says_what_was_compiled() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert tables() in page, "python tests/gpu/relational_attention.py prints the tables"

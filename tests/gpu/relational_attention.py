"""The kernels of relational attention, compiled for GPUs that are not there.

make test-gpu-readiness                                   # checks them
.venv-gpu/bin/python tests/gpu/relational_attention.py    # prints the tables of docs/gpu.md
"""

import sys
from pathlib import Path
from unittest import mock

import torch

sys.path.append(str(Path(__file__).parents[1]))

from gpu.compiled import GPUS, CompiledKernel, compiled_for
from numerate.kernels.relational import RelationalHeads
from numerate.kernels.relational_kernel import tiles_problem
from numerate.kernels.relational_triton import RelationalInputs, attended_symbols_and_relations

WIDTHS = (16, 32, 64, 128)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp32 as tf32": torch.float32}


def launched(
    dtype: str,
    width: int,
    gpu: str,
    *,
    relation_width: int | None = None,
    num_heads: int = 8,
    num_groups: int | None = None,
    num_relations: int = 8,
    time: int = 512,
    activation: str = "gelu",
) -> list[CompiledKernel] | None:
    """The kernels of a forward and a backward pass: forward; gradients of queries, of relation queries, of keys and
    symbols, of relation keys. None where no tiles fit, and the kernels are not launched.

    The default activation takes the most arithmetic.
    """
    groups = num_heads if num_groups is None else num_groups
    sizes = dict.fromkeys(("keys", "symbols"), (groups, width)) | {"queries": (num_heads, width)}
    sizes |= dict.fromkeys(("relation_queries", "relation_keys"), (num_relations, relation_width or width))
    inputs = {
        name: torch.empty(8, time, *sizes[name], dtype=DTYPES[dtype], device="meta", requires_grad=True)
        for name in RelationalInputs._fields
    }
    heads = RelationalHeads(**{name: x.transpose(1, 2) for name, x in inputs.items()})
    found: list[CompiledKernel] | None = None

    def call() -> None:
        nonlocal found
        if tiles_problem(heads) is None:
            found = []
            output, relations = attended_symbols_and_relations(heads, activation)  # type: ignore[arg-type]
            (output.sum() + relations.sum()).backward()

    precision = "high" if dtype == "fp32 as tf32" else "highest"
    with mock.patch.object(torch, "get_float32_matmul_precision", return_value=precision):
        compiled = compiled_for(GPUS[gpu], call)
    return None if found is None else compiled


def tables() -> str:
    """One line per dtype and width with the largest numbers of the five kernels; then, for one of them, all five."""
    head = [f"| {{}} | {' | '.join(GPUS)} |", f"|---|{'---|' * len(GPUS)}"]
    lines = [head[0].format("dtype, width"), head[1]]
    for dtype in DTYPES:
        for width in WIDTHS:
            lines.append(
                f"| {dtype}, {width} | {' | '.join(_cell(gpu, launched(dtype, width, gpu)) for gpu in GPUS)} |"
            )
    lines += ["", head[0].format("bf16, 64"), head[1]]
    names = ("forward", "queries", "relation queries", "keys, symbols", "relation keys")
    for name, *kernels in zip(names, *(launched("bf16", 64, gpu) or [] for gpu in GPUS), strict=True):
        lines.append(f"| {name} | {' | '.join(_cell(gpu, [one]) for gpu, one in zip(GPUS, kernels, strict=True))} |")
    return "\n".join(lines)


def _cell(gpu: str, kernels: list[CompiledKernel] | None) -> str:
    if kernels is None:
        return "in torch"
    constants = kernels[0].constants
    tiles = "x".join(str(constants.get(name, constants.get("RELATIONS"))) for name in ("HEADS", "QUERIES", "KEYS"))
    memory, registers, spilled = (
        max(getattr(kernel, field) for kernel in kernels) for field in ("shared_memory", "registers", "spilled_bytes")
    )
    occupancy = min(GPUS[gpu].occupancy(kernel) for kernel in kernels)
    return f"{tiles}; {memory / 1024:.0f} KiB; {registers}; {spilled}; {occupancy:.0%}"


if __name__ == "__main__":
    print(tables())

"""Short convolutions against torch's, and what torch.compile gets to see of a loop over a row."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv1d, pad

from numerate.kernels.token_shift import ShortConvolution, shift_tokens, zero_padding


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize(("size", "time"), [(1, 5), (4, 9), (4, 4), (4, 2), (3, 1)])
def test_a_short_convolution_is_that_of_torch_with_its_gradient(size: int, time: int, biases: bool) -> None:
    part = ShortConvolution(6, size, biases).double()
    x = torch.randn(3, time, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    padded = pad(x, (0, 0, size - 1, 0)).mT
    theirs = conv1d(padded, part.weight.mT[:, None], part.bias, groups=6).mT
    mine, weights = part(x), torch.randn(3, time, 6, dtype=torch.float64)
    torch.testing.assert_close(mine, theirs)
    leaves = [x, *part.parameters()]
    for one, other in zip(*(torch.autograd.grad((y * weights).sum(), leaves) for y in (mine, theirs)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_short_convolution_of_stacked_models_is_that_of_each() -> None:
    x = torch.randn(2, 3, 9, 6, dtype=torch.float64).requires_grad_()
    weight = torch.randn(2, 4, 6, dtype=torch.float64).requires_grad_()
    part = ShortConvolution(6, 4, biases=False).double()

    def one(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(part, {"weight": weight}, x)
        return output

    for dims, own in (((0, 0), (x, weight)), ((0, None), (x, weight[0])), ((None, 0), (x[0], weight))):
        stacked = torch.vmap(one, in_dims=dims)(*own)
        alone = torch.stack(
            [one(*(x[member] if dim == 0 else x for x, dim in zip(own, dims, strict=True))) for member in range(2)]
        )
        torch.testing.assert_close(stacked, alone)
        for found, expected in zip(
            *(torch.autograd.grad(y.square().sum(), own) for y in (stacked, alone)), strict=True
        ):
            torch.testing.assert_close(found, expected)


def test_a_window_goes_on_where_the_real_tokens_of_each_row_end() -> None:
    part, x = ShortConvolution(6, 4).double(), torch.randn(2, 9, 6, dtype=torch.float64)
    whole = part(x)
    _, window = part.run(x[:, :7], None, torch.tensor([3, 7]))
    newest = torch.stack([x[0, 3], x[1, 7]])[:, None]
    output, window = part.run(newest, window, None)
    torch.testing.assert_close(output[:, 0], torch.stack([whole[0, 3], whole[1, 7]]))
    torch.testing.assert_close(window, torch.stack([x[0, 1:4], x[1, 5:8]]))


def test_a_shift_goes_on_behind_the_newest_token() -> None:
    x = torch.arange(1.0, 7).view(2, 3, 1)
    before, newest = shift_tokens(x, None, torch.tensor([2, 3]))
    assert before.flatten().tolist() == [0, 1, 2, 0, 4, 5]
    assert newest.flatten().tolist() == [2, 6]
    assert all(torch.equal(*pair) for pair in zip(shift_tokens(x[:, :1], newest), (newest, x[:, :1]), strict=True))


def test_padding_becomes_zero() -> None:
    x = torch.ones(2, 3, 1, 2)
    assert zero_padding(x, torch.tensor([1, 3])).sum((2, 3)).tolist() == [[2, 0, 0], [2, 2, 2]]
    assert zero_padding(x, None) is x


COMPILED = """
import json, sys, torch
from numerate.catalogue import all_classes
from numerate.mixers.mixer import Context
torch.set_num_threads(1)
nodes = 0
def counting(graph, _):
    global nodes
    nodes += sum(len(part.graph.nodes) for part in graph.modules() if isinstance(part, torch.fx.GraphModule))
    return graph.forward
found = {}
for mixer in all_classes("Mixer"):
    if mixer.__name__ not in sys.argv[1:]:
        continue
    part, found[mixer.__name__] = mixer().build(8, 0, 1, ()), []
    for time in (6, 60):
        torch._dynamo.reset()
        nodes, x = 0, torch.randn(2, time, 8)
        context = Context(torch.tensor([time, time]), ())
        output = torch.compile(part, dynamic=True, backend=counting)(x, context)
        assert torch.allclose(output, part(x, context), atol=1e-6)
        found[mixer.__name__].append(nodes)
print(json.dumps(found))
"""
LOOPING = ("MinGRU", "RWKV4", "S4D", "SLSTM", "SlotLSTM")


@pytest.mark.slow
def test_no_loop_over_a_row_is_written_out_for_the_compiler(tmp_path: Path) -> None:
    """In a process of its own, where shapes are not checked: the compiler cannot read those checks."""
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    done = subprocess.run(
        [sys.executable, str(script), *LOOPING],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(LOOPING)
    for name, (short, long) in found.items():
        assert 0 < long < 1.1 * short, name

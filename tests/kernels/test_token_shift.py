"""What torch.compile gets to see of a loop over a row."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
LOOPING = ("MinGRU", "SLSTM", "SlotLSTM")


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
        assert 0 < long < 1.5 * short, name  # a scan by halves grows by the logarithm of the length

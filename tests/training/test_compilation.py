"""Promises of `training.compile`: whole graphs, the losses of an uncompiled run, few graphs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from variants import TINY_TOKENIZER

TINY_T5 = "model=T5(hidden_size=16,num_layers=1,num_heads=2,head_dim=8,intermediate_size=32,dropout=0) layout=Seq2Seq"
TINY_XVAL = (
    f"{TINY_T5.replace('dropout=0', 'dropout=0,number_head=NumberHead(scale=ln),number_embedding=XValScaling')} "
    f"tokenizer=Subwords({Path(TINY_TOKENIZER).name},XVal) objective.loss=XValLoss"
)
MIXERS = "Attention LSTM GRU SLSTM SlotLSTM MinGRU Mamba Mamba2 S4 RWKV6 RWKV7 DeltaNet DualAttention"
WHOLE_GRAPHS = [*(f"model.mixer={name}" for name in MIXERS.split()), "model.backbone=Loop", TINY_T5, TINY_XVAL]
"""Settings with which forward pass and loss are one graph."""
EQUAL = ("model.mixer=Attention", "model.mixer=LSTM", "model.mixer=Mamba", "model.mixer=DualAttention", TINY_T5)

COUNTED = """
import json, sys, torch
from dataclasses import replace
from small_runs import small
from numerate.training.distributed import World
from numerate.training.trainer import Trainer
torch.set_num_threads(1)
found = {}
for settings in sys.argv[1:]:
    trainer = Trainer(small(settings, "training.compile=true"), World.join("cpu"))
    trainer.model.train()
    batches = trainer.next_batch()
    batch = batches.micro_batches[0]
    tokens = trainer.model.assign_positions(batch.tokens, batches.step_context)
    batch = replace(batch, tokens=tokens, counts={}, num_input_tokens=0)
    def loss(batch):
        output = trainer.model(batch.tokens, batch.source, target_positions=batch.target_positions_or_none)
        return trainer.objective.loss(output, batch)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    sum(torch.compile(loss, backend="eager", dynamic=True)(batch).values()).backward()
    found[settings] = sum(torch._dynamo.utils.counters["graph_break"].values())
print(json.dumps(found))
"""

TRAINED = """
import json, sys, torch
from small_runs import small
from numerate.training.distributed import World
from numerate.training.trainer import Trainer
backend, *families = sys.argv[1:]
torch.set_num_threads(1)
compile = torch.compile
torch.compile = lambda function, **settings: compile(function, **{**settings, "backend": backend})
found = {}
for settings in families:
    losses = []
    for compiled in ("false", "true"):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        trainer = Trainer(small(settings, "seed=3", f"training.compile={compiled}"), World.join("cpu"))
        trainer.model.train()
        losses.append([])
        for step in range(6):
            trainer.training_step(6)
            trainer.save()
            losses[-1].append(trainer.state.sums.pop("loss"))
    counters = torch._dynamo.utils.counters
    found[settings] = [*losses, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())]
print(json.dumps(found))
"""
"""Losses of steps without and with the compiler, graphs, and graph breaks."""


def in_a_process(script: str, *settings: str) -> Any:
    """What a script prints, where shapes are not checked: the compiler cannot trace those checks."""
    done = subprocess.run(
        [sys.executable, "-c", script, *settings],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
        cwd=Path(TINY_TOKENIZER).parent,  # settings are separated by spaces, which the path may have
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_forward_pass_and_loss_of_every_family_are_one_graph() -> None:
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    assert in_a_process(COUNTED, *WHOLE_GRAPHS) == dict.fromkeys(WHOLE_GRAPHS, 0)


@pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")),
    reason="torch.compile needs a C++ compiler on the CPU, and none is here",
)
@pytest.mark.skipif(" " in torch.__file__, reason="torch.compile links with nothing in a folder whose path has a space")
@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_an_uncompiled_one() -> None:
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    settings = [f"task.digits=3 {family}" for family in EQUAL]
    for family, (plain, compiled, graphs, breaks) in in_a_process(TRAINED, "inductor", *settings).items():
        assert compiled == pytest.approx(plain, abs=1e-5), family
        # A graph each for the forward pass and the loss, again for any length, and those of nets of torch.
        assert graphs <= 6, family
        assert breaks == 0, family
        assert plain[0] != plain[-1]


def test_a_compiled_run_has_two_graphs_of_the_first_length_and_two_of_all_others() -> None:
    ((plain, compiled, graphs, breaks),) = in_a_process(TRAINED, "eager", "task.digits=1:7").values()
    assert compiled == pytest.approx(plain, abs=1e-5)
    assert (graphs, breaks) == (4, 0)

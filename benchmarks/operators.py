"""Operators, launched kernels and waits for the device of a training step, on a device that is simulated on the CPU.

    python benchmarks/operators.py [NAME ...] [--steps 3] [--json] [--by-operator 12]

One line per recipe: `operators` are those that torch dispatches, `kernels` those that launch at least one kernel (no
views, no allocations; `tests/simulated_device.py` says what that estimates), `waits` how often the CPU waits for the
device. All per step, the mean of `--steps` steps between two logged lines; the optimizer is the fused one, as on CUDA.
`--by-operator` also lists the operators with the most kernels. A figure depends on depth and loops, hardly on widths:
models are narrow and as deep as published.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import numerate
from numerate.training.distributed import World
from numerate.training.stopping import Stop
from numerate.training.trainer import Trainer
from simulated_device import DEVICE, simulated_device

T5 = "model.hidden_size=64 model.num_layers=6 model.num_decoder_layers=6"
ABACUS = "model.hidden_size=64 model.mixer.num_heads=4"
SMALL = (
    "training.precision=fp32",
    "training.compile=false",
    "training.shuffle_window=1",
    "training.batch_size=8",
    "training.initial_batch_size=null",
    "training.batch_size_warmup=0",
    "training.micro_batch_size=null",
)
RECIPES = {
    "decoder": f"addition_small_abacus {ABACUS}",
    "looped abacus 2x8": f"addition_lt_abacus_2x8 {ABACUS}",
    "looped abacus 2x8, FIRE": f"addition_lt_abacus_2x8 {ABACUS} model.positions=[FIRE(share_across_layers=true)]",
    "T5, cross-entropy": f"number_loss_small_ce {T5}",
    "T5, number loss": f"number_loss_small_was {T5}",
    "T5, number level": f"number_loss_small_number_level {T5}",
    "dual attention": f"addition_small_abacus {ABACUS} model.mixer=DualAttention(2,2,SymbolicAttention)",
    "LSTM": "counting_mod10_lstm",
    "Mamba": "counting_mod10_nope model.mixer=Mamba",
    "RWKV7": "counting_mod10_nope model.mixer=RWKV7",
    "S4": "counting_mod10_nope model.mixer=S4",
}
"""Each row with its recipe and settings."""


def count(name: str, steps: int) -> tuple[dict[str, object], Counter[str]]:
    recipe, *settings = RECIPES[name].split()
    with simulated_device() as log:
        trainer = Trainer(numerate.recipe(recipe, *SMALL, *settings), World(DEVICE))
        trainer.start_training(Stop())
        for group in trainer.optimizer.param_groups:
            group["fused"] = True
        trainer.training_step(trainer.total_steps)
        log.clear()
        for _ in range(steps):
            trainer.training_step(trainer.total_steps)
    means = {part: round(getattr(log, part).total() / steps) for part in ("operators", "kernels")}
    return {"recipe": name, **means, "waits": round(len(log.waits) / steps, 1)}, log.kernels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(RECIPES), metavar="NAME", help=f"of {', '.join(RECIPES)}")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--by-operator", type=int, default=0, metavar="N")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.json:
        print(f"{'recipe':24} {'operators':>10} {'kernels':>10} {'waits':>10}")
    for name in args.names:
        line, kernels = count(name, args.steps)
        print(json.dumps(line) if args.json else "{recipe:24} {operators:10,} {kernels:10,} {waits:10}".format(**line))
        for operator, number in kernels.most_common(args.by_operator):
            print(f"    {operator:32} {number / args.steps:10.1f}")


if __name__ == "__main__":
    main()

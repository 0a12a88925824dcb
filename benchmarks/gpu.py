"""The published 8 x 2 Abacus model in bf16 on one CUDA device: how quickly it trains, and how long its budget takes.

    python benchmarks/gpu.py                 # a CUDA device; a few minutes, compiling included
    python benchmarks/gpu.py --smoke         # a tiny model on the CPU: that this file works, and nothing else

One JSON line per form of the step (as it is, and compiled by `torch.compile`), then the rows for the table of
`benchmarks/gpu.md`. A step is one of the full batch: 8192 additions of 1 to 20 digits in 16 parts of 512, forward and
backward under the progressive loss, clipping and AdamW, data included: what `Trainer.training_step` does in a run.
Tokens are real ones, padding is computed but not counted. Operations are counted as a run counts them (see `Training`),
and so is the published budget of 8 exaFLOP. The limit of the chip is what its maker states for dense bf16, where it is
known here, and a large product of matrices measured in the same process.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace

import torch

from numerate.config import Span
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.models.backbone import Loop
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.initialization import DeepNorm
from numerate.positions.added import Learned
from numerate.positions.position_ids import DigitIndex
from numerate.tasks.arithmetic import Arithmetic
from numerate.training.budget import format_flops
from numerate.training.distributed import World
from numerate.training.objective import Progressive
from numerate.training.optimizer import AdamW
from numerate.training.peak_flops import peak_flops
from numerate.training.progress import format_duration
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import WarmupStableDecay
from numerate.training.trainer import Trainer

BUDGET = 8e18
"""Floating-point operations of a published run."""


def published(*, compiled: bool, smoke: bool) -> Recipe:
    """8 blocks x 2 turns, width 1024, 16 heads; or a shape like it that any CPU can train."""
    width, heads, depth, parts, part = (32, 4, 2, 2, 8) if smoke else (1024, 16, 8, 16, 512)
    feed_forward = FeedForward("geglu", expansion=1.0, bias=False)
    model = Decoder(
        hidden_size=width,
        backbone=Loop(num_layers=depth, num_loops=2, input_injection="add", initial_state="noise"),
        mixer=Attention(num_heads=heads),
        feed_forward=feed_forward,
        positions=(Learned(position_ids=DigitIndex(max_offset=100), max_position_embeddings=512),),
        norm_first=False,
        norm_eps=1e-12,
        embedding_norm=True,
        head_feed_forward=feed_forward,
        final_norm=True,
        head_projection=True,
        initialization=DeepNorm(),
    )
    training = Training(
        steps=None,
        flops=BUDGET,
        batch_size=parts * part,
        gradient_accumulation_steps=parts,
        shuffle_window=4,
        precision="bf16",
        compile=compiled,
    )
    return Recipe(
        task=Arithmetic(operator="+", digits=Span(1, 3 if smoke else 20)),
        model=model,
        objective=Progressive(),
        optimizer=AdamW(learning_rate=1e-4, betas=(0.9, 0.98), eps=1e-12, weight_decay=0.01, max_grad_norm=0.5),
        schedule=WarmupStableDecay(warmup=0.1),
        training=training,
        device="cpu" if smoke else "cuda",
    )


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured_limit(device: torch.device, size: int, trials: int = 10) -> float:
    """Operations per second of a product of two square matrices in bf16."""
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(trials):
        wait(device)
        began = time.perf_counter()
        torch.mm(one, other)
        wait(device)
        times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times)


def measured(recipe: Recipe, steps: int) -> dict[str, float]:
    """Steps after a few that warm up and compile: their median time, and what they did on average."""
    with World.connect(recipe.device) as world:
        trainer = Trainer(recipe, world)
        trainer.model.train()
        total, began = trainer.total_steps, time.perf_counter()
        for _ in range(4):  # with two turns the progressive loss draws two forms, each compiled when first met
            trainer.training_step(total)
        wait(world.device)
        warm, before, times = time.perf_counter() - began, replace(trainer.state), []
        for _ in range(steps):
            began = time.perf_counter()
            trainer.training_step(total)
            wait(world.device)
            times.append(time.perf_counter() - began)
        after, seconds = trainer.state, sum(times)
        trainer.save()  # raises where the loss is not finite
        return {
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "seconds_to_warm_up": round(warm, 1),
            "seconds_per_step": statistics.median(times),
            "real_tokens_per_second": (after.tokens - before.tokens) / seconds,
            "examples_per_second": (after.examples - before.examples) / seconds,
            "operations_per_second": (after.flops - before.flops) / seconds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU, not compiled")
    chosen = parser.parse_args()
    if not chosen.smoke and not torch.cuda.is_available():
        raise SystemExit(str(UserError("no CUDA device is visible; --smoke tries a tiny model on the CPU")))
    device = torch.device("cpu" if chosen.smoke else "cuda")
    name = "cpu" if chosen.smoke else torch.cuda.get_device_name(device)
    maker, limit = peak_flops(name, "bf16"), measured_limit(device, 256 if chosen.smoke else 8192)
    rows = []
    for compiled in (False,) if chosen.smoke else (False, True):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        found = measured(published(compiled=compiled, smoke=chosen.smoke), 2 if chosen.smoke else chosen.steps)
        speed = found["operations_per_second"]
        line = {
            "benchmark": "8 x 2, bf16",
            "smoke": chosen.smoke,
            "device": name,
            "torch": torch.__version__,
            "compiled": compiled,
            **{key: float(f"{value:.4g}") for key, value in found.items()},
            "share_of_stated_limit": None if maker is None else round(speed / maker, 3),
            "share_of_measured_product": round(speed / limit, 3),
            "gigabytes": round(torch.cuda.max_memory_allocated(device) / 2**30, 1) if device.type == "cuda" else None,
            "hours_to_the_published_budget": round(BUDGET / speed / 3600, 2),
        }
        print(json.dumps(line), flush=True)
        share = "not stated here" if maker is None else f"{speed / maker:.0%}"
        rows.append(
            f"| {name} | {'compiled' if compiled else 'as it is'} | {found['real_tokens_per_second']:,.0f} | "
            f"{format_flops(speed)}/s | {share} | {speed / limit:.0%} | {format_duration(BUDGET / speed)} |"
        )
    print("\n".join(rows))


if __name__ == "__main__":
    main()

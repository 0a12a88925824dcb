"""How quickly dual attention is trained on one CUDA device beside a transformer of the same width and depth.

    python benchmarks/gpu_dual_attention.py            # a CUDA device; a few minutes
    python benchmarks/gpu_dual_attention.py --smoke    # tiny models on the CPU: that this file works, no more
    python benchmarks/gpu.py --only dual-attention     # the same

One JSON line per width (128 and 512) and contender: 64 rows of 512 tokens in bf16 (weights in fp32), vocabulary 32,000,
forward, loss, backward and AdamW, no dropout, nothing compiled. The transformer has 8 heads, dual attention 4 + 4 with
symbolic attention, through each form that there is: `values` and `triton` for plain relations, `chunks` and `triton`
for relations through tanh. `times_as_long` is the step's to the transformer's; published runs took 4.5 to 6 times as
long by the clock, and the goal is 1.5 at most for the form that `auto` takes. Operations are counted by
`Model.operations` for forward, and twice that for backward.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from numerate.architectures.dual_attention import DualAttention
from numerate.batch import Tokens
from numerate.kernels.relational import Activation
from numerate.kernels.relational_fast import RelationalBackend
from numerate.published.dual_attention_models import corrected
from numerate.training.peak_flops import vendor_peak_flops
from numerate.vocabulary import Vocabulary

ROWS, TIME, WORDS, AT_MOST = 64, 512, 32_000, 1.5
CONTENDERS: dict[str, tuple[Activation, RelationalBackend] | None] = {
    "transformer": None,
    "auto": ("identity", "auto"),
    "values": ("identity", "values"),
    "triton": ("identity", "triton"),
    "tanh, auto": ("tanh", "auto"),
    "tanh, chunks": ("tanh", "chunks"),
    "tanh, triton": ("tanh", "triton"),
}


def built(contender: str, width: int, depth: int, time: int, words: int) -> Any:
    told = CONTENDERS[contender]
    heads: dict[str, Any] = {"self_heads": 8, "relational_heads": 0, "symbols": None}
    if told is not None:
        heads = {"relation_activation": told[0]}
    spec = corrected(hidden_size=width, num_layers=depth, dropout=0.0, context_length=time, **heads)
    if told is not None:
        assert isinstance(spec.mixer, DualAttention)
        spec = replace(spec, mixer=replace(spec.mixer, backend=told[1]))
    return spec.build(
        Vocabulary.with_digits([f"w{number}" for number in range(words - Vocabulary.with_digits([]).size)]), seed=0
    )


def seconds_of(model: Any, device: torch.device, rows: int, time_: int, words: int, steps: int) -> float:
    """The median step, of those behind the first three."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    ids = torch.randint(10, words, (rows, time_ + 1), generator=torch.Generator().manual_seed(0)).to(device)
    tokens = Tokens(ids[:, :-1], torch.full((rows,), time_, device=device), torch.arange(rows, device=device))
    times = []
    for _ in range(3 + steps):
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = cross_entropy(model(tokens).logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[3:])


def lines(device: torch.device, limit: float | None, steps: int, smoke: bool) -> Iterator[dict[str, object]]:
    """One record per width and contender; `limit` is the device's operations per second in dense bf16."""
    rows, time_, words = (2, 48, 64) if smoke else (ROWS, TIME, WORDS)
    for width in (16, 32) if smoke else (128, 512):
        alone = None
        for contender in CONTENDERS:
            if "triton" in contender and (device.type != "cuda" or find_spec("triton") is None):
                continue
            model = built(contender, width, 2 if smoke else 4, time_, words).to(device).train()
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            found = seconds_of(model, device, rows, time_, words, steps)
            alone = found if alone is None else alone
            speed = 3 * model.flops(rows, time_) / found
            line: dict[str, object] = {
                "benchmark": f"dual attention, width {width}, bf16",
                "smoke": smoke,
                "contender": contender,
                "parameters": sum(one.numel() for one in model.parameters()),
                "seconds": float(f"{found:.4g}"),
                "tokens_per_second": round(rows * time_ / found),
                "operations_per_second": float(f"{speed:.4g}"),
                "share_of_stated_limit": None if limit is None else round(speed / limit, 3),
                "times_as_long": round(found / alone, 2),
            }
            if contender == "auto":
                line["at_most"] = AT_MOST
            if device.type == "cuda":
                line["gigabytes"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--smoke", action="store_true", help="tiny models on the CPU")
    told = parser.parse_args()
    if not told.smoke and not torch.cuda.is_available():
        raise SystemExit("no CUDA device is visible; --smoke tries tiny models on the CPU")
    device = torch.device("cpu" if told.smoke else "cuda")
    maker = None if told.smoke else vendor_peak_flops(torch.cuda.get_device_name(device), "bf16")
    for line in lines(device, maker, 2 if told.smoke else told.steps, told.smoke):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

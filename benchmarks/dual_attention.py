"""How quickly dual attention is trained, on one core, beside the authors' own package at the same size.

    pip install --no-deps dual-attention==0.0.7; pip install einops tiktoken huggingface_hub
    python benchmarks/dual_attention.py [--repetitions 7] [--only symbolic-256]

One JSON line per setting and contender: forward, loss, backward and AdamW of 4 layers of width 128 with 4 + 4 heads
(the plain transformer: 8) and SwiGLU, vocabulary 256, no dropout, head tied to the embedding. Repetitions are
interleaved, back and forth, in one process; `ratio` is the median over repetitions of processor time. `memory` is how
many MB a forward and backward hold at most beyond a model that is warm: the high-water mark of a process of its own.

What bounds it: at 1,024 tokens a pair of tokens costs a relational head 16 products for the score and 80 for symbol and
relation keys; with backward 3.5 times as many, for 2 x 524,800 pairs, 4 heads and 4 layers 11 GFLOP, 0.15 s at
75 GFLOP/s. Linear maps are 6 x 2,048 tokens x 0.8 million weights: 10 GFLOP. The package writes down relations and
attention weights for all pairs, those that nobody sees included.

The plain transformer does the same products on both sides, 10 GFLOP of linear maps (80 ms at 125 GFLOP/s) and torch's
own attention (4 layers x 22 ms at 256 tokens, heads of 16): together about three quarters of the package's step. Were
everything else free, the ratio would be 1.3 to 1.4; what can be saved is rotary turns, gates and the small maps. 1.1
leaves ours a ninth of the step for all of it. Attention in chunks with saved weights takes twice as long as torch's;
gates in halves of one product (341 of 682 columns, not a multiple of a vector) take 1.4 ms a layer more than contiguous
ones, of which two products instead of one would have to be paid.

`generation-1` and `-8` draw 128 tokens behind one, for one row and for eight: width 256, 4 layers, 4 + 4 heads,
vocabulary 32,000, temperature 1; the package reads the whole row for each. A step of ours reads every weight once:
4 layers of 0.85 million and a head of 8.2 million, 46 MB. Row by row the head comes at 8 GB/s (4.2 ms; two rows 9.3),
column by column at 16 (2.1 ms; two rows 4.4), about what adding its numbers up takes (2.6 ms). The other weights take
1.8 ms either way. Copying the head takes 24 ms once.

`memory_share` is ours of the package's, of both `-512` settings at most a half.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.symbols import PositionRelativeSymbols, SymbolicAttention
from numerate.batch import Tokens
from numerate.evaluation.sampling import Sampling, generate
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.initialization import Normal
from numerate.positions.rotary import Rotary
from numerate.vocabulary import Vocabulary

WIDTH, DEPTH, WORDS = 128, 4, 256
WIDER, MORE_WORDS, SAID = 256, 32_000, 128
OURS, THEIRS = "numerate", "dual_attention"
SETTINGS = {
    "symbolic-256": (256, 8, 1.3),
    "symbolic-512": (512, 4, 1.3),
    "symbolic-1024": (1024, 2, 2.0),
    "relative-512": (512, 4, 3.0),
    "relative-1024": (1024, 2, 10.0),
    "plain-256": (256, 8, 1.1),
    "plain-1024": (1024, 2, 1.1),
}
"""Tokens of a row, rows, and how many times as quick ours should be."""
GENERATION = {"generation-1": (1, 5.0), "generation-8": (8, 5.0)}
"""Rows, and how many times as quick ours should be."""
HALF = ("symbolic-512", "relative-512")
"""Where ours should take half the memory at most."""


def ours(name: str, tokens: int, width: int = WIDTH, words: int = WORDS) -> Any:
    mixers = {
        "plain": Attention(num_heads=8),
        "symbolic": DualAttention(4, 4, SymbolicAttention(num_symbols=tokens)),
        "relative": DualAttention(4, 4, PositionRelativeSymbols(max_distance=tokens, future_distances=True)),
    }
    model = Decoder(
        hidden_size=width,
        backbone=Stack(num_layers=DEPTH),
        mixer=mixers[name],
        feed_forward=FeedForward("swiglu", expansion=(8 * width // 3) / width, bias=False),
        positions=(Rotary(),),
        tie_word_embeddings=True,
        initialization=Normal(),
    ).build(Vocabulary.with_digits([f"w{number}" for number in range(words - Vocabulary.with_digits([]).size)]), seed=0)

    class Ours(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor) -> Tensor:
            rows, time = ids.shape
            logits: Tensor = self.model(Tokens(ids, torch.full((rows,), time), torch.arange(rows))).logits
            return logits

    return Ours()


def theirs(name: str, tokens: int, width: int = WIDTH, words: int = WORDS) -> Any:
    from dual_attention.language_models import DualAttnTransformerLM, TransformerLM

    shared = {"vocab_size": words, "d_model": width, "n_layers": DEPTH, "dff": None, "dropout_rate": 0.0}
    shared |= {"activation": "swiglu", "norm_first": True, "max_block_size": tokens, "bias": False}
    shared |= {"pos_enc_type": "RoPE"}
    if name == "plain":
        model = TransformerLM(n_heads=8, **shared)
    else:
        retrieval = ("symbolic_attention", {"d_model": width, "n_symbols": tokens, "n_heads": 4})
        if name == "relative":
            retrieval = ("position_relative", {"symbol_dim": width, "max_rel_pos": tokens})
        model = DualAttnTransformerLM(
            n_heads_sa=4,
            n_heads_ra=4,
            symbol_retrieval=retrieval[0],
            symbol_retrieval_kwargs=retrieval[1],
            ra_kwargs={"n_relations": 4, "rel_activation": "identity", "use_relative_positional_symbols": True}
            if name == "relative"
            else {"n_relations": 4, "rel_activation": "identity"},
            **shared,
        )

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.model(ids, ids)[0]  # with targets, it gives the logits of all places
            return logits

    return Theirs()


def stepper(model: Any, ids: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def speaker(who: str, model: Any, rows: int) -> Callable[[], None]:
    """Draws 128 tokens behind one."""
    first = torch.full((rows, 1), 10)
    if who == THEIRS:
        return lambda: model.model.generate(first, SAID)
    prompts = Tokens(first, torch.ones(rows, dtype=torch.long), torch.arange(rows))

    def speak() -> None:
        assert generate(model.model, prompts, SAID, Sampling(), stop_ids=()).ids.shape[1] == SAID

    return speak


def measure(steps: dict[str, Callable[[], None]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of processor time of a step, in each repetition; all contenders in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for repetition in range(repetitions):
        for name in list(steps)[:: 1 if repetition % 2 == 0 else -1]:
            begun = time.process_time()
            steps[name]()
            seconds[name].append(time.process_time() - begun)
    return seconds


def ids_of(rows: int, tokens: int) -> Tensor:
    return torch.randint(10, WORDS, (rows, tokens + 1), generator=torch.Generator().manual_seed(0))


def memory(contender: str, setting: str) -> float:
    """MB that a forward and backward hold at most beyond the model, in a process of its own."""
    line = [sys.executable, __file__, "--memory-of", contender, "--only", setting]
    return float(subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()[-1])


def say_memory(contender: str, setting: str) -> None:
    tokens, rows, _ = SETTINGS[setting]
    model: Any = (ours if contender == OURS else theirs)(setting.split("-")[0], tokens)
    small = ids_of(1, 8)
    cross_entropy(model(small[:, :-1]).flatten(0, 1), small[:, 1:].flatten()).backward()
    before = highest()
    ids = ids_of(rows, tokens)
    cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    print((highest() - before) / 1e3)


def highest() -> int:
    """The most memory that this process has had so far, in kB. (That of `resource` begins with its parent's.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--only", choices=(*SETTINGS, *GENERATION))
    parser.add_argument("--memory-of", choices=(OURS, THEIRS), help=argparse.SUPPRESS)
    told = parser.parse_args()
    torch.set_num_threads(1)
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    if told.memory_of:
        say_memory(told.memory_of, told.only)
        return
    for setting in [told.only] if told.only else (*SETTINGS, *GENERATION):
        if setting in GENERATION:
            say_generation(setting, told.repetitions)
            continue
        tokens, rows, at_least = SETTINGS[setting]
        name, ids = setting.split("-")[0], ids_of(rows, tokens)
        makers = {OURS: ours, THEIRS: theirs} if find_spec(THEIRS) is not None else {OURS: ours}
        models: dict[str, Any] = {contender: make(name, tokens) for contender, make in makers.items()}
        seconds = measure({who: stepper(model, ids) for who, model in models.items()}, told.repetitions)
        held = {who: memory(who, setting) for who in models}
        for who in seconds:
            line: dict[str, object] = {
                "benchmark": f"training step, {setting} x {rows}",
                "contender": who,
                "weights": sum(one.numel() for one in models[who].parameters()),
                "seconds": round(statistics.median(seconds[who]), 3),
                "memory": round(held[who]),
            }
            if who == OURS and THEIRS in seconds:
                line |= compared(seconds, at_least) | {"memory_share": round(held[OURS] / held[THEIRS], 2)}
                line |= {"memory_at_most": 0.5} if setting in HALF else {}
            print(json.dumps(line), flush=True)


def say_generation(setting: str, repetitions: int) -> None:
    rows, at_least = GENERATION[setting]
    makers = {OURS: ours, THEIRS: theirs} if find_spec(THEIRS) is not None else {OURS: ours}
    models = {who: make("symbolic", 2 * SAID, WIDER, MORE_WORDS).eval() for who, make in makers.items()}
    seconds = measure({who: speaker(who, model, rows) for who, model in models.items()}, repetitions)
    for who, found in seconds.items():
        line: dict[str, object] = {
            "benchmark": f"{SAID} tokens, {setting}",
            "contender": who,
            "seconds": round(statistics.median(found), 3),
            "tokens_per_second": round(rows * SAID / statistics.median(found), 1),
        }
        line |= compared(seconds, at_least) if who == OURS and THEIRS in seconds else {}
        print(json.dumps(line), flush=True)


def compared(seconds: dict[str, list[float]], at_least: float) -> dict[str, object]:
    """How many times as quick ours is, by repetitions, and by the quickest one of each."""
    ratios = [other / own for own, other in zip(seconds[OURS], seconds[THEIRS], strict=True)]
    return {
        "against": THEIRS,
        "ratio": round(statistics.median(ratios), 2),
        "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        "ratio_of_quickest": round(min(seconds[THEIRS]) / min(seconds[OURS]), 2),
        "at_least": at_least,
    }


if __name__ == "__main__":
    main()

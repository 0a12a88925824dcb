"""How quickly a Mamba is trained, on one core, beside mambapy at the same size and the same weights.

    pip install --no-deps mambapy
    python benchmarks/mamba.py [--repetitions 7]

One JSON line per contender. A step is forward, loss, backward and AdamW (fused, on both sides; no clipping) of the
published counting model: 2 layers, width 128, RMSNorm, 103 words, head tied to the embedding (246,528 weights), on 32
rows of 128 tokens. mambapy 1.2.0 runs its parallel scan; without it only ours is measured. Both begin from the same
weights, and it is checked first that they say the same. Repetitions are interleaved, back and forth; `ratio` is the
median over repetitions of processor time, `ratio_by_the_wall` that of the clock on the wall.

What bounds it: a layer goes through 32 x 128 x 256 x 16 = 16.8 million states, 67 MB in float32, which never all stand
in memory. On one core of an EPYC 9004 an operation on 131,072 numbers at a time (one time of all rows) takes 0.07 to
0.15 ns a number, the exponential of 2 0.3 ns (that of e 0.83). Forward needs the exponent, its exponential, the decayed
state, the input and the product with C: 0.73 ns, 12 ms. Backward makes the states between those kept again and needs
eight operations more: 1.6 ns, 27 ms. That is 78 ms for both layers. Linear maps are 5.4 + 0.3 GFLOP at 85 GFLOP/s:
67 ms. Convolutions, gates, norms and their gradients go some 60 times through a million numbers: 15 to 25 ms a layer.
Together about 185 ms. On a machine that others were using the scans took 104 to 118 ms and a step 235 to 320 ms.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from numerate.architectures.mamba import Mamba, MambaMixer
from numerate.batch import Tokens
from numerate.models.decoder import Decoder, DecoderModel
from numerate.training.optimizer import AdamW
from numerate.vocabulary import Vocabulary

WIDTH, ROWS, TIME, WORDS = 128, 32, 128, 103
OURS, THEIRS, AT_LEAST = "numerate", "mambapy", 4.0


class Theirs(nn.Module):
    """mambapy's layers between an embedding and the head tied to it, with the weights of our model."""

    def __init__(self, ours: DecoderModel) -> None:
        super().__init__()
        from mambapy.mamba import Mamba as Layers
        from mambapy.mamba import MambaConfig, RMSNorm

        layers = [block.mixer for block in ours.modules() if hasattr(block, "mixer")]
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = Layers(MambaConfig(d_model=WIDTH, n_layers=len(layers)))
        self.norm = RMSNorm(WIDTH)
        with torch.no_grad():
            self.embedding.weight.copy_(ours.embedding.weight)
            for mixer, theirs in zip(layers, self.layers.layers, strict=True):
                assert isinstance(mixer, MambaMixer)
                theirs.mixer.load_state_dict(named_as_published(mixer), strict=True)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.norm(self.layers(self.embedding(ids))) @ self.embedding.weight.T
        return logits


def named_as_published(part: MambaMixer) -> dict[str, Tensor]:
    own = part.state_dict()
    return {
        "A_log": own["A_log"].T,
        "D": own["D"],
        "conv1d.weight": own["conv1d.weight"].T[:, None],
        "conv1d.bias": own["conv1d.bias"],
        "in_proj.weight": own["in_proj.weight"],
        "x_proj.weight": own["x_proj.weight"],
        "dt_proj.weight": own["dt_proj.weight"],
        "dt_proj.bias": own["dt_proj.bias"],
        "out_proj.weight": own["out_proj.weight"],
    }


def stepper(optimizer: torch.optim.Optimizer, logits: Callable[[], Tensor], targets: Tensor) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(logits().flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    return step


def measure(steps: dict[str, Callable[[], None]], repetitions: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of a step, of processor time and by the wall, in each repetition; all contenders in turn."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for repetition in range(repetitions):
        for name in list(steps)[:: 1 if repetition % 2 == 0 else -1]:
            processor, wall = time.process_time(), time.perf_counter()
            steps[name]()
            seconds[name].append((time.process_time() - processor, time.perf_counter() - wall))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    repetitions = parser.parse_args().repetitions
    torch.set_num_threads(1)
    vocabulary = Vocabulary.with_digits([f"w{number}" for number in range(WORDS - Vocabulary.with_digits([]).size)])
    spec = Decoder(hidden_size=WIDTH, norm="rms", feed_forward=None, tie_word_embeddings=True, mixer=Mamba())
    model = spec.build(vocabulary, seed=0)
    ids = torch.randint(1, WORDS, (ROWS, TIME + 1), generator=torch.Generator().manual_seed(0))
    targets = ids[:, 1:]
    tokens = Tokens(ids[:, :-1].contiguous(), torch.full((ROWS,), TIME), torch.arange(ROWS))
    optimizer = AdamW().build(model, model.optimizer_options_by_parameter())
    steps = {OURS: stepper(optimizer, lambda: model(tokens).logits, targets)}
    if find_spec("mambapy") is not None:
        theirs = Theirs(model)
        with torch.no_grad():
            torch.testing.assert_close(theirs(tokens.ids), model(tokens).logits, atol=1e-4, rtol=1e-4)
        adam = torch.optim.AdamW(theirs.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
        steps[THEIRS] = stepper(adam, lambda: theirs(tokens.ids), targets)
    seconds = measure(steps, repetitions)
    for name, found in seconds.items():
        line: dict[str, object] = {
            "benchmark": "training step of a Mamba",
            "contender": name,
            "weights": sum(parameter.numel() for parameter in model.parameters()),
            "seconds": round(statistics.median(one[0] for one in found), 3),
            "by_the_wall": round(statistics.median(one[1] for one in found), 3),
        }
        if name == OURS and THEIRS in seconds:
            pairs = list(zip(found, seconds[THEIRS], strict=True))
            ratios = [[other[clock] / own[clock] for own, other in pairs] for clock in (0, 1)]
            line |= {
                "against": THEIRS,
                "ratio": round(statistics.median(ratios[0]), 2),
                "spread": [round(min(ratios[0]), 2), round(max(ratios[0]), 2)],
                "ratio_by_the_wall": round(statistics.median(ratios[1]), 2),
                "at_least": AT_LEAST,
            }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

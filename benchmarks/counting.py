"""How quickly models learn to count, on one core, at real lengths and at the published fixed padding.

    python benchmarks/counting.py [--repetitions 9] [--only S4]

One JSON line per measurement. A step is forward, loss, backward, clipping and AdamW on 32 examples of a published task
(https://arxiv.org/abs/2405.20131): `counting_samesymbol_mod10`, rows of 1 to 50 symbols, and
`counting_samesymbol_shiftedstart3`, rows of 51 tokens, and `counting_selective_10items2bos`, rows of 2 to 51, all
padded to 128 as published. Models: the published LSTM and S4 (1 layer, width 128) and a transformer of 2 layers of
width 64.

- `real lengths`: the batches of `BatchStream`, grouped by length; the head at the places asked.
- `padded to 128`: the same module and the same examples in their order of drawing, each row padded to 128.
- `Cauchy, padded to 128`: S4 with the published kernel (`cauchy_kernel`, as a product of matrices, so quicker than the
  published sum) and an FFT convolution, with the same weights.

S4 has three claims: real lengths against the published path (`ratio_to_cauchy`), our form at 128 against it, and real
lengths against our own form at 128. On the shifted start the last cannot be 3: 128 tokens are 2.51 times 51, and nearly
all of a step is linear in them.

`ratio` is in examples per second, to the module `padded to 128` if nothing else is said in `against`; it is the median
over repetitions, in which the contenders take turns, back and forth. Time is the processor time of the process;
`ratio_by_the_wall` is there to compare. The lines on batches give the time in which a batch is made, and its `share`
of a step at real lengths, for windows of 64 batches and for the published recipes' windows of one.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import gelu, glu, pad

from numerate.architectures.s4 import S4, S4Mixer
from numerate.architectures.state_space import as_complex
from numerate.batch import IGNORE_INDEX, Batch, StepContext
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Context
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder, DecoderModel
from numerate.published.counting_names import presets
from numerate.tasks.task import Task
from numerate.tokenizers.layout import TokenClassification
from numerate.tokenizers.words import Words
from numerate.training.data_stream import BatchStream
from numerate.training.objective import Supervised
from numerate.training.optimizer import AdamW

ROWS, LONGEST, BATCHES, WINDOW = 32, 128, 32, 64
REAL, PADDED, CAUCHY = "real lengths", f"padded to {LONGEST}", f"Cauchy, padded to {LONGEST}"
TASKS = {
    "mod10": "counting_samesymbol_mod10",
    "shifted start": "counting_samesymbol_shiftedstart3",
    "ten items": "counting_selective_10items2bos",
}
MODELS = {
    "LSTM": Decoder(
        hidden_size=128,
        backbone=Stack(num_layers=1),
        mixer=LSTM(output_projection=False, initialization="torch"),
        feed_forward=None,
        norm="none",
        residual=False,
    ),
    "transformer": Decoder(
        hidden_size=64,
        backbone=Stack(num_layers=2),
        mixer=Attention(num_heads=4, bias=True),
        feed_forward=FeedForward("relu"),
    ),
    "S4": Decoder(
        hidden_size=128, backbone=Stack(num_layers=1), mixer=S4(dropout=0.1), feed_forward=None, final_norm=False
    ),
}
CLAIMS = {
    ("LSTM", "mod10"): 4.0,
    ("LSTM", "shifted start"): 2.0,
    ("transformer", "shifted start"): 2.5,
    ("S4", "mod10"): 3.0,
    ("S4", "shifted start"): 2.3,
}
"""How many times as quick as the same module padded to 128."""

SHARE = 0.02
"""What making a batch may take of a step."""

Step = Callable[[int], None]
"""Trains on the n-th batch."""


def made(spec: Decoder, task: Task, cauchy: bool = False) -> DecoderModel:
    """The model, in training; with the published kernel of S4 if asked."""
    model = spec.build(Words().build_vocabulary(task), seed=0).train()
    if cauchy:
        for part in model.modules():
            if isinstance(part, S4Mixer):
                object.__setattr__(part, "forward", by_cauchy(part))
    return model


def cauchy_kernel(eigenvalues: Tensor, P: Tensor, B: Tensor, truncated_C: Tensor, step: Tensor, time: int) -> Tensor:
    """The kernel as published, by Cauchy products at the roots of unity and an inverse FFT; `time` is even.

    Algorithm 1 of Gu et al. (2022); step sizes are one per channel, the others width x pairs. `truncated_C` is
    C (1 - M^time) with the matrix M of the recurrence (a row vector, one of each conjugate pair): at roots of unity the
    powers of M from `time` on fall upon the first ones. `S4` needs no folding and takes any length.
    """
    frequency_index = torch.arange(time // 2 + 1, device=step.device, dtype=step.dtype)
    z = torch.polar(torch.ones_like(frequency_index), -2 * torch.pi * frequency_index / time)
    half = (step / 2)[:, None, None] * (1 + z)
    all_eigenvalues = torch.cat([eigenvalues, eigenvalues.conj()], dim=1)
    resolvent = 1 / ((1 - z) - half * all_eigenvalues[:, :, None])
    p, b, c = (torch.cat([part, part.conj()], dim=1) for part in (P, B, truncated_C))
    cb, cp, pb, pp = (
        (left * right)[:, None] @ resolvent for left, right in ((c, b), (c, p), (p.conj(), b), (p.conj(), p))
    )
    spectrum = cb - cp * half * pb / (1 + half * pp)
    kernel: Tensor = torch.fft.irfft(step[:, None] * spectrum[:, 0], n=time)
    return kernel


def by_cauchy(part: S4Mixer) -> Callable[[Tensor, Context], Tensor]:
    """The layer's forward as published: generating function at roots of unity, inverse FFT, convolution by FFT."""

    def forward(x: Tensor, context: Context) -> Tensor:
        P, B, folded = map(as_complex, (part.P, part.B, part.C))
        eigenvalues, length = torch.complex(-part.log_A_real.exp(), part.A_imag), x.shape[1]
        kernel = cauchy_kernel(eigenvalues, P, B, folded, part.log_dt.exp(), length)
        signal = torch.fft.rfft(x.transpose(1, 2), n=2 * length)
        whole = torch.fft.irfft(signal * torch.fft.rfft(kernel, n=2 * length), n=2 * length)
        y = whole[..., :length].transpose(1, 2) + part.D * x
        out: Tensor = part._channel_dropout(glu(part.out_proj(part._channel_dropout(gelu(y)))))
        return out

    return forward


def stepping(model: DecoderModel, task: Task, batches: Sequence[Batch], asked_only: bool) -> Step:
    """A training step as the trainer takes it, without logging."""
    objective = Supervised(targets_only=asked_only).build(Words().build_vocabulary(task))
    optimizer = AdamW().build(model, model.optimizer_options_by_parameter())

    def step(number: int) -> None:
        batch, draw = batches[number % len(batches)], StepContext(0, number)
        optimizer.zero_grad(set_to_none=True)
        batch = replace(batch, tokens=model.assign_positions(batch.tokens, draw))
        terms, counts = objective(model, batch, draw), objective.counts(batch)
        sum((terms[term] / counts[term] for term in terms), torch.zeros(())).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def streamed(task: Task, window: int) -> BatchStream:
    return BatchStream(task, Words(), TokenClassification(), seed=0, batch_size=ROWS, window=window)


def grouped(task: Task) -> list[Batch]:
    """Batches as training gets them, from one window."""
    stream = streamed(task, BATCHES)
    return [stream.batch(number * ROWS) for number in range(BATCHES)]


def fixed(task: Task) -> list[Batch]:
    """The same examples in the order in which they are drawn, padded as published."""
    vocabulary = Words().build_vocabulary(task)
    rows = Words().encode_examples(task.examples("train", 0, 0, BATCHES * ROWS), vocabulary)
    batches = []
    for first in range(0, BATCHES * ROWS, ROWS):
        index = torch.arange(first, first + ROWS).numpy()
        batch = TokenClassification().build_batch(rows.take(index), index)
        more = (0, LONGEST - batch.tokens.ids.shape[1])
        batches.append(
            replace(
                batch,
                tokens=replace(batch.tokens, ids=pad(batch.tokens.ids, more)),
                targets=pad(batch.targets, more, value=IGNORE_INDEX),
            )
        )
    return batches


Speed = tuple[float, float]
"""Examples per second of processor time, and by the wall."""


def measure(steps: dict[str, Step], repetitions: int) -> dict[str, list[Speed]]:
    """The speed of each contender in each repetition; a repetition takes all of them, back and forth in turn."""
    speeds: dict[str, list[Speed]] = {name: [] for name in steps}
    for step in steps.values():
        for number in range(4):
            step(number)
    for repetition in range(repetitions):
        for name in list(steps)[:: 1 if repetition % 2 == 0 else -1]:
            processor, wall = time.process_time(), time.perf_counter()
            for number in range(BATCHES):
                steps[name](number)
            taken = time.process_time() - processor, time.perf_counter() - wall
            speeds[name].append((BATCHES * ROWS / taken[0], BATCHES * ROWS / taken[1]))
    return speeds


def middle(speeds: Sequence[Speed], clock: int = 0) -> float:
    return statistics.median(speed[clock] for speed in speeds)


def compared(own: Sequence[Speed], other: Sequence[Speed]) -> dict[str, object]:
    """The ratios of two contenders, and how far apart repetitions were."""
    ratios = [(mine[0] / theirs[0], mine[1] / theirs[1]) for mine, theirs in zip(own, other, strict=True)]
    spread = [round(edge(ratio for ratio, _ in ratios), 2) for edge in (min, max)]
    return {
        "ratio": round(middle(ratios), 2),
        "spread": spread,
        "ratio_by_the_wall": round(middle(ratios, 1), 2),
    }


def seconds_per_batch(task: Task, window: int = WINDOW) -> float:
    """The processor time in which a batch is made ready, over whole blocks of a task but the first."""
    stream, taken, many = streamed(task, window), [], max(WINDOW, task.block_size // ROWS)
    for block in range(6):
        start = time.process_time()
        for number in range(many):
            stream.batch((block * many + number) * ROWS)
        taken.append((time.process_time() - start) / many)
    return statistics.median(taken[1:])


def report(name: str, at: str, task: Task, repetitions: int) -> None:
    """The lines of a model on a task."""
    ours, padded = grouped(task), fixed(task)
    steps = {
        REAL: stepping(made(MODELS[name], task), task, ours, asked_only=True),
        PADDED: stepping(made(MODELS[name], task), task, padded, asked_only=False),
    }
    if name == "S4":
        steps[CAUCHY] = stepping(made(MODELS[name], task, cauchy=True), task, padded, asked_only=False)
    speeds = measure(steps, repetitions)
    for contender, found in speeds.items():
        line: dict[str, object] = {
            "benchmark": "counting step",
            "task": at,
            "model": name,
            "contender": contender,
            "examples_per_second": round(middle(found)),
            "by_the_wall": round(middle(found, 1)),
        }
        if contender == REAL:
            line |= compared(found, speeds[PADDED])
            line |= {"at_least": CLAIMS[name, at]} if (name, at) in CLAIMS else {}
            if CAUCHY in speeds:
                line |= {f"{key}_to_cauchy": value for key, value in compared(found, speeds[CAUCHY]).items()}
                line |= {"at_least_to_cauchy": 3.0}
        if contender == PADDED and CAUCHY in speeds:
            line |= {"against": CAUCHY, **compared(found, speeds[CAUCHY]), "at_least": 1.0}
        print(json.dumps(line), flush=True)
    for window in (WINDOW, 1):
        making = seconds_per_batch(task, window)
        line = {
            "benchmark": "counting batches",
            "task": at,
            "model": name,
            "window": window,
            "milliseconds_per_batch": round(1000 * making, 3),
            "share": round(making * middle(speeds[REAL]) / ROWS, 4),
            "at_most": SHARE,
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--only", choices=tuple(MODELS), help="one model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tasks = presets()
    for name in [given.only] if given.only else MODELS:
        for at, task in TASKS.items():
            report(name, at, tasks[task], given.repetitions)


if __name__ == "__main__":
    main()

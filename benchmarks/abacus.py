"""The published small Abacus model on one core: evaluation and training, against the published way of doing them.

    python benchmarks/abacus.py [--repetitions 5] [--only evaluation training memory] [--whole-grid]

One JSON line per measurement. The model is the published one at 2 layers x 1 turn, width 128, 4 heads, with Abacus
numbering; additions are reversed, one token per character. The published way stands below (`Published`, `decoded`,
`verdicts`, `PublishedStep`), written anew with plain tensor operations over the weights of our model:

- evaluation: the whole cell is one batch; for every token of the answer (as many as the widest right answer with its
  end has) the model reads the whole prefix again, with logits at every place; scores, mask and softmax of attention are
  written out. What follows the first [EOS] is padding, and a row is right if it then is the right row. It has no state
  noise to draw at each token, which the published one has.
- training: rows in random order, each padded to the 64 columns of 20 + 20 digits, logits at every place, the loss over
  all of them with those before the answer masked.

Both sides run in this process, in turn, back and forth; `ratio` is the median over repetitions of their processor
times, with the spread from the lowest to the highest, and `ratio_by_the_wall` that of the clock. A second line gives
the published way our fused attention: what is left is what it computes, not how.

Before anything is timed, both sides must agree: on the ids and logits, on which questions are right (by a model trained
for a few seconds, so that some are), and on the loss and gradient norm of a training step.

The published code itself was measured elsewhere, on an idle core: 91 sums/s at 20 + 20 digits and 3.1 at 100 + 100,
19,300 real tokens/s in training.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, pad, scaled_dot_product_attention

from numerate.batch import IGNORE_INDEX, Batch, StepContext
from numerate.config import Span
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts
from numerate.evaluation.evaluator import evaluate_cell
from numerate.evaluation.exact_match import predict
from numerate.mixers.attention import Attention
from numerate.models.backbone import Loop
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder, DecoderModel
from numerate.models.initialization import DeepNorm
from numerate.positions.added import Learned
from numerate.positions.position_ids import DigitIndex
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation
from numerate.training.distributed import World
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Constant
from numerate.training.trainer import Trainer
from numerate.vocabulary import EOS, PAD

WIDTH, LAYERS, HEADS, HIDDEN, EPSILON = 128, 2, 4, 128, 1e-12
TABLE, MOST_OFFSET = 512, 100
QUESTIONS, ROWS, BATCHES = 100, 64, 16
AT_LEAST = {"20+20": 15.0, "100+100": 70.0, "training": 2.0}
AT_MOST_MEGABYTES = 2000
FIRST_DIGIT, LAST_DIGIT = 4, 13
"""The ids of the ten digits, in the published vocabulary and in ours."""


def small_model() -> Decoder:
    """The published model, 2 layers x 1 turn at width 128."""
    feed_forward = FeedForward("geglu", expansion=HIDDEN / WIDTH, bias=False)
    return Decoder(
        hidden_size=WIDTH,
        backbone=Loop(num_layers=LAYERS, num_loops=1, input_injection="add"),
        mixer=Attention(num_heads=HEADS),
        feed_forward=feed_forward,
        positions=(Learned(position_ids=DigitIndex(max_offset=MOST_OFFSET), max_position_embeddings=TABLE),),
        norm_first=False,
        norm_eps=EPSILON,
        embedding_norm=True,
        head_feed_forward=feed_forward,
        final_norm=True,
        head_projection=True,
        initialization=DeepNorm(),
    )


def recipe(digits: int, *, rate: float = 1e-3) -> Recipe:
    """Additions of 1 to so many digits, trained as the published code does, in batches of 64."""
    return Recipe(
        task=Arithmetic(operator="+", digits=Span(1, digits)),
        model=small_model(),
        optimizer=AdamW(learning_rate=rate, betas=(0.9, 0.98), eps=1e-12, weight_decay=0.01, max_grad_norm=0.5),
        schedule=Constant(warmup=20),
        training=Training(steps=10**9, batch_size=ROWS, shuffle_window=BATCHES, threads=1),
        device="cpu",
    )


# The published way ---------------------------------------------------------------------------------------------------


def abacus_ids(ids: Tensor) -> Tensor:
    """1, 2, 3, ... within each run of digits, 0 at all other tokens.

    >>> abacus_ids(torch.tensor([[5, 6, 14, 7, 17, 8, 6, 3, 0]])).tolist()
    [[1, 2, 0, 1, 0, 1, 2, 0, 0]]
    """
    digit = (ids >= FIRST_DIGIT) & (ids <= LAST_DIGIT)
    other = (~digit).long().cumsum(1)  # digits of one run have passed the same number of other tokens
    passed = torch.zeros(len(ids), ids.shape[1] + 1, dtype=torch.long).scatter_add(1, other, digit.long()).cumsum(1)
    before = pad(passed, (1, 0)).gather(1, other)
    return torch.where(digit, digit.long().cumsum(1) - before, 0)


class Published(nn.Module):
    """The published model over the weights of ours: every operation written out, logits at every place."""

    def __init__(self, model: DecoderModel, *, fused: bool = False) -> None:
        super().__init__()
        self.model, self.fused = model, fused

    def forward(self, ids: Tensor, offset: int = 0) -> Tensor:
        model, numbers = self.model, abacus_ids(ids)
        table = model.input_positions["0"].embedding.weight
        x = model.embedding(ids) + table[torch.where(numbers > 0, numbers + offset, 0)]
        embedded = _norm(x, model.embedding_norm)
        x = torch.zeros_like(embedded) + embedded
        mask = torch.full((ids.shape[1], ids.shape[1]), -10000.0).triu(1)
        for block in model.backbone.blocks:
            x = _norm(x + self._attention(x, block.mixer, mask), block.mixer_norm)
            x = _norm(x + _gated(x, block.feed_forward), block.feed_forward_norm)
        x = _norm(_gated(x, model.head_feed_forward), model.final_norm)
        return linear(linear(x, model.head_projection.weight), model.head.weight)

    def _attention(self, x: Tensor, mixer: nn.Module, mask: Tensor) -> Tensor:
        rows, length, width = x.shape
        every = linear(x, mixer.qkv_proj.weight).view(rows, length, 3, HEADS, width // HEADS)
        queries, keys, values = every.permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            scores = torch.matmul(queries, keys.transpose(2, 3)) * (width // HEADS) ** -0.5
            mixed = torch.matmul(torch.softmax(scores + mask, dim=-1), values)
        return linear(mixed.transpose(1, 2).reshape(rows, length, width), mixer.out_proj.weight)


def _norm(x: Tensor, norm: nn.Module) -> Tensor:
    return layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, EPSILON)


def _gated(x: Tensor, part: nn.Module) -> Tensor:
    gate, value = linear(x, part.in_proj.weight).chunk(2, dim=-1)
    return linear(gelu(gate) * value, part.out_proj.weight)


@torch.no_grad()
def decoded(model: Published, prompts: Tensor, width: int) -> Tensor:
    """So many tokens behind prompts of equal length, the whole prefix read again for each."""
    ids = prompts
    for _ in range(width):
        ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids[:, prompts.shape[1] :]


def verdicts(said: Tensor, gold: Tensor) -> Tensor:
    """Whether each row is the right one; what follows the first [EOS] that is said is padding."""
    ended = (said == EOS).long().cumsum(1) - (said == EOS).long() > 0
    return (torch.where(ended, PAD, said) == gold).all(1)


def padded_rows(batch: Batch, width: int) -> tuple[Tensor, Tensor]:
    """Ids and targets in so many columns."""
    more = width - batch.tokens.ids.shape[1]
    return pad(batch.tokens.ids, (0, more), value=PAD), pad(batch.targets, (0, more), value=IGNORE_INDEX)


def columns(digits: int) -> int:
    """The columns of a row of so many digits each: two operands, two signs, the sum, [EOS]; 64 for 20 + 20."""
    return 3 * digits + 4


class PublishedStep:
    """A training step of the published form: padded rows in random order, every place, one offset per batch."""

    def __init__(self, chosen: Recipe, *, fused: bool = False) -> None:
        vocabulary = chosen.tokenizer.build_vocabulary(chosen.task)
        own = chosen.model.build(vocabulary, chosen.seed)
        assert isinstance(own, DecoderModel)
        self.model = Published(own, fused=fused).train()
        self.optimizer = chosen.optimizer.build(own, own.optimizer_options_by_parameter())
        rows = chosen.tokenizer.encode_examples(chosen.task.examples("train", 0, 0, BATCHES * ROWS), vocabulary)
        order = np.random.default_rng(0).permutation(BATCHES * ROWS).reshape(BATCHES, ROWS)
        made = [Continuation().build_batch(rows.take(places), places) for places in order]
        width = columns(chosen.task.digits.high)  # type: ignore[attr-defined]
        self.batches = [(*padded_rows(batch, width), batch.num_input_tokens) for batch in made]
        self.offsets = np.random.default_rng(1)
        self.clip = chosen.optimizer.max_grad_norm

    def loss(self, ids: Tensor, targets: Tensor, offset: int) -> Tensor:
        return cross_entropy(self.model(ids, offset).flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX)

    def __call__(self, number: int) -> int:
        ids, targets, real = self.batches[number % BATCHES]
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(ids, targets, int(self.offsets.integers(0, MOST_OFFSET + 1))).backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return real


# Both sides agree ----------------------------------------------------------------------------------------------------


def exam_of(digits: int) -> EvaluationData:
    chosen = recipe(digits)
    return EvaluationData(chosen.task, chosen.tokenizer, chosen.layout)


def questions(digits: int, count: int = QUESTIONS) -> Batch:
    """A cell: questions of as many digits in both operands."""
    exam = exam_of(100)
    return exam.batch(exam.task.at_cell(first_digits=digits, second_digits=digits).examples("test", 0, 0, count))


def both(model: DecoderModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Which rows of a cell are right, by us and the published way."""
    prompts, width = extract_prompts(batch)
    gold = torch.where(batch.target_ids == IGNORE_INDEX, PAD, batch.target_ids)
    ours = predict(model, exam_of(100), batch).match_counts.correct
    return ours, verdicts(decoded(Published(model), prompts.ids, width), gold)


def briefly_trained(steps: int, digits: int = 2) -> DecoderModel:
    """The small model after a few seconds with additions of one and two digits."""
    trainer = Trainer(recipe(digits, rate=2e-3), World.join("cpu"))
    trainer.model.train()
    for _ in range(steps):
        trainer.training_step(steps)
    assert isinstance(trainer.model, DecoderModel)
    return trainer.model.eval()


@torch.no_grad()
def assert_agreement(model: DecoderModel) -> dict[str, object]:
    """Logits, verdicts and a training step of both sides; what was right of how many, where it was not all or none."""
    batch = questions(20)
    assert columns(20) == 64
    assert batch.tokens.ids.shape[1] <= 63, "a row without its last token fits the published columns"
    ours = model.assign_positions(batch.tokens, StepContext.for_evaluation()).position_ids
    assert ours is not None
    assert torch.equal(ours[0], abacus_ids(batch.tokens.ids))
    for fused in (False, True):
        torch.testing.assert_close(
            Published(model, fused=fused)(batch.tokens.ids), model(batch.tokens).logits, rtol=1e-3, atol=1e-3
        )
    told: dict[str, object] = {"benchmark": "agreement"}
    for digits in (1, 2, 3, 20, 100):
        one, other = both(model, questions(digits, QUESTIONS if digits < 100 else 10))
        assert torch.equal(one, other), f"{digits} + {digits}: the two ways disagree on {int((one != other).sum())}"
        told[f"{digits}+{digits} right"] = f"{int(one.sum())} of {len(one)}"
    told["step"] = _steps_agree()
    return told


@torch.enable_grad()
def _steps_agree() -> dict[str, float]:
    """The loss and gradient norm of a first step on the same examples: by the trainer's parts, and padded."""
    chosen = recipe(20)
    trainer, theirs = Trainer(chosen, World.join("cpu")), PublishedStep(chosen)
    batch, draw = trainer.stream.batch(0), StepContext.for_evaluation()
    placed = replace(batch, tokens=trainer.model.assign_positions(batch.tokens, draw))
    (term,) = trainer.objective(trainer.model, placed, draw).values()
    ours = term / batch.counts["tokens"]
    ours.backward()
    own_norm = nn.utils.get_total_norm([p.grad for p in trainer.model.parameters() if p.grad is not None])
    other = theirs.loss(*padded_rows(batch, columns(20)), 0)
    other.backward()
    norm = nn.utils.get_total_norm([p.grad for p in theirs.model.parameters() if p.grad is not None])
    torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own_norm, norm, rtol=1e-3, atol=1e-4)
    return {"loss": round(ours.item(), 5), "grad_norm": round(own_norm.item(), 5)}


# Measuring -----------------------------------------------------------------------------------------------------------

Work = Callable[[], float]
"""Does something once, and returns how much it did."""


def measured(
    works: dict[str, Work], repetitions: int, *, warm: bool = True
) -> dict[str, list[tuple[float, float, float]]]:
    """Amount, processor seconds and seconds by the wall, per work and repetition: in turn, back and forth."""
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in works}
    if warm:
        for work in works.values():
            work()
    for repetition in range(repetitions):
        for name in list(works)[:: 1 if repetition % 2 == 0 else -1]:
            processor, wall = time.process_time(), time.perf_counter()
            amount = works[name]()
            taken[name].append((amount, time.process_time() - processor, time.perf_counter() - wall))
    return taken


def report(
    what: str, unit: str, works: dict[str, Work], repetitions: int, at_least: float, *, warm: bool = True
) -> None:
    """One line per contender; `ratio` is how many times as fast as it ours is. The first is ours."""
    taken = measured(works, repetitions, warm=warm)
    ours = next(iter(works))
    for number, (name, found) in enumerate(taken.items()):
        line: dict[str, object] = {
            "benchmark": what,
            "contender": name,
            f"{unit}_per_second": _rounded(statistics.median(amount / processor for amount, processor, _ in found)),
            "processor_seconds": _rounded(statistics.median(processor for _, processor, _ in found)),
        }
        if number:
            by_processor, by_wall = (
                [
                    (own[0] / own[clock]) / (other[0] / other[clock])
                    for own, other in zip(taken[ours], found, strict=True)
                ]
                for clock in (1, 2)
            )
            line |= {
                "ratio": round(statistics.median(by_processor), 2),
                "spread": [round(min(by_processor), 2), round(max(by_processor), 2)],
                "ratio_by_the_wall": round(statistics.median(by_wall), 2),
            }
        if number == 1:
            line |= {"at_least": at_least, "reached": statistics.median(by_processor) >= at_least}
        print(json.dumps(line), flush=True)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def evaluation(model: DecoderModel, repetitions: int) -> None:
    exam = exam_of(100)
    for digits in (20, 100):
        batch = questions(digits)
        prompts, width = extract_prompts(batch)

        def ours(batch: Batch = batch) -> float:
            predict(model, exam, batch)
            return QUESTIONS

        def theirs(fused: bool, ids: Tensor = prompts.ids, width: int = width) -> float:
            decoded(Published(model, fused=fused), ids, width)
            return QUESTIONS

        works = {
            "numerate": ours,
            "published way": lambda theirs=theirs: theirs(False),
            "published way, our attention": lambda theirs=theirs: theirs(True),
        }
        name, short = f"{digits}+{digits}", digits == 20
        ours()  # half a minute of the published way at 100 + 100 is warm by itself
        rounds = repetitions if short else min(repetitions, 3)
        report(f"evaluation {name}", "sums", works, rounds, AT_LEAST[name], warm=short)


def training(repetitions: int) -> None:
    chosen = recipe(20)
    trainer = Trainer(chosen, World.join("cpu"))
    trainer.model.train()

    def ours() -> float:
        """A window: a spread of lengths. Data are drawn, and all is done that a run does between two log lines."""
        before = trainer.state.tokens
        for _ in range(BATCHES):
            trainer.training_step(10**9)
        return trainer.state.tokens - before

    def theirs(step: PublishedStep) -> Work:
        return lambda: sum(step(number) for number in range(BATCHES))

    works = {
        "numerate": ours,
        "published way": theirs(PublishedStep(chosen)),
        "published way, our attention": theirs(PublishedStep(chosen, fused=True)),
    }
    report("training", "real_tokens", works, repetitions, AT_LEAST["training"])


# Memory --------------------------------------------------------------------------------------------------------------


def cells(whole: bool) -> Sequence[tuple[int, int]]:
    """All cells of the grid, or those of every tenth length and the last rows and columns."""
    lengths = range(1, 101) if whole else [1, *range(10, 100, 10), 98, 99, 100]
    return [(first, second) for first in lengths for second in lengths]


def peak_of_the_grid(whole: bool) -> dict[str, object]:
    """Evaluates the 100 x 100 grid and tells the largest resident size of this process."""
    exam, began = exam_of(100), time.process_time()
    model = small_model().build(exam.vocabulary, seed=0).eval()
    every = cells(whole)
    for first, second in every:
        evaluate_cell(model, exam, {"first_digits": first, "second_digits": second}, count=QUESTIONS)
    return {
        "benchmark": "memory of the 100 x 100 grid",
        "cells": len(every),
        "questions_per_cell": QUESTIONS,
        "processor_seconds": _rounded(time.process_time() - began),
        "megabytes": round(largest_megabytes()),
    }


def largest_megabytes() -> float:
    """The largest resident size of this process. (On Linux `ru_maxrss` begins at that of the parent process.)"""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def memory(whole: bool) -> None:
    words = [sys.executable, os.path.abspath(__file__), "--peak", *(["--whole-grid"] if whole else [])]
    line = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
    print(json.dumps({**line, "at_most": AT_MOST_MEGABYTES, "reached": line["megabytes"] < AT_MOST_MEGABYTES}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=["evaluation", "training", "memory"])
    parser.add_argument("--whole-grid", action="store_true", help="memory of all 10,000 cells: half an hour")
    parser.add_argument("--steps", type=int, default=300, help="of the brief training before the comparison")
    parser.add_argument("--peak", action="store_true", help="print only the memory of this process")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.peak:
        print(json.dumps(peak_of_the_grid(chosen.whole_grid)))
        return
    wanted = chosen.only or ["evaluation", "training", "memory"]
    model = briefly_trained(chosen.steps)
    print(json.dumps(assert_agreement(model)), flush=True)
    if "evaluation" in wanted:
        evaluation(model, chosen.repetitions)
    if "training" in wanted:
        training(chosen.repetitions)
    if "memory" in wanted:
        memory(chosen.whole_grid)


if __name__ == "__main__":
    main()

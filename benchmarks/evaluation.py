"""How quickly exact match is measured on one core, and in how much memory: one forward against decoding.

    pip install x-transformers
    python benchmarks/evaluation.py [--repetitions 5] [--digits 20 100]

One JSON line per measurement. A decoder with 2 layers, width 128, 4 heads and rotary positions scores additions of
20 + 20 and of 100 + 100 digits. Its weights are as initialised, and decoding goes on to the length of the right answer,
as it would for a trained model: what is measured does not depend on what is said. The contenders:

- `one pass`: `mark`, which every evaluation of the package goes through.
- `cached`: `greedy`, token by token with keys and values kept.
- `uncached`: the whole prefix is read again for every token, at all places. `uncached, last place only` is the same
  with the last layer computed only where the next token is read off: as little as can be done without a cache.
- `x-transformers cached` and `uncached`: `AutoregressiveWrapper.generate` at the same size, with attn_flash.

`ratio` is how many times the time of one pass a contender takes: the median over interleaved repetitions, of processor
time, which other programs disturb less than the clock on the wall. `megabytes` is what a contender adds to the largest
resident size of a process of its own that has scored one question before, beside what it held already.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from numerate.batch import Batch, StepContext
from numerate.config import Span
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts
from numerate.evaluation.exact_match import predict
from numerate.evaluation.generate import greedy_decode
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder, DecoderModel
from numerate.positions.rotary import Rotary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters

WIDTH, LAYERS, HEADS = 128, 2, 4
QUESTIONS = {20: 100, 100: 20}
AT_LEAST = {(20, "uncached"): 15.0, (100, "uncached"): 70.0, (20, "cached"): 1.0, (100, "cached"): 1.0}
NEVER = -1
"""An end token that is never said, so that all decode to the same length."""

Score = Callable[[], object]


def exam_and_model() -> tuple[EvaluationData, DecoderModel]:
    exam = EvaluationData(Arithmetic(digits=Span(1, 100)), Characters(), Continuation())
    spec = Decoder(
        hidden_size=WIDTH, backbone=Stack(num_layers=LAYERS), mixer=Attention(num_heads=HEADS), positions=(Rotary(),)
    )
    return exam, spec.build(exam.vocabulary, seed=0).eval()


def questions(exam: EvaluationData, digits: int, count: int) -> Batch:
    task = exam.task.at_cell(first_digits=digits, second_digits=digits)
    return exam.batch(task.examples("test", 0, 0, count))


def one_pass(batch: Batch) -> Score:
    exam, model = exam_and_model()
    return lambda: predict(model, exam, batch).match_counts


def cached(batch: Batch) -> Score:
    _, model = exam_and_model()
    prompts, most = extract_prompts(batch)
    return lambda: greedy_decode(model, prompts, most, end_id=NEVER)


def uncached(batch: Batch, last_place_only: bool = False) -> Score:
    _, model = exam_and_model()
    prompts, most = extract_prompts(batch)
    rows = torch.arange(len(prompts.ids))

    @torch.no_grad()
    def score() -> object:
        tokens = prompts
        for _ in range(most):
            read, last = model.assign_positions(tokens, StepContext.for_evaluation()), tokens.lengths - 1
            if last_place_only:
                chosen = model(read, target_positions=last[:, None]).logits[:, 0].argmax(-1)
            else:
                chosen = model(read).logits[rows, last].argmax(-1)
            tokens = tokens.append(chosen)
        return tokens

    return score


def theirs(batch: Batch, cache: bool) -> Score:
    from x_transformers import AutoregressiveWrapper, TransformerWrapper
    from x_transformers import Decoder as TheirDecoder

    torch.manual_seed(0)
    layers = TheirDecoder(
        dim=WIDTH,
        depth=LAYERS,
        heads=HEADS,
        attn_dim_head=WIDTH // HEADS,
        attn_flash=True,
        rotary_pos_emb=True,
        rotary_emb_dim=WIDTH // HEADS,
    )
    size = exam_and_model()[0].vocabulary.size
    model = TransformerWrapper(num_tokens=size, max_seq_len=512, attn_layers=layers, use_abs_pos_emb=False)
    writer = AutoregressiveWrapper(model).eval()
    prompts, most = extract_prompts(batch)
    return lambda: writer.generate(prompts.ids, most, temperature=0.0, cache_kv=cache)


CONTENDERS: dict[str, Callable[[Batch], Score]] = {
    "one pass": one_pass,
    "cached": cached,
    "uncached": uncached,
    "uncached, last place only": lambda batch: uncached(batch, last_place_only=True),
    "x-transformers cached": lambda batch: theirs(batch, True),
    "x-transformers uncached": lambda batch: theirs(batch, False),
}


def times(batch: Batch, repetitions: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of processor time and by the wall, per contender and repetition."""
    scores = {name: make(batch) for name, make in CONTENDERS.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in scores}
    for score in scores.values():
        score()
    for repetition in range(repetitions):
        for name in list(scores)[:: 1 if repetition % 2 == 0 else -1]:
            processor, wall = time.process_time(), time.perf_counter()
            scores[name]()
            taken[name].append((time.process_time() - processor, time.perf_counter() - wall))
    return taken


def megabytes(name: str, digits: int) -> float:
    """What a contender adds to the largest resident size of a process of its own."""
    command = [sys.executable, os.path.abspath(__file__), "--memory", name, "--digits", str(digits)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def added_megabytes(name: str, digits: int) -> float:
    exam, _ = exam_and_model()
    CONTENDERS[name](questions(exam, 2, 1))()
    score = CONTENDERS[name](questions(exam, digits, QUESTIONS[digits]))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the largest size so far is forgotten
    before = largest_megabytes()
    score()
    return largest_megabytes() - before


def largest_megabytes() -> float:
    """The largest resident size of this process. (On Linux `ru_maxrss` begins at that of the parent process.)"""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--digits", type=int, nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--memory", choices=list(CONTENDERS), help="print only what this contender adds in memory; MB")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.memory:
        print(round(added_megabytes(chosen.memory, chosen.digits[0]), 1))
        return
    for digits in chosen.digits:
        exam, _ = exam_and_model()
        taken = times(questions(exam, digits, QUESTIONS[digits]), chosen.repetitions)
        for name, found in taken.items():
            ratios = [(own[0] / one[0], own[1] / one[1]) for own, one in zip(found, taken["one pass"], strict=True)]
            line: dict[str, object] = {
                "benchmark": "exact match",
                "digits": f"{digits}+{digits}",
                "questions": QUESTIONS[digits],
                "contender": name,
                "seconds": round(statistics.median(processor for processor, _ in found), 4),
                "ratio": round(statistics.median(processor for processor, _ in ratios), 2),
                "ratio_by_the_wall": round(statistics.median(wall for _, wall in ratios), 2),
                "megabytes": megabytes(name, digits),
            }
            if (digits, name) in AT_LEAST:
                line["at_least"] = AT_LEAST[digits, name]
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

"""Cross-entropy with a number token loss beside cross-entropy alone: time of forward and backward, and peak memory.

    python benchmarks/number_loss.py [--repetitions 7] [--device cuda] [--vocabulary 128256]
    pip install --no-deps ntloss==0.3.2    # the public package, measured too where it is installed

Logits of 32 x 64 places and 32,128 tokens (T5's), 10 % of the labels digits. One JSON line per contender; `ratio` is
its time over that of `torch.nn.functional.cross_entropy` alone, both forward and backward to the logits, measured in
turn in one process on one core (processor time; on a GPU, the time between two waits for it). With the head, width 512,
hidden states and weights get gradients too, and `megabytes` is how much a process of its own grows from its inputs to
its peak; `ratio` is that over torch's cross-entropy of a linear map.

What bounds it, on one core of an EPYC: the logits are 263 MB in float32, read once (263 MB); their gradient is written
into fresh pages (263 MB; to ask the system for them and to fill them with zeros is 0.26 of the time of torch's
cross-entropy), and multiplied once by what came in (263 MB read and written). In between, a row of 128 kB stays in the
core's cache for the passes of a softmax: 66 million exponentials. A softmax into a fresh buffer and a multiplication of
it take 0.37 to 0.39 of torch's cross-entropy by themselves, so that is the floor of this design. Keeping no softmax and
working the exponentials out again in the backward was 0.63. torch's own cross-entropy asks for three such buffers.

The head adds three products of 67 GFLOP each on both sides. What is saved there is the buffers: a chunk of 261 rows and
the gradient of the head are held instead of three times the logits; reweighed, two gradients of the head.
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
from torch.nn.functional import cross_entropy, linear

from numerate.kernels.fused_head_number_loss import linear_cross_entropy_and_number_loss
from numerate.kernels.fused_number_loss import cross_entropy_and_number_loss
from numerate.kernels.number_loss import LossSums, NumberDistance, reference_loss_sums
from numerate.kernels.number_table import NumberTokenTable

ROWS, TIME, VOCABULARY, WIDTH, SHARE, WEIGHT = 32, 64, 32_128, 512, 0.1, 0.3
FIRST = 100
"""The id of the digit 0; the others follow."""

AT_MOST = {"was": 0.55, "mse": 0.55, "mae": 0.55, "huber": 0.55, "was reweighed": 0.6, "head, was": 1.0}
AT_MOST_MEMORY = 1 / 6

Work = Callable[[], None]


class Inputs:
    """Hidden states, a head, logits and labels, all random."""

    def __init__(self, device: str, vocabulary: int, dtype: torch.dtype, with_logits: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(FIRST + 10, vocabulary, (ROWS, TIME), generator=generator)
        digit = torch.rand(ROWS, TIME, generator=generator) < SHARE
        digits = torch.randint(FIRST, FIRST + 10, (ROWS, TIME), generator=generator)
        self.labels = torch.where(digit, digits, self.labels).to(device)
        self.table = NumberTokenTable.from_values({FIRST + i: float(i) for i in range(10)}, vocabulary).to(device)
        shapes = {"hidden": (ROWS, TIME, WIDTH), "weight": (vocabulary, WIDTH), "logits": (ROWS, TIME, vocabulary)}
        if not with_logits:
            del shapes["logits"]
        scales = {"hidden": 1.0, "weight": WIDTH**-0.5, "logits": 1.0}
        self.leaves = {
            name: (scales[name] * torch.randn(shape, generator=generator)).to(device, dtype).requires_grad_()
            for name, shape in shapes.items()
        }

    def clear(self) -> None:
        for leaf in self.leaves.values():
            leaf.grad = None

    def backward(self, sums: LossSums) -> None:
        (sums.cross_entropy / sums.num_labels + WEIGHT * sums.number_loss / sums.total_number_weight).backward()

    def alone(self, logits: Tensor) -> None:
        cross_entropy(logits.flatten(0, 1), self.labels.flatten()).backward()

    def logits(self) -> Tensor:
        return linear(self.leaves["hidden"], self.leaves["weight"])

    def head_fused(self, **settings: Any) -> None:
        leaves = self.leaves
        self.backward(
            linear_cross_entropy_and_number_loss(
                leaves["hidden"], leaves["weight"], self.labels, self.table, **settings
            )
        )


def contenders(inputs: Inputs) -> dict[str, Work]:
    """From logits: torch's cross-entropy first."""
    logits, labels, table = inputs.leaves["logits"], inputs.labels, inputs.table

    def fused(**settings: Any) -> Work:
        return lambda: inputs.backward(cross_entropy_and_number_loss(logits, labels, table, **settings))

    works: dict[str, Work] = {"cross_entropy": lambda: inputs.alone(logits)}
    works |= {name: fused(loss_function=name) for name in ("was", "mse", "mae", "huber", "was-cdf")}
    works["was reweighed"] = fused(loss_function="was", reweigh=True)
    works["was, written plainly"] = lambda: inputs.backward(
        reference_loss_sums(logits, labels, table, NumberDistance())
    )
    if find_spec("ntloss") is not None:
        works |= published(inputs, logits)
    return works


def published(inputs: Inputs, logits: Tensor) -> dict[str, Work]:
    """The package ntloss beside torch's cross-entropy."""
    import ntloss

    class Tokenizer:
        """What ntloss asks of one."""

        def get_vocab(self) -> dict[str, int]:
            return {str(i): FIRST + i for i in range(10)}

        def __len__(self) -> int:
            return logits.shape[-1]

        def add_tokens(self, tokens: Any) -> int:
            return 0

    found: dict[str, Work] = {}
    for reweigh in (False, True):
        theirs = ntloss.NTLoss(Tokenizer(), logits.shape[-1], reweigh=reweigh)

        def work(theirs: Any = theirs) -> None:
            loss = cross_entropy(logits.flatten(0, 1), inputs.labels.flatten()) + WEIGHT * theirs(logits, inputs.labels)
            loss.backward()

        found["ntloss reweighed" if reweigh else "ntloss"] = work
    return found


def with_head(inputs: Inputs) -> dict[str, Work]:
    """From hidden states: torch's cross-entropy of a linear map first."""
    return {
        "head, cross_entropy": lambda: inputs.alone(inputs.logits()),
        "head, was": inputs.head_fused,
        "head, was reweighed": lambda: inputs.head_fused(reweigh=True),
        "head, was, written plainly": lambda: inputs.backward(
            reference_loss_sums(inputs.logits(), inputs.labels, inputs.table, NumberDistance())
        ),
    }


def measured(works: dict[str, Work], inputs: Inputs, repetitions: int, device: str) -> dict[str, list[float]]:
    """Seconds per work and repetition: in turn, back and forth, after each was done once."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for repetition in range(repetitions + 1):
        for name in list(works)[:: 1 if repetition % 2 == 0 else -1]:
            inputs.clear()
            began = _clock(device)
            works[name]()
            if repetition:
                taken[name].append(_clock(device) - began)
    return taken


def _clock(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def report(taken: dict[str, list[float]], more: dict[str, object]) -> None:
    alone = next(iter(taken.values()))
    for name, seconds in taken.items():
        ratios = [own / other for own, other in zip(seconds, alone, strict=True)]
        line: dict[str, object] = {
            "benchmark": "number loss",
            "contender": name,
            **more,
            "milliseconds": round(1000 * statistics.median(seconds), 1),
            "ratio": round(statistics.median(ratios), 3),
            "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        }
        if name in AT_MOST and more["device"] == "cpu":
            line |= {"at_most": AT_MOST[name], "reached": statistics.median(ratios) <= AT_MOST[name]}
        print(json.dumps(line), flush=True)


# Memory ---------------------------------------------------------------------------------------------------------------


def peak(name: str, vocabulary: int) -> float:
    """How many megabytes this process grows from its inputs to its peak."""
    inputs = Inputs("cpu", vocabulary, torch.float32, with_logits=False)
    before = _status("VmRSS")
    with_head(inputs)[name]()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0])


def memory(vocabulary: int) -> None:
    found: dict[str, float] = {}
    for name in ("head, cross_entropy", "head, was, written plainly", "head, was", "head, was reweighed"):
        words = [sys.executable, __file__, "--peak", name, "--vocabulary", str(vocabulary)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        found[name] = float(done.stdout.splitlines()[-1])
        ratio = found[name] / found["head, cross_entropy"]
        line: dict[str, object] = {"benchmark": "number loss, memory", "contender": name}
        line |= {"megabytes": round(found[name]), "ratio": round(ratio, 3)}
        if name == "head, was":
            line |= {"at_most": round(AT_MOST_MEMORY, 3), "reached": ratio <= AT_MOST_MEMORY}
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--only", nargs="+", choices=["logits", "head", "memory"])
    parser.add_argument("--peak", help="print only the peak of this contender in megabytes")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.peak:
        print(peak(chosen.peak, chosen.vocabulary))
        return
    wanted = chosen.only or ["logits", "head", "memory"]
    more = {"device": chosen.device, "dtype": chosen.dtype, "vocabulary": chosen.vocabulary}
    inputs = Inputs(chosen.device, chosen.vocabulary, getattr(torch, chosen.dtype), with_logits="logits" in wanted)
    if "logits" in wanted:
        report(measured(contenders(inputs), inputs, chosen.repetitions, chosen.device), more)
        inputs.clear()
        del inputs.leaves["logits"]
    if "head" in wanted:
        report(measured(with_head(inputs), inputs, chosen.repetitions, chosen.device), more)
    if "memory" in wanted and chosen.device == "cpu":
        memory(chosen.vocabulary)


if __name__ == "__main__":
    main()

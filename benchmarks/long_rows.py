"""Time and memory of one long sum on one core: scored in one forward pass, and decoded token by token.

    python benchmarks/long_rows.py [--digits 1000 2000 5000 10000] [--decoded 1000] [--recipes RECIPE ...]

One JSON line per measurement, each in a process of its own: processor time in seconds, the largest resident size, and
what of it was there before. The models are those of `addition_far` (2 layers, width 128, 4 heads, biases that differ by
row) and of `addition_1000` (with a window) as initialized. Decoding goes on to the length of the correct answer, as it
would for a trained model. The claim: a sum of 5,000 digits is scored in less than 2 GB.
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time

import torch

from numerate.api import recipe
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts
from numerate.evaluation.exact_match import predict
from numerate.evaluation.generate import greedy_decode

AT_MOST_MEGABYTES = {5000: 2000}
NEVER = -1
"""An end token that is never generated."""


def megabytes() -> float:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def measured(name: str, digits: int, method: str) -> dict[str, object]:
    torch.set_num_threads(1)
    chosen = recipe(name)
    evaluation_data = EvaluationData.from_recipe(chosen)
    model = chosen.model.build(evaluation_data.vocabulary, chosen.seed).eval()
    task = evaluation_data.task.at_cell(first_digits=digits, second_digits=digits)
    batch = evaluation_data.batch(task.examples("test", 0, 0, 1))
    megabytes_before, start = megabytes(), time.process_time()
    if method == "decoded":
        prompts, num_targets = extract_prompts(batch)
        greedy_decode(model, prompts, num_targets, end_id=NEVER)
    else:
        predict(model, evaluation_data, batch)
    return {
        "benchmark": "long_rows",
        "recipe": name,
        "method": method,
        "digits": digits,
        "tokens": batch.tokens.ids.shape[1],
        "seconds": round(time.process_time() - start, 2),
        "megabytes": round(megabytes()),
        "megabytes_before": round(megabytes_before),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, nargs="*", default=[1000, 2000, 5000, 10000])
    parser.add_argument("--decoded", type=int, nargs="*", default=[1000])
    parser.add_argument("--recipes", nargs="*", default=["addition_far", "addition_1000"])
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only is not None:
        name, digits, method = chosen.only
        print(json.dumps(measured(name, int(digits), method)))
        return
    cases = [*((digits, "one pass") for digits in chosen.digits), *((digits, "decoded") for digits in chosen.decoded)]
    for name, (digits, method) in itertools.product(chosen.recipes, cases):
        command = [sys.executable, __file__, "--only", name, str(digits), method]
        line = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        if method == "one pass" and digits in AT_MOST_MEGABYTES:
            at_most = AT_MOST_MEGABYTES[digits]
            line |= {"at_most": at_most, "reached": line["megabytes"] < at_most}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

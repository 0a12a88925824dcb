"""How quick this working tree is beside a commit: each benchmark of both in turn, in small, with intervals.

    python benchmarks/against.py BASE [NAME ...] [--rounds 6]

A figure is better here if its ratio is above 1: times and memory as base / here, speeds as here / base. The interval is
the 95 % t-interval of the mean logarithm over the rounds. A figure whose interval lies below 0.97 is marked, and the
exit status is then 1. What a benchmark says of others' code is listed, too: it shows what the machine alone does.

All of them take about ten minutes a round, so name those that a change may touch. `training` and `evaluation` want
x-transformers: `pip install -e ".[benchmarks]"`.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from scipy import stats

TOP = Path(__file__).resolve().parents[1]
sys.path.append(str(TOP / "tools" / "golden"))
from compare import base_tree  # noqa: E402

BENCHMARKS: dict[str, tuple[str, ...]] = {
    "abacus": ("--repetitions", "1", "--only", "training", "--steps", "50"),
    "counting": ("--repetitions", "1"),
    "dual_attention": ("--repetitions", "1"),
    "evaluation": ("--repetitions", "1", "--digits", "20"),
    "engines": ("--items", "500", "--repeats", "1"),
    "generation": ("--seconds", "0.5"),
    "grid": ("--grid", "1:20x1:20", "--steps", "50"),
    "mamba": ("--repetitions", "1"),
    "mixers": ("--repetitions", "1", "--tokens", "2048", "--lengths", "64", "512"),
    "number_loss": ("--repetitions", "1", "--only", "logits", "head"),
    "studies": ("--runs", "20", "--seconds", "0.5", "--engines", "local"),
    "tokenising": ("--repetitions", "10", "--tokenizer", str(TOP / "tests" / "text" / "tiny")),
    "training": ("--repetitions", "2"),
}
"""Each with the options of a round. Those of a GPU are left out."""

SPEEDS = r"\w+_per_second"
COSTS = r"(processor_)?seconds(_to_first)?|milliseconds\w*|megabytes\w*|memory"
COSTS_OF = {"studies": r"ratio"}
"""The names of figures. A study's length is chosen in each run of the benchmark, so that its seconds say nothing."""

SIZES = ("width", "batch", "batch_size", "window", "workers")
"""The numbers of a line that say what is measured; all of its texts do."""

Figures = dict[str, float]
SLOWER = 0.97


def figures(name: str, lines: Sequence[str]) -> Figures:
    """What the lines of JSON of a benchmark say, by what is measured, so that more is better."""
    found: Figures = {}
    for line in lines:
        if not line.startswith("{"):
            continue
        values = json.loads(line)
        of = [
            str(value) for key, value in values.items() if isinstance(value, str) and key not in ("against", "digest")
        ]
        of += [f"{key} {values[key]}" for key in SIZES if key in values]
        for key, value in values.items():
            cost = re.fullmatch(COSTS_OF.get(name, COSTS), key)
            if (cost or (name not in COSTS_OF and re.fullmatch(SPEEDS, key))) and value:
                found[", ".join([name, *of, key])] = 1 / value if cost else value
    return found


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios and its 95 % interval, by Student's t over their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = sum(logs) / len(logs)
    if len(logs) < 2:
        return math.exp(middle), 0.0, math.inf
    half = float(stats.sem(logs) * stats.t.ppf(0.975, len(logs) - 1))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def compared(base: Sequence[Figures], here: Sequence[Figures]) -> Iterator[tuple[str, bool]]:
    """A line for each figure, and whether it says that this tree is slower."""
    for name in dict.fromkeys(name for found in (*base, *here) for name in found):
        pairs = [(then[name], now[name]) for then, now in zip(base, here, strict=True) if name in then and name in now]
        if not pairs:
            side = "here" if any(name in found for found in here) else "in the base"
            yield f"               only {side}   {name}", False
            continue
        middle, low, high = interval([now / then for then, now in pairs])
        yield f"{middle:6.3f} [{low:.3f}, {high:.3f}] {'SLOWER' if high < SLOWER else '      '} {name}", high < SLOWER


def measured(tree: Path, name: str) -> Figures:
    """One round of a benchmark with the code of a tree, in which the benchmark itself is, too."""
    words = [name, *BENCHMARKS[name]]
    if not (tree / "benchmarks" / "engines.py").exists():  # what engines were called before 0.3
        words = [word.replace("engines", "executors") for word in words]
    file = tree / "benchmarks" / f"{words[0]}.py"
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(file), *words[1:]], capture_output=True, text=True, env=environment)
    if done.returncode:
        print(f"{file}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return figures(name, done.stdout.splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    if unknown := set(given.names) - BENCHMARKS.keys():
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    slower = 0
    with tempfile.TemporaryDirectory(prefix="against-") as place:
        tree = base_tree(given.base, Path(place) / "tree", "benchmarks")
        for name in given.names or BENCHMARKS:
            base: list[Figures] = []
            here: list[Figures] = []
            for number in range(given.rounds):
                print(f"{name}: round {number + 1} of {given.rounds}", file=sys.stderr)
                base.append(measured(tree, name))
                here.append(measured(TOP, name))
            for line, is_slower in compared(base, here):
                print(line, flush=True)
                slower += is_slower
    print(f"{slower} figures are slower than in {given.base}")
    return 1 if slower else 0


if __name__ == "__main__":
    raise SystemExit(main())

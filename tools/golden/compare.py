"""Compares what this working tree computes with what a commit does, to the last bit: `make golden BASE=<commit>`.

Each case of `cases.py` is trained for 30 steps by both, one after the other on this machine. Compared are the tensors
of the first batch, initial weights, logits, gradients, the losses and gradient norms of all steps, one evaluation, the
final weights, and the final weights of the base's run when it is resumed here in its middle. Cases are compared by
their label: those of the base alone are listed as withdrawn, those that are here alone as new.

The base is recorded by its own `tools/golden`, with its own names of settings; a commit that does not have that folder
is recorded by the first version of it. Identities were made anew with version 0.2, so commits before it draw other
data and differ in every layer.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
LAYERS = ("batch", "weights", "logits", "gradients", "losses", "evaluation", "final")


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(TOP), *words], check=True, capture_output=True, text=True).stdout.strip()


def recorded(tree: Path, out: Path, *options: str) -> dict[str, Any]:
    """What the code of a tree computes."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tree / "tools/golden/record.py"), str(out), *options]
    subprocess.run(command, check=True, env=environment)
    return dict(json.loads((out / "record.json").read_text()))


def base_tree(base: str, place: Path, *more: str) -> Path:
    """The files of a commit, `more` folders among them, with the first version of `tools/golden` where it has none."""
    place.mkdir()
    commits = [git("rev-parse", "--verify", f"{base}^{{commit}}")]
    if not git("ls-tree", commits[0], "tools/golden"):
        commits += git("log", "--reverse", "--diff-filter=A", "--format=%H", "--", "tools/golden/record.py").split()[:1]
    for commit, paths in zip(commits, (["src", "tests", *more], ["tools/golden"]), strict=False):
        whole = [*paths, "tools/golden"] if len(commits) == 1 else paths
        archive = subprocess.run(["git", "-C", str(TOP), "archive", commit, *whole], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", str(place)], check=True, input=archive.stdout)
    return place


LABEL_METRICS = ("accuracy", "ood_accuracy", "last_label", "correct_prefix")
WITHDRAWN_METRICS = ("number_digit_accuracy",)


def nameless(value: Any) -> Any:
    """A record without the names of its entries, which may have been changed."""
    if isinstance(value, dict):
        return [nameless(item) for item in value.values()]
    return [nameless(item) for item in value] if isinstance(value, list) else value


def measured(value: Any) -> Any:
    """A value of a line of an evaluation: of the sums of labels, numbers and texts the metrics alone, since commits
    keep other sums of them; of any other record its values."""
    if not isinstance(value, dict):
        return nameless(value)
    if "targets_by_position" in value and "metrics" not in value:  # the metrics stood beside the sums
        value = {"metrics": {name: value[name] for name in value if name in LABEL_METRICS}}
    if isinstance(metrics := value.get("metrics"), dict):
        return sorted(item for item in metrics.items() if item[0] not in WITHDRAWN_METRICS)
    return [measured(item) for item in value.values()]


def evaluated(lines: list[list[Any]]) -> list[list[str]]:
    """The lines of an evaluation, each in an order of its own: commits write their entries in different orders."""
    return [sorted(json.dumps(measured(value)) for value in line) for line in lines]


def differences(base: dict[str, Any], now: dict[str, Any]) -> dict[str, list[str]]:
    """The layers that differ, by the label of a case that both have; a case that ends in an error differs, too."""
    found: dict[str, list[str]] = {}
    for label in base.keys() & now.keys():
        before, after = base[label], now[label]
        if "error" in before or "error" in after:
            found[label] = [f"base: {before.get('error', 'recorded')}; here: {after.get('error', 'recorded')}"]
        else:
            layers = [layer for layer in LAYERS if nameless(before[layer]) != nameless(after[layer])]
            if "evaluation" in layers and evaluated(before["evaluation"]) == evaluated(after["evaluation"]):
                layers.remove("evaluation")
            if after["resumed"] != before["final"]:
                layers.append("resumed")
            if layers:
                found[label] = layers
    return dict(sorted(found.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--only", default="", help="only cases with this text in their name")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        place = Path(folder)
        before = recorded(base_tree(given.base, place / "tree"), place / "base", "--only", given.only)
        now = recorded(TOP, place / "now", "--only", given.only, "--resume", str(place / "base"))
    found = differences(before, now)
    for label, layers in found.items():
        print(f"{label}: {', '.join(layers)}")
    withdrawn, new = ([label for label in one if label not in other] for one, other in ((before, now), (now, before)))
    for line in [f"{label}: withdrawn" for label in withdrawn] + [f"{label}: new" for label in new]:
        print(line)
    shared = len(now) - len(new)
    print(f"{shared} cases, {len(found)} differ from {given.base}; {len(withdrawn)} withdrawn, {len(new)} new")
    return 1 if found or not shared else 0


if __name__ == "__main__":
    raise SystemExit(main())

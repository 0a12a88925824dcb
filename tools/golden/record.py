"""Records what the recipes of `cases.py` compute, as hashes and numbers, for `compare.py`.

    PYTHONPATH=src python tools/golden/record.py OUT [--resume OTHER] [--only TEXT]

Writes OUT/record.json and the runs in OUT/runs. With `--resume`, checkpoints of the same runs that another commit
recorded into the folder OTHER are trained on, too.
"""

import argparse
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

import numerate
from cases import CASES
from numerate.recipes.preset import debug
from numerate.records.reading import FORMAT
from numerate.text.data.corpora import write_corpus
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER
from numerate.training import checkpoint
from numerate.training.distributed import World
from numerate.training.trainer import Trainer

STEPS = 30


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, or of anything that holds some, in the order of its fields."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def digest(value: Any) -> list[str]:
    """A hash of each tensor, with its type and shape."""
    found = []
    for tensor in tensors_of(value):
        tensor = tensor.detach().contiguous()
        kind = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
        found.append(hashlib.sha256(kind + tensor.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:16])
    return found


def prepare() -> None:
    """The files that cases read and that tests do not have: a corpus of characters and a small pretrained decoder."""
    import transformers

    stories = [f"Story {number}: once upon a time there were {number} cats." for number in range(120)]
    Path("stories").mkdir(exist_ok=True)
    for name, part in (("train", stories[:90]), ("validation", stories[90:])):
        text = Path("stories") / f"{name}.txt"
        text.write_text("\n<|endoftext|>\n".join(part))
        write_corpus([text], Path("stories") / name, CHARACTER_TOKENIZER, processes=1)
    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=300)).save_pretrained("llama")


def small(words: tuple[str, ...]) -> Any:
    """The recipe of a case, as `preset=debug` makes it, with a line of metrics for each step."""
    recipe = debug(numerate.recipe(*words))
    budget = {"steps": STEPS, "log_every": 1, "evaluate_every": STEPS, "checkpoint_every": STEPS // 2}
    return replace(recipe, training=replace(recipe.training, **budget))


def first_step(recipe: Any, world: World) -> dict[str, Any]:
    """Batch, initial weights, logits and gradients of the first step."""
    trainer = Trainer(recipe, world)
    weights = trainer.model.state_dict()
    found: dict[str, Any] = {"names": list(weights), "weights": digest(weights), "batch": [], "logits": []}

    def hook(model: Any, given: Any, named: Any, output: Any) -> None:
        found["batch"] += digest([given, named])
        found["logits"] += digest(output.logits)

    handle = trainer.model.register_forward_hook(hook, with_kwargs=True)
    trainer.model.train()
    trainer.training_step(trainer.total_steps)
    handle.remove()
    found["gradients"] = digest([p.grad for p in trainer.model.parameters() if p.grad is not None])
    return found


def whole_run(recipe: Any, runs: Path, names: list[str]) -> tuple[dict[str, Any], Path]:
    """Losses and gradient norms of every step, one evaluation, and the weights at the end in the order of `names`."""
    run = numerate.train(recipe, runs_dir=runs, quiet=True)
    run.evaluate(count=4)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    evaluated = [json.loads(line) for line in (run.path / "cells.jsonl").read_text().splitlines()]
    last = checkpoint.resume(run.path / "checkpoints")[0]
    assert last is not None
    final = last.read()["weights"]
    found = {"losses": values(lines), "evaluation": values(evaluated), "final": digest([final[name] for name in names])}
    return found, run.path


def values(lines: list[dict[str, Any]]) -> list[list[Any]]:
    """The values of lines of records, without their names, which may be changed, and the id of their run."""
    return [[value for name, value in line.items() if name != "run_id"] for line in lines]


def resumed(recipe: Any, world: World, run: Path, names: list[str]) -> list[str]:
    """The final weights of another commit's run, resumed in its middle; there the weights are called `names`."""
    trainer = Trainer(recipe, world)
    now = dict(zip(names, trainer.model.state_dict(), strict=True))
    middle = run / "checkpoints" / checkpoint.step_folder(STEPS // 2)
    mark_as_of_today(middle / "state.json")
    trainer.load(Renamed(checkpoint.read_checkpoint(middle), now))
    trainer.train()
    return digest(trainer.model.state_dict())


def mark_as_of_today(state: Path) -> None:
    """Gives a checkpoint today's format number, which is raised with every change of run folders, of any of its files;
    that of checkpoints has been the same since format 3."""
    content = json.loads(state.read_text())
    del content["sha256"]
    content["format"] = FORMAT
    state.write_text(json.dumps(content | {"sha256": checkpoint._state_digest(content)}))


class Renamed:
    """A checkpoint whose parameters are called as they are now."""

    def __init__(self, other: Any, now: dict[str, str]) -> None:
        self.path, self.state, self._other, self._now = other.path, other.state, other, now

    def read(self) -> dict[str, dict[str, torch.Tensor]]:
        tensors = self._other.read()
        for group, found in tensors.items():
            tensors[group] = {self._name(key): value for key, value in found.items()}
        return tensors  # type: ignore[no-any-return]

    def _name(self, key: str) -> str:
        name, slash, entry = key.partition("/")
        return self._now.get(name, name) + slash + entry


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--resume", type=Path, help="the folder of another commit's record")
    parser.add_argument("--only", default="", help="only cases with this text in their name")
    given = parser.parse_args()
    out, other = given.out.resolve(), given.resume and given.resume.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)
    os.environ["NUMERATE_CACHE"] = str(out / "cache")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    prepare()
    before = json.loads((other / "record.json").read_text()) if other else {}
    record: dict[str, Any] = {}
    chosen = [(label, words) for label, words in CASES.items() if given.only in label]
    for number, (label, words) in enumerate(chosen):
        try:
            recipe = small(words)
            with World.connect("cpu") as world:
                case = first_step(recipe, world)
                whole, path = whole_run(recipe, out / "runs" / str(number), case["names"])
                record[label] = case | whole | {"run": str(path.relative_to(out))}
                of = before.get(label, {})
                if "run" in of:
                    record[label]["resumed"] = resumed(recipe, world, other / of["run"], of["names"])
        except Exception as error:  # what cannot be made is an outcome like any other
            record[label] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{number + 1}/{len(chosen)} {label}: {record[label].get('error', 'recorded')}", file=sys.stderr)
    (out / "record.json").write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

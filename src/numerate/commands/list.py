"""`numerate list`: what there is. Reads names and first lines; imports no part, so it is quick."""

import argparse

from numerate import catalogue
from numerate.commands.words import no_more
from numerate.commands.words import options as own_options
from numerate.config import load_user_parts
from numerate.errors import Mistake, did_you_mean

TITLES = {
    "Recipe": "recipes",
    "Study": "studies",
    "Task": "tasks",
    "Tokenizer": "tokenizers",
    "NumberSpelling": "number spellings",
    "Layout": "layouts",
    "Numbering": "numberings",
    "Position": "positions",
    "Mixer": "mixers",
    "ModelSpec": "models",
    "Trunk": "trunks",
    "Initialisation": "initialisations",
    "Loss": "losses",
    "Objective": "objectives",
    "Optimizer": "optimizers",
    "Schedule": "schedules",
}


def command(options: argparse.Namespace) -> int:
    for path in options.parts:
        load_user_parts(path)
    words, own = own_options(options.words, {"runs_dir": str})
    if words[:1] == ["runs"]:
        no_more(words[1:], ["runs_dir"])
        return list_runs(own.get("runs_dir"))
    kinds = catalogue.kinds()
    titles = {
        kind: TITLES.get(kind, kind) for kind in [*TITLES, *(k for k in kinds if k not in TITLES)] if kind in kinds
    }
    wanted = [_kind(word, titles) for word in words] or list(titles)
    width = max(len(name) for kind in wanted for name in kinds[kind])
    for number, kind in enumerate(wanted):
        print(("\n" if number else "") + titles[kind])
        for name in sorted(kinds[kind]):
            print(f"  {name:<{width}}  {catalogue.describe(kind, name)}")
    return 0


def list_runs(runs_dir: str | None) -> int:
    """One line per run: where it is, its labels, how far it is trained, how it ended."""
    from numerate.reports.table import text_table
    from numerate.training import checkpoint
    from numerate.training.run import all_runs, runs_directory

    runs = runs_directory(runs_dir)
    rows = []
    for run in all_runs(runs):
        head = run.head()
        steps = checkpoint.steps(run.checkpoints)
        budget = head["recipe"].get("training", {}).get("steps")
        ended = (head.get("ended") or {}).get("why", "")
        started = str(head.get("times", {}).get("started", ""))[:16].replace("T", " ")
        step = f"{steps[-1] if steps else 0}" + (f"/{budget}" if budget else "")
        seed = str(head["recipe"].get("seed", ""))
        labels = " ".join(filter(None, (head.get("name"), head.get("group") and f"({head['group']})")))
        rows.append([f"{run.recipe_name}/{run.id}", labels, seed, step, ended, started])
    if not rows:
        print(f"{runs}: no runs yet; `numerate run quickstart` makes the first two")
        return 0
    print(text_table(["run", "name", "seed", "step", "ended by", "started (UTC)"], rows))
    return 0


def _kind(word: str, titles: dict[str, str]) -> str:
    folded = word.lower().replace("-", " ").replace("_", " ")
    for kind, title in titles.items():
        if folded in (kind.lower(), title, title.removesuffix("s")):
            return kind
    known = [*titles.values(), "runs"]
    raise Mistake(f"there is no kind {word!r}; there are: {', '.join(known)}.{did_you_mean(word, known)}")

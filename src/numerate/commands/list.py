"""`numerate list [KIND [PART OF A NAME]]`: the available components. Reads names and first lines, imports no component.

A family of names is one line of the list; its members are listed when a part of their names is given.
"""

import argparse

from numerate import catalogue
from numerate.commands.words import check_no_more_words
from numerate.commands.words import parse_options as own_options
from numerate.config import add_packaged_parts
from numerate.errors import UserError, did_you_mean

TITLES = {
    "Recipe": "recipes",
    "Study": "studies",
    "Task": "tasks",
    "Tokenizer": "tokenizers",
    "NumberFormat": "number formats",
    "TextNumberFormat": "text number formats",
    "Layout": "layouts",
    "EvaluationKind": "evaluation kinds",
    "PositionIds": "position ids",
    "Position": "positions",
    "Mixer": "mixers",
    "ModelSpec": "models",
    "NumberEmbedding": "number embeddings",
    "Backbone": "backbones",
    "Initialization": "initializations",
    "Loss": "losses",
    "Objective": "objectives",
    "Optimizer": "optimizers",
    "Schedule": "schedules",
}


def command(args: argparse.Namespace) -> int:
    words, option_values = own_options(args.words, {"runs_dir": str})
    if words[:1] == ["runs"]:
        check_no_more_words(words[1:], ["runs_dir"])
        return list_runs(option_values.get("runs_dir"))
    add_packaged_parts()
    kinds = catalogue.parts_by_kind()
    titles = {
        kind: TITLES.get(kind, kind) for kind in [*TITLES, *(k for k in kinds if k not in TITLES)] if kind in kinds
    }
    requested_kinds, name_part = _parse_request(words, titles)
    lines_by_kind = {
        kind: _matching_lines(kind, name_part) if name_part else _component_lines(kind) for kind in requested_kinds
    }
    if not any(lines_by_kind.values()):
        known = [name for kind in requested_kinds for name in (*kinds[kind], *_preset_and_family_lines(kind))]
        named = " and ".join(titles[kind] for kind in requested_kinds)
        raise UserError(
            f"none of the {len(known)} {named} contains {name_part!r}.{did_you_mean(name_part or '', known)}"
        )
    width = max(len(name) for lines in lines_by_kind.values() for name in lines)
    for number, (kind, lines) in enumerate(lines_by_kind.items()):
        print(("\n" if number else "") + titles[kind])
        for name, line in lines.items():
            print(f"  {name:<{width}}  {line}".rstrip())
    return 0


def _parse_request(words: list[str], titles: dict[str, str]) -> tuple[list[str], str | None]:
    """The requested kinds (by default all), and the text that their names must contain.

    >>> _parse_request(["recipes", "counting-samesymbol"], TITLES)
    (['Recipe'], 'counting_samesymbol')
    """
    if len(words) > 1 and _is_unknown_kind(words[-1], titles):
        return [_parse_kind(word, titles) for word in words[:-1]], words[-1].replace("-", "_")
    return [_parse_kind(word, titles) for word in words] or list(titles), None


def _component_lines(kind: str) -> dict[str, str]:
    """The components of a kind, each with its line; then one line for each family of names."""
    lines = {name: catalogue.part_summary(kind, name) for name in sorted(catalogue.parts_by_kind()[kind])}
    title = TITLES.get(kind, kind)
    for pattern, module in catalogue.family_modules(kind).items():
        lines[pattern] = f"{catalogue.module_summary(module)} See `numerate list {title} {pattern.partition('_')[0]}_`."
    for module in catalogue.preset_modules(kind):
        begin, _, rest = module.rpartition(".")[2].partition("_")
        if rest != "names":  # few names without a common prefix: listed one by one
            lines |= {name: f"{text[:90]} ..." if len(text) > 90 else text for name, text in _presets(module).items()}
            continue
        lines[f"{begin}_..."] = f"{catalogue.module_summary(module)} See `numerate list {title} {begin}_`."
    return lines


def _matching_lines(kind: str, part: str) -> dict[str, str]:
    """Every name of a kind that contains `part`, each with its line."""
    lines = {
        name: catalogue.part_summary(kind, name) for name in sorted(catalogue.parts_by_kind()[kind])
    } | _preset_and_family_lines(kind)
    return {name: line for name, line in lines.items() if part.lower() in name.lower()}


def _preset_and_family_lines(kind: str) -> dict[str, str]:
    """The names of presets and families."""
    presets = {name: text for module in catalogue.preset_modules(kind) for name, text in _presets(module).items()}
    return presets | catalogue.family_names(kind)


def _presets(module: str) -> dict[str, str]:
    """The presets of a module by name, each as text."""
    from importlib import import_module

    from numerate.config.values import format_value

    return {name: format_value(part) for name, part in import_module(module).presets().items()}


def list_runs(runs_dir: str | None) -> int:
    """One line per run: its path, labels, last step, and how it ended."""
    from warnings import warn

    from numerate.reports.table import text_table
    from numerate.training import checkpoint
    from numerate.training.run_folder import all_runs, resolve_runs_dir

    runs = resolve_runs_dir(runs_dir)
    rows = []
    for run in all_runs(runs):
        steps = checkpoint.list_steps(run.checkpoints)
        try:
            head = run.metadata()
        except UserError as error:
            warn(str(error), stacklevel=1)
            rows.append([f"{run.recipe_name}/{run.id}", "", "", str(steps[-1] if steps else 0), "damaged", ""])
            continue
        budget = head["recipe"].get("training", {}).get("steps")
        ended = (head.get("ended") or {}).get("stop_reason", "")
        started = str(head.get("times", {}).get("started", ""))[:16].replace("T", " ")
        step = f"{steps[-1] if steps else 0}" + (f"/{budget}" if budget else "")
        seed = str(head["recipe"].get("seed", ""))
        labels = " ".join(filter(None, (head.get("name"), head.get("group") and f"({head['group']})")))
        rows.append([f"{run.recipe_name}/{run.id}", labels, seed, step, ended, started])
    if not rows:
        print(f"{runs}: no runs yet; `numerate run quickstart` creates the first two")
        return 0
    print(text_table(["run", "name", "seed", "step", "ended by", "started (UTC)"], rows))
    return 0


def _is_unknown_kind(word: str, titles: dict[str, str]) -> bool:
    return _find_kind(word, titles) is None


def _find_kind(word: str, titles: dict[str, str]) -> str | None:
    folded = word.lower().replace("-", " ").replace("_", " ")
    return next(
        (kind for kind, title in titles.items() if folded in (kind.lower(), title, title.removesuffix("s"))), None
    )


def _parse_kind(word: str, titles: dict[str, str]) -> str:
    kind = _find_kind(word, titles)
    if kind is None:
        known = [*titles.values(), "runs"]
        raise UserError(f"there is no kind {word!r}; there are: {', '.join(known)}.{did_you_mean(word, known)}")
    return kind

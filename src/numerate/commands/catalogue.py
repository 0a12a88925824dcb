"""`list`: the available parts, and the runs. It reads names and first lines, and imports no part."""

from importlib import import_module
from textwrap import shorten
from warnings import warn

from numerate import catalogue
from numerate.config import add_packaged_parts, format_value
from numerate.errors import UserError, did_you_mean
from numerate.terminal import definition_list, output_width, text_table

KINDS = {
    "Recipe": ("recipes", ""),
    "Study": ("studies", ""),
    "Task": ("tasks", "task={}"),
    "Tokenizer": ("tokenizers", "tokenizer={}"),
    "NumberFormat": ("number formats", "tokenizer.number_format={}"),
    "TextNumberFormat": ("text number formats", "tokenizer=Subwords(number_format={})"),
    "Layout": ("layouts", "layout={}"),
    "EvaluationKind": ("evaluation kinds", ""),
    "PositionIds": ("position ids", "model.positions=[Scalar(position_ids={})]"),
    "Position": ("positions", "model.positions=[{}]"),
    "Mixer": ("mixers", "model.mixer={}"),
    "ModelSpec": ("models", "model={}"),
    "NumberEmbedding": ("number embeddings", "model=T5(number_embedding={})"),
    "Backbone": ("backbones", "model.backbone={}"),
    "Initialization": ("initializations", "model.initialization={}"),
    "Loss": ("losses", "objective.loss={}"),
    "Objective": ("objectives", "objective={}"),
    "Optimizer": ("optimizers", "optimizer={}"),
    "Schedule": ("schedules", "schedule={}"),
    "Symbols": ("symbols", "model.mixer=DualAttention(symbols={})"),
    "Engine": ("engines", ""),
}
"""The title of each kind of component in the order of the list, where those of users follow, and its place in a recipe.
"""

TITLES = {kind: title for kind, (title, _) in KINDS.items()}
SLOTS = {kind: slot for kind, (_, slot) in KINDS.items() if slot}


def list_parts(*words: str) -> None:
    """Lists the components of some kinds, or of all, or those with a text in their name.

    A family of names is one line; its members are listed when a part of their names is given.
    """
    add_packaged_parts()
    kinds = catalogue.parts_by_kind()
    titles = {kind: TITLES.get(kind, kind) for kind in [*TITLES, *kinds] if kind in kinds}
    has_part = len(words) > 1 and _find_kind(words[-1], titles) is None
    part = words[-1].replace("-", "_").lower() if has_part else ""
    requested = [_parse_kind(word, titles) for word in words[: len(words) - has_part]] or list(titles)
    lines_by_kind = {kind: _all_lines(kind) if part else _lines(kind) for kind in requested}
    shown = {
        kind: {name: lines[name] for name in lines if part in name.lower()} for kind, lines in lines_by_kind.items()
    }
    if not any(shown.values()):
        known = [name for lines in lines_by_kind.values() for name in lines]
        named = " and ".join(titles[kind] for kind in requested)
        raise UserError(f"none of the {len(known)} {named} contains {part!r}.{did_you_mean(part, known)}")
    for number, (kind, lines) in enumerate(shown.items()):
        print("\n" * bool(number) + titles[kind])
        print(definition_list([*lines.items()], output_width(), indent=2))


def _find_kind(word: str, titles: dict[str, str]) -> str | None:
    folded = word.lower().replace("-", " ").replace("_", " ")
    return next((kind for kind, title in titles.items() if folded in (kind.lower(), title, title[:-1])), None)


def _parse_kind(word: str, titles: dict[str, str]) -> str:
    kind = _find_kind(word, titles)
    if kind is None:
        known = [*titles.values(), "runs"]
        raise UserError(f"there is no kind {word!r}; there are: {', '.join(known)}.{did_you_mean(word, known)}")
    return kind


def _part_lines(kind: str) -> dict[str, str]:
    return {name: catalogue.part_summary(kind, name) for name in sorted(catalogue.parts_by_kind()[kind])}


def _lines(kind: str) -> dict[str, str]:
    """The components of a kind, each with its line; then one line for each family of names."""
    lines, modules = _part_lines(kind), catalogue.family_modules(kind)
    for module in catalogue.preset_modules(kind):
        begin, _, rest = module.rpartition(".")[2].partition("_")
        if rest == "names":
            modules[f"{begin}_..."] = module
        else:  # few names without a common prefix: listed one by one
            presets = import_module(module).presets()
            lines |= {name: shorten(format_value(part), 90, placeholder=" ...") for name, part in presets.items()}
    for name, module in modules.items():
        hint = f"See `numerate list {TITLES.get(kind, kind)} {name.partition('_')[0]}_`."
        lines[name] = f"{catalogue.module_summary(module)} {hint}"
    return lines


def _all_lines(kind: str) -> dict[str, str]:
    """Every name of a kind with its line: components, presets, and members of families."""
    presets = {name: format_value(part) for name, part in catalogue.presets(kind).items()}
    return _part_lines(kind) | presets | catalogue.family_names(kind)


def list_runs(*, runs_dir: str | None = None) -> None:
    """One line per run: its path, labels, last step, and how it ended."""
    from numerate.records.reading import OtherVersionError
    from numerate.training import checkpoint
    from numerate.training.finding import all_runs
    from numerate.training.run_folder import resolve_runs_dir

    rows = []
    for run in all_runs(runs := resolve_runs_dir(runs_dir)):
        name, step = f"{run.recipe_name}/{run.id}", str(max(checkpoint.list_steps(run.checkpoints), default=0))
        try:
            head = run.metadata()
        except UserError as error:
            warn(str(error), stacklevel=1)
            ended = "(another version)" if isinstance(error, OtherVersionError) else "damaged"
            rows.append([name, "", "", step, ended, ""])
            continue
        budget = head["recipe"].get("training", {}).get("steps")
        labels = " ".join(filter(None, (head.get("name"), head.get("group") and f"({head['group']})")))
        ended = (head.get("ended") or {}).get("stop_reason", "")
        started = str(head.get("times", {}).get("started", ""))[:16].replace("T", " ")
        step += f"/{budget}" * bool(budget)
        rows.append([name, labels, str(head["recipe"].get("seed", "")), step, ended, started])
    if rows:
        print(text_table(["run", "name", "seed", "step", "ended by", "started (UTC)"], rows, output_width()))
    else:
        print(f"{runs}: no runs yet; `numerate run quickstart` creates the first two")

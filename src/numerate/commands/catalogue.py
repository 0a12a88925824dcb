"""`list` and `show`: the available components, and their settings. `list` reads names and first lines, and imports no
component.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from textwrap import shorten
from typing import TYPE_CHECKING, Any
from warnings import warn

from numerate import catalogue
from numerate.config import (
    add_packaged_part,
    add_packaged_parts,
    describe_settings,
    expand_sweep,
    format_value,
    identity,
    override,
)
from numerate.errors import OperationalError, UserError, did_you_mean

if TYPE_CHECKING:
    from numerate.training.recipe import Recipe

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
    "Executor": ("executors", ""),
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
    width = max(len(name) for lines in shown.values() for name in lines)
    for number, (kind, lines) in enumerate(shown.items()):
        print("\n" * bool(number) + titles[kind])
        for name, line in lines.items():
            print(f"  {name:<{width}}  {line}".rstrip())


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
    from numerate.reports.table import text_table
    from numerate.training import checkpoint
    from numerate.training.run_folder import all_runs, resolve_runs_dir

    rows = []
    for run in all_runs(runs := resolve_runs_dir(runs_dir)):
        name, step = f"{run.recipe_name}/{run.id}", str(checkpoint.last_step(run.checkpoints))
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
        print(text_table(["run", "name", "seed", "step", "ended by", "started (UTC)"], rows))
    else:
        print(f"{runs}: no runs yet; `numerate run quickstart` creates the first two")


def show(name: str, *, settings: Sequence[str]) -> None:
    """Shows the settings of a recipe or component, or the recipes of a study."""
    from numerate.studies.naming import load_recipe, load_recipe_or_study
    from numerate.studies.study import Study

    add_packaged_part(name.replace("-", "_"))
    if kinds := [kind for kind, parts in catalogue.parts_by_kind().items() if kind in SLOTS and name in parts]:
        if settings:
            raise UserError(f"{settings[0]!r} is not a known option")
        for kind in kinds:
            _show_part(kind, catalogue.get_class(kind, name))
        return
    study = load_recipe_or_study(name)
    if isinstance(study, Study):
        study = study.sweep(settings)
        print(f"{study.title}: {study.question}\n")
        for recipe in study.recipes:
            print(f"  {recipe.title}  seed={recipe.seed}  run id {identity(recipe)}")
        print(f"\n`numerate show {study.recipes[0].title}` shows the settings of one")
        return
    recipe = load_recipe(name)
    for number, choice in enumerate(expand_sweep(settings)):
        print("\n" * bool(number), end="")
        _show_recipe(override(recipe, choice))


def _print_settings(lines: Sequence[tuple[str, str, str]], value_width: int) -> None:
    widths = [min(most, max((len(line[i]) for line in lines), default=0)) for i, most in enumerate((44, value_width))]
    for name, value, meaning in lines:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {meaning}")


def _show_part(kind: str, part: Any) -> None:
    """Prints the settings of a component with their defaults, and how a recipe uses it."""
    print(f"{part.__name__}, {kind}: {catalogue.part_summary(kind, part.__name__)}\n")
    lines = [(field.name, format_value(field.default), field.metadata["help"]) for field in fields(part)]
    _print_settings(lines, value_width=44)
    print("no settings\n" * (not lines) + f"\nuse: numerate train RECIPE '{SLOTS[kind].format(part.__name__)}'")


def _show_recipe(recipe: "Recipe") -> None:
    from numerate.recipes.papers import PAPERS

    kinds = reversed(catalogue.parts_by_kind().items())
    summaries = {name: (kind, name) for kind, names in kinds for name in names}
    print(f"{recipe.title}, run id {identity(recipe)}\n")
    free_texts = ("paper", "name", "group")  # may be called like a component
    lines = [
        (
            path,
            value,
            catalogue.part_summary(*summaries[value]) if value in summaries and path not in free_texts else meaning,
        )
        for path, value, _, meaning in describe_settings(recipe)
    ]
    _print_settings(lines, value_width=34)
    print(f"\nparameters: {parameter_count(recipe)}")
    if recipe.paper in PAPERS:
        print(f"\n{PAPERS[recipe.paper]}")


def parameter_count(recipe: "Recipe") -> str:
    """The number of parameters of the model as text, or why it is unknown. Downloads nothing."""
    weights = vars(recipe.model).get("weights")
    if weights is not None:
        return f"those of the weights {weights}, with embedding rows for this vocabulary"
    try:
        with _offline():
            vocabulary = recipe.tokenizer.build_vocabulary(recipe.task)
            try:  # without allocating the weights, which may be billions
                model = recipe.model.build_on_meta(vocabulary, recipe.seed)
            except (RuntimeError, NotImplementedError):
                model = recipe.model.build(vocabulary, recipe.seed)
    except (UserError, OperationalError) as error:
        return f"unknown ({' '.join(str(error).split())})"
    return f"{sum(parameter.numel() for parameter in model.parameters()):,}"


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Sets the Hugging Face hub offline."""
    name, constants = "HF_HUB_OFFLINE", "huggingface_hub.constants"
    old_value, known = os.environ.get(name), getattr(sys.modules.get(constants), name, False)
    os.environ[name] = "1"
    if constants in sys.modules:  # read at import
        setattr(sys.modules[constants], name, True)
    try:
        yield
    finally:
        del os.environ[name]
        if old_value is not None:
            os.environ[name] = old_value
        if constants in sys.modules:
            setattr(sys.modules[constants], name, known)

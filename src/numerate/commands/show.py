"""`show`: the settings of a recipe or part, where it comes from, and the recipes that use it."""

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from typing import Any

from numerate import catalogue
from numerate.commands.catalogue import SLOTS
from numerate.config import (
    add_packaged_parts,
    allowed_values,
    describe_settings,
    expand_sweep,
    format_value,
    identity,
    load_user_object,
    load_user_parts,
    override,
)
from numerate.config.user_parts import is_abstract
from numerate.config.values import Draft, build_draft, common_part_hint, is_spec, parse_value, settings_of
from numerate.errors import OperationalError, UserError, did_you_mean, pluralize
from numerate.recipes.naming import load_recipe, load_recipe_or_study, quick_recipes
from numerate.recipes.papers import PAPERS, bibtex_of
from numerate.recipes.study import Study
from numerate.terminal import definition_list, output_width, wrapped
from numerate.text.data.datasets import DATASETS, Dataset
from numerate.training import disk
from numerate.training.recipe import Recipe

MAX_RECIPES = 12
"""Recipes that use a part and are named; further ones are counted."""

Part = tuple[str, str, Any]
"""A kind, a name in it, and what has this name: a class, or a preset of one."""


def show(name: str, *, settings: Sequence[str]) -> None:
    """Shows a recipe, the recipes of a study, a part, or a dataset. Raises `UserError` with the most similar name for
    one that is none of these."""
    add_packaged_parts()
    parts, dataset = list(find_parts(name)), DATASETS.get(name.replace("-", "_"))
    if catalogue.is_recipe(name) and not parts:
        blocks = _recipe_blocks(name, settings)
    elif parts or dataset is not None:
        if settings:
            example = f"{name.partition('(')[0]}({settings[0]})"
            raise UserError(f"{settings[0]}: a part has its settings in brackets, as in numerate show {example!r}")
        blocks = [_part_text(*part) for part in parts] + ([] if dataset is None else [_dataset_text(dataset)])
    elif name == "latest" or os.path.isdir(name):
        raise UserError(f"{name}: must be a recipe, part or dataset; `numerate report {name}` shows a run")
    else:
        known = [one for names in catalogue.parts_by_kind().values() for one in names]
        known += [*catalogue.presets("Task"), *catalogue.family_names("Recipe"), *DATASETS]
        hint = common_part_hint(name, known) or did_you_mean(name, known)
        advice = f"`numerate list` shows all parts, recipes and studies.{hint}"
        raise UserError(f"nothing is named {name!r}; {advice}")
    print("\n\n".join(blocks))


def find_parts(name: str) -> Iterator[Part]:
    """The parts with a name, of which several kinds may have one, also with settings, `Learned(position_ids=Digits)`; a
    class in a file of the user, or all of them (`my.py`). Raises `UserError` for a file without parts."""
    kinds = catalogue.parts_by_kind()
    plain_name, has_settings, _ = name.partition("(")
    if plain_name.endswith(".py"):
        yield from _parts_of_file(plain_name)
    elif has_settings:
        for kind, _, part in find_parts(plain_name):
            declared = next(one for one in _class_of(part).__mro__ if one.__name__ in (kind, "object"))
            yield kind, name, build_draft(parse_value(name, declared, plain_name), plain_name)
    elif ".py:" in name and isinstance(part := load_user_object(name), type):
        yield _kind_of(part) or "part", name, part
    for kind in (kind for kind in kinds if kind not in ("Recipe", "Study")):
        if name in kinds[kind]:
            yield kind, name, catalogue.get_class(kind, name)
        elif (preset := catalogue.presets(kind).get(name.replace("-", "_"))) is not None:
            yield kind, name, preset


def _parts_of_file(path: str) -> Iterator[Part]:
    module = load_user_parts(path)
    own = (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__)
    parts = [one for one in own if _kind_of(one) and not is_abstract(one)]
    if not parts:
        raise UserError(f"{path} has no part; `numerate show {path}:NAME` shows a recipe, or what a function returns")
    yield from ((_kind_of(part), f"{path}:{part.__name__}", part) for part in parts)


def _kind_of(part: type) -> str:
    """The kind of a class of a user; an empty text for any other class."""
    return next((base.__name__ for base in part.__mro__ if base.__name__ in catalogue.parts_by_kind()), "")


def _class_of(part: Any) -> type:
    return part if isinstance(part, type) else type(part)


# Parts and datasets ---------------------------------------------------------------------------------------------------


def _part_text(kind: str, name: str, part: Any) -> str:
    """The settings of a part with defaults, meanings and what they may be; how a recipe uses it; where it comes from,
    with BibTeX; and the recipes that use it."""
    width, part_class = output_width(), _class_of(part)
    documentation = inspect.getdoc(part_class) or ""
    values = "" if part is part_class or "(" in name else f"{format_value(part)}. "
    summary = values + documentation.partition("\n")[0]
    rows = []
    for setting, allowed in allowed_values(part_class).items():
        value = Draft(part_class, {}).get(setting) if part is part_class else getattr(part, setting)
        meaning = settings_of(part_class)[setting][0].metadata.get("help", "")
        bounds = "" if allowed == "true or false" else f" ({allowed})"
        rows.append((setting if value is MISSING else f"{setting}={format_value(value)}", meaning + bounds))
    blocks = [wrapped(f"{name}, {kind}: {summary}", width), definition_list(rows, width) or "no settings"]
    if kind in SLOTS:
        blocks.append(f"use: numerate train RECIPE '{SLOTS[kind].format(name)}'")
    paragraphs = re.split(r"(?<!:)\n\n|\n(?=- )", documentation)
    if sources := [text.split("\n\n") for text in paragraphs if "http" in text]:
        blocks.append("source")
        for first, *examples in sources:
            text = wrapped(f"  {' '.join(first.split())}", width, indent=2)
            blocks[-1] = "\n    ".join([f"{blocks[-1]}\n{text}", *"\n".join(examples).splitlines()])
    if recipes := [title for title, recipe in quick_recipes() if _uses(recipe, part)]:
        more = f" and {len(recipes) - MAX_RECIPES:,} more" * (len(recipes) > MAX_RECIPES)
        names = ", ".join(recipes[:MAX_RECIPES])
        blocks.append(wrapped(f"used by {pluralize(len(recipes), 'recipe')}: {names}{more}", width, indent=2))
    return "\n\n".join([*blocks, *bibtex_of(documentation)])


def _uses(value: Any, part: Any) -> bool:
    """Whether a recipe has a part of a class, or equal to a preset."""
    if is_spec(value):
        is_it = type(value) is part if isinstance(part, type) else value == part
        return is_it or any(_uses(getattr(value, setting), part) for setting in settings_of(type(value)))
    return isinstance(value, tuple) and any(_uses(item, part) for item in value)


def _dataset_text(dataset: Dataset) -> str:
    width = output_width()
    rows = [(file.name, disk.format_bytes(file.size) if file.size else "size unknown") for file in dataset.files]
    blocks = [wrapped(f"{dataset.name}, dataset: {dataset.description}", width), definition_list(rows, width)]
    blocks.append(wrapped(f"license: {dataset.license}; {dataset.homepage}", width, indent=2))
    return "\n\n".join([*blocks, f"use: numerate data fetch {dataset.name}"])


# Recipes and studies --------------------------------------------------------------------------------------------------


def _recipe_blocks(name: str, settings: Sequence[str]) -> list[str]:
    """The settings of a recipe, once for each value of a sweep; the recipes of a study."""
    loaded = load_recipe_or_study(name)
    if not isinstance(loaded, Study):
        recipe = load_recipe(name)
        return [_recipe_text(override(recipe, choice), _recipe_summary(name)) for choice in expand_sweep(settings)]
    study, width = loaded.sweep(settings), output_width()
    lines = [f"  {recipe.title}  seed={recipe.seed}  run id {identity(recipe)}" for recipe in study.recipes]
    first = f"`numerate show {study.recipes[0].title}` shows the settings of one"
    return [wrapped(f"{study.title}: {study.question}", width), "\n".join(lines), first]


def _recipe_summary(name: str) -> str:
    """What a recipe is and what is to be known about it; empty for one of a file."""
    plain = name.replace("-", "_")
    if (row := catalogue.family_row("Recipe", plain)) is not None:
        return f"{row.summary} {row.notes}".strip()
    is_listed = plain in catalogue.parts_by_kind()["Recipe"]
    return " ".join((catalogue.get_class("Recipe", plain).__doc__ or "").split()) if is_listed else ""


def _recipe_text(recipe: Recipe, summary: str) -> str:
    """Every setting with its meaning, or the description of the part in it; the number of parameters; the paper."""
    width, kinds = output_width(), catalogue.parts_by_kind()
    summaries = {name: (kind, name) for kind, names in reversed(kinds.items()) for name in names}
    free_texts = ("title", "paper", "name", "group")  # may be called like a part
    rows = []
    for path, value, _, meaning in describe_settings(recipe):
        if value in summaries and path not in free_texts:
            meaning = catalogue.part_summary(*summaries[value])
        rows.append((f"{path}={value}", meaning))
    title = f"{recipe.title}, run id {identity(recipe)}"
    blocks = [title, *([wrapped(summary, width)] if summary else []), definition_list(rows, width)]
    blocks.append(wrapped(f"parameters: {parameter_count(recipe)}", width))
    return "\n\n".join([*blocks, *([PAPERS[recipe.paper]] if recipe.paper in PAPERS else [])])


def parameter_count(recipe: Recipe) -> str:
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

"""`numerate show RECIPE`: every setting with its value and meaning, and the number of parameters."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import fields

from numerate import catalogue
from numerate.batch import Model
from numerate.commands.words import check_no_more_words, require_word
from numerate.config import describe_settings, expand_sweep, format_value, identity, override
from numerate.errors import OperationalError, UserError
from numerate.recipes.papers import PAPERS
from numerate.studies.naming import load_recipe_or_study
from numerate.studies.study import Study
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary


def command(args: argparse.Namespace) -> int:
    name = require_word(args.words, "the recipe", "numerate show addition_abacus")
    if kinds := [kind for kind, parts in catalogue.parts_by_kind().items() if kind in SLOTS and name in parts]:
        check_no_more_words(args.words[1:], [])
        for kind in kinds:
            _show_part(kind, catalogue.get_class(kind, name))
        return 0
    found = load_recipe_or_study(name)
    if isinstance(found, Study):
        _show_study(found, args.words[1:])
        return 0
    if not isinstance(found, Recipe):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise UserError(f"{name}: must be a Recipe, not {kind}")
    for number, choice in enumerate(expand_sweep(args.words[1:])):
        if number:
            print()
        _show(override(found, choice))
    return 0


SLOTS = {
    "Task": "task={}",
    "Tokenizer": "tokenizer={}",
    "NumberFormat": "tokenizer.number_format={}",
    "TextNumberFormat": "tokenizer=Subwords(number_format={})",
    "Layout": "layout={}",
    "ModelSpec": "model={}",
    "NumberEmbedding": "model=T5(number_embedding={})",
    "Backbone": "model.backbone={}",
    "Mixer": "model.mixer={}",
    "Symbols": "model.mixer=DualAttention(symbols={})",
    "Position": "model.positions=[{}]",
    "PositionIds": "model.positions=[Scalar(position_ids={})]",
    "Initialization": "model.initialization={}",
    "Objective": "objective={}",
    "Loss": "objective.loss={}",
    "Optimizer": "optimizer={}",
    "Schedule": "schedule={}",
}
"""The setting of a recipe for each kind of component."""


def _show_part(kind: str, part: type) -> None:
    """Prints the settings of a component with their defaults, and how a recipe uses it."""
    print(f"{part.__name__}, {kind}: {catalogue.part_summary(kind, part.__name__)}\n")
    lines = [(field.name, format_value(field.default), field.metadata["help"]) for field in fields(part)]
    names, values = (min(44, max((len(line[i]) for line in lines), default=0)) for i in (0, 1))
    for name, value, meaning in lines:
        print(f"{name:<{names}}  {value:<{values}}  {meaning}")
    if not lines:
        print("no settings")
    print(f"\nuse: numerate train RECIPE '{SLOTS[kind].format(part.__name__)}'")


def _show(recipe: Recipe) -> None:
    print(f"{recipe.title}, run id {identity(recipe)}\n")
    lines = describe_settings(recipe)
    paths = min(44, max(len(path) for path, *_ in lines))
    values = min(34, max(len(value) for _, value, *_ in lines))
    for path, value, _, meaning in lines:
        print(f"{path:<{paths}}  {value:<{values}}  {_description(value) or meaning}")
    print(f"\nparameters: {parameter_count(recipe)}")
    if recipe.paper in PAPERS:
        print(f"\n{PAPERS[recipe.paper]}")


def parameter_count(recipe: Recipe) -> str:
    """The number of parameters of the model as text, or why it is unknown. Downloads nothing."""
    weights = vars(recipe.model).get("weights")
    if weights is not None:
        return f"those of the weights {weights}, with embedding rows for this vocabulary"
    try:
        with _offline():
            vocabulary = recipe.tokenizer.build_vocabulary(recipe.task)
            model = _build_model(recipe, vocabulary)
    except (UserError, OperationalError) as error:
        return f"unknown ({' '.join(str(error).split())})"
    return f"{sum(parameter.numel() for parameter in model.parameters()):,}"


def _build_model(recipe: Recipe, vocabulary: Vocabulary) -> Model:
    """Builds the model, without allocating its weights if possible, as they may be billions."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return recipe.model.build_on_meta(vocabulary, recipe.seed)
    return recipe.model.build(vocabulary, recipe.seed)


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


def _description(value: str) -> str:
    """The first docstring line of a class in a list."""
    return next(
        (catalogue.part_summary(kind, value) for kind, names in catalogue.parts_by_kind().items() if value in names), ""
    )


def _show_study(study: Study, words: list[str]) -> None:
    study = study.sweep(words)
    print(f"{study.title}: {study.question}\n")
    for recipe in study.recipes:
        print(f"  {recipe.title}  seed={recipe.seed}  run id {identity(recipe)}")
    print(f"\n`numerate show {study.recipes[0].title}` shows the settings of one")

"""`numerate show RECIPE`: every setting with its value and its meaning, and how many parameters the model has."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator

from numerate import catalogue
from numerate.batch import Model
from numerate.commands.words import first
from numerate.config import describe_settings, expand, identity, override
from numerate.errors import Fault, Mistake
from numerate.models.held import without_memory
from numerate.recipes.papers import PAPERS
from numerate.studies.naming import named
from numerate.studies.study import Study
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary


def command(options: argparse.Namespace) -> int:
    name = first(options.words, "the recipe", "numerate show addition_abacus")
    found = named(name)
    if isinstance(found, Study):
        _show_study(found, options.words[1:])
        return 0
    if not isinstance(found, Recipe):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise Mistake(f"{name}: is no recipe but {kind}")
    for number, choice in enumerate(expand(options.words[1:])):
        if number:
            print()
        _show(override(found, choice))
    return 0


def _show(recipe: Recipe) -> None:
    print(f"{recipe.title}, run id {identity(recipe)}\n")
    lines = describe_settings(recipe)
    paths = min(44, max(len(path) for path, *_ in lines))
    values = min(34, max(len(value) for _, value, *_ in lines))
    for path, value, _, told in lines:
        meaning = told or _what(value)
        print(f"{path:<{paths}}  {value:<{values}}  {meaning}")
    print(f"\nparameters: {parameters_told(recipe)}")
    if recipe.paper in PAPERS:
        print(f"\n{PAPERS[recipe.paper]}")


def parameters_told(recipe: Recipe) -> str:
    """How many parameters the model has, in words, or why that is not known here. Nothing is downloaded."""
    weights = vars(recipe.model).get("weights")
    if weights is not None:
        return f"as many as the weights {weights} have, with the rows of this vocabulary"
    try:
        with _offline():
            vocabulary = recipe.tokenizer.vocabulary(recipe.task)
            model = _built(recipe, vocabulary)
    except (Mistake, Fault) as error:
        return f"not known here ({' '.join(str(error).split())})"
    return f"{sum(parameter.numel() for parameter in model.parameters()):,}"


def _built(recipe: Recipe, vocabulary: Vocabulary) -> Model:
    """The model; it may have billions of weights, and is built without memory for them if it can be."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return without_memory(recipe.model, vocabulary, recipe.seed)
    return recipe.model.build(vocabulary, recipe.seed)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Lets the Hugging Face hub answer from what is on this disk alone."""
    name, constants = "HF_HUB_OFFLINE", "huggingface_hub.constants"
    before, known = os.environ.get(name), getattr(sys.modules.get(constants), name, False)
    os.environ[name] = "1"
    if constants in sys.modules:  # read when it was imported
        setattr(sys.modules[constants], name, True)
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
        if constants in sys.modules:
            setattr(sys.modules[constants], name, known)


def _what(value: str) -> str:
    """What a list's item is: the first line of its class."""
    return next((catalogue.describe(kind, value) for kind, names in catalogue.kinds().items() if value in names), "")


def _show_study(study: Study, words: list[str]) -> None:
    study = study.crossed(words)
    print(f"{study.title}: {study.question}\n")
    for recipe in study.recipes:
        print(f"  {recipe.title}  seed={recipe.seed}  run id {identity(recipe)}")
    print(f"\n`numerate show {study.recipes[0].title}` shows the settings of one")

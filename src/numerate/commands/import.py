"""`numerate import FOLDER`: imports a Hugging Face folder, or published dual attention weights, as a run."""

import argparse
from collections.abc import Callable
from typing import Any

from numerate.commands.words import first, no_more, options, settings
from numerate.config import override
from numerate.experiments.exporting import import_folder, import_published
from numerate.studies.naming import named_recipe


def command(given: argparse.Namespace) -> int:
    folder = first(given.words, "the folder", "numerate import finetuned")
    kinds: dict[str, Callable[[str], Any]] = {
        "runs_dir": str,
        "name": str,
        "recipe": str,
        "check": str,
        "tolerance": float,
    }
    words, own = options(given.words[1:], kinds)
    named = own.pop("recipe", None)
    if named is not None:
        print(import_published(folder, override(named_recipe(named), words), **own).path)
        return 0
    words, changes = settings(words)
    no_more(words, [*kinds])
    print(import_folder(folder, settings=changes, **own).path)
    return 0

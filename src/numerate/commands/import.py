"""`numerate import FOLDER`: imports a Hugging Face folder, or published dual attention weights, as a run."""

import argparse
from collections.abc import Callable
from typing import Any

from numerate.commands.words import check_no_more_words, parse_options, require_word, split_settings
from numerate.config import override
from numerate.experiments.exporting import import_folder, import_published
from numerate.studies.naming import load_recipe


def command(args: argparse.Namespace) -> int:
    folder = require_word(args.words, "the folder", "numerate import finetuned")
    parsers: dict[str, Callable[[str], Any]] = {
        "runs_dir": str,
        "name": str,
        "recipe": str,
        "check": str,
        "tolerance": float,
    }
    words, option_values = parse_options(args.words[1:], parsers)
    recipe_name = option_values.pop("recipe", None)
    if recipe_name is not None:
        print(import_published(folder, override(load_recipe(recipe_name), words), **option_values).path)
        return 0
    words, changes = split_settings(words)
    check_no_more_words(words, [*parsers])
    print(import_folder(folder, settings=changes, **option_values).path)
    return 0

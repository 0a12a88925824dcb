"""Recipes by name: a table for each paper; the recipes that its rows are based on are in its `..._paper` module.

Studies, which compare several of them, are in `studies`.
"""

from importlib import import_module

from numerate.catalogue import lazy_getattr

_ROWS = {
    module: import_module(f"numerate.recipes.{module}").ROWS
    for module in ("abacus", "inductive_counting", "number_loss", "dual_attention")
}
_STUDIES = (
    *("quickstart", "abacus_laptop", "counting_laptop", "counting_universal", "number_loss_laptop"),
    *("number_loss_laptop_stand_in", "number_loss_lambda", "tiny_stories_laptop"),
)
CATALOGUE = {
    "Recipe": {name: module for module, rows in _ROWS.items() for name in rows},
    "Study": dict.fromkeys(_STUDIES, "studies"),
}
SUMMARIES = {"Recipe": {name: row.summary for rows in _ROWS.values() for name, row in rows.items()}}
FAMILIES = {"Recipe": {"tiny_stories_RUN": "dual_attention", "counting_TASK_MODEL": "inductive_counting"}}
__getattr__ = lazy_getattr("recipes", CATALOGUE)

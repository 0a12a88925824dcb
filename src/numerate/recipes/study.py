"""A study: several recipes that answer one question, and the key that says whether a result is that of a recipe."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from typing import Any

from numerate.config import expand_sweep, fingerprint, identity, override, to_tree
from numerate.config.differences import SETTINGS_WITHOUT_EFFECT, flatten_settings
from numerate.config.saving import TreeCache
from numerate.errors import UserError
from numerate.training.recipe import Recipe
from numerate.training.run_folder import folder_name

RESULT_VERSION = 1
"""Part of every content key. Increased when the meaning of an unchanged recipe changes."""


def content_key(recipe: object, cache: TreeCache | None = None) -> str:
    """A hash (16 hexadecimal characters) of all settings that affect results.

    Unlike `config.identity`, which identifies a run, it also includes the budget and the evaluation. A recipe with
    `init_from` includes the id of that run, not its location.
    """
    return fingerprint((RESULT_VERSION, recipe), _affects_results, cache)[:16]


def _affects_results(part: type, field: "Field[Any]") -> bool:
    return field.name not in SETTINGS_WITHOUT_EFFECT.get(part.__name__, ())


@dataclass(frozen=True)
class Study:
    """Recipes to compare. `question` is the question that the comparison answers.

    >>> import numerate
    >>> recipe = numerate.recipe("addition_abacus")
    >>> study = Study("widths", "How wide must it be?", [recipe]).sweep(["model.hidden_size=32,64,128", "seeds=5"])
    >>> len(study.recipes)
    15

    `numerate.run_study(study, workers=2)` runs it.

    Raises `UserError` for a title that cannot name a folder, and for anything other than a `Recipe`.
    """

    title: str
    question: str
    recipes: Sequence[Recipe]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Name in the report for each recipe title."""
    missing_files_hint: str = ""
    """Message if files that its tasks and tokenizers need are missing."""

    def __post_init__(self) -> None:
        folder_name(self.title)
        object.__setattr__(self, "recipes", tuple(self.recipes))
        for recipe in self.recipes:
            if not isinstance(recipe, Recipe):
                raise UserError(f"study {self.title}: {recipe!r} must be a Recipe")

    def sweep(self, overrides: Sequence[str]) -> "Study":
        """Every recipe with every combination of overrides: `["seeds=3", "model.hidden_size=64,128"]` makes six."""
        choices, cache = expand_sweep(overrides), TreeCache()
        unique_recipes: dict[tuple[str, str], Recipe] = {}
        for recipe in self.recipes:
            for choice in choices:
                overridden = override(recipe, choice)
                check_not_conflicting(
                    unique_recipes.setdefault((overridden.title, identity(overridden, cache)), overridden), overridden
                )
        return replace(self, recipes=tuple(unique_recipes.values()))


def comparison_study(
    title: str,
    question: str,
    labels_by_recipe: Mapping[Callable[[], Recipe], str],
    *,
    seeds: int,
    missing_files_hint: str = "",
) -> Study:
    """A study that compares recipes, each with seeds 0, 1, ...; `labels_by_recipe` has their names in the report.

    >>> from numerate.recipes import addition_abacus, addition_rotary
    >>> labels = {addition_abacus: "Abacus", addition_rotary: "rotary"}
    >>> len(comparison_study("positions", "Which positions?", labels, seeds=5).recipes)
    10
    """
    recipes = [make() for make in labels_by_recipe]
    return Study(
        title=title,
        question=question,
        recipes=tuple(replace(recipe, seed=seed) for seed in range(seeds) for recipe in recipes),
        labels={recipe.title: label for recipe, label in zip(recipes, labels_by_recipe.values(), strict=True)},
        missing_files_hint=missing_files_hint,
    )


def check_not_conflicting(other: Recipe, recipe: Recipe) -> None:
    """Raises `UserError` if two recipes are the same run with two budgets or grids: only one of them would be
    executed."""
    if other is recipe or content_key(other) == content_key(recipe):
        return
    old, new = (flatten_settings(to_tree(one)) for one in (other, recipe))
    changes = [f"{path}={old[path]},{new[path]}" for path in new if path in old and old[path] != new[path]]
    raise UserError(
        f"{', '.join(changes[:3])}: these are the same run of {recipe.title}: a larger budget extends it, another grid "
        "re-evaluates it; give one value at a time, or recipes of another title="
    )

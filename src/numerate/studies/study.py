"""A study: several recipes with one question behind them, trained side by side, evaluated alike, drawn together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from numerate.config import expand, identity, override
from numerate.errors import Mistake
from numerate.reports.compare import write_comparison, write_figure
from numerate.studies.local import Done, run_all
from numerate.training.recipe import Recipe
from numerate.training.run import runs_directory


@dataclass(frozen=True)
class Study:
    """Recipes to be compared. `question` says what for, in a sentence."""

    title: str
    question: str
    recipes: tuple[Recipe, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Per title of a recipe: how it is called in the report."""

    def crossed(self, overrides: Sequence[str]) -> "Study":
        """Every recipe with every combination of overrides: `["seeds=3", "model.width=64,128"]` makes six of each."""
        runs = [override(recipe, choice) for recipe in self.recipes for choice in expand(overrides)]
        once = {(recipe.title, identity(recipe)): recipe for recipe in runs}
        return replace(self, recipes=tuple(once.values()))


def run_study(
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> tuple[Path | None, list[Done]]:
    """Trains and evaluates every recipe of a study, as many at once as there are cores; writes its report and figure.

    What is done already is not done again. Returns the path of the report (None where no run has results) and how each
    run ended. A script that calls this needs `if __name__ == "__main__":` around it, as with every use of
    `multiprocessing`: each worker imports the script anew. Raises `Mistake` for a study without recipes.
    """
    if not study.recipes:
        raise Mistake(f"study {study.title}: has no recipes")
    runs = runs_directory(runs_dir)
    done = run_all(study.recipes, runs, label=study.title, workers=workers, say=say)
    folders = [one.path for one in done if one.path is not None and one.error is None]
    if not folders:
        return None, done
    page = write_comparison(folders, runs / study.title / "report.html", title=study.question, labels=study.labels)
    write_figure(folders, page.with_name("figure.png"), labels=study.labels)
    return page, done

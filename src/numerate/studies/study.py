"""A study: several recipes with one question behind them, trained side by side, evaluated alike, drawn together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from numerate.config import expand, identity, override, to_tree
from numerate.config.saving import Known
from numerate.errors import Mistake
from numerate.executors.executor import Executor
from numerate.laboratory.start import source_of
from numerate.reports.compare import comparison_page
from numerate.reports.figures import save
from numerate.reports.groups import grouped
from numerate.reports.page import write_text
from numerate.reports.plots import compare_figure
from numerate.reports.records import read_each
from numerate.studies.folder import Asked, Planned, StudyFolder, content_key
from numerate.studies.running import Done, Running
from numerate.training.recipe import Recipe
from numerate.training.run import folder_name, runs_directory


@dataclass(frozen=True)
class Study:
    """Recipes to be compared. `question` says what for, in a sentence.

    >>> recipe = numerate.recipe("addition_abacus")
    >>> study = Study("widths", "How wide must it be?", [recipe]).crossed(["model.width=32,64,128", "seeds=5"])
    >>> numerate.run_study(study, workers=2)

    Raises `Mistake` for a title that cannot name a folder, and for what is no recipe.
    """

    title: str
    question: str
    recipes: Sequence[Recipe]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Per title of a recipe: how it is called in the report."""

    def __post_init__(self) -> None:
        folder_name(self.title)
        object.__setattr__(self, "recipes", tuple(self.recipes))
        for recipe in self.recipes:
            if not isinstance(recipe, Recipe):
                raise Mistake(f"study {self.title}: {recipe!r} is no recipe")

    def crossed(self, overrides: Sequence[str]) -> "Study":
        """Every recipe with every combination of overrides: `["seeds=3", "model.width=64,128"]` makes six of each."""
        choices, known = expand(overrides), Known()
        runs = [override(recipe, choice) for recipe in _bases(self.recipes, choices[0]) for choice in choices]
        once = {(recipe.title, identity(recipe, known)): recipe for recipe in runs}
        return replace(self, recipes=tuple(once.values()))


def _bases(recipes: Sequence[Recipe], choice: Sequence[str]) -> Sequence[Recipe]:
    """One of those recipes that are the same once something is chosen: five seeds of one, where the seed is."""
    try:
        return list({override(recipe, choice): recipe for recipe in recipes}.values())
    except TypeError:  # a part of the user's own that cannot be compared quickly
        return recipes


@dataclass(frozen=True)
class Survey:
    """What a command would find: `script` is what would be submitted, where the executor submits one."""

    folder: StudyFolder
    done: int
    half: int
    failed: int
    new: int
    script: str | None = None

    def __str__(self) -> str:
        counts = [
            ("done", self.done, ""),
            ("half done", self.half, "; they go on"),
            ("failed", self.failed, "; retry=true tries them again"),
            ("new", self.new, ""),
        ]
        lines = [f"  {name:<10} {count:>8,}{more if count else ''}" for name, count, more in counts]
        return "\n".join(lines)


def run_study(
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    retry: bool = False,
    say: Callable[[str], None] | None = None,
) -> tuple[Path | None, list[Done]]:
    """Trains and evaluates every recipe of a study, as many at once as there are cores; writes its report and figure.

    What is done already is not done again; what was stopped goes on; what failed is listed with its error, and tried
    again with `retry`. Returns the path of the report (None where no run has results, or it was stopped) and how each
    run ended. `executor` is who does it (`Local()` by default), `workers` how many at once; `say` is told what is
    shown. A script that calls this needs `if __name__ == "__main__":` around it, as with every use of
    `multiprocessing`: each worker imports the script anew. Raises `Mistake` for a study without recipes.
    """
    runs = runs_directory(runs_dir)
    running = Running(*_planned(study, runs, write=True), executor=_executor(executor, workers), retry=retry, say=say)
    done = running.run()
    folders = [one.path for one in done if one.path is not None and one.error is None]
    if running.stopped or not folders:
        return None, done
    return _report(study, running, folders), done


def survey(
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    retry: bool = False,
    script: bool = False,
) -> Survey:
    """What `run_study` would find and, with `script`, what its executor would submit. Writes and begins nothing."""
    chosen = _executor(executor, workers)
    running = Running(*_planned(study, runs_directory(runs_dir), write=False), executor=chosen, retry=retry)
    failed = 0 if retry else len(running.failed)
    half = running.folder.present([planned.run for planned in running.left])
    text = chosen.script(running.work, running.items(), running.folder.path) if script and running.left else None
    return Survey(running.folder, len(running.done), len(half), failed, len(running.left) - len(half), text)


def _executor(given: Executor | None, workers: int | None) -> Executor:
    from numerate.executors.local import Local

    executor = given or Local()
    return executor if workers is None else replace(executor, workers=workers)


def _planned(study: Study, runs: Path, *, write: bool) -> tuple[StudyFolder, list[Planned], dict[str, Recipe]]:
    """The study's runs as lines of its plan, and their recipes."""
    if not study.recipes:
        raise Mistake(f"study {study.title}: has no recipes")
    names, keys, trees = Known(), Known(), Known()
    recipes: dict[str, Recipe] = {}
    asked = []
    for given in study.recipes:
        recipe, resolved = _begun_from(given, runs)
        run = f"{folder_name(recipe.title)}/{identity(resolved, names)}"
        if run not in recipes:
            asked.append(Asked(run, content_key(resolved, keys), to_tree(recipe, known=trees)))
        recipes[run] = recipe
    folder = StudyFolder.of(study.title, runs)
    return folder, folder.ask(asked, question=study.question, labels=study.labels, write=write), recipes


def _begun_from(recipe: Recipe, runs: Path) -> tuple[Recipe, Recipe]:
    """A recipe that begins from another run, with that run's path, so that a worker finds the same; and with its id, by
    which it counts. As it is where there is no such run, which the worker then says."""
    if recipe.init_from is None:
        return recipe, recipe
    try:
        source = source_of(recipe, runs)
    except Mistake:
        return recipe, recipe
    assert source is not None
    return replace(recipe, init_from=str(source.path.resolve())), replace(recipe, init_from=source.id)


def _report(study: Study, running: Running, folders: Sequence[Path]) -> Path:
    """Writes the page and the figure, unless they are there and nothing has changed since."""
    page = running.folder.path / "report.html"
    mark = running.mark(study.question, study.labels)
    if not page.is_file() or running.folder.head().get("reported") != mark:
        groups = grouped(read_each(folders), study.labels)
        write_text(page, comparison_page(groups, study.question))
        save(compare_figure(groups), page.with_name("figure.png"))
        running.folder.note(reported=mark)
    return page

"""A study: several recipes with one question behind them, trained side by side, evaluated alike, drawn together."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from numerate.config import expand, identity, override, to_tree
from numerate.config.saving import Known
from numerate.errors import UserError
from numerate.executors.executor import Executor
from numerate.experiments.start import source_of
from numerate.reports.compare import comparison_page
from numerate.reports.figures import save
from numerate.reports.groups import grouped
from numerate.reports.page import write_text
from numerate.reports.plots import compare_figure
from numerate.reports.records import read_each
from numerate.studies.folder import Planned, RequestedRun, StudyFolder, content_key
from numerate.studies.patch import patch
from numerate.studies.running import Done, Running
from numerate.tasks.task import Task
from numerate.training import checkpoint
from numerate.training.preflight import refuse_other_contents
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, folder_name, runs_directory


@dataclass(frozen=True)
class Study:
    """Recipes to be compared. `question` says what for, in a sentence.

    >>> recipe = numerate.recipe("addition_abacus")
    >>> study = Study("widths", "How wide must it be?", [recipe]).crossed(["model.hidden_size=32,64,128", "seeds=5"])
    >>> numerate.run_study(study, workers=2)

    Raises `UserError` for a title that cannot name a folder, and for what is no recipe.
    """

    title: str
    question: str
    recipes: Sequence[Recipe]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Per title of a recipe: how it is called in the report."""
    instead: str = ""
    """What to say to whoever has not the files that its tasks and tokenizers read."""

    def __post_init__(self) -> None:
        folder_name(self.title)
        object.__setattr__(self, "recipes", tuple(self.recipes))
        for recipe in self.recipes:
            if not isinstance(recipe, Recipe):
                raise UserError(f"study {self.title}: {recipe!r} is no recipe")

    def crossed(self, overrides: Sequence[str]) -> "Study":
        """Every recipe with every combination of overrides: `["seeds=3", "model.hidden_size=64,128"]` makes six."""
        choices, known = expand(overrides), Known()
        once: dict[tuple[str, str], Recipe] = {}
        for recipe in self.recipes:
            for choice in choices:
                made = override(recipe, choice)
                _refuse_two_of_one(once.setdefault((made.title, identity(made, known)), made), made)
        return replace(self, recipes=tuple(once.values()))


def compared(
    title: str, question: str, ways: Mapping[Callable[[], Recipe], str], *, seeds: int, instead: str = ""
) -> Study:
    """The study of several ways to do one thing, each with seeds 0, 1, ...: recipes with what the report calls them.

    >>> compared("positions", "Which positions?", {addition_abacus: "Abacus", addition_rotary: "rotary"}, seeds=5)
    """
    recipes = [make() for make in ways]
    return Study(
        title=title,
        question=question,
        recipes=tuple(replace(recipe, seed=seed) for seed in range(seeds) for recipe in recipes),
        labels={recipe.title: label for recipe, label in zip(recipes, ways.values(), strict=True)},
        instead=instead,
    )


def _refuse_two_of_one(known: Recipe, recipe: Recipe) -> None:
    """Raises `UserError` where two recipes are one run with two budgets or grids: only one of them would be done."""
    if known is recipe or content_key(known) == content_key(recipe):
        return
    theirs, ours = patch(to_tree(recipe), to_tree(known)), patch(to_tree(known), to_tree(recipe))
    what = ", ".join(f"{path}={theirs[path]},{ours[path]}" for path in list(ours)[:3] if path in theirs)
    raise UserError(
        f"{what}: these are one run of {recipe.title}: a larger budget extends it, another grid measures it again; "
        "give one value at a time, or recipes of another title="
    )


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
            ("half done", self.half, "; they continue"),
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

    What is done already is not done again; what was stopped resumes; what failed is listed with its error, and tried
    again with `retry`. Returns the path of the report (None where no run has results, or it was stopped) and how each
    run ended. `executor` runs it (`Local()` by default) with `workers` at once; `say` is called with each message
    shown. A script that calls this needs `if __name__ == "__main__":` around it, as with every use of
    `multiprocessing`: each worker imports the script anew. Raises `UserError` for a study without recipes, and, for a
    study with `instead`, for missing files before anything starts.
    """
    runs, chosen = runs_directory(runs_dir), _executor(executor, workers)
    chosen.ready()
    _refuse_without_files(study)
    _warn_of_another(study, runs)
    running = Running(*_planned(study, runs, write=True), executor=chosen, retry=retry, say=say)
    done = running.run()
    folders = [one.path for one in done if one.path is not None and one.error is None]
    if running.stopped or not folders:
        return None, done
    _warn_of_longer(running)
    failed = [(one.label, one.error) for one in done if one.error is not None]
    return _report(study, running, folders, failed), done


def survey(
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    retry: bool = False,
    script: bool = False,
) -> Survey:
    """What `run_study` would find and, with `script`, what its executor would submit. Writes and starts nothing."""
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
        raise UserError(f"study {study.title}: has no recipes")
    names, keys, trees = Known(), Known(), Known()
    recipes: dict[str, Recipe] = {}
    requested = []
    for given in study.recipes:
        recipe, resolved = _begun_from(given, runs)
        run = f"{folder_name(recipe.title)}/{identity(resolved, names)}"
        if run not in recipes:
            requested.append(RequestedRun(run, content_key(resolved, keys), to_tree(recipe, known=trees)))
        _refuse_two_of_one(recipes.setdefault(run, recipe), recipe)
    folder = StudyFolder.of(study.title, runs)
    _refuse_other_contents(folder, recipes)
    return folder, folder.ask(requested, question=study.question, labels=study.labels, write=write), recipes


def _refuse_other_contents(folder: StudyFolder, recipes: Mapping[str, Recipe]) -> None:
    """Raises `UserError` where files that runs of a study were trained on have changed since one was begun, done or
    not. Of files that are not there each run says so itself."""
    read: dict[Task, bool] = {}
    for run in folder.present(list(recipes)):
        task = recipes[run].task
        if task not in read:
            try:
                read[task] = bool(task.contents())
            except UserError:
                read[task] = False
        path = folder.runs / run
        if read[task] and checkpoint.steps(path / "checkpoints"):
            refuse_other_contents(task, RunFolder.open(path).head(), path)


def _begun_from(recipe: Recipe, runs: Path) -> tuple[Recipe, Recipe]:
    """A recipe with `init_from` as the path of that run, so that a worker finds the same; and as its id, which is
    hashed. Unchanged where there is no such run, which the worker then reports."""
    if recipe.init_from is None:
        return recipe, recipe
    try:
        source = source_of(recipe, runs)
    except UserError:
        return recipe, recipe
    assert source is not None
    return replace(recipe, init_from=str(source.path.resolve())), replace(recipe, init_from=source.id)


def _refuse_without_files(study: Study) -> None:
    """Raises `UserError` with all that is lacking, where a study says what to do then. Others find out run by run."""
    if not study.instead:
        return
    lacking: dict[str, None] = {}
    tasks = dict.fromkeys(recipe.task for recipe in study.recipes)
    tokenizers = dict.fromkeys(recipe.tokenizer for recipe in study.recipes)
    for reads in ([task.ready for task in tasks], [tokenizer.fingerprint for tokenizer in tokenizers]):
        try:
            for read in reads:
                read()
        except UserError as error:  # one of each is enough: looking for a name on the hub takes its time
            lacking[str(error)] = None
    if lacking:
        raise UserError("\n".join([f"study {study.title}: it reads files that are not there", *lacking, study.instead]))


def _warn_of_another(study: Study, runs: Path) -> None:
    """Two studies of one title share a folder: their runs are in one table, and the later report replaces the other."""
    before = str(StudyFolder.of(study.title, runs).head()["question"])
    alone = ("A sweep of ", "One run of ")
    if before and before != study.question and not before.startswith(alone) and not study.question.startswith(alone):
        warnings.warn(
            f"{runs / folder_name(study.title)}: holds a study with another question ({before!r}); the two share a "
            "table, and this report replaces that one; another title keeps them apart",
            stacklevel=3,
        )


def _warn_of_longer(running: Running) -> None:
    """A run that another command has trained further since is shown as it is now, not as it was counted here."""
    longer = []
    for planned in running.plan:
        record, path = running.done.get(planned.run), running.folder.runs / planned.run
        if record is not None and max(checkpoint.steps(path / "checkpoints"), default=0) > record.get("step", 0):
            longer.append(planned.called)
    if longer:
        more = f" and {len(longer) - 3} more" if len(longer) > 3 else ""
        warnings.warn(
            f"{', '.join(longer[:3])}{more}: trained further since, by another command; the report shows them at their "
            "last step and the others at the budget of this study; another title= of a recipe keeps its runs apart",
            stacklevel=3,
        )


def _report(study: Study, running: Running, folders: Sequence[Path], failed: Sequence[tuple[str, str]]) -> Path:
    """Writes the page and the figure, unless they are there and nothing has changed since."""
    page = running.folder.path / "report.html"
    there = {planned.label for planned in running.plan if planned.run in running.done}
    absent = list(dict.fromkeys(planned.label for planned in running.plan if planned.label not in there))
    mark = running.mark(study.question, study.labels, failed, absent)
    if not page.is_file() or running.folder.head().get("reported") != mark:
        groups = grouped(read_each(folders), study.labels)
        write_text(page, comparison_page(groups, study.question, failed=failed, absent=absent))
        save(compare_figure(groups), page.with_name("figure.png"))
        running.folder.note(reported=mark)
    return page

"""A study: several recipes that answer one question: trained, evaluated and plotted together."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from numerate.config import expand_sweep, identity, override, refuse_while_loading, to_tree
from numerate.config.saving import TreeCache
from numerate.errors import UserError
from numerate.executors.executor import Executor
from numerate.reports.groups import group_runs
from numerate.reports.matplotlib_writer import save_figure
from numerate.reports.output_files import write_output
from numerate.reports.page import comparison_page
from numerate.reports.plots import compare_figure
from numerate.reports.records import read_runs
from numerate.runs.initial_weights import initial_run
from numerate.runs.patch import tree_diff
from numerate.studies.folder import PlannedRun, RequestedRun, StudyFolder, content_key
from numerate.studies.running import RunOutcome, StudyRunner
from numerate.tasks.task import Task
from numerate.training import checkpoint
from numerate.training.preflight import check_unchanged_files
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, folder_name, resolve_runs_dir


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
                _check_not_conflicting(
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


def _check_not_conflicting(other: Recipe, recipe: Recipe) -> None:
    """Raises `UserError` if two recipes are the same run with two budgets or grids: only one of them would be
    executed."""
    if other is recipe or content_key(other) == content_key(recipe):
        return
    other_values, values = tree_diff(to_tree(recipe), to_tree(other)), tree_diff(to_tree(other), to_tree(recipe))
    changes = ", ".join(
        f"{path}={other_values[path]},{values[path]}" for path in list(values)[:3] if path in other_values
    )
    raise UserError(
        f"{changes}: these are the same run of {recipe.title}: a larger budget extends it, another grid re-evaluates "
        "it; give one value at a time, or recipes of another title="
    )


@dataclass(frozen=True)
class StudyPreview:
    """A preview of a command: the runs by state, and the `script` that the executor would submit, if it submits one."""

    folder: StudyFolder
    num_done: int
    num_resumable: int
    num_failed: int
    num_new: int
    script: str | None = None

    def __str__(self) -> str:
        counts = [
            ("done", self.num_done, ""),
            ("unfinished", self.num_resumable, "; they will resume"),
            ("failed", self.num_failed, "; retry=true runs them again"),
            ("new", self.num_new, ""),
        ]
        lines = [f"  {name:<10} {count:>8,}{note if count else ''}" for name, count, note in counts]
        return "\n".join(lines)


def run_study(
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    retry: bool = False,
    on_message: Callable[[str], None] | None = None,
) -> tuple[Path | None, list[RunOutcome]]:
    """Trains and evaluates every recipe of a study, in parallel on all cores, and writes its report and figure.

    Completed runs are not repeated, stopped ones resume, and failed ones are listed with their error, or run again with
    `retry`. Returns the path of the report (None if no run has results, or the study was stopped) and how each run
    ended. `executor` runs it with `workers` at once, by default `Local()`; with `workers=1` and no executor it is this
    process (`InProcess`). Otherwise a script that calls this needs `if __name__ == "__main__":` around it, as with all
    uses of `multiprocessing`: each worker imports the script again. `on_message` is called with each message shown.
    Raises `UserError` for a study without recipes and, if the study has a `missing_files_hint`, for missing files,
    before anything starts.
    """
    refuse_while_loading("run_study")
    runs, resolved_executor = resolve_runs_dir(runs_dir), _resolve_executor(executor, workers)
    resolved_executor.check_available()
    _check_files_exist(study)
    _warn_if_title_is_shared(study, runs)
    runner = StudyRunner(
        *_plan_runs(study, runs, write=True), executor=resolved_executor, retry=retry, on_message=on_message
    )
    outcomes = runner.run()
    folders = [outcome.path for outcome in outcomes if outcome.path is not None and outcome.error is None]
    if runner.stopped or not folders:
        return None, outcomes
    _warn_if_trained_further(runner)
    failed = [(outcome.label, outcome.error) for outcome in outcomes if outcome.error is not None]
    return _write_report(study, runner, folders, failed), outcomes


def preview_study(
    study: Study,
    *,
    runs_dir: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    retry: bool = False,
    script: bool = False,
) -> StudyPreview:
    """A preview of `run_study`: the runs by state and, with `script`, the script that its executor would submit. Writes
    and starts nothing."""
    resolved_executor = _resolve_executor(executor, workers)
    runner = StudyRunner(
        *_plan_runs(study, resolve_runs_dir(runs_dir), write=False), executor=resolved_executor, retry=retry
    )
    num_failed = 0 if retry else len(runner.failed_results)
    existing_runs = runner.folder.existing_runs([planned.run for planned in runner.remaining])
    text = (
        resolved_executor.script(runner.work, runner.items(), runner.folder.path)
        if script and runner.remaining
        else None
    )
    return StudyPreview(
        runner.folder,
        len(runner.done_results),
        len(existing_runs),
        num_failed,
        len(runner.remaining) - len(existing_runs),
        text,
    )


def _resolve_executor(executor_or_none: Executor | None, workers: int | None) -> Executor:
    from numerate.executors.in_process import InProcess
    from numerate.executors.local import Local

    if executor_or_none is None and workers == 1:
        return InProcess()
    executor = executor_or_none or Local()
    return executor if workers is None else replace(executor, workers=workers)


def _plan_runs(study: Study, runs: Path, *, write: bool) -> tuple[StudyFolder, list[PlannedRun]]:
    """The study's runs as lines of its plan."""
    if not study.recipes:
        raise UserError(f"study {study.title}: has no recipes")
    identity_cache, key_cache, tree_cache = TreeCache(), TreeCache(), TreeCache()
    recipes: dict[str, Recipe] = {}
    requested = []
    for requested_recipe in study.recipes:
        recipe, resolved = _resolve_init_from(requested_recipe, runs)
        run = f"{folder_name(recipe.title)}/{identity(resolved, identity_cache)}"
        if run not in recipes:
            requested.append(RequestedRun(run, content_key(resolved, key_cache), to_tree(recipe, cache=tree_cache)))
        _check_not_conflicting(recipes.setdefault(run, recipe), recipe)
    folder = StudyFolder.from_title(study.title, runs)
    _check_data_unchanged(folder, recipes)
    return folder, folder.update_plan(requested, question=study.question, labels=study.labels, write=write)


def _check_data_unchanged(folder: StudyFolder, recipes: Mapping[str, Recipe]) -> None:
    """Raises `UserError` if data files have changed since a run of the study was started, finished or not. Missing
    files are reported run by run."""
    has_files: dict[Task, bool] = {}
    for run in folder.existing_runs(list(recipes)):
        task = recipes[run].task
        if task not in has_files:
            try:
                has_files[task] = bool(task.file_hashes())
            except UserError:
                has_files[task] = False
        path = folder.runs_dir / run
        if has_files[task] and checkpoint.list_steps(path / "checkpoints"):
            check_unchanged_files(task, RunFolder.open(path).metadata(), path)


def _resolve_init_from(recipe: Recipe, runs: Path) -> tuple[Recipe, Recipe]:
    """A recipe with `init_from` as the path of that run, so that workers find the same one; and as its id, which is
    hashed. Unchanged if there is no such run, which the worker then reports."""
    if recipe.init_from is None:
        return recipe, recipe
    try:
        source = initial_run(recipe, runs)
    except UserError:
        return recipe, recipe
    assert source is not None
    return replace(recipe, init_from=str(source.path.resolve())), replace(recipe, init_from=source.id)


def _check_files_exist(study: Study) -> None:
    """Raises `UserError` that lists missing files, if the study has a hint for that; otherwise they are reported run by
    run."""
    if not study.missing_files_hint:
        return
    missing: dict[str, None] = {}
    tasks = dict.fromkeys(recipe.task for recipe in study.recipes)
    tokenizers = dict.fromkeys(recipe.tokenizer for recipe in study.recipes)
    for checks in ([task.check_files for task in tasks], [tokenizer.fingerprint for tokenizer in tokenizers]):
        try:
            for check in checks:
                check()
        except UserError as error:  # one of each is enough: looking up a name on the hub takes time
            missing[str(error)] = None
    if missing:
        raise UserError("\n".join([f"study {study.title}: files are missing", *missing, study.missing_files_hint]))


def _warn_if_title_is_shared(study: Study, runs: Path) -> None:
    """Warns about two studies with the same title: their runs are in one table, and the later report replaces the
    other."""
    other_question = str(StudyFolder.from_title(study.title, runs).metadata()["question"])
    generated_questions = ("A sweep of ", "One run of ")
    if (
        other_question
        and other_question != study.question
        and not other_question.startswith(generated_questions)
        and not study.question.startswith(generated_questions)
    ):
        warnings.warn(
            f"{runs / folder_name(study.title)}: contains a study with another question ({other_question!r}); the two "
            "share a table, and this report replaces that one; use another title to separate them",
            stacklevel=3,
        )


def _warn_if_trained_further(runner: StudyRunner) -> None:
    """Warns about runs that another command has trained further since: the report shows their last step."""
    trained_further = []
    for planned in runner.plan:
        record, path = runner.done_results.get(planned.run), runner.folder.runs_dir / planned.run
        if record is not None and checkpoint.last_step(path / "checkpoints") > record.get("step", 0):
            trained_further.append(planned.display_name)
    if trained_further:
        more = f" and {len(trained_further) - 3} more" if len(trained_further) > 3 else ""
        warnings.warn(
            f"{', '.join(trained_further[:3])}{more}: trained further since, by another command; the report shows them "
            "at their last step and the others at the budget of this study; use another title= of the recipe to "
            "separate its runs",
            stacklevel=3,
        )


def _write_report(
    study: Study, runner: StudyRunner, folders: Sequence[Path], failed: Sequence[tuple[str, str]]
) -> Path:
    """Writes the page and the figure, unless they exist and nothing has changed since."""
    page = runner.folder.path / "report.html"
    present_variants = {planned.label for planned in runner.plan if planned.run in runner.done_results}
    missing_variants = list(
        dict.fromkeys(planned.label for planned in runner.plan if planned.label not in present_variants)
    )
    content_hash = runner.content_hash(study.question, study.labels, failed, missing_variants)
    if not page.is_file() or runner.folder.metadata().get("reported") != content_hash:
        groups = group_runs(read_runs(folders), study.labels)
        text = comparison_page(groups, study.question, failed_runs=failed, missing_variants=missing_variants)
        write_output(page, text.encode(), place="runs")
        if (figure := compare_figure(groups)).drawn_panels:
            save_figure(figure, page.with_name("figure.png"))
        runner.folder.update_metadata(reported=content_hash)
    return page

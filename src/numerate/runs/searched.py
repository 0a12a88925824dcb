"""The result of a search: its trials as a table, and the command that evaluates the best."""

import csv
import html
import io
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from numerate.errors import UserError
from numerate.reports.table import text_table
from numerate.runs.space import Space, value_text
from numerate.runs.trials import Search, Trial
from numerate.training import disk
from numerate.training.progress import ProgressBar
from numerate.training.recipe import Recipe

NUM_FRESH_SEEDS = 5
"""Number of seeds in the command proposed for the best trial; none of them was used for its selection."""

_MAX_SHOWN = 10
_METRIC_DESCRIPTIONS = {
    "ood_validation": "ood_validation (OOD validation)",
    "validation": "validation (held-out questions in distribution)",
    "loss": "the last training loss",
    "validation_loss": "the lowest validation loss, in nats per token",
}


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The result of a search so far. Displays as a table of the best trials and the next command.

    `trials` are all trials in the order in which they were started, `exit_status` is that of the command;
    `command_words` are the recipe and its options in the next command.
    """

    search: Search
    trials: tuple[Trial, ...]
    importances: Mapping[str, float]
    exit_status: int
    command_words: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The folder of the search."""
        return self.search.path

    @property
    def num_left(self) -> int:
        """The number of unfinished trials."""
        return max(0, self.search.num_trials - sum(trial.state != "running" for trial in self.trials))

    @property
    def ranked_trials(self) -> list[Trial]:
        """The complete trials, best first; ties in the order of the trials."""
        return self.search.rank(self.trials)

    @property
    def best_trial(self) -> Trial:
        """The best trial. Raises `UserError` if none is complete."""
        if not (ranked := self.ranked_trials):
            raise UserError(f"{self.path}: no trial is complete")
        return ranked[0]

    @property
    def best_recipe(self) -> Recipe:
        """The recipe of the best trial's first run, which `train` finds done. Raises `UserError` if there is none."""
        return self.best_trial.runs[0].recipe

    def settings(self, trial: Trial) -> list[str]:
        """The settings of a trial as `path=value` words for `numerate train`."""
        return self.search.space.settings(trial.parameters)

    def next_command(self) -> str:
        """The command that trains and evaluates the best settings on new seeds."""
        first = max(self.search.seeds) + 1
        seeds = ",".join(str(seed) for seed in range(first, first + NUM_FRESH_SEEDS))
        name, *options = self.command_words
        return shlex.join(["numerate", "run", name, *self.settings(self.best_trial), f"seed={seeds}", *options])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def text(self, width: int | None = None) -> str:
        """The best trials as a table, which is divided to fit into the `width` of a terminal, and notes."""
        return "\n\n".join(part for part in (self._table(width), "\n".join(self._notes())) if part)

    def _table(self, width: int | None) -> str:
        search, ranked = self.search, self.ranked_trials[:_MAX_SHOWN]
        if not ranked:
            return ""
        metric, has_several_seeds = ranked[0].results["metric"], len(search.seeds) > 1
        columns: dict[str, Callable[[Trial], str]] = {
            "trial": lambda trial: str(trial.number),
            metric: lambda trial: search.value_text(trial.results["value"]),
        }
        if any(trial.results["low"] is not None for trial in ranked):
            name = f"of {len(search.seeds)} seeds" if has_several_seeds else "95 % interval"
            columns[name] = lambda trial: " to ".join(search.value_text(trial.results[end]) for end in ("low", "high"))
        if metric == "ood_validation":
            columns["validation"] = lambda trial: search.value_text(median(_of_runs(trial, "validation")))
        for path, short in short_names(search.space).items():
            columns[short] = lambda trial, path=path: value_text(trial.parameters[path])  # type: ignore[misc]
        columns["steps"] = lambda trial: ", ".join(dict.fromkeys(map(str, _of_runs(trial, "steps"))))
        columns["run"] = lambda trial: ", ".join(run.folder.id for run in trial.runs)
        return text_table(list(columns), [[column(trial) for column in columns.values()] for trial in ranked], width)

    def _notes(self) -> Iterator[str]:
        counts, search, ranked = Counter(trial.state for trial in self.trials), self.search, self.ranked_trials
        parts = [f"{counts['complete']} of {max(search.num_trials, len(self.trials))} trials are complete"]
        others = (counts["pruned"], "stopped early"), (counts["failed"], "failed")
        parts += [f"{count} {how}" for count, how in others if count]
        parts += [f"{self.num_left} not finished; the same command resumes"] * bool(self.num_left)
        yield f"{search.path}: {', '.join(parts)}"
        first_by_error = {trial.error: trial for trial in reversed(self.trials) if trial.error is not None}
        for trial in sorted(first_by_error.values(), key=lambda trial: trial.number)[:3]:
            yield f"trial {trial.number} failed: {trial.error}"
        if self.importances:
            shares = ", ".join(f"{path} {share:.0%}" for path, share in self.importances.items())
            yield f"parameter importances (PED-ANOVA): {shares}"
        if not ranked:
            return
        if len(ranked) > 1 and len({trial.objective for trial in ranked}) == 1:
            text = "all trials have the same objective, so the best is the first; train longer to distinguish them"
            yield f"warning: {text}"
        for edge in search.space.edge_warnings(ranked[0].parameters):
            yield f"warning: the best {edge}; better values may lie outside; search a wider range"
        metric_text = _METRIC_DESCRIPTIONS[ranked[0].results["metric"]]
        yield f"best: trial {ranked[0].number}, selected by {metric_text}, not on test questions"
        yield f"the best of {len(ranked)} is biased upwards by selection; this evaluates it on new seeds:"
        yield f"  {self.next_command()}"

    def write_table(self) -> None:
        """Writes `results.csv` into the folder of the search: all trials, the best first."""
        paths, text, ranked = [field.path for field in self.search.space.fields], io.StringIO(), self.ranked_trials
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["trial", "state", "metric", "value", "low", "high", *paths, "steps", "runs", "error"])
        for trial in [*ranked, *(trial for trial in self.trials if trial.state != "complete")]:
            results = [trial.results.get(name) for name in ("metric", "value", "low", "high")]
            parameters = [value_text(trial.parameters[path]) for path in paths]
            steps = " ".join(dict.fromkeys(map(str, _of_runs(trial, "steps"))))
            runs = " ".join(run.folder.id for run in trial.runs)
            table.writerow([trial.number, trial.state, *results, *parameters, steps, runs, trial.error])
        disk.write_atomically(self.path / "results.csv", text.getvalue().encode())


def print_new(search: Search, bar: ProgressBar, printed: set[int]) -> None:
    """Prints each trial that has ended and is not among the `printed` numbers yet, whichever process trained it."""
    trials, names = search.trials(), short_names(search.space)
    for trial in trials:
        if trial.state != "running" and trial.number not in printed:
            printed.add(trial.number)
            point = ", ".join(f"{names[path]}={value_text(value)}" for path, value in trial.parameters.items())
            texts = {"pruned": f"stopped early, {point}", "failed": f"failed, {point}: {trial.error}"}
            value = search.value_text(trial.results["value"]) if trial.state == "complete" else ""
            bar.print_line(f"trial {trial.number}: {texts.get(trial.state, f'{value}, {point}')}")
    ranked = search.rank(trials)
    best = {"best": f"{search.value_text(ranked[0].results['value'])} (trial {ranked[0].number})"} if ranked else {}
    bar.step(len(printed), **best)


def short_names(space: Space) -> dict[str, str]:
    """For each path of a field its last two names, or more if some would be the same:
    `position_ids.max_offset` for `model.positions.0.position_ids.max_offset`."""
    paths = [field.path.split(".") for field in space.fields]
    is_unique = (len({tuple(path[-count:]) for path in paths}) == len(paths) for count in range(2, 9))
    count = next((count for count, unique in enumerate(is_unique, 2) if unique), 9)
    return {".".join(path): ".".join(path[-count:]) for path in paths}


def _of_runs(trial: Trial, name: str) -> list[Any]:
    return [run[name] for run in trial.results.get("runs", [])]

"""The result of a search: its trials as a table and as files, and the command that evaluates the best."""

import csv
import io
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from numerate.config import override
from numerate.errors import UserError
from numerate.reports.table import text_table
from numerate.searches.journal import Trial
from numerate.searches.space import Space, value_text
from numerate.searches.trials import SearchPlan
from numerate.training import disk
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

    `path` is the folder of the search, `recipe` its starting point, `trials` are all trials in the order in which they
    were started, `num_left` is the number of unfinished ones, `exit_status` that of the command.
    """

    path: Path
    recipe: Recipe
    plan: SearchPlan
    trials: tuple[Trial, ...]
    importances: Mapping[str, float]
    num_left: int
    exit_status: int
    command_words: tuple[str, ...]

    @property
    def ranked_trials(self) -> list[Trial]:
        """The complete trials, best first; ties in the order of the trials."""
        return self.plan.rank(self.trials)

    @property
    def best_trial(self) -> Trial:
        """The best trial. Raises `UserError` if none is complete."""
        if not (ranked := self.ranked_trials):
            raise UserError(f"{self.path}: no trial is complete")
        return ranked[0]

    @property
    def best_recipe(self) -> Recipe:
        """The recipe with the settings of the best trial. Raises `UserError` if none is complete."""
        return override(self.recipe, self.settings(self.best_trial))

    def settings(self, trial: Trial) -> list[str]:
        """The settings of a trial as `path=value` words for `numerate train`."""
        return self.plan.space.settings(trial.parameters)

    def next_command(self) -> str:
        """The command that trains and evaluates the best settings on new seeds."""
        seeds = ",".join(str(max(self.plan.seeds) + 1 + number) for number in range(NUM_FRESH_SEEDS))
        name, *options = self.command_words or (self.recipe.title,)
        return shlex.join(["numerate", "run", name, *self.settings(self.best_trial), f"seed={seeds}", *options])

    def records(self) -> list[dict[str, Any]]:
        """One plain record per trial."""
        return [
            {
                "trial": trial.number,
                "state": trial.state,
                **{name: trial.results.get(name) for name in ("value", "low", "high", "metric")},
                "parameters": dict(trial.parameters),
                "settings": self.settings(trial),
                "runs": trial.results.get("runs", []),
                "error": trial.error,
            }
            for trial in self.trials
        ]

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The best trials as a table, which is divided to fit into the `width` of a terminal, and notes."""
        return "\n\n".join(part for part in (self._table(width), "\n".join(self._notes())) if part)

    def _table(self, width: int | None) -> str:
        ranked = self.ranked_trials[:_MAX_SHOWN]
        if not ranked:
            return ""
        metric_name = self.best_trial.results["metric"]
        columns: dict[str, Callable[[Trial], str]] = {
            "trial": lambda trial: str(trial.number),
            metric_name: lambda trial: self.plan.value_text(trial.results["value"]),
        }
        if any(trial.results["low"] is not None for trial in ranked):
            has_several_seeds = len(self.plan.seeds) > 1
            name = f"of {len(self.plan.seeds)} seeds" if has_several_seeds else "95 % interval"
            columns[name] = lambda trial: " to ".join(
                self.plan.value_text(trial.results[end]) for end in ("low", "high")
            )
        if metric_name == "ood_validation":
            columns["validation"] = lambda trial: self.plan.value_text(median(_run_values(trial, "validation")))
        for path, short in short_names(self.plan.space).items():
            columns[short] = lambda trial, path=path: value_text(trial.parameters[path])  # type: ignore[misc]
        columns["steps"] = lambda trial: ", ".join(dict.fromkeys(map(str, _run_values(trial, "steps"))))
        columns["run"] = lambda trial: ", ".join(run.rpartition("/")[2] for run in _run_values(trial, "run"))
        rows = [[column(trial) for column in columns.values()] for trial in ranked]
        return text_table(list(columns), rows, width)

    def _notes(self) -> Iterator[str]:
        counts = Counter(trial.state for trial in self.trials)
        total = max(self.plan.sampling.trials, len(self.trials))
        parts = [f"{counts['complete']} of {total} trials are complete"]
        others = (counts["pruned"], "stopped early"), (counts["failed"], "failed")
        parts += [f"{count} {how}" for count, how in others if count]
        parts += [f"{self.num_left} not finished; the same command resumes"] * bool(self.num_left)
        yield f"{self.path}: {', '.join(parts)}"
        first_by_error = {trial.error: trial for trial in reversed(self.trials) if trial.error is not None}
        for trial in sorted(first_by_error.values(), key=lambda trial: trial.number)[:3]:
            yield f"trial {trial.number} failed: {trial.error}"
        if self.importances:
            shares = ", ".join(f"{path} {share:.0%}" for path, share in self.importances.items())
            yield f"parameter importances (PED-ANOVA): {shares}"
        if not self.ranked_trials:
            return
        if len(self.ranked_trials) > 1 and len({trial.objective for trial in self.ranked_trials}) == 1:
            yield (
                "warning: all trials have the same objective, so the best is the first; train longer to distinguish "
                "them"
            )
        for edge in self.plan.space.edge_warnings(self.best_trial.parameters):
            yield f"warning: the best {edge}; better values may lie outside; search a wider range"
        metric_text = _METRIC_DESCRIPTIONS[self.best_trial.results["metric"]]
        yield f"best: trial {self.best_trial.number}, selected by {metric_text}, not on test questions"
        yield f"the best of {len(self.ranked_trials)} is biased upwards by selection; this evaluates it on new seeds:"
        yield f"  {self.next_command()}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def write_results(result: SearchResult) -> None:
    """Writes the files next to the journal, each atomically."""
    records = result.records()
    disk.write_atomically(result.path / "trials.jsonl", b"".join(disk.json_line(record) for record in records))
    paths = [field.path for field in result.plan.space.fields]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["trial", "state", "metric", "value", "low", "high", *paths, "steps", "runs", "error"])
    order = {trial.number: rank for rank, trial in enumerate(result.ranked_trials)}
    for record in sorted(records, key=lambda record: (order.get(record["trial"], len(order)), record["trial"])):
        table.writerow(
            [
                *(record[name] for name in ("trial", "state", "metric", "value", "low", "high")),
                *(value_text(record["parameters"][path]) for path in paths),
                " ".join(dict.fromkeys(str(run["steps"]) for run in record["runs"])),
                " ".join(run["run"] for run in record["runs"]),
                record["error"],
            ]
        )
    disk.write_atomically(result.path / "results.csv", text.getvalue().encode())


def short_names(space: Space) -> dict[str, str]:
    """For each path of a field its last two names, or more if those of another field are the same:
    `position_ids.max_offset` for `model.positions.0.position_ids.max_offset`."""
    paths = [field.path.split(".") for field in space.fields]
    names = {}
    for path in paths:
        suffixes = (path[-count:] for count in range(2, len(path)))
        unique_suffixes = (end for end in suffixes if sum(other[-len(end) :] == end for other in paths) == 1)
        names[".".join(path)] = ".".join(next(unique_suffixes, path))
    return names


def _run_values(trial: Trial, name: str) -> list[Any]:
    return [run[name] for run in trial.results["runs"]]

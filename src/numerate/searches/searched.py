"""What a search has found: its trials as a table, as files, and what to do with the best of them."""

import csv
import io
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from numerate.config import as_text, override
from numerate.errors import UserError
from numerate.reports.table import text_table
from numerate.searches.journal import Trial
from numerate.searches.space import Space
from numerate.searches.trials import Metric, SearchPlan
from numerate.training import disk
from numerate.training.recipe import Recipe

FRESH = 5
"""Seeds of the run that is proposed for the winner; none of them is one that it was chosen by."""

_SHOWN = 10
_METRICS = {
    "beyond-development": "beyond-development (OOD validation)",
    "development": "development (held-out questions in distribution)",
    "loss": "the last training loss",
    "development_loss": "the lowest development loss, in nats per token of held-out text",
}


@dataclass(frozen=True, repr=False)
class SearchResult:
    """What a search has found so far. Shows itself as a table of the best trials and what to do next.

    `path` is the folder of the search, `recipe` what it began from, `trials` are all in the order in which they were
    begun, `left` how many are not over, `status` the exit status that a command ends with.
    """

    path: Path
    recipe: Recipe
    plan: SearchPlan
    trials: tuple[Trial, ...]
    importances: Mapping[str, float]
    left: int
    status: int
    called: tuple[str, ...]

    @property
    def ranked(self) -> list[Trial]:
        """The complete trials, the best first; of equals the earlier one."""
        complete = [trial for trial in self.trials if trial.objective is not None]
        sign = 1 if self.plan.minimise else -1
        return sorted(complete, key=lambda trial: (sign * (trial.objective or 0.0), trial.number))

    @property
    def winner(self) -> Trial:
        """The best trial. Raises `UserError` where none is complete."""
        if not (ranked := self.ranked):
            raise UserError(f"{self.path}: no trial is complete, so none is the best")
        return ranked[0]

    @property
    def best(self) -> Recipe:
        """The recipe with the settings of the best trial. Raises `UserError` where none is complete."""
        return override(self.recipe, self.settings(self.winner))

    def settings(self, trial: Trial) -> list[str]:
        """The settings of a trial as `path=value`, as `numerate train` takes them."""
        return self.plan.space.settings(trial.parameters)

    def next_command(self) -> str:
        """What measures the winner, grid and all, on seeds that it was not chosen by."""
        seeds = ",".join(str(max(self.plan.seeds) + 1 + number) for number in range(FRESH))
        name, *options = self.called or (self.recipe.title,)
        return shlex.join(["numerate", "run", name, *self.settings(self.winner), f"seed={seeds}", *options])

    def records(self) -> list[dict[str, Any]]:
        """One plain record per trial."""
        return [
            {
                "trial": trial.number,
                "state": trial.state,
                **{name: trial.found.get(name) for name in ("value", "low", "high", "metric")},
                "parameters": dict(trial.parameters),
                "settings": self.settings(trial),
                "runs": trial.found.get("runs", []),
                "error": trial.error,
            }
            for trial in self.trials
        ]

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self._table(), "\n".join(self._notes())) if part)

    def _table(self) -> str:
        ranked, metric = self.ranked[:_SHOWN], self.plan.metric
        if not ranked:
            return ""
        value = self.winner.found["metric"]
        columns: dict[str, Callable[[Trial], str]] = {
            "trial": lambda trial: str(trial.number),
            value: lambda trial: shown(trial.found["value"], metric),
        }
        if any(trial.found["low"] is not None for trial in ranked):
            several = len(self.plan.seeds) > 1
            columns[f"of {len(self.plan.seeds)} seeds" if several else "95 % interval"] = self._between
        if value == "beyond-development":
            columns["development"] = lambda trial: shown(median(_each(trial, "development")), metric)
        for path, short in short_names(self.plan.space).items():
            columns[short] = lambda trial, path=path: text_of(trial.parameters[path])  # type: ignore[misc]
        columns["steps"] = lambda trial: ", ".join(dict.fromkeys(map(str, _each(trial, "steps"))))
        columns["run"] = lambda trial: ", ".join(run.rpartition("/")[2] for run in _each(trial, "run"))
        return text_table(list(columns), [[column(trial) for column in columns.values()] for trial in ranked])

    def _between(self, trial: Trial) -> str:
        return " to ".join(shown(trial.found[end], self.plan.metric) for end in ("low", "high"))

    def _notes(self) -> Iterator[str]:
        count = {
            state: sum(trial.state == state for trial in self.trials) for state in ("complete", "pruned", "failed")
        }
        parts = [f"{count['complete']} of {max(self.plan.way.trials, len(self.trials))} trials are complete"]
        parts += [f"{count['pruned']} stopped early"] * bool(count["pruned"])
        parts += [f"{count['failed']} failed"] * bool(count["failed"])
        parts += [f"{self.left} not over; the same command resumes"] * bool(self.left)
        yield f"{self.path}: {', '.join(parts)}"
        first = {trial.error: trial for trial in reversed(self.trials) if trial.error is not None}
        for trial in sorted(first.values(), key=lambda trial: trial.number)[:3]:
            yield f"trial {trial.number} failed: {trial.error}"
        if self.importances:
            shares = ", ".join(f"{path} {share:.0%}" for path, share in self.importances.items())
            yield f"what mattered (PED-ANOVA): {shares}"
        if not self.ranked:
            return
        if len(self.ranked) > 1 and len({trial.objective for trial in self.ranked}) == 1:
            yield "warning: all trials came out alike, so the best is only the first; more training may tell them apart"
        for edge in self.plan.space.edges(self.winner.parameters):
            yield f"warning: the best {edge}; there may be better ones beyond, which is another search"
        what = _METRICS[self.winner.found["metric"]]
        yield f"best: trial {self.winner.number}, chosen on {what}, not on the questions of a test"
        yield f"the best of {len(self.ranked)} looks better than it is; this measures it on fresh seeds:"
        yield f"  {self.next_command()}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def write(found: SearchResult) -> None:
    """The files beside the journal, each as a whole."""
    records = found.records()
    disk.replace(found.path / "trials.jsonl", b"".join(disk.line(record) for record in records))
    paths = [field.path for field in found.plan.space.fields]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["trial", "state", "metric", "value", "low", "high", *paths, "steps", "runs", "error"])
    order = {trial.number: rank for rank, trial in enumerate(found.ranked)}
    for record in sorted(records, key=lambda record: (order.get(record["trial"], len(order)), record["trial"])):
        table.writerow(
            [
                *(record[name] for name in ("trial", "state", "metric", "value", "low", "high")),
                *(text_of(record["parameters"][path]) for path in paths),
                " ".join(dict.fromkeys(str(run["steps"]) for run in record["runs"])),
                " ".join(run["run"] for run in record["runs"]),
                record["error"],
            ]
        )
    disk.replace(found.path / "results.csv", text.getvalue().encode())


def shown(value: float, metric: Metric) -> str:
    """A value of a trial as people read it: a share in per cent, a loss as it is."""
    return f"{value:.4g}" if metric in ("loss", "development_loss") else f"{value:.1%}"


def short_names(space: Space) -> dict[str, str]:
    """Per path of a field the last two of its names, or more where those of another field are the same:
    `numbering.max_offset` for `model.positions.0.position_ids.max_offset`."""
    paths = [field.path.split(".") for field in space.fields]
    found = {}
    for path in paths:
        ends = (path[-count:] for count in range(2, len(path)))
        alone = (end for end in ends if sum(other[-len(end) :] == end for other in paths) == 1)
        found[".".join(path)] = ".".join(next(alone, path))
    return found


def text_of(value: Any) -> str:
    """A parameter as it is typed."""
    return value if isinstance(value, str) else as_text(value)


def _each(trial: Trial, name: str) -> list[Any]:
    return [run[name] for run in trial.found["runs"]]

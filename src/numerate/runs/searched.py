"""The result of a search: its best trials as a table, and the command that evaluates the best."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from numerate.errors import UserError
from numerate.reports.settings import short_path
from numerate.reports.table import text_table
from numerate.runs.space import value_text
from numerate.runs.trials import Search, Trial
from numerate.training.recipe import Recipe

NUM_FRESH_SEEDS = 5
"""Number of seeds in the command proposed for the best trial; none of them was used for its selection."""

_MAX_SHOWN, _MAX_FAILURES = 10, 3


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
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return sorted(complete, key=lambda trial: trial.objective, reverse="loss" not in self.search.metric)

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

    def next_command(self) -> str:
        """The command that trains and evaluates the best settings on new seeds."""
        settings, first = self.search.space.settings(self.best_trial.parameters), max(self.search.seeds) + 1
        seeds = ",".join(str(seed) for seed in range(first, first + NUM_FRESH_SEEDS))
        name, *options = self.command_words
        return shlex.join(["numerate", "run", name, *settings, f"seed={seeds}", *options])

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The best trials as a table, which is divided to fit into the `width` of a terminal, and notes."""
        rows = [self._row(trial) for trial in self.ranked_trials[:_MAX_SHOWN]]
        table = [text_table(list(rows[0]), [list(row.values()) for row in rows], width)] if rows else []
        return "\n\n".join([*table, "\n".join(self._notes())])

    def _row(self, trial: Trial) -> dict[str, str]:
        value, *interval = trial.texts()
        row = {"trial": str(trial.number), trial.scores[0].metric: value}
        if interval:
            row[f"of {len(trial.scores)} seeds" if len(trial.scores) > 1 else "95 % interval"] = " to ".join(interval)
        row |= {short_path(path, trial.parameters): value_text(value) for path, value in trial.parameters.items()}
        return row | {"run": ", ".join(run.path.name for run in trial.runs)}

    def _notes(self) -> Iterator[str]:
        states = [trial.state for trial in self.trials]
        counts = {
            f"of {max(self.search.num_trials, len(states))} trials are complete": states.count("complete"),
            "stopped early": states.count("pruned"),
            "failed": states.count("failed"),
            "not finished; the same command resumes": self.num_left,
        }
        parts = [f"{count} {text}" for text, count in counts.items() if count or "of" in text]
        yield f"{self.path}: {', '.join(parts)}"
        for trial in [trial for trial in self.trials if trial.error is not None][:_MAX_FAILURES]:
            yield f"trial {trial.number} failed: {trial.error}"
        if self.importances:
            shares = ", ".join(f"{path} {share:.0%}" for path, share in self.importances.items())
            yield f"parameter importances (PED-ANOVA): {shares}"
        if ranked := self.ranked_trials:
            for field in self.search.space.fields:
                if edge := field.edge_text(ranked[0].parameters[field.path]):
                    yield f"warning: the best {edge}; better values may lie outside; search a wider range"
            metric = ranked[0].scores[0].metric
            yield f"best: trial {ranked[0].number}, selected by {metric}, not on test questions"
            yield f"the best of {len(ranked)} is biased upwards by selection; this evaluates it on new seeds:"
            yield f"  {self.next_command()}"

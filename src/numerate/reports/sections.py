"""The sections of report pages, of runs and of comparisons, and of `numerate compare` in a terminal, each with the
kinds of evaluation that it is for.

A section is a row of `SECTIONS`: a title, a function that returns what it holds (tables, figures, notes; nothing leaves
the section out), and where it applies. A new kind of evaluation or a new section is a new row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from numerate.reports.content import Content, Note, without_empty_blocks
from numerate.reports.counts import counts_content
from numerate.reports.forest import forest_content
from numerate.reports.groups import Group, different_cells_notes, group_runs, have_unordered_cells, with_shared_cells
from numerate.reports.language import (
    difference_table,
    language_facts,
    language_headline,
    language_modeling_groups,
    metrics_content,
    speed_table,
)
from numerate.reports.language_curves import curves_content
from numerate.reports.metric_tables import metric_tables
from numerate.reports.overview import overview_figure
from numerate.reports.paired import same_questions
from numerate.reports.pairs import pairs_content, part_pairs_content
from numerate.reports.records import Records
from numerate.reports.regions import evaluations_content, facts_content, regions_content
from numerate.reports.reproduction import (
    differences_content,
    left_out_content,
    recipe_content,
    reproduction_content,
)
from numerate.reports.samples import samples_content, texts_content
from numerate.reports.strata import strata_content
from numerate.reports.success import success_content
from numerate.reports.summary import headline
from numerate.reports.training import training_content

Kind = Literal["exact_match", "token_labels", "named_parts", "language_modeling"]
Page = Literal["run", "comparison"]


@dataclass(frozen=True)
class Subject:
    """What sections are about: groups of one kind of evaluation, of one run or of several. A group is the runs of one
    label, one per seed, evaluated with one choice of settings. `answer_metric` is a metric of numbers or texts to test
    groups by."""

    groups: Sequence[Group]
    page: Page = "comparison"
    answer_metric: str | None = None

    @cached_property
    def kind(self) -> Kind:
        """The kind of evaluation. Named parts are modules or test sets, whose answers are numbers and texts."""
        if language_modeling_groups(self.groups):
            return "language_modeling"
        if have_unordered_cells(self.groups):
            return "named_parts"
        return "token_labels" if any(group.labels for group in self.groups) else "exact_match"

    @cached_property
    def runs(self) -> list[Records]:
        """Each run once, though it may be in several groups, evaluated with other settings."""
        return list({str(run.folder): run for group in self.groups for run in group.runs}.values())

    @property
    def headline(self) -> str:
        """What the page says first, in at most two sentences."""
        return (language_headline if self.kind == "language_modeling" else headline)(self.groups)


@dataclass(frozen=True)
class Section:
    """One section. `title` may name the {metric} of tests; `in_terminal`: it is also printed."""

    title: str
    content: Callable[[Subject], Content]
    kinds: tuple[Kind, ...] = ("exact_match", "token_labels", "named_parts", "language_modeling")
    pages: tuple[Page, ...] = ("run", "comparison")
    in_terminal: bool = False

    def of(self, subject: Subject) -> tuple[str, Content]:
        """Its title and content; no content where it does not apply."""
        applies = subject.kind in self.kinds and subject.page in self.pages
        return self.title.format(metric=subject.answer_metric), without_empty_blocks(
            self.content(subject) if applies else []
        )


def of_groups(content: Callable[[Sequence[Group]], Content]) -> Callable[[Subject], Content]:
    """A function of groups as one of a subject."""
    return lambda subject: content(subject.groups)


def _other_settings(subject: Subject) -> Content:
    """For a run also evaluated with settings that differ from training (`model.backbone.num_loops=8`): the heat maps of
    its grids and the table of regions for each choice."""
    groups = with_shared_cells(group_runs(subject.runs))
    notes = map(Note, different_cells_notes(groups))
    return [overview_figure(groups), *regions_content(groups), *notes] if len(groups) > 1 else []


ANSWERS: tuple[Kind, ...] = ("exact_match", "token_labels", "named_parts")
LENGTHS: tuple[Kind, ...] = ("exact_match", "token_labels")
PARTS: tuple[Kind, ...] = ("named_parts",)
TEXTS: tuple[Kind, ...] = ("language_modeling",)
RUN: tuple[Page, ...] = ("run",)
SEVERAL: tuple[Page, ...] = ("comparison",)

SECTIONS = (
    Section("", lambda it: facts_content(it.groups[0]), ANSWERS, RUN),
    Section("", of_groups(language_facts), TEXTS, RUN),
    Section(
        "Which groups differ in {metric}",
        lambda it: pairs_content(it.groups, it.answer_metric) if it.answer_metric else [],
        ANSWERS,
        SEVERAL,
        in_terminal=True,
    ),
    Section("Accuracy per count", of_groups(counts_content), ("token_labels",)),
    Section("", lambda it: [overview_figure(it.groups)], ("exact_match",), in_terminal=True),
    Section("Strata", of_groups(strata_content), ("exact_match",), in_terminal=True),
    Section("By length of the row", lambda it: [overview_figure(it.groups)], ("token_labels",), in_terminal=True),
    Section("Results", of_groups(metric_tables), PARTS, in_terminal=True),
    Section("Differences over the same questions", of_groups(same_questions), ANSWERS, SEVERAL, in_terminal=True),
    Section("Loss, perplexity, bits per byte", of_groups(metrics_content), TEXTS, in_terminal=True),
    Section("Validation curves", of_groups(curves_content), TEXTS),
    Section(
        "Converged seeds by length",
        of_groups(success_content),
        LENGTHS,
        SEVERAL,
        in_terminal=True,
    ),
    Section("Results over seeds", of_groups(forest_content), ANSWERS, SEVERAL),
    Section("Significant differences", of_groups(pairs_content), LENGTHS, SEVERAL, in_terminal=True),
    Section("Significant differences", of_groups(part_pairs_content), PARTS, SEVERAL, in_terminal=True),
    Section(
        "Significant differences",
        lambda it: [difference_table(it.groups)],
        TEXTS,
        SEVERAL,
        in_terminal=True,
    ),
    Section("Speed and memory", lambda it: [speed_table(it.groups)], TEXTS, SEVERAL, in_terminal=True),
    Section("What differs between the recipes", of_groups(differences_content), pages=SEVERAL),
    Section("Regions", of_groups(regions_content), LENGTHS, in_terminal=True),
    Section("Regions", of_groups(regions_content), PARTS, RUN),
    Section("All metrics", of_groups(metric_tables), LENGTHS),
    Section("Checkpoints and position offsets", lambda it: evaluations_content(it.groups[0]), ANSWERS, RUN),
    Section("Run with other settings", _other_settings, ANSWERS, RUN),
    Section("Training", of_groups(training_content), ANSWERS),
    Section("Samples", of_groups(samples_content), ANSWERS),
    Section("Texts generated during training", of_groups(texts_content), TEXTS),
)
"""The sections about results, in order; with several tasks they are repeated for each. A seed has converged if its mean
in distribution is at least `CONVERGENCE_THRESHOLD`."""

CLOSING_SECTIONS = (
    Section("To run it again", lambda it: reproduction_content(it.runs)),
    Section("Recipe", lambda it: recipe_content(it.runs[0]), pages=RUN),
    Section("Left out of this report", lambda it: left_out_content(it.runs)),
)
"""The sections at the end of a page, of all its runs. Relations are those of dual attention."""

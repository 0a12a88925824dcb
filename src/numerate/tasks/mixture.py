"""Mixtures of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import CounterRNG, key, mix
from numerate.tasks.questions import Questions
from numerate.tasks.task import Task


@dataclass(frozen=True)
class Mixture(Task):
    """A mixture of several tasks, sampled by weight, such as addition and subtraction.

    McLeish et al. (2024), https://arxiv.org/abs/2405.17399, train one model on additions and subtractions. The fact
    `task` is the number of a question's task, from 0. `task_index=1` selects the second task alone, so that an
    evaluation can report tasks separately (`numerate evaluate latest task.task_index=0,1`). A grid has the axes that
    all tasks have, and a cell pins each of them.

    With `auxiliary` all tasks but the first are only trained on: grids and OOD validation leave them out (unless
    `task_index=1` selects one). So are the number lines and tables that published counting tasks add: Chang and Bisk
    (2024), https://arxiv.org/abs/2405.20131. `weights` are then the shares of the rows that are kept, whatever a task
    holds out. (Without `auxiliary` they are those of the rows drawn, before rows of other splits are left out.)

    >>> Mixture((Arithmetic("+"), Arithmetic("-")), weights=(3, 1)).axes()
    ('first_digits', 'second_digits')
    """

    tasks: tuple[Task, ...] = setting((Arithmetic("+"), Arithmetic("-")), "the tasks to mix")
    weights: tuple[float, ...] = setting((), "relative sampling weights; empty: equal")

    task_index: int | None = setting(None, "index of a single task to use; null: all", later=True)
    auxiliary: bool = setting(False, "whether all tasks but the first are for training only, not evaluated", later=True)

    def __post_init__(self) -> None:
        if self.task_index is not None and not 0 <= self.task_index < len(self.tasks):
            raise UserError(f"task_index: there is no task {self.task_index}; there are 0 to {len(self.tasks) - 1}")
        if not self.tasks:
            raise UserError("tasks: a mixture has at least one task, such as [Arithmetic, Arithmetic(operator='-')]")
        if any(isinstance(task, Mixture) for task in self.tasks):
            raise UserError(
                "tasks: a mixture within a mixture cannot be identified by its number; list all tasks in one"
            )
        for task in self.tasks:
            if type(task)._block is not Task._block:
                raise UserError(
                    f"tasks: {type(task).__name__} lists its questions, which cannot be mixed with drawn ones"
                )
        if self.weights and len(self.weights) != len(self.tasks):
            raise UserError(f"weights: {len(self.weights)} weights for {len(self.tasks)} tasks; give one each, or none")
        if any(not isfinite(weight) or weight <= 0 for weight in self.weights):
            raise UserError(f"weights: {self.weights} are not all above 0; leave a task out instead")

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        return self._drawn(draws, index, draws.halves(len(index)))

    def _attempt(self, draws: CounterRNG, index: NDArray[np.int64], split: str, seed: int) -> Questions:
        """With `auxiliary` the task of an index is that of every attempt: the one that holds rows out loses none."""
        if not self.auxiliary:
            return self.draw(draws, index)
        (word,) = CounterRNG(key("member", self, split, seed)).words(1)
        return self._drawn(draws, index, mix(mix(index.astype(np.uint64) + word) ^ word) >> np.uint64(32))

    def _drawn(self, draws: CounterRNG, index: NDArray[np.int64], chance: NDArray[Any]) -> Questions:
        """A question for each index, of the task that its chance, 0 to 2**32 - 1, falls to."""
        weights = np.array(self.weights or (1.0,) * len(self.tasks))
        edges = np.round(np.cumsum(weights / weights.sum()) * 2.0**32).astype(np.uint64)[:-1]
        member = np.searchsorted(edges, chance.astype(np.uint64), side="right")
        if self.task_index is not None:
            member = np.full(len(index), self.task_index)
        shared, parts, places = self._shared(), [], []
        for number, task in enumerate(self.tasks):
            here = np.flatnonzero(member == number)
            if len(here):
                drawn = task.draw(CounterRNG(key(draws.key, "member", number)), index[here])
                parts.append(_of_member(drawn, number, shared))
                places.append(here)
        if not parts:
            return _of_member(self.tasks[0].draw(draws, index), 0, shared)
        return Questions.concatenate(parts).take(np.argsort(np.concatenate(places), kind="stable"))

    def _shared(self) -> tuple[str, ...]:
        """The facts that the questions of every task have: those of the axes that all share."""
        return tuple(name for name in self.tasks[0].axes() if all(name in task.axes() for task in self.tasks))

    def _graded(self) -> range:
        """The numbers of the evaluated tasks: all but auxiliary ones, or `task_index`."""
        mains = 1 if self.auxiliary else len(self.tasks)
        return (
            range(mains)
            if self.task_index is None or self.task_index < mains
            else range(self.task_index, self.task_index + 1)
        )

    def _with(self, members: Sequence[Task]) -> Self:
        """The same with the evaluated tasks replaced, and the rest left out."""
        graded = self._graded()
        if graded.start:
            return replace(self, tasks=(*self.tasks[: graded.start], *members, *self.tasks[graded.stop :]))
        return replace(self, tasks=tuple(members), weights=self.weights[: len(members)], auxiliary=False)

    def pinned(self, **cell: Any) -> Self:
        """The same with fields of its own pinned, or those of the tasks that a grid is about; `task=1` is one of them
        by itself."""
        own = {name: cell.pop(name) for name in [f.name for f in fields(self)] if name in cell}
        task = replace(self, **own)
        if "task" in cell:
            task = replace(task, task_index=cell.pop("task"))
        return task._with([self.tasks[number].pinned(**cell) for number in task._graded()]) if cell else task

    def axes(self) -> tuple[str, ...]:
        return self._shared()

    def trained(self) -> dict[str, Span]:
        spans = [self.tasks[number].trained() for number in self._graded()]
        return {
            axis: Span(min(span[axis].low for span in spans), max(span[axis].high for span in spans))
            for axis in self.axes()
        }

    def trained_labels(self) -> int | None:
        known = [self.tasks[number].trained_labels() for number in self._graded()]
        return max((count for count in known if count is not None), default=None)

    def beyond(self) -> "Mixture | None":
        """The task of OOD validation of each task that a grid is about, None where one has none."""
        bands = [self.tasks[number].beyond() for number in self._graded()]
        found = [band for band in bands if band is not None]
        return self._with(found) if len(found) == len(bands) else None

    def cells(self) -> list[tuple[int, ...]] | None:
        """The cells that every task has that a grid is about."""
        listed = [cells for number in self._graded() if (cells := self.tasks[number].cells()) is not None]
        return [cell for cell in listed[0] if all(cell in cells for cells in listed)] if listed else None

    def whole(self, split: str = "test") -> Questions | None:
        """Every question of its one task, where it lists them; None where there are several."""
        number = 0 if len(self.tasks) == 1 else self.task_index
        found = None if number is None else self.tasks[number].whole(split)
        return None if number is None or found is None else _of_member(found, number, self._shared())

    def distribution(self) -> tuple[Questions, NDArray[np.float64]] | None:
        """Every question of each task once, with its probability; None where one of them has too many."""
        weights = self.weights or (1.0,) * len(self.tasks)
        known = [
            (number, task.distribution()) for number, task in enumerate(self.tasks) if self.task_index in (None, number)
        ]
        parts = [(_of_member(of[0], i, self._shared()), weights[i] * of[1]) for i, of in known if of is not None]
        if len(parts) < len(known):
            return None
        chances = np.concatenate([chance for _, chance in parts])
        return Questions.concatenate([questions for questions, _ in parts]), chances / chances.sum()

    def longest(self) -> Questions | None:
        """The longest question of each task that a grid is about; None where one does not say."""
        known = [(number, self.tasks[number].longest()) for number in self._graded()]
        found = [_of_member(longest, number, self._shared()) for number, longest in known if longest is not None]
        return Questions.concatenate(found) if len(found) == len(known) else None

    def canonical(self, questions: Questions) -> NDArray[np.uint64] | None:
        """Each task's own hashes, so that it has the same questions in the same split as by itself."""
        hashes = np.zeros(len(questions), dtype=np.uint64)
        for number, rows in self._members(questions):
            found = self.tasks[number].canonical(questions.take(rows))
            if found is None:
                return None
            hashes[rows] = found
        return hashes

    def divided(self, questions: Questions) -> NDArray[np.bool_]:
        found = np.zeros(len(questions), dtype=np.bool_)
        for number, rows in self._members(questions):
            found[rows] = self.tasks[number].divided(questions.take(rows))
        return found

    def _members(self, questions: Questions) -> list[tuple[int, NDArray[np.int64]]]:
        task = questions.facts["task"]
        return [(number, np.flatnonzero(task == number)) for number in range(len(self.tasks))]

    def space(self) -> int | None:
        spaces = [task.space() for number, task in enumerate(self.tasks) if self.task_index in (None, number)]
        known = [space for space in spaces if space is not None]
        return sum(known) if len(known) == len(spaces) else None

    def held_out(self, split: str) -> bool:
        return all(self.tasks[number].held_out(split) for number in self._graded())

    def alphabet(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for task in self.tasks for text in task.alphabet()))

    def read(self, text: str) -> Questions:
        """The question as read by the first task that can."""
        refused = []
        for number, task in enumerate(self.tasks):
            try:
                return _of_member(task.read(text), number, self._shared())
            except UserError as error:
                refused.append(str(error))
        raise UserError(f"question: no task of the mixture reads it: {'; '.join(refused)}")


def _of_member(drawn: Questions, number: int, shared: tuple[str, ...]) -> Questions:
    facts = {name: drawn.facts[name] for name in shared}
    return replace(drawn, facts={**facts, "task": np.full(len(drawn), number)})

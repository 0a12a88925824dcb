"""Mixtures of tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import CounterRNG, mix_bits, random_key
from numerate.tasks.questions import Questions
from numerate.tasks.task import Task


@dataclass(frozen=True)
class Mixture(Task):
    """A mixture of several tasks, sampled by weight, such as addition and subtraction.

    McLeish et al. (2024), https://arxiv.org/abs/2405.17399, train one model on additions and subtractions. The metadata
    `task` is the index of a question's task, from 0. `task_index=1` selects the second task alone, so that an
    evaluation can report tasks separately (`numerate evaluate latest task.task_index=0,1`). A grid has the axes that
    all tasks have, and a cell fixes each of them.

    With `auxiliary` all tasks but the first are for training only: grids and OOD validation exclude them (unless
    `task_index=1` selects one). Examples are the number lines and tables in the counting tasks of Chang and Bisk
    (2024), https://arxiv.org/abs/2405.20131. `weights` are then the fractions of the final rows, regardless of how many
    a task holds out. (Without `auxiliary` they apply before rows of other splits are discarded.)

    >>> Mixture((Arithmetic("+"), Arithmetic("-")), weights=(3, 1)).axes()
    ('first_digits', 'second_digits')
    """

    tasks: tuple[Task, ...] = setting((Arithmetic("+"), Arithmetic("-")), "the tasks to mix")
    weights: tuple[float, ...] = setting((), "relative sampling weights; empty: equal", above=0)

    task_index: int | None = setting(None, "index of a single task to use; null: all", at_least=0)
    auxiliary: bool = setting(False, "whether all tasks but the first are for training only, not evaluated")

    def conflicts(self) -> Iterator[str]:
        if not self.tasks:
            yield "tasks: must have at least one task, such as [Arithmetic, Arithmetic(operator='-')]"
        if self.task_index is not None and self.task_index >= len(self.tasks):
            yield f"task_index: must be from 0 to {len(self.tasks) - 1}, not {self.task_index}"
        if any(isinstance(task, Mixture) for task in self.tasks):
            yield "tasks: must not contain another mixture; list all tasks in one"
        for task in self.tasks:
            if type(task)._draw_block is not Task._draw_block:
                yield f"tasks: {type(task).__name__} must be a sampled task, not one that enumerates its questions"
        if self.weights and len(self.weights) != len(self.tasks):
            yield f"weights: must have one entry per task ({len(self.tasks)}), or none, not {len(self.weights)}"

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        return self._draw_from_tasks(rng, indices, rng.random_half_words(len(indices)))

    def _draw_attempt(self, rng: CounterRNG, indices: NDArray[np.int64], split: str, seed: int) -> Questions:
        """With `auxiliary`, all attempts for an index use the same task, so that a task that holds rows out loses
        none."""
        if not self.auxiliary:
            return self.draw(rng, indices)
        (word,) = CounterRNG(random_key("member", self, split, seed)).random_words(1)
        return self._draw_from_tasks(
            rng, indices, mix_bits(mix_bits(indices.astype(np.uint64) + word) ^ word) >> np.uint64(32)
        )

    def _draw_from_tasks(self, rng: CounterRNG, indices: NDArray[np.int64], random_bits: NDArray[Any]) -> Questions:
        """A question for each index, of the task selected by its random number from 0 to 2**32 - 1."""
        weights = np.array(self.weights or (1.0,) * len(self.tasks))
        edges = np.round(np.cumsum(weights / weights.sum()) * 2.0**32).astype(np.uint64)[:-1]
        task_indices = np.searchsorted(edges, random_bits.astype(np.uint64), side="right")
        if self.task_index is not None:
            task_indices = np.full(len(indices), self.task_index)
        shared_axes, parts, positions = self._shared_axes(), [], []
        for task_index, task in enumerate(self.tasks):
            rows = np.flatnonzero(task_indices == task_index)
            if len(rows):
                questions = task.draw(CounterRNG(random_key(rng.key, "member", task_index)), indices[rows])
                parts.append(_with_task_index(questions, task_index, shared_axes))
                positions.append(rows)
        if not parts:
            return _with_task_index(self.tasks[0].draw(rng, indices), 0, shared_axes)
        return Questions.concatenate(parts).take(np.argsort(np.concatenate(positions), kind="stable"))

    def _shared_axes(self) -> tuple[str, ...]:
        """The axes that all tasks share."""
        return tuple(name for name in self.tasks[0].axes() if all(name in task.axes() for task in self.tasks))

    def _evaluated_task_indices(self) -> range:
        """The indices of the evaluated tasks: all but auxiliary ones, or `task_index`."""
        num_main_tasks = 1 if self.auxiliary else len(self.tasks)
        return (
            range(num_main_tasks)
            if self.task_index is None or self.task_index < num_main_tasks
            else range(self.task_index, self.task_index + 1)
        )

    @property
    def _evaluated_tasks(self) -> list[Task]:
        return [self.tasks[index] for index in self._evaluated_task_indices()]

    def _with_tasks(self, tasks: Sequence[Task]) -> Self:
        """The same mixture with the evaluated tasks replaced, and without the others."""
        graded = self._evaluated_task_indices()
        if graded.start:
            return replace(self, tasks=(*self.tasks[: graded.start], *tasks, *self.tasks[graded.stop :]))
        return replace(self, tasks=tuple(tasks), weights=self.weights[: len(tasks)], auxiliary=False)

    def at_cell(self, **cell: Any) -> Self:
        """The same mixture with its own fields fixed, or those of the evaluated tasks; `task=1` selects a single
        task."""
        own = {name: cell.pop(name) for name in [f.name for f in fields(self)] if name in cell}
        task = replace(self, **own)
        if "task" in cell:
            task = replace(task, task_index=cell.pop("task"))
        return (
            task._with_tasks([self.tasks[number].at_cell(**cell) for number in task._evaluated_task_indices()])
            if cell
            else task
        )

    def named_evaluation_kind(self) -> str | None:
        names = {task.named_evaluation_kind() for task in self._evaluated_tasks}
        if len(names) > 1:
            kinds = ", ".join(sorted(name or "the default" for name in names))
            raise UserError(f"tasks: must have the same kind of evaluation, not {kinds}; task_index= selects one task")
        return names.pop()

    def axes(self) -> tuple[str, ...]:
        return self._shared_axes()

    def training_spans(self) -> dict[str, Span]:
        spans = [task.training_spans() for task in self._evaluated_tasks]
        return {
            axis: Span(min(span[axis].low for span in spans), max(span[axis].high for span in spans))
            for axis in self.axes()
        }

    def max_training_labels(self) -> int | None:
        known = [task.max_training_labels() for task in self._evaluated_tasks]
        return max((count for count in known if count is not None), default=None)

    def ood_validation_task(self) -> "Mixture | None":
        """The mixture of the OOD validation tasks of the evaluated tasks; None if one of them has none."""
        ood_tasks = [task.ood_validation_task() for task in self._evaluated_tasks]
        existing_tasks = [ood_task for ood_task in ood_tasks if ood_task is not None]
        return self._with_tasks(existing_tasks) if len(existing_tasks) == len(ood_tasks) else None

    def strata(self, size: int) -> dict[str, list[dict[str, Any]]]:
        """The cells that the strata of all evaluated tasks share."""
        first, *others = (task.strata(size) for task in self._evaluated_tasks)
        shared = {
            name: [cell for cell in cells if all(cell in other.get(name, ()) for other in others)]
            for name, cells in first.items()
        }
        return {name: cells for name, cells in shared.items() if cells}

    def question_facts(self, questions: Questions) -> dict[str, NDArray[np.int64]]:
        """The facts that all tasks of these questions know."""
        parts = [
            (rows, self.tasks[i].question_facts(questions.take(rows))) for i, rows in self._rows_by_task(questions)
        ]
        parts = [(rows, facts) for rows, facts in parts if len(rows)]
        found = {
            name: np.zeros(len(questions), dtype=np.int64)
            for name in (parts[0][1] if parts else {})
            if all(name in facts for _, facts in parts)
        }
        for rows, facts in parts:
            for name, values in found.items():
                values[rows] = facts[name]
        return found

    def cells(self) -> list[tuple[int, ...]] | None:
        """The cells that all evaluated tasks have."""
        cells_by_task = [cells for task in self._evaluated_tasks if (cells := task.cells()) is not None]
        if not cells_by_task:
            return None
        return [cell for cell in cells_by_task[0] if all(cell in cells for cells in cells_by_task)]

    def all_questions(self, split: str = "test") -> Questions | None:
        """All questions of its single task, if it can enumerate them; None with several tasks."""
        number = 0 if len(self.tasks) == 1 else self.task_index
        found = None if number is None else self.tasks[number].all_questions(split)
        return None if number is None or found is None else _with_task_index(found, number, self._shared_axes())

    def longest_questions(self) -> Questions | None:
        """The longest questions of the evaluated tasks; None if unknown for one of them."""
        known = [(number, self.tasks[number].longest_questions()) for number in self._evaluated_task_indices()]
        longest_by_task = [
            _with_task_index(longest, number, self._shared_axes()) for number, longest in known if longest is not None
        ]
        return Questions.concatenate(longest_by_task) if len(longest_by_task) == len(known) else None

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64] | None:
        """The hashes of each task, so that its questions are in the same splits as without the mixture."""
        hashes = np.zeros(len(questions), dtype=np.uint64)
        for task_index, rows in self._rows_by_task(questions):
            task_hashes = self.tasks[task_index].question_hashes(questions.take(rows))
            if task_hashes is None:
                return None
            hashes[rows] = task_hashes
        return hashes

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        mask = np.zeros(len(questions), dtype=np.bool_)
        for task_index, rows in self._rows_by_task(questions):
            mask[rows] = self.tasks[task_index].splittable_mask(questions.take(rows))
        return mask

    def _rows_by_task(self, questions: Questions) -> list[tuple[int, NDArray[np.int64]]]:
        task = questions.metadata["task"]
        return [(number, np.flatnonzero(task == number)) for number in range(len(self.tasks))]

    def num_questions(self) -> int | None:
        counts = [task.num_questions() for number, task in enumerate(self.tasks) if self.task_index in (None, number)]
        known = [space for space in counts if space is not None]
        return sum(known) if len(known) == len(counts) else None

    def is_held_out(self, split: str) -> bool:
        return all(task.is_held_out(split) for task in self._evaluated_tasks)

    def alphabet(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for task in self.tasks for text in task.alphabet()))

    def parse_question(self, text: str) -> Questions:
        """Parses the question with the first task that can."""
        errors = []
        for task_index, task in enumerate(self.tasks):
            try:
                return _with_task_index(task.parse_question(text), task_index, self._shared_axes())
            except UserError as error:
                errors.append(str(error))
        raise UserError(f"question: no task of the mixture can parse it: {'; '.join(errors)}")


def _with_task_index(questions: Questions, task_index: int, shared_axes: tuple[str, ...]) -> Questions:
    metadata = {name: questions.metadata[name] for name in shared_axes}
    return replace(questions, metadata={**metadata, "task": np.full(len(questions), task_index)})

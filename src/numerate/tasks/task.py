"""Tasks: reproducible sources of questions with answers."""

import random
from abc import ABC
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span
from numerate.errors import UserError, did_you_mean
from numerate.tasks.contents import file_sha256, shortest_unique_names
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.questions import EMPTY as EMPTY
from numerate.tasks.questions import Example as Example
from numerate.tasks.questions import Numbers as Numbers
from numerate.tasks.questions import Questions as Questions

TEST_FRACTION, VALIDATION_FRACTION, OOD_VALIDATION_FRACTION = 0.05, 0.025, 0.025
"""The shares of all questions that are held out for each split; training has the rest."""

SPLITS: dict[str, tuple[float, float]] = {
    "test": (0.0, TEST_FRACTION),
    "validation": (TEST_FRACTION, TEST_FRACTION + VALIDATION_FRACTION),
    "ood_validation": (
        TEST_FRACTION + VALIDATION_FRACTION,
        TEST_FRACTION + VALIDATION_FRACTION + OOD_VALIDATION_FRACTION,
    ),
    "train": (TEST_FRACTION + VALIDATION_FRACTION + OOD_VALIDATION_FRACTION, 1.0),
}
"""Per split, the interval that a question's hash, as a fraction of one, falls in. `ood_validation` is that of
OOD validation, drawn from the band just beyond (`Task.ood_validation_task`), the others from the task itself."""

MIN_SPLIT_SIZE = 100
"""The fewest held-out questions that the smallest split of a cell must have; smaller cells are trained on entirely."""

EVAL_BLOCK_SIZE = 128
"""How many examples are drawn as one in splits other than training, where a cell of a grid wants about a hundred."""

_MAX_ATTEMPTS = 24
"""How often questions of another split are drawn again. Each attempt finds at least three in four of them, so that one
block in 10**12 would need more, unless the questions are too few."""


class Task(ABC):  # noqa: B024 (either of two methods is needed, which __init_subclass__ sees to)
    """Questions with answers. A frozen dataclass whose every field has a default; difficulty is a field `int | Span`.

    A task gives either `draw` (whole blocks of arrays, quick) or `example` (one question at a time, simple):

        @dataclass(frozen=True)
        class Doubling(Task):
            digits: int = setting(3, "how many digits the number may have")

            def example(self, rng: random.Random) -> Example:
                number = rng.randrange(10**self.digits)
                return Example(f"2*{number}=", str(2 * number), {"digits": len(str(number))})
    """

    block_size: ClassVar[int] = 4096
    """How many training examples are drawn as one."""

    has_ood_sizes: ClassVar[bool] = True
    """Whether there are questions beyond the trained sizes, which a grid evaluates by default. A file has none."""

    is_language_modeling: ClassVar[bool] = False
    """Whether it is language modeling: every token is a target, without questions and answers."""

    default_grid_in_distribution: ClassVar[bool] = False
    """Whether its default grid has only the trained ones of its cells."""

    is_ordered: ClassVar[bool] = False
    """Whether a run reads its examples in the task's own order, neither sorted by length nor shuffled in windows."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if cls.draw is Task.draw and cls.example is Task.example:
            raise TypeError(f"{cls.__name__}: a task gives draw(self, draws, index) or example(self, rng)")

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        """One question for each of these global indices. A function of its two arguments and the fields alone; an index
        may come more than once and must then give another question. Unless a task gives its own, it loops over
        `example`, and raises `UserError` where an example does not say its size along each axis."""
        examples = [self.example(random.Random(random_key(rng.key, row, i))) for row, i in enumerate(indices)]
        for example in examples:
            if not isinstance(example, Example | Questions):
                type_name = type(example).__name__
                raise UserError(
                    f"example: {type(self).__name__} must return Example(question, answer), not {type_name}"
                )
            self._check_metadata(example)
        texts = [example for example in examples if isinstance(example, Example)]
        if len(texts) == len(examples):
            return Questions.from_examples(texts)
        return Questions.concatenate(
            [Questions.from_examples([example]) if isinstance(example, Example) else example for example in examples]
        )

    def _check_metadata(self, example: Example | Questions) -> None:
        missing = [axis for axis in self.axes() if axis not in example.metadata]
        if missing:
            sizes = ", ".join(f'"{axis}": 4' for axis in self.axes())
            raise UserError(
                f"example: {type(self).__name__} has the axes {', '.join(self.axes())}, and an example of it does "
                f"not say its {' and '.join(missing)}; Example(question, answer, {{{sizes}}}) gives the size "
                "along each axis as a fact"
            )

    def example(self, rng: random.Random) -> Example | Questions:
        """One question, drawn from `rng` and nothing else."""
        raise NotImplementedError(f"{type(self).__name__} draws whole blocks")

    def at_cell(self, **cell: Any) -> Self:
        """The same task with fields fixed: a cell of a grid. Raises `UserError` for a field that there is not.

        >>> from numerate.tasks import Arithmetic
        >>> Arithmetic().at_cell(first_digits=3, second_digits=4).num_questions()
        8100000
        """
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        for name in cell:
            if name not in names:
                raise UserError(
                    f"{name}: {type(self).__name__} has no setting {name!r}; it has: {', '.join(names)}."
                    + did_you_mean(name, names)
                )
        return replace(self, **cell)  # type: ignore[type-var]

    def axes(self) -> tuple[str, ...]:
        """The fields that make the axes of a grid, such as `("first_digits", "second_digits")`."""
        return ()

    def training_spans(self) -> dict[str, Span]:
        """Per axis, what training covers."""
        return {axis: Span.from_value(getattr(self, axis)) for axis in self.axes()}

    def ood_validation_task(self) -> "Task | None":
        """The task of OOD validation, the band just beyond, where "best" is chosen; None where there is none."""
        return None

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64] | None:
        """A hash of each question without its answer, which decides its split. It does not depend on how the numbers
        are padded or tokenized. None if questions have no identity, so that nothing is held out."""
        return questions.hashes()

    def num_questions(self) -> int | None:
        """How many different questions there are; None where it is unknown or beyond counting."""
        return None

    def all_questions(self, split: str = "test") -> Questions | None:
        """Every question of a split, each once, where a task lists them; None where it draws them, with replacement.

        An evaluation that requests more questions of a cell than there are takes these instead:
        `BitwiseOr().at_cell(first_digits=4, second_digits=2).all_questions()` has two.
        """
        return None

    def num_rows(self, split: str) -> int | None:
        """How many rows of files a split has, each of which `examples` gives once before any of them again; None where
        questions are drawn. An evaluation uses no more than these."""
        return None

    def question_distribution(self) -> tuple[Questions, NDArray[np.float64]] | None:
        """Every different question of training once, and the probability of each; None where there are too many, or
        unknown ones. What `examples("train", ...)` gives follows it."""
        return None

    def max_training_labels(self) -> int | None:
        """The largest number of labels of a training row, so that those further on in a row are of counts that were
        never trained; None if answers are no labels, or if unknown."""
        return None

    def cells(self) -> list[tuple[int, ...]] | None:
        """The cells of its axes that there are questions of, in order; None where there are questions of every size, as
        in all tasks that draw them. A file may have rows of 4 and of 8 characters and none between."""
        return None

    def check_files(self) -> None:
        """Raises `UserError` that says how to get them, where files that it reads are not there."""
        self.cells()

    def files(self) -> dict[str, Path]:
        """The files that its questions come from, by names that do not depend on where their folder lies: those of the
        tasks among its fields, unless a task says. None where it draws its questions."""
        return shortest_unique_names(path for task in self._nested_tasks() for path in task.files().values())

    def file_hashes(self) -> dict[str, str]:
        """A sha256 of each of its files, by the same names: a run is resumed and evaluated only with unchanged files.
        Raises `UserError` if a file cannot be read."""
        return {name: file_sha256(path) for name, path in self.files().items()}

    def _nested_tasks(self) -> "Iterator[Task]":
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            yield from (part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Task))

    def cell_name(self, axis: str, size: int) -> str:
        """What a size of an axis is called: its number, unless the sizes of a task have names, as modules have."""
        return str(size)

    def longest_questions(self) -> Questions | None:
        """A question as long as any can be at the task's largest sizes; None where nearly all of those are as long, so
        that a few drawn ones tell."""
        return None

    def alphabet(self) -> tuple[str, ...]:
        """All texts that questions and answers may use beside their numbers. Unless a task says, those found in its
        first training block: name them where a rare one may be missed."""
        questions = self._draw_block("train", 0, 0, 1024)
        texts = [questions.alphabet[i] for i in np.unique(questions.symbols[questions.symbols >= 0])]
        if questions.labels is not None:
            texts += [questions.alphabet[i] for i in np.unique(questions.labels[questions.labels >= 0])]
        return tuple(dict.fromkeys(texts))

    def parse_question(self, text: str) -> Questions:
        """The question that a person writes, with its answer worked out. Raises `UserError` for any other text."""
        raise UserError(f"question: {type(self).__name__} does not read questions from text")

    def data_warnings(self) -> list[str]:
        """Warnings about its data at the start of training, such as rows that are left out."""
        return []

    def is_held_out(self, split: str) -> bool:
        """Whether every question drawn for this split is new to training: the split is not training itself, and every
        cell of the task is large enough to be divided."""
        space = self.num_questions()
        return split != "train" and (space is None or can_be_split(space))

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        """Per question, whether its own cell is large enough to be divided into splits. Where it is not, the cell
        overlaps with training: every split draws from all of it."""
        return np.full(len(questions), self.is_held_out("test"))

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        """The data: examples `start` .. `start + count - 1` of a split. A function of the fields, the split, the seed
        and the index alone, whatever the portions. Raises `UserError` for an unknown split.
        """
        if split not in SPLITS:
            raise UserError(f"split: must be one of {', '.join(SPLITS)}, not {split!r}." + did_you_mean(split, SPLITS))
        task: Task = self
        if split == "ood_validation":
            ood_task = self.ood_validation_task()
            if ood_task is None:
                raise UserError(f"split: {type(self).__name__} has no OOD validation ('ood_validation')")
            task = ood_task
        block_size = self.block_size if split == "train" else EVAL_BLOCK_SIZE
        blocks = []
        for block_index in range(start // block_size, max(start // block_size + 1, -(-(start + count) // block_size))):
            low, high = (
                max(start - block_index * block_size, 0),
                min(start + count - block_index * block_size, block_size),
            )
            questions = task._draw_block(split, seed, block_index, block_size)
            blocks.append(questions if high - low == block_size else questions.take(slice(low, high)))
        return Questions.concatenate(blocks)

    def examples_for_rank(self, split: str, seed: int, start: int, count: int, rank: int) -> Questions:
        """`examples` of one process of several, `start` counted in its own: where each follows an order of its own, as
        `has_order_per_rank` says. Others share one order."""
        raise NotImplementedError(f"{type(self).__name__}: processes share one order")

    def has_order_per_rank(self, split: str) -> bool:
        """Whether each of several processes follows an order of its own through this split."""
        return False

    def _draw_block(self, split: str, seed: int, block_index: int, block_size: int) -> Questions:
        """One whole block. Questions of another split are drawn again, each time under the next attempt's key."""
        low, high = SPLITS[split]
        missing_positions = np.arange(block_size)
        accepted: list[Questions] = []
        accepted_positions: list[NDArray[np.int64]] = []
        for attempt in range(_MAX_ATTEMPTS):
            # Several questions for each that is missing, of which the first right one is taken: nearly all first ones
            # are right for training, one in twenty for a test.
            candidates_per_question = 1 if split == "train" and attempt == 0 else max(4, round(1.5 / (high - low)))
            rng = CounterRNG(random_key(self, split, seed, block_index, attempt))
            candidates = self._draw_attempt(
                rng, np.repeat(block_index * block_size + missing_positions, candidates_per_question), split, seed
            )
            if candidates.random_bits is None:
                candidates = replace(candidates, random_bits=rng.random_words(len(candidates)))
            is_in_split = self._in_split(candidates, low, high).reshape(-1, candidates_per_question)
            has_match = is_in_split.any(axis=1)
            if candidates_per_question == 1 and not accepted and has_match.all():
                return candidates
            accepted.append(
                candidates.take(
                    np.flatnonzero(has_match) * candidates_per_question + is_in_split.argmax(axis=1)[has_match]
                )
            )
            accepted_positions.append(missing_positions[has_match])
            missing_positions = missing_positions[~has_match]
            if not len(missing_positions):
                return Questions.concatenate(accepted).take(
                    np.argsort(np.concatenate(accepted_positions), kind="stable")
                )
        raise UserError(
            f"split: {type(self).__name__} has too few questions for {split!r}; num_questions() must return how many "
            "there are"
        )

    def _draw_attempt(self, rng: CounterRNG, indices: NDArray[np.int64], split: str, seed: int) -> Questions:
        """One attempt at the questions of these indices, some of which may be of another split."""
        return self.draw(rng, indices)

    def _in_split(self, questions: Questions, low: float, high: float) -> NDArray[np.bool_]:
        hashes = self.question_hashes(questions)
        if hashes is None:
            return np.ones(len(questions), dtype=np.bool_)
        fraction = (hashes >> np.uint64(32)).astype(np.float64) / 2.0**32
        return (fraction >= low) & (fraction < high) | ~self.splittable_mask(questions)


def can_be_split(num_questions: int) -> bool:
    """Whether a cell of so many questions can be divided: its smallest split has `MIN_SPLIT_SIZE` of them."""
    return num_questions * min(high - low for low, high in SPLITS.values()) >= MIN_SPLIT_SIZE - 1e-6

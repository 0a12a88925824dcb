"""Tasks: reproducible sources of questions with answers."""

import random
import re
from abc import ABC
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, Spec
from numerate.config.path_names import shortest_unique_names
from numerate.errors import UserError, check_choice, did_you_mean
from numerate.tasks.contents import file_sha256
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.questions import EMPTY as EMPTY
from numerate.tasks.questions import Example as Example
from numerate.tasks.questions import Numbers as Numbers
from numerate.tasks.questions import Questions as Questions

TEST_FRACTION, VALIDATION_FRACTION, OOD_VALIDATION_FRACTION = 0.05, 0.025, 0.025
"""The fraction of all questions that is held out for each split; the rest is for training."""

SPLITS: dict[str, tuple[float, float]] = {
    "test": (0.0, TEST_FRACTION),
    "validation": (TEST_FRACTION, TEST_FRACTION + VALIDATION_FRACTION),
    "ood_validation": (
        TEST_FRACTION + VALIDATION_FRACTION,
        TEST_FRACTION + VALIDATION_FRACTION + OOD_VALIDATION_FRACTION,
    ),
    "train": (TEST_FRACTION + VALIDATION_FRACTION + OOD_VALIDATION_FRACTION, 1.0),
}
"""Per split, the interval of the hashes of its questions, as fractions of 1. Questions of `ood_validation` are of sizes
just above training (`Task.ood_validation_task`), those of the other splits are of the task itself."""

MIN_SPLIT_SIZE = 100
"""The fewest held-out questions that the smallest split of a cell must have; smaller cells are not split, and training
uses all of their questions."""

EVAL_BLOCK_SIZE = 128
"""Number of examples generated per block in splits other than training, where a grid cell needs about a hundred."""

_MAX_ATTEMPTS = 24
"""Maximum number of attempts to resample questions that belong to another split. Each attempt succeeds for at least
three in four of the missing questions, so that one block in 10**12 needs more, unless the split has too few."""


class Task(Spec, ABC):
    """Questions with answers. A frozen dataclass with a default for every field.

    - An axis is a field that says how large questions are: `first_digits` and `second_digits` in `Arithmetic`, `count`
      in `Counting`. (In `Mathematics`, the DeepMind
      Mathematics Dataset, it is `module`: the dataset calls its types of question modules.)
    - A size is a value of an axis. Such fields are `int | Span`: `Span(1, 5)`, or `1:5`, is 1 to 5, both included.
    - A cell is one size per axis, such as `{"first_digits": 3, "second_digits": 4}`; accuracy is measured per cell.
    - A grid is a set of cells to evaluate: `1:12x1:12` has 144 (`numerate.evaluation.grid`).

    A task implements either `draw` (vectorized, fast) or `example` (one question at a time, simple):

        @dataclass(frozen=True)
        class Doubling(Task):
            digits: int = setting(3, "how many digits the number may have")

            def example(self, rng: random.Random) -> Example:
                number = rng.randrange(10**self.digits)
                return Example(f"2*{number}=", str(2 * number), {"digits": len(str(number))})
    """

    block_size: ClassVar[int] = 4096
    """Number of training examples generated per block."""

    has_ood_sizes: ClassVar[bool] = True
    """Whether the task has questions larger than those of training, which the default grid includes. Files have
    none."""

    is_language_modeling: ClassVar[bool] = False
    """Whether it is language modeling: every token is a target, without questions and answers."""

    evaluation_kind: ClassVar[str | None] = None
    """The name of its `EvaluationKind`; None for the one of its layout and questions: `TokenLabels`, `TextAnswers` or
    `ExactMatch`."""

    default_grid_in_distribution: ClassVar[bool] = False
    """Whether the default grid is limited to cells of trained sizes."""

    is_ordered: ClassVar[bool] = False
    """Whether training reads the examples in the order of the task, without sorting by length or shuffling."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if ABC not in cls.__bases__ and cls.draw is Task.draw and cls.example is Task.example:
            raise TypeError(f"{cls.__name__}: must implement draw(self, rng, indices) or example(self, rng)")

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        """Generates one question per global index, determined by the arguments and the fields alone; an index that
        occurs several times in `indices` gives different questions. The default calls `example` for each index, and
        raises `UserError` if the metadata of an example lacks its size along an axis."""
        examples = [self.example(random.Random(random_key(rng.key, row, i))) for row, i in enumerate(indices)]
        for example in examples:
            is_text = isinstance(example, Example) and type(example.question) is type(example.answer) is str
            if not is_text and not isinstance(example, Questions):
                name = type(self).__name__
                raise UserError(f"example: {name} must return Example(question, answer) of two texts, not {example!r}")
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
                f"example: {type(self).__name__} has the axes {', '.join(self.axes())}, but the metadata of an "
                f"example lacks {' and '.join(missing)}; return Example(question, answer, {{{sizes}}}) with the size "
                "along each axis"
            )

    def example(self, rng: random.Random) -> Example | Questions:
        """Generates one question, using no randomness other than `rng`."""
        raise NotImplementedError(f"{type(self).__name__} implements draw, not example")

    def at_cell(self, **cell: Any) -> Self:
        """The same task with these fields fixed: one cell of a grid. Raises `UserError` for an unknown field.

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
        """The fields that are the axes of a grid, such as `("first_digits", "second_digits")`."""
        return ()

    def training_spans(self) -> dict[str, Span]:
        """The range of training sizes along each axis."""
        return {axis: Span.from_value(getattr(self, axis)) for axis in self.axes()}

    def ood_validation_task(self) -> "Task | None":
        """The task that OOD validation samples from (sizes just above those of training), on which the best checkpoint
        is selected; None if there is none."""
        return None

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64] | None:
        """A hash of each question without its answer, which decides its split. It does not depend on how the numbers
        are padded or tokenized. None if questions cannot be identified; nothing is held out then."""
        return questions.hashes()

    def num_questions(self) -> int | None:
        """Number of distinct questions; None if unknown or too large to count."""
        return None

    def all_questions(self, split: str = "test") -> Questions | None:
        """All questions of a split, each once, if the task can enumerate them; None if it samples with replacement.

        An evaluation that requests more questions than a cell has uses these instead:
        `BitwiseOr().at_cell(first_digits=4, second_digits=2).all_questions()` has two.
        """
        return None

    def num_rows(self, split: str) -> int | None:
        """Number of rows that a split has in files; None if questions are generated. `examples` returns every row once
        before it repeats any; an evaluation uses each at most once."""
        return None

    def max_training_labels(self) -> int | None:
        """The largest number of labels in a training row, so labels at later positions exceed the counts seen in
        training; None if the task has no per-token labels, or if unknown."""
        return None

    def strata(self, size: int) -> dict[str, list[dict[str, Any]]]:
        """The strata that a grid may name, such as `cascade:1000`, each with its cells at a size: questions that
        uniformly drawn ones almost never are. A cell is a size per axis, and `stratum`, its name in results; it may
        have further settings of the task. `at_cell` takes all of them. By default there are none.

        >>> from numerate.tasks import BitwiseOr
        >>> BitwiseOr().strata(8)["uneven"][0]
        {'first_digits': 1, 'second_digits': 8, 'stratum': 'one_and_n'}
        """
        return {}

    def question_facts(self, questions: Questions) -> dict[str, NDArray[np.int64]]:
        """Numbers about each question by which errors can be grouped, as further columns of predictions, such as the
        number of carries of a sum; {} by default."""
        return {}

    def cells(self) -> list[tuple[int, ...]] | None:
        """The cells that have questions, in order; None if there are questions of every size. A file may have rows
        of 4 and of 8 characters and none between; counting may have no row above `max_number`."""
        return None

    def check_files(self) -> None:
        """Raises `UserError`, with instructions for obtaining them, if files of the task are missing."""
        self.cells()

    def files(self) -> dict[str, Path]:
        """The data files, keyed by names that do not depend on the location of their folder; by default those of
        nested tasks. Empty if questions are generated."""
        return shortest_unique_names(path for task in self._nested_tasks() for path in task.files().values())

    def file_hashes(self) -> dict[str, str]:
        """A sha256 of each of its files, keyed by the same names: a run is resumed and evaluated only with unchanged
        files. Raises `UserError` if a file cannot be read."""
        return {name: file_sha256(path) for name, path in self.files().items()}

    def _nested_tasks(self) -> "Iterator[Task]":
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            yield from (part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Task))

    def named_evaluation_kind(self) -> str | None:
        """The name of its kind of evaluation, if it has one; that of the evaluated tasks in a mixture."""
        return self.evaluation_kind

    def cell_name(self, axis: str, size: int) -> str:
        """The display name of a size of an axis: its number, unless the task names its sizes, as `Mathematics` does
        (types of question)."""
        return str(size)

    def longest_questions(self) -> Questions | None:
        """A question of maximum length at the task's largest sizes; None if nearly all such questions have that length,
        so that a few samples are enough."""
        return None

    def alphabet(self) -> tuple[str, ...]:
        """All strings that questions and answers may contain besides numbers. By default, those found in the first
        training block; override it if a rare one could be missed."""
        questions = self._draw_block("train", 0, 0, 1024)
        # an element of symbols or labels is an index into questions.alphabet; negative: the place of a number, or none
        texts = [questions.alphabet[i] for i in np.unique(questions.symbols[questions.symbols >= 0])]
        if questions.labels is not None:
            texts += [questions.alphabet[i] for i in np.unique(questions.labels[questions.labels >= 0])]
        return tuple(dict.fromkeys(texts))

    def parse_question(self, text: str) -> Questions:
        """Parses a question in plain text and computes its answer. Raises `UserError` for text that is not a question
        of this task."""
        raise UserError(f"question: {type(self).__name__} cannot parse questions from text")

    def small(self) -> "Task":
        """A small version that needs no download, for `preset=debug` on the command line."""
        return self

    def prepare_files(self, *, show_progress: bool = False) -> None:
        """Writes files that training reads and that can be made from others, such as the tokens of texts; by default
        those of nested tasks."""
        for task in self._nested_tasks():
            task.prepare_files(show_progress=show_progress)

    def data_warnings(self) -> list[str]:
        """Warnings about the data, printed when training starts, such as rows that are skipped; by default those of the
        tasks among its fields. Raises `UserError` for settings that only an evaluation may have."""
        return [text for task in self._nested_tasks() for text in task.data_warnings()]

    def is_held_out(self, split: str) -> bool:
        """Whether no question of this split occurs in training: the split is not training itself, and every cell of the
        task is large enough to be split."""
        num_questions = self.num_questions()
        return split != "train" and (num_questions is None or can_be_split(num_questions))

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        """Per question, whether its cell is large enough to be split. If not, the cell overlaps with training: every
        split samples from all of its questions."""
        return np.full(len(questions), self.is_held_out("test"))

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        """The data: examples `start` .. `start + count - 1` of a split. They depend on the fields, the split, the seed
        and the index alone, however the range is divided into calls. Raises `UserError` for an unknown split.
        """
        check_choice("split", split, SPLITS)
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
        """`examples` for one of several processes, with `start` counted in that process's order, for tasks in which
        each process has its own order (`has_order_per_rank`). Other tasks share one order."""
        raise NotImplementedError(f"{type(self).__name__}: all processes share one order")

    def has_order_per_rank(self, split: str) -> bool:
        """Whether each of several processes has its own order of the examples of this split."""
        return False

    def _draw_block(self, split: str, seed: int, block_index: int, block_size: int) -> Questions:
        """Generates one block. Questions of other splits are resampled, with a new key for each attempt."""
        low, high = SPLITS[split]
        missing_positions = np.arange(block_size)
        accepted: list[Questions] = []
        accepted_positions: list[NDArray[np.int64]] = []
        for attempt in range(_MAX_ATTEMPTS):
            # Draw several candidates per missing question and take the first one that is in the split: for training
            # nearly every candidate is, for test one in twenty.
            candidates_per_question = 1 if split == "train" and attempt == 0 else max(4, round(1.5 / (high - low)))
            rng = CounterRNG(random_key(self, split, seed, block_index, attempt))
            candidates = self._draw_attempt(
                rng, np.repeat(block_index * block_size + missing_positions, candidates_per_question), split, seed
            )
            if candidates.random_bits is None:  # for random choices of the tokenizer, see `Questions`
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
            f"split: {type(self).__name__} has too few questions for {split!r}; num_questions() must return their "
            "number, or they are listed in full: numerate.wrap_data"
        )

    def _draw_attempt(self, rng: CounterRNG, indices: NDArray[np.int64], split: str, seed: int) -> Questions:
        """Draws candidates for these indices; some may belong to another split."""
        return self.draw(rng, indices)

    def _in_split(self, questions: Questions, low: float, high: float) -> NDArray[np.bool_]:
        hashes = self.question_hashes(questions)
        if hashes is None:
            return np.ones(len(questions), dtype=np.bool_)
        fraction = (hashes >> np.uint64(32)).astype(np.float64) / 2.0**32
        return (fraction >= low) & (fraction < high) | ~self.splittable_mask(questions)


def can_be_split(num_questions: int) -> bool:
    """Whether a cell with this many questions can be split: its smallest split gets at least `MIN_SPLIT_SIZE`."""
    # Not num_questions times a share: there are more sums of 309 digits than a float can be.
    return num_questions >= (MIN_SPLIT_SIZE - 1e-6) / min(high - low for low, high in SPLITS.values())


def check_question(is_question: object, text: str, example: str) -> None:
    """Raises `UserError`, with an example, if a text is not a question of a task."""
    if not is_question:
        raise UserError(f"question: {text!r} is not a question of this task; an example is {example}")


def match_question(pattern: str, text: str, example: str) -> re.Match[str]:
    """The match of a whole text with a pattern. Raises `UserError`, with an example, if it is not a question."""
    match = re.fullmatch(pattern, text)
    check_question(match, text, example)
    assert match is not None
    return match

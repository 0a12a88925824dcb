"""Math word problems: GSM8K, with SVAMP, GSM-Hard and GSM-Plus as further tests."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.folders import dataset_file, dataset_folder
from numerate.tasks.texts import Example
from numerate.text.tasks.file_sources import FileSource
from numerate.text.tasks.readers import (
    RecordReader,
    decode_utf8,
    json_type_name,
    parse_json,
    parse_json_object,
    text_field,
)
from numerate.text.tasks.text_files import file_stamp, open_line_file, parse_file
from numerate.text.tasks.text_task import (
    DatasetSplits,
    SplitRows,
    TextTask,
    check_fraction,
    check_names,
    check_part,
    split_indices,
)

AnswerFormat = Literal["solution", "number"]

EXTRA_TEST_FILES = {"svamp": "SVAMP.json", "gsm_hard": "gsmhardv2.jsonl", "gsm_plus": "gsmplus_testmini.jsonl"}
"""The further tests, each with its file in the folder of its name."""

CANDIDATE_FOLDERS = ("gsm8k", "grade_school_math/data/preprocessed", "grade_school_math/data", "data/preprocessed")
PREPARED_FILES = ("train_t_clean.jsonl", "val_t_clean.jsonl", "test_clean.jsonl")
"""The files of a folder that the published program has prepared."""

ANSWER_MARK = "####"
"""The mark before the final number of a solution."""


@dataclass(frozen=True)
class GSM8K(TextTask):
    """GSM8K math word problems (Cobbe et al., 2021) with solutions, `... so she sold 24 clips.\\n#### 72`.

    "Training Verifiers to Solve Math Word Problems", https://arxiv.org/abs/2110.14168: 7,473 problems of training, of
    which 15 % (1,120) are validation, and 1,319 of the test. The marks of the calculator are removed, and numbers
    written one way: `1,000` and `1 000` are 1000, `.5` is 0.5. (The published program replaces every `.5` of a text,
    also that of 12.5, which becomes 120.5; nothing of that here.)

    `answer_format="number"` asks for the last number alone. `extra_tests` names tests beside its own, which are parts
    2, 3 and so on: `svamp` (1,000; Patel et al. 2021, https://arxiv.org/abs/2103.07191), `gsm_hard` (1,319 with larger
    numbers; Gao et al. 2022, https://arxiv.org/abs/2211.10435) and `gsm_plus` (2,400; Li et al. 2024,
    https://arxiv.org/abs/2402.19255, where 300 questions have the answer None). The first two have no solutions, so
    that their answers are the mark and the number alone.

    `data_dir` holds `train.jsonl` and `test.jsonl`, or the three files that the published program prepares; the further
    tests are in folders of their names beside it.
    """

    answer_format: AnswerFormat = setting("solution", "target: the whole solution, or its final number")
    extra_tests: tuple[Literal["svamp", "gsm_hard", "gsm_plus"], ...] = setting((), "test sets beside GSM8K's own")
    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    test: int | Span | None = setting(None, "index of the test set: 1 is GSM8K's own, then `extra_tests`; null: all")
    validation_fraction: float = setting(0.15, "share of the training file used for validation")
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")

    def __post_init__(self) -> None:
        if self.answer_format not in ("solution", "number"):
            raise UserError(f"answer_format: must be 'solution' or 'number', not {self.answer_format!r}")
        check_names("extra_tests", self.extra_tests, EXTRA_TEST_FILES)
        check_fraction("validation_fraction", self.validation_fraction)
        check_part("test", self.test)

    @property
    def splits(self) -> DatasetSplits:
        place = self.folder
        is_prepared = (place / PREPARED_FILES[0]).is_file() and not (place / "train.jsonl").is_file()
        names = PREPARED_FILES if is_prepared else ("train.jsonl", "test.jsonl")
        files = [dataset_file(place, name, "gsm8k") for name in names]
        files += [self._extra_test_file(name) for name in self.extra_tests]
        fraction_and_seed = None if is_prepared else (self.validation_fraction, self.split_seed)
        return _read_splits(
            tuple(map(file_stamp, files)),
            self.extra_tests,
            self.answer_format,
            fraction_and_seed,
            self.keep_duplicates,
            self.skip_invalid,
        )

    @property
    def folder(self) -> Path:
        """The folder of GSM8K. Raises `UserError` that says how to get it."""
        return dataset_folder(self.data_dir, "gsm8k", CANDIDATE_FOLDERS, ("train.jsonl", PREPARED_FILES[0]))

    def _extra_test_file(self, name: str) -> Path:
        """The file of a further test: in a folder of its name beside that of GSM8K, or in the user's data folder."""
        file = EXTRA_TEST_FILES[name]
        near_folder = next(
            (near for near in (self.folder / name, self.folder.parent / name) if (near / file).is_file()), None
        )
        return near_folder / file if near_folder is not None else dataset_folder(None, name, (name,), (file,)) / file


@lru_cache(maxsize=8)
def _read_splits(
    stamps: tuple[tuple[str, int, int], ...],
    extra_tests: tuple[str, ...],
    answer_format: AnswerFormat,
    fraction_and_seed: tuple[float, int] | None,
    keep_duplicates: bool,
    skip_invalid: bool,
) -> DatasetSplits:
    paths = [Path(path) for path, _, _ in stamps]
    num_own_files = len(paths) - len(extra_tests)
    files: list[FileSource] = [
        open_line_file(path, Solved(answer_format), skip_invalid) for path in paths[:num_own_files]
    ]
    tests: list[FileSource] = [files[-1]]
    for name, path in zip(extra_tests, paths[num_own_files:], strict=True):
        if name == "svamp":
            tests.append(parse_file(path, Challenges(answer_format), skip_invalid))
        else:
            tests.append(
                open_line_file(
                    path, Larger(answer_format) if name == "gsm_hard" else Perturbed(answer_format), skip_invalid
                )
            )
    train = SplitRows.from_source(files[0])
    if fraction_and_seed is None:
        validation = SplitRows.from_source(files[1])
    else:
        count = files[0].num_examples
        sizes = (count - int(fraction_and_seed[0] * count), int(fraction_and_seed[0] * count))
        first, second = split_indices(count, sizes, ("word problems", fraction_and_seed[1]))
        train, validation = train.take(first), train.take(second)
    return DatasetSplits.without_overlap(
        ("gsm8k", *extra_tests), 1, train, validation, SplitRows.from_sources(tests), keep_duplicates
    )


@dataclass(frozen=True)
class Solved(RecordReader):
    """A line of GSM8K.

    >>> line = r'{"question": "How many?", "answer": "500+500=<<500+500=1000>>1,000\\n#### 1,000"}'
    >>> Solved("number").example(line).answer
    '1000'
    """

    answer: AnswerFormat = "solution"
    version: int = 1

    def example(self, record: str) -> Example:
        record_object = parse_json_object(record)
        solution = text_field(record_object, "answer")
        answer = normalize_numbers(remove_calculator_annotations(solution))
        if self.answer == "number":
            if ANSWER_MARK not in answer:
                raise ValueError(f"has no {ANSWER_MARK!r} before the last number of its answer")
            answer = answer.rpartition(ANSWER_MARK)[2].strip()
        return Example(normalize_numbers(text_field(record_object, "question")), answer)


@dataclass(frozen=True)
class Larger(RecordReader):
    """A line of GSM-Hard: a question, and its answer as a number.

    >>> Larger("number").example('{"input": "How many?", "code": "", "target": -9867630.0}').answer
    '-9867630'
    """

    answer: AnswerFormat = "solution"
    version: int = 1

    def example(self, record: str) -> Example:
        record_object = parse_json_object(record)
        return Example(
            normalize_numbers(text_field(record_object, "input")),
            _format_answer(format_number(record_object.get("target")), self.answer),
        )


@dataclass(frozen=True)
class Perturbed(RecordReader):
    """A line of GSM-Plus: a question, a solution, and the answer as text."""

    answer: AnswerFormat = "solution"
    version: int = 1

    def example(self, record: str) -> Example:
        record_object = parse_json_object(record)
        question, number = (
            normalize_numbers(text_field(record_object, "question")),
            normalize_numbers(text_field(record_object, "answer")),
        )
        if self.answer == "number":
            return Example(question, number)
        return Example(
            question, normalize_numbers(remove_calculator_annotations(text_field(record_object, "solution")))
        )


@dataclass(frozen=True)
class Challenges:
    """The file of SVAMP, a list in JSON: body and question of each with its answer as a number."""

    answer: AnswerFormat = "solution"
    version: int = 1

    def __call__(self, content: bytes) -> Iterator[tuple[int, Example | ValueError]]:
        try:
            text = decode_utf8(content)
            records = parse_json(text)
        except ValueError as error:
            cause = error.__cause__
            yield cause.lineno if isinstance(cause, json.JSONDecodeError) else 1, error
            return
        if not isinstance(records, list):
            yield 1, ValueError("is no list of problems")
            return
        id_offsets = [found.start() for found in re.finditer(r'"ID"', text)]
        for number, record in enumerate(records):
            line = text.count("\n", 0, id_offsets[number]) + 1 if len(id_offsets) == len(records) else 1
            try:
                yield line, self._example(record)
            except ValueError as error:
                yield line, error

    def _example(self, record: Any) -> Example:
        if not isinstance(record, dict):
            raise ValueError(f"must be an object, not {json_type_name(record)}")
        question = f"{text_field(record, 'Body').strip()} {text_field(record, 'Question').strip()}"
        return Example(normalize_numbers(question), _format_answer(format_number(record.get("Answer")), self.answer))


def _format_answer(number: str, answer_format: AnswerFormat) -> str:
    return number if answer_format == "number" else f"{ANSWER_MARK} {number}"


_CALCULATOR_ANNOTATION = re.compile(r"<<[^<>]*>>")
_SPACED_NUMBER = re.compile(r"(?<![\S])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_COMMA_NUMBER = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_LEADING_POINT = re.compile(r"(?<![0-9.])(?<![^\W0-9_x])(?<!\))\.(?=[0-9])(?![0-9]+\.[0-9])")


def remove_calculator_annotations(text: str) -> str:
    """A solution of GSM8K without calculator annotations.

    >>> remove_calculator_annotations("She sold 48/2 = <<48/2=24>>24 clips.")
    'She sold 48/2 = 24 clips.'
    """
    return _CALCULATOR_ANNOTATION.sub("", text)


def normalize_numbers(text: str) -> str:
    """A text whose numbers are all written one way: no commas or spaces within them, a digit before the point.

    A comma or space counts where groups of three follow one of up to three; a point where neither a digit nor a word
    stands before it (`x` is a sign, as in 10x.6).

    >>> normalize_numbers("12.5 x .5 of 1,000,000 or 18 000, $.75")
    '12.5 x 0.5 of 1000000 or 18000, $0.75'
    >>> normalize_numbers("days 4,5,6 and 13,15,17&19")
    'days 4,5,6 and 13,15,17&19'
    """
    text = _SPACED_NUMBER.sub(lambda found: found[0].replace(" ", ""), text)
    text = _COMMA_NUMBER.sub(lambda found: found[0].replace(",", ""), text)
    return _LEADING_POINT.sub("0.", text)


def format_number(value: Any) -> str:
    """A number of JSON as people write it: 51.0 is `51`, 2.0107e-06 is `0.0000020107`. Raises `ValueError` for others.

    >>> format_number(51.0), format_number(-0.25), format_number(1e21)
    ('51', '-0.25', '1000000000000000000000')
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        raise ValueError(f"its answer must be a finite number, not {value!r}")
    text = f"{Decimal(repr(value)):f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"

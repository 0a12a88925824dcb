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
from numerate.text.tasks.readers import RecordReader, json_object, json_value, kind_of, text_of, utf8
from numerate.text.tasks.text_files import open_lines, read_whole, stamp
from numerate.text.tasks.text_task import Holdings, Stock, TextTask, divided, refuse_part, refuse_share, refuse_unknown

Form = Literal["solution", "number"]

FURTHER = {"svamp": "SVAMP.json", "gsm_hard": "gsmhardv2.jsonl", "gsm_plus": "gsmplus_testmini.jsonl"}
"""The further tests, each with its file in the folder of its name."""

FOLDERS = ("gsm8k", "grade_school_math/data/preprocessed", "grade_school_math/data", "data/preprocessed")
PREPARED = ("train_t_clean.jsonl", "val_t_clean.jsonl", "test_clean.jsonl")
"""The files of a folder that the published program has prepared."""

MARK = "####"
"""The mark before the final number of a solution."""


@dataclass(frozen=True)
class GSM8K(TextTask):
    """GSM8K math word problems (Cobbe et al., 2021) with solutions, `... so she sold 24 clips.\\n#### 72`.

    "Training Verifiers to Solve Math Word Problems", https://arxiv.org/abs/2110.14168: 7,473 problems of training, of
    which 15 % (1,120) are development, and 1,319 of the test. The marks of the calculator are removed, and numbers
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

    answer_format: Form = setting("solution", "target: the whole solution, or its final number")
    extra_tests: tuple[Literal["svamp", "gsm_hard", "gsm_plus"], ...] = setting((), "test sets beside GSM8K's own")
    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    test: int | Span | None = setting(
        None, "the number of a part: 1 is GSM8K's own test, then `extra_tests`; null: all"
    )
    development_fraction: float = setting(0.15, "share of the training file used for validation")
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")

    def __post_init__(self) -> None:
        if self.answer_format not in ("solution", "number"):
            raise UserError(f"answer_format: {self.answer_format!r} is neither 'solution' nor 'number'")
        refuse_unknown("extra_tests", self.extra_tests, FURTHER)
        refuse_share("development_fraction", self.development_fraction)
        refuse_part("test", self.test)

    @property
    def holdings(self) -> Holdings:
        place = self.place
        ready = (place / PREPARED[0]).is_file() and not (place / "train.jsonl").is_file()
        names = PREPARED if ready else ("train.jsonl", "test.jsonl")
        files = [dataset_file(place, name, "gsm8k") for name in names]
        files += [self._further(name) for name in self.extra_tests]
        share = None if ready else (self.development_fraction, self.split_seed)
        return _read(
            tuple(map(stamp, files)),
            self.extra_tests,
            self.answer_format,
            share,
            self.keep_duplicates,
            self.skip_invalid,
        )

    @property
    def place(self) -> Path:
        """The folder of GSM8K. Raises `UserError` that says how to get it."""
        return dataset_folder(self.data_dir, "gsm8k", FOLDERS, ("train.jsonl", PREPARED[0]))

    def _further(self, name: str) -> Path:
        """The file of a further test: in a folder of its name beside that of GSM8K, or in the user's data folder."""
        file = FURTHER[name]
        beside = next((near for near in (self.place / name, self.place.parent / name) if (near / file).is_file()), None)
        return beside / file if beside is not None else dataset_folder(None, name, (name,), (file,)) / file


@lru_cache(maxsize=8)
def _read(
    stamps: tuple[tuple[str, int, int], ...],
    further: tuple[str, ...],
    answer: Form,
    share: tuple[float, int] | None,
    repeats: bool,
    skip_bad: bool,
) -> Holdings:
    paths = [Path(path) for path, _, _ in stamps]
    own = len(paths) - len(further)
    files: list[FileSource] = [open_lines(path, Solved(answer), skip_bad) for path in paths[:own]]
    tests: list[FileSource] = [files[-1]]
    for name, path in zip(further, paths[own:], strict=True):
        if name == "svamp":
            tests.append(read_whole(path, Challenges(answer), skip_bad))
        else:
            tests.append(open_lines(path, Larger(answer) if name == "gsm_hard" else Perturbed(answer), skip_bad))
    train = Stock.of(files[0])
    if share is None:
        held = Stock.of(files[1])
    else:
        count = files[0].count
        sizes = (count - int(share[0] * count), int(share[0] * count))
        first, second = divided(count, sizes, ("word problems", share[1]))
        train, held = train.take(first), train.take(second)
    return Holdings.apart(("gsm8k", *further), 1, train, held, Stock.of_parts(tests), repeats)


@dataclass(frozen=True)
class Solved(RecordReader):
    """A line of GSM8K.

    >>> Solved("number").example('{"question": "How many?", "answer": "500+500=<<500+500=1000>>1,000\\n#### 1,000"}')
    Example(question='How many?', answer='1000')
    """

    answer: Form = "solution"
    version: int = 1

    def example(self, record: str) -> Example:
        found = json_object(record)
        solution = text_of(found, "answer")
        answer = plain_numbers(without_marks(solution))
        if self.answer == "number":
            if MARK not in answer:
                raise ValueError(f"has no {MARK!r} before the last number of its answer")
            answer = answer.rpartition(MARK)[2].strip()
        return Example(plain_numbers(text_of(found, "question")), answer)


@dataclass(frozen=True)
class Larger(RecordReader):
    """A line of GSM-Hard: a question, and its answer as a number.

    >>> Larger("number").example('{"input": "How many?", "code": "", "target": -9867630.0}')
    Example(question='How many?', answer='-9867630')
    """

    answer: Form = "solution"
    version: int = 1

    def example(self, record: str) -> Example:
        found = json_object(record)
        return Example(plain_numbers(text_of(found, "input")), _answer(number_text(found.get("target")), self.answer))


@dataclass(frozen=True)
class Perturbed(RecordReader):
    """A line of GSM-Plus: a question, a solution, and the answer as text."""

    answer: Form = "solution"
    version: int = 1

    def example(self, record: str) -> Example:
        found = json_object(record)
        question, number = plain_numbers(text_of(found, "question")), plain_numbers(text_of(found, "answer"))
        if self.answer == "number":
            return Example(question, number)
        return Example(question, plain_numbers(without_marks(text_of(found, "solution"))))


@dataclass(frozen=True)
class Challenges:
    """The file of SVAMP, a list in JSON: body and question of each with its answer as a number."""

    answer: Form = "solution"
    version: int = 1

    def __call__(self, content: bytes) -> Iterator[tuple[int, Example | ValueError]]:
        try:
            text = utf8(content)
            records = json_value(text)
        except ValueError as error:
            cause = error.__cause__
            yield cause.lineno if isinstance(cause, json.JSONDecodeError) else 1, error
            return
        if not isinstance(records, list):
            yield 1, ValueError("is no list of problems")
            return
        begins = [found.start() for found in re.finditer(r'"ID"', text)]
        for number, record in enumerate(records):
            line = text.count("\n", 0, begins[number]) + 1 if len(begins) == len(records) else 1
            try:
                yield line, self._example(record)
            except ValueError as error:
                yield line, error

    def _example(self, record: Any) -> Example:
        if not isinstance(record, dict):
            raise ValueError(f"is no problem but {kind_of(record)}")
        question = f"{text_of(record, 'Body').strip()} {text_of(record, 'Question').strip()}"
        return Example(plain_numbers(question), _answer(number_text(record.get("Answer")), self.answer))


def _answer(number: str, form: Form) -> str:
    return number if form == "number" else f"{MARK} {number}"


_MARKS = re.compile(r"<<[^<>]*>>")
_SPACED = re.compile(r"(?<![\S])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_COMMAS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_POINT = re.compile(r"(?<![0-9.])(?<![^\W0-9_x])(?<!\))\.(?=[0-9])(?![0-9]+\.[0-9])")


def without_marks(text: str) -> str:
    """A solution of GSM8K without calculator annotations.

    >>> without_marks("She sold 48/2 = <<48/2=24>>24 clips.")
    'She sold 48/2 = 24 clips.'
    """
    return _MARKS.sub("", text)


def plain_numbers(text: str) -> str:
    """A text whose numbers are all written one way: no commas or spaces within them, a digit before the point.

    A comma or space counts where groups of three follow one of up to three; a point where neither a digit nor a word
    stands before it (`x` is a sign, as in 10x.6).

    >>> plain_numbers("12.5 x .5 of 1,000,000 or 18 000, $.75"), plain_numbers("days 4,5,6 and 13,15,17&19")
    ('12.5 x 0.5 of 1000000 or 18000, $0.75', 'days 4,5,6 and 13,15,17&19')
    """
    text = _SPACED.sub(lambda found: found[0].replace(" ", ""), text)
    text = _COMMAS.sub(lambda found: found[0].replace(",", ""), text)
    return _POINT.sub("0.", text)


def number_text(value: Any) -> str:
    """A number of JSON as people write it: 51.0 is `51`, 2.0107e-06 is `0.0000020107`. Raises `ValueError` for others.

    >>> number_text(51.0), number_text(-0.25), number_text(1e21)
    ('51', '-0.25', '1000000000000000000000')
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        raise ValueError(f"has no number as its answer but {value!r}")
    text = f"{Decimal(repr(value)):f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"

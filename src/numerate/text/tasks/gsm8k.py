"""Math word problems: GSM8K, with SVAMP, GSM-Hard and GSM-Plus as further tests."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from numerate.config import Span, setting
from numerate.tasks.folders import dataset_file, dataset_folder
from numerate.text.tasks.input_errors import duplicate_names
from numerate.text.tasks.mapped_lines import MappedLines
from numerate.text.tasks.readers import TEXT, ExampleReader, Pair, RecordReader, decode_utf8, parse_json, read_fields
from numerate.text.tasks.text_files import open_examples
from numerate.text.tasks.text_task import DatasetSplits, SplitRows, TextTask, split_indices

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
    written one way: `1,000` is 1000, `.5` is 0.5, and `1 000` is 1000 where the solution confirms it. (The published
    program replaces every `.5` of a text, also that of 12.5, which becomes 120.5; nothing of that here.)

    `answer_format="number"` asks for the last number alone. `extra_tests` names tests beside its own, which are parts
    2, 3 and so on: `svamp` (1,000; Patel et al. 2021, https://arxiv.org/abs/2103.07191), `gsm_hard` (1,319 with larger
    numbers; Gao et al. 2022, https://arxiv.org/abs/2211.10435) and `gsm_plus` (2,400; Li et al. 2024,
    https://arxiv.org/abs/2402.19255, where 300 questions have the answer None). The first two have no solutions, so
    that their answers are the mark and the number alone.

    `data_dir` holds `train.jsonl` and `test.jsonl`, or the three files that the published program prepares; the further
    tests are in folders of their names beside it.
    """

    answer_format: Literal["solution", "number"] = setting(
        "solution", "target: the whole solution, or its final number"
    )
    extra_tests: tuple[Literal["svamp", "gsm_hard", "gsm_plus"], ...] = setting((), "test sets beside GSM8K's own")
    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    test: int | Span | None = setting(
        None, "index of the test set: 1 is GSM8K's own, then `extra_tests`; null: all", at_least=1
    )
    validation_fraction: float = setting(0.15, "share of the training file used for validation", at_least=0, below=1)
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")

    def conflicts(self) -> Iterator[str]:
        return duplicate_names("extra_tests", self.extra_tests)

    def data_files(self) -> list[Path]:
        folder = dataset_folder(self.data_dir, "gsm8k", CANDIDATE_FOLDERS, ("train.jsonl", PREPARED_FILES[0]))
        is_prepared = (folder / PREPARED_FILES[0]).is_file() and not (folder / "train.jsonl").is_file()
        files = [
            dataset_file(folder, name, "gsm8k")
            for name in (PREPARED_FILES if is_prepared else ("train.jsonl", "test.jsonl"))
        ]
        return files + [self._extra_test_file(folder, name) for name in self.extra_tests]

    def _extra_test_file(self, folder: Path, name: str) -> Path:
        """The file of a further test: in a folder of its name beside that of GSM8K, or in the user's data folder."""
        file = EXTRA_TEST_FILES[name]
        near_folders = (near for near in (folder / name, folder.parent / name) if (near / file).is_file())
        return (next(near_folders, None) or dataset_folder(None, name, (name,), (file,))) / file

    def read_splits(self, files: Sequence[Path]) -> DatasetSplits:
        own_files, extra_files = (
            files[: len(files) - len(self.extra_tests)],
            files[len(files) - len(self.extra_tests) :],
        )
        train_source, *others = (
            open_examples(file, WordProblems("gsm8k", self.answer_format), self.skip_invalid) for file in own_files
        )
        tests = [others[-1]]
        for name, file in zip(self.extra_tests, extra_files, strict=True):
            reader = WordProblems(name, self.answer_format)
            is_list = file.suffix == ".json"
            tests.append(open_examples(file, ProblemList(reader) if is_list else reader, self.skip_invalid))
        train = SplitRows.from_files([train_source])
        if len(others) > 1:  # the published program has prepared a file for validation
            validation = SplitRows.from_files([others[0]])
        else:
            count, num_validation = len(train), int(self.validation_fraction * len(train))
            first, second = split_indices(
                count, (count - num_validation, num_validation), ("word problems", self.split_seed)
            )
            train, validation = train.take(first), train.take(second)
        return DatasetSplits.without_overlap(
            ("gsm8k", *self.extra_tests), 1, train, validation, SplitRows.from_files(tests), self.keep_duplicates
        )


_SCHEMAS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": TEXT, "answer": TEXT},
    "svamp": {"Body": TEXT, "Question": TEXT, "Answer": float},
    "gsm_hard": {"input": TEXT, "target": float},
    "gsm_plus": {"question": TEXT, "answer": TEXT, "solution": TEXT},
}
"""The fields of a record of each dataset."""


@dataclass(frozen=True)
class WordProblems(RecordReader):
    """A record of GSM8K or of a further test, with the whole solution or its final number as the answer. SVAMP and
    GSM-Hard have no solutions.

    >>> line = r'{"question": "How many?", "answer": "500+500=<<500+500=1000>>1,000\\n#### 1,000"}'
    >>> WordProblems("gsm8k", "number").parse(line)
    ('How many?', '1000')
    >>> WordProblems("gsm_hard", "number").parse('{"input": "How many?", "target": -9867630.0}')
    ('How many?', '-9867630')
    """

    dataset: str = "gsm8k"
    answer_format: Literal["solution", "number"] = "solution"

    def parse(self, record: str) -> Pair:
        return self.pair_from_json(parse_json(record))

    def pair_from_json(self, record: Any) -> Pair:
        """The question of a JSON value. Raises `ValueError` as `parse` does."""
        is_number = self.answer_format == "number"
        schema = {name: kind for name, kind in _SCHEMAS[self.dataset].items() if name != "solution" or not is_number}
        fields = read_fields(record, schema)
        solution_fields = ("answer", "solution", "code", "target", "Equation", "Answer")
        confirmed = confirmed_numbers(*(str(record.get(name, "")) for name in solution_fields))
        if self.dataset in ("svamp", "gsm_hard"):
            if self.dataset == "svamp":
                question, number = f"{fields['Body'].strip()} {fields['Question'].strip()}", fields["Answer"]
            else:
                question, number = fields["input"], fields["target"]
            return normalize_numbers(question, confirmed), f"{ANSWER_MARK} " * (not is_number) + format_number(number)
        if self.dataset == "gsm_plus" and is_number:
            answer = fields["answer"]
        else:
            answer = remove_calculator_annotations(fields["solution" if self.dataset == "gsm_plus" else "answer"])
        answer = normalize_numbers(answer, confirmed)
        if self.dataset == "gsm8k" and is_number:
            _, mark, answer = answer.rpartition(ANSWER_MARK)
            if not mark or not (answer := answer.strip()):
                raise ValueError(f"has no {ANSWER_MARK!r} before the last number of its answer")
        return normalize_numbers(fields["question"], confirmed), answer


@dataclass(frozen=True)
class ProblemList(ExampleReader):
    """A file with a JSON list of problems, which is one record: that of SVAMP."""

    reader: WordProblems = WordProblems("svamp")

    def pairs(self, lines: MappedLines) -> Iterator[tuple[int, Pair | ValueError]]:
        try:
            problems = read_fields(parse_json(decode_utf8(lines.read(0, len(lines)), max_bytes=None)), [object])
        except ValueError as error:
            yield 1, error
            return
        for number, problem in enumerate(problems, 1):
            try:
                yield 1, self.reader.pair_from_json(problem)
            except ValueError as error:
                yield 1, ValueError(f"problem {number} {error}")


_CALCULATOR_ANNOTATION = re.compile(r"<<[^<>]*>>")
_SPACED_NUMBER = re.compile(r"(?<![\S])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_COMMA_NUMBER = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
_CLEAR_COMMA_NUMBER = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})*,0[0-9]{2}|(?<=[$€£])[0-9]+,[0-9]{3}(?!,)")
_SEPARATOR = re.compile(r"(?<=[0-9])[ ,](?=[0-9]{3}(?![0-9]))")
_CONFIRMATION = re.compile(r"<<[^<>]*>>|(?:\A|####) *-?[0-9]+(?:\.[0-9]*)?\s*\Z")
_SUM = re.compile(r"(?<![0-9.])([0-9]{1,18}(?: ?[-+] ?[0-9]{1,18})+) ?= ?([0-9]{1,18})(?![0-9.])")
_LEADING_POINT = re.compile(r"(?<![0-9.])(?<![^\W0-9_x])(?<!\))\.(?=[0-9])(?![0-9]+\.[0-9])")


def remove_calculator_annotations(text: str) -> str:
    """A solution of GSM8K without calculator annotations.

    >>> remove_calculator_annotations("She sold 48/2 = <<48/2=24>>24 clips.")
    'She sold 48/2 = 24 clips.'
    """
    return _CALCULATOR_ANNOTATION.sub("", text)


def confirmed_numbers(*solutions: str) -> frozenset[str]:
    """The whole numbers that solutions confirm, as digits: those that they write without separators, of calculator
    annotations, their final numbers, and those of sums that they write out and that are right."""
    found = list(solutions)
    for joined in (_SEPARATOR.sub("", solution.replace("$", "")) for solution in solutions):
        found += _CONFIRMATION.findall(joined)
        for terms, total in _SUM.findall(remove_calculator_annotations(joined)):
            if sum(map(int, re.findall(r"[-+]?[0-9]+", terms.replace(" ", "")))) == int(total):
                found += [terms, total]
    return frozenset(re.findall(r"[0-9]+", " ".join(found)))


def normalize_numbers(text: str, confirmed: Collection[str] = ()) -> str:
    """A text whose numbers are written one way: no separators of thousands within them, a digit before the point.

    Groups of three digits behind a space or comma are joined where the number is one of `confirmed`, as `3 100 dollar
    bills` and `(1,100)` may be two numbers; behind a comma also where a group begins with 0 or a currency sign stands
    before it. A point counts where neither a digit nor a word stands before it (`x` is a sign, as in 10x.6).

    >>> normalize_numbers("12.5 x .5 of 1,000,000 or 18 000, $.75", {"18000"})
    '12.5 x 0.5 of 1000000 or 18000, $0.75'
    >>> normalize_numbers("12 200-kilobyte videos, days 4,5,6 and 100,200,300")
    '12 200-kilobyte videos, days 4,5,6 and 100,200,300'
    """

    def join(found: re.Match[str]) -> str:
        digits = _SEPARATOR.sub("", found[0])
        is_clear = _CLEAR_COMMA_NUMBER.match(found.string, found.start()) if "," in found[0] else None
        return digits if digits in confirmed or is_clear else found[0]

    return _LEADING_POINT.sub("0.", _COMMA_NUMBER.sub(join, _SPACED_NUMBER.sub(join, text)))


def format_number(value: float) -> str:
    """A number of JSON as people write it: 51.0 is `51`, 2.0107e-06 is `0.0000020107`.

    >>> format_number(51.0), format_number(-0.25), format_number(1e21)
    ('51', '-0.25', '1000000000000000000000')
    """
    text = f"{Decimal(repr(value)):f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"

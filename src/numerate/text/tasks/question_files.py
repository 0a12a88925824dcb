"""Questions with answers in files of the user's own."""

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from numerate.config import Span, setting
from numerate.config.path_names import shortest_unique_names
from numerate.errors import UserError
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.readers import ANSWER_NAMES, QUESTION_NAMES, JSONLines, RecordReader, TabSeparated, TwoLines
from numerate.text.tasks.text_files import file_stamp, open_examples
from numerate.text.tasks.text_task import DatasetSplits, SplitRows, TextTask, split_indices

COMMON_COLUMN_NAMES = {*QUESTION_NAMES, *ANSWER_NAMES, "q", "a", "text", "label", "result", "id", "index"}
"""Common column names: a first line with two of these is no question unless `header` says so."""

CSV_TO_JSONL_COMMAND = (
    'python -c "import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(open(sys.argv[1], '
    "encoding='utf-8-sig', newline=''))]\""
)
"""The command that makes JSON lines of a file with commas, whose first line is its header."""


@dataclass(frozen=True)
class QuestionFiles(TextTask):
    """Questions with answers in files of your own: JSON lines, columns with tabs, or a line for each.

    `question_field` and `answer_field` name the keys of JSON lines, and the columns of a file with tabs: by its first
    line or by their numbers from 1 on; by default the first is the question and the second the answer. The first line
    of such a file is a header where the names stand in it, and else a question; one that looks like another header
    (`Question`, `Answer`; `input`, `target`) is refused unless `header` says what it is. The format follows from the
    ending of the file (`.jsonl`, `.json`, `.tsv`; anything else is two lines each) unless `format` says it. A `.csv` is
    refused; the message has the line that makes JSON lines of it.

    A question of more tokens than the tokenizer takes is cut at its end; with `truncation_side="left"` at its
    beginning, for questions at the end of a long text.

    Splits without a file of their own are shares of the training file, in an order that is a function of `split_seed`.
    Of several test files, each is a part: the first is in distribution, the others are OOD test.

    >>> task = QuestionFiles(train_file="mine.jsonl", test_files=("test.jsonl", "hard.jsonl"), validation_fraction=0.05)
    """

    train_file: str | None = setting(None, "training file, also used for splits without a file of their own")
    validation_file: str | None = setting(None, "validation file; null: a share of the training file")
    test_files: tuple[str, ...] = setting((), "test files; none: a share of the training file")
    question_field: str = setting("question", "JSON key or column of the question")
    answer_field: str = setting("answer", "JSON key or column of the answer")
    format: Literal["auto", "jsonl", "tsv", "two lines"] = setting("auto", "file format")
    test: int | Span | None = setting(None, "index of the test file, from 1; null: all", at_least=1)
    validation_fraction: float = setting(
        0.1, "share of the training file used for validation, without a validation file", at_least=0, below=1
    )
    test_fraction: float = setting(
        0.1, "share of the training file used as test, without a test file", at_least=0, below=1
    )
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")
    header: bool | None = setting(
        None, "of columns: whether the first line is their names; null: where it has those two"
    )
    truncation_side: Literal["left", "right"] = setting("right", "which end of a long question is cut")

    def conflicts(self) -> Iterator[str]:
        if self.validation_fraction + self.test_fraction >= 1:
            yield (
                f"test_fraction: {self.test_fraction} and validation_fraction={self.validation_fraction} leave "
                "nothing to train on"
            )

    def data_files(self) -> list[Path]:
        if self.train_file is None:
            file = (
                f"{self.test_files[0]} task.keep_duplicates=true, for a test alone" if self.test_files else "mine.jsonl"
            )
            raise UserError(f"task.train_file: must be set: a file of questions with answers (task.train_file={file})")
        paths = [self.train_file, *filter(None, [self.validation_file]), *self.test_files]
        return [Path(os.path.expanduser(path)) for path in paths]

    def read_splits(self, files: Sequence[Path]) -> DatasetSplits:
        train, *others = (self._read_file(file) for file in files)
        validation = others.pop(0) if self.validation_file is not None else None
        count = len(train)
        num_validation = _num_rows(self.validation_fraction, count) if validation is None else 0
        num_test = 0 if others else _num_rows(self.test_fraction, count)
        if num_validation + num_test >= count:
            raise file_error(files[0], f"has {count} questions, too few to divide; name the other files too")
        num_held_out = num_validation + num_test
        key = ("question files", self.split_seed)
        train_indices, held_out = split_indices(count, (count - num_held_out, num_held_out), key)
        parts = split_indices(len(held_out), (num_validation, num_test), (*key, "test"))
        if validation is None:
            validation = train.take(held_out[parts[0]])
        names = _part_names(files[len(files) - len(others) :]) if others else ["test"]
        test = train.take(held_out[parts[1]])
        if others:
            files_of_parts = [part for rows in others for part in rows.source.parts]
            test = SplitRows.from_files(files_of_parts, truncation_side=self.truncation_side)
        return DatasetSplits.without_overlap(
            names, 1, train.take(train_indices), validation, test, self.keep_duplicates
        )

    def _read_file(self, file: Path) -> SplitRows:
        reader = make_reader(file, self.format, self.question_field, self.answer_field, self.header)
        examples = open_examples(file, reader, self.skip_invalid)
        return SplitRows.from_files([examples], truncation_side=self.truncation_side)


def _part_names(files: Sequence[Path]) -> list[str]:
    """The name of each file without its ending; of files with the same name, with the ending and as many folders as
    tell them apart."""
    name_by_path = {path: name for name, path in shortest_unique_names(files).items()}
    stems = Counter(file.stem for file in files)
    return [file.stem if stems[file.stem] == 1 else name_by_path[file.absolute()] for file in files]


def make_reader(
    file: Path, format: str, question_field: str, answer_field: str, header: bool | None = None
) -> RecordReader:
    """How the records of a file are read. Raises `UserError` for missing columns, for a first line that may be a header
    or a question, and for a `.csv` unless its format is given."""
    file_stamp(file)
    if format == "auto" and file.suffix.lower() == ".csv":
        raise UserError(
            f"format: {file} is a .csv file; must be JSON lines (.jsonl) or tab-separated (.tsv). Convert it with: "
            f"{CSV_TO_JSONL_COMMAND} {shlex.quote(str(file))} > {shlex.quote(str(file.with_suffix('.jsonl')))}"
        )
    format_of_suffix = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv"}
    resolved_format = format_of_suffix.get(file.suffix.lower(), "two lines") if format == "auto" else format
    if resolved_format == "two lines":
        return TwoLines()
    if resolved_format == "jsonl":
        return JSONLines(question_field, answer_field)
    first_columns, num_header_lines = _first_columns(file)
    names = [name for name in (question_field, answer_field) if not name.isdecimal()]
    if header is None:
        header = bool(names) and all(name in first_columns for name in names)
        if not header and _looks_like_names(first_columns, names):
            raise UserError(
                f"header: {file} begins with a line that may name its columns or be a question: "
                f"{', '.join(first_columns)}; set question_field= and answer_field= to the names of two columns, or "
                "header=true and both to numbers of columns, or header=false if it is a question"
            )
    question, answer = (
        _column_index(file, setting_name, name, default_index, first_columns if header else [], len(first_columns))
        for setting_name, name, default_index in (("question", question_field, 0), ("answer", answer_field, 1))
    )
    return TabSeparated(question, answer, num_header_lines if header else 0, num_columns=len(first_columns))


def _first_columns(file: Path) -> tuple[list[str], int]:
    """The columns of the first line that is not blank, and how many lines there are up to it."""
    with open(file, encoding="utf-8-sig", errors="replace") as text:
        for count, line in enumerate(text, 1):
            if line.strip():
                return [column.strip() for column in line.rstrip("\r\n").split("\t")], count
    return [], 0


def _looks_like_names(columns: list[str], names: list[str]) -> bool:
    """Whether a line has a wanted name in other letters or alone, or two of the usual names of columns."""
    lowercase_columns = {column.casefold() for column in columns}
    return (
        any(name.casefold() in lowercase_columns for name in names) or len(lowercase_columns & COMMON_COLUMN_NAMES) >= 2
    )


def _column_index(
    file: Path, setting_name: str, name: str, default_index: int, header: list[str], num_columns: int
) -> int:
    """The place of a column from 0 on. Raises `UserError` where there is none."""
    if name in header and not name.isdecimal():
        return header.index(name)
    if name.isdecimal() and 1 <= int(name) <= num_columns:
        return int(name) - 1
    if name == setting_name:
        return default_index
    what = f"its first line has: {', '.join(header)}" if header else f"its first line has {num_columns}, from 1 on"
    raise UserError(f"{setting_name}_field: {file} has no column {name!r}; {what}")


def _num_rows(share: float, count: int) -> int:
    """How many rows a share is: one at least, unless it is none."""
    return max(1, round(share * count)) if share else 0

"""Questions with answers in files of the user's own."""

import os
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from numerate.config import Span, setting
from numerate.errors import UserError, did_you_mean
from numerate.text.tasks.readers import JSONLines, RecordReader, TabSeparated, TwoLines
from numerate.text.tasks.text_files import open_lines, stamp
from numerate.text.tasks.text_task import Cut, Holdings, Stock, TextTask, divided, refuse_cut, refuse_part, refuse_share

FORMATS = ("auto", "jsonl", "tsv", "two lines")

USUAL_COLUMNS = {
    *("question", "questions", "query", "prompt", "input", "inputs", "source", "problem", "instruction", "text", "q"),
    *("answer", "answers", "response", "completion", "output", "outputs", "target", "targets", "label", "solution"),
    *("result", "a", "id", "index"),
}
"""Common column names: a first line with two of these is no question unless `header` says so."""

FROM_CSV = (
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

    >>> QuestionFiles(train_file="mine.jsonl", test_files=("test.jsonl", "harder.jsonl"), development_fraction=0.05)
    """

    train_file: str | None = setting(None, "training file, also used for splits without a file of their own")
    development_file: str | None = setting(None, "validation file; null: a share of the training file")
    test_files: tuple[str, ...] = setting((), "test files; none: a share of the training file")
    question_field: str = setting("question", "JSON key or column of the question")
    answer_field: str = setting("answer", "JSON key or column of the answer")
    format: Literal["auto", "jsonl", "tsv", "two lines"] = setting("auto", "file format")
    test: int | Span | None = setting(None, "the number of a test file, from 1 on; null: all")
    development_fraction: float = setting(
        0.1, "share of the training file used for validation, without a validation file"
    )
    test_fraction: float = setting(0.1, "share of the training file used as test, without a test file")
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")
    header: bool | None = setting(
        None,
        "of columns: whether the first line is their names; null: where it has those two",
        later=True,
    )
    truncation_side: Literal["left", "right"] = setting("right", "which end of a long question is cut", later=True)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            near = did_you_mean(self.format, FORMATS)
            raise UserError(f"format: there is no {self.format!r}; there are: {', '.join(FORMATS)}.{near}")
        refuse_share("development_fraction", self.development_fraction)
        refuse_share("test_fraction", self.test_fraction)
        if self.development_fraction + self.test_fraction >= 1:
            raise UserError(
                f"test_fraction: {self.test_fraction} and development_fraction={self.development_fraction} leave "
                f"nothing to train on"
            )
        refuse_part("test", self.test)
        refuse_cut(self.truncation_side)

    @property
    def holdings(self) -> Holdings:
        if self.train_file is None:
            raise UserError("train_file: which questions? train_file=mine.jsonl names a file of questions with answers")
        paths = [self.train_file, *filter(None, [self.development_file]), *self.test_files]
        files = [Path(os.path.expanduser(path)) for path in paths]
        readers = tuple(
            reader_of(file, self.format, self.question_field, self.answer_field, self.header) for file in files
        )
        shares = (self.development_fraction, self.test_fraction, self.split_seed)
        held = self.development_file is not None
        return _read(
            tuple(map(stamp, files)),
            readers,
            held,
            shares,
            self.keep_duplicates,
            self.skip_invalid,
            self.truncation_side,
        )


def reader_of(file: Path, format: str, question: str, answer: str, header: bool | None = None) -> RecordReader:
    """How the records of a file are read. Raises `UserError` for missing columns, for a first line that may be a header
    or a question, and for a `.csv` unless its format is given."""
    stamp(file)
    if format == "auto" and file.suffix.lower() == ".csv":
        raise UserError(
            f"format: {file} has commas between its columns by its name; JSON lines (.jsonl) or tabs (.tsv) are right: "
            f"{FROM_CSV} {shlex.quote(str(file))} > {shlex.quote(str(file.with_suffix('.jsonl')))}"
        )
    endings = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv"}
    found = endings.get(file.suffix.lower(), "two lines") if format == "auto" else format
    if found == "two lines":
        return TwoLines()
    if found == "jsonl":
        return JSONLines(question, answer)
    first, heads = _first_line(file)
    names = [name for name in (question, answer) if not name.isdecimal()]
    if header is None:
        header = bool(names) and all(name in first for name in names)
        if not header and _looks_like_names(first, names):
            raise UserError(
                f"header: {file} begins with a line that may name its columns or be a question: {', '.join(first)}; "
                "the names of two columns as question_field= and answer_field=, header=true with their numbers, or "
                "header=false "
                "for a question is right"
            )
    columns = [
        _column(file, setting_name, name, usual, first if header else [], len(first))
        for setting_name, name, usual in (("question", question, 0), ("answer", answer, 1))
    ]
    return TabSeparated(columns[0], columns[1], heads if header else 0, columns=len(first))


def _first_line(file: Path) -> tuple[list[str], int]:
    """The columns of the first line that is not blank, and how many lines there are up to it."""
    with open(file, encoding="utf-8-sig", errors="replace") as text:
        for count, line in enumerate(text, 1):
            if line.strip():
                return [column.strip() for column in line.rstrip("\r\n").split("\t")], count
    return [], 0


def _looks_like_names(first: list[str], names: list[str]) -> bool:
    """Whether a line has a wanted name in other letters or alone, or two of the usual names of columns."""
    folded = {column.casefold() for column in first}
    return any(name.casefold() in folded for name in names) or len(folded & USUAL_COLUMNS) >= 2


def _column(file: Path, setting_name: str, name: str, usual: int, header: list[str], count: int) -> int:
    """The place of a column from 0 on. Raises `UserError` where there is none."""
    if name in header and not name.isdecimal():
        return header.index(name)
    if name.isdecimal() and 1 <= int(name) <= count:
        return int(name) - 1
    if name == setting_name:
        return usual
    what = f"its first line has: {', '.join(header)}" if header else f"its first line has {count}, from 1 on"
    raise UserError(f"{setting_name}_field: {file} has no column {name!r}; {what}")


@lru_cache(maxsize=8)
def _read(
    stamps: tuple[tuple[str, int, int], ...],
    readers: tuple[RecordReader, ...],
    held_has_file: bool,
    shares: tuple[float, float, int],
    repeats: bool,
    skip_bad: bool,
    cut: Cut,
) -> Holdings:
    stocks = [
        Stock.of(open_lines(Path(path), reader, skip_bad), cut=cut)
        for (path, _, _), reader in zip(stamps, readers, strict=True)
    ]
    train, names = stocks[0], [Path(path).stem for path, _, _ in stamps]
    tests, names = stocks[1 + held_has_file :], names[1 + held_has_file :]
    count = len(train)
    held_size = 0 if held_has_file else _size(shares[0], count)
    test_size = 0 if tests else _size(shares[1], count)
    if held_size + test_size >= count:
        raise UserError(
            f"train_file: {stamps[0][0]} has {count} questions, too few to divide; name the other files too"
        )
    first, rest = divided(count, (count - held_size - test_size, held_size + test_size), ("question files", shares[2]))
    order, own = divided(len(rest), (held_size, test_size), ("question files", shares[2], "test"))
    held = stocks[1] if held_has_file else train.take(rest[order])
    if tests:
        test = Stock.of_parts([stock.source for stock in tests], cut=cut)
    else:
        test, names = train.take(rest[own]), ["test"]
    return Holdings.apart(names, 1, train.take(first), held, test, repeats)


def _size(share: float, count: int) -> int:
    """How many rows a share is: one at least, unless it is none."""
    return max(1, round(share * count)) if share else 0

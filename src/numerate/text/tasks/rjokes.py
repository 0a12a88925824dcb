"""Joke scores: predicting a number from a text."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from numerate.config import Span, setting
from numerate.tasks.folders import dataset_file, dataset_folder
from numerate.tasks.texts import Example
from numerate.text.tasks.readers import JSONLines, RecordReader, TabSeparated
from numerate.text.tasks.text_files import open_lines, stamp
from numerate.text.tasks.text_task import Holdings, Stock, TextTask, refuse_part

FOLDERS = ("rjokes", "rjokes-dataset/data", "rJokesData/data")
FILES = ("train", "dev", "test")


@dataclass(frozen=True)
class RJokes(TextTask):
    """Joke scores from 0 to 11: the r/Jokes dataset (Weller and Seppi, 2020).

    https://aclanthology.org/2020.lrec-1.753/; the score is the natural logarithm of the votes, plus one of them,
    rounded to a whole number. Training, development and test have files of their own (`train.tsv`, `dev.tsv`,
    `test.tsv`: score, tab, joke; or `.jsonl` of question and answer, as the published program prepares them): 345,965,
    43,246 and 43,246 rows. Many jokes stand there several times: those of development and test are left out of
    training, unless `keep_duplicates`.
    """

    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    test: int | Span | None = setting(None, "number of a part: there is one, the test; null: all")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")

    def __post_init__(self) -> None:
        refuse_part("test", self.test)

    @property
    def place(self) -> Path:
        """The folder of its files. Raises `UserError` that says how to get them."""
        return dataset_folder(self.data_dir, "rjokes", FOLDERS, ("train.tsv", "train.jsonl"))

    @property
    def holdings(self) -> Holdings:
        place = self.place
        ending = "tsv" if (place / "train.tsv").is_file() else "jsonl"
        files = [dataset_file(place, f"{name}.{ending}", "rjokes") for name in FILES]
        return _read(tuple(map(stamp, files)), ending == "tsv", self.keep_duplicates, self.skip_invalid)


@lru_cache(maxsize=4)
def _read(stamps: tuple[tuple[str, int, int], ...], tabs: bool, repeats: bool, skip_bad: bool) -> Holdings:
    reader = Scored() if tabs else JSONLines()
    train, held, test = (Stock.of(open_lines(Path(path), reader, skip_bad)) for path, _, _ in stamps)
    return Holdings.apart(("rjokes",), 1, train, held, test, repeats)


@dataclass(frozen=True)
class Scored(RecordReader):
    """A line of a score, a tab and a joke.

    >>> Scored().example("3\\tWhy did it cross?")
    Example(question='Why did it cross?', answer='3')
    """

    plain = True

    def example(self, record: str) -> Example:
        found = TabSeparated(question=1, answer=0, rest=True).example(record)
        if not re.fullmatch(r"-?[0-9]+", found.answer):
            raise ValueError(f"begins with {found.answer!r}, which is no score; a whole number and a tab are right")
        return found

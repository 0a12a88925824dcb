"""Joke scores: predicting a number from a text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numerate.config import Span, setting
from numerate.tasks.folders import dataset_file, dataset_folder
from numerate.text.tasks.readers import JSONLines, Pair, RecordReader, TabSeparated
from numerate.text.tasks.text_files import open_examples
from numerate.text.tasks.text_task import DatasetSplits, SplitRows, TextTask

CANDIDATE_FOLDERS = ("rjokes", "rjokes-dataset/data", "rJokesData/data")
SPLIT_NAMES = ("train", "dev", "test")


@dataclass(frozen=True)
class RJokes(TextTask):
    """Joke scores from 0 to 11: the r/Jokes dataset (Weller and Seppi, 2020).

    https://aclanthology.org/2020.lrec-1.753/; the score is the natural logarithm of the votes, plus one of them,
    rounded to a whole number. Training, validation and test have files of their own (`train.tsv`, `dev.tsv`,
    `test.tsv`: score, tab, joke; or `.jsonl` of question and answer, as the published program prepares them): 345,965,
    43,246 and 43,246 rows. Many jokes stand there several times: those of validation and test are left out of
    training, unless `keep_duplicates`.
    """

    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    test: int | Span | None = setting(None, "number of a part: there is one, the test; null: all", at_least=1)
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")

    def data_files(self) -> list[Path]:
        folder = dataset_folder(self.data_dir, "rjokes", CANDIDATE_FOLDERS, ("train.tsv", "train.jsonl"))
        suffix = "tsv" if (folder / "train.tsv").is_file() else "jsonl"
        return [dataset_file(folder, f"{name}.{suffix}", "rjokes") for name in SPLIT_NAMES]

    def read_splits(self, files: Sequence[Path]) -> DatasetSplits:
        reader = Scored() if files[0].suffix == ".tsv" else JSONLines()
        train, validation, test = (
            SplitRows.from_files([open_examples(file, reader, self.skip_invalid)]) for file in files
        )
        return DatasetSplits.without_overlap(("rjokes",), 1, train, validation, test, self.keep_duplicates)


@dataclass(frozen=True)
class Scored(RecordReader):
    """A line of a score, a tab and a joke.

    >>> Scored().parse("3\\tWhy did it cross?")
    ('Why did it cross?', '3')
    """

    preserves_characters = True

    def parse(self, record: str) -> Pair:
        joke, score = TabSeparated(question=1, answer=0, rest=True).parse(record)
        if not re.fullmatch(r"-?[0-9]+", score):
            raise ValueError(f"must begin with an integer score and a tab, not {score!r}")
        return joke, score

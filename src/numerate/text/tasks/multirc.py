"""Reading comprehension: questions about a passage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from numerate.config import Span, setting
from numerate.tasks.folders import dataset_file, dataset_folder
from numerate.text.tasks.mapped_lines import MappedLines
from numerate.text.tasks.readers import TEXT, ExampleReader, JSONLines, Pair, decode_utf8, parse_json, read_fields
from numerate.text.tasks.text_files import StoredExamples, open_examples
from numerate.text.tasks.text_task import DatasetSplits, SplitRows, TextTask, split_indices

CANDIDATE_FOLDERS = ("multirc", "multirc/data", "multirc/data/preprocessed", "MultiRC")
SPLIT_NAMES = ("train", "val", "test")

ANSWER_SEPARATOR = " | "
"""The separator between the correct answers of a question."""


@dataclass(frozen=True)
class MultiRC(TextTask):
    """MultiRC reading comprehension (Khashabi et al., 2018): the answer is all correct options of a question.

    https://aclanthology.org/N18-1023/, as SuperGLUE hands it out (https://arxiv.org/abs/1905.00537), made a task of
    text as in Zausinger et al. (2024), https://arxiv.org/abs/2411.02083: the question is the passage, an empty line and
    `Question: ...`, the answer the correct options with ` | ` between them. 5,131 questions of training, 953 of
    validation.

    The official test has no answers. (The published preparation tests on 1,820 empty ones.) So the validation file
    is the test here, and the share `validation_fraction` of the training passages, with all their questions, is the
    validation split; with `validation_fraction=0` that file is both. Where the test file has answers, that file is the
    validation split.

    Too long rows lose the beginning of their passage, which keeps the question at their end. The published program
    truncates the end: `truncation_side="right"` (118 of the 953 rows of validation then have no question, or half of
    one, with T5's tokenizer and 512 tokens).

    `data_dir` holds `train.jsonl`, `val.jsonl` and perhaps `test.jsonl`, or the files `*_clean.jsonl` that the
    published program prepares.
    """

    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    test: int | Span | None = setting(None, "number of the test set, of which there is only 1; null: all", at_least=1)
    validation_fraction: float = setting(0.1, "share of the training passages used for validation", at_least=0, below=1)
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")
    truncation_side: Literal["left", "right"] = setting(
        "left", "what is cut from a long row: the passage's beginning, or (as published) the question's end"
    )

    def data_files(self) -> list[Path]:
        folder = dataset_folder(self.data_dir, "multirc", CANDIDATE_FOLDERS, ("train.jsonl", "train_clean.jsonl"))
        suffix = "" if (folder / "train.jsonl").is_file() else "_clean"
        files = [dataset_file(folder, f"{name}{suffix}.jsonl", "multirc") for name in SPLIT_NAMES[:2]]
        return files + [file for file in [folder / f"test{suffix}.jsonl"] if file.is_file()]

    def read_splits(self, files: Sequence[Path]) -> DatasetSplits:
        train, official_validation, *official_test = (
            SplitRows.from_files([self._open_file(file)], truncation_side=self.truncation_side) for file in files
        )
        names, keep = ("multirc",), self.keep_duplicates
        if official_test and _has_answers(official_test[0]) and official_test[0].texts() != official_validation.texts():
            return DatasetSplits.without_overlap(names, 1, train, official_validation, official_test[0], keep)
        if self.validation_fraction:
            passages = [text.rpartition("\n\nQuestion: ")[0] for text in train.texts()]
            numbers = {passage: number for number, passage in enumerate(dict.fromkeys(passages))}
            passage_index = np.array([numbers[passage] for passage in passages])
            size = max(1, round(self.validation_fraction * len(numbers)))
            _, validation_passages = split_indices(
                len(numbers), (len(numbers) - size, size), ("reading", self.split_seed)
            )
            is_validation = np.isin(passage_index, validation_passages)
            train, validation = train.take(~is_validation), train.take(is_validation)
            return DatasetSplits.without_overlap(names, 1, train, validation, official_validation, keep)
        splits = DatasetSplits.without_overlap(names, 1, train, official_validation, official_validation, keep)
        return replace(splits, validation=official_validation)

    def _open_file(self, file: Path) -> StoredExamples:
        reader = JSONLines(requires_answer=False) if file.stem.endswith("_clean") else Passages()
        return open_examples(file, reader, self.skip_invalid)


def _has_answers(rows: SplitRows) -> bool:
    return any(pair.answer for pair in rows.source.read_examples(rows.rows.astype(np.int64)))


_PASSAGE_SCHEMA = {
    "passage": {"text": TEXT, "questions": [{"question": TEXT, "answers?": [{"text": TEXT, "label?": object}]}]}
}


@dataclass(frozen=True)
class Passages(ExampleReader):
    """A file of MultiRC: a passage per line, each with its questions, and each of those with options; the answer is the
    options whose label is 1."""

    requires_answer = False

    def pairs(self, lines: MappedLines) -> Iterator[tuple[int, Pair | ValueError]]:
        for number, line in lines.records(0, len(lines)):
            if line.strip():
                try:
                    pairs = [*self._parse_passage(line)]
                except ValueError as error:
                    yield number + 1, error
                    continue
                yield from ((number + 1, pair) for pair in pairs)

    def _parse_passage(self, line: bytes) -> Iterator[Pair]:
        passage = read_fields(parse_json(decode_utf8(line)), _PASSAGE_SCHEMA)["passage"]
        for question in passage["questions"]:
            prompt = question["question"].strip()
            if not prompt:
                raise ValueError("has an empty question")
            correct = [option["text"] for option in question.get("answers", []) if option.get("label") in ("1", True)]
            yield f"{passage['text'].strip()}\n\nQuestion: {prompt}", ANSWER_SEPARATOR.join(correct)

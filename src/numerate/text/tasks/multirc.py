"""Reading comprehension: questions about a passage."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from numerate.config import Span, setting
from numerate.tasks.folders import dataset_file, dataset_folder
from numerate.tasks.texts import Example
from numerate.text.tasks.readers import JSONLines, decode_record, parse_json_object, text_field
from numerate.text.tasks.text_files import file_stamp, open_line_file, parse_file
from numerate.text.tasks.text_task import (
    DatasetSplits,
    SplitRows,
    TextTask,
    TruncationSide,
    check_fraction,
    check_part,
    check_truncation_side,
    split_indices,
)

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
    test: int | Span | None = setting(None, "index of the test set; there is only 1; null: all")
    validation_fraction: float = setting(0.1, "share of the training passages used for validation")
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")
    truncation_side: Literal["left", "right"] = setting(
        "left",
        "what is cut from a long row: the passage's beginning, or (as published) the question's end",
    )

    def __post_init__(self) -> None:
        check_fraction("validation_fraction", self.validation_fraction)
        check_part("test", self.test)
        check_truncation_side(self.truncation_side)

    @property
    def folder(self) -> Path:
        """The folder of its files. Raises `UserError` that says how to get them."""
        return dataset_folder(self.data_dir, "multirc", CANDIDATE_FOLDERS, ("train.jsonl", "train_clean.jsonl"))

    @property
    def splits(self) -> DatasetSplits:
        place = self.folder
        suffix = "" if (place / "train.jsonl").is_file() else "_clean"
        files = [dataset_file(place, f"{name}{suffix}.jsonl", "multirc") for name in SPLIT_NAMES[:2]]
        test = place / f"test{suffix}.jsonl"
        files += [test] if test.is_file() else []
        fraction_and_seed = (self.validation_fraction, self.split_seed)
        return _read_splits(
            tuple(map(file_stamp, files)),
            bool(suffix),
            fraction_and_seed,
            self.keep_duplicates,
            self.skip_invalid,
            self.truncation_side,
        )


@lru_cache(maxsize=4)
def _read_splits(
    stamps: tuple[tuple[str, int, int], ...],
    is_prepared: bool,
    fraction_and_seed: tuple[float, int],
    keep_duplicates: bool,
    skip_invalid: bool,
    truncation_side: TruncationSide,
) -> DatasetSplits:
    sources = [
        open_line_file(Path(path), JSONLines(answered=False), skip_invalid)
        if is_prepared
        else parse_file(Path(path), Passages(), skip_invalid, requires_answer=False)
        for path, _, _ in stamps
    ]
    train, official_validation, *official_test = (
        SplitRows.from_source(source, truncation_side=truncation_side) for source in sources
    )
    if official_test and _has_answers(official_test[0]) and official_test[0].texts() != official_validation.texts():
        return DatasetSplits.without_overlap(
            ("multirc",), 1, train, official_validation, official_test[0], keep_duplicates
        )
    validation_split = official_validation
    if fraction_and_seed[0]:
        passages = [text.rpartition("\n\nQuestion: ")[0] for text in train.texts()]
        numbers = {passage: number for number, passage in enumerate(dict.fromkeys(passages))}
        passage_index = np.array([numbers[passage] for passage in passages])
        size = max(1, round(fraction_and_seed[0] * len(numbers)))
        _, validation_passages = split_indices(
            len(numbers), (len(numbers) - size, size), ("reading", fraction_and_seed[1])
        )
        is_validation = np.isin(passage_index, validation_passages)
        train, validation_split = train.take(~is_validation), train.take(is_validation)
        return DatasetSplits.without_overlap(
            ("multirc",), 1, train, validation_split, official_validation, keep_duplicates
        )
    splits = DatasetSplits.without_overlap(("multirc",), 1, train, official_validation, official_validation, True)
    is_duplicate = train.source.question_mask(frozenset(official_validation.texts()))[train.rows]
    if keep_duplicates or not is_duplicate.any():
        return splits
    emptied_by = {"train": "the test"} if is_duplicate.all() else {}
    return DatasetSplits(
        splits.part_names,
        1,
        train.take(~is_duplicate),
        validation_split,
        official_validation,
        int(is_duplicate.sum()),
        emptied_by,
    )


def _has_answers(stock: SplitRows) -> bool:
    return any(pair.answer for pair in stock.source.read_examples(stock.rows.astype(np.int64)))


@dataclass(frozen=True)
class Passages:
    """A file of MultiRC: a passage per line, each with its questions, and each of those with options."""

    version: int = 1

    def __call__(self, content: bytes) -> Iterator[tuple[int, Example | ValueError]]:
        for number, line in enumerate(content.split(b"\n"), start=1):
            if line.strip():
                try:
                    examples = [*self._examples(line)]
                except ValueError as error:
                    yield number, error
                    continue
                yield from ((number, one) for one in examples)

    def _examples(self, line: bytes) -> Iterator[Example]:
        passage = parse_json_object(decode_record(line)).get("passage")
        if not isinstance(passage, dict) or not isinstance(passage.get("questions"), list):
            raise ValueError("has no passage with questions")
        text = text_field(passage, "text").strip()
        for question in passage["questions"]:
            prompt = text_field(question, "question").strip()
            if not prompt:
                raise ValueError("has an empty question")
            yield Example(f"{text}\n\nQuestion: {prompt}", correct_answers(question))


def correct_answers(question: dict[str, Any]) -> str:
    """The correct options of a question.

    >>> correct_answers({"answers": [{"text": "7", "label": 1}, {"text": "8", "label": 0}]})
    '7'
    """
    options = question.get("answers", [])
    if not isinstance(options, list) or not all(isinstance(option, dict) for option in options):
        raise ValueError("has answers that are no list of options")
    return ANSWER_SEPARATOR.join(text_field(option, "text") for option in options if option.get("label") == 1)

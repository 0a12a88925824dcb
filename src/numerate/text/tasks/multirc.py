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
from numerate.text.tasks.readers import JSONLines, decoded, json_object, text_of
from numerate.text.tasks.text_files import open_lines, read_whole, stamp
from numerate.text.tasks.text_task import Cut, Holdings, Stock, TextTask, divided, refuse_cut, refuse_part, refuse_share

FOLDERS = ("multirc", "multirc/data", "multirc/data/preprocessed", "MultiRC")
FILES = ("train", "val", "test")

BETWEEN = " | "
"""The separator between the right answers of a question."""


@dataclass(frozen=True)
class MultiRC(TextTask):
    """MultiRC reading comprehension (Khashabi et al., 2018): answers are all right options of a question.

    https://aclanthology.org/N18-1023/, as SuperGLUE hands it out (https://arxiv.org/abs/1905.00537), made a task of
    text as in Zausinger et al. (2024), https://arxiv.org/abs/2411.02083: the question is the passage, an empty line and
    `Question: ...`, the answer the right options with ` | ` between them. 5,131 questions of training, 953 of
    validation.

    The official test has no answers. (The published preparation tests on 1,820 empty ones.) So validation is the test
    here, and the share `development_fraction` of the training passages, with all their questions, is development; with
    `development_fraction=0` validation is both. Where the test file has answers, validation is development.

    Too long rows lose the beginning of their passage, which keeps the question at their end. The published program
    truncates the end: `truncation_side="right"` (118 of the 953 rows of validation then have no question, or half of
    one, with T5's tokenizer and 512 tokens).

    `data_dir` holds `train.jsonl`, `val.jsonl` and perhaps `test.jsonl`, or the files `*_clean.jsonl` that the
    published program prepares.
    """

    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    test: int | Span | None = setting(None, "the number of a part: there is one, the test; null: all")
    development_fraction: float = setting(0.1, "share of the training passages used for validation")
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")
    truncation_side: Literal["left", "right"] = setting(
        "left",
        "what is cut from a long row: the passage's beginning, or (as published) the question's end",
    )

    def __post_init__(self) -> None:
        refuse_share("development_fraction", self.development_fraction)
        refuse_part("test", self.test)
        refuse_cut(self.truncation_side)

    @property
    def place(self) -> Path:
        """The folder of its files. Raises `UserError` that says how to get them."""
        return dataset_folder(self.data_dir, "multirc", FOLDERS, ("train.jsonl", "train_clean.jsonl"))

    @property
    def holdings(self) -> Holdings:
        place = self.place
        ending = "" if (place / "train.jsonl").is_file() else "_clean"
        files = [dataset_file(place, f"{name}{ending}.jsonl", "multirc") for name in FILES[:2]]
        test = place / f"test{ending}.jsonl"
        files += [test] if test.is_file() else []
        share = (self.development_fraction, self.split_seed)
        return _read(
            tuple(map(stamp, files)), bool(ending), share, self.keep_duplicates, self.skip_invalid, self.truncation_side
        )


@lru_cache(maxsize=4)
def _read(
    stamps: tuple[tuple[str, int, int], ...],
    ready: bool,
    share: tuple[float, int],
    repeats: bool,
    skip_bad: bool,
    cut: Cut,
) -> Holdings:
    sources = [
        open_lines(Path(path), JSONLines(answered=False), skip_bad)
        if ready
        else read_whole(Path(path), Passages(), skip_bad, answered=False)
        for path, _, _ in stamps
    ]
    train, validation, *more = (Stock.of(source, cut=cut) for source in sources)
    if more and _has_answers(more[0]) and more[0].texts() != validation.texts():
        return Holdings.apart(("multirc",), 1, train, validation, more[0], repeats)
    held = validation
    if share[0]:
        passages = [text.rpartition("\n\nQuestion: ")[0] for text in train.texts()]
        numbers = {passage: number for number, passage in enumerate(dict.fromkeys(passages))}
        of_passage = np.array([numbers[passage] for passage in passages])
        size = max(1, round(share[0] * len(numbers)))
        _, chosen = divided(len(numbers), (len(numbers) - size, size), ("reading", share[1]))
        mine = np.isin(of_passage, chosen)
        train, held = train.take(~mine), train.take(mine)
        return Holdings.apart(("multirc",), 1, train, held, validation, repeats)
    apart = Holdings.apart(("multirc",), 1, train, validation, validation, True)
    taken = train.source.matching(frozenset(validation.texts()))[train.rows]
    if repeats or not taken.any():
        return apart
    emptied = {"train": "the test"} if taken.all() else {}
    return Holdings(apart.names, 1, train.take(~taken), held, validation, int(taken.sum()), emptied)


def _has_answers(stock: Stock) -> bool:
    return any(pair.answer for pair in stock.source.pairs(stock.rows.astype(np.int64)))


@dataclass(frozen=True)
class Passages:
    """A file of MultiRC: a passage per line, each with its questions, and each of those with options."""

    version: int = 1

    def __call__(self, content: bytes) -> Iterator[tuple[int, Example | ValueError]]:
        for number, line in enumerate(content.split(b"\n"), start=1):
            if line.strip():
                try:
                    found = [*self._examples(line)]
                except ValueError as error:
                    yield number, error
                    continue
                yield from ((number, one) for one in found)

    def _examples(self, line: bytes) -> Iterator[Example]:
        passage = json_object(decoded(line)).get("passage")
        if not isinstance(passage, dict) or not isinstance(passage.get("questions"), list):
            raise ValueError("has no passage with questions")
        text = text_of(passage, "text").strip()
        for question in passage["questions"]:
            prompt = text_of(question, "question").strip()
            if not prompt:
                raise ValueError("has an empty question")
            yield Example(f"{text}\n\nQuestion: {prompt}", right_answers(question))


def right_answers(question: dict[str, Any]) -> str:
    """The right options of a question.

    >>> right_answers({"answers": [{"text": "7", "label": 1}, {"text": "8", "label": 0}]})
    '7'
    """
    options = question.get("answers", [])
    if not isinstance(options, list) or not all(isinstance(option, dict) for option in options):
        raise ValueError("has answers that are no list of options")
    return BETWEEN.join(text_of(option, "text") for option in options if option.get("label") == 1)

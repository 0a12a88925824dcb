"""Word-level tokenization: one token per text of a task's alphabet, such as `100`, `a` or `<pad>`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from numerate.config import setting
from numerate.errors import UserError
from numerate.tasks.questions import EMPTY, Example, Questions
from numerate.tasks.task import Task
from numerate.tokenizers.number_formats import id_type
from numerate.tokenizers.tokenizer import Rows, Tokenizer
from numerate.vocabulary import BEGIN, END, PAD, SPECIALS, UNKNOWN, Vocabulary


@dataclass(frozen=True)
class Words(Tokenizer):
    """Word-level tokenizer: one token per text of the task's alphabet, including multi-digit numbers.

    `65 a a a` with the labels `. 66 67 68` is four tokens and four labels: each number is one token, unrelated to its
    neighbors, as in Chang and Bisk (2024), https://arxiv.org/abs/2405.20131. The vocabulary has the four special tokens
    and then the texts in the task's order; batches are padded with [PAD], id 0, and the helper `<pad>` is a text of its
    own. In text, tokens are separated by a space.

    Raises `UserError` for questions with number slots (use Characters) and for a label that is not in the vocabulary.
    Unknown texts of a question become [UNK], and so do the names of special tokens.
    """

    between: ClassVar[str] = " "

    add_bos_token: bool = setting(False, "whether every sequence starts with [BOS]")

    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        return Vocabulary.of_words([*(task.alphabet() if isinstance(task, Task) else task)])

    def rows(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> Rows:
        if not isinstance(questions, Questions):
            questions = Questions.of_texts(questions)
        questions = questions.in_pieces()
        _no_numbers(questions)
        symbols, labels, prompts = _closed_up(questions)
        ids, there = _ids(symbols, questions.alphabet, vocabulary), symbols != EMPTY
        lengths = there.sum(axis=1)
        if labels is None:
            assert prompts is not None
            positions = np.arange(ids.shape[1] + 1)
            ids = np.pad(ids, ((0, 0), (0, 1)))
            ids[np.arange(len(ids)), lengths] = END
            lengths = lengths + 1
            target_mask = (positions >= prompts[:, None]) & (positions < lengths[:, None])
            label_ids = None
        else:
            target_mask = labels != EMPTY
            label_ids = _ids(labels, questions.alphabet, vocabulary)
            if bool((label_ids == UNKNOWN).any()):
                text = questions.alphabet[labels[label_ids == UNKNOWN][0]]
                raise UserError(
                    f"tokenizer: the label {text!r} is not in the vocabulary; the task's alphabet must have it"
                )
        if self.add_bos_token:
            ids, target_mask = (np.pad(part, ((0, 0), (1, 0))) for part in (ids, target_mask))
            ids[:, 0] = BEGIN
            label_ids = None if label_ids is None else np.pad(label_ids, ((0, 0), (1, 0)))
            lengths = lengths + 1
        longest = int(lengths.max(initial=0))
        label_ids = None if label_ids is None else label_ids[:, :longest]
        return Rows(ids[:, :longest], lengths, target_mask[:, :longest], label_ids, vocabulary=vocabulary)

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        return [_id(word, vocabulary) for word in text.split()]

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        return " ".join(vocabulary.symbols[i] for i in map(int, ids) if i not in (PAD, BEGIN, END))


def _no_numbers(questions: Questions) -> None:
    if questions.numbers.lengths.shape[1] and bool(((questions.symbols < 0) & (questions.symbols > EMPTY)).any()):
        raise UserError(
            "tokenizer: Words writes texts of the alphabet, and these questions have numbers; take Characters"
        )


def _closed_up(
    questions: Questions,
) -> tuple[NDArray[np.int16], NDArray[np.int16] | None, NDArray[np.int64] | None]:
    """Symbols, labels and prompt lengths with empty pieces moved to the end of each row."""
    symbols, labels, prompts = questions.symbols, questions.labels, questions.prompt_length
    there = symbols != EMPTY
    if bool((there[:, 1:] <= there[:, :-1]).all()):
        return symbols, labels, None if prompts is None else np.minimum(prompts, there.sum(axis=1))
    order = np.argsort(~there, axis=1, kind="stable")
    if prompts is not None:
        prompts = (there & (np.arange(symbols.shape[1]) < prompts[:, None])).sum(axis=1)
    taken = [None if part is None else np.take_along_axis(part, order, axis=1) for part in (symbols, labels)]
    assert taken[0] is not None
    return taken[0], taken[1], prompts


def _id(text: str, vocabulary: Vocabulary) -> int:
    return UNKNOWN if text in SPECIALS else vocabulary.ids.get(text, UNKNOWN)


def _ids(symbols: NDArray[np.int16], alphabet: tuple[str, ...], vocabulary: Vocabulary) -> NDArray[Any]:
    """The id of each text, PAD for `EMPTY`."""
    ids = [_id(text, vocabulary) for text in alphabet]
    table = np.array([*ids, PAD], dtype=id_type(vocabulary))
    return table[np.where(symbols == EMPTY, len(ids), symbols)]

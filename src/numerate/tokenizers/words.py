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
from numerate.tokenizers.number_formats import id_dtype
from numerate.tokenizers.tokenizer import TokenizedExamples, Tokenizer
from numerate.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS, UNK, Vocabulary


@dataclass(frozen=True)
class Words(Tokenizer):
    """Word-level tokenizer: one token per word of the task, including numbers of several digits.

    `65 a a a` with the labels `. 66 67 68` is four tokens and four labels: each number is one token, unrelated to its
    neighbors, as in Chang and Bisk (2024), https://arxiv.org/abs/2405.20131. The vocabulary has the four special tokens
    and then the texts in the task's order; batches are padded with [PAD], id 0, and the helper `<pad>` is a separate
    token. In text, tokens are separated by a space.

    Raises `UserError` for questions with number slots (use Characters) and for a label that is not in the vocabulary.
    Unknown texts of a question become [UNK], and so do the names of special tokens.
    """

    separator: ClassVar[str] = " "

    add_bos_token: bool = setting(False, "whether every sequence starts with [BOS]")

    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        return Vocabulary.from_words([*(task.alphabet() if isinstance(task, Task) else task)])

    def encode_examples(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> TokenizedExamples:
        if not isinstance(questions, Questions):
            questions = Questions.from_examples(questions)
        questions = questions.split_into_characters()
        _check_no_numbers(questions)
        symbols, labels, prompt_lengths = _compact_pieces(questions)
        ids, piece_mask = _token_ids(symbols, questions.alphabet, vocabulary), symbols != EMPTY
        lengths = piece_mask.sum(axis=1)
        if labels is None:
            assert prompt_lengths is not None
            positions = np.arange(ids.shape[1] + 1)
            ids = np.pad(ids, ((0, 0), (0, 1)))
            ids[np.arange(len(ids)), lengths] = EOS
            lengths = lengths + 1
            target_mask = (positions >= prompt_lengths[:, None]) & (positions < lengths[:, None])
            label_ids = None
        else:
            target_mask = labels != EMPTY
            label_ids = _token_ids(labels, questions.alphabet, vocabulary)
            if bool((label_ids == UNK).any()):
                text = questions.alphabet[labels[label_ids == UNK][0]]
                raise UserError(
                    f"tokenizer: the label {text!r} must be in the vocabulary; add it to the task's alphabet"
                )
        if self.add_bos_token:
            ids, target_mask = (np.pad(part, ((0, 0), (1, 0))) for part in (ids, target_mask))
            ids[:, 0] = BOS
            label_ids = None if label_ids is None else np.pad(label_ids, ((0, 0), (1, 0)))
            lengths = lengths + 1
        longest = int(lengths.max(initial=0))
        label_ids = None if label_ids is None else label_ids[:, :longest]
        return TokenizedExamples(ids[:, :longest], lengths, target_mask[:, :longest], label_ids, vocabulary=vocabulary)

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        return [_token_id(word, vocabulary) for word in text.split()]

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        return " ".join(vocabulary.tokens[i] for i in map(int, ids) if i not in (PAD, BOS, EOS))


def _check_no_numbers(questions: Questions) -> None:
    if questions.numbers.lengths.shape[1] and bool(((questions.symbols < 0) & (questions.symbols > EMPTY)).any()):
        raise UserError("tokenizer: Words does not support questions with number slots; use tokenizer=Characters")


def _compact_pieces(
    questions: Questions,
) -> tuple[NDArray[np.int16], NDArray[np.int16] | None, NDArray[np.int64] | None]:
    """Symbols, labels and prompt lengths with empty elements moved to the end of each row."""
    symbols, labels, prompt_lengths = questions.symbols, questions.labels, questions.prompt_lengths
    piece_mask = symbols != EMPTY
    if bool((piece_mask[:, 1:] <= piece_mask[:, :-1]).all()):
        return symbols, labels, None if prompt_lengths is None else np.minimum(prompt_lengths, piece_mask.sum(axis=1))
    order = np.argsort(~piece_mask, axis=1, kind="stable")
    if prompt_lengths is not None:
        prompt_lengths = (piece_mask & (np.arange(symbols.shape[1]) < prompt_lengths[:, None])).sum(axis=1)
    reordered = [None if part is None else np.take_along_axis(part, order, axis=1) for part in (symbols, labels)]
    assert reordered[0] is not None
    return reordered[0], reordered[1], prompt_lengths


def _token_id(text: str, vocabulary: Vocabulary) -> int:
    return UNK if text in SPECIAL_TOKENS else vocabulary.token_to_id.get(text, UNK)


def _token_ids(symbols: NDArray[np.int16], alphabet: tuple[str, ...], vocabulary: Vocabulary) -> NDArray[Any]:
    """The id of each text, PAD for `EMPTY`."""
    ids = [_token_id(text, vocabulary) for text in alphabet]
    id_table = np.array([*ids, PAD], dtype=id_dtype(vocabulary))
    return id_table[np.where(symbols == EMPTY, len(ids), symbols)]

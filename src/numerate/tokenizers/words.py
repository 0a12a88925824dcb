"""Word-level tokenization: one token per text of a task's alphabet, such as `100`, `a` or `<pad>`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from numerate.config import setting
from numerate.errors import UserError
from numerate.tasks.questions import EMPTY, Example, Questions
from numerate.tasks.task import Task
from numerate.tokenizers.tokenizer import TokenizedExamples, Tokenizer, encode_texts
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
        if bool(((questions.symbols < 0) & (questions.symbols > EMPTY)).any()):
            raise UserError("tokenizer: Words does not support questions with number slots; use tokenizer=Characters")
        text_ids = [_token_id(text, vocabulary) for text in questions.alphabet]
        unknown = [index for index, token_id in enumerate(text_ids) if token_id == UNK]
        if unknown and questions.labels is not None:
            for label in np.intersect1d(questions.labels, unknown).tolist():
                raise UserError(
                    f"tokenizer: the label {questions.alphabet[label]!r} must be in the vocabulary; add it to the "
                    "task's alphabet"
                )
        return encode_texts(questions, text_ids, vocabulary, self.add_bos_token)

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        return [_token_id(word, vocabulary) for word in text.split()]

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        return " ".join(vocabulary.tokens[i] for i in map(int, ids) if i not in (PAD, BOS, EOS))


def _token_id(text: str, vocabulary: Vocabulary) -> int:
    return UNK if text in SPECIAL_TOKENS else vocabulary.token_to_id.get(text, UNK)

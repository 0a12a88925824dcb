"""Token ids of pretokenized corpora for language modeling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from numerate.config import setting
from numerate.errors import UserError
from numerate.tasks.questions import Example, Questions
from numerate.tasks.task import Task
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, TokenBytes, load_tokenizer
from numerate.tokenizers.number_formats import id_dtype
from numerate.tokenizers.tokenizer import TokenizedExamples, Tokenizer
from numerate.vocabulary import DIGIT, NUMBER, POINT, SIGN, SPECIAL, TEXT, Vocabulary


@dataclass(frozen=True)
class TokenIds(Tokenizer):
    """The token ids of a pretokenized corpus, in the vocabulary of its own tokenizer.

    The vocabulary has exactly the ids of `LanguageModeling.tokenizer`, for example Llama's 32,000: ids 0 to 3 are the
    tokenizer's, not numerate's special tokens. Rows are padded with 0, which is never a target.

    `pad_to_multiple_of` pads the vocabulary with unused ids, which makes embedding tables faster on a GPU. GPT-2's
    50,257 ids with pad_to_multiple_of=128 are the published 50,304.
    """

    has_unique_tokenization: ClassVar[bool] = False

    pad_to_multiple_of: int = setting(1, "pad the vocabulary to a multiple of this", at_least=1)

    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        """The vocabulary of a task's tokenizer. Raises `UserError` for a task that is not language modeling."""
        if not isinstance(task, Task) or not hasattr(task, "load_tokenizer"):
            task_name = type(task).__name__ if isinstance(task, Task) else "a text"
            raise UserError(
                f"tokenizer: TokenIds must be used with task=LanguageModeling, not {task_name}; use another tokenizer, "
                "such as Characters"
            )
        return build_tokenizer_vocabulary(task.load_tokenizer(), self.pad_to_multiple_of)

    def encode_examples(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> TokenizedExamples:
        if not isinstance(questions, Questions) or questions.tokens is None:
            raise UserError(
                "tokenizer: TokenIds supports language modeling only; for questions use tokenizer=Characters"
            )
        chunks = questions.tokens
        ids = chunks.ids.astype(id_dtype(vocabulary))
        positions = np.arange(ids.shape[1])
        target_mask = (positions > 0) & (positions <= chunks.lengths[:, None])
        return TokenizedExamples(ids, chunks.lengths + 1, target_mask, vocabulary=vocabulary)

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        """The ids of a text, without [BOS]."""
        ids: list[int] = get_tokenizer(vocabulary).encode([text])[0].tolist()
        return ids

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        return get_tokenizer(vocabulary).decode([*ids])

    @staticmethod
    def load_tokenizer(name: str) -> PretrainedTokenizer:
        """The stored tokenizer of a name, for tasks, which do not import tokenizers. Raises `UserError` for none."""
        return load_tokenizer(name)

    @staticmethod
    def token_bytes(name: str) -> TokenBytes:
        """The bytes of each token of a stored tokenizer."""
        return TokenBytes.from_tokenizer(load_tokenizer(name))


@lru_cache(maxsize=4)
def build_tokenizer_vocabulary(tokenizer: PretrainedTokenizer, pad_to_multiple_of: int = 1) -> Vocabulary:
    """The vocabulary of a stored tokenizer, padded with unused ids to a multiple."""
    symbols = list(tokenizer.symbols)
    symbols += [
        f"[no piece {i}]" for i in range(len(symbols), -(-len(symbols) // pad_to_multiple_of) * pad_to_multiple_of)
    ]
    special_ids = set(tokenizer.special_token_ids.values())
    token_kinds = np.full(len(symbols), TEXT, dtype=np.int8)
    values = np.full(len(symbols), np.nan)
    for i, symbol in enumerate(symbols):
        stripped_symbol = symbol.lstrip("\u2581\u0120")
        if i in special_ids:
            token_kinds[i] = SPECIAL
        elif stripped_symbol.isascii() and stripped_symbol.isdigit():
            token_kinds[i], values[i] = DIGIT if len(stripped_symbol) == 1 else NUMBER, float(stripped_symbol)
        elif stripped_symbol in ("-", "."):
            token_kinds[i] = SIGN if stripped_symbol == "-" else POINT
    tokenizer_ids = np.arange(len(symbols), dtype=np.int64)
    tokenizer_ids[tokenizer.size :] = -1
    vocabulary = TokenizerVocabulary(
        tuple(symbols), token_kinds, values, np.full(len(symbols), -1000, np.int64), tokenizer_ids
    )
    object.__setattr__(vocabulary, "tokenizer", tokenizer)
    return vocabulary


class TokenizerVocabulary(Vocabulary):
    """A vocabulary with a reference to its tokenizer."""

    tokenizer: PretrainedTokenizer


def get_tokenizer(vocabulary: Vocabulary) -> PretrainedTokenizer:
    """The stored tokenizer of a vocabulary of `TokenIds`. Raises `UserError` for any other."""
    if not isinstance(vocabulary, TokenizerVocabulary):
        raise UserError("tokenizer: the vocabulary must be built by TokenIds")
    return vocabulary.tokenizer

"""Token ids of pretokenized corpora, used unchanged for language modeling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from numerate.config import setting
from numerate.errors import UserError
from numerate.tasks.questions import Example, Questions
from numerate.tasks.task import Task
from numerate.text.tokenizers.stored_tokenizer import StoredTokenizer, opened
from numerate.text.tokenizers.token_bytes import TokenBytes
from numerate.tokenizers.number_formats import id_type
from numerate.tokenizers.tokenizer import Rows, Tokenizer
from numerate.vocabulary import DIGIT, NUMBER, POINT, SIGN, SPECIAL, TEXT, Vocabulary


@dataclass(frozen=True)
class TokenIds(Tokenizer):
    """The token ids of a pretokenized corpus, in the vocabulary of its own tokenizer.

    The vocabulary has exactly the ids of `LanguageModeling.tokenizer`, for example Llama's 32,000: ids 0 to 3 are the
    tokenizer's, not numerate's special tokens. Rows are padded with 0, which is never a target.

    `pad_to_multiple_of` pads the vocabulary with unused ids, which makes embedding tables faster on a GPU. GPT-2's
    50,257 ids with pad_to_multiple_of=128 are the published 50,304.
    """

    unique: ClassVar[bool] = False

    pad_to_multiple_of: int = setting(1, "pad the vocabulary to a multiple of this")

    def __post_init__(self) -> None:
        if self.pad_to_multiple_of < 1:
            raise UserError(
                f"pad_to_multiple_of: {self.pad_to_multiple_of} has no multiples; 1 or more is right, 1 for no "
                f"further ids"
            )

    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        """The vocabulary of a task's tokenizer. Raises `UserError` for a task without running text."""
        if not isinstance(task, Task) or not hasattr(task, "pieces"):
            what = type(task).__name__ if isinstance(task, Task) else "a text"
            raise UserError(
                f"tokenizer: TokenIds takes running text as it is, and {what} is none; task=LanguageModeling, or "
                "another tokenizer such as Characters, is right"
            )
        return vocabulary_of(task.pieces(), self.pad_to_multiple_of)

    def rows(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> Rows:
        if not isinstance(questions, Questions) or questions.tokens is None:
            raise UserError(
                "tokenizer: TokenIds takes running text alone, and these are questions; Characters is right"
            )
        rows = questions.tokens
        ids = rows.ids.astype(id_type(vocabulary))
        positions = np.arange(ids.shape[1])
        target_mask = (positions > 0) & (positions <= rows.lengths[:, None])
        return Rows(ids, rows.lengths + 1, target_mask, vocabulary=vocabulary)

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        """The ids of a text, without [BOS]."""
        ids: list[int] = pieces_of(vocabulary).encode([text])[0].tolist()
        return ids

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary) -> str:
        return pieces_of(vocabulary).decode([*ids])

    @staticmethod
    def stored(name: str) -> StoredTokenizer:
        """The stored tokenizer of a name, loaded once, for tasks, which do not import tokens. Raises as `pieces`."""
        return opened(name)

    @staticmethod
    def token_bytes(name: str) -> TokenBytes:
        """The bytes of each token of a stored tokenizer."""
        return TokenBytes.of(opened(name))


@lru_cache(maxsize=4)
def vocabulary_of(known: StoredTokenizer, multiple: int = 1) -> Vocabulary:
    """The vocabulary of a stored tokenizer, padded with unused ids to a multiple."""
    symbols = list(known.symbols)
    symbols += [f"[no piece {i}]" for i in range(len(symbols), -(-len(symbols) // multiple) * multiple)]
    special = set(known.roles.values())
    kinds = np.full(len(symbols), TEXT, dtype=np.int8)
    values = np.full(len(symbols), np.nan)
    for i, symbol in enumerate(symbols):
        bare = symbol.lstrip("\u2581\u0120")
        if i in special:
            kinds[i] = SPECIAL
        elif bare.isascii() and bare.isdigit():
            kinds[i], values[i] = DIGIT if len(bare) == 1 else NUMBER, float(bare)
        elif bare in ("-", "."):
            kinds[i] = SIGN if bare == "-" else POINT
    theirs = np.arange(len(symbols), dtype=np.int64)
    theirs[known.size :] = -1
    found = TokenizerVocabulary(tuple(symbols), kinds, values, np.full(len(symbols), -1000, np.int64), theirs)
    object.__setattr__(found, "pieces", known)
    return found


class TokenizerVocabulary(Vocabulary):
    """A vocabulary that knows its tokenizer."""

    pieces: StoredTokenizer


def pieces_of(vocabulary: Vocabulary) -> StoredTokenizer:
    """The stored tokenizer of a vocabulary of `TokenIds`. Raises `UserError` for any other."""
    if not isinstance(vocabulary, TokenizerVocabulary):
        raise UserError("tokenizer: TokenIds knows the vocabularies alone that it made; of a LanguageModeling is right")
    return vocabulary.pieces

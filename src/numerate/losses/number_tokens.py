"""The `NumberTokenTable` of a vocabulary."""

from typing import Literal

from numerate.errors import UserError
from numerate.kernels.number_table import NumberTokenTable, digit_count
from numerate.vocabulary import Vocabulary


def number_table(
    vocabulary: Vocabulary, which: Literal["digits", "numbers"] = "digits", width: int | None = None
) -> NumberTokenTable:
    """The digits of a vocabulary, or all its tokens with a value, for logits of at least `width` entries.

    If no token is a plain digit (as with the `_5_2_` tokens), `digits` selects all tokens with a value. Raises
    `UserError` for a vocabulary without such tokens.
    """
    ids = vocabulary.number_ids(which)
    if not ids:
        raise UserError(f"number tokens: none of the {vocabulary.size} tokens of this vocabulary has a value")
    return NumberTokenTable.from_values(
        {i: float(vocabulary.number_values[i]) for i in ids},
        vocabulary.size if width is None else width,
        {i: _digits_of(vocabulary.tokens[i], float(vocabulary.number_values[i])) for i in ids},
        {i: int(vocabulary.exponents[i]) for i in ids},
    )


def _digits_of(symbol: str, value: float) -> int:
    """Number of digits that a token writes, or 1 for a token with its own power of ten."""
    return len(symbol) if symbol.isascii() and symbol.isdigit() else digit_count(value)

"""Tokens outside the spans that a user's function finds in a text, such as numbers that name something."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import index

from numerate.errors import UserError

TextSpans = Callable[[str], Iterable[tuple[int, int]]]
"""A function from a text to spans (start, end) of it."""


def tokens_outside(exclude: TextSpans, ids: Sequence[int], token_texts: Sequence[str]) -> list[bool]:
    """Whether each token is outside all spans that `exclude` finds in the text of the tokens. An id without a text,
    such as that of an ignored label, is a space.

    >>> tokens_outside(lambda text: [(5, 9)], [3, 0, 1, 2, -100], ["in ", "19", "98", "7 "])
    [True, True, False, False, True]
    """
    texts = [token_texts[i] if 0 <= i < len(token_texts) else " " for i in ids]
    ends = list(accumulate(map(len, texts)))
    is_outside = [True] * len(ids)
    for start, end in _checked_spans(exclude("".join(texts)), ends[-1] if ends else 0):
        for i in range(bisect_right(ends, start), min(bisect_left(ends, end) + 1, len(ids))):
            is_outside[i] = False
    return is_outside


def _checked_spans(spans: Iterable[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """The spans that a user's function finds. Raises `UserError` for what are no spans of a text of this length."""
    try:
        pairs = [(index(start), index(end)) for start, end in spans]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"exclude: must return spans (start, end) of the text, such as [(3, 7)], not {spans!r}"
        ) from error
    for start, end in pairs:
        if not 0 <= start <= end <= length:
            raise UserError(f"exclude: ({start}, {end}) is no span of a text of {length} characters")
    return pairs

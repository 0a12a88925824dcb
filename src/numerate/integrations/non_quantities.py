"""Numbers in English text that name something instead of counting or measuring it."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import index

from numerate.errors import UserError

TextSpans = Callable[[str], Iterable[tuple[int, int]]]
"""A function from a text to spans (start, end) of it."""

_MONTHS = (
    "January|February|March|April|May|June|July|August|September|October|November|December|"
    "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
)
_LABELS = "Article|Building|Chapter|Eq|Fig|Figure|Flight|ID|Page|Room|Route|Section|Table|Version|Vol|Volume"

_NON_QUANTITY = re.compile(
    rf"""
    # years: in 1998, May 5, 2019, the 1990s, 44 BC
    \b(?:[Ii]n|[Ss]ince|[Uu]ntil|[Dd]uring|[Yy]ear|{_MONTHS})[ ]
        (?:[0-9]{{1,2}},\ )?(?:1[0-9]|20)[0-9]{{2}}(?![0-9.,]?[0-9])
    | \b(?:1[0-9]|20)[0-9]0s\b
    | \b[0-9]{{1,4}}\ (?:AD|BCE?|CE)\b
    # dates: 2024-05-01, 31.12.2024, 3/14/2024
    | \b[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}\b
    | \b[0-9]{{1,2}}([./])[0-9]{{1,2}}\1(?:19|20)[0-9]{{2}}\b
    # telephone numbers: +49 30 901820, (555) 123-4567, 555-123-4567
    | (?<!\S)\+[1-9][0-9]{{0,2}}(?:[ -]\(?[0-9]{{2,8}}\)?){{2,5}}(?!\ ?[=*/+])
    | (?:\([0-9]{{3}}\)\ ?|\b[0-9]{{3}}-)[0-9]{{3}}-[0-9]{{4}}\b(?!\ ?[=*/+])
    # versions and addresses: 1.2.3, 192.168.0.1
    | \b[0-9]+(?:\.[0-9]+){{2,}}\b
    # identifiers: Figure 3, No. 5, room 12, #7, A4, COVID-19, 007
    | \b(?:(?i:{_LABELS})\b\.?|[Nn]o\.)\ ?\#?[0-9]+(?:\.[0-9]+)?
    | \#[0-9]+
    | \b[A-Z]+-?[0-9]+\b
    | (?<![0-9.,])\b0[0-9]+\b
    """,
    re.VERBOSE,
)


def non_quantities(text: str) -> list[tuple[int, int]]:
    """The spans (start, end) of an English text whose numbers are no quantities: years, dates, telephone numbers,
    versions and identifiers.

    A rule of patterns, which errs: in `in 1998 steps` it takes 1998 for a year. `NumberTokenLoss(exclude=...)` takes
    any function like it.

    >>> text = "In 1998, room 12 had 30 seats and a phone: 555-123-4567."
    >>> [text[start:end] for start, end in non_quantities(text)]
    ['In 1998', 'room 12', '555-123-4567']
    """
    return [found.span() for found in _NON_QUANTITY.finditer(text)]


def tokens_outside(exclude: TextSpans, ids: Sequence[int], token_texts: Sequence[str]) -> list[bool]:
    """Whether each token is outside all spans that `exclude` finds in the text of the tokens. An id without a text,
    such as that of an ignored label, is a space.

    >>> tokens_outside(non_quantities, [3, 0, 1, 2, -100], ["in ", "19", "98", "7 "])
    [True, False, False, False, True]
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

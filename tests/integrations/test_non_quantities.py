"""Promises of the rule for numbers that are no quantities."""

import re

import pytest

from numerate.integrations.non_quantities import non_quantities, tokens_outside


@pytest.mark.parametrize(
    ("text", "quantities"),
    [
        ("In 1998 she had 12 cats, in May 2019 only 3.", ["12", "3"]),
        ("The 1990s and 44 BC; 1990 marbles, and in 1,998 boxes 20 each", ["1990", "1,998", "20"]),
        ("Born May 5, 2019, on 2024-05-01 or 31.12.2024 or 3/14/2024: 7 days", ["7"]),
        ("Call +49 30 901820 or (555) 123-4567 or 555-123-4567 for 5 dollars", ["5"]),
        ("12 + 3000 - 500 = 2512, 20-5-3 = 12, 48/2/3 = 8, 555-123-4567 = -4135", None),
        ("Version 1.2.3 at 192.168.0.1 in room 12, Figure 3, No. 5, #7, A4, COVID-19, agent 007", []),
        ("10 rooms, 0.05 and 5.50 and 100 of 2000 at $1.75, 3:2", None),
    ],
)
def test_years_dates_telephone_numbers_and_identifiers_are_no_quantities(
    text: str, quantities: list[str] | None
) -> None:
    excluded = {i for start, end in non_quantities(text) for i in range(start, end)}
    numbers = list(re.finditer(r"[0-9]+(?:[.,][0-9]+)*", text))
    left = [found[0] for found in numbers if not excluded & {*range(*found.span())}]
    assert left == ([found[0] for found in numbers] if quantities is None else quantities)


def test_a_span_excludes_every_token_that_it_touches() -> None:
    texts = ["a", "12", "34", "", "b"]
    spans = {"touched": (2, 4), "between": (3, 3)}
    outside = {
        name: tokens_outside(lambda text, span=span: [span], [0, 1, 2, 3, 4], texts) for name, span in spans.items()
    }
    assert outside["touched"] == [True, False, False, True, True]
    assert outside["between"] == [True] * 5

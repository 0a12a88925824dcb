"""The lengths that published models of addition reach, marked in charts by length."""

from collections.abc import Sequence
from typing import NamedTuple


class PublishedReach(NamedTuple):
    """A model that is reported to add two numbers of `digits` digits each, trained on at most `trained` digits.

    `help` is what it has besides questions and answers; "" for nothing."""

    name: str
    digits: int
    trained: int
    source: str
    link: str
    help: str = ""


ADDITION = (
    PublishedReach("Abacus", 100, 20, "McLeish et al., 2024", "https://arxiv.org/abs/2405.17399"),
    PublishedReach("position coupling", 200, 30, "Cho et al., 2024", "https://arxiv.org/abs/2405.20671"),
    PublishedReach("ALGA", 1000, 2, "Patriota, 2024", "https://arxiv.org/abs/2406.00075", "a loop outside the model"),
    PublishedReach("DFST", 2450, 3, "Papazov et al., 2025", "https://arxiv.org/abs/2511.22751", "steps as targets"),
)
"""Abacus and position coupling as in their abstracts, ALGA as in its text, DFST as in its section on decimal addition.
Each has another size, another budget and another criterion; the last two are of another kind, as their `help` says."""


def sources_note(shown: Sequence[PublishedReach]) -> str:
    """The sources of the marked lengths in sentences; "" for none."""
    if not shown:
        return ""
    entries = (
        f"{one.name}, {one.digits:,} digits, trained on {one.trained} ({one.source}, {one.link.removeprefix('https://')})"
        for one in shown
    )
    helps = " or ".join(one.help for one in shown if one.help)
    starred = f" *Of another kind: with {helps}." * bool(helps)
    return f"Dotted: what others report, each by its own criterion: {'; '.join(entries)}.{starred}"

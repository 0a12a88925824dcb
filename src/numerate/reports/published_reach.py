"""The lengths that published models of addition reach, marked in charts by length."""

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
    PublishedReach("DFST", 2450, 3, "Papazov et al., 2025", "https://arxiv.org/abs/2511.22751", "every step"),
)
"""What the abstracts report, of DFST also its section on decimal addition. Each has another size, another budget and
another criterion; the last two are of another kind, as their `help` says."""


def sources_note(shown: tuple[PublishedReach, ...]) -> str:
    """A sentence with the sources of the marked lengths; "" for none."""
    entries = (
        f"{one.name}, {one.digits:,} digits from {one.trained}{f' with {one.help}' if one.help else ''} "
        f"({one.source}, {one.link.removeprefix('https://')})"
        for one in shown
    )
    text = "; ".join(entries)
    return f"Dotted: what others report, each by its own criterion: {text}." if shown else ""

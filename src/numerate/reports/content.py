"""Notes below tables."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A paragraph below a table."""

    text: str

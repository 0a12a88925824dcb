"""Notes on failed runs that are missing from a comparison."""

from collections.abc import Sequence

MOST_FAILED = 6
"""Failed runs, and variants without any run, that are named; the others are counted."""

LONGEST_ERROR = 100
"""Letters of an error that are shown."""


def missing_words(
    shown: int, failed: Sequence[tuple[str, str]], absent: Sequence[str] = (), where: str = "below"
) -> str:
    """Sentences on failed runs with their errors, and on variants without any run; or "".

    >>> missing_words(3, [("rotary seed 1", "the loss is nan")], [])
    '1 of 4 runs failed and is not in anything below: rotary seed 1 (the loss is nan).'
    """
    parts = []
    if failed:
        named = [f"{label} ({_short(error)})" for label, error in failed]
        verb = "is" if len(failed) == 1 else "are"
        total = shown + len(failed)
        parts.append(f"{len(failed)} of {total} runs failed and {verb} not in anything {where}: {_listed(named)}.")
    if absent:
        parts.append(f"No run is left of {_listed(absent)}.")
    return " ".join(parts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_FAILED:,} more" if len(names) > MOST_FAILED else ""
    return ", ".join(names[:MOST_FAILED]) + more


def _short(error: str) -> str:
    """The error on one line, without control characters."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in error).split())
    return text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR].rstrip() + "..."

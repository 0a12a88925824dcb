"""Which runs failed and are not in a comparison: without them a variant that often fails would look better."""

from collections.abc import Sequence

MOST_FAILED = 6
"""Failed runs, and variants without any run, that are named; the others are counted."""

LONGEST_ERROR = 100
"""Letters of an error that are shown."""


def missing_words(
    shown: int, failed: Sequence[tuple[str, str]], absent: Sequence[str] = (), where: str = "below"
) -> str:
    """A plain sentence or two about failed runs, each with its error, and variants of which no run is left; or nothing.

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
    """The error on one line, without letters that would steer a terminal."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in error).split())
    return text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR].rstrip() + "..."

"""A note on failed runs that are missing from a comparison."""

from collections.abc import Sequence

from numerate.reports.limits import join_names

MAX_NAMED_RUNS = 7
"""Failed runs, and variants without any run, that are named; beyond it six, and the others are counted."""

MAX_ERROR_LENGTH = 100
"""Letters of an error that are shown."""


def missing_runs_note(
    num_shown: int, failed: Sequence[tuple[str, str]], missing_variants: Sequence[str] = (), location: str = "below"
) -> str:
    """Sentences on failed runs with their errors, and on variants without any run; or "".

    >>> missing_runs_note(3, [("rotary seed 1", "the loss is nan")], [])
    '1 of 4 runs failed and is not in anything below: rotary seed 1 (the loss is nan).'
    """
    parts = []
    if failed:
        named = join_names([f"{label} ({_shorten(error)})" for label, error in failed], MAX_NAMED_RUNS)
        verb = "is" if len(failed) == 1 else "are"
        parts.append(
            f"{len(failed)} of {num_shown + len(failed)} runs failed and {verb} not in anything {location}: {named}."
        )
    if missing_variants:
        parts.append(f"No run of {join_names(missing_variants, MAX_NAMED_RUNS)} succeeded.")
    return " ".join(parts)


def _shorten(error: str) -> str:
    """The error on one line, without control characters."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in error).split())
    return text if len(text) <= MAX_ERROR_LENGTH else text[:MAX_ERROR_LENGTH].rstrip() + "..."

"""Notes on failed runs that are missing from a comparison."""

from collections.abc import Sequence

MAX_NAMED_RUNS = 6
"""Failed runs, and variants without any run, that are named; the others are counted."""

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
        named = [f"{label} ({_shorten_error(error)})" for label, error in failed]
        verb = "is" if len(failed) == 1 else "are"
        total = num_shown + len(failed)
        parts.append(
            f"{len(failed)} of {total} runs failed and {verb} not in anything {location}: {_join_names(named)}."
        )
    if missing_variants:
        parts.append(f"No run of {_join_names(missing_variants)} succeeded.")
    return " ".join(parts)


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED_RUNS:,} more" if len(names) > MAX_NAMED_RUNS else ""
    return ", ".join(names[:MAX_NAMED_RUNS]) + more


def _shorten_error(error: str) -> str:
    """The error on one line, without control characters."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in error).split())
    return text if len(text) <= MAX_ERROR_LENGTH else text[:MAX_ERROR_LENGTH].rstrip() + "..."

"""Text generation from prompts."""

from collections.abc import Callable, Sequence

from numerate.errors import UserError
from numerate.evaluation.passages import Listen, Passage, passages_after
from numerate.evaluation.prompts import context_of, most_of, refuse_too_long, writing_of
from numerate.evaluation.sampling import Sampling
from numerate.experiments.stored_run import StoredRun


def continued(
    run: StoredRun,
    prompts: Sequence[str],
    sampling: Sampling,
    *,
    max_new_tokens: int | None = None,
    count: int = 1,
    checkpoint: str = "final",
    stop: Sequence[str] = (),
    context_length: int | None = None,
    on_text: Listen | None = None,
    ended: Callable[[], bool] | None = None,
) -> list[Passage]:
    """`Run.generate`: validates all arguments before the weights are read."""
    if count < 1:
        raise UserError(f"count: {count} samples are none; 1 or more is right")
    if count > 1 and sampling.likeliest:
        raise UserError(f"count: greedy decoding gives the same text each time; count=1 is right, and not {count}")
    if context_length is not None and context_length < 1:
        raise UserError(f"context_length: {context_length} tokens are nothing to read; 1 or more is right")
    if any(not text for text in stop):
        raise UserError("stop: is empty; a text such as 'The end' is right, or none")
    if checkpoint == "all":
        raise UserError("checkpoint: all are several, and one of them generates; final, best or a step is right")
    writing = writing_of(run.exam)
    if (ahead := run.blank.sees_future()) is not None:
        raise UserError(f"model: {ahead}; it cannot continue a text")
    read = [writing.read(prompt) for prompt in prompts or ("",)]
    context = context_of(run.exam)
    allowed = most_of(read, max_new_tokens, context, context_length)
    for warning in refuse_too_long(run.blank, run.exam, read, allowed, context, context_length):
        run.warn(warning)
    return passages_after(
        run.model(checkpoint),
        writing,
        read,
        sampling,
        allowed,
        count=count,
        stop=stop,
        window=context_length,
        told=on_text,
        ended=ended,
    )

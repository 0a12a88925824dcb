"""Text generation from prompts."""

from collections.abc import Callable, Sequence

from numerate.errors import UserError
from numerate.evaluation.completions import Completion, TextCallback, generate_completions
from numerate.evaluation.prompts import (
    check_lengths,
    make_prompt_processor,
    resolve_max_new_tokens,
    training_context_length,
)
from numerate.evaluation.sampling import Sampling
from numerate.experiments.stored_run import StoredRun


def generate_continuations(
    run: StoredRun,
    prompts: Sequence[str],
    sampling: Sampling,
    *,
    max_new_tokens: int | None = None,
    count: int = 1,
    checkpoint: str = "final",
    stop: Sequence[str] = (),
    context_length: int | None = None,
    on_text: TextCallback | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[Completion]:
    """Implements `Run.generate`; validates all arguments before weights are loaded."""
    if count < 1:
        raise UserError(f"count: must be at least 1, not {count}")
    if count > 1 and sampling.is_greedy:
        raise UserError(f"count: greedy decoding gives the same text each time; count must be 1, not {count}")
    if context_length is not None and context_length < 1:
        raise UserError(f"context_length: must be at least 1, not {context_length}")
    if any(not text for text in stop):
        raise UserError("stop: must not be empty; for example stop='The end'")
    if checkpoint == "all":
        raise UserError("checkpoint: must be final, best or a step, not all")
    text_encoder = make_prompt_processor(run.evaluation_data)
    if (reason := run.untrained_model.non_causal_reason()) is not None:
        raise UserError(f"model: {reason}; it cannot continue a text")
    encoded_prompts = [text_encoder.encode(prompt) for prompt in prompts or ("",)]
    trained_length = training_context_length(run.evaluation_data)
    max_tokens = resolve_max_new_tokens(encoded_prompts, max_new_tokens, trained_length, context_length)
    for warning in check_lengths(
        run.untrained_model, run.evaluation_data, encoded_prompts, max_tokens, trained_length, context_length
    ):
        run.warn(warning)
    return generate_completions(
        run.load_model(checkpoint),
        text_encoder,
        encoded_prompts,
        sampling,
        max_tokens,
        count=count,
        stop_texts=stop,
        window=context_length,
        on_text=on_text,
        should_stop=should_stop,
    )

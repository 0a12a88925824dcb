"""The kinds of records in files: their fields and allowed values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from numerate.records.schema import (
    CHECKSUM_KEY,
    RUN_ID_KEY,
    Count,
    Fraction,
    Loss,
    NonNegative,
    NonNegativeLoss,
    Schema,
    checksum,
    record_type,
)

Object = dict[str, Any]
Decimal = Annotated[str, Meta(pattern=r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\Z")]
Region = Annotated[str, Meta(pattern=r"^(in_distribution|ood_validation|ood_test|100\+|below)\Z")]
Digits = Annotated[str, Meta(pattern=r"^[0-9]+\Z")]

# Evaluations ----------------------------------------------------------------------------------------------------------

_MEASUREMENT = {
    "cell": dict[str, Count],
    f"checkpoint method stratum? {RUN_ID_KEY}?": str,
    "step position_offset": Count,
    "settings?": Object,
}
"""What was measured: the grid cell, the checkpoint, and the method."""

_CELL = {**_MEASUREMENT, "count evaluation_seed?": Count, "seed?": int, "region": Region, "overlaps_training": bool}
_LABELS = record_type(
    {
        "targets_by_position correct_by_position": list[Count],
        "max_training_labels?": Count,
        "last_label": Count,
        "correct_prefix": NonNegative,
        "metrics? baseline?": dict[str, Fraction | None],
        "target_counts": dict[str, dict[str, Count]],
    },
    "correct_by_position <= targets_by_position",
)
_SUMS = "absolute_error squared_error target target_squared prediction prediction_squared product"
_NUMBERS = record_type(
    {
        "count correct missing invalid clipped nonzero": Count,
        "within": dict[str, Count],
        "linear log": record_type({"count": Count, _SUMS: Decimal}),
        "relative_error": Decimal,
        "of_cell metrics": dict[str, Loss | None],
    },
    *(f"{name} <= count" for name in ("correct", "missing", "invalid", "clipped", "nonzero", "within")),
)
_TEXTS = record_type(
    {
        "count prediction_words reference_words tokens correct_tokens ended": Count,
        "totals matches": list[Count],
        "rouge": record_type({"rouge1 rouge2 rougeL": NonNegative}),
        "nll": Loss,
        "metrics?": dict[str, Loss | None],
    },
    *("matches <= totals", "correct_tokens <= tokens", "ended <= count"),
)
_QUESTION_CELL = record_type(
    {
        **_CELL,
        "correct first_token_correct?": Count,
        "low high digit_accuracy?": Fraction,
        "names?": dict[str, str],
        "first_error_counts?": list[Count],
        "labels?": _LABELS,
        "numbers?": _NUMBERS,
        "numbers_by_digits?": dict[Digits, _NUMBERS],  # type: ignore[valid-type]
        "texts?": _TEXTS,
        "kind? non_causal_reason?": str,
        "scores?": dict[str, NonNegative],
    },
    *("correct <= count", "low <= correct / count", "high >= correct / count"),
    *("first_token_correct <= count", "scores <= count"),
)
_LIKELIHOODS = record_type(
    {
        "nll nll_squared? nll_tokens? nll_bytes? batch_losses? batch_exps?": NonNegativeLoss,
        "tokens bytes chunks correct_tokens tokens_squared? bytes_squared? batches?": Count,
    },
    "correct_tokens <= tokens",
)
_LANGUAGE_MODELING_CELL = record_type(
    {
        **_CELL,
        "loss bits_per_byte? perplexity?": NonNegativeLoss,
        "token_accuracy?": Fraction,
        "language": _LIKELIHOODS,
        "tokenizer?": str,
        "correct?": None,
    },
    "cell has context_length",
)
_OTHER_KIND_CELL = record_type({**_CELL, "kind": str})
"""A record of an `EvaluationKind` outside numerate, with entries of its own."""

EVALUATION = Schema(
    {"language": _LANGUAGE_MODELING_CELL, "correct": _QUESTION_CELL, "kind": _OTHER_KIND_CELL, "": _QUESTION_CELL},
    "Restore the file from a copy, or remove the line: `numerate evaluate` measures its cell again.",
    unique=(
        *("cell", "stratum", "checkpoint", "step", "settings", "position_offset", "count", "evaluation_seed"),
        *("method", "seed"),
    ),
)


def prediction_checksum(line: Mapping[str, Any]) -> str:
    """The checksum of a line of predictions.jsonl: without its checkpoint's name, of which a step may have several."""
    return checksum(line, ("checkpoint",))


def _checksum_violation(line: Mapping[str, Any]) -> str | None:
    is_sound = line.get(CHECKSUM_KEY) in (None, prediction_checksum(line))
    return None if is_sound else f"`{CHECKSUM_KEY}` must be that of the line, which was modified"


_EVALUATE_AGAIN = (
    "Remove the line, and that of its cell in cells.jsonl if there is one: `numerate evaluate` with the same "
    "settings evaluates again."
)
_PREDICTION = {**_MEASUREMENT, "row? count? evaluation_seed?": Count, f"{CHECKSUM_KEY}?": str}
_ANSWER = record_type({**_PREDICTION, "question prediction correct_answer?": str, "correct? ended?": bool})
PREDICTIONS = Schema(
    {"correct_answer": _ANSWER, "": record_type(_PREDICTION)},
    _EVALUATE_AGAIN,
    check=_checksum_violation,
)
_GENERATED_TEXT = record_type({"prompt text?": str, "step sample? tokens?": Count, "seed?": int})
_SAMPLE = record_type(
    {"cell?": dict[str, Count], "question prediction correct_answer? model_text?": str, "correct?": bool}
)

# Training -------------------------------------------------------------------------------------------------------------

_TRAINING_STEP = record_type(
    {
        "step examples? tokens?": Count,
        "loss": Loss,
        "flops? learning_rate?": NonNegative,
        "grad_norm?": NonNegativeLoss,
        "layer_grad_norms?": dict[str, NonNegativeLoss],
        "padding?": Fraction,
    }
)
_VALIDATION = {
    "step count? correct? tokens?": Count,
    "split": str,
    "digit_accuracy? accuracy? token_accuracy? ood_accuracy?": Fraction,
    "validation_loss?": Loss,
    "perplexity? bits_per_byte? mean_of_exp?": NonNegativeLoss,
}
_ANSWERS_VALIDATION = record_type(
    {**_VALIDATION, "exact_match low? high?": Fraction},
    *("correct <= count", "low <= exact_match", "high >= exact_match"),
)
_TEXT_VALIDATION = record_type({**_VALIDATION, "loss low? high? batch_loss?": Loss}, "correct <= count")
METRICS = Schema(
    {"exact_match": _ANSWERS_VALIDATION, "split": _TEXT_VALIDATION, "": _TRAINING_STEP},
    "The weights are unharmed; curves leave this line out.",
    is_fatal=False,
    unique=("step", "split"),
)
_SPEED = "tokens_per_second? seconds? training_seconds? flops_per_second? flops_utilization?"
_TIMING = record_type({"step peak_memory_bytes?": Count, _SPEED: NonNegative})
_START = record_type({"command? git? hardware?": Any, "versions? times?": Object})

RUN_FILE_SCHEMAS = {
    "cells.jsonl": EVALUATION,
    "predictions.jsonl": PREDICTIONS,
    "samples.jsonl": Schema(
        {"prompt": _GENERATED_TEXT, "": _SAMPLE}, "The run is intact; this sample is skipped.", is_fatal=False
    ),
    "metrics.jsonl": METRICS,
    "metrics-undone.jsonl": replace(METRICS, unique=()),
    "timings.jsonl": Schema(_TIMING, "The run is unharmed; its speed leaves this line out.", is_fatal=False),
    "starts.jsonl": Schema(_START, "The run is unharmed; this start is left out.", is_fatal=False),
}
"""The files of records in the folder of a run, by name; shards of an evaluation have files of the same names."""

"""The schemas of records in files: their fields and allowed values."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from numerate.records.schema import (
    ANY,
    BOOLEAN,
    TEXT,
    Array,
    Check,
    Checksum,
    Either,
    Fields,
    Integer,
    MapOf,
    Number,
    Schema,
    Value,
    checksum,
    one_of,
)

COUNT, INTEGER, NUMBER, NON_NEGATIVE, FRACTION = Integer(), Integer(None), Number(), Number(0), Number(0, 1)
NON_NEGATIVE_OR_INFINITE, OBJECT = Number(0, finite=False), MapOf(ANY)

# Evaluations ----------------------------------------------------------------------------------------------------------

_EVALUATION_KEY: dict[str, Check] = {
    "cell": MapOf(COUNT),
    "checkpoint method stratum?": TEXT,
    "step position_offset": COUNT,
    "settings?": OBJECT,
}
"""The context of a measurement: the grid cell, the checkpoint, and the method."""

_EVALUATION_FIELDS: dict[str, Check] = {
    **_EVALUATION_KEY,
    "count evaluation_seed?": COUNT,
    "seed?": INTEGER,
    "region": one_of("in_distribution", "ood_validation", "ood_test", "100+", "below"),
    "overlaps_training": BOOLEAN,
}

_LABEL_METRICS = Fields(
    {
        "targets_by_position": Array(COUNT),
        "correct_by_position": Array(COUNT, bound_field="targets_by_position"),
        "max_training_labels?": COUNT,
        "ood_accuracy? accuracy? last_label? correct_prefix?": FRACTION,
        "baseline?": OBJECT,
        "target_counts?": MapOf(MapOf(COUNT)),
    }
)


def _is_decimal(value: Any) -> bool:
    try:
        return type(value) is str and Decimal(value).is_finite()
    except InvalidOperation:
        return False


_SUMS = "absolute_error squared_error target target_squared prediction prediction_squared product"
_ERROR_SUMS = Fields({_SUMS: Value("a decimal number as text", _is_decimal)})
_HISTOGRAM = MapOf(COUNT, key_pattern=r"0|\D-?\d+", required_keys=("0",))
_NUMBER_METRICS = Fields(
    {
        "count digits": COUNT,
        "correct missing invalid clipped?": Integer(high="count"),
        "correct_digits": Integer(high="digits"),
        "within": MapOf(Integer(high="count")),
        "linear log": _ERROR_SUMS,
        "error_sketch log_error_sketch": _HISTOGRAM,
        "nonzero?": Integer(high="count"),
        "relative_error?": Value("a decimal number as text", _is_decimal),
        "metrics?": OBJECT,
    }
)
_TEXT_METRICS = Fields(
    {
        "count prediction_words reference_words tokens": COUNT,
        "totals": Array(COUNT),
        "matches": Array(COUNT, bound_field="totals"),
        "rouge": MapOf(NON_NEGATIVE, required_keys=("rouge1", "rouge2", "rougeL")),
        "nll": NUMBER,
        "correct_tokens": Integer(high="tokens"),
        "ended": Integer(high="count"),
        "metrics?": OBJECT,
    }
)
_QUESTION_CELL = Fields(
    {
        **_EVALUATION_FIELDS,
        "correct": Integer(high="count"),
        "low": Number(0, "correct / count"),
        "high": Number("correct / count", 1),
        "names?": MapOf(TEXT),
        "first_token_correct?": Integer(high="count"),
        "digit_accuracy?": FRACTION,
        "first_error_counts?": Array(COUNT),
        "labels?": _LABEL_METRICS,
        "numbers?": _NUMBER_METRICS,
        "numbers_by_digits?": MapOf(_NUMBER_METRICS, key_pattern=r"\d+"),
        "texts?": _TEXT_METRICS,
        "kind? non_causal_reason?": TEXT,
        "scores?": MapOf(Number(0, "count")),
    }
)
_LIKELIHOODS = Fields(
    {
        "nll nll_squared? nll_tokens? nll_bytes? batch_losses?": NON_NEGATIVE,
        "tokens bytes chunks tokens_squared? bytes_squared? batches?": COUNT,
        "correct_tokens": Integer(high="tokens"),
        "batch_exps?": NON_NEGATIVE_OR_INFINITE,
    }
)
_LANGUAGE_MODELING_CELL = Fields(
    {
        **_EVALUATION_FIELDS,
        "cell": MapOf(COUNT, required_keys=("context_length",)),
        "loss bits_per_byte?": NON_NEGATIVE,
        "perplexity?": NON_NEGATIVE_OR_INFINITE,
        "language": _LIKELIHOODS,
        "tokenizer?": TEXT,
    }
)
_OTHER_KIND_CELL = Fields({**_EVALUATION_FIELDS, "kind": TEXT})
"""A record of an `EvaluationKind` outside numerate, with entries of its own."""

EVALUATION = Schema(
    Either(
        "language",
        _LANGUAGE_MODELING_CELL,
        Either("correct", _QUESTION_CELL, Either("kind", _OTHER_KIND_CELL, _QUESTION_CELL)),
    ),
    "Restore the file from a copy, or remove the line: `numerate evaluate` measures its cell again.",
    unique=(
        *("cell", "stratum", "checkpoint", "step", "settings", "position_offset", "count", "evaluation_seed"),
        *("method", "seed"),
    ),
)


def prediction_checksum(line: Mapping[str, Any]) -> str:
    """The checksum of a line of predictions.jsonl: without its checkpoint's name, of which a step may have several, and
    without `correct` in a line with a `row`, for which it is computed again."""
    return checksum(line, ("checkpoint", "correct") if "row" in line else ("checkpoint",))


_EVALUATE_AGAIN = (
    "Remove the line, and that of its cell in evaluation.jsonl if there is one: `numerate evaluate` with the same "
    "settings evaluates again."
)
_PREDICTION = {**_EVALUATION_KEY, "checksum?": Checksum(prediction_checksum)}
_ANSWER = Fields({**_PREDICTION, "question prediction correct_answer": TEXT, "correct ended?": BOOLEAN, "row?": COUNT})
WORKER_PREDICTIONS = Schema(Fields({**_EVALUATION_KEY, "lines": Array(OBJECT)}), _EVALUATE_AGAIN)
PREDICTIONS = Schema(Either("row", _ANSWER, Either("correct_answer", _ANSWER, Fields(_PREDICTION))), _EVALUATE_AGAIN)
SAMPLES = Schema(
    Either(
        "prompt",
        Fields({"prompt text?": TEXT, "step sample? tokens?": COUNT, "seed?": INTEGER}),
        Fields({"cell?": MapOf(COUNT), "question prediction correct_answer? model_text?": TEXT, "correct?": BOOLEAN}),
    ),
    "The run is intact; this sample is skipped.",
    is_fatal=False,
)

# Training -------------------------------------------------------------------------------------------------------------

METRICS = Schema(
    Either(
        "split",
        Fields(
            {
                "step count? tokens?": COUNT,
                "split": TEXT,
                "correct?": Integer(high="count"),
                "exact_match? digit_accuracy? accuracy? token_accuracy? ood_accuracy?": FRACTION,
                "loss? validation_loss?": NUMBER,
                "low?": Number(high="exact_match"),
                "high?": Number("exact_match"),
                "perplexity?": NON_NEGATIVE_OR_INFINITE,
                "bits_per_byte?": NON_NEGATIVE,
            },
            any_of=("exact_match", "loss"),
        ),
        Fields(
            {
                "step examples? tokens?": COUNT,
                "loss": NUMBER,
                "flops? learning_rate? grad_norm?": NON_NEGATIVE,
                "layer_grad_norms?": MapOf(NON_NEGATIVE),
                "padding?": FRACTION,
            }
        ),
    ),
    "The weights are unharmed; curves leave this line out.",
    is_fatal=False,
)
_SPEED = "tokens_per_second? seconds? training_seconds? flops_per_second? flops_utilization?"
TIMINGS = Schema(
    Fields({"step peak_memory_bytes?": COUNT, _SPEED: NON_NEGATIVE}),
    "The run is unharmed; its speed leaves this line out.",
    is_fatal=False,
)
STARTS = Schema(
    Fields({"command? git? hardware?": ANY, "versions? times?": OBJECT}),
    "The run is unharmed; this start is left out.",
    is_fatal=False,
)

RUN_FILE_SCHEMAS = {
    "evaluation.jsonl": EVALUATION,
    "predictions.jsonl": PREDICTIONS,
    "samples.jsonl": SAMPLES,
    "metrics.jsonl": METRICS,
    "metrics-undone.jsonl": METRICS,
    "timings.jsonl": TIMINGS,
    "starts.jsonl": STARTS,
}
"""The files of records in the folder of a run, by name; shards of an evaluation have files of the same names."""

# Studies --------------------------------------------------------------------------------------------------------------


def _is_run_path(value: Any) -> bool:
    return type(value) is str and re.fullmatch(r"(?!/)(?!(.*/)?\.\.(/|$)).+", value) is not None


RUN_PATH = Value("a path below the runs folder, such as recipe/id", _is_run_path)
RERUN_REMEDY = "The runs are unharmed: move the file away, and the same `numerate run` writes it again."

PLAN_HEAD = Schema(Fields({"format runs": COUNT, "sha256": TEXT}), RERUN_REMEDY)
PLAN = Schema(
    Fields({"run": RUN_PATH, "key label base": TEXT, "seed": INTEGER, "recipe? diff?": OBJECT, "current?": BOOLEAN}),
    RERUN_REMEDY,
)

_DURATIONS = Fields({"seconds? ended?": NON_NEGATIVE, "start_step?": COUNT, "worker?": TEXT})
_REGIONS = MapOf(
    Fields(
        {
            "mean?": FRACTION,
            "low?": Number(0, "mean"),
            "high?": Number("mean", 1),
            "cells?": COUNT,
            "labels? answers? language?": OBJECT,
            "non_causal_reason?": TEXT,
        }
    )
)
RESULT = Schema(
    Fields(
        {
            "run": RUN_PATH,
            "key label? stop_reason? failure? error? traceback?": TEXT,
            "status": one_of("done", "failed"),
            "seed?": INTEGER,
            "last_step? worker_deaths? step? extended_from? examples? tokens? best_step?": COUNT,
            "flops? validation_bits_per_byte?": NON_NEGATIVE,
            "loss? validation_loss?": NUMBER,
            "validation_exact_match? ood_validation_exact_match?": FRACTION,
            "validation_perplexity?": NON_NEGATIVE_OR_INFINITE,
            "final? best?": _REGIONS,
            "timing?": _DURATIONS,
        }
    ),
    "The runs are unharmed: remove the line, and the same `numerate run` reads its run again without training it.",
)
WORKER_STATE = Schema(
    Fields(
        {
            "worker host run? label? phase?": TEXT,
            "pid step? steps?": COUNT,
            "heartbeat started?": NON_NEGATIVE,
            "seed?": INTEGER,
            "cells?": Array(COUNT),
            "loss?": NUMBER,
        }
    ),
    "Nothing depends on it: remove the file, and a running worker writes it again.",
    is_fatal=False,
)

# Executors ------------------------------------------------------------------------------------------------------------

_RESUBMIT_REMEDY = (
    "The runs are unharmed: move the folder of this submission away, and the same command submits what is not done yet."
)
_FAILURE = Fields({"kind text traceback?": TEXT, "status?": COUNT})
ITEM = Schema(Fields({"task": COUNT, "name key": TEXT}), _RESUBMIT_REMEDY)
TASK = Schema(
    Either(
        "item",
        Fields({"item": COUNT, "seconds": NON_NEGATIVE, "worker": TEXT, "failure?": _FAILURE, "result?": ANY}),
        Fields({"started?": NON_NEGATIVE, "refused?": _FAILURE, "signal?": TEXT, "finished?": BOOLEAN}),
    ),
    _RESUBMIT_REMEDY,
)
SUBMISSION = Schema(
    Fields({"format items?": COUNT, "cluster host": TEXT, "jobs": Array(TEXT), "started?": Array(ANY)}),
    _RESUBMIT_REMEDY,
)

# Searches: the lines of Optuna's journal ------------------------------------------------------------------------------

JOURNAL = Schema(
    Fields(
        {
            "op_code study_id? trial_id? state? step?": COUNT,
            "worker_id?": TEXT,
            "values?": Array(NUMBER),
            "intermediate_value?": Number(finite=False),
            "user_attr?": Fields({"definition? results? starts?": OBJECT}),
        }
    ),
    "The runs of its trials are unharmed: restore the file from a copy; nothing was changed.",
)

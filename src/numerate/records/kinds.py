"""The schemas of records in files: their fields and allowed values."""

from numerate.records.schema import (
    AnyValue,
    Array,
    Boolean,
    Check,
    DecimalString,
    Either,
    Fields,
    Integer,
    MapOf,
    Number,
    Schema,
    String,
)

ANY, TEXT, BOOLEAN, COUNT, NUMBER = AnyValue(), String(), Boolean(), Integer(), Number()
FRACTION, NON_NEGATIVE, INTEGER, OBJECT = Number(0, 1), Number(0), Integer(None), MapOf(AnyValue())

# Evaluations ----------------------------------------------------------------------------------------------------------

_EVALUATION_KEY: dict[str, Check] = {
    "cell": MapOf(COUNT),
    "checkpoint": TEXT,
    "step": COUNT,
    "position_offset": COUNT,
    "settings?": OBJECT,
    "method": TEXT,
}
"""The context of a measurement: the grid cell, the checkpoint, and the method."""

_EVALUATION_FIELDS: dict[str, Check] = {
    **_EVALUATION_KEY,
    "count": COUNT,
    "seed?": INTEGER,
    "evaluation_seed?": COUNT,
    "region": String(("in_distribution", "ood_validation", "ood_test", "100+", "below")),
    "overlaps_training": BOOLEAN,
}

_LABEL_METRICS = Fields(
    {
        "targets_by_position": Array(COUNT),
        "correct_by_position": Array(COUNT, bound_field="targets_by_position"),
        "max_training_labels?": COUNT,
        "ood_accuracy?": FRACTION,
        "accuracy?": FRACTION,
        "last_label?": FRACTION,
        "correct_prefix?": FRACTION,
        "baseline?": OBJECT,
        "target_counts?": MapOf(MapOf(COUNT)),
    }
)

_ERROR_SUMS = Fields(
    {
        name: DecimalString()
        for name in (
            "absolute_error",
            "squared_error",
            "target",
            "target_squared",
            "prediction",
            "prediction_squared",
            "product",
        )
    }
)
_HISTOGRAM = MapOf(COUNT, key_pattern=r"0|\D-?\d+", required_keys=("0",))

_NUMBER_METRICS = Fields(
    {
        "count": COUNT,
        **{name: Integer(high="count") for name in ("correct", "missing", "invalid")},
        "clipped?": Integer(high="count"),
        "digits": COUNT,
        "correct_digits": Integer(high="digits"),
        "within": MapOf(Integer(high="count")),
        "linear": _ERROR_SUMS,
        "log": _ERROR_SUMS,
        "error_sketch": _HISTOGRAM,
        "log_error_sketch": _HISTOGRAM,
        "metrics?": OBJECT,
    }
)

_TEXT_METRICS = Fields(
    {
        "count": COUNT,
        "totals": Array(COUNT),
        "matches": Array(COUNT, bound_field="totals"),
        "prediction_words": COUNT,
        "reference_words": COUNT,
        "rouge": MapOf(NON_NEGATIVE, required_keys=("rouge1", "rouge2", "rougeL")),
        "nll": NUMBER,
        "tokens": COUNT,
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
        "texts?": _TEXT_METRICS,
        "kind?": TEXT,
        "scores?": MapOf(Number(0, "count")),
        "non_causal_reason?": TEXT,
    }
)

_LIKELIHOODS = Fields(
    {
        "nll": NON_NEGATIVE,
        "tokens": COUNT,
        "bytes": COUNT,
        "correct_tokens": Integer(high="tokens"),
        "chunks": COUNT,
        "nll_squared?": NON_NEGATIVE,
        "nll_tokens?": NON_NEGATIVE,
        "tokens_squared?": COUNT,
        "nll_bytes?": NON_NEGATIVE,
        "bytes_squared?": COUNT,
        "batches?": COUNT,
        "batch_losses?": NON_NEGATIVE,
        "batch_exps?": Number(0, finite=False),
    }
)

_LANGUAGE_MODELING_CELL = Fields(
    {
        **_EVALUATION_FIELDS,
        "cell": MapOf(COUNT, required_keys=("context_length",)),
        "loss": NON_NEGATIVE,
        "perplexity?": Number(0, finite=False),
        "bits_per_byte?": NON_NEGATIVE,
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
    unique=("cell", "checkpoint", "step", "settings", "position_offset", "count", "evaluation_seed", "method", "seed"),
)

_EVALUATE_AGAIN = "Remove the line, and `numerate evaluate` with the same settings evaluates again."
WORKER_PREDICTIONS = Schema(Fields({**_EVALUATION_KEY, "lines": Array(OBJECT)}), _EVALUATE_AGAIN)
PREDICTIONS = Schema(Fields(_EVALUATION_KEY), _EVALUATE_AGAIN)
SAMPLES = Schema(
    Either(
        "prompt",
        Fields({"prompt": TEXT, "step": COUNT, "sample?": COUNT, "text?": TEXT, "tokens?": COUNT, "seed?": INTEGER}),
        Fields(
            {
                "cell?": MapOf(COUNT),
                "question": TEXT,
                "correct_answer?": TEXT,
                "prediction": TEXT,
                "correct?": BOOLEAN,
                "model_text?": TEXT,
            }
        ),
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
                "step": COUNT,
                "split": TEXT,
                "correct?": Integer(high="count"),
                "count?": COUNT,
                "exact_match?": FRACTION,
                "digit_accuracy?": FRACTION,
                "accuracy?": FRACTION,
                "token_accuracy?": FRACTION,
                "ood_accuracy?": FRACTION,
                "loss?": NUMBER,
                "validation_loss?": NUMBER,
                "low?": Number(high="exact_match"),
                "high?": Number("exact_match"),
                "perplexity?": Number(0, finite=False),
                "bits_per_byte?": NON_NEGATIVE,
                "tokens?": COUNT,
            },
            any_of=("exact_match", "loss"),
        ),
        Fields(
            {
                "step": COUNT,
                "examples?": COUNT,
                "tokens?": COUNT,
                "flops?": NON_NEGATIVE,
                "loss": NUMBER,
                "learning_rate?": NON_NEGATIVE,
                "grad_norm?": NON_NEGATIVE,
                "layer_grad_norms?": MapOf(NON_NEGATIVE),
                "padding?": FRACTION,
            }
        ),
    ),
    "The weights are unharmed; curves leave this line out.",
    is_fatal=False,
)
TIMINGS = Schema(
    Fields(
        {
            "step": COUNT,
            "tokens_per_second?": NON_NEGATIVE,
            "seconds?": NON_NEGATIVE,
            "training_seconds?": NON_NEGATIVE,
            "flops_per_second?": NON_NEGATIVE,
            "flops_utilization?": NON_NEGATIVE,
            "peak_memory_bytes?": COUNT,
        }
    ),
    "The run is unharmed; its speed leaves this line out.",
    is_fatal=False,
)
STARTS = Schema(
    Fields({"command?": ANY, "git?": ANY, "hardware?": ANY, "versions?": OBJECT, "times?": OBJECT}),
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

RUN_PATH = String(pattern=r"(?!/)(?!(.*/)?\.\.(/|$)).+", description="a path below the runs folder, such as recipe/id")
RERUN_REMEDY = "The runs are unharmed: move the file away, and the same `numerate run` writes it again."

PLAN_HEAD = Schema(Fields({"format": COUNT, "runs": COUNT, "sha256": TEXT}), RERUN_REMEDY)
PLAN = Schema(
    Fields(
        {
            "run": RUN_PATH,
            "key": TEXT,
            "label": TEXT,
            "seed": INTEGER,
            "base": TEXT,
            "recipe?": OBJECT,
            "diff?": OBJECT,
            "current?": BOOLEAN,
        }
    ),
    RERUN_REMEDY,
)

_DURATIONS = Fields(
    {
        "seconds?": NON_NEGATIVE,
        "ended?": NON_NEGATIVE,
        "start_step?": COUNT,
        "stack_size?": COUNT,
        "worker?": TEXT,
    }
)
_REGIONS = MapOf(
    Fields(
        {
            "mean?": FRACTION,
            "low?": Number(0, "mean"),
            "high?": Number("mean", 1),
            "cells?": COUNT,
            "labels?": OBJECT,
            "answers?": OBJECT,
            "language?": OBJECT,
            "non_causal_reason?": TEXT,
        }
    )
)
RESULT = Schema(
    Fields(
        {
            "run": RUN_PATH,
            "key": TEXT,
            "status": String(("done", "failed")),
            "label?": TEXT,
            "seed?": INTEGER,
            "stop_reason?": TEXT,
            "failure?": TEXT,
            "error?": TEXT,
            "traceback?": TEXT,
            "last_step?": COUNT,
            "worker_deaths?": COUNT,
            "step?": COUNT,
            "examples?": COUNT,
            "tokens?": COUNT,
            "flops?": NON_NEGATIVE,
            "loss?": NUMBER,
            "validation_exact_match?": FRACTION,
            "ood_validation_exact_match?": FRACTION,
            "validation_loss?": NUMBER,
            "validation_perplexity?": Number(0, finite=False),
            "validation_bits_per_byte?": NON_NEGATIVE,
            "best_step?": COUNT,
            "final?": _REGIONS,
            "best?": _REGIONS,
            "timing?": _DURATIONS,
        }
    ),
    "The runs are unharmed: remove the line, and the same `numerate run` reads its run again without training it.",
)
WORKER_STATE = Schema(
    Fields(
        {
            "worker": TEXT,
            "host": TEXT,
            "pid": COUNT,
            "heartbeat": NON_NEGATIVE,
            "started?": NON_NEGATIVE,
            "run?": TEXT,
            "runs?": Array(TEXT),
            "label?": TEXT,
            "seed?": INTEGER,
            "step?": COUNT,
            "steps?": COUNT,
            "phase?": TEXT,
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
_FAILURE = Fields({"kind": TEXT, "text": TEXT, "status?": COUNT, "traceback?": TEXT})
ITEM = Schema(Fields({"task": COUNT, "name": TEXT, "key": TEXT}), _RESUBMIT_REMEDY)
TASK = Schema(
    Either(
        "item",
        Fields({"item": COUNT, "seconds": NON_NEGATIVE, "worker": TEXT, "failure?": _FAILURE, "result?": ANY}),
        Fields({"started?": NON_NEGATIVE, "refused?": _FAILURE, "signal?": TEXT, "finished?": BOOLEAN}),
    ),
    _RESUBMIT_REMEDY,
)
SUBMISSION = Schema(
    Fields(
        {"format": COUNT, "cluster": TEXT, "jobs": Array(TEXT), "started?": Array(ANY), "host": TEXT, "items?": COUNT}
    ),
    _RESUBMIT_REMEDY,
)

# Searches: the lines of Optuna's journal ------------------------------------------------------------------------------

JOURNAL = Schema(
    Fields(
        {
            "op_code": COUNT,
            "worker_id?": TEXT,
            "study_id?": COUNT,
            "trial_id?": COUNT,
            "state?": COUNT,
            "step?": COUNT,
            "values?": Array(NUMBER),
            "intermediate_value?": Number(finite=False),
            "user_attr?": OBJECT,
        }
    ),
    "The runs of its trials are unharmed: restore the file from a copy; nothing was changed.",
)

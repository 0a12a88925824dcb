"""The schemas of records in files: their fields and what these may hold."""

from numerate.records.schema import (
    Anything,
    Check,
    Either,
    Exact,
    Fields,
    Items,
    Mapped,
    Real,
    Schema,
    Text,
    Truth,
    Whole,
)

ANY, TEXT, TRUE, COUNT, NUMBER = Anything(), Text(), Truth(), Whole(), Real()
SHARE, POSITIVE, INTEGER, TABLE = Real(0, 1), Real(0), Whole(None), Mapped(Anything())

# Evaluations ----------------------------------------------------------------------------------------------------------

_PLACE: dict[str, Check] = {
    "cell": Mapped(COUNT),
    "checkpoint": TEXT,
    "step": COUNT,
    "position_offset": COUNT,
    "settings?": TABLE,
    "method": TEXT,
}
"""Where something was measured: the cell of a grid, the checkpoint, and how."""

_MEASURED: dict[str, Check] = {
    **_PLACE,
    "count": COUNT,
    "seed?": INTEGER,
    "questions?": COUNT,
    "region": Text(("in_distribution", "ood_validation", "ood_test", "100+", "below")),
    "seen": TRUE,
}

_LABELS = Fields(
    {
        "asked_at": Items(COUNT),
        "right_at": Items(COUNT, below="asked_at"),
        "trained?": COUNT,
        "unseen?": SHARE,
        "accuracy?": SHARE,
        "last?": SHARE,
        "prefix?": SHARE,
        "floor?": TABLE,
        "wanted?": Mapped(Mapped(COUNT)),
    }
)

_SUMS = Fields(
    {name: Exact() for name in ("error", "squared", "right", "right_squared", "said", "said_squared", "product")}
)
_SIZES = Mapped(COUNT, keys=r"0|\D-?\d+", has=("0",))

_NUMBERS = Fields(
    {
        "asked": COUNT,
        **{name: Whole(high="asked") for name in ("exact", "missing", "invalid")},
        "clipped?": Whole(high="asked"),
        "digits": COUNT,
        "digits_right": Whole(high="digits"),
        "within": Mapped(Whole(high="asked")),
        "linear": _SUMS,
        "log": _SUMS,
        "errors": _SIZES,
        "log_errors": _SIZES,
        "measures?": TABLE,
    }
)

_TEXTS = Fields(
    {
        "count": COUNT,
        "totals": Items(COUNT),
        "matches": Items(COUNT, below="totals"),
        "said_words": COUNT,
        "right_words": COUNT,
        "rouge": Mapped(POSITIVE, has=("rouge1", "rouge2", "rougeL")),
        "nll": NUMBER,
        "tokens": COUNT,
        "tokens_right": Whole(high="tokens"),
        "ended": Whole(high="count"),
        "measures?": TABLE,
    }
)

_CELL = Fields(
    {
        **_MEASURED,
        "correct": Whole(high="count"),
        "low": Real(0, "correct / count"),
        "high": Real("correct / count", 1),
        "names?": Mapped(TEXT),
        "first_correct?": Whole(high="count"),
        "digit_accuracy?": SHARE,
        "first_wrong?": Items(COUNT),
        "labels?": _LABELS,
        "numbers?": _NUMBERS,
        "texts?": _TEXTS,
        "sees_future?": TEXT,
    }
)

_LIKELIHOODS = Fields(
    {
        "nll": POSITIVE,
        "tokens": COUNT,
        "bytes": COUNT,
        "right": Whole(high="tokens"),
        "chunks": COUNT,
        "nll_squared?": POSITIVE,
        "nll_tokens?": POSITIVE,
        "tokens_squared?": COUNT,
        "nll_bytes?": POSITIVE,
        "bytes_squared?": COUNT,
        "batches?": COUNT,
        "batch_losses?": POSITIVE,
        "batch_exps?": Real(0, finite=False),
    }
)

_PORTION = Fields(
    {
        **_MEASURED,
        "cell": Mapped(COUNT, has=("context_length",)),
        "loss": POSITIVE,
        "perplexity?": Real(0, finite=False),
        "bits_per_byte?": POSITIVE,
        "language": _LIKELIHOODS,
        "tokenizer?": TEXT,
    }
)

EVALUATION = Schema(
    Either("language", _PORTION, _CELL),
    "Restore the file from a copy, or remove the line: `numerate evaluate` measures its cell again.",
    unique=("cell", "checkpoint", "step", "settings", "position_offset", "count", "questions", "method", "seed"),
)

_AGAIN = "Remove the line, and `numerate evaluate` with the same settings evaluates again."
ANSWERS = Schema(Fields({**_PLACE, "lines": Items(TABLE)}), _AGAIN)
PREDICTIONS = Schema(Fields(_PLACE), _AGAIN)
SAMPLES = Schema(
    Either(
        "prompt",
        Fields({"prompt": TEXT, "step": COUNT, "sample?": COUNT, "text?": TEXT, "tokens?": COUNT, "seed?": INTEGER}),
        Fields(
            {
                "cell?": Mapped(COUNT),
                "question": TEXT,
                "gold?": TEXT,
                "said": TEXT,
                "right?": TRUE,
                "as_written?": TEXT,
            }
        ),
    ),
    "The run is unharmed; this sample is left out.",
    fatal=False,
)

# Training -------------------------------------------------------------------------------------------------------------

METRICS = Schema(
    Either(
        "split",
        Fields(
            {
                "step": COUNT,
                "split": TEXT,
                "correct?": Whole(high="count"),
                "count?": COUNT,
                "exact?": SHARE,
                "digit_accuracy?": SHARE,
                "accuracy?": SHARE,
                "unseen?": SHARE,
                "loss?": NUMBER,
                "development_loss?": NUMBER,
                "low?": Real(high="exact"),
                "high?": Real("exact"),
                "perplexity?": Real(0, finite=False),
                "bits_per_byte?": POSITIVE,
                "tokens?": COUNT,
            }
        ),
        Fields(
            {
                "step": COUNT,
                "examples?": COUNT,
                "tokens?": COUNT,
                "flops?": POSITIVE,
                "loss?": NUMBER,
                "rate?": POSITIVE,
                "gradient_norm?": POSITIVE,
                "gradient_norms?": Mapped(POSITIVE),
                "padding?": SHARE,
            }
        ),
    ),
    "The weights are unharmed; curves leave this line out.",
    fatal=False,
)
TIMINGS = Schema(
    Fields(
        {
            "step": COUNT,
            "tokens_per_second?": POSITIVE,
            "seconds?": POSITIVE,
            "training_seconds?": POSITIVE,
            "flops_per_second?": POSITIVE,
            "share_of_limit?": POSITIVE,
            "peak_bytes?": COUNT,
        }
    ),
    "The run is unharmed; its speed leaves this line out.",
    fatal=False,
)
STARTS = Schema(
    Fields({"command?": ANY, "git?": ANY, "hardware?": ANY, "versions?": TABLE, "times?": TABLE}),
    "The run is unharmed; this start is left out.",
    fatal=False,
)

OF_A_RUN = {
    "evaluation.jsonl": EVALUATION,
    "predictions.jsonl": PREDICTIONS,
    "samples.jsonl": SAMPLES,
    "metrics.jsonl": METRICS,
    "metrics-undone.jsonl": METRICS,
    "timings.jsonl": TIMINGS,
    "starts.jsonl": STARTS,
}
"""The files of records in the folder of a run, by name; pieces of an evaluation have files of the same names."""

# Studies --------------------------------------------------------------------------------------------------------------

RUN = Text(pattern=r"(?!/)(?!(.*/)?\.\.(/|$)).+", called="a folder below that of all runs, as recipe/id,")
SAME = "The runs are unharmed: move the file away, and the same `numerate run` writes it again."

PLAN_HEAD = Schema(Fields({"format": COUNT, "runs": COUNT, "sha256": TEXT}), SAME)
PLAN = Schema(
    Fields(
        {
            "run": RUN,
            "key": TEXT,
            "label": TEXT,
            "seed": INTEGER,
            "base": TEXT,
            "recipe?": TABLE,
            "differs?": TABLE,
            "current?": TRUE,
        }
    ),
    SAME,
)

_TOOK = Fields({"seconds?": POSITIVE, "at?": POSITIVE, "from?": COUNT, "stack?": COUNT, "worker?": TEXT})
_REGIONS = Mapped(
    Fields(
        {
            "mean?": SHARE,
            "low?": Real(0, "mean"),
            "high?": Real("mean", 1),
            "cells?": COUNT,
            "labels?": TABLE,
            "answers?": TABLE,
            "language?": TABLE,
            "sees_future?": TEXT,
        }
    )
)
RESULT = Schema(
    Fields(
        {
            "run": RUN,
            "key": TEXT,
            "status": Text(("done", "failed")),
            "label?": TEXT,
            "seed?": INTEGER,
            "why?": TEXT,
            "kind?": TEXT,
            "error?": TEXT,
            "trace?": TEXT,
            "reached?": COUNT,
            "deaths?": COUNT,
            "step?": COUNT,
            "examples?": COUNT,
            "tokens?": COUNT,
            "flops?": POSITIVE,
            "loss?": NUMBER,
            "development?": SHARE,
            "beyond-development?": SHARE,
            "development_loss?": NUMBER,
            "development_perplexity?": Real(0, finite=False),
            "development_bits?": POSITIVE,
            "best_step?": COUNT,
            "final?": _REGIONS,
            "best?": _REGIONS,
            "took?": _TOOK,
        }
    ),
    "The runs are unharmed: remove the line, and the same `numerate run` looks at its run again without training it.",
)
STATE = Schema(
    Fields(
        {
            "worker": TEXT,
            "host": TEXT,
            "pid": COUNT,
            "beat": POSITIVE,
            "began?": POSITIVE,
            "run?": TEXT,
            "runs?": Items(TEXT),
            "label?": TEXT,
            "seed?": INTEGER,
            "step?": COUNT,
            "steps?": COUNT,
            "phase?": TEXT,
            "cells?": Items(COUNT),
            "loss?": NUMBER,
        }
    ),
    "Nothing depends on it: remove the file, and the worker writes it again while it lives.",
    fatal=False,
)

# Executors ------------------------------------------------------------------------------------------------------------

_JOBS = (
    "The runs are unharmed: move the folder of this submission away, and the same command submits what is not done yet."
)
_FAILURE = Fields({"kind": TEXT, "text": TEXT, "status?": COUNT, "trace?": TEXT})
ITEM = Schema(Fields({"task": COUNT, "name": TEXT, "key": TEXT}), _JOBS)
TASK = Schema(
    Either(
        "item",
        Fields({"item": COUNT, "seconds": POSITIVE, "worker": TEXT, "failure?": _FAILURE, "result?": ANY}),
        Fields({"began?": POSITIVE, "refused?": _FAILURE, "left?": TEXT, "over?": TRUE}),
    ),
    _JOBS,
)
HANDED = Schema(Either("item", Fields({"item": COUNT}), Fields({"task": COUNT, "state": TEXT})), _JOBS)
SUBMISSION = Schema(
    Fields(
        {"format": COUNT, "cluster": TEXT, "jobs": Items(TEXT), "started": Items(ANY), "host": TEXT, "items?": COUNT}
    ),
    _JOBS,
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
            "values?": Items(NUMBER),
            "intermediate_value?": Real(finite=False),
            "user_attr?": TABLE,
        }
    ),
    "The runs of its trials are unharmed: restore the file from a copy; nothing was changed.",
)

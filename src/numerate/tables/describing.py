"""The runs of a study as people see them: informative columns, and notes on what they mean."""

from typing import TYPE_CHECKING

from numerate.evaluation.answer_metrics import ANSWER_METRICS
from numerate.tables.selecting import RUN_STATUSES, informative_columns

if TYPE_CHECKING:
    from pandas import DataFrame

REGION_NOTE = (
    "final: the last checkpoint; best: the best checkpoint on OOD validation, which therefore has no column for it. "
    "Exact match, mean over the cells of each region."
)
LABEL_NOTE = (
    "ood_accuracy, accuracy, last_label and correct_prefix: metrics of all labels of a region; baseline: the score of "
    "memorizing the trained counts or of the best constant answer."
)
ANSWER_NOTE = (
    "Metrics of numbers and texts are over all questions of a region; those with (mean of modules) after the name are "
    "means over the cells, equally weighted. r2 and mae are of the numbers, log_r2 and log_mae of sign(x) "
    "log10(|x| + 1)."
)
LANGUAGE_NOTE = (
    "final: the last checkpoint; best: the one with the lowest loss on the validation split. For language modeling, "
    "loss is in nats per token and depends on the tokenizer, as perplexity, its exp, does; bits per byte does not. "
    "Intervals (.low, .high) are for sampling of the text; group=label shows the variation over seeds."
)

EXTENDED_NOTE = (
    "extended_from: the budget in steps that a run had before it was extended. Its learning rates, which depend on the "
    "budget, are not those of a new run."
)


def describe_runs(runs: "DataFrame") -> tuple["DataFrame", list[str]]:
    """The identifying columns and results of the runs, and notes, also on missing runs."""
    names, count = list(runs.columns), len(runs)
    shown = runs[informative_columns(runs)]
    is_language_modeling = any(name.endswith(".bits_per_byte") for name in names)
    notes = []
    if any(name.startswith(("final.", "best.")) for name in names):
        notes.append(LANGUAGE_NOTE if is_language_modeling else REGION_NOTE)
    if any(name.endswith(".baseline") for name in names):
        notes.append(LABEL_NOTE)
    if not is_language_modeling and any(name.rpartition(".")[2] in ANSWER_METRICS for name in names):
        notes.append(ANSWER_NOTE)
    if "non_causal_reason" in names:
        reasons = runs["non_causal_reason"].dropna().unique()
        notes += [f"not comparable (non-causal): {reason}" for reason in reasons]
    if "extended_from" in names:
        notes.append(EXTENDED_NOTE)
    if "plan" in names:
        earlier = int((runs["plan"] == "earlier").sum())
        notes.append(f"{earlier:,} of earlier plans, not of the current one; where=plan=current leaves them out")
    statuses = runs["status"].value_counts()
    if statuses.get("done", 0) < count:
        counted = ", ".join(f"{statuses[name]:,} {name}" for name in RUN_STATUSES if name in statuses)
        notes.append(f"{count:,} {'run' if count == 1 else 'runs'}: {counted}")
    if statuses.get("failed", 0):
        notes.append("where=status=failed columns=label,seed,failure,error shows why runs failed")
    return shown, notes

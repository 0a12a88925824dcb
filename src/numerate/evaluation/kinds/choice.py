"""Kinds of evaluation, chosen by name: by the task and its layout, or by a record."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numerate import catalogue
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.task import Task
from numerate.tokenizers.layout import Layout


def kind_of(task: Task, layout: Layout) -> Any:
    """The `EvaluationKind` of a task: the one that it names, otherwise `TokenLabels` for a layout with a label per
    token, `TextAnswers` for questions that are texts in files, and `ExactMatch` for all others."""
    if task.evaluation_kind is not None:
        name = task.evaluation_kind
    elif not layout.is_autoregressive and not layout.has_mask_tokens:
        name = "TokenLabels"
    else:
        has_texts = task.draw(CounterRNG(random_key("cost")), np.arange(1)).texts is not None
        name = "TextAnswers" if has_texts else "ExactMatch"
    return _kind(name)


def kind_of_record(record: Mapping[str, Any]) -> Any:
    """The `EvaluationKind` that wrote a record: the one that it names, otherwise by its entries."""
    names = {"language": "TextLikelihood", "labels": "TokenLabels", "texts": "TextAnswers"}
    return _kind(record.get("kind") or next((name for entry, name in names.items() if entry in record), "ExactMatch"))


def _kind(name: str) -> Any:
    return catalogue.get_class("EvaluationKind", name)()

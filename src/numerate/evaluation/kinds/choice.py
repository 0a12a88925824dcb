"""The kind of evaluation of a task and its layout."""

from typing import Any

import numpy as np

from numerate import catalogue
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.task import Task
from numerate.tokenizers.layout import Layout


def kind_of(task: Task, layout: Layout) -> Any:
    """The `EvaluationKind` of a task: the one that it names, otherwise `TokenLabels` for a layout with a label per
    token, `TextAnswers` for questions that are texts in files, and `ExactMatch` for all others."""
    name = task.named_evaluation_kind()
    if name is None and not layout.is_autoregressive and not layout.has_mask_tokens:
        name = "TokenLabels"
    elif name is None:
        has_texts = task.draw(CounterRNG(random_key("cost")), np.arange(1)).texts is not None
        name = "TextAnswers" if has_texts else "ExactMatch"
    return catalogue.get_class("EvaluationKind", name)()

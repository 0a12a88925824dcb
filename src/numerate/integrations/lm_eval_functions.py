"""What the tasks beside this file call: their questions, and the scores of an answer.

`numerate data write TASK out=FOLDER format=lm-eval` copies this file into the folder. It needs lm-eval alone; where
the package numerate is installed too, the errors of numbers are computed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NUMBER_METRICS = {"number_accuracy": True, "number_digit_accuracy": True, "mae": False, "log_mae": False}
"""The metrics of number answers, which docs/metrics.md of numerate defines, and whether higher is better."""

Pair = tuple[str, str]


def load(file: str, **unused: Any) -> dict[str, Any]:
    """The questions of a file beside this one as the split `test`, and those for few-shot prompts as `train`."""
    from datasets import Dataset

    files = {"test": file, "train": "train.jsonl"}
    texts = {split: Path(__file__).with_name(name).read_text(encoding="utf-8") for split, name in files.items()}
    return {
        split: Dataset.from_list([json.loads(row) for row in text.split("\n")[:-1]]) for split, text in texts.items()
    }


def score_text(doc: Mapping[str, str], results: Sequence[str]) -> dict[str, Any]:
    """Exact match, without the spaces around an answer."""
    return {"exact_match": float(results[0].strip() == doc["answer"].strip())}


def score_number(doc: Mapping[str, str], results: Sequence[str]) -> dict[str, Any]:
    """Exact match, and for each metric of numbers the answer that was generated with the correct one."""
    names = NUMBER_METRICS if find_spec("numerate") is not None else ()
    return score_text(doc, results) | dict.fromkeys(names, (results[0], doc["answer"]))


def _aggregation(name: str) -> Callable[[Sequence[Pair]], float]:
    def aggregate(pairs: Sequence[Pair]) -> float:
        """A metric of the last numbers of the answers; NaN if it is undefined."""
        from numerate.evaluation.number_metrics import NumberScores

        predictions, targets = zip(*pairs, strict=True)
        value = NumberScores.from_texts(predictions, targets).metrics()[name]
        return float("nan") if value is None else value

    return aggregate


number_accuracy, number_digit_accuracy, mae, log_mae = map(_aggregation, NUMBER_METRICS)

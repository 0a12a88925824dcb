"""Tasks of numerate as tasks of lm-evaluation-harness: a folder for `lm_eval --include_path`. See docs/lm-eval.md."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from numerate.config import to_tree, yaml_text
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import cell_questions
from numerate.evaluation.grid import Cell
from numerate.evaluation.numbers_in_texts import last_number
from numerate.integrations import lm_eval_functions as functions
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Questions
from numerate.tasks.task import Task
from numerate.text.data.new_folder import atomic_folder
from numerate.training.provenance import versions

MAX_CELLS = 400
"""Every cell is a task, with a row in the table of lm-eval."""

NUM_TRAINING_EXAMPLES = 64
"""Questions of the training split, from which few-shot examples are drawn: those of the cells, or of all sizes of
training if fewer than a quarter of them are in no test."""

_EXTRA_TOKENS = 10
"""Tokens that may be generated beyond the bytes of the longest answer, so that an answer that does not end is wrong."""

_SETTINGS = Template("""# Settings of all tasks in this folder. Another prompt is, for example:
# doc_to_text: "Question: {{question}}\\nAnswer:"
custom_dataset: !function $functions.load
training_split: train
fewshot_split: train
test_split: test
doc_to_text: question
doc_to_target: answer
target_delimiter: $delimiter
fewshot_delimiter: "\\n\\n"
output_type: generate_until
generation_kwargs: {do_sample: false, temperature: 0.0, max_gen_toks: $max_tokens, until: [$until]}
process_results: !function $functions.$score
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""")
_NUMBER_METRIC = Template("  - {metric: $name, aggregation: !function $functions.$name, higher_is_better: $higher}\n")


class Pair(NamedTuple):
    """A question and its answer in plain notation."""

    question: str
    answer: str


def write_tasks(
    task: Task,
    cells: Sequence[Cell],
    out: Path,
    name: str,
    *,
    count: int = 100,
    seed: int = 0,
    split: str = "test",
    on_progress: Callable[[int], None] | None = None,
) -> str:
    """Writes a task of lm-evaluation-harness for each cell, and the group `numerate_NAME` of them; returns its name.

    The questions of a cell are those of `numerate evaluate` with this `count` and `seed`, in plain notation. Few-shot
    examples are questions of the training split that are in no cell. The folder is created by one rename; `on_progress`
    gets the number of cells after each. Raises `UserError` for more than `MAX_CELLS` cells, and if `out` exists.
    """
    if len(cells) > MAX_CELLS:
        raise UserError(
            f"grid: {len(cells):,} cells would be as many tasks; must be at most {MAX_CELLS}, "
            "for example grid=1:5x1:5 or grid=diagonal:1:40"
        )
    group = f"numerate_{_slug(name)}"
    labels: list[str] = []
    tested: list[Pair] = []
    training: list[Pair] = []
    with atomic_folder(out) as folder:
        for cell in cells:
            cell_task = task.at_cell(**dict(cell))
            label = "x".join(_slug(task.cell_name(axis, size)) for axis, size in cell) or "all"
            labels.append(f"{label}_{len(labels) + 1}" if label in labels else label)
            pairs = _pairs(cell_questions(task, dict(cell), count=count, seed=seed, split=split))
            _write_cell(folder, group, labels[-1], pairs, overlaps_training=not cell_task.is_held_out(split))
            tested += pairs
            training += _pairs(cell_task.examples("train", seed, 0, -(-NUM_TRAINING_EXAMPLES // len(cells))))
            if on_progress is not None:
                on_progress(len(labels))
        if len(few_shot := _untested(training, tested)) < NUM_TRAINING_EXAMPLES // 4:
            few_shot = _untested(_pairs(task.examples("train", seed, 0, NUM_TRAINING_EXAMPLES)), tested)
        _write_rows(folder / "train.jsonl", few_shot)
        (folder / "settings").write_text(_settings(tested), encoding="utf-8")
        shutil.copyfile(functions.__file__, folder / Path(functions.__file__).name)
        group_settings = {
            "group": group,
            "task": [f"{group}_{label}" for label in labels],
            "aggregate_metric_list": [{"metric": "exact_match", "aggregation": "mean", "weight_by_size": True}],
            "metadata": {"version": 1.0, "numerate": dict(versions()), "task": to_tree(task), "seed": seed},
        }
        (folder / "group.yaml").write_text(yaml_text(group_settings), encoding="utf-8")
    return group


def _write_cell(folder: Path, group: str, label: str, pairs: Sequence[Pair], *, overlaps_training: bool) -> None:
    _write_rows(folder / f"{label}.jsonl", pairs)
    settings = {
        "include": "settings",
        "task": f"{group}_{label}",
        "task_alias": label,
        "dataset_kwargs": {"file": f"{label}.jsonl"},
        "metadata": {"version": 1.0, "overlaps_training": overlaps_training},
    }
    (folder / f"{label}.yaml").write_text(yaml_text(settings), encoding="utf-8")


def _pairs(questions: Questions) -> list[Pair]:
    """Questions and answers in plain notation; of labels, a line of words and below it a line of their labels."""
    pairs = [Pair(*format_question(questions, row)) for row in range(len(questions))]
    return pairs if questions.labels is None else [Pair(f"{pair.question}\n", pair.answer) for pair in pairs]


def _untested(pairs: Sequence[Pair], tested: Sequence[Pair]) -> list[Pair]:
    """Each question once that is not tested."""
    questions = {pair.question for pair in tested}
    return [pair for pair in dict.fromkeys(pairs) if pair.question not in questions]


def _settings(pairs: Sequence[Pair]) -> str:
    answers = [pair.answer for pair in pairs]
    has_numbers = any(last_number(answer).value is not None for answer in answers)
    text = _SETTINGS.substitute(
        functions=(module := Path(functions.__file__).stem),
        delimiter=json.dumps("" if pairs[0].question.endswith(("=", "\n")) else " "),
        max_tokens=max(len(answer.encode()) for answer in answers) + _EXTRA_TOKENS,
        until=json.dumps("\n\n" if any("\n" in answer for answer in answers) else "\n"),
        score="score_number" if has_numbers else "score_text",
    )
    metrics = functions.NUMBER_METRICS.items() if has_numbers else ()
    return text + "".join(
        _NUMBER_METRIC.substitute(name=name, functions=module, higher=json.dumps(higher)) for name, higher in metrics
    )


def _write_rows(path: Path, pairs: Sequence[Pair]) -> None:
    path.write_text("".join(f"{json.dumps(pair._asdict(), ensure_ascii=False)}\n" for pair in pairs), encoding="utf-8")


def _slug(name: str) -> str:
    """A name with letters, digits and single underscores alone."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")

"""Asks a model the questions of the benchmark: a Hugging Face model in words, a run those that its task can have."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from numerate.bench.results import BenchResult, SetResult
from numerate.bench.test_sets import NUM_EXAMPLES, TestSet
from numerate.config import override
from numerate.errors import UserError
from numerate.evaluation.kinds.generated_answers import with_correct
from numerate.evaluation.samples import sample_answers
from numerate.experiments.pretrained_run import pretrained_run
from numerate.experiments.run import Run
from numerate.tasks.questions import Questions
from numerate.text.tokenizers.subwords import Subwords
from numerate.training import disk, provenance
from numerate.training.recipe import Recipe
from numerate.training.run_folder import resolve_runs_dir

Evaluate = Callable[[Run, str, int | None], object]
"""Evaluates the run of a set with a name on so many questions."""


def bench_model(
    recipe: Recipe,
    sets: Sequence[TestSet],
    *,
    count: int | None = None,
    settings: Sequence[str] = (),
    runs_dir: str | Path | None = None,
    device: str | None = None,
    evaluate: Evaluate = lambda run, name, count: run.evaluate(count=count),
) -> BenchResult:
    """The results of the model of a `hugging_face_recipe`, or of a run's recipe with texts, after few-shot examples.

    Each set is a run in `runs_dir`, whose answers are kept, so that the same call resumes; `count` questions of each
    are asked, by default all. Raises `UserError` as `pretrained_run` does.
    """
    folder = resolve_runs_dir(runs_dir) / "bench-v1"
    _ = [test_set.content for test_set in sets]  # what is missing is named before anything is asked
    results = {}
    for test_set in sets:
        run = pretrained_run(_set_recipe(recipe, test_set, folder, settings), runs_dir=runs_dir, device=device)
        evaluate(run, test_set.name, count)
        answers = _answers(run)
        asked = [line for line in test_set.questions if line["question"] in answers]
        results[test_set.name] = SetResult(
            test_set.sha256,
            _count_cells((line["cell"], answers[line["question"]]["correct"]) for line in asked),
            [answers[line["question"]]["prediction"] for line in asked],
            sum(answers[line["question"]].get("ended", True) for line in asked) / len(asked),
        )
    weights = {name: getattr(recipe.model, name, None) for name in ("weights", "revision")}
    if Path(str(weights["weights"])).is_dir():
        weights["weights"] = Path(str(weights["weights"])).name
    return BenchResult({"name": recipe.title, **weights, "versions": provenance.versions()}, list(settings), results)


def bench_run(run: Run, sets: Sequence[TestSet], *, checkpoint: str = "final") -> BenchResult:
    """The results of a run on the sets that its task can read, such as sums; numbers are written as in training.

    A question with more positions than the model has counts as wrong, and has no prediction. Raises `UserError` if the
    task can read none.
    """
    if isinstance(run.recipe.tokenizer, Subwords):
        raise UserError(
            f"bench v1: {run.path} is a run of texts; export it, and name the folder: `numerate export {run.folder.id} "
            "out=exported`, `numerate bench v1 hf:exported`"
        )
    model = run.load_model(checkpoint)
    results: dict[str, SetResult] = {}
    for test_set in sets:
        if not _can_read(run, test_set):
            continue
        counts: dict[str, tuple[int, int]] = {}
        predictions: list[str | None] = []
        num_ended = 0
        for cell, lines in test_set.cells.items():
            questions = Questions.concatenate([run.recipe.task.parse_question(line["plain"]) for line in lines])
            try:
                run.untrained_model.check_tokens(run.evaluation_data.batch(questions).tokens)
            except UserError:  # it has no positions for them
                counts[cell] = (0, len(lines))
                predictions += [None] * len(lines)
                continue
            samples = sample_answers(model, run.evaluation_data, questions)
            counts[cell] = (sum(bool(sample.correct) for sample in samples), len(samples))
            predictions += [sample.prediction for sample in samples]
            num_ended += sum(sample.ended for sample in samples)
        results[test_set.name] = SetResult(test_set.sha256, counts, predictions, num_ended / len(predictions))
    if not results:
        raise UserError(f"bench v1: {type(run.recipe.task).__name__} can read no question of these sets")
    step = run.checkpoints(checkpoint)[0].step
    name = run.recipe.name or run.recipe.title
    return BenchResult(
        {"name": name, "id": run.folder.id, "step": step, "versions": provenance.versions()}, [], results
    )


def _set_recipe(recipe: Recipe, test_set: TestSet, folder: Path, settings: Sequence[str]) -> Recipe:
    """The recipe of a model with a set as its task, whose files are written into a folder."""
    files = {"train": test_set.examples, "test": test_set.questions}
    paths = {name: folder / f"{test_set.name}.{name}.jsonl" for name in files}
    for name, lines in files.items():
        texts = [json.dumps({key: line[key] for key in ("question", "answer")}) + "\n" for line in lines]
        content = "".join(texts).encode()
        if not paths[name].is_file() or paths[name].read_bytes() != content:
            disk.make_folder(folder)
            disk.write_atomically(paths[name], content)
    task = f"QuestionFiles(train_file={paths['train']},test_files=[{paths['test']}],validation_fraction=0)"
    generation = [
        f"evaluation.generation.num_fewshot={NUM_EXAMPLES}",
        f"evaluation.generation.max_new_tokens={test_set.max_new_tokens}",
    ]
    found = override(recipe, [f"task={task}", *generation, *settings])
    assert isinstance(found, Recipe)
    return found


def _answers(run: Run) -> dict[str, dict[str, Any]]:
    """The answers of a run by the question's text."""
    lines, generation = run.folder.records("predictions.jsonl"), run.evaluation_data.generation
    return {line["question"]: with_correct(generation, line) for line in lines if "question" in line}


def _count_cells(answers: Iterable[tuple[str, bool]]) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for cell, correct in answers:
        before = counts.get(cell, (0, 0))
        counts[cell] = (before[0] + bool(correct), before[1] + 1)
    return counts


def _can_read(run: Run, test_set: TestSet) -> bool:
    """Whether the task of a run can have the questions of a set."""
    if test_set.word_problems or (plain := test_set.questions[0].get("plain")) is None:
        return False
    try:
        run.recipe.task.parse_question(plain)
    except UserError:
        return False
    return True

"""Kinds of evaluation of questions with answers: exact match, and answers that are texts."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from numerate.batch import Model
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import (
    EXTRA_TEXT_TOKENS,
    EvaluationData,
    cell_questions,
    make_batches,
    question_facts,
)
from numerate.evaluation.evaluator import CellRequest, Method
from numerate.evaluation.exact_match import predict
from numerate.evaluation.grid import OOD_REGIONS, Cell, cell_entries
from numerate.evaluation.kinds.kind import EvaluationKind
from numerate.evaluation.samples import sample_answers
from numerate.evaluation.statistics import wilson_interval
from numerate.evaluation.text_answers import AnswerScorer
from numerate.evaluation.text_metrics import require_text_packages
from numerate.tasks.questions import Questions
from numerate.tasks.task import Task

MAX_SAMPLED_SIZE = 500
"""Of larger sizes, reports have no sample answers that would be decoded for them, which takes minutes."""


class AnswerKind(EvaluationKind, ABC):
    """Questions with answers, each correct or wrong as a whole, and additional scores that the kind defines.

    For a causal model whose answers have one tokenization, greedy decoding gives the correct answer if and only if
    every argmax is correct with teacher forcing, so one forward pass scores a whole batch. Otherwise, and for kinds
    with `columns` or `always_decodes`, answers are decoded token by token; `numbers` in the record then has the errors
    of the numeric ones as sums (`numerate.evaluation.number_metrics`), and `scores` the sums of `score_answer`.
    """

    always_decodes: ClassVar[bool] = False

    def score_answer(self, question: str, correct_answer: str, prediction: str) -> Mapping[str, float]:
        """The scores of one decoded answer, from 0 to 1, one for each name in `columns`; all texts in plain format."""
        return {}

    def resolve_method(self, evaluation_data: EvaluationData, requested: Method) -> Method:
        layout = evaluation_data.layout
        if not layout.is_autoregressive:
            if requested != "one pass":
                raise UserError(
                    f"method: must be 'one pass', not {requested!r}, since layout={type(layout).__name__} predicts all "
                    "positions in one forward pass"
                )
            return requested
        decodes = self.always_decodes or self.columns or not evaluation_data.tokenizer.has_unique_tokenization
        return "decoding" if requested == "one pass" and decodes else requested

    def check_causal(self, model: Model, evaluation_data: EvaluationData) -> str | None:
        return super().check_causal(model, evaluation_data) if evaluation_data.layout.is_autoregressive else None

    def score(self, model: Model, evaluation_data: EvaluationData, request: CellRequest) -> dict[str, Any]:
        """The record of one cell. `first_error_counts` counts, for each position of the answer, the questions whose
        first wrong token is there; `digit_accuracy` is the share of target digits that are correct, in one forward pass
        with teacher forcing, when decoding after the model's own tokens.

        Raises `UserError` for a cell that the task does not have, and if a non-causal model would have to decode.
        """
        reason = self.check_causal(model, evaluation_data)
        cell, count, seed, position_offset, method, split = request
        method = self.resolve_method(evaluation_data, method)
        task = evaluation_data.task
        questions = cell_questions(task, cell, count=count, seed=seed, split=split)
        scorer = self.cell_scorer(evaluation_data, questions, method)
        num_correct = num_digits = num_correct_digits = 0
        first_errors: list[np.ndarray] = []
        for batch in make_batches(evaluation_data, questions, model):
            predictions = predict(
                model, evaluation_data, batch, position_offset, method=method, extra_tokens=self.extra_tokens
            )
            if scorer is not None:
                scorer.add(model, batch, predictions, position_offset)
            matches = predictions.match_counts
            num_correct += int(matches.correct.sum())
            num_digits += matches.num_digits
            num_correct_digits += matches.num_correct_digits
            first_errors.append(matches.first_error.cpu().numpy())
        first_error, num_questions = np.concatenate(first_errors), len(questions)
        token_scores = {
            "first_token_correct": num_questions - int((first_error == 0).sum()),
            "digit_accuracy": round(num_correct_digits / num_digits, 6) if num_digits else None,
            "first_error_counts": np.bincount(first_error[first_error >= 0]).tolist(),
        }
        details = ({} if scorer is None else scorer.record()) | ({"non_causal_reason": reason} if reason else {})
        return cell_record(task, request, method, num_correct, num_questions, token_scores, details)

    def cell_scorer(self, evaluation_data: EvaluationData, questions: Questions, method: Method) -> AnswerScorer | None:
        """What collects the answers, batch by batch, and adds to the record; None if nothing does. With mask tokens
        (`MaskedLM`) the whole answer is predicted from masks at once, so that predictions are the model's own, as in
        decoding."""
        if method == "one pass" and not evaluation_data.layout.has_mask_tokens:
            return None
        score = self.checked_scores if self.columns else None
        return AnswerScorer(evaluation_data.tokenizer, evaluation_data.vocabulary, questions, score)

    def predict(self, model: Model, evaluation_data: EvaluationData, request: CellRequest) -> list[dict[str, Any]]:
        cell, count, seed, position_offset, method, split = request
        questions = cell_questions(evaluation_data.task, cell, count=count, seed=seed, split=split)
        samples = sample_answers(model, evaluation_data, questions, position_offset, method=method)
        facts = question_facts(evaluation_data.task, questions)
        lines = [sample.record(cell) | fact for sample, fact in zip(samples, facts, strict=True)]
        for line, one in zip(lines, samples, strict=True):
            if self.columns:
                line["scores"] = self.checked_scores(one.question, one.correct_answer or "", one.prediction)
        return lines

    def checked_scores(self, question: str, correct_answer: str, prediction: str) -> dict[str, float]:
        """The scores of `score_answer`. Raises `UserError` for a column without a score from 0 to 1."""
        scores = self.score_answer(question, correct_answer, prediction)
        for name in self.columns:
            score = scores.get(name)
            if not isinstance(score, int | float) or not 0 <= score <= 1:
                where = f"{type(self).__name__}.score_answer({question!r}, {correct_answer!r}, {prediction!r})"
                raise UserError(f"{where}: {name} must be a number from 0 to 1, not {score!r}")
        return {name: float(scores[name]) for name in self.columns}

    def sample_cells(self, cells: Mapping[Cell, str]) -> list[Cell]:
        """The largest in distribution, then the smallest, middle and largest out of distribution; of sizes up to
        `MAX_SAMPLED_SIZE` where answers are not kept anyway."""
        sizes = {cell: cell_entries(cell)["cell"].values() for cell in cells}
        fitting = [cell for cell in cells if self.keeps_predictions or max(sizes[cell], default=0) <= MAX_SAMPLED_SIZE]
        equal_sizes = [cell for cell in fitting if len({size for _, size in cell}) == 1]
        trained = [cell for cell in equal_sizes if cells[cell] == "in_distribution"]
        ood = [cell for name in OOD_REGIONS for cell in equal_sizes if cells[cell] == name]
        selected = trained[-1:] + ood[:1] + ood[len(ood) // 2 : len(ood) // 2 + 1] + ood[-1:]
        return list(dict.fromkeys(selected)) or fitting[:1]

    def validation_method(self, evaluation_data: EvaluationData) -> Method:
        """How validation questions are answered: decoded only for kinds with columns, since it takes longer."""
        return self.resolve_method(evaluation_data, "one pass") if self.columns else "one pass"

    def validation_scorer(self, evaluation_data: EvaluationData, questions: Questions) -> AnswerScorer | None:
        """The scorer of the answers to validation questions, of which the best checkpoint has the highest mean of the
        first column; None for kinds without columns, and for layouts that predict no answers."""
        if not self.columns:
            return None
        return AnswerKind.cell_scorer(self, evaluation_data, questions, self.validation_method(evaluation_data))


def cell_record(
    task: Task,
    request: CellRequest,
    method: Method,
    num_correct: int,
    num_questions: int,
    token_scores: Mapping[str, Any],
    details: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of a cell: how many answers are correct, with the interval, scores by token, and further entries."""
    cell = request.cell
    low, high = wilson_interval(num_correct, num_questions)
    names = {axis: name for axis, size in cell.items() if (name := task.cell_name(axis, size)) != str(size)}
    return {
        "cell": dict(cell),
        **({"names": names} if names else {}),
        "correct": num_correct,
        "count": num_questions,
        "low": round(float(low), 6),
        "high": round(float(high), 6),
        **token_scores,
        "position_offset": request.position_offset,
        "overlaps_training": not (task.at_cell(**cell) if cell else task).is_held_out(request.split),
        "method": method,
        **details,
    }


@dataclass(frozen=True)
class ExactMatch(AnswerKind):
    """Answers that are correct if all of their tokens are."""


@dataclass(frozen=True)
class TextAnswers(AnswerKind):
    """Texts in files: exact match, BLEU, ROUGE, the likelihood of the answers, and errors of their numbers."""

    always_decodes: ClassVar[bool] = True
    extra_tokens: ClassVar[int] = EXTRA_TEXT_TOKENS
    loss_breaks_ties: ClassVar[bool] = True  # of checkpoints with equal accuracy, that of lower loss is the best

    def resolve_method(self, evaluation_data: EvaluationData, requested: Method) -> Method:
        require_text_packages()
        return super().resolve_method(evaluation_data, requested)

"""The kind of evaluation of pretrained models: answers that are generated freely, compared by their number or text."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from numerate.batch import Batch, Model
from numerate.errors import UserError
from numerate.evaluation.completions import GeneratedText
from numerate.evaluation.evaluation_data import (
    MAX_TOKENS_PER_BATCH,
    EvaluationData,
    cell_questions,
    extract_prompts,
    question_facts,
)
from numerate.evaluation.evaluator import CellRequest, Method, PredictionLog
from numerate.evaluation.generate import CachedDecoder, decode_tokens
from numerate.evaluation.generation_settings import Generation
from numerate.evaluation.kinds.answers import AnswerKind, cell_record
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.numbers_in_texts import SPECIAL_TOKEN, answer_number, correct_number, extract_answer
from numerate.evaluation.text_answers import decode_row
from numerate.tasks.plain import plain_examples
from numerate.tasks.questions import Questions
from numerate.vocabulary import BOS, EOS, PAD, UNK


@dataclass(frozen=True)
class GeneratedAnswers(AnswerKind):
    """Freely generated answers, as of pretrained models: correct if their number, or their text, is the right one.

    The answer of a text is what `Generation.answer_pattern` finds, or the whole text. Where that of the correct text is
    a number, perhaps with a unit, the number of the predicted one must equal it (`numbers_in_texts`); any other answer
    must be the same text, up to case, spaces, special tokens and a full stop at its end. Predictions are kept as they
    are generated, so that an interrupted evaluation resumes within a cell.
    """

    keeps_predictions: ClassVar[bool] = True
    loss_breaks_ties: ClassVar[bool] = True

    columns: ClassVar[Mapping[str, str]] = {
        "ended": "answers that ended by themselves, before max_new_tokens",
    }

    def resolve_method(self, evaluation_data: EvaluationData, requested: Method) -> Method:
        if requested == "beams":
            raise UserError("method: must be decoding where answers are generated freely, not beams")
        return "decoding"

    def validation_method(self, evaluation_data: EvaluationData) -> Method:
        return "one pass"

    def check_request(
        self, model: Model, evaluation_data: EvaluationData, request: CellRequest
    ) -> tuple[Questions, int]:
        """The questions of a cell, and the largest number of tokens that is read and generated for one of them."""
        self.check_causal(model, evaluation_data)
        cell, count, seed, *_, split = request
        questions = cell_questions(evaluation_data.task, cell, count=count, seed=seed, split=split)
        return questions, _check_lengths(model, evaluation_data, questions)

    def score(
        self, model: Model, evaluation_data: EvaluationData, request: CellRequest, log: PredictionLog | None = None
    ) -> dict[str, Any]:
        """`numbers` has the errors of answers that are numbers, `numbers_by_digits` those for each number of digits of
        the correct number before its decimal point."""
        lines = self.predict(model, evaluation_data, request, log)
        pattern, by_digits = get_generation(evaluation_data).answer_pattern, defaultdict[int, list[Any]](list)
        for line in lines:
            if (target := correct_number(line["correct_answer"], pattern)) is not None:
                by_digits[len(str(abs(int(target))))].append((answer_number(line["prediction"], pattern), target))

        def numbers(pairs: Sequence[Any]) -> dict[str, Any]:
            return NumberScores.from_numbers(*zip(*pairs, strict=True)).to_record()

        names = [name for name in self.columns if name in lines[0]]
        details: dict[str, Any] = {"scores": {name: round(sum(line[name] for line in lines), 6) for name in names}}
        if by_digits:
            details["numbers"] = numbers([pair for pairs in by_digits.values() for pair in pairs])
            details["numbers_by_digits"] = {str(digits): numbers(by_digits[digits]) for digits in sorted(by_digits)}
        num_correct = sum(line["correct"] for line in lines)
        method = self.resolve_method(evaluation_data, request.method)
        return cell_record(evaluation_data.task, request, method, num_correct, len(lines), {}, details)

    def predict(
        self, model: Model, evaluation_data: EvaluationData, request: CellRequest, log: PredictionLog | None = None
    ) -> list[dict[str, Any]]:
        """The lines of predictions.jsonl: those of the log, and the others as they are generated."""
        generation = get_generation(evaluation_data)
        questions, num_tokens = self.check_request(model, evaluation_data, request)
        lines = {} if log is None else {row: with_correct(generation, line) for row, line in log.lines.items()}
        rows_per_batch = max(1, MAX_TOKENS_PER_BATCH // num_tokens)
        for start in range(0, len(questions), rows_per_batch):
            part = questions.take(slice(start, start + rows_per_batch))
            rows = range(start, start + len(part))
            if all(row in lines for row in rows):
                continue
            batch = evaluation_data.batch(part, start).to(next(model.parameters()).device)
            answers = generate_texts(model, evaluation_data, batch, request.position_offset)
            new_lines = {
                row: {
                    "cell": dict(request.cell),
                    "row": row,
                    "question": example.question,
                    "correct_answer": example.answer,
                    **facts,
                    **answer,
                    "correct": is_correct(generation, answer["prediction"], example.answer),
                }
                for row, example, facts, answer in zip(
                    rows, plain_examples(part), question_facts(evaluation_data.task, part), answers, strict=True
                )
                if row not in lines
            }
            if log is not None:
                log.add(list(new_lines.values()))
            lines |= new_lines
        return [lines[row] for row in range(len(questions))]


def get_generation(evaluation_data: EvaluationData) -> Generation:
    assert evaluation_data.generation is not None, "the evaluation has no `generation`"
    return evaluation_data.generation


def _check_lengths(model: Model, evaluation_data: EvaluationData, questions: Questions) -> int:
    """The largest number of tokens that is read and generated for one of these questions. Raises `UserError` if the
    model has no positions for them."""
    batch = evaluation_data.batch(questions)
    generation, limit = get_generation(evaluation_data), model.max_length()
    prompt_lengths = extract_prompts(batch)[0].lengths
    lengths = prompt_lengths + generation.max_new_tokens - 1  # the last token is not read
    longest = int(lengths.max())
    if limit is not None and longest > limit:
        settings = "a smaller evaluation.generation.max_new_tokens="
        settings += " or evaluation.generation.num_fewshot=" * bool(evaluation_data.few_shot_examples)
        raise UserError(
            f"evaluation.generation: {int((lengths > limit).sum()):,} of {len(questions):,} prompts are too long: they "
            f"have up to {int(prompt_lengths.max()):,} tokens, an answer up to {generation.max_new_tokens:,}, and the "
            f"model has {limit:,} positions; set {settings}"
        )
    question_limit = evaluation_data.tokenizer.max_question_length()
    question_tokens = int((prompt_lengths if batch.source is None else batch.source.lengths).max())
    if evaluation_data.few_shot_examples and question_limit is not None and question_tokens >= question_limit:
        raise UserError(
            f"evaluation.generation.num_fewshot: must be less than {generation.num_fewshot}: the longest prompt has "
            f"more than the {question_limit:,} tokens of tokenizer.max_length, and would lose its question"
        )
    return longest + (0 if batch.source is None else batch.source.ids.shape[1])


@torch.no_grad()
def generate_texts(
    model: Model, evaluation_data: EvaluationData, batch: Batch, position_offset: int = 0
) -> list[dict[str, Any]]:
    """The `prediction` for each question of a batch by greedy decoding, and whether it `ended` before `max_new_tokens`:
    with an end token of the tokenizer or of the model, with one of the texts (or special tokens) in `Generation.stop`,
    or after few-shot examples with the next question; these are no part of it."""
    vocabulary, generation = evaluation_data.vocabulary, get_generation(evaluation_data)
    own_stops = [text.replace(r"\n", "\n") for text in generation.stop]
    has_next_question = generation.stop_at_next_question and evaluation_data.few_shot_examples
    next_question = evaluation_data.tokenizer.stop_texts() if has_next_question else ()
    stops = [*own_stops, *next_question]
    decode = partial(evaluation_data.tokenizer.decode, vocabulary=vocabulary)
    texts = [GeneratedText(decode, (), stops) for _ in batch.targets]
    ids, end_ids = vocabulary.pretrained_ids, [EOS]
    if ids is not None and ids[EOS] >= 0:  # others may be the same one, as GPT-2's <|endoftext|> is [BOS] too
        end_ids = [i for i in (EOS, PAD, UNK, BOS) if ids[i] == ids[EOS]]
    end_ids += [vocabulary.token_to_id[text] for text in own_stops if text in vocabulary.token_to_id]
    without_row = [] if ids is None else [i for i in (PAD, UNK, BOS) if ids[i] < 0]  # which are never generated
    excluded = torch.tensor(without_row, dtype=torch.long, device=batch.targets.device)

    def next_token(logits: Tensor, step: int) -> Tensor:
        return logits.index_fill(-1, excluded, -torch.inf).argmax(-1)

    def on_tokens(tokens: Sequence[int | None]) -> list[int]:
        for text, token in zip(texts, tokens, strict=True):
            if token is not None:
                text.add(token)
        return [row for row, text in enumerate(texts) if text.is_stopped]

    prompts, _ = extract_prompts(batch)
    output = decode_tokens(
        model,
        CachedDecoder(model, prompts, generation.max_new_tokens, batch.source, position_offset),
        next_token,
        len(batch.targets),
        generation.max_new_tokens,
        [*end_ids, *model.other_end_ids],
        on_tokens=on_tokens if stops else None,
    )
    output.check_finite()
    ended, answers = output.has_stop_token.tolist(), []
    for row, (ids, length) in enumerate(zip(output.ids.tolist(), output.lengths.tolist(), strict=True)):
        row_ids = ids[: length - ended[row]]
        text = decode_row(evaluation_data.tokenizer, vocabulary, row_ids, output.number_values, row)
        answer = text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
        answers.append({"prediction": answer.strip(), "ended": ended[row] or len(answer) < len(text)})
    return answers


def is_correct(generation: Generation, prediction: str, correct_answer: str) -> bool:
    """Whether a generated text has the correct answer.

    >>> is_correct(Generation(), "So it is $1,000.", "1000"), is_correct(Generation(), "-3*x + 5", "5")
    (True, True)
    >>> is_correct(Generation(), "True.", "true"), is_correct(Generation(), "5", "-3*x + 5")
    (True, False)
    """
    pattern = generation.answer_pattern
    if (number := correct_number(correct_answer, pattern)) is not None:
        return answer_number(prediction, pattern).value == number
    answer, correct = (_normalize(extract_answer(text, pattern)) for text in (prediction, correct_answer))
    return answer == correct


def with_correct(generation: Generation | None, line: Mapping[str, Any]) -> dict[str, Any]:
    """A stored answer with `correct` computed again from its texts, if it was generated freely (it has a `row`)."""
    if generation is None or "row" not in line:
        return dict(line)
    return {**line, "correct": is_correct(generation, line["prediction"], line["correct_answer"])}


def _normalize(text: str) -> str:
    return " ".join(re.sub(SPECIAL_TOKEN, " ", text).split()).removesuffix(".").casefold()

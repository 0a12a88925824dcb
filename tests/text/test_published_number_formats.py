"""What the published arithmetic system writes, line for line, and what it could not."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerate.config import Span
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.bitwise import BitwiseOr
from numerate.tasks.questions import Questions
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import Task
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters
from numerate.vocabulary import EOS, INDEX_HINTS, ITEM_LABELS, Vocabulary

CASES = Path(__file__).parents[3] / "shared" / "cases" / "abacus.json"


def case(name: str) -> dict[str, Any]:
    if not CASES.exists():
        pytest.skip("the cases of the published systems are not beside this checkout (../shared/cases)")
    return next(case for case in json.loads(CASES.read_text())["cases"] if case["id"] == name)


def written(task: Task, tokenizer: Characters, questions: Questions) -> list[str]:
    vocabulary = tokenizer.build_vocabulary(task)
    rows = tokenizer.encode_examples(questions, vocabulary)
    assert (rows.ids[np.arange(len(rows)), rows.lengths - 1] == EOS).all()
    return [tokenizer.decode(ids, vocabulary) for ids in rows.ids]


@pytest.mark.parametrize("name", ["pad", "sort"])
def test_the_published_vocabularies_are_ours_id_for_id(name: str) -> None:
    assert Vocabulary.from_published(name).token_to_id == case(f"vocab_{name}")["expected"]


def test_the_vocabulary_with_hints_has_the_published_anchors() -> None:
    expected = dict(case("vocab_index_size")["expected"])
    vocabulary = Vocabulary.from_published("index")
    assert vocabulary.size == expected.pop("size")
    assert {symbol: vocabulary.token_to_id[symbol] for symbol in expected} == expected
    assert vocabulary.tokens[:19] == Vocabulary.from_published("pad").tokens
    assert "".join(vocabulary.tokens[19:]) == INDEX_HINTS


def test_published_tokens_are_ours_save_for_the_space() -> None:
    tokenizer = Characters(vocabulary="pad")
    vocabulary = tokenizer.build_vocabulary(Arithmetic())
    assert vocabulary.size == 19
    found = case("tokenize_pad")
    for text, expected in zip(found["input"], found["expected"], strict=True):
        ours = tokenizer.encode(text, vocabulary)
        assert ours == [18 if character == " " else i for character, i in zip(text, expected, strict=True)]
    found = case("decode_pad")
    assert [tokenizer.decode(ids, vocabulary) for ids in found["input"]] == found["expected"]


@pytest.mark.parametrize(("name", "order"), [("bucket", "reversed"), ("reverse_answer", "answer_reversed")])
def test_lines_of_the_published_bucket_generator_are_written_by_us(name: str, order: str) -> None:
    lines = case(f"gen_add_{name}")["expected"]
    digits = Digits(order)  # type: ignore[arg-type]
    task = Arithmetic(digits=Span(1, 3))
    plain = [[digits.normalize_numbers(part) for part in line.split("=")[0].split("+")] for line in lines]
    read = Questions.concatenate([task.parse_question("+".join(operands)) for operands in plain])
    assert written(task, Characters(digits, vocabulary="pad"), read) == lines
    drawn = task.examples("train", 0, 0, len(lines))
    assert [drawn.metadata[axis].tolist() for axis in task.axes()] == [
        read.metadata[axis].tolist() for axis in task.axes()
    ]


def test_an_answer_is_reversed_once() -> None:
    lines = case("gen_add_reverse_both_flags")["expected"]
    assert "83+3=41" in lines  # 38 + 3 = 41: reversed twice, which no number format of ours does
    orders = ("reversed", "normal", "answer_reversed")
    task = Arithmetic()
    ours = {written(task, Characters(Digits(order)), task.parse_question("38+3="))[0] for order in orders}  # type: ignore[arg-type]
    assert ours == {"83+3=14", "38+3=41", "38+3=14"}


def test_published_sorting_lines_are_written_by_us_where_their_labels_are_no_delimiters() -> None:
    lines = case("gen_sort")["expected"]
    task, number_format = Sorting(), Digits()
    kept = 0
    for line in lines:
        question, answer = line.split("=")
        pairs = [piece.rpartition(":") for piece in question.split(",")]
        plain = ",".join(f"{label}:{number_format.normalize_numbers(number)}" for label, _, number in pairs)
        if any(label not in ITEM_LABELS for label, _, _ in pairs):
            assert "::" in line
            with pytest.raises(UserError, match=r"is no label|an example is"):
                task.parse_question(plain)
            continue
        read = task.parse_question(plain)
        if all(not label.isdigit() for label, _, _ in pairs) and "0" not in [number[-1] for _, _, number in pairs]:
            assert written(task, Characters(number_format, vocabulary="sort"), read) == [f"{question}={answer}"]
            kept += 1
    assert kept == 3


def test_the_lines_of_the_positional_or_are_the_published_ones() -> None:
    found = case("gen_or_exact")
    for number_format in (Digits(), Digits("normal"), Digits(leading_zeros=2)):
        cell = BitwiseOr().at_cell(first_digits=found["input"]["n"], second_digits=found["input"]["m"])
        every = cell.all_questions()
        assert every is not None
        assert written(cell, Characters(number_format, vocabulary="pad"), every) == found["expected"]
    count = case("gen_or_count")
    for pair, expected in zip(count["input"]["pairs"], count["expected"], strict=True):
        spans = [Span(1, most) for most in pair]
        assert BitwiseOr(first_digits=spans[0], second_digits=spans[1]).num_questions() == expected


def test_hints_are_shared_by_operands_and_answer() -> None:
    task, tokenizer = Arithmetic(), Characters(Digits(index_hints=True), vocabulary="index")
    (line,) = written(task, tokenizer, task.parse_question("321+654="))
    assert line == "A1B2C3+A4B5C6=A5B7C9"  # the published example, from another letter on
    drawn = task.examples("train", 0, 0, 300)
    starts = set()
    for line in written(task, tokenizer, drawn):
        numbers = [part for half in line.split("=") for part in half.split("+")] if line.count("+") == 1 else []
        for number in numbers:
            assert number[::2] in (INDEX_HINTS + INDEX_HINTS)
            assert number[0] == numbers[0][0]
            starts.add(number[0])
    assert len(starts) > 60


def test_operands_may_alternate() -> None:
    task = Arithmetic()
    cases = {("12+34=", "normal"): "1324=46", ("12+34=", "reversed"): "2413=64"}
    for (text, order), line in cases.items():
        tokenizer = Characters(Digits(order), interleave_operands=True)  # type: ignore[arg-type]
        assert written(task, tokenizer, task.parse_question(text)) == [line]
    filled = Characters(Digits("normal", min_digits=3), interleave_operands=True)
    assert written(task, filled, task.parse_question("12+345=")) == ["031425=357"]
    drawn = Arithmetic(digits=20).examples("train", 0, 0, 40)
    for line, row in zip(written(task, Characters(interleave_operands=True), drawn), drawn.numbers.digits, strict=True):
        digits = [int(d) for d in line.split("=")[0]]
        assert digits[::2] == row[0, ::-1][:20].tolist()
        assert digits[1::2] == row[1, ::-1][:20].tolist()
    with pytest.raises(UserError, match=r"^interleave_operands: operands of 2 and 3 digits must have the same number"):
        written(task, Characters(interleave_operands=True), task.parse_question("12+345="))
    with pytest.raises(UserError, match=r"^interleave_operands: questions must have two operands"):
        written(Sorting(), Characters(interleave_operands=True), Sorting().parse_question("A:1,B:2="))


def test_blanks_come_as_often_as_their_probability_says() -> None:
    task, tokenizer = Arithmetic(digits=20), Characters(space_probability=0.5)
    vocabulary = tokenizer.build_vocabulary(task)
    drawn = task.examples("train", 0, 0, 1000)
    rows, bare = tokenizer.encode_examples(drawn, vocabulary), Characters().encode_examples(drawn, vocabulary)
    lines = [tokenizer.decode(ids, vocabulary) for ids in rows.ids]
    assert [line.replace(" ", "") for line in lines] == [Characters().decode(ids, vocabulary) for ids in bare.ids]
    runs = np.bincount([len(run) for line in lines for run in re.split("[^ ]", line)[:-1]])
    characters = runs.sum()
    assert runs[:3] / characters == pytest.approx([0.5, 0.5 * 0.95, 0.5 * 0.05], abs=0.01)
    assert len(runs) <= 5
    for row, line in enumerate(lines):
        answer = line.split("=")[1]
        assert rows.target_mask[row].sum() == len(answer) + 1
        assert rows.target_mask[row, rows.lengths[row] - 1]
    assert np.array_equal(tokenizer.encode_examples(drawn.take(slice(5, 9)), vocabulary).lengths, rows.lengths[5:9])
    assert written(task, tokenizer, task.parse_question("1+2=")) == ["1+2=3"]  # nobody drew it


def test_a_task_that_a_published_vocabulary_cannot_write_is_refused() -> None:
    with pytest.raises(UserError, match=r"^vocabulary: the published vocabulary 'pad' has no .*, which Sorting needs"):
        Characters(vocabulary="pad").build_vocabulary(Sorting())
    with pytest.raises(UserError, match=r"^vocabulary: the published vocabulary 'sort' has no \+, which Arithmetic"):
        Characters(vocabulary="sort").build_vocabulary(Arithmetic())
    with pytest.raises(UserError, match=r"^vocabulary: the published vocabulary 'pad' has no index hints"):
        Characters(Digits(index_hints=True), vocabulary="pad")
    with pytest.raises(UserError, match=r"^interleave_operands: must be false with index_hints"):
        Characters(Digits(index_hints=True), interleave_operands=True)

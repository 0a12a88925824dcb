"""Promises of word problems: marks go, numbers stay what they are, and further tests stand beside GSM8K's own."""

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from cases import whole
from numerate.config import Span
from numerate.errors import UserError
from numerate.published.datasets import presets as dataset_presets
from numerate.text.tasks.gsm8k import (
    GSM8K,
    WordProblems,
    format_number,
    normalize_numbers,
    remove_calculator_annotations,
)

TEXTS = Path(__file__).parent / "texts"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("12.5 gallons x .5", "12.5 gallons x 0.5"),  # the published program makes 120.5 of this 12.5
        (".1 of 1.1 and 0.1", "0.1 of 1.1 and 0.1"),
        ("$.75, (.5), -.25 and 10x.6", "$0.75, (0.5), -0.25 and 10x0.6"),
        ("1,000,000 or $3,600 or 1,441,100", "1000000 or $3600 or 1,441,100"),
        ("$3,600.50 and 80,000*1.5", "$3600.50 and 80000*1.5"),
        ("He came.5 went", "He came.5 went"),
        ("days 4,5,6 and 13,15,17", "days 4,5,6 and 13,15,17"),
        ("16,0000 and 100,00", "16,0000 and 100,00"),
        ("$560x.0.30", "$560x.0.30"),
        ("12 1000 books, 2 132 shirts", "12 1000 books, 2 132 shirts"),
        ("3 100 dollar bills, 18 000, 100,200,300", "3 100 dollar bills, 18 000, 100,200,300"),
        ("(1,100), 0,500 and 001,002", "(1,100), 0,500 and 001,002"),
    ],
)
def test_numbers_are_written_one_way_and_none_becomes_another(text: str, plain: str) -> None:
    assert normalize_numbers(text) == plain
    assert normalize_numbers(plain) == plain


@pytest.mark.parametrize(
    ("question", "answer", "pair"),
    [
        ("3 100 dollar bills", "3*100=<<3*100=300>>300\n#### 300", ("3 100 dollar bills", "3*100=300\n#### 300")),
        ("18 000, (1,100)", "Half: <<18000/2=9000>>9 000\n#### 9 000", ("18000, (1,100)", "Half: 9000\n#### 9000")),
        ("A 2 500", "2 500 - 1 100 = 1 400 = 3 100\n#### 7", ("A 2500", "2500 - 1100 = 1400 = 3 100\n#### 7")),
        ("(1,100)", "#### 1,100", ("(1100)", "#### 1100")),
    ],
)
def test_digits_are_joined_only_where_the_solution_confirms_the_number(
    question: str, answer: str, pair: tuple[str, str]
) -> None:
    assert WordProblems("gsm8k").pair_from_json({"question": question, "answer": answer}) == pair


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (51.0, "51"),
        (-9867630.0, "-9867630"),
        (0.25, "0.25"),
        (2.0107e-06, "0.0000020107"),
        (0.0, "0"),
        (1e22, "1" + 22 * "0"),
    ],
)
def test_a_number_of_json_is_written_as_people_do(value: float, text: str) -> None:
    assert format_number(value) == text


def test_the_answer_is_the_solution_or_its_number() -> None:
    solution = GSM8K(data_dir=str(TEXTS))
    question, answer = whole(solution, "test")[0]
    assert question.startswith("Ann has 1003 pears and gets ")
    found = re.fullmatch(r"Ann has 1003\+(\d) = (\d+) pears now\.\n#### (\d+)", answer)
    assert found is not None
    number = GSM8K(data_dir=str(TEXTS), answer_format="number")
    assert whole(number, "test")[0] == (question, found[3])


def test_a_solution_without_its_number_is_named(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "Q", "answer": "7"}\n' * 3)
    assert whole(GSM8K(data_dir=str(tmp_path), keep_duplicates=True), "test")[0] == ("Q", "7")
    with pytest.raises(UserError, match=r"train\.jsonl, line 1: has no '####' before the last number"):
        GSM8K(data_dir=str(tmp_path), answer_format="number").all_questions("test")


def further(folder: Path) -> None:
    for name in ("gsm8k", "svamp", "gsm_hard", "gsm_plus"):
        (folder / name).mkdir()
    for name in ("train", "test"):
        (folder / f"gsm8k/{name}.jsonl").write_text((TEXTS / f"gsm8k/{name}.jsonl").read_text())
    problem = {"ID": "c-1", "Body": "He has 1,000 pens. ", "Question": "How many?", "Answer": 1000.0}
    (folder / "svamp/SVAMP.json").write_text(json.dumps([problem], indent=1))
    (folder / "gsm_hard/gsmhardv2.jsonl").write_text('{"input": "Large?", "code": "", "target": -2.5e-7}\n')
    line = {"question": "Changed?", "solution": "So <<1+1=2>>2.\n#### 1/2", "answer": "1/2"}
    (folder / "gsm_plus/gsmplus_testmini.jsonl").write_text(json.dumps(line) + "\n")


def test_further_tests_are_parts_behind_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    further(tmp_path)
    every = GSM8K(extra_tests=("svamp", "gsm_hard", "gsm_plus"), data_dir=str(tmp_path))
    assert every.training_spans() == {"test": Span(1, 1)}
    assert [every.cell_name("test", n) for (n,) in every.cells()] == ["gsm8k", "svamp", "gsm_hard", "gsm_plus"]
    tests = [whole(every.at_cell(test=n), "test") for n in (2, 3, 4)]
    assert tests[0] == [("He has 1000 pens. How many?", "#### 1000")]
    assert tests[1] == [("Large?", "#### -0.00000025")]
    assert tests[2] == [("Changed?", "So 2.\n#### 1/2")]
    monkeypatch.setenv("NUMERATE_DATA", str(tmp_path))
    hard = dataset_presets()["gsm_hard"]
    assert whole(hard, "test") == tests[1]
    assert hard.num_questions() == 17, "it trains on GSM8K"
    (tmp_path / "svamp/SVAMP.json").write_text(
        '[\n {"ID": "1", "Body": "b", "Question": "q", "Answer": 1},\n {"ID": "2"}]'
    )
    with pytest.raises(UserError, match=r"SVAMP\.json, line 1: problem 2 has no 'Body'"):
        dataset_presets()["svamp"].all_questions("test")
    (tmp_path / "svamp/SVAMP.json").unlink()
    with pytest.raises(UserError, match="`numerate data fetch svamp`"):
        dataset_presets()["svamp"].all_questions("test")


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"^extra_tests: must not contain 'svamp' twice"):
        GSM8K(extra_tests=("svamp", "svamp"))


def test_the_real_files_have_their_published_sizes_and_no_number_is_changed(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERATE_DATA", str(shared / "data"))
    task = GSM8K(extra_tests=("svamp", "gsm_hard", "gsm_plus"))
    assert task.summary() == (
        "train 6,353, validation 1,120, test gsm8k 1,319, test svamp 1,000, test gsm_hard 1,319, test gsm_plus 2,400"
    )
    lines = [json.loads(line) for line in (shared / "data/gsm8k/test.jsonl").read_text().splitlines()]
    for line, (_, answer) in zip(lines[:400], whole(task, "test")[:400], strict=True):
        before, after = remove_calculator_annotations(line["answer"]).replace(",", ""), answer.replace(",", "")
        assert [Decimal(n) for n in re.findall(r"\d*\.?\d+", re.sub(r"(?<=\d) (?=\d{3}\b)", "", before))] == [
            Decimal(n) for n in re.findall(r"\d*\.?\d+", re.sub(r"(?<=\d) (?=\d{3}\b)", "", after))
        ]
        assert "<<" not in answer
    texts = "\n".join("\n".join(pair) for pair in whole(task, "train") + whole(task, "validation"))
    assert re.findall(r"(?<!\S)[0-9]{1,3}(?: [0-9]{3})+(?![0-9])", texts) == ["12 200", "2 132"]
    assert all(text in texts for text in ("5650000 cars", "450000 people", "18000 watts", "0.20 x 32000", "3000 grams"))

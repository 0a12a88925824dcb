"""Promises of every reader of questions: a record that may mean something else than it says is refused by its file and
line, or counted where `skip_invalid` is set, and what is only unusual is read as it is written."""

import json
from pathlib import Path

import numpy as np
import pytest

from numerate.errors import UserError
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Example
from numerate.text.tasks.example_file import ExampleFile
from numerate.text.tasks.gsm8k import ProblemList, WordProblems
from numerate.text.tasks.multirc import Passages
from numerate.text.tasks.readers import (
    MAX_CHARACTERS,
    MAX_RECORD_BYTES,
    JSONLines,
    RecordReader,
    TabSeparated,
    TwoLines,
)
from numerate.text.tasks.rjokes import Scored
from numerate.text.tasks.text_files import open_examples

BOM = b"\xef\xbb\xbf"
LONG = "9" * (MAX_CHARACTERS + 1)


READERS: dict[str, RecordReader] = {
    "jsonl": JSONLines(),
    "tabs": TabSeparated(num_columns=2),
    "two lines": TwoLines(),
    "jokes": Scored(),
    "gsm8k": WordProblems("gsm8k"),
    "gsm_hard": WordProblems("gsm_hard"),
    "gsm_plus": WordProblems("gsm_plus"),
    "multirc": Passages(),
}


def line(**record: object) -> str:
    return json.dumps(record, ensure_ascii=False)


def passage(text: str, question: object) -> str:
    return line(passage={"text": text, "questions": [question]})


SOUND = {
    "jsonl": line(question="1+1=", answer="2"),
    "tabs": "1+1=\t2",
    "two lines": "1+1=\n2",
    "jokes": "3\tWhy?",
    "gsm8k": line(question="How many?", answer="So 1.\n#### 1"),
    "gsm_hard": line(input="How many?", target=-9867630.0),
    "gsm_plus": line(question="How many?", answer="1", solution="So 1.\n#### 1"),
    "multirc": passage("Rain.", {"question": "What?", "answers": [{"text": "rain", "label": 1}]}),
}

ODD: list[tuple[str, str, str | bytes, str]] = [
    ("jsonl", "NaN", '{"question": "q", "answer": NaN}', "NaN is not a JSON number; write it as a string"),
    ("jsonl", "a key twice", '{"question": "q", "answer": 1, "answer": 2}', "'answer' comes twice in an object"),
    ("jsonl", "no question", line(question="", answer="1"), "has an empty question"),
    ("jsonl", "no answer", line(question="q", answer=""), "has an empty answer"),
    ("jsonl", "NUL", line(question="q\0", answer="1"), "contains a NUL character"),
    ("jsonl", "true", line(question="q", answer=True), "'answer' must be a string or a number, not bool"),
    ("jsonl", "other keys", line(prompt="q", completion="1"), "set question_field=prompt; set answer_field=completion"),
    ("jsonl", "cut", '{"question": "q", "ans', "is not valid JSON"),
    ("jsonl", "deep", '{"question": ' + "[" * 100_000, "is not valid JSON"),
    ("jsonl", "half of a pair", '{"question": "\\ud800", "answer": "1"}', "surrogates not allowed"),
    ("jsonl", "no UTF-8", b'{"question": "\xff", "answer": "1"}', "is not valid UTF-8"),
    ("jsonl", "a long question", line(question=LONG, answer="1"), "has 65,538 characters; a question with its answer"),
    ("jsonl", "a long record", line(question="q", answer="1", more="x" * MAX_RECORD_BYTES), "a record has at most"),
    ("tabs", "one column", "q", "has 1 columns, and column 2 is wanted"),
    ("tabs", "three columns", "q\t1\t2", "has 3 columns, and the first line has 2; is a tab in a text?"),
    ("tabs", "no question", "\t1", "has no question in column 1"),
    ("two lines", "no answer", "q\n", "has no answer; each record must be two lines"),
    ("jokes", "no score", "ten\tWhy?", "must begin with an integer score and a tab, not 'ten'"),
    ("jokes", "no joke", "3\t", "has no question in column 2"),
    ("gsm_hard", "beyond floats", '{"input": "How many?", "target": 1e999}', "must be a finite number, not '1e999'"),
    ("gsm_plus", "no answer", line(question="How many?", answer="1", solution=""), "has an empty answer"),
    ("multirc", "no passage", line(text="Rain."), "has no 'passage'; it has: 'text'"),
    ("multirc", "no question", passage("Rain.", {"question": "", "answers": []}), "has an empty question"),
    (
        "multirc",
        "no object",
        passage("Rain.", 7),
        "'passage.questions[0]' must be a JSON object with 'question', not a number",
    ),
    (
        "multirc",
        "no options",
        passage("Rain.", {"question": "What?", "answers": 7}),
        "'passage.questions[0].answers' must be a list, not a number",
    ),
]


@pytest.mark.parametrize(
    ("kind", "odd", "message"), [one[:1] + one[2:] for one in ODD], ids=[f"{k}, {n}" for k, n, *_ in ODD]
)
def test_an_odd_record_is_refused_by_its_line_or_counted(
    kind: str, odd: str | bytes, message: str, tmp_path: Path
) -> None:
    path, sound = tmp_path / "file", SOUND[kind].encode()
    path.write_bytes(b"\n".join([sound, odd if isinstance(odd, bytes) else odd.encode(), sound, b""]))
    line = 1 + len(sound.split(b"\n"))
    with pytest.raises(UserError, match=rf"file, line {line}: ") as refused:
        open_examples(path, READERS[kind])
    assert message in str(refused.value)
    assert "With task.skip_invalid=true such records are left out and counted" in str(refused.value)
    with pytest.warns(UserWarning, match=rf"^1 record skipped as invalid.*/file, line {line}: "):
        found = open_examples(path, READERS[kind], skip_invalid=True)
    pairs = found.read_examples(np.arange(found.num_examples))
    assert (found.num_examples, found.num_skipped) == (2, 1)
    assert pairs[0] == pairs[1]


SVAMP = {"ID": "1", "Body": "Rain.", "Question": "How many?", "Answer": 2.0}

ODD_LISTS: list[tuple[str, bytes, str]] = [
    ("cut", json.dumps([SVAMP])[:-5].encode(), "is not valid JSON"),
    ("NaN", json.dumps([SVAMP | {"Answer": float("nan")}]).encode(), "NaN is not"),
    ("no list", json.dumps(SVAMP).encode(), "must be a list, not dict"),
    (
        "no object",
        json.dumps([SVAMP, 7]).encode(),
        "problem 2 must be a JSON object with 'Body' and 'Question' and 'Answer', not a number",
    ),
    ("no number", json.dumps([SVAMP | {"Answer": "2"}]).encode(), "'Answer' must be a finite number, not '2'"),
    ("a long question", json.dumps([SVAMP | {"Body": LONG}]).encode(), "characters; a question with its answer"),
]


@pytest.mark.parametrize(("content", "message"), [one[1:] for one in ODD_LISTS], ids=[one[0] for one in ODD_LISTS])
def test_an_odd_list_of_problems_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "SVAMP.json").write_bytes(content)
    with pytest.raises(UserError, match=r"SVAMP\.json, line 1: ") as refused:
        open_examples(tmp_path / "SVAMP.json", ProblemList())
    assert message in str(refused.value)


ODD_ROWS: list[tuple[str, str | bytes, str]] = [
    ("no question", "=2", "has no question beside its '='"),
    ("no answer", "b=", "has no answer beside its '='"),
    ("no equals sign", "b2", "has not exactly one '='"),
    ("two equals signs", "b=2=2", "has not exactly one '='"),
    ("NUL", "b\0=2", "has the character NUL"),
    ("no UTF-8", b"\xff=2", "is no text in UTF-8"),
    ("a long row", f"{LONG}=2", "has 65,539 bytes; a row has at most 65,536 characters"),
    ("a long row of others", f"ä{LONG}=2", "has 65,540 characters; a row has at most 65,536"),
]


@pytest.mark.parametrize(("odd", "message"), [one[1:] for one in ODD_ROWS], ids=[one[0] for one in ODD_ROWS])
def test_an_odd_row_is_refused_by_its_line(odd: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(b"\n".join([b"a=1", odd if isinstance(odd, bytes) else odd.encode(), b"a=1"]))
    with pytest.raises(UserError, match=r"rows\.txt, line 2: ") as refused:
        ExampleFile(path=str(path)).all_questions()
    assert message in str(refused.value)


ODD_LABELS: list[tuple[str, str, str]] = [
    ("no words", "\t", "must be words, a tab and one label per word"),
    ("too few labels", "a b\t1", "must be words, a tab and one label per word"),
    ("two spaces", "a  b\t1 2 3", "must be words, a tab and one label per word"),
    ("a word that is no label", ". a\t1 2", "must be words, a tab and one label per word"),
    ("three columns", "a b\t1 2\t3 4", "must be words, a tab and one label per word"),
    ("NUL", "a \0\t1 2", "has the character NUL"),
    ("a long row", f"{LONG}\t1", "a row has at most 65,536 characters"),
]


@pytest.mark.parametrize(("odd", "message"), [one[1:] for one in ODD_LABELS], ids=[one[0] for one in ODD_LABELS])
def test_an_odd_row_with_labels_is_refused_by_its_line(odd: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text(f"a b\t1 2\n{odd}\na b\t1 2\n")
    with pytest.raises(UserError, match=r"rows\.tsv, line 2: ") as refused:
        ExampleFile(path=str(tmp_path / "rows.tsv")).all_questions()
    assert message in str(refused.value)


UNUSUAL: list[tuple[str, str, tuple[str, str]]] = [
    ("jsonl", '{"question": "q", "answer": 1e5}', ("q", "1e5")),
    ("jsonl", '{"question": "q", "answer": 2.50}', ("q", "2.50")),
    ("jsonl", '{"question": "q", "answer": 1e999}', ("q", "1e999")),
    ("jsonl", f'{{"question": "q", "answer": {"7" * 5000}}}', ("q", "7" * 5000)),
    (
        "jsonl",
        '{"question": 12345678901234567890, "answer": 0.1000000000000000055}',
        ("12345678901234567890", "0.1000000000000000055"),
    ),
    ("jsonl", '{"question": "NaN", "answer": "1e999"}', ("NaN", "1e999")),
    ("jsonl", '  {"question": "q", "answer": " 1 "}  ', ("q", " 1 ")),
    ("jsonl", '{"question": "a\\nb\\tc", "answer": "\\ud83d\\ude00"}', ("a\nb\tc", "😀")),
    ("tabs", " q \t 1 ", ("q", "1")),
    ("tabs", '"q"\t"1"', ('"q"', '"1"')),
    ("two lines", "q\tr\n1", ("q\tr", "1")),
    ("gsm_hard", '{"input": "How many?", "target": 1e3}', ("How many?", "#### 1000")),
    ("multirc", passage("Rain.", {"question": "What?", "answers": []}), ("Rain.\n\nQuestion: What?", "")),
]


@pytest.mark.parametrize(("kind", "record", "pair"), UNUSUAL)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("begin", [b"", BOM])
def test_what_is_only_unusual_is_read_as_it_is_written(
    kind: str, record: str, pair: tuple[str, str], end: str, begin: bytes, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(begin + (record.replace("\n", end) + end).encode())
    found = open_examples(tmp_path / "file", READERS[kind])
    assert found.read_examples(np.arange(found.num_examples)) == [Example(*pair)]
    assert found.question_mask(frozenset([pair[0]])).tolist() == [True]
    assert found.used_characters - set("\n\t") <= set("".join(pair)) | set('" ')


def test_a_byte_order_mark_is_no_symbol_of_rows(tmp_path: Path) -> None:
    for name, content, alphabet in (
        ("a.txt", "ab=1\nc=2\n", "12=abc"),
        ("b.txt", "12+9=21\n", "+="),
        ("c.txt", "a\t1", "1a"),
    ):
        (tmp_path / name).write_bytes(BOM + content.encode())
        task = ExampleFile(path=str(tmp_path / name))
        assert "".join(task.alphabet()) == alphabet
        assert "".join(format_question(task.questions(np.arange(1)), 0)).replace("\t", "") in content.replace("\t", "")

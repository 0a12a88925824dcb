"""Tests of the statistics of rows, against counting by hand."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerate.config import Span
from numerate.reports.data_plots import save_figures
from numerate.tasks import carry
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.plain import format_question
from numerate.text.data.source import RowSource
from numerate.text.data.statistics import (
    MAX_MULTIPLICITY,
    Histogram,
    Statistics,
    compute_statistics,
)
from numerate.text.tasks.example_file import ExampleFile
from numerate.tokenizers.tokenizer import Characters


@pytest.fixture(scope="module")
def drawn() -> tuple[list[str], Statistics]:
    """2,000 short sums as a person writes them, and their statistics."""
    task = Arithmetic(digits=Span(1, 3))
    questions = task.examples("train", 1, 0, 2000)
    texts = ["".join(format_question(questions, row)) for row in range(2000)]
    source = RowSource("sums", task, Characters(), 2000, "train", 1)
    small = [compute_statistics(source)]
    return texts, small[0]


def counted(values: Any) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}


def longest_chain(first: int, second: int) -> int:
    run = longest = carry = 0
    while first or second or carry:
        carry = first % 10 + second % 10 + carry > 9
        run = run + 1 if carry else 0
        longest = max(longest, run)
        first, second = first // 10, second // 10
    return longest


def parts(text: str) -> tuple[str, str, str]:
    question, answer = text.split("=")
    first, second = question.split("+")
    return first, second, answer


def test_lengths_are_those_of_the_texts(drawn: Any) -> None:
    texts, found = drawn
    tree = found.to_dict()
    assert tree["row_tokens"]["counts"] == counted(len(text) + 1 for text in texts)
    assert tree["operand_digits"]["counts"] == counted(len(n) for text in texts for n in parts(text)[:2])
    assert tree["answer_tokens"]["counts"] == counted(len(parts(text)[2]) for text in texts)
    lengths = [len(text) + 1 for text in texts]
    assert (tree["row_tokens"]["low"], tree["row_tokens"]["high"]) == (min(lengths), max(lengths))
    assert tree["row_tokens"]["mean"] == pytest.approx(np.mean(lengths), abs=1e-3)
    assert tree["row_tokens"]["median"] == sorted(lengths)[len(lengths) // 2 - 1]


def test_carry_chains_are_those_of_adding_by_hand(drawn: Any) -> None:
    texts, found = drawn
    by_hand = counted(longest_chain(int(a), int(b)) for a, b, _ in map(parts, texts))
    assert found.to_dict()["longest_carry_chain"]["counts"] == by_hand


@pytest.mark.parametrize(
    ("first", "second", "chain"), [(999, 1, 3), (5, 4, 0), (5, 5, 1), (95, 15, 2), (5055, 5055, 2), (9, 99, 2)]
)
def test_a_chain_is_the_most_places_in_a_row_that_carry(first: int, second: int, chain: int) -> None:
    digits = np.array([[[int(d) for d in f"{number:08d}"[::-1]] for number in (first, second)]], dtype=np.uint8)
    assert (
        carry.longest_chains(carry.column_carries(digits[:, 0], digits[:, 1], "+")).tolist()
        == [chain]
        == [longest_chain(first, second)]
    )


def test_repeated_questions_are_counted_exactly(drawn: Any) -> None:
    texts, found = drawn
    times = Counter(text.split("=")[0] for text in texts)
    assert (found.num_distinct, found.max_multiplicity, found.num_repeated) == (
        len(times),
        max(times.values()),
        2000 - len(times),
    )
    assert found.to_dict()["questions"]["times"] == counted(times.values())
    pairs = Counter(tuple(len(n) for n in parts(text)[:2]) for text in texts)
    distinct = Counter(tuple(map(len, question.split("+"))) for question in times)
    assert found.axes == ("first_digits", "second_digits")
    assert (found.rows_per_pair, found.distinct_per_pair) == (dict(pairs), dict(distinct))


def test_characters_are_counted(drawn: Any) -> None:
    texts, found = drawn
    assert found.symbol_counts == dict(Counter("".join(texts)))
    assert sum(found.symbol_counts.values()) == sum(map(len, texts))


def test_a_file_of_sums_says_what_the_sums_say(drawn: Any, tmp_path: Path) -> None:
    texts, found = drawn
    (tmp_path / "rows.txt").write_text("\n".join(texts) + "\n")
    for order in ("auto", "text"):
        task = ExampleFile(path=str(tmp_path / "rows.txt"), digit_order=order)  # type: ignore[arg-type]
        again = compute_statistics(RowSource.from_file("sums", task)).to_dict()
        expected = found.to_dict()
        if order == "text":  # text is not added
            expected["longest_carry_chain"] = Histogram().to_dict()
        assert again == expected


def test_blocks_of_any_size_say_the_same(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowSource.read_blocks, "__defaults__", (37,))
    on_progress: list[int] = []
    again = compute_statistics(
        RowSource("sums", Arithmetic(digits=Span(1, 3)), Characters(), 2000, "train", 1), on_progress.append
    )
    assert again.to_dict() == drawn[1].to_dict()
    assert on_progress == [*range(37, 2000, 37), 2000]


def test_very_frequent_questions_are_counted_as_one_thousand(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("1+1=2\n" * (MAX_MULTIPLICITY + 5) + "1+2=3\n")
    task = ExampleFile(path=str(tmp_path / "rows.txt"))
    found = compute_statistics(RowSource.from_file("sums", task))
    assert (found.num_distinct, found.max_multiplicity) == (2, MAX_MULTIPLICITY + 5)
    assert found.multiplicities.to_dict()["counts"] == {"1": 1, str(MAX_MULTIPLICITY): 1}


def test_a_histogram_knows_its_middle() -> None:
    histogram = Histogram()
    histogram.add(np.array([3, 3, 5]))
    histogram.add(np.array([9]))
    assert (histogram.min(), histogram.median(), histogram.max(), histogram.mean()) == (3, 3, 9, 5.0)
    assert Histogram().to_dict() == {"low": 0, "median": 0, "mean": 0.0, "high": 0, "counts": {}}


@pytest.mark.parametrize("rows", [None, ["ζ:5,η:41=η,ζ", "$:1=$", "A:1,B:0=B,A"] * 20])
def test_figures_are_drawn_of_whatever_there_is(rows: list[str] | None, drawn: Any, tmp_path: Path) -> None:
    found = drawn[1]
    if rows is not None:
        (tmp_path / "rows.txt").write_text("\n".join(rows), encoding="utf-8")
        found = compute_statistics(RowSource.from_file("text", ExampleFile(path=str(tmp_path / "rows.txt"))))
    kinds = ("svg",) if rows is None else ("png",)
    names = {path.name for path in save_figures(found, tmp_path / "out", kinds)}
    every = {"lengths"} | ({"pairs", "carries"} if rows is None else set())
    assert names == {f"{name}.{kind}" for name in every for kind in kinds}
    for name in names:
        begin = (tmp_path / "out" / name).read_bytes()[:200]
        assert begin.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in begin or b"<?xml" in begin

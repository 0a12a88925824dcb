"""Promises of the mathematics dataset, its stand-in, and products in words."""

import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from cases import pairs, whole
from numerate.config import Span
from numerate.errors import UserError
from numerate.published.datasets import presets as dataset_presets
from numerate.tasks.multiplication import Multiplication
from numerate.tasks.plain import format_question
from numerate.text.tasks.generated_mathematics import GeneratedMathematics
from numerate.text.tasks.mathematics import DIFFICULTIES, EXTRAPOLATION_MODULES, MODULES, Mathematics, split_sizes


def dataset(folder: Path, modules: tuple[str, ...], beyond: tuple[str, ...], count: int = 100) -> Path:
    def put(name: str, begin: int) -> None:
        path = folder / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name} {begin + n}?\n{n}\n" for n in range(count)))

    for module in modules:
        for number, difficulty in enumerate(DIFFICULTIES):
            put(f"train-{difficulty}/{module}", number * count)
        put(f"interpolate/{module}", 0)
    for module in beyond:
        put(f"extrapolate/{module}", 0)
    return folder


def test_published_sizes_follow_from_the_published_files() -> None:
    train, held = split_sizes(666_666, None, None, 0.0005)
    assert (39 * train, 39 * held) == (25_986_948, 13_026)
    assert split_sizes(666_666, 33_333, 1000, 0.0005) == (33_333, 1000)
    assert split_sizes(1000, 33_333, 1000, 0.0005) == (971, 29), "the same proportion where there are fewer"
    assert split_sizes(1000, 50, None, 0.1) == (50, 100)
    assert split_sizes(10, None, 4, 0.1) == (6, 4)
    assert (len(MODULES), len(EXTRAPOLATION_MODULES)) == (13, 7)


def test_modules_are_parts_and_extrapolation_is_beyond(tmp_path: Path) -> None:
    task = Mathematics(("a", "b"), ("c",), data_dir=str(dataset(tmp_path, ("a", "b"), ("c",))), validation_fraction=0.1)
    assert task.summary() == "train 540, validation 60, test a 100, test b 100, test c 100"
    assert task.training_spans() == {"module": Span(1, 2)}
    assert task.cells() == [(1,), (2,), (3,)]
    assert [task.cell_name("module", n) for n in (1, 2, 3)] == ["a", "b", "c"]
    train = task.examples("train", 0, 0, 540)
    modules = [question.split("/")[1][0] for question, _ in pairs(train)]
    assert modules == [" ab"[number] for number in train.metadata["module"].tolist()]
    assert set(task.at_cell(module=2).examples("train", 0, 0, 50).metadata["module"].tolist()) == {2}
    assert set(task.at_cell(module=3).examples("train", 0, 0, 50).metadata["module"].tolist()) == {1, 2}
    assert {question[:14] for question, _ in whole(task.at_cell(module=3), "test")} == {"extrapolate/c "}


def test_each_file_is_divided_by_itself_and_by_its_key(tmp_path: Path) -> None:
    folder = str(dataset(tmp_path, ("a", "b"), ()))
    held = []
    for division in (0, 0, 1):
        task = Mathematics(("a", "b"), (), data_dir=folder, validation_fraction=0.1, split_seed=division)
        held.append([question for question, _ in whole(task, "validation")])
    assert held[0] == held[1] != held[2]
    for name in DIFFICULTIES:
        for module in "ab":
            assert sum(text.startswith(f"train-{name}/{module} ") for text in held[0]) == 10


def test_questions_of_several_files_differ_by_their_text(tmp_path: Path) -> None:
    folder = dataset(tmp_path, ("a",), ("c",))
    (folder / "train-easy/a.txt").write_text("same?\n1\n" * 50 + "".join(f"own {n}?\n1\n" for n in range(50)))
    (folder / "extrapolate/c.txt").write_text("own 3?\n1\nown 4?\n1\n")
    task = Mathematics(("a",), ("c",), data_dir=str(folder), validation_fraction=0.1)
    splits = {split: [question for question, _ in whole(task, split)] for split in ("train", "validation")}
    assert not {*splits["train"]} & {*splits["validation"]}
    assert not {"own 3?", "own 4?"} & {*splits["train"], *splits["validation"]}
    assert splits["validation"].count("same?") == 1


def test_a_file_that_is_lacking_is_named(tmp_path: Path) -> None:
    folder = dataset(tmp_path, ("a",), ())
    with pytest.raises(UserError, match=r"train-easy/b\.txt does not exist \(nor are 3 others\); `numerate data"):
        Mathematics(("a", "b"), (), data_dir=str(folder)).summary()
    (folder / "train-hard/a.txt").write_text("odd\n")
    with pytest.raises(UserError, match=r"train-hard/a\.txt, line 1: is incomplete: each record must have 2 lines"):
        Mathematics(("a",), (), data_dir=str(folder)).summary()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modules": ()}, "modules: must not be empty"),
        ({"modules": ("a", "a")}, "modules: must not contain 'a' twice"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        Mathematics(**settings)  # type: ignore[arg-type]


def test_the_generated_sample_has_the_published_modules(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMERATE_DATA", str(shared / "data"))
    task = dataset_presets()["mathematics"]
    assert isinstance(task, Mathematics)
    assert len(task.splits.train) + len(task.splits.validation) + task.splits.num_duplicates_removed == 39_000
    assert len(task.cells()) == 20
    assert len(task.at_cell(module=20).all_questions("test") or ()) == 1000
    small = dataset_presets()["mathematics_arithmetic"]
    assert isinstance(small, Mathematics)
    assert small.summary().startswith("train 2,913, validation 87, test arithmetic__add_sub_multiple 1,000")


# The stand-in --------------------------------------------------------------------------------------------------------


def worked_out(question: str) -> Decimal:
    """The answer to a question of the stand-in, by other means than its own."""
    numbers = [Decimal(text) for text in re.findall(r"-?\d+(?:\.\d+)?", question)]
    if " digit of " in question:
        places = ["units", "tens", "hundreds", "thousands", "ten_thousands", "hundred_thousands", "millions"]
        name = re.search(r"the (.*) digit", question)
        assert name is not None
        return Decimal(int(numbers[0]) // 10 ** places.index(name[1].replace(" ", "_")) % 10)
    if question.startswith("Round"):
        units = {"integer": 1, "ten": 10, "hundred": 100, "one": "0.1", "two": "0.01", "three": "0.001"}
        word = re.search(r"to (?:the nearest )?(\w+)", question)
        assert word is not None
        unit = Decimal(units[word[1]]) if word[1] in units else Decimal(10) ** -int(word[1])
        below = numbers[0] // unit * unit
        return min((below - unit, below, below + unit), key=lambda near: (abs(numbers[0] - near), -abs(near)))
    one, other = numbers
    if question.startswith("Subtract"):
        return other - one
    if " - " in question:
        # "3 - -4" and "3 - 4" both have the second number behind the sign and a space
        return one - other
    return one * other if re.search(r"times|\*|Multiply|Product", question) else one + other


def test_the_stand_in_is_right_and_says_what_it_is() -> None:
    task = GeneratedMathematics()
    for module in range(1, 9):
        drawn = task.at_cell(module=module).examples("train", 1, 0, 200)
        assert set(drawn.metadata["module"].tolist()) == {module}
        for row in range(200):
            question, answer = format_question(drawn, row)
            assert Decimal(answer) == worked_out(question), question
            assert "E" not in answer
            assert answer != "-0"
    assert [task.cell_name("module", n) for n in (1, 4, 5, 9)] == ["add_or_sub", "round_number", "add_or_sub_big", "9"]
    assert "stand-in" in (GeneratedMathematics.__doc__ or "").splitlines()[0]


def test_the_stand_in_is_trained_on_its_kinds_and_tested_beyond_on_longer_numbers() -> None:
    task = GeneratedMathematics(kinds=("mul", "place_value"))
    assert task.training_spans() == {"module": Span(1, 2)}
    assert task.cells() == [(1,), (2,), (3,), (4,)]
    assert set(task.examples("train", 0, 0, 100).metadata["module"].tolist()) == {1, 2}
    train, test = (task.examples(split, 0, 0, 500).hashes().tolist() for split in ("train", "test"))
    assert not {*train} & {*test}
    assert {c for text in pieces(task) for c in text} <= set(task.alphabet())
    with pytest.raises(UserError, match=r"kinds: must be .* or .*, not 'div'"):
        GeneratedMathematics(kinds=("div",))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"digits: must be from 1 to 12, not 1:40"):
        GeneratedMathematics(digits=Span(1, 40))


def pieces(task: GeneratedMathematics) -> list[str]:
    return [text for n in range(1, 5) for text in format_question(task.at_cell(module=n).examples("test", 0, 0, 50), n)]


# Products ------------------------------------------------------------------------------------------------------------


def test_a_product_in_words_is_right() -> None:
    task = Multiplication(digits=Span(1, 7))
    drawn = task.examples("train", 0, 0, 300)
    for row in range(300):
        question, answer = format_question(drawn, row)
        found = re.fullmatch(r"What is (\d+) times (\d+)\?", question)
        assert found is not None
        assert int(found[1]) * int(found[2]) == int(answer)
        sizes = [drawn.metadata[name][row] for name in ("first_digits", "second_digits")]
        assert [len(found[1]), len(found[2])] == sizes
    assert format_question(task.parse_question("what is 12 times 34?"), 0) == ("What is 12 times 34?", "408")
    assert format_question(task.parse_question("12*34"), 0)[1] == "408"
    with pytest.raises(UserError, match="an example is What is 12 times 34"):
        task.parse_question("12 + 34")
    spans = Multiplication().ood_validation_task().training_spans()
    assert spans == {"first_digits": Span(6, 6), "second_digits": Span(6, 6)}
    assert np.array_equal(
        task.question_hashes(task.parse_question("3x4")), task.question_hashes(task.parse_question("4x3"))
    )

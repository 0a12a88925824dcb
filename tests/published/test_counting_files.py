"""Promises of the files of published tasks: byte for byte where nothing is random, and by the same laws where it is."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from numerate.cli import main
from numerate.errors import UserError
from numerate.published import counting_files as published
from numerate.tasks.questions import Questions
from numerate.text.data.new_folder import write_lines

RANDOM = ("counting_samesymbol/val", "diffsymbol", "blankhelper/val", "shiftedstart/val", "shiftedstart2/val")
RANDOM += ("10items", "raspL", "counting_samesymbol_addbigram")


@pytest.fixture(scope="module")
def every_file() -> dict[str, published.RowBlocks]:
    return {
        file: rows for name in published.published_names() for file, rows in published.published_files(name).items()
    }


def text(blocks: Iterator[Questions]) -> bytes:
    return b"".join(line for block in blocks for line in published.format_lines(block))


def test_every_file_without_chance_is_the_published_one(
    shared: Path, every_file: dict[str, published.RowBlocks]
) -> None:
    files: list[dict[str, Any]] = json.loads((shared / "cases" / "counting_files_sha256.json").read_text())
    assert len(files) == 33
    for file in files:
        content = text(every_file[file["file"].removeprefix("data/rasp_primitives/")]())
        lines = content.splitlines()
        assert (len(content), len(lines), len(set(lines))) == (file["bytes"], file["lines"], file["distinct"])
        assert hashlib.sha256(content).hexdigest() == file["sha256"], file["file"]


def test_every_published_line_without_chance_stands_where_it_stood(
    shared: Path, every_file: dict[str, published.RowBlocks]
) -> None:
    cases: list[dict[str, Any]] = json.loads((shared / "cases" / "counting.json").read_text())
    fixed = [case for case in cases if not any(part in case["file"] for part in RANDOM)]
    assert len(fixed) == 17
    for case in fixed:
        lines = text(every_file[case["file"].removeprefix("data/rasp_primitives/")]()).splitlines()
        assert json.loads(lines[case["line"] - 1]) == [case["input"], case["expected"]], case["file"]


@pytest.mark.parametrize(
    "name", ["counting_samesymbol", "counting_diffsymbol_shiftedstart", "counting_samesymbol_padhelper"]
)
def test_validation_has_the_300_cells_that_training_never_has(name: str) -> None:
    files = published.published_files(name, count=4001)
    layouts = 2 if "shifted" in name else 1
    train, val, ood = (
        [json.loads(line)[0] for line in text(files[f"{name}/{file}.txt"]()).splitlines()]
        for file in ("train", "val", "ood_test")
    )
    assert (len(train), len(val), len(ood)) == (4001, 300 * layouts, 1225 * layouts)
    trained, held, further = ({cell(row) for row in rows} for rows in (train, val, ood))
    assert len(held) == 300
    assert len(further) == 1225
    assert not held & trained
    assert {count for count, _ in trained} == set(range(1, 51))
    if layouts == 2:
        assert [cell(row) for row in train[0:4000:2]] == [cell(row) for row in train[1:4000:2]]
        assert train[0][-1].isdecimal()
        assert train[1][0] == train[0][-1]
        assert len({"".join(row[:5]) for row in train}) > 3000, "letters are drawn anew in every block"


def cell(row: list[str]) -> tuple[int, str]:
    return sum(text.isalpha() for text in row), next(text for text in row if text.isdecimal())


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("counting_selective", (1275, 2550)),
        ("counting_selective_10items_padhelper", (2000, 2989)),
        ("counting_selective_10items2bos", (2000, 2989)),
        ("counting_selective_modular_4items", (2000, 3000)),
        ("counting_raspL", (300, 5565)),
        ("counting_diffsymbol_mod16", (240, 80 * 35)),
        ("counting_diffsymbol_mod13", (260, 66 * 30)),
        ("counting_diffsymbol_mod10", (300, 50 * 50)),
        ("counting_diffsymbol_mod10_padhelper", (300, 50)),
        ("counting_samesymbol_shiftedstart3__tr25_te200__", (176, 8750)),
        ("debug", (8, 8)),
    ],
)
def test_files_have_as_many_rows_as_published(name: str, rows: tuple[int, int]) -> None:
    files = published.published_files(name, count=10)
    assert tuple(sum(map(len, files[f"{name}/{file}.txt"]())) for file in ("val", "ood_test")) == rows


def test_the_lengths_of_selective_tests_are_the_published_ones() -> None:
    ood = text(
        published.published_files("counting_selective_10items2bos", 10)["counting_selective_10items2bos/ood_test.txt"]()
    )
    lengths = [len(json.loads(line)[0]) - 1 for line in ood.splitlines()]
    assert {length: lengths.count(length) for length in set(lengths)} == dict.fromkeys(range(51, 100), 61)


def test_files_of_an_auxiliary_task_stand_beside_those_of_its_task(tmp_path: Path) -> None:
    rows = write_lines(
        published.published_lines("counting_samesymbol_shiftedstart3_addtablelarge", 5000), tmp_path / "x"
    )
    assert rows == {
        "counting_samesymbol_shiftedstart3/train.txt": 5000,
        "counting_samesymbol_shiftedstart3/val.txt": 50,
        "counting_samesymbol_shiftedstart3/ood_test.txt": 1225,
        "counting_samesymbol_shiftedstart3/addtable_test.txt": 4950,
        "addtable_large/train.txt": 5000,
    }
    train = (tmp_path / "x" / "addtable_large" / "train.txt").read_text().splitlines()
    assert train[0] == '[["1", "1"], ["1", "2"]]'
    assert train[4950:] == train[:50]
    assert published.num_rows("counting_samesymbol_shiftedstart3_addtablelarge") == 1_499_950
    assert published.num_rows("counting_samesymbol_plain", 7) == 7
    assert published.num_rows("addbigram") == 100_000


def test_what_is_random_is_a_function_of_the_seed() -> None:
    def some(seed: int) -> bytes:
        return text(
            published.published_files("counting_diffsymbol_mod11", 20, seed)["counting_diffsymbol_mod11/val.txt"]()
        )

    assert some(3) == some(3) != some(4)


def test_a_command_writes_them_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "files"
    words = ["data", "write", "counting_samesymbol_mod10", f"out={out}", "count=60"]
    assert main([*words, "--as", "published"]) == 0
    assert "60 rows" in capsys.readouterr().out
    train = (out / "counting_samesymbol_mod10" / "train.txt").read_text().splitlines()
    assert json.loads(train[0]) == [["a"], ["1"]]
    assert train[50:] == train[:10]
    names = ["corrupted_tokenemb", "ood_test", "ood_test_100_200", "ood_test_long", "train", "val"]
    assert sorted(path.stem for path in (out / "counting_samesymbol_mod10").iterdir()) == names
    assert main([*words, "as=published"]) == 2
    assert "already exists; out= must be new" in capsys.readouterr().err
    for more, message in (
        (["as=publishd"], "as: must be published, not 'publishd'"),
        (["as=published", "task.count=3"], "task.count=3: the published files"),
    ):
        assert main([*words[:3], f"out={tmp_path / 'y'}", *more]) == 2
        assert message in capsys.readouterr().err
    assert main(["data", "write", "counting_mod10", "as=published", f"out={tmp_path / 'y'}"]) == 2
    assert "no published files for 'counting_mod10'" in capsys.readouterr().err
    assert not (tmp_path / "y").exists()


def test_a_name_that_was_not_published_is_refused_with_one_like_it() -> None:
    with pytest.raises(UserError, match="Did you mean 'counting_samesymbol_mod"):
        published.published_files("counting_samesymbol_mod12")

"""Promises of rows in files: text, Arrow folders as `datasets` saves them, and what was written here."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from numerate.errors import UserError
from numerate.text.tasks import columns, mapped_lines, row_files
from numerate.text.tasks.row_file_formats import open_row_file
from numerate.text.tasks.row_files import RowFile

PAD = dict(zip("0123456789+-x=", range(4, 18), strict=True)) | {" ": 0}  # the published code pads with spaces


def all_text(rows: RowFile) -> list[str]:
    return [rows.text(row) for row in range(rows.count)]


def save(folder: Path, rows: Sequence[Sequence[int]], batch: int = 2, column: str = "input_ids") -> None:
    """Writes what `datasets.Dataset.save_to_disk` writes: Arrow streams, and two JSON files."""
    arrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    schema = arrow.schema([(column, arrow.list_(arrow.int64()))])
    with arrow.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file:
        with arrow.ipc.new_stream(file, schema) as stream:
            for start in range(0, len(rows), batch):
                lists = arrow.array(rows[start : start + batch], type=arrow.list_(arrow.int64()))
                stream.write_batch(arrow.record_batch([lists], schema=schema))
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_format_type": None, "_split": folder.name}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {column: {"feature": {"dtype": "int64"}}}}))


def save_splits(folder: Path, **splits: Sequence[Sequence[int]]) -> None:
    for name, rows in splits.items():
        save(folder / name, rows)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))


def ids(text: str, width: int) -> list[int]:
    found = [*(PAD[character] for character in text), 3]
    return found + [0] * (width - len(found))


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b"1+2=3\n11+2=31\n", ["1+2=3", "11+2=31"]),
        (b"1+2=3\n11+2=31", ["1+2=3", "11+2=31"]),
        (b"1+2=3\r\n\r\n11+2=31\r\n", ["1+2=3", "11+2=31"]),
        (b"\n\n1+2=3\n\n", ["1+2=3"]),
        ("ζ:5,β:41=β,ζ\n:1=a\n".encode(), ["ζ:5,β:41=β,ζ", ":1=a"]),
        (b"x" * 40 + b"\n1\n", ["x" * 40, "1"]),
    ],
)
def test_text_is_read_line_by_line(content: bytes, rows: list[str], tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes(content)
    found = open_row_file(tmp_path / "rows.txt")
    assert all_text(found) == rows
    assert found.alphabet() == "".join(sorted(set("".join(rows))))
    codes, lengths = found.read(np.arange(found.count)[::-1].copy())
    assert ["".join(map(chr, row[:n])) for row, n in zip(codes.tolist(), lengths, strict=True)] == rows[::-1]
    assert not codes[np.arange(codes.shape[1]) >= lengths[:, None]].any()


def test_lines_are_found_across_the_pieces_that_a_file_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_lines, "_CHUNK_BYTES", 5)
    rows = ["1+2=3", "44+5=94", "", "6+6=21"]
    (tmp_path / "rows.txt").write_text("\n".join(rows))
    found = open_row_file(tmp_path / "rows.txt")
    assert all_text(found) == [row for row in rows if row]
    assert found.location(2).endswith("rows.txt, line 4")


def test_a_folder_of_text_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("3=c\n4=d\n")
    (tmp_path / "a.txt").write_text("1=a\n\n2=ü\n")
    found = open_row_file(tmp_path)
    assert all_text(found) == ["1=a", "2=ü", "3=c", "4=d"]
    assert found.location(1).endswith("a.txt, line 3")
    assert found.location(3).endswith("b.txt, line 2")
    codes, lengths = found.read(np.array([3, 0, 1]))
    assert ["".join(map(chr, codes[i, : lengths[i]])) for i in range(3)] == ["4=d", "1=a", "2=ü"]


@pytest.mark.parametrize("max_in_memory", [0, 1 << 23])
def test_a_tokenised_folder_is_read_as_the_published_code_wrote_it(
    tmp_path: Path, max_in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_IN_MEMORY", max_in_memory)
    monkeypatch.setenv("NUMERATE_CACHE", str(tmp_path / "cache"))
    texts = ["321+654=975", "1+9=01", "5x5=52", "12 + 34 = 64", "7-8=1-"]
    save_splits(
        tmp_path / "hf", train=[ids(text, 20) for text in texts[:3]], test=[ids(text, 20) for text in texts[3:]]
    )
    assert all_text(open_row_file(tmp_path / "hf")) == texts
    assert all_text(open_row_file(tmp_path / "hf", split="test")) == texts[3:]
    assert all_text(open_row_file(tmp_path / "hf" / "train")) == texts[:3]
    found = open_row_file(tmp_path / "hf")
    codes, lengths = found.read(np.array([4, 1, 0, 1]))
    assert ["".join(map(chr, codes[i, : lengths[i]])) for i in range(4)] == [texts[4], texts[1], texts[0], texts[1]]
    assert "row 1" in found.location(4)
    assert (tmp_path / "cache" / "arrow").is_dir() == (not max_in_memory)


def test_a_set_whose_rows_are_all_in_the_test_split_is_read(tmp_path: Path) -> None:
    save_splits(tmp_path / "hf_tokenized_dataset", train=[], test=[ids("1+1=2", 8)])
    assert all_text(open_row_file(tmp_path)) == ["1+1=2"]
    assert all_text(open_row_file(tmp_path, split="test")) == ["1+1=2"]
    with pytest.raises(UserError, match="holds no rows"):
        open_row_file(tmp_path, split="train")


def test_the_vocabularies_of_hints_and_of_sorting_are_known(tmp_path: Path) -> None:
    save(tmp_path / "index", [[19, 4, 14, 120, 5, 17, 68, 6, 3]])
    assert all_text(open_row_file(tmp_path / "index", vocabulary="index")) == ["A0+ω1=y2"]
    save(tmp_path / "sort", [[19, 16, 5, 15, 117, 16, 4, 17, 117, 15, 19, 3]])
    assert all_text(open_row_file(tmp_path / "sort", vocabulary="sort")) == ["A:1,ω:0=ω,A"]
    sizes = {name: len(symbols) + 4 for name, symbols in row_files.VOCABULARIES.items()}
    assert sizes == {"pad": 19, "index": 121, "sort": 118}
    with pytest.raises(UserError, match=r"row 0: the id 19 is none of the 19 of vocabulary pad; others are: index"):
        open_row_file(tmp_path / "index").text(0)


def test_rows_with_a_beginning_or_without_an_end_are_read(tmp_path: Path) -> None:
    save(tmp_path / "x", [[2, 5, 14, 5, 17, 6, 3], [5, 14, 5, 17, 6, 0, 0], [0, 0, 0, 0, 0, 0, 0]])
    assert all_text(open_row_file(tmp_path / "x")) == ["1+1=2", "1+1=2", ""]


def test_what_cannot_be_read_is_refused_with_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; must be a text file with one row per line"):
        open_row_file(tmp_path / "nothing.txt")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(UserError, match="holds no rows"):
        open_row_file(tmp_path / "empty.txt")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="holds no rows; must be a text file"):
        open_row_file(tmp_path / "folder")
    (tmp_path / "some.txt").write_text("1=2\n")
    with pytest.raises(UserError, match=r"split: .* has no splits"):
        open_row_file(tmp_path / "some.txt", split="train")
    with pytest.raises(UserError, match=r"vocabulary: must be one of .*, not 'sorting'"):
        open_row_file(tmp_path / "some.txt", vocabulary="sorting")


def test_an_id_that_no_vocabulary_has_is_refused_whatever_its_size(tmp_path: Path) -> None:
    for number, token in enumerate((-1, 1 << 16, 1 << 40)):
        save(tmp_path / str(number), [ids("1+1=2", 8), [5, token, 3]])
        with pytest.raises(UserError, match=r"row 1: the id [0-9]+ is none of the 19"):
            open_row_file(tmp_path / str(number)).text(1)


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "text", [[5]], column="text")
    with pytest.raises(UserError, match="has no column input_ids; it has: text"):
        open_row_file(tmp_path / "text")
    save_splits(tmp_path / "hf", train=[ids("1+1=2", 8)])
    with pytest.raises(UserError, match="split: must be one of train, all, not 'tset'"):
        open_row_file(tmp_path / "hf", split="tset")
    (tmp_path / "hf" / "train" / "data-00000-of-00001.arrow").write_bytes(b"not arrow at all")
    with pytest.raises(UserError, match="is no Arrow stream"):
        open_row_file(tmp_path / "hf")
    (tmp_path / "hf" / "train" / "state.json").write_text(json.dumps({"_data_files": [], "_indices_files": ["i"]}))
    with pytest.raises(UserError, match="flatten_indices"):
        open_row_file(tmp_path / "hf")
    save(tmp_path / "lost", [ids("1+1=2", 8), [5, 1, 17, 5, 3]])
    with pytest.raises(UserError, match=r"row 1: holds \[UNK\]"):
        open_row_file(tmp_path / "lost").text(1)


def test_a_file_that_has_changed_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("1=a\n")
    assert open_row_file(path).count == 1
    path.write_text("1=a\n22=b\n")
    assert all_text(open_row_file(path)) == ["1=a", "22=b"]

"""Promises of questions in files of text: read as they stand, and what is broken is named by its file and line."""

import errno
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from numerate.errors import OperationalError, UserError
from numerate.text.tasks import columns, text_files
from numerate.text.tasks.readers import JSONLines, TabSeparated, TwoLines
from numerate.text.tasks.text_files import FileSource, StoredExamples, open_examples


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(source: StoredExamples | FileSource, rows: list[int] | None = None) -> list[tuple[str, str]]:
    index = np.arange(source.num_examples) if rows is None else np.array(rows)
    return [(pair.question, pair.answer) for pair in source.read_examples(index)]


LINES = [json.dumps({"question": f"{n}+1=", "answer": str(n + 1), "more": [n]}) for n in range(5)]


def test_json_lines_are_read_in_any_order(tmp_path: Path) -> None:
    found = open_examples(written(tmp_path / "a.jsonl", "\n".join(LINES)), JSONLines())
    assert found.num_examples == 5
    assert read(found, [3, 0, 3]) == [("3+1=", "4"), ("0+1=", "1"), ("3+1=", "4")]
    assert found.location(3) == f"{tmp_path}/a.jsonl, line 4"
    assert found.record_sizes.tolist() == [5] * 5


def test_blank_lines_and_windows_line_ends_are_no_questions(tmp_path: Path) -> None:
    found = open_examples(written(tmp_path / "a.jsonl", "\r\n" + "\r\n\r\n".join(LINES) + "\r\n\n\n"), JSONLines())
    assert read(found)[4] == ("4+1=", "5")
    assert found.num_examples == 5
    assert found.location(1) == f"{tmp_path}/a.jsonl, line 4"


def test_columns_are_read_and_what_is_behind_may_belong_to_the_last(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "3\tA joke\twith a tab\n11\tÄ\n")
    assert read(open_examples(path, TabSeparated(1, 0))) == [("A joke", "3"), ("Ä", "11")]
    assert read(open_examples(path, TabSeparated(1, 0, num_header_lines=1))) == [("Ä", "11")]
    assert read(open_examples(path, TabSeparated(1, 0, rest=True))) == [("A joke\twith a tab", "3"), ("Ä", "11")]
    assert open_examples(path, TabSeparated(1, 0)).used_characters >= set("AÄ311")


@pytest.mark.parametrize(
    ("lines", "pairs", "invalid"),
    [
        ("a b _ c d _ e f", "ab cd ef", None),
        ("_ a b _ _ c d _", "ab cd", None),
        ("a _ b _ c _ d", "ab cd", None),
        ("a _ b c d", "ab cd", None),
        ("a _ b c d _", "ab cd", None),
        ("a _ b _ c _ d _", "ab cd", None),
        ("a b c _ d e _", "ab de", "line 3: has no answer"),
        ("a b _ c d e", "ab cd", "line 6: is incomplete"),
        ("a b c _ d e", "ab de", "line 3: has no answer"),  # a blank line in the place of every answer that lacks
        ("a b c _ d _ e f", "ab ef", "line 3: has no answer"),
        ("a b _ c _ _ d e", "ab", "line 4: is incomplete"),
    ],
)
@pytest.mark.parametrize("blank", ["\n", "\r\n", "   \n", "\u00a0\n"])
def test_blank_lines_give_no_question_the_answer_of_another(
    lines: str, pairs: str, invalid: str | None, blank: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.txt", "".join(blank if line == "_" else f"{line}\n" for line in lines.split()))
    if invalid is not None:
        with pytest.raises(UserError, match=invalid):
            open_examples(path, TwoLines())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = open_examples(path, TwoLines(), skip_invalid=True)
    assert ["".join(pair) for pair in read(found)] == pairs.split()
    assert [found.location(n).split()[-1] for n in range(len(pairs.split()))] == [
        str(lines.split().index(pair[0]) + 1) for pair in pairs.split()
    ]


@dataclass(frozen=True)
class Counted(TwoLines):
    """Counts how often records are read."""

    num_read: ClassVar[int] = 0

    def parse(self, record: str) -> tuple[str, str]:
        Counted.num_read += 1
        return super().parse(record)


@pytest.fixture
def everything_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_IN_MEMORY", 0)
    monkeypatch.setattr(text_files, "_CHUNK_EXAMPLES", 7)
    monkeypatch.setenv("NUMERATE_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("everything_is_large")
def test_a_large_file_is_read_once_and_mapped(tmp_path: Path) -> None:
    pairs = [(f"Wie groß ist {n} mal {n}?", str(n * n)) for n in range(40)]
    path = written(tmp_path / "a.txt", "".join(f"{question}\n {answer}\r\n" for question, answer in pairs))
    for opened in range(2):
        text_files._open_cached.cache_clear()
        found = open_examples(path, Counted())
        assert Counted.num_read == 40
        assert isinstance(found._columns["text"], np.memmap)
        assert read(found) == pairs
        assert read(found, [39, 3, 3]) == [pairs[39], pairs[3], pairs[3]]
        assert found.location(2) == f"{path}, line 5"
        assert found.question_mask(frozenset({pairs[8][0], "?"})).tolist() == [n == 8 for n in range(40)]
        moved = written(tmp_path / f"moved{opened}.txt", path.read_bytes())
        assert open_examples(moved, Counted()).location(2) == f"{moved}, line 5"
    assert Counted.num_read == 40, "what has the same content is the same"
    written(path, path.read_bytes() + b"Was?\nDas.\n")
    assert read(open_examples(path, Counted()))[40:] == [("Was?", "Das.")]


@pytest.mark.usefixtures("everything_is_large")
def test_a_broken_line_of_a_large_file_is_named_whenever_it_is_opened(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", "\n".join([*LINES * 4, "{"]))
    for _ in range(2):
        text_files._open_cached.cache_clear()
        with pytest.raises(UserError, match=r"a\.jsonl, line 21: is not valid JSON"):
            open_examples(path, JSONLines())
        with pytest.warns(UserWarning, match=r"^1 record skipped as invalid.*/a\.jsonl, line 21: "):
            assert open_examples(path, JSONLines(), skip_invalid=True).num_examples == 20


@pytest.mark.usefixtures("everything_is_large")
def test_what_a_killed_process_or_a_full_disk_left_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.jsonl", "\n".join(LINES * 4))
    text_files._open_cached.cache_clear()
    with monkeypatch.context() as full:
        full.setattr(columns.ColumnWriter, "write_head", raise_disk_full)
        with pytest.raises(OperationalError, match=r"examples: cannot be written .*No space.*NUMERATE_CACHE"):
            open_examples(path, JSONLines())
    (partial,) = (tmp_path / "cache" / "examples").glob(".*.partial")
    assert (partial / "text").stat().st_size
    (partial / "lines").write_bytes(b"half")
    assert read(open_examples(path, JSONLines())) == [(f"{n}+1=", str(n + 1)) for n in range(5)] * 4
    assert not partial.exists()


def raise_disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_empty_file_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    for reader in (JSONLines(), TwoLines()):
        with pytest.raises(UserError, match="has no question that can be read"):
            open_examples(written(tmp_path / "none", "\n"), reader)
    with pytest.raises(UserError, match="cannot be read"):
        open_examples(tmp_path / "nowhere", JSONLines())


def test_a_fingerprint_is_of_the_content_and_of_how_it_is_read(tmp_path: Path) -> None:
    one, other = (written(tmp_path / name, "a\tb\n") for name in ("one", "other"))
    prints = [open_examples(path, TabSeparated()).fingerprint for path in (one, other)]
    assert prints[0] == prints[1]
    assert open_examples(one, TabSeparated(1, 0)).fingerprint != prints[0]
    written(one, "a\tc\n")
    assert open_examples(one, TabSeparated()).fingerprint != prints[0], "a file that has changed is opened anew"


def test_several_files_are_one(tmp_path: Path) -> None:
    files = [open_examples(written(tmp_path / f"{n}.txt", f"q{n}\n{n}\nr{n}\n{n}\n"), TwoLines()) for n in range(3)]
    joined = FileSource(files)
    assert read(joined, [5, 0, 2]) == [("r2", "2"), ("q0", "0"), ("q1", "1")]
    assert joined.location(4) == f"{tmp_path}/2.txt, line 1"
    assert joined.record_sizes().tolist() == [3] * 6
    assert joined.fingerprint != FileSource(files[:2]).fingerprint
    assert joined.question_mask(frozenset({"q1", "r2", "0"})).tolist() == [False, False, True, False, False, True]

"""Promises of documents from files: all of them, in their order, with errors that name file and record."""

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numerate.errors import UserError
from numerate.text.data import documents as reading
from numerate.text.data.documents import FileSpan, ReadProgress, detect_file_span, read_documents, split_file_span

STORIES = [" One cat.\n", 'Zwei K\u00e4tzchen \U0001f600 "quoted" \\ ', "", "Three\n\nlines\n"]


def read(path: Path, field: str | None = None, separator: str = reading.SEPARATOR) -> list[str]:
    return [*read_documents(detect_file_span(path, field, separator), ReadProgress())]


@pytest.fixture(params=[1 << 20, 7])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Files are read in chunks of a megabyte, and, so that everything falls on a border once, of seven bytes."""
    monkeypatch.setattr(reading, "_CHUNK_BYTES", request.param)
    return int(request.param)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("ascii", [True, False])
def test_shards_of_tiny_stories_are_read(tmp_path: Path, chunk: int, indent: int | None, ascii: bool) -> None:
    path = tmp_path / "data00.json"
    records = [{"story": story, "instruction": {"words": ["]", "}"], "n": 1.5}} for story in STORIES]
    path.write_text(json.dumps(records, indent=indent, ensure_ascii=ascii) + "\n", encoding="utf-8")
    seen = ReadProgress()
    assert [*read_documents(detect_file_span(path), seen)] == [story.strip() for story in STORIES]
    assert (seen.num_records, seen.hasher.hexdigest()) == (4, hashlib.sha256(path.read_bytes()).hexdigest())


def test_lines_of_json_are_read(tmp_path: Path, chunk: int) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": story, "id": 3}, ensure_ascii=False) for story in STORIES]
    path.write_text("\ufeff" + "\n\n".join(lines), encoding="utf-8")
    assert read(path) == [story.strip() for story in STORIES]
    path.write_text("\n".join(json.dumps({"body": story}) for story in STORIES) + "\n")
    assert read(path, field="body") == [story.strip() for story in STORIES]


def test_line_ends_within_records_are_those_of_unix(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a\\r\\nb\\rc\\n"}\r\n{"text": "d"}\r')
    assert read(path) == ["a\nb\nc", "d"]


def test_ids_of_gpt2_are_read_also_where_they_are_no_utf_8(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"One": 0, "\u0120cat": 1, "\u00c3": 2, "\u00a4": 3}', encoding="utf-8")
    path, vocabulary = tmp_path / "a.bin", str(tmp_path / "vocab.json")
    path.write_bytes(np.array([0, 1, 50256, 2, 3, 50256, 1, 2, 50256], dtype="<u2").tobytes())
    whole = FileSpan(path, "gpt2", vocabulary, end=path.stat().st_size)
    assert [*read_documents(whole, ReadProgress())] == ["One cat", "\u00e4", "cat\ufffd"]
    with pytest.raises(UserError, match="is not a complete file of GPT-2 ids"):
        list(read_documents(replace(whole, end=whole.end - 2), ReadProgress()))


def test_texts_are_cut_at_their_separator_and_what_is_blank_is_none(tmp_path: Path, chunk: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\ufeff" + "<|endoftext|>\n".join(STORIES) + "\n<|endoftext|>\n", encoding="utf-8")
    assert read(path) == [story.strip() for story in STORIES if story]
    for line_end in (b"\n", b"\r\n", b"\r"):
        path.write_bytes(b"a\n\nb\nc\n\nd \r\n\n\n".replace(b"\n", line_end))
        assert read(path, separator="\n\n") == read(path, separator="\r\n\r\n") == ["a", "b\nc", "d"]
        assert read(path) == ["a\n\nb\nc\n\nd"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text("ab<|\n\r\u00e9", max_size=12), max_size=20),
    st.integers(1, 60),
    st.sampled_from([reading.SEPARATOR, "\n\n"]),
)
def test_the_parts_of_a_file_have_its_documents(tmp_path: Path, texts: list[str], portion: int, between: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(between.join(texts).encode() + b".")
    whole = detect_file_span(path, separator=between)
    parts = split_file_span(whole, portion)
    assert all(one.end == other.start for one, other in pairwise(parts))
    assert (parts[0].start, parts[-1].end) == (0, whole.end)
    assert [text for part in parts for text in read_documents(part, ReadProgress())] == [
        *read_documents(whole, ReadProgress())
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'[{"story": "a"}, {"story": "b', "record 2: is incomplete JSON"),
        ("a.json", b'[{"story": "a"}', "record 2: is not there, and the list has not ended"),
        ("a.json", b'[{"story": "a"}, {"stor', "record 2: is incomplete JSON"),
        ("a.json", b'[{"story": "a"} {"story": "b"}]', "record 2: before it stands '{'"),
        ("a.json", b'[{"story": "a"}] x', "record 2: follows the end of the list"),
        ("a.json", b'[{"story": "a"}, 3]', "record 2: must be a JSON object with 'story', not a number"),
        ("a.json", b'[{"story": "a"}, {"text": "b"}]', "record 2: has no 'story'; it has: 'text'"),
        ("a.json", b'[{"story": null}]', "record 1: 'story' must be a string, not NoneType"),
        ("a.json", b'[{"story": "a"}, {"story": "\xff"}]', "is not valid UTF-8"),
        ("a.json", b"<html>", "begins with b'<html>'"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"', "record 2: is not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', "record 2: has no 'text'"),
        ("a.txt", b"a<|endoftext|>b\xff", "record 2: is not valid UTF-8"),
        ("a.txt", b"", "is empty"),
        ("a.txt", b"\x1f\x8b123", "is compressed"),
        ("a.parquet", b"PAR1123", "is Parquet"),
    ],
)
def test_errors_name_file_and_record(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


def test_a_long_text_is_read_in_pieces_that_end_with_a_line_or_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_DOCUMENT_SIZE", 1000)
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 7)
    path, seen = tmp_path / "a.txt", ReadProgress()
    whole = [("w\u00e4re " * 9 + "\n") * 60, "\u00e4\u20ac " * 700, "\u20ac" * 900, "short"]
    path.write_text("<|endoftext|>".join(whole), encoding="utf-8")
    found = [(piece, seen.num_records) for piece in read_documents(detect_file_span(path), seen)]
    assert max(len(piece.encode()) for piece, _ in found) <= 1007
    assert seen.num_records == 4
    for number, text in enumerate(whole):
        pieces = [piece for piece, record in found if record == number]
        assert " ".join(pieces).split() == text.split() or "".join(pieces) == text
        assert (len(pieces) > 2) == (number < 3)


def test_a_record_that_never_ends_is_reported_and_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_DOCUMENT_SIZE", 1000)
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 100)
    (tmp_path / "a.jsonl").write_text('{"text": "' + "x" * 5000 + '"}\n')
    with pytest.raises(UserError, match=r"record 1: has more than 1,000 bytes before the line ends"):
        read(tmp_path / "a.jsonl")
    (tmp_path / "a.json").write_text('[{"story": ' + "x" * 5000)
    with pytest.raises(UserError, match="record 1: is not valid JSON"):
        read(tmp_path / "a.json")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match="separator: must not be empty"):
        detect_file_span(tmp_path / "a.txt", separator="")

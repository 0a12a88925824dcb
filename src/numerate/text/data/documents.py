"""Reads documents from files one at a time, in constant memory.

Four forms: a list of objects in JSON (the shards of TinyStories, `story`), one object per line (`text`), plain text
with a separator between documents (`<|endoftext|>`), and ids of GPT-2. Line ends are those of Unix in all of them.
"""

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

from numerate.errors import UserError
from numerate.text.tasks.fetched_files import check_unmodified
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.readers import JSON_DECODER, parse_json, read_fields
from numerate.text.tasks.text_files import file_stamp

SEPARATOR = "<|endoftext|>"
DEFAULT_TEXT_FIELDS = {"list": "story", "lines": "text"}
"""Default field with the text of a record."""

MAX_DOCUMENT_SIZE = 1 << 22
"""Maximum size of a document in memory, in bytes or characters: a longer text is read in parts, a longer JSON record is
an error."""

_UNSUPPORTED_STARTS = {
    **dict.fromkeys((b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd"), "is compressed; unpack it first"),
    b"PAR1": "is Parquet; convert it to JSON lines first",
    b"": "is empty (disk full, or download interrupted?)",
}
"""What is wrong with a file that begins with these bytes."""

_CHUNK_BYTES = 1 << 20
_GPT2_EOS_ID = 50256


@dataclass(frozen=True)
class FileSpan:
    """A file of documents, or the bytes `start` to `end` of one."""

    path: Path
    form: Literal["list", "lines", "text", "gpt2"]
    field: str = ""
    """The field with the text of a record; for GPT-2 ids the vocabulary file."""
    separator: str = SEPARATOR
    start: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass
class ReadProgress:
    """What has been read of a part so far: `num_records` (also empty ones), and a hash of its bytes. The parts of a
    long document are one record."""

    num_records: int = 0
    hasher: Any = field(default_factory=hashlib.sha256)


def detect_file_span(path: Path, field: str | None = None, separator: str = SEPARATOR) -> FileSpan:
    """The span of a whole file; its format follows from the suffix and the first character. Raises `UserError` for a
    file that cannot be read."""
    _, size, _ = file_stamp(path)
    try:
        with open(path, "rb") as file:
            first_bytes = file.read(64)
    except OSError as error:
        raise file_error(path, f"cannot be read ({error.strerror})") from error
    for start, problem in _UNSUPPORTED_STARTS.items():
        if first_bytes.startswith(start) and (start or not size):
            raise file_error(path, problem)
    check_unmodified(path)
    first_byte = first_bytes.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    form: Literal["list", "lines", "text"] = "text"
    if path.suffix in (".json", ".jsonl", ".ndjson"):
        if first_byte not in (b"[", b"{"):
            raise file_error(path, f"begins with {first_bytes[:8]!r} and is not JSON records; download it again")
        form = "list" if first_byte == b"[" else "lines"
    if form == "text" and not separator:
        raise UserError(f"separator: must not be empty; for example {SEPARATOR}")
    separator = separator.replace("\r\n", "\n").replace("\r", "\n")
    return FileSpan(path, form, field or DEFAULT_TEXT_FIELDS.get(form, ""), separator, 0, size)


def split_file_span(span: FileSpan, part_bytes: int) -> list[FileSpan]:
    """Splits a file into spans of about `part_bytes` bytes at separators or line ends; a JSON list is not split."""
    if span.form in ("list", "gpt2") or span.size <= part_bytes:
        return [span]
    separator = b"\n" if span.form == "lines" else span.separator.encode()
    boundaries = [0]
    with open(span.path, "rb") as file:
        while (
            boundary := _find_separator_end(file, boundaries[-1] + part_bytes, separator)
        ) is not None and boundary < span.end:
            boundaries.append(boundary)
    if len(boundaries) > 1 and span.end - boundaries[-1] < part_bytes // 8:
        boundaries.pop()
    return [
        replace(span, start=start, end=end) for start, end in zip(boundaries, [*boundaries[1:], span.end], strict=True)
    ]


def _find_separator_end(file: BufferedReader, start: int, separator: bytes) -> int | None:
    """The end of the first separator at or after `start`; None if there is none."""
    file.seek(start)
    pattern, tail = re.compile(re.escape(separator).replace(b"\\\n", b"(?:\r\n|\r(?!\n)|\n)")), b""
    while chunk := _read_chunk(file, _CHUNK_BYTES):
        if found := pattern.search(tail + chunk):
            return start - len(tail) + found.end()
        start += len(chunk)
        tail = (tail + chunk)[-2 * len(separator) :]
    return None


def _read_chunk(file: BufferedReader, max_bytes: int) -> bytes:
    """At most so many bytes, or one more, so that no Windows line end is divided."""
    chunk = file.read(max_bytes)
    return chunk + file.read(1) if chunk.endswith(b"\r") and file.peek(1)[:1] == b"\n" else chunk


def read_documents(span: FileSpan, progress: ReadProgress) -> Iterator[str]:
    """The documents of a part, stripped of white space at their ends, with `\\n` for every line end (`\\r\\n`, `\\r`).
    `progress` counts what is read.

    Of a list or of lines an empty text is a document too; of plain text it is none, and what has more than
    `MAX_DOCUMENT_SIZE` bytes comes in pieces of about as many, one after the other. Raises `UserError` with file and
    record where one cannot be read, and for a file that ends in the middle of a record.
    """
    readers: dict[str, Callable[[FileSpan, ReadProgress], Iterator[str]]]
    readers = {"list": _read_json_list, "lines": _read_json_lines, "text": _read_text, "gpt2": _read_gpt2_ids}
    try:
        for text in readers[span.form](span, progress):
            yield text.replace("\r\n", "\n").replace("\r", "\n").strip()
    except (ValueError, RecursionError, OSError) as error:
        since = f" from byte {span.start:,} on" if span.start else ""
        problem = str(error)
        if isinstance(error, UnicodeDecodeError):
            problem = f"is not valid UTF-8 ({error.reason}); is the file damaged?"
        elif isinstance(error, OSError):
            problem = f"cannot be read ({error.strerror})"
        raise file_error(f"{span.path}, record {progress.num_records + 1:,}{since}", problem) from error


def _read_chunks(span: FileSpan, progress: ReadProgress) -> Iterator[bytes]:
    with open(span.path, "rb") as file:
        file.seek(span.start)
        bytes_left = span.size
        while bytes_left > 0:
            chunk = _read_chunk(file, min(_CHUNK_BYTES, bytes_left))
            if not chunk:
                raise ValueError(f"the file became {bytes_left:,} bytes shorter while it was read")
            progress.hasher.update(chunk)
            bytes_left -= len(chunk)
            yield chunk


def _split_at_separator(span: FileSpan, progress: ReadProgress, separator: bytes) -> Iterator[tuple[bytes, bool]]:
    """The texts between separators, and whether each ends there; those above `MAX_DOCUMENT_SIZE` come in pieces."""
    remainder = b""
    for number, chunk in enumerate(_read_chunks(span, progress)):
        if number == 0 and span.start == 0:
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *complete, remainder = (remainder + chunk).split(separator)
        for text in complete:
            yield text, True
        while len(remainder) > MAX_DOCUMENT_SIZE:
            cut = _piece_end(
                remainder, min(MAX_DOCUMENT_SIZE, len(remainder) - len(separator))
            )  # the separator's first bytes may be the last ones
            yield remainder[:cut], False
            remainder = remainder[cut:]
    yield remainder, True


def _piece_end(text: bytes, max_bytes: int) -> int:
    """Where a piece of at most so many bytes ends: at the end of a line, else of a word, else of a character."""
    for whitespace in (b"\n", b" "):
        if (index := text.rfind(whitespace, max_bytes // 2, max_bytes)) >= 0:
            return index + 1
    return next((cut for cut in range(max_bytes, max_bytes - 4, -1) if text[cut] & 0xC0 != 0x80), max_bytes)


def _read_text(span: FileSpan, progress: ReadProgress) -> Iterator[str]:
    for text, is_complete in _split_at_separator(span, progress, span.separator.encode()):
        document = text.decode("utf-8")
        if document and not document.isspace():
            yield document
        progress.num_records += is_complete


def _read_json_lines(span: FileSpan, progress: ReadProgress) -> Iterator[str]:
    for line, is_complete in _split_at_separator(span, progress, b"\n"):
        if not is_complete:
            raise ValueError(
                f"has more than {MAX_DOCUMENT_SIZE:,} bytes before the line ends; each line must be one JSON object"
            )
        text = line.decode("utf-8")
        if text.strip():
            yield _record_text(parse_json(text), span.field)
        progress.num_records += 1


def _read_json_list(span: FileSpan, progress: ReadProgress) -> Iterator[str]:
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    chunks = _read_chunks(span, progress)
    parse = JSON_DECODER.raw_decode
    text, position, is_end = "", 0, False

    def read_more() -> bool:
        nonlocal text, position, is_end
        chunk = next(chunks, None)
        text, position = text[position:] + decode(chunk or b"", chunk is None), 0
        is_end = chunk is None
        return not is_end

    def peek() -> str:
        """The next character that is no white space; none at the end."""
        nonlocal position
        while True:
            while position < len(text) and text[position] in " \t\r\n":
                position += 1
            if position < len(text) or not read_more():
                return text[position : position + 1]

    peek()
    position += 1  # the bracket, by which the form is known
    next_character = peek()
    while next_character != "]":
        while True:
            try:
                record, position = parse(text, position)
                break
            except json.JSONDecodeError as error:
                if len(text) - position > MAX_DOCUMENT_SIZE:
                    raise ValueError(f"is not valid JSON ({error.msg})") from error
                if is_end or not read_more():
                    raise ValueError(
                        f"is incomplete JSON ({error.msg}) at the end of the file; download it again"
                    ) from error
        yield _record_text(record, span.field)
        progress.num_records += 1
        next_character = peek()
        if next_character == ",":
            position += 1
            next_character = peek()
        elif next_character != "]":
            what = f"before it stands {next_character!r} instead of a comma" if next_character else "is not there"
            raise ValueError(f"{what}, and the list has not ended; is the file truncated? download it again")
    position += 1
    if peek():
        raise ValueError("follows the end of the list; the file is damaged")


def _read_gpt2_ids(span: FileSpan, progress: ReadProgress) -> Iterator[str]:
    """The stories of a file of ids of GPT-2, uint16, each closed by its end of text."""
    import numpy as np

    from tokenizers import decoders

    decoder, vocabulary = decoders.ByteLevel(), json.loads(Path(span.field).read_text(encoding="utf-8"))
    tokens = {i: token for token, i in vocabulary.items()}
    content = b"".join(_read_chunks(span, progress))
    ids = np.frombuffer(content[: len(content) // 2 * 2], dtype="<u2")
    if not len(ids) or int(ids.max()) > _GPT2_EOS_ID or ids[-1] != _GPT2_EOS_ID:
        raise ValueError("is not a complete file of GPT-2 ids; download it again")
    for story in np.split(ids, np.flatnonzero(ids == _GPT2_EOS_ID) + 1)[:-1]:
        yield decoder.decode([tokens[i] for i in story[:-1].tolist()])
        progress.num_records += 1


def _record_text(record: Any, field: str) -> str:
    try:
        text: str = read_fields(record, {field: str})[field]
    except ValueError as error:
        raise ValueError(f"{error}; set another with field=") from error
    text.encode()  # raises `ValueError` for half of a surrogate pair
    return text

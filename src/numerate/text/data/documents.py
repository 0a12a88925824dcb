"""Reads documents from files one at a time, in constant memory.

Four forms: a list of objects in JSON (the shards of TinyStories, `story`), an object a line (`text`), plain text with a
separator between documents (`<|endoftext|>`), and ids of GPT-2.
"""

import codecs
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from numerate.errors import UserError
from numerate.text.tasks.fetched_files import refuse_edited
from numerate.text.tasks.readers import HALVES, JSON, kind_of
from numerate.text.tasks.text_files import stamp

SEPARATOR = "<|endoftext|>"
FIELDS = {"list": "story", "lines": "text"}
"""Default field with the text of a record."""

MOST = 1 << 22
"""Most bytes, or characters, of a document in memory: a longer text is read in pieces, a longer JSON record is
an error."""

_CHUNK = 1 << 20
_GPT2_END = 50256


@dataclass(frozen=True)
class FileSpan:
    """A file of documents, or the bytes `begin` to `end` of one."""

    path: Path
    form: Literal["list", "lines", "text", "gpt2"]
    field: str = ""
    """The field with the text of a record; for GPT-2 ids the vocabulary file."""
    separator: str = SEPARATOR
    begin: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass
class ReadSoFar:
    """What has been read of a part so far: `records` (also empty ones), and a hash of its bytes. The pieces of a long
    document are one record."""

    records: int = 0
    sum: Any = field(default_factory=hashlib.sha256)


def part_of(path: Path, field: str | None = None, separator: str = SEPARATOR) -> FileSpan:
    """A whole file, in the form that its name and its first character say. Raises `UserError` for what cannot
    be read."""
    try:
        with open(path, "rb") as file:
            begin = file.read(64)
            size = file.seek(0, 2)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); a file of texts is right") from error
    if not size:
        raise UserError(f"{path}: is empty; a file of texts is right (was its disk full, or its download stopped?)")
    if begin[:2] == b"\x1f\x8b" or begin[:4] in (b"PK\x03\x04", b"\x28\xb5\x2f\xfd"):
        raise UserError(f"{path}: is compressed; unpack it first")
    if begin[:4] == b"PAR1":
        raise UserError(f"{path}: is Parquet; JSON lines of it are right")
    refuse_edited(path)
    first = begin.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    form: Literal["list", "lines", "text"] = "text"
    if path.suffix in (".json", ".jsonl", ".ndjson"):
        if first not in (b"[", b"{"):
            raise UserError(f"{path}: begins with {begin[:8]!r}, as no JSON of records does; fetch it anew")
        form = "list" if first == b"[" else "lines"
    if form == "text" and not separator:
        raise UserError(f"separator: is empty; what stands between documents is right, such as {SEPARATOR}")
    return FileSpan(path, form, field or FIELDS.get(form, ""), separator, 0, size)


def parts_of(whole: FileSpan, portion: int) -> list[FileSpan]:
    """A file as parts of about `portion` bytes that begin behind a separator, or with a line; a list stays whole."""
    if whole.form in ("list", "gpt2") or whole.size <= portion:
        return [whole]
    apart = b"\n" if whole.form == "lines" else whole.separator.encode()
    cuts = [0]
    with open(whole.path, "rb") as file:
        while (cut := _behind(file, cuts[-1] + portion, apart)) is not None and cut < whole.end:
            cuts.append(cut)
    if len(cuts) > 1 and whole.end - cuts[-1] < portion // 8:
        cuts.pop()
    return [replace(whole, begin=one, end=next_) for one, next_ in zip(cuts, [*cuts[1:], whole.end], strict=True)]


def _behind(file: BinaryIO, start: int, apart: bytes) -> int | None:
    """Where the first separator from `start` on ends; None where there is none."""
    file.seek(start)
    tail = b""
    while chunk := file.read(_CHUNK):
        found = (tail + chunk).find(apart)
        if found >= 0:
            return start - len(tail) + found + len(apart)
        start += len(chunk)
        tail = (tail + chunk)[-(len(apart) - 1) :] if len(apart) > 1 else b""
    return None


def documents(part: FileSpan, read: ReadSoFar) -> Iterator[str]:
    """The documents of a part, stripped of white space at their ends. `read` counts what is read.

    Of a list or of lines an empty text is a document too; of plain text it is none, and what has more than `MOST` bytes
    comes in pieces of about as many, one after the other. Raises `UserError` with file and
    record where one cannot be read, and for a file that ends in the middle of a record.
    """
    forms: dict[str, Callable[[FileSpan, ReadSoFar], Iterator[str]]]
    forms = {"list": _listed, "lines": _lines, "text": _texts, "gpt2": _of_gpt2}
    try:
        for text in forms[part.form](part, read):
            yield text.strip()
    except UnicodeDecodeError as error:
        raise UserError(f"{_where(part, read)}: is no text in UTF-8 ({error.reason}); is the file damaged?") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{_where(part, read)}: {error}") from error
    except OSError as error:
        raise UserError(f"{_where(part, read)}: cannot be read ({error.strerror})") from error


def _where(part: FileSpan, read: ReadSoFar) -> str:
    since = f" from byte {part.begin:,} on" if part.begin else ""
    return f"{part.path}, record {read.records + 1:,}{since}"


def _chunks(part: FileSpan, read: ReadSoFar) -> Iterator[bytes]:
    with open(part.path, "rb") as file:
        file.seek(part.begin)
        left = part.size
        while left:
            chunk = file.read(min(_CHUNK, left))
            if not chunk:
                raise ValueError(f"the file has become shorter by {left:,} bytes while it was read")
            read.sum.update(chunk)
            left -= len(chunk)
            yield chunk


def _between(part: FileSpan, read: ReadSoFar, apart: bytes) -> Iterator[tuple[bytes, bool]]:
    """The texts between separators, and whether each ends there: longer ones than `MOST` come in pieces."""
    rest = b""
    for number, chunk in enumerate(_chunks(part, read)):
        if number == 0 and part.begin == 0:
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        *whole, rest = (rest + chunk).split(apart)
        for one in whole:
            yield one, True
        while len(rest) > MOST:
            cut = _cut(rest, min(MOST, len(rest) - len(apart)))  # the separator's first bytes may be the last ones
            yield rest[:cut], False
            rest = rest[cut:]
    yield rest, True


def _cut(text: bytes, most: int) -> int:
    """Where a piece of at most so many bytes ends: at the end of a line, else of a word, else of a character."""
    for white in (b"\n", b" "):
        if (found := text.rfind(white, most // 2, most)) >= 0:
            return found + 1
    return next((cut for cut in range(most, most - 4, -1) if text[cut] & 0xC0 != 0x80), most)


def _texts(part: FileSpan, read: ReadSoFar) -> Iterator[str]:
    for text, ended in _between(part, read, part.separator.encode()):
        found = text.decode("utf-8")
        if found and not found.isspace():
            yield found
        read.records += ended


def _lines(part: FileSpan, read: ReadSoFar) -> Iterator[str]:
    for line, ended in _between(part, read, b"\n"):
        if not ended:
            raise ValueError(f"has more than {MOST:,} bytes before the line ends; a JSON object a line is right")
        text = line.decode("utf-8")
        if text.strip():
            try:
                record = JSON.decode(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"is no JSON ({error}); is the file cut off?") from error
            yield _text(record, part.field)
        read.records += 1


def _listed(part: FileSpan, read: ReadSoFar) -> Iterator[str]:
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    chunks = _chunks(part, read)
    parse = JSON.raw_decode
    text, at, over = "", 0, False

    def more() -> bool:
        nonlocal text, at, over
        chunk = next(chunks, None)
        text, at = text[at:] + decode(chunk or b"", chunk is None), 0
        over = chunk is None
        return not over

    def upcoming() -> str:
        """The next character that is no white space; none at the end."""
        nonlocal at
        while True:
            while at < len(text) and text[at] in " \t\r\n":
                at += 1
            if at < len(text) or not more():
                return text[at : at + 1]

    upcoming()
    at += 1  # the bracket, by which the form is known
    following = upcoming()
    while following != "]":
        while True:
            try:
                record, at = parse(text, at)
                break
            except json.JSONDecodeError as error:
                if len(text) - at > MOST:
                    raise ValueError(f"is no JSON ({error.msg})") from error
                if over or not more():
                    raise ValueError(
                        f"is no whole JSON ({error.msg}), and then the file ends; fetch it anew"
                    ) from error
        yield _text(record, part.field)
        read.records += 1
        following = upcoming()
        if following == ",":
            at += 1
            following = upcoming()
        elif following != "]":
            what = f"before it stands {following!r} instead of a comma" if following else "is not there"
            raise ValueError(f"{what}, and the list has not ended; is the file cut off? fetch it anew")
    at += 1
    if upcoming():
        raise ValueError("stands behind the end of the list; the file is damaged")


def _of_gpt2(part: FileSpan, read: ReadSoFar) -> Iterator[str]:
    """The stories of a file of ids of GPT-2, uint16, each closed by its end of text."""
    import numpy as np

    pieces = _gpt2_pieces(stamp(Path(part.field)))
    content = b"".join(_chunks(part, read))
    ids = np.frombuffer(content[: len(content) // 2 * 2], dtype="<u2")
    if not len(ids) or int(ids.max()) > _GPT2_END or ids[-1] != _GPT2_END:
        raise ValueError("holds no stories in ids of GPT-2, or not all of them; fetch it anew")
    for story in np.split(ids, np.flatnonzero(ids == _GPT2_END) + 1)[:-1]:
        yield b"".join([pieces[i] for i in story[:-1].tolist()]).decode("utf-8", "replace")
        read.records += 1


@lru_cache(maxsize=1)
def _gpt2_pieces(vocabulary: tuple[str, int, int]) -> dict[int, bytes]:
    """The bytes of each id of GPT-2, whose vocabulary shows a byte that is no visible character as one from 256 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {256 + n: byte for n, byte in enumerate(sorted({*range(256)}.difference(shown)))}
    names = json.loads(Path(vocabulary[0]).read_text(encoding="utf-8"))
    return {i: name.translate(letters).encode("latin-1") for name, i in names.items()}


def _text(record: Any, name: str) -> str:
    if not isinstance(record, dict):
        raise ValueError(f"is {kind_of(record)}, no object with a field {name!r}")
    if name not in record:
        raise ValueError(f"has no field {name!r} (it has: {', '.join(map(repr, record))}); field= names another")
    found = record[name]
    if not isinstance(found, str):
        raise ValueError(f"its {name!r} is {kind_of(found)}, no text")
    if not found.isascii() and HALVES.search(found):
        raise ValueError("has half of a surrogate pair, which is no character")
    return found

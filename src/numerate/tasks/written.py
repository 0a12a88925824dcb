"""Questions that are written in files: data of other systems, or of `numerate data write`."""

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import Mistake, did_you_mean
from numerate.tasks import decimals
from numerate.tasks.arithmetic import OPERATORS, Arithmetic
from numerate.tasks.contents import named
from numerate.tasks.draws import Draws, key
from numerate.tasks.labelled_files import LabelledFile, open_rows
from numerate.tasks.questions import EMPTY, Numbers, Questions, mix, text_hash
from numerate.tasks.row_files import VOCABULARIES, Characters, RowFile, rows_at_once
from numerate.tasks.task import SPLITS, Task

_SUM = re.compile(r"([0-9]+)([^0-9=])([0-9]+)=(-?[0-9]+-?)")
_WHOLE = 1 << 28
"""So many characters rows have at most that are held at once."""

_LOOKED_AT = 1000
"""How many rows are read to see what a file holds."""

_SIGNS = "+-x"
WAYS = {"reversed": (True, True, True), "normal": (False, False, False), "answer reversed": (False, False, True)}
"""Which of the three numbers of a sum stand units first."""

_ZEROS = np.uint64(0x3030303030303030)
"""Eight times the character 0: what a digit's byte is more than the digit."""


@dataclass(frozen=True)
class Written(Task):
    """Rows of a file, such as `321+654=975`, split at the equals sign into question and answer.

    `path` is a text file with a row per line, a folder of `*.txt`, a folder that Hugging Face `datasets` saved (tokens
    of the published vocabularies; needs `pip install 'numerate[data]'`), or what `numerate data write` wrote. Rows that
    have a label per word behind a tab instead, `65 a a` and . 66 67, are questions with labels.

    Where the rows are sums, differences or products, their numbers are numbers, which a tokenizer may spell anew;
    `order` says how the file writes them, and "auto" looks at the first 1,000 rows and takes the order in which all
    their answers are right. Every other file, and one with leading zeros, is text, character by character.

    A grid has the lengths of the two numbers as axes if the file has rows for each pair of them, otherwise the length
    of the question.

    Every row comes once in each pass, in an order that is a function of (seed, split, pass), so that a file needs no
    shuffling. One row in ten is held out by a hash of its question, the same as in the task `Arithmetic`, so repeated
    questions are never divided. This goes by the whole file: a cell of a grid has those of its rows that are held out,
    and is seen where there are none. A file of which fewer than 10 rows would be left for the test or for development
    is seen as a whole by every split.

    `numerate evaluate latest task.path=other.txt` asks the rows of another file, all but those whose question the run
    was trained on.

    >>> task = Written(path="sums.txt")  # three lines: 321+654=975, 9+1=01 and 21+9=12
    >>> task.space(), task.alphabet()
    (3, ('+', '='))
    """

    endless: ClassVar[bool] = False

    path: str | None = setting(None, "file or folder of the rows")
    split: str = setting("all", "which split of a saved DatasetDict: train, test ..., or all of them")
    vocabulary: Literal["pad", "index", "sort"] = setting("pad", "the published vocabulary of a tokenised folder")
    order: Literal["auto", "reversed", "normal", "answer reversed", "text"] = setting(
        "auto", "how the file writes numbers; auto: as its answers are right, else text"
    )
    first_digits: int | Span | None = setting(None, "only sums whose first number has so many digits; null: all")
    second_digits: int | Span | None = setting(None, "only sums whose second number has so many digits; null: all")
    question_length: int | Span | None = setting(
        None, "only questions of so many characters, '=' included (words, where they have labels); null: all"
    )
    trained_on: Task | None = setting(
        None, "the rows of training, where an evaluation asks those of another file; set by task.path=", later=True
    )

    def __post_init__(self) -> None:
        for name, known in (("vocabulary", tuple(VOCABULARIES)), ("order", ("auto", *WAYS, "text"))):
            value = getattr(self, name)
            if value not in known:
                raise Mistake(
                    f"{name}: there is no {value!r}; there are: {', '.join(known)}.{did_you_mean(value, known)}"
                )

    @property
    def rows(self) -> RowFile | LabelledFile:
        """The rows of the file. Raises `Mistake` where there are none."""
        if self.path is None:
            raise Mistake("path: which rows? path=rows.txt names a file with a row per line, or a folder of rows")
        return open_rows(self.path, self.split, self.vocabulary)

    def files(self) -> dict[str, Path]:
        return named(self.rows.files())

    def of_file(self, path: str) -> "Written":
        """The rows of another file, of every size, for a model that was trained on these."""
        known = self if self.trained_on is None else self.trained_on
        return replace(self._whole(), path=path, trained_on=known)

    def draw(self, draws: Draws, index: NDArray[np.int64]) -> Questions:
        mine = self._rows_of(None)
        places = _in_order(index, self.rows.count if mine is None else len(mine), ("draw", draws.key))
        return self.questions(places if mine is None else mine[places].astype(np.int64))

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        """Examples `start` .. `start + count - 1` of a split: every row of it once, then all again in another order."""
        if split not in SPLITS:
            raise Mistake(
                f"split: there is no {split!r}; there are: {', '.join(SPLITS)}." + did_you_mean(split, SPLITS)
            )
        if split == "beyond-development":
            raise Mistake("split: rows of a file have no OOD validation ('beyond-development')")
        mine = self._rows_of(split)
        index = np.arange(start, start + count)
        places = _in_order(index, self.rows_in(split), ("written", split, seed))
        questions = self.questions(places if mine is None else mine[places].astype(np.int64))
        (word,) = Draws(key("chance", split, seed)).words(1)
        chance = mix(mix(index.astype(np.uint64) + word) ^ word)
        return replace(questions, chance=chance)

    def questions(self, rows: NDArray[np.int64]) -> Questions:
        """The rows with these indices, in the order of the file. Raises `Mistake` with the file and line of a row that
        does not read like the others."""
        found = self.rows
        order, sign = _way(found, self.order)
        if isinstance(found, LabelledFile):
            return _labelled(found, rows)
        characters = found.read(rows)
        if order == "text":
            return _texts(found, rows, characters)
        return _sums(found, rows, characters, order, sign)

    def whole(self, split: str = "test") -> Questions | None:
        """Every different question of a split once, in the order of the file; None for more than 65,536 rows, or
        where they are long."""
        mine = self._rows_of(split)
        rows = np.arange(self.rows.count) if mine is None else mine.astype(np.int64)
        if len(rows) > 1 << 16 or len(rows) * self.rows.longest > _WHOLE:
            return None
        questions = self.questions(rows)
        _, first = np.unique(questions.hashes(), return_index=True)
        return questions.take(np.sort(first))

    def rows_in(self, split: str) -> int:
        mine = self._rows_of(split)
        return self.rows.count if mine is None else len(mine)

    def _rows_of(self, split: str | None) -> NDArray[np.uint32] | None:
        """The rows of a split (None: of all) that have the sizes wanted; None for every row of the file. Where a split
        has none of them, all of them: they are seen. Raises `Mistake` where the file has none."""
        wanted = {name: Span.of(size) for name in SIZES if (size := getattr(self, name)) is not None}
        if not wanted and split is None:
            return None
        divided = split if split is not None and self._scan.divided else None
        return _chosen(self._scan, tuple(wanted.items()), divided, str(self.path)) if wanted or divided else None

    def _whole(self) -> "Written":
        """The same without any size wanted."""
        return replace(self, first_digits=None, second_digits=None, question_length=None)

    @property
    def _scan(self) -> "_Scan":
        return _Scan.of(self.rows, self._whole())

    def held_out(self, split: str) -> bool:
        if split in ("train", "beyond-development") or not self._scan.divided:
            return False
        mine = self._rows_of(split)
        return mine is not None and bool((self._scan.split[mine] == list(SPLITS).index(split)).all())

    def axes(self) -> tuple[str, ...]:
        return self._scan.axes

    def trained(self) -> dict[str, Span]:
        scan = self._scan
        mine = self._rows_of(None)
        sizes = {name: scan.sizes[name] if mine is None else scan.sizes[name][mine] for name in scan.axes}
        return {name: Span(int(found.min()), int(found.max())) for name, found in sizes.items()}

    def cells(self) -> list[tuple[int, ...]]:
        """The sizes of the rows of its file along the axes, each once: also of those that are longer than what it is
        trained on, of which an evaluation may ask.

        >>> Written(path="sums.txt").cells()  # 321+654=975, 9+1=01 and 21+9=12 have questions of 8, 4 and 5 characters
        [(4,), (5,), (8,)]
        """
        scan = self._scan
        mine = self.pinned(**dict.fromkeys(scan.axes))._rows_of(None)
        sizes = np.stack([scan.sizes[name] if mine is None else scan.sizes[name][mine] for name in scan.axes], axis=1)
        return [tuple(place) for place in np.unique(sizes, axis=0).tolist()]

    def canonical(self, questions: Questions) -> NDArray[np.uint64]:
        """As in `Arithmetic` where rows are sums: 3+4 and 4+3 are one question. So are rows of digits on either side of
        a plus or times that are read as text, such as 0000+01= and 01+0000=. Otherwise a hash of the text."""
        if questions.numbers.lengths.shape[1] != 3:
            signs = {*questions.alphabet} - {*"0123456789="}
            commutes = questions.labels is None and len(signs) == 1 and signs <= {"+", "x"}
            return _of_either_order(questions, signs.pop()) if commutes else questions.hashes()
        hashes = questions.numbers.hashes(2)
        if questions.alphabet[0] == "-":
            hashes[:, 1] *= np.uint64(0x2545F4914F6CDD1D)
        return mix(hashes[:, 0] + hashes[:, 1])

    def space(self) -> int:
        mine = self._rows_of(None)
        return self.rows.count if mine is None else len(mine)

    def alphabet(self) -> tuple[str, ...]:
        if self.trained_on is not None:
            return self._alphabet_of_training(self.trained_on.alphabet())
        found = self.rows
        order, sign = _way(found, self.order)
        if isinstance(found, LabelledFile):
            return found.words
        return tuple(found.alphabet()) if order == "text" else (sign, "=")

    def _alphabet_of_training(self, known: tuple[str, ...]) -> tuple[str, ...]:
        """What the model reads. Raises `Mistake` where this file has anything else."""
        other = [text for text in replace(self, trained_on=None).alphabet() if text not in known]
        if other:
            told = ", ".join(map(repr, other[:5]))
            raise Mistake(f"path: {self.path} has {told}{' ...' * (len(other) > 5)}, which no row of training has")
        return known

    def read(self, text: str) -> Questions:
        """A sum as a person types it, whatever the order of the file. Raises `Mistake` where rows are no sums, or of an
        operator that no other task can work out."""
        _, sign = _way(self.rows, self.order)
        if sign not in OPERATORS:
            raise Mistake("question: the answers of these rows are written, not worked out; only sums can be asked")
        return Arithmetic(operator=sign).read(text)


def _of_either_order(questions: Questions, sign: str) -> NDArray[np.uint64]:
    """A hash of what stands on either side of the first sign of each question, whichever comes first."""
    symbols, places = questions.symbols, np.arange(questions.symbols.shape[1])
    assert questions.prompt_length is not None, "rows of text are asked as continuations"
    signs = (symbols == questions.alphabet.index(sign)) & (places < questions.prompt_length[:, None])
    between = np.where(signs.any(axis=1), signs.argmax(axis=1), questions.prompt_length - 1)[:, None]
    texts = np.array([*map(text_hash, questions.alphabet), 0], dtype=np.uint64)[np.maximum(symbols, -1)]
    total = np.zeros(len(symbols), dtype=np.uint64)
    for begin, end in ((np.zeros_like(between), between), (between + 1, questions.prompt_length[:, None] - 1)):
        counted = mix(texts + (places - begin + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        inside = (places >= begin) & (places < end)
        total += mix(np.where(inside, counted, np.uint64(0)).sum(axis=1, dtype=np.uint64))
    return mix(total)


def _in_order(index: NDArray[np.int64], count: int, name: tuple[object, ...]) -> NDArray[np.int64]:
    """The row at each index: pass after pass over all rows, each in an order of its own."""
    passes, places = np.divmod(index, count)
    rows = np.empty_like(places)
    for turn in np.unique(passes).tolist():
        chosen = passes == turn
        rows[chosen] = shuffled(places[chosen], count, key(*name, turn))
    return rows


def shuffled(places: NDArray[np.int64], count: int, key: int) -> NDArray[np.int64]:
    """Where each of these places goes in an order of 0 .. count - 1 that is a function of the key, without holding it.

    A Feistel network of eight rounds over the next power of four, walked until it ends below `count` (Black and Rogaway
    2002, "Ciphers with arbitrary finite domains", https://doi.org/10.1007/3-540-45760-7_9).

    >>> sorted(shuffled(np.arange(10), 10, key("a")).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    rounds = Draws(key).words(8)
    found = places.astype(np.uint64)
    moving = np.arange(len(found))
    while len(moving):
        left, right = found[moving] >> half, found[moving] & mask
        for word in rounds:
            left, right = right, left ^ (mix(right + word) & mask)
        found[moving] = left << half | right
        moving = moving[found[moving] >= np.uint64(count)]
    return found.astype(np.int64)


FEWEST = 10
"""The rows that test and development have at least, or else every split is the whole file."""

SIZES = ("first_digits", "second_digits", "question_length")
"""The sizes by which rows are told apart."""


class _Scan:
    """What one pass over all rows of a file finds: the split of each by the hash of its question, and its sizes."""

    def __init__(self, rows: RowFile | LabelledFile, task: Written) -> None:
        self.split = np.full(rows.count, -1, dtype=np.int8)
        known = None if task.trained_on is None else _questions_of_training(task.trained_on)
        self.sizes: dict[str, NDArray[np.uint16]] = {}
        size = rows_at_once(rows.longest)
        for start in range(0, rows.count, size):
            here = slice(start, min(start + size, rows.count))
            questions = task.questions(np.arange(here.start, here.stop))
            hashes = task.canonical(questions)
            fraction = (hashes >> np.uint64(32)).astype(np.float64) / 2.0**32
            for number, (name, (low, high)) in enumerate(SPLITS.items()):
                if known is None:
                    self.split[here][(fraction >= low) & (fraction < high)] = number
                elif name in ("test", "train"):
                    self.split[here][np.isin(hashes, known) == (name == "train")] = number
            for axis, values in questions.facts.items():
                sizes = self.sizes.setdefault(axis, np.zeros(rows.count, dtype=np.uint16))
                sizes[here] = np.minimum(values, 2**16 - 1)
        rows_of = np.bincount(self.split[self.split >= 0], minlength=len(SPLITS))
        held = ("test", "development") if known is None else ("test",)
        enough = FEWEST if known is None else 1
        self.divided = all(rows_of[list(SPLITS).index(name)] >= enough for name in held)
        self.axes: tuple[str, ...] = SIZES[:2] if self._has_every_pair() else SIZES[2:]
        if task.trained_on is not None:
            self.axes = task.trained_on.axes()
            if not self.sizes.keys() >= set(self.axes):
                raise Mistake(f"path: rows of {task.path} are no sums of two numbers, as those of training are")

    @staticmethod
    @lru_cache(maxsize=4)
    def of(rows: RowFile | LabelledFile, task: Written) -> "_Scan":
        return _Scan(rows, task)

    def _has_every_pair(self) -> bool:
        if SIZES[0] not in self.sizes:
            return False
        first, second = (self.sizes[name].astype(np.int64) for name in SIZES[:2])
        pairs = (int(first.max() - first.min()) + 1) * (int(second.max() - second.min()) + 1)
        return len(np.unique(first << 16 | second)) == pairs


def _questions_of_training(task: Task) -> NDArray[np.uint64]:
    """The hashes of all questions that a task of rows is trained on."""
    assert isinstance(task, Written), "rows of files are evaluated for a model that was trained on rows of files"
    mine = task._rows_of("train")
    rows = np.arange(task.rows.count) if mine is None else mine.astype(np.int64)
    size = rows_at_once(task.rows.longest)
    return np.concatenate([task.canonical(task.questions(rows[i : i + size])) for i in range(0, len(rows), size)])


@lru_cache(maxsize=32)
def _chosen(scan: _Scan, wanted: tuple[tuple[str, Span], ...], split: str | None, path: str) -> NDArray[np.uint32]:
    mask = np.ones(len(scan.split), dtype=np.bool_)
    for name, span in wanted:
        if name not in scan.sizes:
            raise Mistake(f"{name}: rows of {path} are text, which is no sum of two numbers; question_length is right")
        mask &= (scan.sizes[name] >= span.low) & (scan.sizes[name] <= span.high)
    if not mask.any():
        told = ", ".join(f"{name}={span if len(span) > 1 else span.low}" for name, span in wanted)
        raise Mistake(f"{wanted[0][0]}: no row of {path} has {told}")
    if split is not None and (here := mask & (scan.split == list(SPLITS).index(split))).any():
        mask = here
    return np.flatnonzero(mask).astype(np.uint32)


@lru_cache(maxsize=16)
def _way(rows: RowFile | LabelledFile, order: str) -> tuple[str, str]:
    """How the rows are read: "reversed", "normal", "text" or "labels", and the operator of sums."""
    if isinstance(rows, LabelledFile):
        if order in WAYS:
            raise Mistake(f"order: rows with a label per word have no sums to read {order}; order=auto is right")
        return "labels", ""
    if order == "text":
        return "text", ""
    if rows.count and _is_record(rows.text(0)):
        raise Mistake(
            f"{rows.where(0)}: this is a record of JSON, not a row of text; "
            f"task=QuestionFiles(train_file={rows.files()[0]}) reads questions and answers from such a file"
        )
    first = [_SUM.fullmatch(rows.text(row)) for row in range(min(rows.count, _LOOKED_AT))]
    signs = {found[2] for found in first if found is not None}
    if None in first or len(signs) != 1 or not signs <= set(_SIGNS):
        if order == "auto":
            return "text", ""
        line = first.index(None) if None in first else 0
        raise Mistake(
            f"{rows.where(line)}: {rows.text(line)!r} is no {order} sum like those beside it; order=text takes any row"
        )
    sums = [found for found in first if found is not None]
    ways = tuple(WAYS) if order == "auto" else (order,)
    for way in ways:
        if order != "auto" or all(_is_right(found, way) for found in sums):
            return way, signs.pop()
    return "text", ""


def _is_record(text: str) -> bool:
    """Whether a row is an object of JSON, as the lines of a JSONL file are."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _is_right(found: re.Match[str], order: str) -> bool:
    """Whether a sum, read in this order, is right and has no zeros in front."""
    first, second, answer = (
        found[group][::-1] if turned else found[group] for group, turned in zip((1, 3, 4), WAYS[order], strict=True)
    )
    if "-" in answer[1:] or any(text[0] == "0" and text != "0" for text in (first, second, answer.lstrip("-"))):
        return False
    one, other = int(first), int(second)
    truth = {"+": one + other, "-": one - other, "x": one * other}[found[2]]
    return str(truth) == answer


def _labelled(file: LabelledFile, rows: NDArray[np.int64]) -> Questions:
    """Rows of words with a label each."""
    symbols, labels = file.read(rows)
    length = (symbols != EMPTY).sum(axis=1)
    return Questions(
        file.words, symbols, Numbers.none(len(rows)), labels=labels, facts={"question_length": length.astype(np.int64)}
    )


def _texts(file: RowFile, rows: NDArray[np.int64], characters: Characters) -> Questions:
    """Rows as text, one piece per character."""
    codes, lengths = characters
    equals = codes == ord("=")
    wrong = equals.sum(axis=1) != 1
    if wrong.any():
        row = int(rows[wrong.argmax()])
        raise Mistake(f"{file.where(row)}: {file.text(row)!r} has not exactly one '=' between question and answer")
    found = np.stack([codes[:, 0] == ord("="), codes[np.arange(len(rows)), lengths - 1] == ord("=")])
    if found.any():
        which, place = divmod(int(found.argmax()), len(rows))
        row = int(rows[place])
        raise Mistake(f"{file.where(row)}: {file.text(row)!r} has no {('question', 'answer')[which]} beside its '='")
    alphabet = tuple(file.alphabet())
    points = np.array(list(map(ord, alphabet)), dtype=np.int64)
    symbols = np.searchsorted(points, codes).astype(np.int16)
    symbols[np.arange(codes.shape[1]) >= lengths[:, None]] = EMPTY
    prompts = equals.argmax(axis=1).astype(np.int64) + 1
    return Questions(alphabet, symbols, Numbers.none(len(rows)), prompts, facts={"question_length": prompts})


def _sums(file: RowFile, rows: NDArray[np.int64], characters: Characters, order: str, sign: str) -> Questions:
    """Rows as two numbers, an operator and a third number."""
    lengths, turned = characters.lengths, WAYS[order]
    width = decimals.width(max(1, characters.codes.shape[1]))
    # Eight more columns on either side, so that words of eight may begin and end anywhere in a row.
    codes = np.zeros((len(rows), width + 16), dtype=np.uint8)
    codes[:, 8 : 8 + characters.codes.shape[1]] = characters.codes
    text = codes[:, 8:-8]
    digit = (text - np.uint8(ord("0"))) < 10
    operator = digit.argmin(axis=1).astype(np.int64)
    equals = (text == ord("=")).argmax(axis=1).astype(np.int64)
    base = np.arange(len(rows)) * codes.shape[1] + 8
    flat = codes.reshape(-1)
    minus = flat[base + (lengths - 1 if turned[2] else equals + 1)] == ord("-")
    begins = np.stack([np.zeros_like(equals), operator + 1, equals + 1 + (minus & (not turned[2]))], axis=1)
    ends = np.stack([operator, equals, lengths - (minus & turned[2])], axis=1)
    sizes = ends - begins
    wrong = (flat[base + operator] != ord(sign)) | (operator >= equals) | (sizes < 1).any(axis=1)
    wrong |= digit.sum(axis=1) != sizes.sum(axis=1)
    longest = decimals.width(int(sizes.max(initial=1)))
    numbers = np.zeros((len(rows), 3, longest), dtype=np.uint8)
    words = numbers.view("<u8")
    windows: NDArray[np.uint64] = np.ndarray((max(0, flat.size - 7),), "<u8", flat.data, 0, (1,))
    kept = decimals.masks(0, longest, longest).view("<u8") * np.uint64(0xFF)
    for slot in range(3):
        size = np.clip(sizes[:, slot], 0, longest)
        for word in range(words.shape[2]):
            if turned[slot]:
                taken = windows[np.minimum(base + begins[:, slot] + 8 * word, len(windows) - 1)]
            else:
                taken = windows[np.maximum(base + ends[:, slot] - 8 * (word + 1), 0)].byteswap()
            words[:, slot, word] = (taken ^ _ZEROS) & kept[size, word]
    wrong |= (decimals.length(numbers) != sizes).any(axis=1)
    if wrong.any():
        row = int(rows[wrong.argmax()])
        raise Mistake(
            f"{file.where(row)}: {file.text(row)!r} is no sum in {order} order like the first rows (whole numbers "
            f"without leading zeros, {sign!r}, one '='); order=text takes any row"
        )
    return Questions(
        (sign, "="),
        np.broadcast_to(np.array([-1, 0, -2, 1, -3], dtype=np.int16), (len(rows), 5)),
        Numbers(numbers[..., ::-1], sizes, minus[:, None] & (np.arange(3) == 2) if minus.any() else None),
        np.broadcast_to(np.int64(4), (len(rows),)),
        facts={"first_digits": sizes[:, 0], "second_digits": sizes[:, 1], "question_length": equals + 1},
    )

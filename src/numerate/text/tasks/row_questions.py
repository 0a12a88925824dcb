"""How the rows of a file read as questions: sums whose numbers are numbers, text, or words with labels."""

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.tasks import decimals
from numerate.tasks.counter_rng import mix
from numerate.tasks.questions import EMPTY, Numbers, Questions, text_hash
from numerate.text.tasks.labelled_files import LabelledFile
from numerate.text.tasks.readers import is_object
from numerate.text.tasks.row_files import CharacterRows, RowFile

_SUM = re.compile(r"([0-9]+)([^0-9=])([0-9]+)=(-?[0-9]+-?)")

_LOOKED_AT = 1000
"""How many rows are read to see what a file holds."""

_SIGNS = "+-x"
WAYS = {"reversed": (True, True, True), "normal": (False, False, False), "answer reversed": (False, False, True)}
"""Which of the three numbers of a sum stand units first."""

_ZEROS = np.uint64(0x3030303030303030)
"""Eight times the character 0: what a digit's byte is more than the digit."""


def questions_of(file: RowFile | LabelledFile, rows: NDArray[np.int64], order: str) -> Questions:
    """The rows with these indices, in the order of the file. Raises `UserError` with the file and line of a row that
    does not read like the others."""
    way, sign = way_of(file, order)
    if isinstance(file, LabelledFile):
        return _labelled(file, rows)
    characters = file.read(rows)
    return _texts(file, rows, characters) if way == "text" else _sums(file, rows, characters, way, sign)


@lru_cache(maxsize=16)
def way_of(rows: RowFile | LabelledFile, order: str) -> tuple[str, str]:
    """How the rows are read: "reversed", "normal", "text" or "labels", and the operator of sums."""
    if isinstance(rows, LabelledFile):
        if order in WAYS:
            raise UserError(
                f"digit_order: rows with a label per word have no sums to read {order}; digit_order=auto is right"
            )
        return "labels", ""
    if order == "text":
        return "text", ""
    if rows.count and is_object(rows.text(0)):
        raise UserError(
            f"{rows.where(0)}: this is a record of JSON, not a row of text; "
            f"task=QuestionFiles(train_file={rows.files()[0]}) reads questions and answers from such a file"
        )
    first = [_SUM.fullmatch(rows.text(row)) for row in range(min(rows.count, _LOOKED_AT))]
    signs = {found[2] for found in first if found is not None}
    if None in first or len(signs) != 1 or not signs <= set(_SIGNS):
        if order == "auto":
            return "text", ""
        line = first.index(None) if None in first else 0
        raise UserError(
            f"{rows.where(line)}: {rows.text(line)!r} is no {order} sum like those beside it; "
            "digit_order=text takes any row"
        )
    sums = [found for found in first if found is not None]
    ways = tuple(WAYS) if order == "auto" else (order,)
    for way in ways:
        if order != "auto" or all(_is_right(found, way) for found in sums):
            return way, signs.pop()
    return "text", ""


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


def _texts(file: RowFile, rows: NDArray[np.int64], characters: CharacterRows) -> Questions:
    """Rows as text, one piece per character."""
    codes, lengths = characters
    equals = codes == ord("=")
    wrong = equals.sum(axis=1) != 1
    if wrong.any():
        row = int(rows[wrong.argmax()])
        raise UserError(f"{file.where(row)}: {file.text(row)!r} has not exactly one '=' between question and answer")
    found = np.stack([codes[:, 0] == ord("="), codes[np.arange(len(rows)), lengths - 1] == ord("=")])
    if found.any():
        which, place = divmod(int(found.argmax()), len(rows))
        row = int(rows[place])
        raise UserError(f"{file.where(row)}: {file.text(row)!r} has no {('question', 'answer')[which]} beside its '='")
    alphabet = tuple(file.alphabet())
    points = np.array(list(map(ord, alphabet)), dtype=np.int64)
    symbols = np.searchsorted(points, codes).astype(np.int16)
    symbols[np.arange(codes.shape[1]) >= lengths[:, None]] = EMPTY
    prompts = equals.argmax(axis=1).astype(np.int64) + 1
    return Questions(alphabet, symbols, Numbers.none(len(rows)), prompts, facts={"question_length": prompts})


def _sums(file: RowFile, rows: NDArray[np.int64], characters: CharacterRows, order: str, sign: str) -> Questions:
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
        raise UserError(
            f"{file.where(row)}: {file.text(row)!r} is no sum in {order} order like the first rows (whole numbers "
            f"without leading zeros, {sign!r}, one '='); digit_order=text takes any row"
        )
    return Questions(
        (sign, "="),
        np.broadcast_to(np.array([-1, 0, -2, 1, -3], dtype=np.int16), (len(rows), 5)),
        Numbers(numbers[..., ::-1], sizes, minus[:, None] & (np.arange(3) == 2) if minus.any() else None),
        np.broadcast_to(np.int64(4), (len(rows),)),
        facts={"first_digits": sizes[:, 0], "second_digits": sizes[:, 1], "question_length": equals + 1},
    )


def hashes_of_either_order(questions: Questions, sign: str) -> NDArray[np.uint64]:
    """A hash of what stands on either side of the first sign of each question, whichever comes first."""
    symbols, places = questions.symbols, np.arange(questions.symbols.shape[1])
    assert questions.prompt_length is not None, "answers are continuations"
    signs = (symbols == questions.alphabet.index(sign)) & (places < questions.prompt_length[:, None])
    between = np.where(signs.any(axis=1), signs.argmax(axis=1), questions.prompt_length - 1)[:, None]
    texts = np.array([*map(text_hash, questions.alphabet), 0], dtype=np.uint64)[np.maximum(symbols, -1)]
    total = np.zeros(len(symbols), dtype=np.uint64)
    for begin, end in ((np.zeros_like(between), between), (between + 1, questions.prompt_length[:, None] - 1)):
        counted = mix(texts + (places - begin + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        inside = (places >= begin) & (places < end)
        total += mix(np.where(inside, counted, np.uint64(0)).sum(axis=1, dtype=np.uint64))
    return mix(total)

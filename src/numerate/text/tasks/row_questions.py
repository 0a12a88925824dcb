"""How the rows of a file read as questions: sums whose numbers are numbers, text, or words with labels."""

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.tasks import decimals
from numerate.tasks.counter_rng import mix_bits
from numerate.tasks.questions import EMPTY, Numbers, Questions, text_hash
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.labelled_files import LabeledFile
from numerate.text.tasks.row_files import CharacterRows, RowFile

_SUM = re.compile(r"([0-9]+)([^0-9=])([0-9]+)=(-?[0-9]+-?)")

_NUM_CHECKED_ROWS = 1000
"""How many rows are read to see what a file holds."""

_OPERATORS = "+-x"
DIGIT_ORDERS = {
    "reversed": (True, True, True),
    "normal": (False, False, False),
    "answer_reversed": (False, False, True),
}
"""Which of the three numbers of a sum stand units first."""

_ASCII_ZEROS = np.uint64(0x3030303030303030)
"""Eight times the character 0: what a digit's byte is more than the digit."""


def read_questions(file: RowFile | LabeledFile, rows: NDArray[np.int64], digit_order: str) -> Questions:
    """The rows with these indices, in the order of the file. Raises `UserError` with the file and line of a row that
    does not read like the others."""
    detected_order, operator = detect_digit_order(file, digit_order)
    if isinstance(file, LabeledFile):
        return _labeled_questions(file, rows)
    characters = file.read(rows)
    return (
        _text_questions(file, rows, characters)
        if detected_order == "text"
        else _sum_questions(file, rows, characters, detected_order, operator)
    )


@lru_cache(maxsize=16)
def detect_digit_order(rows: RowFile | LabeledFile, digit_order: str) -> tuple[str, str]:
    """How the rows are read: "reversed", "normal", "text" or "labels", and the operator of sums."""
    if isinstance(rows, LabeledFile):
        if digit_order in DIGIT_ORDERS:
            raise UserError("digit_order: must be auto for rows with a label per word")
        return "labels", ""
    if digit_order == "text":
        return "text", ""
    if rows.count and rows.text(0).lstrip().startswith('{"'):
        raise file_error(
            rows.location(0),
            f"this is a record of JSON, not a row of text; task=QuestionFiles(train_file={rows.files()[0]}) reads it",
        )
    matches = [_SUM.fullmatch(rows.text(row)) for row in range(min(rows.count, _NUM_CHECKED_ROWS))]
    operators = {match_[2] for match_ in matches if match_ is not None}
    if None in matches or len(operators) != 1 or not operators <= set(_OPERATORS):
        if digit_order == "auto":
            return "text", ""
        line = matches.index(None) if None in matches else 0
        raise _not_a_sum(rows, line, digit_order)
    sums = [found for found in matches if found is not None]
    candidate_orders = tuple(DIGIT_ORDERS) if digit_order == "auto" else (digit_order,)
    for candidate in candidate_orders:
        if digit_order != "auto" or all(_is_correct_sum(found, candidate) for found in sums):
            return candidate, operators.pop()
    return "text", ""


def _not_a_sum(file: RowFile, row: int, digit_order: str) -> UserError:
    return file_error(
        file.location(row),
        f"{file.text(row)!r} is not a sum in {digit_order} order like the other rows (whole numbers without leading "
        "zeros, one operator, one '='); digit_order=text accepts any row",
    )


def _is_correct_sum(match_: re.Match[str], digit_order: str) -> bool:
    """Whether a sum, read in this order, is correct and has no leading zeros."""
    first, second, answer = (
        match_[group][::-1] if is_reversed else match_[group]
        for group, is_reversed in zip((1, 3, 4), DIGIT_ORDERS[digit_order], strict=True)
    )
    if "-" in answer[1:] or any(text[0] == "0" and text != "0" for text in (first, second, answer.lstrip("-"))):
        return False
    one, other = int(first), int(second)
    correct_answer = {"+": one + other, "-": one - other, "x": one * other}[match_[2]]
    return str(correct_answer) == answer


def _labeled_questions(file: LabeledFile, rows: NDArray[np.int64]) -> Questions:
    """Rows of words with a label each."""
    symbols, labels = file.read(rows)
    length = (symbols != EMPTY).sum(axis=1)
    return Questions(
        file.words,
        symbols,
        Numbers.empty(len(rows)),
        labels=labels,
        metadata={"question_length": length.astype(np.int64)},
    )


def _text_questions(file: RowFile, rows: NDArray[np.int64], characters: CharacterRows) -> Questions:
    """Rows as text, one piece per character."""
    codes, lengths = characters
    equals = codes == ord("=")
    is_invalid = equals.sum(axis=1) != 1
    if is_invalid.any():
        row = int(rows[is_invalid.argmax()])
        raise file_error(file.location(row), f"{file.text(row)!r} has not exactly one '=' between question and answer")
    is_empty_side = np.stack([codes[:, 0] == ord("="), codes[np.arange(len(rows)), lengths - 1] == ord("=")])
    if is_empty_side.any():
        which, position = divmod(int(is_empty_side.argmax()), len(rows))
        row = int(rows[position])
        raise file_error(
            file.location(row), f"{file.text(row)!r} has no {('question', 'answer')[which]} beside its '='"
        )
    alphabet = tuple(file.alphabet())
    code_points = np.array(list(map(ord, alphabet)), dtype=np.int64)
    symbols = np.searchsorted(code_points, codes).astype(np.int16)
    symbols[np.arange(codes.shape[1]) >= lengths[:, None]] = EMPTY
    prompt_lengths = equals.argmax(axis=1).astype(np.int64) + 1
    return Questions(
        alphabet, symbols, Numbers.empty(len(rows)), prompt_lengths, metadata={"question_length": prompt_lengths}
    )


def _sum_questions(
    file: RowFile, rows: NDArray[np.int64], characters: CharacterRows, digit_order: str, sign: str
) -> Questions:
    """Rows as two numbers, an operator and a third number."""
    lengths, is_reversed = characters.lengths, DIGIT_ORDERS[digit_order]
    width = decimals.row_width(max(1, characters.codes.shape[1]))
    # Eight more columns on either side, so that words of eight may begin and end anywhere in a row.
    codes = np.zeros((len(rows), width + 16), dtype=np.uint8)
    codes[:, 8 : 8 + characters.codes.shape[1]] = characters.codes
    text = codes[:, 8:-8]
    is_digit = (text - np.uint8(ord("0"))) < 10
    operator = is_digit.argmin(axis=1).astype(np.int64)
    equals = (text == ord("=")).argmax(axis=1).astype(np.int64)
    base = np.arange(len(rows)) * codes.shape[1] + 8
    flat_codes = codes.reshape(-1)
    is_negative = flat_codes[base + (lengths - 1 if is_reversed[2] else equals + 1)] == ord("-")
    starts = np.stack([np.zeros_like(equals), operator + 1, equals + 1 + (is_negative & (not is_reversed[2]))], axis=1)
    ends = np.stack([operator, equals, lengths - (is_negative & is_reversed[2])], axis=1)
    sizes = ends - starts
    is_invalid = (flat_codes[base + operator] != ord(sign)) | (operator >= equals) | (sizes < 1).any(axis=1)
    is_invalid |= is_digit.sum(axis=1) != sizes.sum(axis=1)
    longest = decimals.row_width(int(sizes.max(initial=1)))
    numbers = np.zeros((len(rows), 3, longest), dtype=np.uint8)
    words = numbers.view("<u8")
    windows: NDArray[np.uint64] = np.ndarray((max(0, flat_codes.size - 7),), "<u8", flat_codes.data, 0, (1,))
    byte_masks = decimals.length_masks(0, longest, longest).view("<u8") * np.uint64(0xFF)
    for slot in range(3):
        size = np.clip(sizes[:, slot], 0, longest)
        for word in range(words.shape[2]):
            if is_reversed[slot]:
                word_values = windows[np.minimum(base + starts[:, slot] + 8 * word, len(windows) - 1)]
            else:
                word_values = windows[np.maximum(base + ends[:, slot] - 8 * (word + 1), 0)].byteswap()
            words[:, slot, word] = (word_values ^ _ASCII_ZEROS) & byte_masks[size, word]
    is_invalid |= (decimals.num_digits(numbers) != sizes).any(axis=1)
    if is_invalid.any():
        raise _not_a_sum(file, int(rows[is_invalid.argmax()]), digit_order)
    return Questions(
        (sign, "="),
        np.broadcast_to(np.array([-1, 0, -2, 1, -3], dtype=np.int16), (len(rows), 5)),
        Numbers(numbers[..., ::-1], sizes, is_negative[:, None] & (np.arange(3) == 2) if is_negative.any() else None),
        np.broadcast_to(np.int64(4), (len(rows),)),
        metadata={"first_digits": sizes[:, 0], "second_digits": sizes[:, 1], "question_length": equals + 1},
    )


def commutative_hashes(questions: Questions, operator: str) -> NDArray[np.uint64]:
    """A hash of what stands on either side of the first sign of each question, whichever comes first."""
    symbols, columns = questions.symbols, np.arange(questions.symbols.shape[1])
    assert questions.prompt_lengths is not None, "answers are continuations"
    is_operator = (symbols == questions.alphabet.index(operator)) & (columns < questions.prompt_lengths[:, None])
    operator_columns = np.where(is_operator.any(axis=1), is_operator.argmax(axis=1), questions.prompt_lengths - 1)[
        :, None
    ]
    texts = np.array([*map(text_hash, questions.alphabet), 0], dtype=np.uint64)[np.maximum(symbols, -1)]
    total = np.zeros(len(symbols), dtype=np.uint64)
    for begin, end in (
        (np.zeros_like(operator_columns), operator_columns),
        (operator_columns + 1, questions.prompt_lengths[:, None] - 1),
    ):
        position_hashes = mix_bits(texts + (columns - begin + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        inside = (columns >= begin) & (columns < end)
        total += mix_bits(np.where(inside, position_hashes, np.uint64(0)).sum(axis=1, dtype=np.uint64))
    return mix_bits(total)

"""Questions in plain notation: 12+9= with the answer 21, whatever the digit order of the model."""

from numerate.tasks.questions import EMPTY, Questions


def plain_text(questions: Questions, row: int) -> tuple[str, str]:
    """Question and answer of one row. For aligned labels, the text and its labels, each piece by piece.

    >>> plain_text(Arithmetic().read("12+9="), 0)
    ('12+9=', '21')
    """
    if questions.texts is not None:
        pair = questions.texts.take(slice(row, row + 1)).pairs()[0]
        return pair.question, pair.answer
    written = [int(symbol) for symbol in questions.symbols[row]]
    pieces = [symbol for symbol in written if symbol != EMPTY]
    texts = [_piece(questions, row, piece) for piece in pieces]
    if questions.labels is not None:
        labels = [int(label) for label in questions.labels[row]][: len(pieces)]
        return " ".join(texts), " ".join("." if label == EMPTY else questions.alphabet[label] for label in labels)
    shown = len(written) if questions.prompt_length is None else int(questions.prompt_length[row])
    cut = sum(symbol != EMPTY for symbol in written[:shown])
    return "".join(texts[:cut]), "".join(texts[cut:])


def _piece(questions: Questions, row: int, piece: int) -> str:
    if piece >= 0:
        return questions.alphabet[piece]
    numbers, slot = questions.numbers, -1 - piece
    digits = "".join(map(str, numbers.digits[row, slot]))[-int(numbers.lengths[row, slot]) :]
    if numbers.point is not None and numbers.point[row, slot]:
        behind = int(numbers.point[row, slot])
        digits = f"{digits[:-behind] or '0'}.{digits[-behind:]}"
    return f"-{digits}" if numbers.negative is not None and numbers.negative[row, slot] else digits

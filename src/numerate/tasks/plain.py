"""Questions in plain notation: 12+9= with the answer 21, whatever the digit order of the model."""

from dataclasses import replace

import numpy as np

from numerate.tasks.questions import EMPTY, Questions
from numerate.tasks.texts import Example, FewShotSource, InMemorySource, Texts


def format_question(questions: Questions, row: int) -> tuple[str, str]:
    """Question and answer of one row. For per-token labels, the tokens and their labels, each separated by spaces.

    >>> from numerate.tasks import Arithmetic
    >>> format_question(Arithmetic().parse_question("12+9="), 0)
    ('12+9=', '21')
    """
    if questions.texts is not None:
        example = questions.texts.take(slice(row, row + 1)).read_examples()[0]
        return example.question, example.answer
    symbols = [int(symbol) for symbol in questions.symbols[row]]
    pieces = [symbol for symbol in symbols if symbol != EMPTY]
    texts = [_format_piece(questions, row, piece) for piece in pieces]
    if questions.labels is not None:
        labels = [int(label) for label in questions.labels[row]][: len(pieces)]
        return " ".join(texts), " ".join("." if label == EMPTY else questions.alphabet[label] for label in labels)
    prompt_length = len(symbols) if questions.prompt_lengths is None else int(questions.prompt_lengths[row])
    num_prompt_pieces = sum(symbol != EMPTY for symbol in symbols[:prompt_length])
    return "".join(texts[:num_prompt_pieces]), "".join(texts[num_prompt_pieces:])


def plain_examples(questions: Questions) -> tuple[Example, ...]:
    """Question and answer of each row."""
    return tuple(Example(*format_question(questions, row)) for row in range(len(questions)))


def plain_texts(questions: Questions) -> Texts:
    """Questions as texts, those with number slots with plain numbers."""
    if questions.texts is not None:
        return questions.texts
    return Texts.from_source(InMemorySource(plain_examples(questions)), np.arange(len(questions)))


def with_few_shot(questions: Questions, examples: tuple[Example, ...]) -> Questions:
    """The same questions as texts, of which a tokenizer with prompts makes ones that begin with these examples."""
    texts = plain_texts(questions)
    sources = tuple(FewShotSource(source, examples) for source in texts.sources)
    return replace(questions, texts=replace(texts, sources=sources))


def _format_piece(questions: Questions, row: int, piece: int) -> str:
    if piece >= 0:
        return questions.alphabet[piece]
    numbers, slot = questions.numbers, -1 - piece
    digits = "".join(map(str, numbers.digits[row, slot]))[-int(numbers.lengths[row, slot]) :]
    if numbers.decimal_places is not None and numbers.decimal_places[row, slot]:
        decimal_places = int(numbers.decimal_places[row, slot])
        digits = f"{digits[:-decimal_places] or '0'}.{digits[-decimal_places:]}"
    return f"-{digits}" if numbers.negative is not None and numbers.negative[row, slot] else digits

"""TokenIds: the vocabulary is the stored tokenizer's, and every token of a chunk is a target."""

from pathlib import Path

import numpy as np
import pytest

from numerate.batch import IGNORE
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.questions import Questions
from numerate.tasks.token_rows import TokenRows
from numerate.text.tokenizers.stored_tokenizer import StoredTokenizer, pieces
from numerate.text.tokenizers.token_ids import TokenIds, vocabulary_of
from numerate.tokenizers.layout import NextToken
from numerate.tokenizers.tokenizer import Characters
from numerate.vocabulary import DIGIT, SPECIAL

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

TINY = str(Path(__file__).parent / "tiny")


@pytest.fixture(scope="module")
def known() -> StoredTokenizer:
    return pieces(TINY)


def chunks() -> Questions:
    return Questions.of_tokens(TokenRows(np.array([[5, 6, 7, 8], [9, 5, 0, 0], [6, 7, 8, 0]]), np.array([3, 1, 2])))


def test_the_vocabulary_has_exactly_the_pieces_of_the_tokenizer(known: StoredTokenizer) -> None:
    vocabulary = TokenIds().build_vocabulary(LanguageModeling("anywhere", tokenizer=TINY))
    assert vocabulary.size == known.size
    assert vocabulary.foreign is not None
    assert vocabulary.foreign.tolist() == list(range(known.size))
    assert len(set(vocabulary.symbols)) == known.size
    assert all(vocabulary.kinds[i] == SPECIAL for i in known.roles.values())
    digits = [
        i for i in range(known.size) if known.symbols[i].strip("\u2581") in set("0123456789") and known.symbols[i]
    ]
    assert digits
    assert all(vocabulary.kinds[i] == DIGIT for i in digits)
    ids = TokenIds().encode("a day 12", vocabulary)
    assert ids == known.encode(["a day 12"])[0].tolist()
    assert TokenIds().decode(ids, vocabulary) == known.decode(ids)


def test_a_vocabulary_is_filled_up_with_ids_that_no_text_has(known: StoredTokenizer) -> None:
    vocabulary = vocabulary_of(known, 64)
    assert vocabulary.size % 64 == 0
    assert 0 < vocabulary.size - known.size < 64
    assert vocabulary.foreign is not None
    assert (vocabulary.foreign[known.size :] == -1).all()
    with pytest.raises(UserError, match="pad_to_multiple_of: 0 has no multiples"):
        TokenIds(pad_to_multiple_of=0)


def test_mistrals_first_tokenizer_keeps_its_32000_ids(shared: Path) -> None:
    model = str(shared / "data/tokenizers/mistral/tokenizer.model.v1")
    vocabulary = TokenIds().build_vocabulary(LanguageModeling("anywhere", tokenizer=model))
    assert vocabulary.size == 32_000
    assert vocabulary.symbols[:3] == ("<unk>", "<s>", "</s>")


def test_a_chunk_is_read_without_its_last_token_and_each_place_says_the_next(known: StoredTokenizer) -> None:
    vocabulary = vocabulary_of(known)
    rows = TokenIds().rows(chunks(), vocabulary)
    assert (rows.lengths.tolist(), rows.target_mask.sum(1).tolist()) == ([4, 2, 3], [3, 1, 2])
    batch = NextToken().batch(rows, np.array([7, 8, 9]))
    assert batch.tokens.ids.tolist() == [[5, 6, 7], [9, 0, 0], [6, 7, 0]]
    assert batch.targets.tolist() == [[6, 7, 8], [5, IGNORE, IGNORE], [7, 8, IGNORE]]
    assert batch.target_ids.tolist() == batch.targets.tolist()
    assert batch.target_positions.tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 1]], "filled up with a row's last place"
    assert (batch.tokens.lengths.tolist(), batch.tokens.row.tolist()) == ([3, 1, 2], [7, 8, 9])
    assert (dict(batch.counts), batch.real) == ({"tokens": 6, "examples": 3}, 6)
    short = NextToken().batch(rows.take(np.array([1])), np.array([0]))
    assert short.tokens.ids.tolist() == [[9]], "cut to the longest"


def test_blocks_of_chunks_are_taken_from_and_joined_like_all_questions() -> None:
    one = chunks()
    assert one.tokens is not None
    again = Questions.concatenate([one.take(slice(0, 1)), one.take(slice(1, 3))])
    assert again.tokens is not None
    assert again.tokens.ids.tolist() == one.tokens.ids.tolist()
    assert again.hashes().tolist() == one.hashes().tolist()
    assert len(set(one.hashes().tolist())) == 3
    with pytest.raises(ValueError, match="cannot be joined"):
        Questions.concatenate([one, Arithmetic().examples("train", 0, 0, 2).take(slice(0, 1)), one])


def test_questions_are_refused() -> None:
    task, characters = Arithmetic(), Characters()
    rows = characters.rows(task.examples("train", 0, 0, 2), characters.build_vocabulary(task))
    with pytest.raises(UserError, match="for questions with answers layout=Continuation is right"):
        NextToken().batch(rows, np.arange(2))
    with pytest.raises(UserError, match="TokenIds takes running text as it is, and Arithmetic is none"):
        TokenIds().build_vocabulary(Arithmetic())
    with pytest.raises(UserError, match="TokenIds takes running text alone"):
        TokenIds().rows(Arithmetic().examples("train", 0, 0, 2), vocabulary_of(pieces(TINY)))

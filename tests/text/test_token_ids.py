"""TokenIds: the vocabulary is the stored tokenizer's, and every token of a chunk is a target."""

from pathlib import Path

import numpy as np
import pytest

from numerate.batch import IGNORE_INDEX
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.questions import Questions
from numerate.tasks.token_rows import TokenRows
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, load_tokenizer
from numerate.text.tokenizers.token_ids import TokenIds, build_tokenizer_vocabulary
from numerate.tokenizers.layout import NextToken
from numerate.tokenizers.tokenizer import Characters
from numerate.vocabulary import DIGIT, SPECIAL

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

TINY = str(Path(__file__).parent / "tiny")


@pytest.fixture(scope="module")
def known() -> PretrainedTokenizer:
    return load_tokenizer(TINY)


def chunks() -> Questions:
    return Questions.from_tokens(TokenRows(np.array([[5, 6, 7, 8], [9, 5, 0, 0], [6, 7, 8, 0]]), np.array([3, 1, 2])))


def test_the_vocabulary_has_exactly_the_pieces_of_the_tokenizer(known: PretrainedTokenizer) -> None:
    vocabulary = TokenIds().build_vocabulary(LanguageModeling("anywhere", tokenizer=TINY))
    assert vocabulary.size == known.size
    assert vocabulary.pretrained_ids is not None
    assert vocabulary.pretrained_ids.tolist() == list(range(known.size))
    assert len(set(vocabulary.tokens)) == known.size
    assert all(vocabulary.token_kinds[i] == SPECIAL for i in known.special_token_ids.values())
    digits = [
        i for i in range(known.size) if known.symbols[i].strip("\u2581") in set("0123456789") and known.symbols[i]
    ]
    assert digits
    assert all(vocabulary.token_kinds[i] == DIGIT for i in digits)
    ids = TokenIds().encode("a day 12", vocabulary)
    assert ids == known.encode(["a day 12"])[0].tolist()
    assert TokenIds().decode(ids, vocabulary) == known.decode(ids)


def test_a_vocabulary_is_filled_up_with_ids_that_no_text_has(known: PretrainedTokenizer) -> None:
    vocabulary = build_tokenizer_vocabulary(known, 64)
    assert vocabulary.size % 64 == 0
    assert 0 < vocabulary.size - known.size < 64
    assert vocabulary.pretrained_ids is not None
    assert (vocabulary.pretrained_ids[known.size :] == -1).all()


def test_a_chunk_is_read_without_its_last_token_and_each_place_says_the_next(known: PretrainedTokenizer) -> None:
    vocabulary = build_tokenizer_vocabulary(known)
    rows = TokenIds().encode_examples(chunks(), vocabulary)
    assert (rows.lengths.tolist(), rows.target_mask.sum(1).tolist()) == ([4, 2, 3], [3, 1, 2])
    batch = NextToken().build_batch(rows, np.array([7, 8, 9]))
    assert batch.tokens.ids.tolist() == [[5, 6, 7], [9, 0, 0], [6, 7, 0]]
    assert batch.targets.tolist() == [[6, 7, 8], [5, IGNORE_INDEX, IGNORE_INDEX], [7, 8, IGNORE_INDEX]]
    assert batch.target_ids.tolist() == batch.targets.tolist()
    assert batch.target_positions.tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 1]], "filled up with a row's last place"
    assert (batch.tokens.lengths.tolist(), batch.tokens.example_indices.tolist()) == ([3, 1, 2], [7, 8, 9])
    assert (dict(batch.counts), batch.num_input_tokens) == ({"tokens": 6, "examples": 3}, 6)
    short = NextToken().build_batch(rows.take(np.array([1])), np.array([0]))
    assert short.tokens.ids.tolist() == [[9]], "cut to the longest"


def test_blocks_of_chunks_are_taken_from_and_joined_like_all_questions() -> None:
    one = chunks()
    assert one.tokens is not None
    again = Questions.concatenate([one.take(slice(0, 1)), one.take(slice(1, 3))])
    assert again.tokens is not None
    assert again.tokens.ids.tolist() == one.tokens.ids.tolist()
    assert again.hashes().tolist() == one.hashes().tolist()
    assert len(set(one.hashes().tolist())) == 3
    with pytest.raises(ValueError, match="must have the same metadata to be concatenated"):
        Questions.concatenate([one, Arithmetic().examples("train", 0, 0, 2).take(slice(0, 1)), one])


def test_questions_are_refused() -> None:
    task, characters = Arithmetic(), Characters()
    rows = characters.encode_examples(task.examples("train", 0, 0, 2), characters.build_vocabulary(task))
    with pytest.raises(UserError, match="for questions with answers use layout=Continuation"):
        NextToken().build_batch(rows, np.arange(2))
    with pytest.raises(UserError, match="TokenIds must be used with task=LanguageModeling, not Arithmetic"):
        TokenIds().build_vocabulary(Arithmetic())
    with pytest.raises(UserError, match="TokenIds supports language modeling only"):
        TokenIds().encode_examples(
            Arithmetic().examples("train", 0, 0, 2), build_tokenizer_vocabulary(load_tokenizer(TINY))
        )

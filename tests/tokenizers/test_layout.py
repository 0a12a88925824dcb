"""Promises of layouts: a batch asks for exactly the answer, each place for the token that follows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate import tokenizers
from numerate.batch import IGNORE_INDEX
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation, Layout, MaskedLM, Seq2Seq, TokenClassification
from numerate.tokenizers.tokenizer import Characters, TokenizedExamples
from numerate.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

torch.set_num_threads(1)

RUNNING = ("NextToken",)
"""Only for language modeling: tests/text/test_token_ids.py holds it to promises."""

EVERY = [getattr(tokenizers, name)() for name in tokenizers.CATALOGUE["Layout"] if name not in RUNNING] + [
    Continuation("all")
]
every_layout = pytest.mark.parametrize("layout", EVERY, ids=repr)


@st.composite
def any_rows(draw: st.DrawFn, labelled: bool) -> TokenizedExamples:
    """Rows with targets anywhere: none, contiguous ones, and ones with gaps."""
    count = draw(st.integers(1, 5))
    lengths = np.array(draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)))
    longest = int(lengths.max())
    inside = np.arange(longest) < lengths[:, None]
    ids = np.array(draw(st.lists(st.integers(4, 200), min_size=count * longest, max_size=count * longest)))
    mask = np.array(draw(st.lists(st.booleans(), min_size=count * longest, max_size=count * longest)))
    ids, mask = (ids.reshape(count, longest) * inside).astype(np.uint8), mask.reshape(count, longest) & inside
    return TokenizedExamples(ids, lengths, mask, (ids[:, ::-1] + 1).astype(np.uint8) if labelled else None)


def rows_for(layout: Layout) -> st.SearchStrategy[TokenizedExamples]:
    return any_rows(labelled=isinstance(layout, TokenClassification))


def plain(layout: Layout, rows: TokenizedExamples, row: int) -> tuple[list[int], list[int]]:
    """Inputs and targets of one row, token by token."""
    length = int(rows.lengths[row])
    ids = rows.ids[row, :length].tolist()
    if isinstance(layout, TokenClassification):
        assert rows.labels is not None
        labels = rows.labels[row, :length].tolist()
        return ids, [
            label if asks else IGNORE_INDEX for label, asks in zip(labels, rows.target_mask[row], strict=False)
        ]
    if isinstance(layout, Seq2Seq):
        first = question_of(rows, row)
        targets = [i if asks else IGNORE_INDEX for i, asks in zip(ids, rows.target_mask[row], strict=False)][first:]
        return [PAD, *ids[first:-1]][: len(targets)], targets
    if isinstance(layout, MaskedLM):
        here = rows.target_mask[row, :length]
        read = [UNK if asks else i for i, asks in zip(ids, here, strict=True)]
        return read, [i if asks else IGNORE_INDEX for i, asks in zip(ids, here, strict=True)]
    target_mask = rows.target_mask[row, 1:length] if layout == Continuation() else [True] * (length - 1)
    return ids[:-1], [following if asks else IGNORE_INDEX for following, asks in zip(ids[1:], target_mask, strict=True)]


def question_of(rows: TokenizedExamples, row: int) -> int:
    """The number of tokens of a row before its first target; all if there is none."""
    positions = np.flatnonzero(rows.target_mask[row, : rows.lengths[row]])
    return int(positions[0]) if len(positions) else int(rows.lengths[row])


@every_layout
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_batch_is_what_the_plain_form_lays_out_token_by_token(layout: Layout, data: st.DataObject) -> None:
    rows = data.draw(rows_for(layout))
    batch = layout.build_batch(rows, np.arange(len(rows)) + 10**12)
    total = 0
    for row in range(len(rows)):
        read, targets = plain(layout, rows, row)
        assert batch.tokens.lengths[row] == len(read)
        assert batch.tokens.ids[row].tolist() == read + [PAD] * (batch.tokens.ids.shape[1] - len(read))
        assert batch.targets[row].tolist() == targets + [IGNORE_INDEX] * (batch.targets.shape[1] - len(targets))
        positions = [place for place, target in enumerate(targets) if target != IGNORE_INDEX]
        most = batch.target_positions.shape[1]
        last = positions[-1] if positions else 0
        assert batch.target_positions[row].tolist() == positions + [last] * (most - len(positions))
        assert batch.target_ids[row].tolist() == [targets[p] for p in positions] + [IGNORE_INDEX] * (
            most - len(positions)
        )
        total += len(positions)
    assert batch.counts == {"tokens": total, "examples": len(rows)}
    sources = 0 if batch.source is None else int(batch.source.lengths.sum())
    assert batch.num_input_tokens == int(batch.tokens.lengths.sum()) + sources
    assert batch.tokens.example_indices.tolist() == [10**12 + row for row in range(len(rows))]


@every_layout
def test_everything_is_a_64_bit_tensor_that_shares_nothing_with_its_rows(layout: Layout) -> None:
    ids = np.array([[5, 6, EOS]], dtype=np.uint8)
    rows = TokenizedExamples(
        ids, np.array([3]), np.ones((1, 3), dtype=np.bool_), ids if isinstance(layout, TokenClassification) else None
    )
    index = np.array([7])
    batch = layout.build_batch(rows, index)
    tensors = [part for part in (*vars(batch.tokens).values(), *vars(batch).values()) if isinstance(part, torch.Tensor)]
    assert len(tensors) >= 6
    for tensor in tensors:
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()
        tensor.fill_(-5)
    assert ids.tolist() == [[5, 6, EOS]]
    assert rows.lengths.tolist() == [3]
    assert index.tolist() == [7]


@settings(max_examples=60, deadline=None)
@given(rows=any_rows(labelled=False), end=st.booleans())
def test_of_a_pair_the_encoder_reads_the_question_and_nothing_of_the_answer(rows: TokenizedExamples, end: bool) -> None:
    source = Seq2Seq(source_eos=end).build_batch(rows, np.arange(len(rows))).source
    assert source is not None
    for row in range(len(rows)):
        question = rows.ids[row, : question_of(rows, row)].tolist() + [EOS] * end
        assert source.lengths[row] == len(question)
        assert source.ids[row].tolist() == question + [PAD] * (source.ids.shape[1] - len(question))


def test_a_sentinel_stands_in_the_source_and_begins_the_answer() -> None:
    vocabulary = Vocabulary.with_digits(["+", "=", "<extra_id_0>"])
    rows = replace(
        Characters().encode_examples(Arithmetic().parse_question("12+9="), Vocabulary.with_digits(["+", "="])),
        vocabulary=vocabulary,
    )
    batch = Seq2Seq(decoder_start_token="bos", sentinel_token="<extra_id_0>").build_batch(rows, np.arange(1))
    assert batch.source is not None
    mask, digit = vocabulary.token_to_id["<extra_id_0>"], vocabulary.token_to_id["0"]
    assert batch.source.ids[0, -2:].tolist() == [mask, EOS]
    assert batch.targets[0].tolist() == [mask, digit + 1, digit + 2, EOS]
    assert batch.tokens.ids[0].tolist() == [BOS, mask, digit + 1, digit + 2]
    with pytest.raises(UserError, match=r"layout.sentinel_token: must be a token of the task \(0, 1"):
        Seq2Seq(sentinel_token="<nothing>").build_batch(rows, np.arange(1))


@pytest.mark.parametrize("layout", [Continuation(), Seq2Seq()], ids=repr)
def test_values_stay_with_their_tokens_on_both_sides(layout: Layout) -> None:
    rows = Characters().encode_examples(Arithmetic().parse_question("12+9="), Vocabulary.with_digits(["+", "="]))
    values = np.where(rows.target_mask, 7.0, np.arange(rows.ids.shape[1])).astype(np.float32)
    batch = layout.build_batch(replace(rows, number_values=values), np.arange(1))
    assert batch.target_number_values is not None
    assert batch.target_number_values[batch.targets != IGNORE_INDEX].tolist() == [7.0, 7.0, 7.0]
    question = batch.tokens if batch.source is None else batch.source
    assert question.number_values is not None
    assert question.number_values[0, :5].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert batch.tokens.number_values is not None
    assert batch.tokens.number_values[0, -2:].tolist() == [7.0, 7.0]


def test_a_masked_number_is_not_read_and_stands_behind_its_place() -> None:
    rows = TokenizedExamples(np.array([[7, 8, 9, EOS]]), np.array([4]), np.array([[False, False, True, True]]))
    rows = replace(rows, number_values=np.array([[1, 3.5, -2, 1]], dtype=np.float32))
    batch = MaskedLM().build_batch(rows, np.arange(1))
    assert batch.tokens.ids.tolist() == [[7, 8, UNK, UNK]]
    assert batch.tokens.number_values is not None
    assert batch.tokens.number_values.tolist() == [[1, 3.5, 1, 1]]
    assert batch.target_number_values is not None
    assert batch.target_number_values.tolist() == [[1, 3.5, -2, 1]]

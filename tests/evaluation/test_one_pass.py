"""One forward says which answers greedy decoding gets right: on every model, with right and wrong answers present."""

from typing import Any

import numpy as np
import torch

from numerate.batch import Batch
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts
from numerate.evaluation.exact_match import predict
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters, TokenizedExamples
from numerate.vocabulary import EOS
from oracle import read_again

ROWS, MOST = 40, 6

EXAM = EvaluationData(Arithmetic(), Characters(), Continuation())


SORTS = {"right", "first", "middle", "end", "later"}


Questions = tuple[Batch, list[str], list[list[int]]]
"""A batch, what each of its answers is, and the ids that the model generates."""


def eager_to_end(model: Any) -> dict[int, Questions]:
    """Makes the head's weights for the end token so large that some answers end early and others do not; then the
    questions of the first and the last position offset."""
    own = model.head.weight[EOS].clone()
    for factor in (4.0, 2.0, 1.0, 8.0, 0.5, -1.0, -4.0):
        with torch.no_grad():
            model.head.weight[EOS] = factor * own
        found = {
            position_offset: questions_for(model, position_offset)
            for position_offset in {0, model.num_position_offsets() - 1}
        }
        if all(set(sorts) == SORTS for _, sorts, _ in found.values()):
            break
    return found


def batch_of(prompts: list[list[int]], golds: list[list[int]]) -> Batch:
    """Questions with these right answers, in the default layout."""
    whole = [prompt + gold for prompt, gold in zip(prompts, golds, strict=True)]
    lengths = np.array([len(row) for row in whole])
    ids = np.zeros((len(whole), int(lengths.max())), dtype=np.uint8)
    target_mask = np.zeros(ids.shape, dtype=np.bool_)
    for row, text in enumerate(whole):
        ids[row, : len(text)] = text
        target_mask[row, len(prompts[row]) : len(text)] = True
    return Continuation().build_batch(TokenizedExamples(ids, lengths, target_mask), np.arange(len(whole)))


def questions_for(model: Any, position_offset: int) -> Questions:
    """Questions whose right answer is what the model generates, and questions that differ from it somewhere: at the
    first token, in the middle with the first right, at the end token alone, or in the middle with all that follows
    right."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 8, (ROWS,), generator=generator).tolist()
    prompts = [torch.randint(4, 19, (size,), generator=generator).tolist() for size in sizes]
    batch = batch_of(prompts, [[4] * MOST] * ROWS)
    found, *_ = read_again(model, extract_prompts(batch)[0], MOST, position_offset=position_offset)
    golds, sorts = [], []
    for row in range(ROWS):
        generated = found[row]
        ended = generated[-1] == EOS
        sort = ["right", "first", "middle", "end", "later"][row % 5]
        other = 4 if generated[0] != 4 else 5
        if sort == "first":
            gold = [other, *generated[1:]]
        elif sort == "middle" and len(generated) > 2:
            gold = [generated[0], 4 if generated[1] != 4 else 5, *generated[2:]]
        elif sort == "end" and not ended:
            gold = [*generated[:-1], EOS]
        elif sort == "end" and ended and len(generated) < MOST:
            gold = [*generated[:-1], 4, EOS]
        elif sort == "later" and len(generated) > 1:
            gold = [*generated[:-1], 4 if generated[-1] != 4 else 5]
        else:
            sort, gold = "right", generated
        golds.append(gold)
        sorts.append(sort)
    return batch_of(prompts, golds), sorts, found


def test_one_pass_is_greedy_decoding(any_model: Any, build: Any) -> None:
    model = build(any_model)
    for position_offset, (batch, sorts, uncached) in eager_to_end(model).items():
        one = predict(model, EXAM, batch, position_offset).match_counts
        found = predict(model, EXAM, batch, position_offset, method="decoding")
        decoded, generated = found.match_counts, found.ids
        expected = [sort == "right" for sort in sorts]
        assert one.correct.tolist() == expected
        assert decoded.correct.tolist() == expected
        assert 5 <= sum(expected) <= ROWS - 5, "both outcomes are present"
        assert set(sorts) == SORTS
        assert one.first_error.tolist() == decoded.first_error.tolist(), "up to the first fault the prefix is the same"
        for row, sort in enumerate(sorts):
            assert (int(one.first_error[row]) == -1) == (sort == "right")
            if sort == "first":
                assert int(one.first_error[row]) == 0
            if sort == "middle":
                assert int(one.first_error[row]) == 1
        assert [row[: len(own)] for row, own in zip(generated.tolist(), uncached, strict=True)] == uncached

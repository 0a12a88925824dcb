"""Every mixer learns a tiny task in seconds, and what it learned is measured the same in one pass and by decoding."""

from typing import Any

import pytest
import torch

from numerate import catalogue
from numerate.batch import StepContext
from numerate.config import Span
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import evaluate_cell
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.position_ids import DigitIndex
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters
from numerate.training.data_stream import BatchStream
from numerate.training.objective import Supervised
from numerate.training.optimizer import AdamW

TASK = Arithmetic(digits=1)
STEPS, BATCH = 900, 64
"""At most: the slowest mixers need 350 steps, and some more on processors that round otherwise."""
LEARNED = 0.05
"""The mean loss of ten steps at which a mixer has shown that it learns, if it is there before the last step."""


def trained(mixer: Any) -> tuple[Any, EvaluationData, list[float]]:
    exam = EvaluationData(TASK, Characters(), Continuation())
    position = Learned(position_ids=DigitIndex(max_offset=2), max_position_embeddings=16)
    model = Decoder(hidden_size=48, mixer=mixer, positions=(position,)).build(exam.vocabulary, 0).train()
    stream = BatchStream(TASK, exam.tokenizer, exam.layout, seed=0, batch_size=BATCH)
    objective = Supervised().build(exam.vocabulary)
    optimizer = AdamW(learning_rate=5e-3).build(model, model.optimizer_options_by_parameter())
    place, losses = 0, []
    for step in range(STEPS):
        batch = stream.batch(place)
        place += BATCH
        tokens = model.assign_positions(batch.tokens, StepContext(seed=0, step=step))
        sums = objective(model, type(batch)(**{**vars(batch), "tokens": tokens}), StepContext(seed=0, step=step))
        loss = sums["cross_entropy"] / objective.counts(batch)["cross_entropy"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if sum(losses[-20:]) < 20 * LEARNED:
            break
    return model.eval(), exam, losses


MIXERS = [part for part in catalogue.all_classes("Mixer") if part.__name__ != "ChannelMix"]  # it sees one token back
ALWAYS = ("Attention", "LSTM")
"""The mixers that are trained in `make test`; the others take up to half a minute each."""


@pytest.mark.parametrize(
    "mixer",
    [pytest.param(part, marks=[pytest.mark.slow] * (part.__name__ not in ALWAYS)) for part in MIXERS],
    ids=lambda part: part.__name__,
)
def test_it_learns_sums_of_one_digit_and_both_measures_agree(mixer: Any) -> None:
    model, exam, losses = trained(mixer())
    assert losses[0] > 2.0
    assert sum(losses[-10:]) / 10 < 0.15
    whole = evaluate_cell(model, exam, {}, count=100)
    assert whole["correct"] >= 90
    # Longer sums than any it saw are mostly wrong: with both, right and wrong answers are present.
    beyond = EvaluationData(Arithmetic(digits=Span(1, 2)), exam.tokenizer, exam.layout)
    one, decoded = (evaluate_cell(model, beyond, {}, count=200, method=method) for method in ("one pass", "decoding"))
    assert 20 < one["correct"] < 180
    for name in ("correct", "count", "first_error_counts", "low", "high"):
        assert one[name] == decoded[name], name
    torch.manual_seed(5)
    assert evaluate_cell(model, exam, {}, count=100) == whole

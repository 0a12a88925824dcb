"""RJokes, passages and word problems as published: number losses on numbers within text.

Zausinger et al. (2025), https://arxiv.org/abs/2411.02083: T5-small on rJokes (a score from 0 to 11) and on MultiRC
(answers that mostly have no number), T5-3B on GSM8K, 2,500,000 steps of 32 questions, which are 12,500
passes through GSM8K: its best checkpoint comes early. `numerate data fetch rjokes multirc gsm8k` gets the questions.
Memory and hours are as in number_loss_mathematics; in bf16 T5-3B takes about a tenth of the hours.
"""

from dataclasses import replace
from typing import Any

from numerate.losses.loss import Loss
from numerate.losses.number_heads import XValLoss
from numerate.losses.number_token import NumberToken
from numerate.recipes.number_loss_paper import (
    CROSS_ENTROPY,
    DIGITS,
    UNCHANGED,
    ntl,
    published,
    t5,
    with_gradient_checkpointing,
)
from numerate.text.models.number_inputs import NumberHead, XValScaling
from numerate.text.tasks.gsm8k import GSM8K
from numerate.text.tasks.multirc import MultiRC
from numerate.text.tasks.rjokes import RJokes
from numerate.text.tokenizers.text_number_formats import TextNumberFormat
from numerate.text.tokenizers.text_number_formats import XVal as Numbers
from numerate.training.recipe import Recipe

REGRESSION = replace(t5(), number_embedding=XValScaling(), number_head=NumberHead(read_at="start"))


def rjokes_t5() -> Recipe:
    """Published rJokes: T5-small with its own tokens.

    T5-small: 61 million weights, 1.0 GB and activations, 39 hours.
    """
    return _rjokes("rjokes_t5")


def rjokes_t5_ntl_was() -> Recipe:
    """Published rJokes: NTL-WAS with weight 2.

    T5-small: 61 million weights, 1.0 GB and activations, 39 hours.
    """
    return _rjokes("rjokes_t5_ntl_was", ntl("was", 2.0), DIGITS)


def rjokes_t5_regression_head() -> Recipe:
    """Published rJokes: a linear head on T5-small predicts the score.

    T5-small: 61 million weights, 1.0 GB and activations, 39 hours. Squared error of the score; the cross-entropy beside
    it teaches that the answer is [NUM]. Numbers of a joke are [NUM] too, with vectors multiplied by
    them; in theirs they are T5's own tokens.
    """
    return _rjokes("rjokes_t5_regression_head", XValLoss(scale="number"), Numbers(), model=REGRESSION)


def rjokes_t5_custom_tokenizer() -> Recipe:
    """Published rJokes: T5-small with one token a digit, no number loss.

    T5-small: 61 million weights, 1.0 GB and activations, 39 hours.
    """
    return _rjokes("rjokes_t5_custom_tokenizer", CROSS_ENTROPY, DIGITS)


def rjokes_t5_ntl_default_tokenizer() -> Recipe:
    """Published rJokes: NTL-WAS with weight 2 over T5's own tokens that are numbers.

    T5-small: 61 million weights, 1.0 GB and activations, 39 hours.
    """
    return _rjokes("rjokes_t5_ntl_default_tokenizer", NumberToken("was", weight=2.0, number_tokens="numbers"))


def multirc_t5() -> Recipe:
    """Published MultiRC: T5-small with its own tokens.

    T5-small: 61 million weights, 1.0 GB and activations, 135 hours.
    """
    return _multirc("multirc_t5")


def multirc_t5_custom_tokenizer() -> Recipe:
    """Published MultiRC: T5-small with one token a digit, no number loss.

    T5-small: 61 million weights, 1.0 GB and activations, 135 hours. What the number loss is to be compared
    with.
    """
    return _multirc("multirc_t5_custom_tokenizer", CROSS_ENTROPY, DIGITS)


def multirc_t5_ntl_was() -> Recipe:
    """Published MultiRC: NTL-WAS with weight 2.

    T5-small: 61 million weights, 1.0 GB and activations, 135 hours.
    """
    return _multirc("multirc_t5_ntl_was", ntl("was", 2.0), DIGITS)


def gsm8k_t5() -> Recipe:
    """Published GSM8K: T5-3B with its own tokens.

    T5-3B: 2,852 million weights, 45.6 GB and activations, 6,866 hours.
    """
    return _gsm8k("gsm8k_t5")


def gsm8k_t5_custom_tokenizer() -> Recipe:
    """Published GSM8K: T5-3B with one token a digit, no number loss.

    T5-3B: 2,852 million weights, 45.6 GB and activations, 6,866 hours. What the number loss is to be
    compared with.
    """
    return _gsm8k("gsm8k_t5_custom_tokenizer", CROSS_ENTROPY, DIGITS)


def gsm8k_t5_ntl_was() -> Recipe:
    """Published GSM8K: NTL-WAS with weight 0.3.

    T5-3B: 2,852 million weights, 45.6 GB and activations, 6,866 hours.
    """
    return _gsm8k("gsm8k_t5_ntl_was", ntl("was"), DIGITS)


def _rjokes(
    title: str, loss: Loss = CROSS_ENTROPY, number_format: TextNumberFormat = UNCHANGED, **other: Any
) -> Recipe:
    return published(
        title, RJokes(), loss, number_format, examples_per_cell=43_246, validation_examples=43_246, **other
    )


def _multirc(title: str, loss: Loss = CROSS_ENTROPY, number_format: TextNumberFormat = UNCHANGED) -> Recipe:
    return published(title, MultiRC(), loss, number_format, examples_per_cell=953, validation_examples=953)


def _gsm8k(title: str, loss: Loss = CROSS_ENTROPY, number_format: TextNumberFormat = UNCHANGED) -> Recipe:
    found = published(title, GSM8K(), loss, number_format, size="3b", examples_per_cell=1319, validation_examples=1120)
    return with_gradient_checkpointing(found)

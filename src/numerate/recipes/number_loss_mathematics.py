"""The mathematics dataset as published: T5-base with and without number losses, the regression transformer, xVal.

Zausinger et al. (2025), https://arxiv.org/abs/2411.02083, table 1: 13 modules, 1,050,000 steps of 32 questions.
`numerate data fetch mathematics` gets the questions. Parts 1 to 13 of the evaluation are interpolation, 14 to 20
extrapolation. Memory is of weights, gradients and moments in float32, hours are those of
`numerate.recipes.number_loss_paper.hours`, on one GPU at 10 TFLOP/s.
"""

from dataclasses import replace
from typing import Any

from numerate.losses.loss import Loss
from numerate.losses.number_heads import XValLoss
from numerate.recipes.number_loss_paper import (
    CROSS_ENTROPY,
    DIGITS,
    LONG_STEPS,
    SHORT_STEPS,
    UNCHANGED,
    ntl,
    published,
    t5,
    with_gradient_checkpointing,
)
from numerate.text.models.number_inputs import NumberHead, RegressionTransformerEmbedding, XValScaling
from numerate.text.models.numformer import Numformer
from numerate.text.tasks.mathematics import Mathematics
from numerate.text.tokenizers.regression_transformer import RegressionTransformer
from numerate.text.tokenizers.text_number_formats import TextNumberFormat
from numerate.text.tokenizers.text_number_formats import XVal as Numbers
from numerate.tokenizers.layout import MaskedLM
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe
from numerate.training.schedule import Constant

RT_NUMBERS, XVAL_NUMBERS = RegressionTransformer(), Numbers()
RT = replace(t5("base"), number_embedding=RegressionTransformerEmbedding(scale="log"))
XVAL = replace(
    t5("base"),
    max_position_embeddings=512,
    number_embedding=XValScaling(scale="log10"),
    number_head=NumberHead(scale="ln"),
)


def mathematics_t5() -> Recipe:
    """Published mathematics: T5-base with its own tokens.

    T5-base: 223 million weights, 3.6 GB and activations, 57 hours.
    """
    return _mathematics("mathematics_t5")


def mathematics_t5_custom_tokenizer() -> Recipe:
    """Published mathematics: T5-base with one token a digit, no number loss.

    T5-base: 223 million weights, 3.6 GB and activations, 57 hours. The baseline of the number losses.
    """
    return _mathematics("mathematics_t5_custom_tokenizer", CROSS_ENTROPY, DIGITS)


def mathematics_t5_ntl_mse() -> Recipe:
    """Published mathematics: T5-base with NTL-MSE.

    T5-base: 223 million weights, 3.6 GB and activations, 57 hours. The command of the README runs
    NTL-WAS.
    """
    return _mathematics("mathematics_t5_ntl_mse", ntl("mse"), DIGITS)


def mathematics_t5_ntl_was() -> Recipe:
    """Published mathematics: T5-base with NTL-WAS.

    T5-base: 223 million weights, 3.6 GB and activations, 57 hours.
    """
    return _mathematics("mathematics_t5_ntl_was", ntl("was"), DIGITS)


def mathematics_rt() -> Recipe:
    """Published mathematics: T5-base with the tokens of the regression transformer.

    T5-base: 223 million weights, 3.6 GB and activations, 57 hours. Pretrained rows of the
    vocabulary are kept; the published code draws all of them anew.
    """
    return _mathematics("mathematics_rt", CROSS_ENTROPY, RT_NUMBERS, model=RT, paper="regression_transformer")


def mathematics_rt_ntl_mse() -> Recipe:
    """Published mathematics: T5-base with the tokens of the regression transformer, NTL-MSE.

    T5-base: 223 million weights, 3.6 GB and activations, 57 hours. Padding has no loss; the
    published one trains it towards the digit 8.
    """
    return _mathematics("mathematics_rt_ntl_mse", ntl("mse"), RT_NUMBERS, model=RT, paper="regression_transformer")


def mathematics_xval() -> Recipe:
    """Published mathematics: T5-base with [NUM] for every number, and a number head.

    T5-base: 223 million weights, 3.6 GB and activations, 57 hours. No row of the paper, whose xVal
    is `mathematics_numformer`. Numbers are compared as signed logarithms; theirs is `objective.loss.published=true
    model.number_head.scale=number`.
    """
    return _mathematics("mathematics_xval", XValLoss(), XVAL_NUMBERS, model=XVAL, paper="xval")


def mathematics_numformer() -> Recipe:
    """Published mathematics: xVal, an encoder of 12 layers from random weights.

    Numformer: 140 million weights, 2.2 GB and activations, 61 hours. It sees how many tokens the answer has. As
    published no gradient is clipped.
    """
    model = Numformer(final_norm=False, head_bias=False)
    found = _mathematics("mathematics_numformer", XValLoss(), XVAL_NUMBERS, model=model, paper="xval")
    return replace(
        found,
        optimizer=AdamW(learning_rate=1e-4, betas=(0.9, 0.999), weight_decay=0.01, max_grad_norm=None),
        layout=MaskedLM(mask_token="<extra_id_0>"),
        schedule=Constant(warmup=0),
        training=replace(found.training, evaluate_every=10_000, checkpoint_every=10_000),
    )


def mathematics_t5_big() -> Recipe:
    """Published mathematics: T5-11B with its own tokens, 8 questions a step.

    T5-11B: 11,307 million weights, 180.9 GB and activations, 1,881 hours. Several GPUs share it with
    `training.parallel=fsdp`.
    """
    found = _mathematics("mathematics_t5_big", size="11b", steps=LONG_STEPS, batch_size=8)
    return with_gradient_checkpointing(found)


def _mathematics(
    title: str, loss: Loss = CROSS_ENTROPY, number_format: TextNumberFormat = UNCHANGED, **other: Any
) -> Recipe:
    options: dict[str, Any] = {"size": "base", "steps": SHORT_STEPS} | other
    return published(
        title, Mathematics(), loss, number_format, examples_per_cell=10_000, validation_examples=13_026, **options
    )

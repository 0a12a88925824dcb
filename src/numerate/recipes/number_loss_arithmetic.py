"""The ablations on one module of the mathematics dataset as published: number losses, their weights, and tokenizers.

Zausinger et al. (2025), https://arxiv.org/abs/2411.02083: T5-small on sums and differences of several numbers
(`arithmetic__add_sub_multiple`), 2,500,000 steps of 32 questions; longer ones are part 2 of the evaluation.
`numerate data fetch mathematics` gets the questions. Memory and hours are as in number_loss_mathematics.
"""

from numerate.losses.loss import Loss
from numerate.losses.number_token import GaussianCrossEntropy, NumberToken
from numerate.recipes.number_loss_paper import CROSS_ENTROPY, DIGITS, UNCHANGED, ntl, published
from numerate.text.tasks.mathematics import arithmetic_ablation
from numerate.text.tokenizers.text_number_formats import TextNumberFormat
from numerate.training.recipe import Recipe


def arithmetic_t5_ce() -> Recipe:
    """Published arithmetic: T5-small with its own tokens.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ce")


def arithmetic_t5_ntl_mse() -> Recipe:
    """Published arithmetic: NTL-MSE with weight 0.3.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ntl_mse", ntl("mse", 0.3), DIGITS)


def arithmetic_t5_ntl_mse_lambda08() -> Recipe:
    """Published arithmetic: NTL-MSE with weight 0.8.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ntl_mse_lambda08", ntl("mse", 0.8), DIGITS)


def arithmetic_t5_ntl_mse_lambda2() -> Recipe:
    """Published arithmetic: NTL-MSE with weight 2.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ntl_mse_lambda2", ntl("mse", 2.0), DIGITS)


def arithmetic_t5_ntl_was() -> Recipe:
    """Published arithmetic: NTL-WAS with weight 0.3.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ntl_was", ntl("was", 0.3), DIGITS)


def arithmetic_t5_ntl_was_lambda08() -> Recipe:
    """Published arithmetic: NTL-WAS with weight 0.8.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ntl_was_lambda08", ntl("was", 0.8), DIGITS)


def arithmetic_t5_ntl_was_lambda2() -> Recipe:
    """Published arithmetic: NTL-WAS with weight 2.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ntl_was_lambda2", ntl("was", 2.0), DIGITS)


def arithmetic_t5_ntl_mae() -> Recipe:
    """Published arithmetic: NTL-MAE with weight 0.3.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ntl_mae", ntl("mae"), DIGITS)


def arithmetic_t5_ntl_huber() -> Recipe:
    """Published arithmetic: NTL-Huber with weight 0.3.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ntl_huber", ntl("huber"), DIGITS)


def arithmetic_t5_gaussian_sigma1() -> Recipe:
    """Published arithmetic: cross-entropy smoothed by a Gaussian of width 1.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_gaussian_sigma1", GaussianCrossEntropy(1.0), DIGITS)


def arithmetic_t5_gaussian_sigma2() -> Recipe:
    """Published arithmetic: cross-entropy smoothed by a Gaussian of width 2.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_gaussian_sigma2", GaussianCrossEntropy(2.0), DIGITS)


def arithmetic_t5_gaussian_ntl_was_sigma1() -> Recipe:
    """Published arithmetic: cross-entropy smoothed by a Gaussian of width 1, NTL-WAS to the same.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_gaussian_ntl_was_sigma1", NumberToken("was-cdf", gaussian_sigma=1.0), DIGITS)


def arithmetic_t5_gaussian_ntl_was_sigma2() -> Recipe:
    """Published arithmetic: cross-entropy smoothed by a Gaussian of width 2, NTL-WAS to the same.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_gaussian_ntl_was_sigma2", NumberToken("was-cdf", gaussian_sigma=2.0), DIGITS)


def arithmetic_t5_custom_tokenizer() -> Recipe:
    """Published arithmetic: T5-small with one token a digit, no number loss.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_custom_tokenizer", CROSS_ENTROPY, DIGITS)


def arithmetic_t5_ntl_default_tokenizer() -> Recipe:
    """Published arithmetic: NTL-WAS over T5's own tokens that are numbers.

    T5-small: 61 million weights, 1.0 GB and activations, 12 hours.
    """
    return _arithmetic("arithmetic_t5_ntl_default_tokenizer", NumberToken("was", number_tokens="numbers"))


def _arithmetic(title: str, loss: Loss = CROSS_ENTROPY, number_format: TextNumberFormat = UNCHANGED) -> Recipe:
    return published(
        title, arithmetic_ablation(), loss, number_format, examples_per_cell=10_000, validation_examples=3000
    )

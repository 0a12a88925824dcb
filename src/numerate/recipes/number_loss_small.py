"""Number losses, small enough for a laptop and without any download: a stand-in for the mathematics dataset.

After Zausinger et al. (2025), https://arxiv.org/abs/2411.02083, at smaller sizes: T5 of two layers and width 64,
or a decoder like it, from random weights, one token a character, on questions that are generated
(`GeneratedMathematics`: places, rounding, sums and differences). Models of one architecture differ only in the loss or
the number format, not in data or budget. T5 has learned position embeddings beside its own position bias, without which
this budget is too short for it. Parts 1 to 3 of the evaluation are numbers of up to four digits, as trained, 4 to 6
those of five and six.

`number_loss_laptop_*` are the same on the mathematics dataset itself, over the tokens of T5.
"""

from dataclasses import replace

from numerate.batch import ModelSpec
from numerate.config import Span
from numerate.evaluation.evaluator import Evaluation
from numerate.losses.cross_entropy import CrossEntropy
from numerate.losses.loss import Loss
from numerate.losses.number_heads import Regression, XValLoss
from numerate.losses.number_level import NumberLevel
from numerate.losses.number_token import GaussianCrossEntropy, NumberToken
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.text.models.number_inputs import NumberHead, RegressionTransformerEmbedding, XValScaling
from numerate.text.models.t5 import T5
from numerate.text.tasks.generated_mathematics import GeneratedMathematics
from numerate.text.tokenizers.regression_transformer import RegressionTransformer
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import XVal as Numbers
from numerate.tokenizers.layout import Continuation, Seq2Seq
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters
from numerate.training.objective import Supervised
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import WarmupStableDecay

SMALL = T5(
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    head_dim=16,
    intermediate_size=256,
    dropout=0.0,
    max_position_embeddings=96,
)
DECODER = Decoder(hidden_size=64, backbone=Stack(num_layers=2), mixer=Attention(num_heads=4), positions=(Rotary(),))


def number_loss_small_ce() -> Recipe:
    """A small T5 on generated mathematics: plain cross-entropy."""
    return _small("number_loss_small_ce", CrossEntropy())


def number_loss_small_mse() -> Recipe:
    """A small T5 on generated mathematics: NTL-MSE."""
    return _small("number_loss_small_mse", NumberToken("mse"))


def number_loss_small_was() -> Recipe:
    """A small T5 on generated mathematics: NTL-WAS."""
    return _small("number_loss_small_was", NumberToken("was"))


def number_loss_small_mae() -> Recipe:
    """A small T5 on generated mathematics: NTL-MAE."""
    return _small("number_loss_small_mae", NumberToken("mae"))


def number_loss_small_huber() -> Recipe:
    """A small T5 on generated mathematics: NTL-Huber."""
    return _small("number_loss_small_huber", NumberToken("huber"))


def number_loss_small_gaussian() -> Recipe:
    """A small T5 on generated mathematics: cross-entropy smoothed by a Gaussian of width 1."""
    return _small("number_loss_small_gaussian", GaussianCrossEntropy(1.0))


def number_loss_small_number_level() -> Recipe:
    """A small T5 on generated mathematics: a loss on number values instead of digits."""
    return _small("number_loss_small_number_level", NumberLevel())


def number_loss_small_rt() -> Recipe:
    """A small T5 on generated mathematics: the tokens and the vectors of the regression transformer."""
    model = replace(SMALL, number_embedding=RegressionTransformerEmbedding())
    found = _small("number_loss_small_rt", CrossEntropy(), model)
    return replace(found, tokenizer=Subwords("characters", RegressionTransformer()))


def number_loss_small_xval() -> Recipe:
    """A small T5 on generated mathematics: [NUM] for every number, and a number head."""
    model = replace(SMALL, number_embedding=XValScaling(), number_head=NumberHead(scale="ln"))
    return replace(
        _small("number_loss_small_xval", XValLoss(), model),
        tokenizer=Subwords("characters", Numbers(round_to_float32=True)),
    )


def number_loss_small_regression() -> Recipe:
    """A small T5 on generated mathematics: a regression head, one number per question."""
    model = replace(SMALL, number_embedding=XValScaling(), number_head=NumberHead(scale="ln", read_at="start"))
    found = _small("number_loss_small_regression", Regression(scale="ln"), model)
    return replace(found, tokenizer=Subwords("characters", Numbers(round_to_float32=True)))


def number_loss_small_decoder_ce() -> Recipe:
    """A small decoder on generated mathematics: plain cross-entropy."""
    return _small("number_loss_small_decoder_ce", CrossEntropy(), DECODER)


def number_loss_small_decoder_mse() -> Recipe:
    """A small decoder on generated mathematics: NTL-MSE."""
    return _small("number_loss_small_decoder_mse", NumberToken("mse"), DECODER)


def number_loss_small_decoder_was() -> Recipe:
    """A small decoder on generated mathematics: NTL-WAS."""
    return _small("number_loss_small_decoder_was", NumberToken("was"), DECODER)


def number_loss_small_decoder_gaussian() -> Recipe:
    """A small decoder on generated mathematics: cross-entropy smoothed by a Gaussian of width 1."""
    return _small("number_loss_small_decoder_gaussian", GaussianCrossEntropy(1.0), DECODER)


def number_loss_small_decoder_rt() -> Recipe:
    """A small decoder on generated mathematics: the tokens of the regression transformer."""
    found = _small("number_loss_small_decoder_rt", CrossEntropy(), DECODER)
    return replace(found, tokenizer=Subwords("characters", RegressionTransformer()))


def _small(title: str, loss: Loss, model: ModelSpec = SMALL) -> Recipe:
    is_seq2seq = isinstance(model, T5)
    return Recipe(
        task=GeneratedMathematics(
            kinds=("place_value", "round_number", "add_or_sub"), digits=Span(1, 4), ood_digits=Span(5, 6)
        ),
        tokenizer=Characters(number_format=Digits(digit_order="normal")),
        layout=Seq2Seq() if is_seq2seq else Continuation(),
        model=model,
        objective=Supervised(loss),
        optimizer=AdamW(
            learning_rate=1e-3 if is_seq2seq else 3e-3, betas=(0.9, 0.98), weight_decay=0.01, max_grad_norm=1.0
        ),
        schedule=WarmupStableDecay(warmup=100, decay_start=0.6, min_lr_ratio=0.02),
        training=Training(steps=2000, batch_size=32, threads=1),
        evaluation=Evaluation(grid="1:6", examples_per_cell=200),
        title=title,
        paper="number_loss",
    )

"""The recipes that those of the number token loss paper are based on: models, tokens, optimizer and budget.

Zausinger et al. (2025), "Regress, Don't Guess", https://arxiv.org/abs/2411.02083.
"""

from dataclasses import replace

from numerate.config import Span
from numerate.evaluation.evaluator import Evaluation
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.text.models.t5 import T5
from numerate.text.tasks.generated_mathematics import GeneratedMathematics
from numerate.text.tasks.mathematics import Mathematics
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import AsIs
from numerate.tokenizers.layout import Continuation, Seq2Seq
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Constant, Plateau, WarmupStableDecay


def published() -> Recipe:
    """T5-small with its own tokens and plain cross-entropy: 32 questions a step, and AdamW at 1e-4, halved on plateaus.

    Every 25,000 steps there is an evaluation on `validation_examples` questions and a checkpoint; `examples_per_cell`
    are the most of each module that the final evaluation asks. The published one searches with 4 beams, which is
    `method=beams`. The best checkpoint is that of the lowest validation loss (`metric_for_best_model: loss`).
    `model.weights=null` begins with random weights.
    """
    return Recipe(
        task=Mathematics(),
        tokenizer=Subwords("google-t5/t5-small", AsIs()),
        layout=Seq2Seq(),
        model=T5(size="small", weights="google-t5/t5-small"),
        optimizer=AdamW(learning_rate=1e-4, betas=(0.9, 0.999), weight_decay=0.01, max_grad_norm=1.0),
        schedule=Plateau(warmup=0, factor=0.5, patience=5),
        training=Training(
            steps=2_500_000,
            batch_size=32,
            precision="fp32",
            shuffle_window=1,
            log_every=2000,
            evaluate_every=25_000,
            evaluate_at_start=True,
            checkpoint_every=25_000,
            checkpoint_minutes=60,
            keep_checkpoints=2,
            best_metric="loss",
        ),
        paper="number_loss",
    )


def with_constant_rate() -> Recipe:
    """The same at a constant learning rate, and not evaluated at the start."""
    training = replace(published().training, evaluate_at_start=False)
    return replace(published(), schedule=Constant(warmup=0), training=training)


def small_t5() -> Recipe:
    """A T5 of two layers and width 64 from random weights, one token a character, on questions that are generated.

    The questions (places, rounding, sums and differences) are a stand-in for the mathematics dataset. T5 has learned
    position embeddings beside its own position bias, without which this budget is too short for it. Parts 1 to 3 of the
    evaluation are numbers of up to four digits, as trained, 4 to 6 those of five and six.
    """
    return Recipe(
        task=GeneratedMathematics(
            kinds=("place_value", "round_number", "add_or_sub"), digits=Span(1, 4), ood_digits=Span(5, 6)
        ),
        tokenizer=Characters(number_format=Digits(digit_order="normal")),
        layout=Seq2Seq(),
        model=T5(
            hidden_size=64,
            num_layers=2,
            num_heads=4,
            head_dim=16,
            intermediate_size=256,
            dropout=0.0,
            max_position_embeddings=96,
        ),
        optimizer=AdamW(learning_rate=1e-3, betas=(0.9, 0.98), weight_decay=0.01, max_grad_norm=1.0),
        schedule=WarmupStableDecay(warmup=100, decay_start=0.6, min_lr_ratio=0.02),
        training=Training(steps=2000, batch_size=32, threads=1),
        evaluation=Evaluation(grid="1:6", examples_per_cell=200),
        paper="number_loss",
    )


def small_decoder() -> Recipe:
    """`small_t5` with a decoder of the same size instead, at three times the learning rate."""
    return replace(
        small_t5(),
        layout=Continuation(),
        model=Decoder(
            hidden_size=64, backbone=Stack(num_layers=2), mixer=Attention(num_heads=4), positions=(Rotary(),)
        ),
        optimizer=AdamW(learning_rate=3e-3, betas=(0.9, 0.98), weight_decay=0.01, max_grad_norm=1.0),
    )

"""What all published number token loss runs have in common: models, tokens, losses, optimizer, budget, and cost.

Zausinger et al. (2025), "Regress, Don't Guess", https://arxiv.org/abs/2411.02083, and the settings of
https://github.com/tum-ai/number-token-loss. The rows are in number_loss_mathematics, number_loss_arithmetic and
number_loss_texts; small ones without any download in number_loss_small. Where they differ from the published code on
purpose, and why, stands in docs/coming-from-number-token-loss.md.

Plain T5 keeps its own tokens there, in which a number is one piece or several, and every model with a number loss has
one token a digit: two differences at once. So each dataset has a row `..._custom_tokenizer`, plain cross-entropy over
one token a digit, to compare a number loss with.
"""

from dataclasses import replace
from typing import Literal

from numerate.batch import ModelSpec
from numerate.evaluation.evaluator import Evaluation
from numerate.losses.cross_entropy import CrossEntropy
from numerate.losses.loss import Loss
from numerate.losses.number_token import NumberToken
from numerate.tasks.task import Task
from numerate.text.models.t5 import SIZES, T5
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import AsIs, PerDigit, TextNumberFormat
from numerate.tokenizers.layout import Layout, Seq2Seq
from numerate.training.objective import Supervised
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Plateau

Size = Literal["small", "base", "3b", "11b"]

UNCHANGED, DIGITS = AsIs(), PerDigit()
CROSS_ENTROPY = CrossEntropy()
FLOPS_PER_SECOND = 1e13
"""Floating-point operations a second used to estimate hours: half of what an A100 does in float32."""

TOKENS_PER_ROW = {
    "mathematics": (98, 14),
    "arithmetic": (38, 5),
    "rjokes": (150, 3),
    "multirc": (450, 40),
    "gsm8k": (127, 220),
}
"""Tokens used to estimate hours, of a question and an answer in a batch of 32 with its padding, one token a
digit: of mathematics and GSM8K as measured with T5's tokenizer, of rJokes and MultiRC a guess."""

LONG_STEPS, SHORT_STEPS = 2_500_000, 1_050_000
"""Steps of the ablations and of all other datasets, and of the mathematics dataset."""


def hub_name(size: Size) -> str:
    """The name of the published weights and tokenizer on the Hugging Face hub."""
    return f"google-t5/t5-{size}"


def t5(size: Size = "small") -> T5:
    """The pretrained T5 of a size; `model.weights=null` begins with random weights."""
    return T5(size=size, weights=hub_name(size))


def ntl(loss_function: Literal["was", "was-cdf", "mse", "mae", "huber"], weight: float = 0.3) -> NumberToken:
    """Cross-entropy + weight x number token loss over the ten digits, as published."""
    return NumberToken(loss_function, weight=weight)


def published(
    title: str,
    task: Task,
    loss: Loss = CROSS_ENTROPY,
    number_format: TextNumberFormat = UNCHANGED,
    *,
    size: Size = "small",
    model: ModelSpec | None = None,
    layout: Layout | None = None,
    steps: int = LONG_STEPS,
    batch_size: int = 32,
    evaluate_every: int = 25_000,
    examples_per_cell: int,
    validation_examples: int,
    paper: str = "number_loss",
) -> Recipe:
    """A row of the paper: 32 questions a step, drawn one by one, and AdamW at 1e-4, halved on plateaus.

    `evaluate_every` so many steps there is an evaluation on `validation_examples` questions and a checkpoint;
    `examples_per_cell` are the most of each module that the final evaluation asks. The published one searches with 4
    beams, which is `method=beams`. The best checkpoint is that of the lowest validation loss (`metric_for_best_model:
    loss`).
    """
    return Recipe(
        task=task,
        tokenizer=Subwords(hub_name(size), number_format),
        layout=layout or Seq2Seq(),
        model=model or t5(size),
        objective=Supervised(loss),
        optimizer=AdamW(learning_rate=1e-4, betas=(0.9, 0.999), weight_decay=0.01, max_grad_norm=1.0),
        schedule=Plateau(warmup=0, factor=0.5, patience=5),
        training=Training(
            steps=steps,
            batch_size=batch_size,
            shuffle_window=1,
            log_every=2000,
            evaluate_every=evaluate_every,
            checkpoint_every=evaluate_every,
            checkpoint_minutes=60,
            keep_checkpoints=2,
            best_metric="loss",
        ),
        evaluation=Evaluation(examples_per_cell=examples_per_cell, validation_examples=validation_examples),
        title=title,
        paper=paper,
    )


def with_gradient_checkpointing(recipe: Recipe) -> Recipe:
    """The same for a T5 that is large: gradient checkpointing, so that activations need less
    memory."""
    assert isinstance(recipe.model, T5)
    return replace(recipe, model=replace(recipe.model, gradient_checkpointing=True))


# What it costs -----------------------------------------------------------------------------------------------------


def memory_bytes(size: Size, rows: int = 32_128) -> float:
    """Bytes of weights, gradients and two moments in float32: 16 a weight. Activations come on top.

    >>> round(memory_bytes("small") / 1e9, 2), round(memory_bytes("3b") / 1e9, 1)
    (0.97, 45.6)
    """
    return 16.0 * SIZES[size].num_parameters(rows)


def hours(
    size: Size, steps: int, question_tokens: int, answer_tokens: int, *, batch: int = 32, rows: int = 32_128
) -> float:
    """Hours at `FLOPS_PER_SECOND`: 6 x batch x steps x (encoder x question + (decoder + head) x answer) operations.

    `question_tokens` and `answer_tokens` are in tokens of a row with its padding; encoder, decoder and head in weights.
    A forward pass takes two operations per weight and token, a backward pass four; attention between tokens is left
    out, which is small for rows as short as these. With layers recomputed in the backward pass it is a third more.

    >>> round(hours("base", SHORT_STEPS, *TOKENS_PER_ROW["mathematics"]))
    57
    """
    sizes = SIZES[size]
    attention_parameters, feed_forward_parameters = (
        4 * sizes.hidden_size * sizes.num_heads * sizes.head_dim,
        2 * sizes.hidden_size * sizes.intermediate_size,
    )
    encoder, decoder = (
        sizes.num_layers * (attention_parameters + feed_forward_parameters),
        sizes.num_decoder_layers * (2 * attention_parameters + feed_forward_parameters),
    )
    flops_per_row = encoder * question_tokens + (decoder + rows * sizes.hidden_size) * answer_tokens
    return 6.0 * batch * steps * flops_per_row / FLOPS_PER_SECOND / 3600.0

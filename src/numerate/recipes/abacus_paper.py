"""The recipes that those of the Abacus paper are based on: models, optimizer, schedule, batches and budget.

McLeish et al. (2024), https://arxiv.org/abs/2405.17399.
"""

from numerate.config import Span
from numerate.evaluation.evaluator import Evaluation
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.initialization import DeepNorm
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import WarmupStableDecay


def published() -> Recipe:
    """Addition of up to 20 digits by 16 layers without positions; the budget is 24 hours on one RTX A4000, 8 exaFLOP.

    The model is post-norm, with gated feed-forwards as wide as the model, and no biases. Batches grow from 512 examples
    to 8192 over the first 60 % of the budget. The grid is that of the paper.
    """
    feed_forward = FeedForward("geglu", expansion=1.0, bias=False)
    return Recipe(
        task=Arithmetic("+", digits=Span(1, 20)),
        tokenizer=Characters(vocabulary="pad"),
        model=Decoder(
            hidden_size=1024,
            backbone=Stack(num_layers=16, initial_state="noise"),
            mixer=Attention(num_heads=16, bias=False),
            feed_forward=feed_forward,
            positions=(),
            norm_first=False,
            norm_eps=1e-12,
            embedding_norm=True,
            head_feed_forward=feed_forward,
            final_norm=True,
            head_projection=True,
            initialization=DeepNorm(),
        ),
        optimizer=AdamW(learning_rate=1e-4, betas=(0.9, 0.98), eps=1e-12, weight_decay=0.01, max_grad_norm=0.5),
        schedule=WarmupStableDecay(warmup=0.1, decay_start=0.9),
        training=Training(
            steps=None, flops=8e18, batch_size=8192, batch_size_warmup=0.6, initial_batch_size=512, precision="bf16"
        ),
        evaluation=Evaluation(grid="1:100x1:100", examples_per_cell=100),
        paper="abacus",
    )


def laptop_addition() -> Recipe:
    """Reversed addition of 1 to 5 digits without positions, at a laptop's size.

    Operands are written least significant digit first, to two layers of width 128 with input injection. What small
    adders need to learn the carry at all is weights drawn by fan-in and at least 4 heads.
    """
    return Recipe(
        task=Arithmetic(operator="+", digits=Span(1, 5)),
        tokenizer=Characters(number_format=Digits(digit_order="reversed")),
        model=Decoder(
            hidden_size=128,
            backbone=Stack(num_layers=2, input_injection="add"),
            mixer=Attention(num_heads=4),
            positions=(),
        ),
        optimizer=AdamW(learning_rate=1.5e-3, betas=(0.9, 0.98), weight_decay=0.01, max_grad_norm=1.0),
        schedule=WarmupStableDecay(warmup=100, decay_start=0.6, min_lr_ratio=0.02),
        training=Training(steps=4500, batch_size=64, threads=1),
        evaluation=Evaluation(grid="1:12x1:12+cascade:3:12:3+uneven:6:12:6+carries:5", examples_per_cell=100),
        paper="abacus",
    )

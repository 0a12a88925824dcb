"""The settings common to all published Abacus runs: model, optimizer, schedule, batches and budget.

McLeish et al. (2024), https://arxiv.org/abs/2405.17399. The rows are in abacus_addition, abacus_multiplication,
abacus_bitwise, abacus_sorting and abacus_small. Where they differ from the published code on purpose, and why, stands
in docs/coming-from-arithmetic.md.
"""

from numerate.evaluation.evaluator import Evaluation
from numerate.losses.cross_entropy import CrossEntropy
from numerate.mixers.attention import Attention
from numerate.models.backbone import Backbone, Loop, Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.initialization import DeepNorm
from numerate.positions.added import Learned
from numerate.positions.bias import FIRE
from numerate.positions.position import Position
from numerate.positions.position_ids import DigitIndex
from numerate.positions.rotary import Rotary
from numerate.tasks.task import Task
from numerate.tokenizers.tokenizer import Characters
from numerate.training.objective import Objective, Progressive, Supervised
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import WarmupStableDecay

FLOPS_PER_DAY = 8e18
"""Floating-point operations of 24 hours on one RTX A4000, the budget of a run: 8 exaFLOP."""

ABACUS: Position = Learned(position_ids=DigitIndex(max_offset=100), max_position_embeddings=512)
"""Offsets up to 100, and the published 512 vectors: enough for numbers of 511 digits, of which those up to 100 plus the
longest trained answer are trained."""

NOPE: tuple[Position, ...] = ()
WITH_FIRE: tuple[Position, ...] = (FIRE(),)
WITH_ABACUS: tuple[Position, ...] = (ABACUS,)
WITH_BOTH: tuple[Position, ...] = (ABACUS, FIRE())
WITH_ROTARY: tuple[Position, ...] = (ABACUS, Rotary())


def standard(num_layers: int) -> Backbone:
    """Standard transformer: ST in the paper, FF in the names of its scripts."""
    return Stack(num_layers=num_layers, initial_state="noise")


def with_input_injection(num_layers: int) -> Backbone:
    """Standard transformer, the embedded input added before every layer: ST with input injection, FF with II."""
    return Stack(num_layers=num_layers, input_injection="add", initial_state="noise")


def looped(num_layers: int, num_loops: int) -> Backbone:
    """Looped transformer, the embedded input added before every loop: LT."""
    return Loop(num_layers=num_layers, num_loops=num_loops, input_injection="add", initial_state="noise")


def objective_for(backbone: Backbone) -> Objective:
    """The progressive loss for looped models; plain cross-entropy otherwise."""
    return Progressive(alpha=1.0) if backbone.default_num_loops() > 1 else Supervised(CrossEntropy())


def decoder(
    backbone: Backbone, positions: tuple[Position, ...], *, hidden_size: int = 1024, num_heads: int = 16
) -> Decoder:
    """The published model: post-norm, gated feed-forwards as wide as the model, no biases."""
    feed_forward = FeedForward("geglu", expansion=1.0, bias=False)
    return Decoder(
        hidden_size=hidden_size,
        backbone=backbone,
        mixer=Attention(num_heads=num_heads, bias=False),
        feed_forward=feed_forward,
        positions=positions,
        norm_first=False,
        norm_eps=1e-12,
        embedding_norm=True,
        head_feed_forward=feed_forward,
        final_norm=True,
        head_projection=True,
        initialization=DeepNorm(),
    )


def published(
    title: str,
    task: Task,
    backbone: Backbone,
    positions: tuple[Position, ...],
    *,
    tokenizer: Characters,
    grid: str,
    objective: Objective | None = None,
    learning_rate: float = 1e-4,
    flops: float = FLOPS_PER_DAY,
    initial_batch_size: int = 512,
    paper: str = "abacus",
) -> Recipe:
    """A row of the paper. Batches grow from `initial_batch_size` examples to 8192 over the first 60 % of the budget."""
    return Recipe(
        task=task,
        tokenizer=tokenizer,
        model=decoder(backbone, positions),
        objective=objective_for(backbone) if objective is None else objective,
        optimizer=AdamW(
            learning_rate=learning_rate, betas=(0.9, 0.98), eps=1e-12, weight_decay=0.01, max_grad_norm=0.5
        ),
        schedule=WarmupStableDecay(warmup=0.1, decay_start=0.9),
        training=Training(
            steps=None,
            flops=flops,
            batch_size=8192,
            batch_size_warmup=0.6,
            initial_batch_size=initial_batch_size,
            precision="bf16",
        ),
        evaluation=Evaluation(grid=grid, examples_per_cell=100),
        title=title,
        paper=paper,
    )

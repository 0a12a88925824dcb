"""The published counting runs: models, optimizers, budgets and evaluation grids.

Chang and Bisk (2024), "Language Models Need Inductive Biases to Count Inductively", https://arxiv.org/abs/2405.20131,
and the settings of https://github.com/zdxdsw/inductive_counting_with_LMs. `counting_family` names the recipes, each
`TASK_MODEL`; `model.backbone.num_layers=4` is the published model of four layers (1, 2 and 4 are published).

Differences from the published code, and why:

- Numbers are fp32 where theirs are fp16 (transformers, RNN, LSTM, S4) or bf16 (RWKV): 19 of its logged runs ended in
  NaN. Here a loss that is not finite ends the run. On a GPU `training.precision=bf16` is as quick.
- Rows are not padded to a fixed length but to the longest of their batch, which is drawn as theirs is, so that the mean
  over its labels is the same (`training.shuffle_window=1`). Rows are drawn, not read from a file: an epoch is as many
  rows as the published file had.
- Evaluation draws no offsets: it takes three fixed ones, from 0 to what the table leaves for the longest row.
- Weight decay spares biases and norms. The vector of `<null>` is learned as any other; theirs is frozen, and the whole
  table beside it begins as whatever was in memory.
- The vocabulary has four special tokens in front, and the text `<pad>` only where the task writes it: 3 ids more than
  published, or 4 where it does. A token's vector in `spe` keeps the feature that its position overwrites.
- S4, Mamba and RWKV initialize embedding, head and the linear maps without their own initialization as given below.
- RWKV's loss has no extra term on the largest logits, and its dropout is of what a layer adds, not of the whole
  stream.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

from numerate.architectures.channel_mix import ChannelMix
from numerate.architectures.mamba import Mamba
from numerate.architectures.rwkv6 import RWKV6
from numerate.architectures.s4 import S4
from numerate.config import Span
from numerate.evaluation.evaluator import Evaluation
from numerate.mixers.alternating import Alternating
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Mixer
from numerate.mixers.recurrent import LSTM, RNN
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.initialization import FanIn, Normal
from numerate.positions.added import Learned, Scalar, Sinusoidal
from numerate.positions.position import Position
from numerate.positions.position_ids import RandomSubset, Sequential, Shifted, Zooming
from numerate.positions.rotary import Rotary
from numerate.published.counting_names import PublishedTask, published_tasks
from numerate.tasks.counting import Counting
from numerate.tasks.mixture import Mixture
from numerate.tasks.rasp import RaspCounting
from numerate.tasks.selective import SelectiveCounting
from numerate.tasks.task import Task
from numerate.tokenizers.layout import TokenClassification
from numerate.tokenizers.words import Words
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Constant
from numerate.vocabulary import HELPER_TOKENS

BATCH_SIZE = 32
"""Rows of a step, of every published run."""

NUM_EVAL_OFFSETS = 3
"""Fixed position offsets that a row is evaluated at."""


@dataclass(frozen=True)
class PublishedTraining:
    """How a family of models was trained: `warmup` in steps, `epochs` in passes through the published file."""

    learning_rate: float
    epochs: int
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: int = 0


TRANSFORMER = PublishedTraining(learning_rate=1e-4, epochs=10, warmup=3000)
RECURRENT = PublishedTraining(learning_rate=0.01, epochs=5)
MAMBA = PublishedTraining(learning_rate=1e-4, epochs=50, weight_decay=0.0)
RWKV = PublishedTraining(learning_rate=1e-4, epochs=20, weight_decay=0.0, betas=(0.9, 0.99))


def published(title: str, task: str, model: str) -> Recipe:
    """The recipe of a published task and model, by their names."""
    published_task = published_tasks()[task]
    decoder, published_training = _model(model, published_task)
    blocked_tokens = (
        ("<pad>",) if isinstance(decoder.mixer, Attention) and "<pad>" in published_task.task.alphabet() else ()
    )
    steps_per_epoch = ceil(sum(published_task.num_rows) / BATCH_SIZE)
    return Recipe(
        task=published_task.task,
        tokenizer=Words(),
        layout=TokenClassification(blocked_tokens=blocked_tokens),
        model=decoder,
        optimizer=AdamW(
            learning_rate=published_training.learning_rate,
            betas=published_training.betas,
            weight_decay=published_training.weight_decay,
            max_grad_norm=1.0,
        ),
        schedule=Constant(warmup=published_training.warmup),
        training=Training(
            steps=published_training.epochs * steps_per_epoch,
            batch_size=BATCH_SIZE,
            shuffle_window=1,
            log_every=100,
            evaluate_every=steps_per_epoch,
            checkpoint_every=steps_per_epoch,
            checkpoint_minutes=None,
            keep_checkpoints=None,
        ),
        evaluation=Evaluation(
            grid=published_grid(published_task), examples_per_cell=200 if _has_known_questions(published_task) else 100
        ),
        title=title,
        paper="counting",
    )


# Models ------------------------------------------------------------------------------------------------------------


def _model(model: str, published_task: PublishedTask) -> tuple[Decoder, PublishedTraining]:
    if model in ("rnn", "lstm", "s4"):
        return recurrent(model), RECURRENT
    if model == "mamba":
        return mamba(), MAMBA
    if model == "rwkv":
        return rwkv(), RWKV
    return transformer(_position(model, published_task), scaled=model == "sine"), TRANSFORMER


def transformer(positions: tuple[Position, ...], *, scaled: bool = False, num_layers: int = 2) -> Decoder:
    """The published transformer: pre-norm, ReLU, 8 heads, logits divided by the number of the layer, N(0, 0.02).

    With V texts and L layers of width D it has 12 D^2 L + 13 D L + 2 V D + 2 D weights, and P D more for P learned
    positions.
    """
    return Decoder(
        hidden_size=1024,
        backbone=Stack(num_layers=num_layers),
        mixer=Attention(num_heads=8, bias=True, scale_by_inverse_layer_index=True, blocked_attend_to_themselves=False),
        feed_forward=FeedForward("relu"),
        positions=positions,
        initialization=Normal(),
        embedding_scale="sqrt" if scaled else 1.0,
    )


def recurrent(model: str) -> Decoder:
    """The published RNN, LSTM or S4: one layer of width 128 between embedding and head.

    RNN and LSTM are torch's own, as torch draws them. S4 adds to what it reads; its gated map is drawn as embedding and
    head are, N(0, 0.02), theirs as torch draws it.
    """
    if model == "s4":
        mixer: Mixer = S4(dropout=0.1)
        return Decoder(
            hidden_size=128,
            backbone=Stack(num_layers=1),
            mixer=mixer,
            feed_forward=None,
            final_norm=False,
            initialization=Normal(),
        )
    mixer = {"rnn": RNN, "lstm": LSTM}[model](output_projection=False, initialization="torch")
    return Decoder(
        hidden_size=128,
        backbone=Stack(num_layers=1),
        mixer=mixer,
        feed_forward=None,
        norm="none",
        residual=False,
        initialization=Normal(),
    )


def mamba() -> Decoder:
    """The published Mamba: two layers of width 128, RMSNorm, a tied head.

    Linear maps are N(0, 1/fan_in), those to the residual stream over the root of the layers; theirs are uniform, and
    0.58 times as large.
    """
    return Decoder(
        hidden_size=128,
        backbone=Stack(num_layers=2),
        mixer=Mamba(),
        feed_forward=None,
        norm="rms",
        tie_word_embeddings=True,
        initialization=FanIn(residual_scale=2**-0.5, embedding_std=0.02),
    )


def rwkv() -> Decoder:
    """The published "RWKV-v5", which is an RWKV-6: 4 layers of width 128, each a time mix and a channel mix.

    They begin as published. Embedding and head are N(0, 0.02); a norm follows the embedding, so that only its
    directions count.
    """
    return Decoder(
        hidden_size=128,
        backbone=Stack(num_layers=8),
        mixer=Alternating((RWKV6(published_initialization=True), ChannelMix(version=6, published_initialization=True))),
        feed_forward=None,
        embedding_norm=True,
        dropout=0.1,
        initialization=Normal(),
    )


def _position(model: str, published_task: PublishedTask) -> tuple[Position, ...]:
    length = published_task.max_position_embeddings
    helpers: Any = "next" if set(HELPER_TOKENS) & set(published_task.task.alphabet()) else "own"
    shifted = Shifted(
        max_shift=_max_offset(published_task),
        num_eval_offsets=NUM_EVAL_OFFSETS,
        shift_within=length,
        helper_positions="next",
    )
    positions_by_model: dict[str, tuple[Position, ...]] = {
        "nope": (),
        "sine": (Sinusoidal(position_ids=shifted),),
        "ape": (Learned(position_ids=shifted, max_position_embeddings=length),),
        "ape_randomised": (
            Learned(
                position_ids=RandomSubset(max_length=length, helper_positions="next"), max_position_embeddings=length
            ),
        ),
        "rope": (Rotary(position_ids=Sequential(helper_positions=helpers)),),
        "spe": (Scalar(position_ids=shifted, max_positions=length),),
        "spe_zooming": (Scalar(position_ids=Zooming()),),
    }
    return positions_by_model[model]


# Evaluation --------------------------------------------------------------------------------------------------------


def published_grid(published_task: PublishedTask) -> str:
    """The grid of a task: from the trained counts on those of the published tests, and those on which the best is
    chosen.

    >>> published_grid(published_tasks()["counting_selective_modular_4items"])
    '64:76+128'
    """
    task = _main_task(published_task)
    trained = Span.from_value(task.count)
    max_count = _max_count(published_task, task)
    if isinstance(task, SelectiveCounting) and task.modulus is not None:
        validation_task = task.ood_validation_task()
        assert validation_task is not None
        return f"{trained.low}:{validation_task.training_spans()['count'].high}+{max_count}"
    return f"{trained.low}:{max_count}"


def _max_count(published_task: PublishedTask, task: Counting | SelectiveCounting | RaspCounting) -> int:
    trained = Span.from_value(task.count)
    if isinstance(task, RaspCounting):
        return task.max_number
    if isinstance(task, SelectiveCounting):
        return 2 * trained.high if task.modulus is not None or task.inclusive else 99
    if task.modulus is not None:
        return 2 * trained.high
    return 99 if "nobos" in published_task.name else task.allowed_starts.max_count()


def _max_offset(published_task: PublishedTask) -> int:
    """The largest offset at which the longest evaluated row still has a position for each token, and one more."""
    task = _main_task(published_task)
    if isinstance(task, RaspCounting):
        longest = task.sequence_length - 1
    else:
        num_prefix_tokens = bool(task.prefix) + (isinstance(task, Counting) and task.start_number != "none")
        longest = _max_count(published_task, task) + num_prefix_tokens
    return max(0, published_task.max_position_embeddings - 1 - longest)


def _main_task(published_task: PublishedTask) -> Counting | SelectiveCounting | RaspCounting:
    task: Task = published_task.task.tasks[0] if isinstance(published_task.task, Mixture) else published_task.task
    assert isinstance(task, Counting | SelectiveCounting | RaspCounting)
    return task


def _has_known_questions(published_task: PublishedTask) -> bool:
    """Whether every question of a cell is known, so that each is evaluated once."""
    task = _main_task(published_task)
    return isinstance(task, Counting) and task.symbol == "same"

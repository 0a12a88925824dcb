"""The recipes of the counting paper: the published runs (models, optimizers, budgets, grids), and small ones.

Chang and Bisk (2024), "Language Models Need Inductive Biases to Count Inductively", https://arxiv.org/abs/2405.20131,
and the settings of https://github.com/zdxdsw/inductive_counting_with_LMs. `model.backbone.num_layers=4` is the
published model of four layers (1, 2 and 4 are published).

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

from math import ceil
from typing import Any

from numerate.architectures.channel_mix import ChannelMix
from numerate.architectures.mamba import Mamba
from numerate.architectures.phasor import Phasor
from numerate.architectures.rwkv6 import RWKV6
from numerate.architectures.s4 import S4
from numerate.config import Span
from numerate.evaluation.evaluator import Evaluation
from numerate.losses.cross_entropy import CrossEntropy
from numerate.mixers.alternating import Alternating
from numerate.mixers.attention import Attention
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
from numerate.training.objective import Supervised
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Constant, Cosine, WarmupStableDecay
from numerate.vocabulary import HELPER_TOKENS

# Small enough for a laptop --------------------------------------------------------------------------------------------


def small() -> Recipe:
    """Counting modulo 10 by a transformer of two layers of width 64 and four heads, without positions."""
    return Recipe(
        task=published_tasks()["counting_samesymbol_mod10"].task,
        tokenizer=Words(),
        layout=TokenClassification(),
        model=Decoder(hidden_size=64, backbone=Stack(num_layers=2), mixer=Attention(num_heads=4)),
        optimizer=AdamW(learning_rate=1e-3, weight_decay=0.01, max_grad_norm=1.0),
        schedule=Cosine(warmup=200),
        training=Training(batch_size=16, threads=1),
        evaluation=Evaluation(grid="1:100", examples_per_cell=100),
        paper="counting",
    )


def universal() -> Recipe:
    """One architecture without positions (a layer of `Phasor`, 68,000 to 93,000 parameters) for three tasks.

    Its training settings are the same for each of them: up to 50 symbols, evaluated up to 200 (items: up to 100, which
    is ten of each).
    """
    return Recipe(
        tokenizer=Words(),
        layout=TokenClassification(),
        model=Decoder(hidden_size=64, backbone=Stack(num_layers=1), mixer=Phasor(exclusive=True)),
        objective=Supervised(loss=CrossEntropy(label_smoothing=0.1)),
        optimizer=AdamW(learning_rate=5e-3, betas=(0.9, 0.98), weight_decay=0.2, max_grad_norm=1.0),
        schedule=WarmupStableDecay(warmup=100, decay_start=0.6, min_lr_ratio=0.02),
        training=Training(steps=5000, batch_size=32, threads=1),
        evaluation=Evaluation(examples_per_cell=100),
        paper="counting",
    )


# Published ------------------------------------------------------------------------------------------------------------


def published(task: str, model: str) -> Recipe:
    """The recipe of a published task and model, by their names."""
    published_task = published_tasks()[task]
    decoder = _model(model, published_task)
    optimizer, warmup, epochs = TRAINING.get(model, TRANSFORMER)
    has_padding = isinstance(decoder.mixer, Attention) and "<pad>" in published_task.task.alphabet()
    main_task = _main_task(published_task)
    is_enumerable = isinstance(main_task, Counting) and main_task.symbol == "same"  # each question is evaluated once
    steps_per_epoch = ceil(sum(published_task.num_rows) / 32)
    return Recipe(
        task=published_task.task,
        tokenizer=Words(),
        layout=TokenClassification(blocked_tokens=("<pad>",) if has_padding else ()),
        model=decoder,
        optimizer=optimizer,
        schedule=Constant(warmup=warmup),
        training=Training(
            steps=epochs * steps_per_epoch,
            batch_size=32,
            precision="fp32",
            shuffle_window=1,
            log_every=100,
            evaluate_every=steps_per_epoch,
            checkpoint_every=steps_per_epoch,
            checkpoint_minutes=None,
            keep_checkpoints=None,
        ),
        evaluation=Evaluation(grid=published_grid(published_task), examples_per_cell=200 if is_enumerable else 100),
        paper="counting",
    )


TRANSFORMER = (AdamW(learning_rate=1e-4, betas=(0.9, 0.999), weight_decay=0.01, max_grad_norm=1.0), 3000, 10)
RECURRENT = (AdamW(learning_rate=0.01, betas=(0.9, 0.999), weight_decay=0.01, max_grad_norm=1.0), 0, 5)
MAMBA = (AdamW(learning_rate=1e-4, betas=(0.9, 0.999), weight_decay=0.0, max_grad_norm=1.0), 0, 50)
RWKV = (AdamW(learning_rate=1e-4, betas=(0.9, 0.99), weight_decay=0.0, max_grad_norm=1.0), 0, 20)
TRAINING = {"rnn": RECURRENT, "lstm": RECURRENT, "s4": RECURRENT, "mamba": MAMBA, "rwkv": RWKV}
"""How a model was trained, if not as a transformer: its optimizer, its warmup in steps, and its passes through the
published file."""


def _model(model: str, published_task: PublishedTask) -> Decoder:
    """The published models.

    - Transformers are pre-norm, with ReLU, 8 heads, logits divided by the number of the layer, N(0, 0.02). With V texts
      and L layers of width D they have 12 D^2 L + 13 D L + 2 V D + 2 D weights, and P D more for P learned positions.
    - RNN and LSTM are torch's own, as torch draws them: one layer between embedding and head.
    - S4 adds to what it reads; its gated map is drawn as embedding and head are, N(0, 0.02), theirs as torch draws it.
    - Mamba has RMSNorm and a tied head. Linear maps are N(0, 1/fan_in), those to the residual stream over the root of
      the layers; theirs are uniform, and 0.58 times as large.
    - "RWKV-v5" is an RWKV-6: 4 layers, each a time mix and a channel mix, which begin as published. Embedding and head
      are N(0, 0.02); a norm follows the embedding, so that only its directions count.
    """
    small: dict[str, Any] = {"hidden_size": 128, "feed_forward": None, "initialization": Normal()}
    if model in ("rnn", "lstm"):
        recurrent = (RNN if model == "rnn" else LSTM)(output_projection=False, initialization="torch")
        return Decoder(**small, backbone=Stack(num_layers=1), mixer=recurrent, norm="none", residual=False)
    if model == "s4":
        return Decoder(**small, backbone=Stack(num_layers=1), mixer=S4(dropout=0.1), final_norm=False)
    if model == "mamba":
        small["initialization"] = FanIn(residual_scale=2**-0.5, embedding_std=0.02)
        return Decoder(**small, backbone=Stack(num_layers=2), mixer=Mamba(), norm="rms", tie_word_embeddings=True)
    if model == "rwkv":
        time_mix = RWKV6(published_initialization=True)
        mixer = Alternating((time_mix, ChannelMix(version=6, published_initialization=True)))
        return Decoder(**small, backbone=Stack(num_layers=8), mixer=mixer, embedding_norm=True, dropout=0.1)
    return Decoder(
        hidden_size=1024,
        backbone=Stack(num_layers=2),
        mixer=Attention(num_heads=8, bias=True, scale_by_inverse_layer_index=True, blocked_attend_to_themselves=False),
        feed_forward=FeedForward("relu"),
        positions=_positions(model, published_task),
        initialization=Normal(),
        embedding_scale="sqrt" if model == "sine" else 1.0,
    )


def _positions(model: str, published_task: PublishedTask) -> tuple[Position, ...]:
    length = published_task.max_position_embeddings
    helpers: Any = "next" if set(HELPER_TOKENS) & set(published_task.task.alphabet()) else "own"
    max_shift = _max_offset(published_task)
    shifted = Shifted(max_shift=max_shift, num_eval_offsets=3, shift_within=length, helper_positions="next")
    random_subset = RandomSubset(max_length=length, helper_positions="next")
    positions_by_model: dict[str, tuple[Position, ...]] = {
        "nope": (),
        "sine": (Sinusoidal(position_ids=shifted),),
        "ape": (Learned(position_ids=shifted, max_position_embeddings=length),),
        "ape_randomised": (Learned(position_ids=random_subset, max_position_embeddings=length),),
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

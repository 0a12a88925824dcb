"""Addition, small enough for a laptop: Abacus embeddings against other positional encodings.

After McLeish et al. (2024), https://arxiv.org/abs/2405.17399, at a smaller size: operands of 1 to 5 digits, least
significant digit first, two layers of width 128 with input injection. What small adders need to learn the carry at all
is weights drawn by fan-in and at least 4 heads.
"""

from numerate.config import Span
from numerate.evaluation.evaluator import Evaluation
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Mixer
from numerate.models.backbone import Backbone, Loop, Stack
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.bias import FIRE, ALiBi, T5Bias
from numerate.positions.position import Position
from numerate.positions.position_ids import Coupled, DigitIndex, NumberIndex
from numerate.positions.rotary import Rotary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import WarmupStableDecay

TWO_LAYERS, FOUR_HEADS = Stack(num_layers=2, input_injection="add"), Attention(num_heads=4)


def addition_abacus() -> Recipe:
    """Reversed addition of 1 to 5 digits with Abacus embeddings of digit positions, from a random offset."""
    return _addition(
        "addition_abacus", "abacus", Learned(position_ids=DigitIndex(max_offset=20), max_position_embeddings=64)
    )


def addition_rotary() -> Recipe:
    """The same model, data and budget as addition_abacus, with rotary positions instead."""
    return _addition("addition_rotary", "rotary", Rotary())


def addition_far() -> Recipe:
    """Reversed addition of 1 to 5 digits that generalizes to 20 and mostly to 100: coupled positions, local attention.

    A digit of a sum depends on its own position and the one below, at any length. So digits of equal significance
    share a number (`Coupled`), attention reads the difference of these numbers (`T5Bias`: behind, here, ahead, or
    elsewhere), falls off with it (a steep `ALiBi`, in which all differences from 4 on are one), and grows sharper with
    the number of keys (`logit_scale="log"`); `NumberIndex` distinguishes operands and answer. So no
    position and no bias is ever used that was not trained. On one core of a laptop about 3 minutes.
    """
    near = T5Bias(position_ids=Coupled(), num_buckets=8, max_distance=2, bidirectional=True)
    falling = ALiBi(position_ids=Coupled(), slope_scale=8.0, max_distance=4)
    return _addition(
        "addition_far",
        "coupling",
        Learned(position_ids=NumberIndex(), max_position_embeddings=8),
        near,
        falling,
        mixer=Attention(num_heads=4, logit_scale="log", log_scale_start=10),
        grid="1:5x1:5+diagonal:6:30+diagonal:40:100:20",
    )


def addition6_abacus() -> Recipe:
    """Reversed addition of 1 to 6 digits with Abacus and offsets up to 20; about 3 minutes on a laptop's core."""
    return _addition6(
        "addition6_abacus", "abacus", Learned(position_ids=DigitIndex(max_offset=20), max_position_embeddings=64)
    )


def addition6_no_offset() -> Recipe:
    """addition6_abacus without any offset in training, so that positions beyond 7 are never trained."""
    return _addition6("addition6_no_offset", "abacus", Learned(position_ids=DigitIndex(), max_position_embeddings=64))


def addition6_looped() -> Recipe:
    """addition6_abacus with one block looped three times, the embedded input added before each loop."""
    position = Learned(position_ids=DigitIndex(max_offset=20), max_position_embeddings=64)
    backbone = Loop(num_layers=1, num_loops=3, input_injection="add")
    return _addition6("addition6_looped", "abacus", position, backbone=backbone)


def addition6_rotary() -> Recipe:
    """addition6_abacus with rotary positions instead."""
    return _addition6("addition6_rotary", "rotary", Rotary())


def addition6_fire() -> Recipe:
    """addition6_abacus with FIRE, a network per layer, instead."""
    return _addition6("addition6_fire", "fire", FIRE())


def addition6_nope() -> Recipe:
    """addition6_abacus without any positions: only causal attention gives the order."""
    return _addition6("addition6_nope", "nope")


def _addition6(title: str, paper: str, *positions: Position, backbone: Backbone = TWO_LAYERS) -> Recipe:
    grid = "1:6x1:6+diagonal:7:18"
    return _addition(title, paper, *positions, backbone=backbone, digits=6, steps=4000, grid=grid)


def _addition(
    title: str,
    paper: str,
    *positions: Position,
    backbone: Backbone = TWO_LAYERS,
    mixer: Mixer = FOUR_HEADS,
    digits: int = 5,
    steps: int = 4500,
    grid: str = "1:12x1:12",
) -> Recipe:
    return Recipe(
        task=Arithmetic(operator="+", digits=Span(1, digits)),
        tokenizer=Characters(number_format=Digits(digit_order="reversed")),
        model=Decoder(hidden_size=128, backbone=backbone, mixer=mixer, positions=positions),
        optimizer=AdamW(learning_rate=1.5e-3, betas=(0.9, 0.98), weight_decay=0.01, max_grad_norm=1.0),
        schedule=WarmupStableDecay(warmup=100, decay_start=0.6, min_lr_ratio=0.02),
        training=Training(steps=steps, batch_size=64, threads=1),
        evaluation=Evaluation(grid=grid, examples_per_cell=100),
        title=title,
        paper=paper,
    )

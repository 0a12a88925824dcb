"""Addition, small enough for a laptop: Abacus numbering against rotary positions.

After McLeish et al. (2024), https://arxiv.org/abs/2405.17399, at a size of their own: operands of 1 to 5 digits, least
significant digit first, two layers of width 128 with input injection. What small adders need to learn the carry at all
is weights drawn by fan-in and at least 4 heads.
"""

from numerate.config import Span
from numerate.evaluation.evaluator import Evaluation
from numerate.mixers.attention import Attention
from numerate.models.decoder import Decoder
from numerate.models.trunk import Stack
from numerate.positions.added import Learned
from numerate.positions.numbering import DigitIndex
from numerate.positions.position import Position
from numerate.positions.rotary import Rotary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokens.numbers import Digits
from numerate.tokens.tokenizer import Characters
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Trapezoid


def addition_abacus() -> Recipe:
    """Reversed addition of 1 to 5 digits with Abacus: digits numbered within their number, from a random offset."""
    return _addition("addition_abacus", "abacus", Learned(numbering=DigitIndex(max_offset=20), table=64))


def addition_rotary() -> Recipe:
    """The same model, data and budget as addition_abacus, with rotary positions instead."""
    return _addition("addition_rotary", "rotary", Rotary())


def _addition(title: str, paper: str, position: Position) -> Recipe:
    return Recipe(
        task=Arithmetic(operator="+", digits=Span(1, 5)),
        tokenizer=Characters(numbers=Digits(order="reversed")),
        model=Decoder(width=128, trunk=Stack(depth=2, inject="add"), mixer=Attention(heads=4), positions=(position,)),
        optimizer=AdamW(rate=1.5e-3, betas=(0.9, 0.98), decay=0.01, clip=1.0),
        schedule=Trapezoid(warmup=100, decay_from=0.6, floor=0.02),
        training=Training(steps=4500, batch=64, threads=1),
        evaluation=Evaluation(grid="1:12x1:12", count=100),
        title=title,
        paper=paper,
    )

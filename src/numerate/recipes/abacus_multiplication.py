"""Multiplication of up to 15 digits, as published: 4 layers x 4 loops.

McLeish et al. (2024), https://arxiv.org/abs/2405.17399, multiplication.sh. Each was trained on eight RTX A4000s for 24
hours, which the paper counts as 64 exaFLOP: `torchrun --nproc-per-node 8 -m numerate train ...`.

Its script asks for throttle and for a loss over samples. Here both do what their description says: the gradient of the
loop is divided by its loops, and every example has the same weight. In the published code the first changes nothing
with 4 loops, and the second no more than a divisor; `objective.throttle=published objective.loss.mean_over=tokens` is
that.
"""

from numerate.config import Span
from numerate.losses.cross_entropy import CrossEntropy
from numerate.positions.position import Position
from numerate.recipes.abacus_paper import FLOPS_PER_DAY, WITH_ABACUS, WITH_BOTH, WITH_FIRE, looped, published
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.tokenizer import Characters
from numerate.training.objective import Progressive
from numerate.training.recipe import Recipe


def multiplication_fire() -> Recipe:
    """Published multiplication: 4 layers x 4 loops, FIRE.

    Eight RTX A4000, 24 hours, 64 exaFLOP; multiplication.sh.
    The rate is 6e-5, as FIRE is unstable at 1e-4.
    """
    return _multiplication("multiplication_fire", WITH_FIRE, learning_rate=6e-5)


def multiplication_abacus() -> Recipe:
    """Published multiplication: 4 layers x 4 loops, Abacus.

    Eight RTX A4000, 24 hours, 64 exaFLOP; multiplication.sh.
    """
    return _multiplication("multiplication_abacus", WITH_ABACUS, learning_rate=1e-4)


def multiplication_abacus_fire() -> Recipe:
    """Published multiplication: 4 layers x 4 loops, Abacus and FIRE.

    Eight RTX A4000, 24 hours, 64 exaFLOP; multiplication.sh.
    The rate is 6e-5, as FIRE is unstable at 1e-4.
    """
    return _multiplication("multiplication_abacus_fire", WITH_BOTH, learning_rate=6e-5)


def _multiplication(title: str, positions: tuple[Position, ...], *, learning_rate: float) -> Recipe:
    return published(
        title,
        Arithmetic("x", digits=Span(1, 15)),
        looped(4, 4),
        positions,
        tokenizer=Characters(vocabulary="pad"),
        grid="1:25x1:25",
        objective=Progressive(CrossEntropy(mean_over="examples"), alpha=1.0, throttle="described"),
        learning_rate=learning_rate,
        flops=8 * FLOPS_PER_DAY,
    )

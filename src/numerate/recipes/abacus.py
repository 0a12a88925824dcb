"""Addition, multiplication, bitwise OR and sorting with Abacus embeddings: small recipes, and the published ones.

McLeish et al. (2024), https://arxiv.org/abs/2405.17399. Where published rows differ from the published code on
purpose, and why, is in docs/coming-from-arithmetic.md.
"""

from numerate.recipes.rows import Row, recipe_functions

ABACUS = "Learned(position_ids=DigitIndex(max_offset=100),max_position_embeddings=512)"
"""Offsets up to 100, and the published 512 vectors: enough for numbers of 511 digits, of which those up to 100 plus the
longest trained answer are trained."""

SMALL_ABACUS = "model.positions=[Learned(position_ids=DigitIndex(max_offset=20),max_position_embeddings=64)]"

FAR_ABACUS = "Learned(position_ids=DigitIndex(max_offset=100,random_gaps=true),max_position_embeddings=128)"

NUMBER_INDEX = "Learned(position_ids=NumberIndex,max_position_embeddings=8)"
PREVIOUS_TOKENS = "T5Bias(num_buckets=4,max_distance=3)"
NEIGHBORS = "T5Bias(position_ids=Coupled,num_buckets=4,max_distance=1,bidirectional=true)"
WINDOW = "Window(position_ids=Coupled,size=1)"

Part = tuple[str, str]
"""A part of a model: its description, and its settings."""

NOPE: Part = ("no positions", "model.positions=[]")
FIRE: Part = ("FIRE", "model.positions=[FIRE]")
WITH_ABACUS: Part = ("Abacus", f"model.positions=[{ABACUS}]")
WITH_FIRE: Part = ("Abacus and FIRE", f"model.positions=[{ABACUS},FIRE]")
WITH_ROTARY: Part = ("Abacus and rotary positions", f"model.positions=[{ABACUS},Rotary]")
RANDOM_FIRE: Part = (
    "FIRE on random positions below 128",
    "model.positions=[FIRE(position_ids=RandomSubset(max_length=128,subset_size=64,subset_per=batch))] "
    "paper=randomised",
)


def _standard(num_layers: int) -> Part:
    """Standard transformer: ST in the paper, FF in the names of its scripts."""
    return f"{num_layers} layers", f"model.backbone.num_layers={num_layers}"


def _injected(num_layers: int) -> Part:
    """Standard transformer, the embedded input added before every layer: ST with input injection, FF with II."""
    summary, settings = _standard(num_layers)
    return f"{summary} with input injection", f"{settings} model.backbone.input_injection=add"


def _looped(num_layers: int, num_loops: int) -> Part:
    """Looped transformer, the embedded input added before every loop, with the progressive loss: LT."""
    backbone = f"Loop(num_layers={num_layers},num_loops={num_loops},input_injection=add,initial_state=noise)"
    layers = f"{num_layers} layer{'s' if num_layers > 1 else ''}"
    return f"{layers} x {num_loops} loops", f"model.backbone={backbone} objective=Progressive(alpha=1.0)"


# Small enough for a laptop --------------------------------------------------------------------------------------------


def _laptop(summary: str, *settings: str) -> Row:
    return Row(summary, "abacus_paper.laptop_addition", " ".join(settings))


def _addition6(summary: str, *settings: str) -> Row:
    budget = "task.digits=1:6 training.steps=4000 evaluation.grid=1:6x1:6+diagonal:7:18"
    return _laptop(summary, budget, *settings)


# Published ------------------------------------------------------------------------------------------------------------

GPU_DAY = "One RTX A4000, 24 hours, 8 exaFLOP"


def _published(summary: str, model: Part, positions: Part, notes: str, *settings: str) -> Row:
    return Row(
        f"Published {summary}: {model[0]}, {positions[0]}.",
        "abacus_paper.published",
        " ".join((model[1], positions[1], *settings)),
        f"{notes}.",
    )


def _small(model: Part, positions: Part) -> Row:
    """Used for speed measurements; none of the paper's runs is of this size. 20,000 steps are 1.28 million sums."""
    size = "model.hidden_size=128 model.mixer.num_heads=4 evaluation.grid=1:40x1:40"
    budget = "training=Training(steps=20000,batch_size=64,threads=1)"
    return _published("model at width 128, for a laptop", model, positions, "One core", size, budget)


def _addition(model: Part, positions: Part, source: str = "addition_ff.sh") -> Row:
    """Addition of up to 20 digits. `addition_ff_...` are the rows of addition_ff.sh (16 layers once each),
    `addition_lt_...` those of addition_lt.sh, whose last words are layers x loops. `numerate evaluate latest
    grid=diagonal:101:160` is what the paper calls 100+."""
    return _published("addition", model, positions, f"{GPU_DAY}; {source}")


def _multiplication(positions: Part, *settings: str) -> Row:
    """Multiplication of up to 15 digits. The script asks for throttle and for a loss over samples. Here both do what
    their description says: the gradient of the loop is divided by its loops, and every example has the same weight. In
    the published code the first changes nothing with 4 loops, and the second no more than a divisor;
    `objective.throttle=published objective.loss.mean_over=tokens` is that. The learning rate is 6e-5 with FIRE, which
    is unstable at 1e-4."""
    task = "task=Arithmetic(x,digits=1:15) evaluation.grid=1:25x1:25 training.flops=64e18"
    loss = "objective=Progressive(CrossEntropy(mean_over=examples),alpha=1.0,throttle=described)"
    cost = "Eight RTX A4000, 24 hours, 64 exaFLOP; multiplication.sh"
    return _published("multiplication", _looped(4, 4), positions, cost, task, loss, *settings)


def _bitwise_or(model: Part, positions: Part) -> Row:
    """Bitwise OR of two strings of bits with a single one, trained on 100 questions. The grid is the published one in
    its two tiers; cells with fewer than 100 questions use each of them once. Which positional encodings the script has
    is not known: the three that the paper compares throughout are given."""
    task = "task=BitwiseOr(digits=1:20,max_examples=100) evaluation.grid=pos_arth+pos_arth_ood"
    cost = "One RTX A4000, 1 hour, 0.33 exaFLOP; bitwise_or.sh"
    return _published("bitwise OR", model, positions, cost, task, f"training.flops={8e18 / 24}")


def _sorting(model: Part, positions: Part) -> Row:
    """Sorting of up to 10 numbers of up to 10 digits. `numerate plot pair` draws both of its metrics, exact match and
    correct first label."""
    task = "task=Sorting(digits=1:10,items=1:10) tokenizer.vocabulary=sort evaluation.grid=1:30x1:30"
    return _published("sorting", model, positions, f"{GPU_DAY}; sorting.sh", task, "training.initial_batch_size=32")


ROWS = {
    "addition_abacus": _laptop(
        "Reversed addition of 1 to 5 digits with Abacus embeddings of digit positions, from a random offset.",
        SMALL_ABACUS,
    ),
    "addition_rotary": _laptop(
        "The same model, data and budget as addition_abacus, with rotary positions instead.",
        "model.positions=[Rotary] paper=rotary",
    ),
    # A digit of a sum depends on its own position and the one below, at any length. So digits of equal significance
    # share a number (`Coupled`), attention reads the difference of these numbers (`T5Bias`: behind, here, ahead, or
    # elsewhere), falls off with it (a steep `ALiBi`, in which all differences from 4 on are one), and grows sharper
    # with the number of keys (`logit_scale=log`); `NumberIndex` distinguishes operands and answer. So no position and
    # no bias is ever used that was not trained. On one core of a laptop about 3 minutes.
    "addition_far": _laptop(
        "Reversed addition of 1 to 5 digits that generalizes to 20 and mostly to 100: coupled positions, "
        "local attention.",
        "model.positions=[Learned(position_ids=NumberIndex,max_position_embeddings=8),"
        "T5Bias(position_ids=Coupled,num_buckets=8,max_distance=2,bidirectional=true),"
        "ALiBi(position_ids=Coupled,slope_scale=8.0,max_distance=4)]",
        "model.mixer=Attention(num_heads=4,logit_scale=log,log_scale_start=10)",
        "evaluation.grid=1:5x1:5+diagonal:6:30+diagonal:40:100:20 paper=coupling",
    ),
    # As `addition_far`, but a digit sees only those of its own significance and of the two next to it, in all numbers
    # (`Window`). A query has the same few keys at any length, so that logits need no scale that grows with it, and what
    # two layers see of a long sum occurs in short ones. The carry is learned. On one core of a laptop about 4 minutes.
    "addition_1000": _laptop(
        "Reversed addition of 1 to 10 digits that generalizes to 10,000: coupled positions, attention to neighboring "
        "digits only.",
        f"model.positions=[{NUMBER_INDEX},{NEIGHBORS},{WINDOW}]",
        "task.digits=1:10 training.steps=4500 paper=coupling",
        "evaluation.grid=1:10x1:10+diagonal:20+diagonal:50+diagonal:100+diagonal:200+diagonal:500+diagonal:1000"
        "+diagonal:2000+diagonal:5000+diagonal:10000+cascade:1000+uneven:1000+cascade:10000",
        "evaluation.examples_per_cell=20",
    ),
    # A learned vector for each index of a digit in its number, as published, and no bias on their differences. With one
    # random offset, indices more than 10 apart would never occur together in training, and a model takes some of them
    # for each other; with random gaps they do. An index does not tell the next one then, but a model can find the
    # digits whose previous one has the index of the current token, as a bias on the distance of tokens (`T5Bias`) lets
    # it read the previous one. On one core of a laptop about 13 minutes.
    "addition_abacus_far": _laptop(
        "Reversed addition of 1 to 10 digits that mostly generalizes to 100: Abacus embeddings with random gaps.",
        f"model.positions=[{FAR_ABACUS},{NUMBER_INDEX},{PREVIOUS_TOKENS}]",
        "model.mixer=Attention(num_heads=2,logit_scale=log,log_scale_start=10)",
        "task.digits=1:10 training.steps=10000",
        "evaluation.grid=1:10x1:10+diagonal:20:100:10+cascade:100+uneven:100",
    ),
    "addition6_abacus": _addition6(
        "Reversed addition of 1 to 6 digits with Abacus and offsets up to 20; about 3 minutes on a laptop's core.",
        SMALL_ABACUS,
    ),
    "addition6_no_offset": _addition6(
        "addition6_abacus without any offset in training, so that positions beyond 7 are never trained.",
        "model.positions=[Learned(position_ids=DigitIndex,max_position_embeddings=64)]",
    ),
    "addition6_looped": _addition6(
        "addition6_abacus with one block looped three times, the embedded input added before each loop.",
        f"{SMALL_ABACUS} model.backbone=Loop(num_layers=1,num_loops=3,input_injection=add)",
    ),
    "addition6_rotary": _addition6(
        "addition6_abacus with rotary positions instead.", "model.positions=[Rotary] paper=rotary"
    ),
    "addition6_fire": _addition6(
        "addition6_abacus with FIRE, a network per layer, instead.", "model.positions=[FIRE] paper=fire"
    ),
    "addition6_nope": _addition6(
        "addition6_abacus without any positions: only causal attention gives the order.", "paper=nope"
    ),
    "addition_small_abacus": _small(_standard(2), WITH_ABACUS),
    "addition_small_fire": _small(_standard(2), FIRE),
    "addition_small_lt_abacus": _small(_looped(1, 4), WITH_ABACUS),
    "addition_ff_nope": _addition(_standard(16), NOPE),
    "addition_ff_fire": _addition(_standard(16), FIRE),
    "addition_ff_abacus": _addition(_standard(16), WITH_ABACUS),
    "addition_ff_abacus_fire": _addition(_standard(16), WITH_FIRE),
    "addition_ff_abacus_rope": _addition(_standard(16), WITH_ROTARY),
    "addition_ff_ii_nope": _addition(_injected(16), NOPE),
    "addition_ff_ii_fire": _addition(_injected(16), FIRE),
    "addition_ff_ii_abacus": _addition(_injected(16), WITH_ABACUS),
    "addition_ff_ii_abacus_fire": _addition(_injected(16), WITH_FIRE),
    "addition_ff_ii_abacus_rope": _addition(_injected(16), WITH_ROTARY),
    "addition_ff_randomised_fire": _addition(
        _standard(16), RANDOM_FIRE, "an example of the README (max_length=128), which names no script and no model"
    ),
    "addition_lt_nope_1x16": _addition(_looped(1, 16), NOPE, "addition_lt.sh"),
    "addition_lt_fire_1x16": _addition(_looped(1, 16), FIRE, "addition_lt.sh"),
    "addition_lt_abacus_1x16": _addition(_looped(1, 16), WITH_ABACUS, "addition_lt.sh"),
    "addition_lt_nope_2x8": _addition(_looped(2, 8), NOPE, "addition_lt.sh, edited"),
    "addition_lt_fire_2x8": _addition(_looped(2, 8), FIRE, "addition_lt.sh, edited"),
    "addition_lt_abacus_2x8": _addition(_looped(2, 8), WITH_ABACUS, "addition_lt.sh, edited"),
    "addition_lt_nope_4x4": _addition(_looped(4, 4), NOPE, "addition_lt.sh, edited"),
    "addition_lt_fire_4x4": _addition(_looped(4, 4), FIRE, "addition_lt.sh, edited"),
    "addition_lt_abacus_4x4": _addition(_looped(4, 4), WITH_ABACUS, "addition_lt.sh, edited"),
    "addition_lt_nope_8x2": _addition(_looped(8, 2), NOPE, "addition_lt.sh, edited"),
    "addition_lt_fire_8x2": _addition(_looped(8, 2), FIRE, "addition_lt.sh, edited"),
    "addition_lt_abacus_8x2": _addition(_looped(8, 2), WITH_ABACUS, "addition_lt.sh, edited"),
    "addition_lt_abacus_8x2_40_digits": _published(
        "addition of up to 40 digits",
        _looped(8, 2),
        WITH_ABACUS,
        f"{GPU_DAY}; in no script. The paper trains on up to 40 digits; with which model is an assumption",
        "task.digits=1:40",
    ),
    "addition_subtraction_lt_abacus_8x2": _published(
        "addition and subtraction in one model",
        _looped(8, 2),
        WITH_ABACUS,
        f"{GPU_DAY}; in no script. Half of the questions are sums, half are differences",
        "task=Mixture([Arithmetic(+,digits=1:20),Arithmetic(-,digits=1:20)])",
    ),
    "multiplication_fire": _multiplication(FIRE, "optimizer.learning_rate=6e-5"),
    "multiplication_abacus": _multiplication(WITH_ABACUS),
    "multiplication_abacus_fire": _multiplication(WITH_FIRE, "optimizer.learning_rate=6e-5"),
    "bitwise_or_1x16_nope": _bitwise_or(_looped(1, 16), NOPE),
    "bitwise_or_1x16_fire": _bitwise_or(_looped(1, 16), FIRE),
    "bitwise_or_1x16_abacus": _bitwise_or(_looped(1, 16), WITH_ABACUS),
    "bitwise_or_16x1_ii_nope": _bitwise_or(_injected(16), NOPE),
    "bitwise_or_16x1_ii_fire": _bitwise_or(_injected(16), FIRE),
    "bitwise_or_16x1_ii_abacus": _bitwise_or(_injected(16), WITH_ABACUS),
    "sorting_st_fire": _sorting(_standard(8), FIRE),
    "sorting_st_abacus": _sorting(_standard(8), WITH_ABACUS),
    "sorting_st_abacus_fire": _sorting(_standard(8), WITH_FIRE),
    "sorting_st_ii_fire": _sorting(_injected(8), FIRE),
    "sorting_st_ii_abacus": _sorting(_injected(8), WITH_ABACUS),
    "sorting_st_ii_abacus_fire": _sorting(_injected(8), WITH_FIRE),
    "sorting_lt_fire": _sorting(_looped(1, 8), FIRE),
    "sorting_lt_abacus": _sorting(_looped(1, 8), WITH_ABACUS),
    "sorting_lt_abacus_fire": _sorting(_looped(1, 8), WITH_FIRE),
}
"""Every recipe by name."""

__getattr__ = recipe_functions(__name__, ROWS)

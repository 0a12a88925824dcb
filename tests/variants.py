"""Every variant of every kind of part, for the promises of the kinds, and the pairs of parts that are tested."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from newcomers import on_the_page
from numerate import catalogue
from numerate.architectures.channel_mix import ChannelMix
from numerate.architectures.delta import DeltaNet, DeltaProduct, GatedDeltaNet
from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.lru import LRU
from numerate.architectures.mamba import Mamba
from numerate.architectures.mamba2 import Mamba2
from numerate.architectures.rwkv6 import RWKV6
from numerate.architectures.rwkv7 import RWKV7
from numerate.architectures.s4 import S4
from numerate.architectures.slstm import SLSTM
from numerate.architectures.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention
from numerate.batch import Model
from numerate.config import Span
from numerate.losses.cross_entropy import CrossEntropy
from numerate.losses.number_heads import Regression, XValLoss
from numerate.losses.number_level import NumberLevel
from numerate.losses.number_token import GaussianCrossEntropy, NumberToken
from numerate.losses.soft_labels import SoftLabels
from numerate.mixers.alternating import Alternating
from numerate.mixers.attention import Attention
from numerate.mixers.min_gru import MinGRU
from numerate.mixers.mixer import Mixer
from numerate.mixers.recurrent import GRU, LSTM, RNN
from numerate.models.backbone import Loop, Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.initialization import DeepNorm
from numerate.positions.added import Learned, Sinusoidal
from numerate.positions.bias import FIRE, T5Bias
from numerate.positions.position import AttentionBias, Position
from numerate.positions.position_ids import Coupled, DigitIndex, RandomSubset, Sequential, Shifted
from numerate.positions.rotary import Rotary
from numerate.published.dual_attention_models import corrected, published
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.bitwise import BitwiseOr
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import EMPTY, Numbers, Questions
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import Task
from numerate.text.tasks.example_file import ExampleFile
from numerate.text.tasks.gsm8k import GSM8K
from numerate.text.tasks.mathematics import Mathematics
from numerate.text.tasks.multirc import MultiRC
from numerate.text.tasks.question_files import QuestionFiles
from numerate.text.tasks.rjokes import RJokes
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import PerDigit
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.number_formats import Digits
from numerate.tokenizers.tokenizer import Characters
from promises import VOCABULARY

NOT_SPECS = {"Recipe", "Study"}
"""Kinds whose entries are functions, not classes with settings."""


@dataclass(frozen=True)
class Slope(Position):
    """A bias on the scores that grows with the distance, so that promises run on biases even before there is one."""

    position_ids: Any = Sequential()

    def build_attention(self, heads: int, head_width: int) -> AttentionBias:
        return SlopeBias(heads)


class SlopeBias(AttentionBias):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(0.5 ** torch.arange(1, heads + 1))

    def compute_bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        far = (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs()
        return -far * self.slopes[None, :, None, None]


@dataclass(frozen=True)
class RunningParity(Task):
    """Labels: at each bit, whether the number of ones so far is odd. So that promises run on labels."""

    def draw(self, rng: CounterRNG, indices: Any) -> Questions:
        bits = rng.integers(2, (len(indices), 24)).astype(np.int16)
        length = 12 + rng.integers(13, (len(indices), 1))
        there = np.arange(24) < length
        bits, labels = (np.where(there, values, EMPTY) for values in (bits, (bits.cumsum(1) % 2).astype(np.int16)))
        return Questions(("0", "1"), bits, Numbers.empty(len(indices)), labels=labels)


FURTHER: dict[str, list[Any]] = {
    "Task": [
        Arithmetic(digits=Span(1, 2), include_zero=True),
        Arithmetic(digits=3, lengths="uniform"),
        Arithmetic("-", digits=Span(1, 3)),
        Arithmetic("x", digits=Span(1, 9), lengths="value"),
        Arithmetic(digits=Span(2, 9), no_carry=True),
        Sorting(digits=Span(3, 5), items=Span(2, 4), lengths="uniform"),
        BitwiseOr(operator="|", digits=Span(1, 4), max_examples=9),
        RunningParity(),
    ],
    "Tokenizer": [
        Characters(Digits("answer_reversed", 1, 2, min_digits=30)),
        Characters(Digits(index_hints=True), add_bos_token=True),
        Subwords(str(Path(__file__).parent / "text" / "tiny"), PerDigit(), vocabulary="occurring", add_bos_token=True),
    ],
    "Layout": [Continuation(targets="all")],
    "PositionIds": [
        DigitIndex(max_offset=7),
        DigitIndex(max_offset=7, offset_per="batch"),
        DigitIndex(max_offset=7, random_gaps=True),
        Shifted(max_shift=9, num_eval_offsets=1),
        Shifted(max_shift=0),
        Coupled(max_offset=7),
        RandomSubset(max_length=40, eval_stride=2),
        RandomSubset(max_length=20, subset_size=16, subset_per="batch"),
        Sequential(helper_positions="next"),
        Shifted(max_shift=9, shift_within=40, helper_positions="next"),
        RandomSubset(max_length=40, helper_positions="next"),
    ],
    "Position": [
        Rotary(partial_rotary_factor=0.5, base=100.0),
        Sinusoidal(scale=0.3),
        Slope(),
        Slope(position_ids=DigitIndex()),
        FIRE(share_across_layers=True, hidden_size=4, threshold=3.0),
        T5Bias(
            position_ids=Coupled(max_offset=3),
            num_buckets=8,
            max_distance=6,
            bidirectional=True,
            share_across_layers=True,
        ),
    ],
    "Mixer": [
        Attention(num_heads=1),
        Attention(num_heads=2, bias=True),
        Attention(num_heads=2, logit_scale=1.7),
        Attention(num_heads=2, logit_scale="log", log_scale_start=2),
        Attention(num_heads=2, scale_by_inverse_layer_index=True),
        LSTM(hidden_size=12),
        LSTM(output_projection=False, bias=False),
        S4(state_pairs=3, dt_ratio=500.0, dropout=0.2),
        RNN(output_projection=False, initialization="torch"),
        GRU(hidden_size=12, initialization="torch"),
        MinGRU(hidden_size=12, positive_candidates=True, eigenvalue_range="[-1,1]", max_initial_memory=20),
        LRU(state_size=12, gated=True),
        SLSTM(hidden_size=12, num_heads=3, conv_kernel=None, forget_gate="exponential"),
        SLSTM(num_heads=2, output_projection=False),
        Mamba(state_size=3, expand=1, conv_kernel=1, time_step_rank=2, eigenvalue_range="[-1,1]"),
        Mamba2(state_size=3, head_dim=16, conv_kernel=2, eigenvalue_range="[-1,1]"),
        DeltaNet(num_heads=2, head_dim=5, eigenvalue_range="[-1,1]", conv_kernel=None),
        GatedDeltaNet(num_heads=1, eigenvalue_range="[-1,1]", conv_kernel=2, backend="torch"),
        DeltaProduct(num_heads=2, num_householder=3, gated=True, eigenvalue_range="[0,1]"),
        DualAttention(2, 2, PositionRelativeSymbols(max_distance=3), symmetric=True, num_key_value_heads=1, bias=True),
        DualAttention(0, 2, PositionalSymbols(), num_relations=4, activation="softmax"),
        DualAttention(2, 2, PositionalSymbols("sinusoidal"), variant="rca", shared_queries=True, out_bias=True),
        DualAttention(1, 3, SymbolicAttention(5, sharing="library"), variant="rca", activation="gelu"),
        DualAttention(2, 2, PositionRelativeSymbols(future_distances=True), variant="disrca", num_key_value_heads=2),
        DualAttention(2, 2, SymbolicAttention(trainable=False, normalized=True), relation_dim=8, backend="plain"),
        Alternating((LSTM(), Attention(num_heads=2))),
        Alternating((RWKV7(head_dim=4, value_rank=3), ChannelMix(version=7, expansion=2.0))),
        Alternating((RWKV6(head_dim=8, decay_rank=3, shift_rank=2), ChannelMix(version=6))),
    ],
    "Backbone": [
        Stack(num_layers=1),
        Stack(num_layers=3, input_injection="add"),
        Stack(num_layers=3, input_injection="linear"),
        Stack(input_injection="ffn"),
        Stack(num_layers=3, input_injection="add", initial_state="noise"),
        Loop(num_layers=2, num_loops=3, input_injection="none"),
        Loop(num_layers=2, num_loops=2, input_injection="linear", initial_state="noise"),
        Loop(num_loops=2, input_injection="ffn"),
        Loop(num_loops=3, input_injection="none", initial_state="noise"),
    ],
    "Loss": [
        CrossEntropy(mean_over="examples"),
        CrossEntropy(label_smoothing=0.1),
        CrossEntropy(mean_over="examples", label_smoothing=0.1),
        NumberToken("mse"),
        NumberToken("mae", fused="none"),
        NumberToken("huber", mean_over="tokens", digit_weight_ratio=10.0, digit_order="reversed"),
        NumberToken("was-cdf", gaussian_sigma=1.0),
        NumberToken(reweigh=True, squash_factor=2.0, digit_weight_ratio=2.0),
        GaussianCrossEntropy(sigma=2.0, fused="none"),
        NumberLevel(reweigh=True, digit_order="reversed"),
        NumberLevel(published="yes"),
        SoftLabels("del"),
        XValLoss(scale="number", number_token="+"),
        Regression(scale="ln", number_token="+"),
    ],
}
"""Settings beside the defaults that the promises run on too."""

TEXTS = Path(__file__).parent / "text" / "texts"
"""A few questions of each dataset, written by hand in its format."""

TINY_TOKENIZER = str(Path(__file__).parent / "text" / "tiny")
"""A tokenizer of bytes with a few pieces of words, made for tests."""

BY_DEFAULT: dict[str, Callable[[], Any]] = {
    "ChannelMix": lambda: Alternating((RWKV6(), ChannelMix(version=6))),
    "RJokes": lambda: RJokes(data_dir=str(TEXTS)),
    "Mathematics": lambda: Mathematics(("arithmetic__mul",), ("arithmetic__mul_big",), ("easy",), data_dir=str(TEXTS)),
    "QuestionFiles": lambda: QuestionFiles(train_file=str(TEXTS / "questions.jsonl")),
    "MultiRC": lambda: MultiRC(data_dir=str(TEXTS)),
    "GSM8K": lambda: GSM8K(answer_format="number", data_dir=str(TEXTS)),
    "Regression": lambda: Regression(number_token="+"),
    "Subwords": lambda: Subwords(tokenizer=TINY_TOKENIZER),
    "XValLoss": lambda: XValLoss(number_token="+"),
    "ExampleFile": lambda: ExampleFile(path=str(Path(__file__).parent / "text" / "sums.txt")),
}
"""What stands for the defaults of a part that does nothing by itself, such as a task that reads a file."""

HELD = {"T5", "PretrainedDecoder", "PretrainedSeq2Seq", "Numformer"}
"""Models that read a source, a whole row, or are of others: tests/text/test_hugging_face.py tests them."""

RUNNING = {"LanguageModeling", "TokenIds", "NextToken"}
"""What is only for language modeling, without questions and answers: it has tests of its own."""

FURTHER_MODELS = [
    Decoder(hidden_size=16, norm="rms", positions=(Rotary(),), embedding_norm=True),
    Decoder(hidden_size=16, norm="rms", norm_first=False, positions=(Rotary(),)),
    Decoder(hidden_size=16, norm="layer", norm_first=False, positions=(Sinusoidal(),)),
    Decoder(hidden_size=16, norm="none", positions=(Learned(),)),
    Decoder(hidden_size=16, norm="none", norm_first=False, mixer=LSTM()),
    Decoder(
        hidden_size=16, tie_word_embeddings=True, positions=(Learned(position_ids=DigitIndex(max_offset=5)), Rotary())
    ),
    Decoder(hidden_size=16, dropout=0.2, mixer=Attention(num_heads=2, dropout=0.2), positions=(Rotary(),)),
    Decoder(hidden_size=16, feed_forward=None, positions=(Rotary(),)),
    Decoder(hidden_size=16, feed_forward=FeedForward("relu", bias=False), positions=(Rotary(),)),
    Decoder(hidden_size=16, feed_forward=FeedForward("swiglu", expansion=8 / 3), positions=(Slope(), Sinusoidal())),
    Decoder(hidden_size=16, feed_forward=FeedForward("geglu"), mixer=LSTM()),
    Decoder(hidden_size=16, mixer=LSTM(), backbone=Loop(num_loops=2, input_injection="linear", initial_state="noise")),
    Decoder(  # the published Abacus model, in small
        hidden_size=16,
        backbone=Loop(num_layers=2, num_loops=2, initial_state="noise"),
        feed_forward=FeedForward("geglu", expansion=1.0, bias=False),
        positions=(Learned(position_ids=DigitIndex(max_offset=5)), Rotary()),
        norm_first=False,
        embedding_norm=True,
        initialization=DeepNorm(),
        norm_eps=1e-12,
        final_norm=True,
        head_feed_forward=FeedForward("geglu", expansion=1.0, bias=False),
        head_projection=True,
    ),
    Decoder(
        hidden_size=16,
        positions=(Learned(position_ids=Shifted(max_shift=5)), Rotary(position_ids=DigitIndex()), Slope()),
    ),
    Decoder(hidden_size=16, mixer=LSTM(), feed_forward=None, norm="none", residual=False),
    published(
        hidden_size=16, num_layers=2, num_self_heads=2, num_relational_heads=2, context_length=64, norm_first=False
    ),
    corrected(
        hidden_size=16, num_layers=1, num_self_heads=2, num_relational_heads=2, context_length=64, positions="learned"
    ),
    Decoder(hidden_size=16, positions=(Sinusoidal(),), embedding_scale="sqrt"),
    Decoder(
        hidden_size=16,
        backbone=Stack(num_layers=3),
        mixer=Alternating((Attention(num_heads=2), LSTM())),
        positions=(Rotary(),),
    ),
]


def every(kind: str) -> list[Any]:
    """Each class of a kind with its defaults and those of docs/adding.md, then its further settings."""
    parts = [part for part in catalogue.all_classes(kind) if part.__name__ not in RUNNING]
    parts += on_the_page().get(kind, [])
    return [BY_DEFAULT.get(part.__name__, part)() for part in parts] + FURTHER.get(kind, [])


OF_FILES = {"RJokes", "LanguageModeling", "Mathematics", "QuestionFiles", "MultiRC", "GSM8K", "ExampleFile"}
"""Tasks that have no file by themselves, and no OOD validation: see their own tests."""


def generated_tasks() -> list[Any]:
    """Every task with its defaults whose questions are generated in numerate itself, and those of docs/adding.md."""
    skipped = OF_FILES | {"GeneratedMathematics"}
    return [part() for part in (*catalogue.all_classes("Task"), *on_the_page()["Task"]) if part.__name__ not in skipped]


def rotated(first: Sequence[Any], second: Sequence[Any], turn: int) -> list[tuple[Any, Any]]:
    """Pairs in which everything of both is at least once, others at each turn: in as many turns as the longer one has
    items, every pair."""
    count = max(len(first), len(second))
    return [(first[i % len(first)], second[(i + turn) % len(second)]) for i in range(count)]


def every_mixing(turn: int | None = None) -> list[tuple[Mixer, tuple[Position, ...]]]:
    """Each mixer with no position; where it attends, with one of those that act inside attention, or none, another one
    at each turn. Without a turn: every pair."""
    inside = [(), *((part,) for part in every("Position") if part.build_attention(4, 8) is not None)]
    attending = [mixer for mixer in every("Mixer") if isinstance(mixer, Attention | DualAttention)]
    others = [(mixer, ()) for mixer in every("Mixer") if mixer not in attending]
    pairs = itertools.product(attending, inside) if turn is None else rotated(attending, inside, turn)
    return [*others, *pairs]


def every_model(turn: int | None = None) -> list[Any]:
    """Each model with its defaults; small decoders with attention and each position; each position with a numbering and
    each numbering with a position; each other mixer, with no position or with waves; each backbone and initialization;
    and `FURTHER_MODELS`. Each turn has other pairs, and every third of the further mixers. Without a turn: all."""
    models: list[Any] = [part() for part in catalogue.all_classes("ModelSpec") if part.__name__ not in HELD]
    models += [Decoder(hidden_size=16)]
    models += [Decoder(hidden_size=16, positions=(position,)) for position in every("Position")]
    positions = [part() for part in catalogue.all_classes("Position") if "position_ids" in part.__dataclass_fields__]
    position_ids = [part() for part in catalogue.all_classes("PositionIds") if part.causal] + [DigitIndex(max_offset=7)]
    pairs = [*itertools.product(positions, position_ids)] if turn is None else rotated(positions, position_ids, turn)
    models += [
        Decoder(hidden_size=16, positions=(replace(position, position_ids=numbering),))
        for position, numbering in pairs
        if numbering != position.position_ids
    ]
    mixers = [BY_DEFAULT.get(part.__name__, part)() for part in catalogue.all_classes("Mixer") if part is not Attention]
    waves: list[tuple[Position, ...]] = [(), (Sinusoidal(),)]
    for number, mixer in enumerate(mixers):
        chosen = waves if turn is None else [waves[(number + turn) % 2]]
        models += [Decoder(hidden_size=16, mixer=mixer, positions=positions) for positions in chosen]
    further = FURTHER["Mixer"] if turn is None else FURTHER["Mixer"][turn % 3 :: 3]
    models += [Decoder(hidden_size=16, mixer=mixer, positions=(Sinusoidal(),)) for mixer in further]
    models += [Decoder(hidden_size=16, backbone=backbone, positions=(Rotary(),)) for backbone in every("Backbone")]
    models += [
        Decoder(hidden_size=16, initialization=part(), tie_word_embeddings=True)
        for part in catalogue.all_classes("Initialization")
    ]
    return models + FURTHER_MODELS


def every_part() -> list[type]:
    """Every class with settings that any catalogue names."""
    return [part for kind in catalogue.parts_by_kind() if kind not in NOT_SPECS for part in catalogue.all_classes(kind)]


VARIANTS: dict[str, Callable[[int], list[Any]]] = {
    **{
        f"any_{kind.lower()}": lambda turn, kind=kind: every(kind)
        for kind in ("Task", "Layout", "Tokenizer", "Position", "Mixer", "Backbone", "Loss", "Schedule")
    },
    "any_generated_task": lambda turn: generated_tasks(),
    "any_position_ids": lambda turn: every("PositionIds"),
    "any_causal_position_ids": lambda turn: [part for part in every("PositionIds") if part.causal],
    "any_initialisation": lambda turn: every("Initialization"),
    "any_optimizer": lambda turn: every("Optimizer"),
    "any_mixing": every_mixing,
    "each_mixing": lambda turn: every_mixing(),
    "any_model": every_model,
    "any_part": lambda turn: every_part(),
}
"""The variants that a test runs on, by the name of its argument; `turn` is the test's number in its file."""


def name_of(part: Any) -> str:
    """Short enough to read in a list of tests: classes, and settings that differ from their defaults."""
    if isinstance(part, type):
        return part.__name__
    if isinstance(part, tuple):
        return "+".join(map(name_of, part)) or "none"
    fields = getattr(part, "__dataclass_fields__", None)
    if fields is None:
        return str(part)
    told = [
        f"{name}={name_of(getattr(part, name))}"
        for name, field in fields.items()
        if getattr(part, name) != field.default
    ]
    return type(part).__name__ + (f"({','.join(told)})" if told else "")


def build(spec: Any, seed: int = 0) -> Model:
    """The model in float64 and evaluation."""
    model: Model = spec.build(VOCABULARY, seed).double().eval()
    return model

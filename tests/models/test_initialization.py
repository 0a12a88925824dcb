"""Promises of named initialisations, on every one of them; then the spread of each."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Context, Mixer, TokenMixer
from numerate.models.backbone import Loop, Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.initialization import DeepNorm, FanIn, Normal, TorchDefault, Xavier
from numerate.positions.added import Learned
from numerate.positions.position import Position
from numerate.positions.rotary import Rotary


class Particular(Mixer):
    """A mixer that wants one weight and one bias left as it made them, and the others drawn."""

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "ParticularMixer":
        return ParticularMixer(width)


class ParticularMixer(TokenMixer):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mine, self.theirs, self.partly = (nn.Linear(width, width) for _ in range(3))
        for parameter in self.parameters():
            nn.init.constant_(parameter, 7.0)

    def self_initialized_parameters(self) -> set[str]:
        return {"mine.weight", "mine.bias", "partly.bias"}

    def forward(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        return x

    def prefill(self, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, Any]:
        return x, None

    def step(self, x: torch.Tensor, context: Context, state: Any) -> tuple[torch.Tensor, Any]:
        return x, None

    def flops(self, time: int) -> int:
        return 0


def test_it_touches_only_what_nobody_claims(any_initialisation: Any, vocabulary: Any) -> None:
    model = Decoder(hidden_size=8, mixer=Particular(), initialization=any_initialisation).build(vocabulary, 0)
    for block in model.backbone.blocks:
        mixer = block.mixer
        for kept in (mixer.mine.weight, mixer.mine.bias, mixer.partly.bias):
            assert torch.equal(kept, torch.full_like(kept, 7.0))
        for drawn in (mixer.theirs.weight, mixer.partly.weight):
            assert not bool((drawn == 7.0).any())
        drawn = isinstance(any_initialisation, TorchDefault)
        assert torch.equal(mixer.theirs.bias, torch.zeros(8)) is not drawn


def test_claimed_parameters_are_alike_under_every_initialisation(any_mixer: Any, vocabulary: Any) -> None:
    models = [
        Decoder(hidden_size=16, mixer=any_mixer, initialization=kind()).build(vocabulary, 0) for kind in (FanIn, Normal)
    ]
    first, second = (dict(model.named_parameters()) for model in models)
    claimed = models[0]._self_initialized_parameters()
    assert all(torch.equal(first[name], second[name]) for name in claimed)
    drawn = [name for name in set(first) - claimed if first[name].dim() > 1]
    assert drawn
    assert all(not torch.equal(first[name], second[name]) for name in drawn)


def test_biases_start_at_nothing_but_for_torch_s_own_and_norms_at_one(any_initialisation: Any, vocabulary: Any) -> None:
    model = Decoder(hidden_size=16, initialization=any_initialisation).build(vocabulary, 0)
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.Linear)
            and module.bias is not None
            and not isinstance(any_initialisation, TorchDefault)
        ):
            assert torch.equal(module.bias, torch.zeros_like(module.bias)), name
        if isinstance(module, nn.LayerNorm):
            assert torch.equal(module.weight, torch.ones_like(module.weight)), name
            assert torch.equal(module.bias, torch.zeros_like(module.bias)), name


def test_a_tied_head_keeps_the_weights_of_the_embedding(any_initialisation: Any, vocabulary: Any) -> None:
    tied = Decoder(hidden_size=16, tie_word_embeddings=True, initialization=any_initialisation).build(vocabulary, 0)
    free = Decoder(hidden_size=16, initialization=any_initialisation).build(vocabulary, 0)
    assert torch.equal(tied.embedding.weight, free.embedding.weight)


WIDTH, DEPTH = 64, 3


def spread(part: Any) -> float:
    return float(part.weight.detach().std())


@pytest.mark.parametrize(
    ("initialisation", "inward", "outward", "fed", "embedding"),
    [
        (FanIn(), WIDTH**-0.5, 0.5 * WIDTH**-0.5, 0.5 * (4 * WIDTH) ** -0.5, 1.0),
        (FanIn(residual_scale=1.0, embedding_std=0.3), WIDTH**-0.5, WIDTH**-0.5, (4 * WIDTH) ** -0.5, 0.3),
        (Normal(0.02), 0.02, 0.02 * 6**-0.5, 0.02 * 6**-0.5, 0.02),
        (Xavier(), (2 / (4 * WIDTH)) ** 0.5, (2 / (2 * WIDTH)) ** 0.5, (2 / (5 * WIDTH)) ** 0.5, WIDTH**-0.5),
    ],
)
def test_the_spread_of_each_kind_of_weight(
    initialisation: Any, inward: float, outward: float, fed: float, embedding: float, vocabulary: Any
) -> None:
    spec = Decoder(
        hidden_size=WIDTH,
        backbone=Stack(num_layers=DEPTH),
        initialization=initialisation,
        positions=(Learned(max_position_embeddings=200),),
    )
    model = spec.build(vocabulary, 0)
    for block in model.backbone.blocks:
        assert spread(block.mixer.qkv_proj) == pytest.approx(inward, rel=0.05)
        assert spread(block.mixer.out_proj) == pytest.approx(outward, rel=0.05)
        assert spread(block.feed_forward.out_proj) == pytest.approx(fed, rel=0.05)
    assert spread(model.embedding) == pytest.approx(embedding, rel=0.1)
    assert spread(model.input_positions["0"].embedding) == pytest.approx(embedding, rel=0.05)


@pytest.mark.parametrize(
    "positions", [(), (Rotary(),), (Learned(max_position_embeddings=9), Rotary(partial_rotary_factor=0.5))]
)
@pytest.mark.parametrize("trunk", [Stack(2), Loop(2, 8), Loop(1, 16, "linear")])
def test_queries_and_keys_are_full_size_and_values_small_in_every_head(
    trunk: Any, positions: Any, vocabulary: Any
) -> None:
    """For every kind of position and each head: the published code gave the small ones to the wrong rows of some."""
    width, heads = 128, 4
    fed = FeedForward("geglu", expansion=1.0, bias=False)
    spec = Decoder(
        hidden_size=width,
        backbone=trunk,
        mixer=Attention(num_heads=heads),
        positions=positions,
        feed_forward=fed,
        head_feed_forward=fed,
        head_projection=True,
        initialization=DeepNorm(),
    )
    model = spec.build(vocabulary, 0)
    gain, square = (8 * trunk.num_blocks() * trunk.default_num_loops()) ** -0.25, (2 / (2 * width)) ** 0.5
    for block in model.backbone.blocks:
        queries, keys, values = block.mixer.qkv_proj.weight.detach().view(3, heads, width // heads, width)
        for head in range(heads):
            assert float(queries[head].std()) == pytest.approx(square, rel=0.05)
            assert float(keys[head].std()) == pytest.approx(square, rel=0.05)
            assert float(values[head].std()) == pytest.approx(gain * square, rel=0.05)
        # What the rows make, whatever they are called: values leave the block, queries and keys only meet.
        made = block.mixer._project(torch.randn(1, 200, width), Context(torch.tensor([200]), places(spec, 200)))
        spreads = [float(part.detach().std()) for part in made]
        assert spreads[:2] == pytest.approx([1.0, 1.0], rel=0.1)
        assert spreads[2] == pytest.approx(gain, rel=0.1)
        for part, rows, columns in ((block.mixer.out_proj, 1, 1), (block.feed_forward.in_proj, 2, 1)):
            assert spread(part) == pytest.approx(gain * (2 / ((rows + columns) * width)) ** 0.5, rel=0.05)
    assert spread(model.head_projection) == pytest.approx(gain * square, rel=0.05)
    assert spread(model.head_feed_forward.out_proj) == pytest.approx(gain * square, rel=0.05)
    assert spread(model.embedding) == pytest.approx(width**-0.5, rel=0.1)


def places(spec: Decoder, time: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.arange(time)[None] for _ in spec.positions)

"""Promises of maps: they are what the forward used, to the last digit, and nobody pays for them who does not ask."""

from typing import Any

import pytest
import torch
from torch import Tensor

from numerate.architectures.dual_attention import DualAttention, DualAttentionMixer
from numerate.architectures.symbols import (
    DistanceSymbols,
    PositionalSymbols,
    PositionRelativeSymbols,
    SymbolicAttention,
    SymbolicAttentionPart,
    TokenSymbols,
)
from numerate.batch import StepContext, Tokens
from numerate.kernels.relational import pairwise_symbols
from numerate.kernels.relational_fast import RelationalHeads
from numerate.mixers.alternating import Alternating
from numerate.mixers.attention import Attention, SelfAttention
from numerate.mixers.attention_maps import record_maps
from numerate.mixers.mixer import Context, Mixer, TokenMixer
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Loop, Stack
from numerate.models.decoder import Decoder
from numerate.positions.bias import FIRE, ALiBi, T5Bias
from numerate.positions.contextual import CoPE
from numerate.positions.position import Position
from numerate.positions.rotary import Rotary
from numerate.vocabulary import Vocabulary

WIDTH, TIME = 16, 9


def read(rows: int = 2, positions: int = 1, hidden: bool = False) -> tuple[Tensor, Context]:
    draws = torch.Generator().manual_seed(3)
    x = torch.randn(rows, TIME, WIDTH, generator=draws, dtype=torch.float64)
    shut = torch.rand(rows, TIME, generator=draws) < 0.3 if hidden else None
    places = tuple(torch.arange(TIME)[None] for _ in range(positions))
    stream = torch.randn(rows, TIME, WIDTH, generator=draws, dtype=torch.float64)
    return x, Context(torch.full((rows,), TIME), places, blocked_keys=shut, residual=stream)


def built(spec: Mixer, *positions: Position) -> Any:
    torch.manual_seed(1)
    part = spec.build_layers(WIDTH, 2, positions)[1].double().eval()
    with torch.no_grad():
        for parameter in part.parameters():  # also what begins at 0
            parameter.add_(0.3 * torch.randn_like(parameter))
    return part


def joined(output: Tensor) -> Tensor:
    return output.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    ("spec", "position"),
    [
        (Attention(num_heads=4), None),
        (Attention(num_heads=2, logit_scale="log", log_scale_start=2, scale_by_inverse_layer_index=True), Rotary()),
        (Attention(num_heads=4, blocked_attend_to_themselves=False), ALiBi()),
        (Attention(num_heads=4, logit_scale=1.5), FIRE()),
        (Attention(num_heads=4), T5Bias()),
        (Attention(num_heads=4), CoPE(max_positions=4)),
    ],
)
def test_the_output_of_attention_follows_from_its_map(spec: Attention, position: Position | None, hidden: bool) -> None:
    part = built(spec, *([] if position is None else [position]))
    assert isinstance(part, SelfAttention)
    x, context = read(positions=position is not None, hidden=hidden)
    weights = part.attention_maps(x, context)["attention"]
    values = part.qkv_proj(x).chunk(3, dim=-1)[2].unflatten(-1, (spec.num_heads, -1)).transpose(1, 2)
    torch.testing.assert_close(part.out_proj(joined(weights @ values)), part(x, context))
    shares(weights)


def shares(weights: Tensor) -> None:
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert not weights.triu(1).any()


DUAL: list[dict[str, Any]] = [
    {},
    {"symbols": PositionalSymbols(), "activation": "tanh", "num_relations": 3, "relation_dim": 2, "backend": "chunks"},
    {"symbols": PositionRelativeSymbols(max_distance=3), "symmetric": True, "activation": "softmax"},
    {"num_self_heads": 4, "num_relational_heads": 4, "num_key_value_heads": 2, "backend": "values"},
    {"shared_queries": True, "symbols": SymbolicAttention(normalized=True, sharing="own", scale=0.7)},
    {"num_self_heads": 0, "num_relational_heads": 4, "variant": "rca"},
    {"variant": "rca", "activation": "relu"},
    {"variant": "disrca", "activation": "sigmoid"},
]


@pytest.mark.parametrize("settings", DUAL, ids=str)
def test_the_output_of_dual_attention_follows_from_its_maps(settings: dict[str, Any]) -> None:
    spec = DualAttention(**settings)
    part = built(spec, ALiBi())
    assert isinstance(part, DualAttentionMixer)
    x, context = read(hidden=True)
    maps = part.attention_maps(x, context)
    own, other, outputs = spec.num_self_heads, spec.num_relational_heads, []

    def split(made: Tensor) -> Tensor:
        return torch.unflatten(made, -1, (-1, part.head_width)).transpose(1, 2)

    if own:
        values = split(part.v_proj(x))
        values = values.repeat_interleave(own // values.shape[1], 1)
        outputs.append(part.self_out_proj(joined(maps["attention"] @ values)))
        shares(maps["attention"])
    symbols = part.symbols
    if isinstance(symbols, DistanceSymbols):
        given = {"distance_symbols": split(part.symbol_v_proj(symbols(TIME))[None])}
    else:
        assert isinstance(symbols, TokenSymbols)
        if isinstance(symbols, SymbolicAttentionPart):
            library = symbols.symbol_library.unflatten(-1, (symbols.heads, -1)).transpose(0, 1)
            chosen = (maps["symbols"] @ library).transpose(1, 2).flatten(2)
            torch.testing.assert_close(chosen, symbols(x, context))
            torch.testing.assert_close(maps["symbols"].sum(-1), torch.ones_like(maps["symbols"][..., 0]))
        made = split(part.symbol_v_proj(symbols(x, context)))
        given = {"symbols": made.repeat_interleave(other // made.shape[1], 1)}
    empty = x.new_zeros(len(x), other, TIME, part.head_width)
    pairs = pairwise_symbols(RelationalHeads(empty, empty, **given))
    weights = maps.get("relational attention", maps.get("relations"))
    if spec.variant == "disrca":
        weights = weights * maps["relations"]
    elif spec.variant == "relational":
        read_off = part.relation_proj.weight.unflatten(0, (other, part.head_width))
        pairs = pairs + torch.einsum("hdl,rlqk->rhqkd", read_off, maps["relations"])
    if "relational attention" in maps:
        shares(maps["relational attention"])
    assert not maps.get("relations", weights).triu(1).any()
    attended = torch.einsum("rhqk,rhqkd->rhqd", weights, pairs.expand(*weights.shape, -1))
    outputs.append(part.relational_out_proj(joined(attended)))
    torch.testing.assert_close(torch.cat(outputs, -1), part(x, context))


def model_of(**settings: Any) -> tuple[Any, Tokens]:
    model = Decoder(hidden_size=16, **settings).build(Vocabulary.with_digits("+="), 0).eval()
    tokens = Tokens(torch.tensor([[5, 14, 6, 15]]), torch.tensor([4]), torch.zeros(1, dtype=torch.int64))
    return model, model.assign_positions(tokens, StepContext.for_evaluation())


def test_a_loop_leaves_maps_for_every_turn_and_a_hybrid_for_the_layers_that_attend() -> None:
    model, tokens = model_of(
        backbone=Loop(num_layers=2, num_loops=3), mixer=Attention(num_heads=2), positions=(Rotary(),)
    )
    with record_maps(model) as seen:
        model(tokens)
    assert [(one.layer, one.loop) for one in seen.layers] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert not torch.equal(seen.layers[0].maps["attention"], seen.layers[2].maps["attention"])
    model, tokens = model_of(backbone=Stack(num_layers=4), mixer=Alternating((LSTM(), Attention(num_heads=2))))
    with record_maps(model) as seen:
        model(tokens)
    assert [one.layer for one in seen.layers] == [1, 3]


def test_nothing_is_computed_when_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = model_of(mixer=DualAttention())
    before = model(tokens).logits
    with record_maps(model) as seen:
        assert torch.equal(model(tokens).logits, before)
    assert len(seen.layers) == 2

    def refuse(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(DualAttentionMixer, "attention_maps", refuse)
    model(tokens)
    assert len(seen.layers) == 2


def test_every_mixer_that_attends_has_maps_and_no_other(any_mixer: Mixer) -> None:
    parts: list[TokenMixer] = any_mixer.build_layers(16, 2, ())
    x = torch.randn(1, 5, 16)
    found = [part.attention_maps(x, Context(torch.tensor([5]), (), residual=x)) for part in parts]
    assert any(found) == any_mixer.has_attention()
    assert all(weights.shape[:1] + weights.shape[2:3] == (1, 5) for maps in found for weights in maps.values())

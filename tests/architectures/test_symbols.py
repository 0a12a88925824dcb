"""Symbols against published numbers, and by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cases import published_case
from layers import assert_same, context, drawn, filled, load_from, read
from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention
from numerate.errors import UserError
from numerate.kernels.relational import RelationalHeads, pairwise_symbols
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.models.initialization import Normal

PUBLISHED = {"atol": 5e-6, "rtol": 0.0}


def test_symbolic_attention_is_the_published(shared: Path) -> None:
    case = published_case(shared, "dual_attention.json", "symbolic_attention_scale_None")
    config, given, expected = case["config"], filled(case), torch.tensor(case["expected"]["out"]).double()
    part = SymbolicAttention(config["n_symbols"], config["n_heads"], scale=config["scale"]).build(8).double()
    x = given.pop("x")
    part.load_state_dict(given)
    assert_same(read(part, x), expected, **PUBLISHED)


def test_positional_symbols_are_the_published(shared: Path) -> None:
    case = published_case(shared, "dual_attention.json", "positional_symbols")
    part: Any = PositionalSymbols(max_position_embeddings=case["config"]["max_length"]).build(3).double()
    load_from(part, {"embedding.weight": filled(case)["symbol_library.weight"]})
    expected = torch.tensor(case["expected"]["out"]).double()
    assert_same(read(part, drawn(2, 3, 3)).expand(2, -1, -1), expected, **PUBLISHED)


@pytest.mark.parametrize("whole", [False, True])
def test_position_relative_symbols_are_the_published_of_all_that_came_before(shared: Path, whole: bool) -> None:
    case = published_case(shared, "dual_attention.json", "position_relative_symbols")
    table, time = filled(case)["rel_pos_enc.rel_pos_embeddings"], case["config"]["length"]
    part = PositionRelativeSymbols(case["config"]["max_rel_pos"], future_distances=whole).build(3).double()
    load_from(part, {"rel_pos_embeddings": table if whole else table[:3]})
    past, nothing = torch.ones(time, time, dtype=torch.bool).tril(), torch.zeros(1, 1, time, 3, dtype=torch.float64)
    heads = RelationalHeads(nothing, nothing, distance_symbols=part(time)[None, None])
    assert_same(pairwise_symbols(heads)[0, 0][past], torch.tensor(case["expected"]["out"]).double()[past], **PUBLISHED)


@pytest.mark.parametrize("time", [1, 3, 4, 9])
def test_a_table_of_distances_is_as_long_as_requested(time: int) -> None:
    part: Any = PositionRelativeSymbols(max_distance=3).build(2)
    rows = [max(0, 3 - distance) for distance in range(time - 1, -1, -1)]
    assert torch.equal(part(time), part.rel_pos_embeddings[rows])


def test_a_scale_takes_the_place_of_the_root() -> None:
    x = drawn(1, 3, 8)
    parts: Any = [SymbolicAttention(5, 2, scale=scale).build(8).double() for scale in (None, 0.5, 3.0)]
    for part in parts[1:]:
        part.load_state_dict(parts[0].state_dict())
    outputs = [part(x, context([3])) for part in parts]
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])


def test_symbols_are_chosen_by_the_stream_or_by_what_the_mixer_reads() -> None:
    x, stream = drawn(2, 3, 8), drawn(2, 3, 8) + 1
    raw: Any = SymbolicAttention(5).build(8).double()
    normed: Any = SymbolicAttention(5, normalized=True).build(8).double()
    normed.load_state_dict(raw.state_dict())
    here = context([3, 3], residual=stream)
    torch.testing.assert_close(normed(x, here), raw(x, context([3, 3])))
    torch.testing.assert_close(raw(x, here), normed(stream, context([3, 3])))


def test_a_model_reads_the_stream_before_the_norm_at_once_and_token_by_token(make_tokens: Any, vocabulary: Any) -> None:
    def built(normalised: bool) -> Any:
        mixer = DualAttention(symbols=SymbolicAttention(6, normalized=normalised))
        spec = Decoder(hidden_size=16, mixer=mixer, backbone=Stack(num_layers=2), initialization=Normal(std=0.3))
        return spec.build(vocabulary, 0).double().eval()

    raw, normed = built(False), built(True)
    tokens = make_tokens([7])
    whole = raw(tokens).logits
    assert not torch.allclose(whole, normed(tokens).logits)
    started = raw.prefill(make_tokens([7]), capacity=9)
    torch.testing.assert_close(started.output.logits[:, -1], whole[:, -1])
    seen: list[torch.Tensor] = []
    block = raw.backbone.blocks[1]
    hook = block.mixer.symbols.register_forward_hook(lambda part, given, output: seen.append(given[1].residual))
    block.register_forward_pre_hook(lambda part, given: seen.append(given[0]))
    raw(tokens)
    hook.remove()
    assert torch.equal(seen[-1], seen[-2])


def test_frozen_symbols_are_saved_and_never_learn() -> None:
    part: Any = SymbolicAttention(5, trainable=False).build(8)
    assert "symbol_library" in part.state_dict()
    assert {name for name, _ in part.named_parameters()} == {"template_features", "q_proj.weight", "q_proj.bias"}


@pytest.mark.parametrize(("layers", "parameters"), [("shared", 4), ("library", 1 + 3 * 3), ("own", 3 * 4)])
@pytest.mark.parametrize("trainable", [True, False])
def test_layers_share_the_parameters_of_their_setting(layers: Any, parameters: int, trainable: bool) -> None:
    parts: Any = SymbolicAttention(5, sharing=layers, trainable=trainable).build_layers(8, 3)
    found = {id(one) for part in parts for one in part.parameters()}
    frozen = 0 if trainable else (3 if layers == "own" else 1)
    assert len(found) == parameters - frozen
    assert (parts[0].symbol_library is parts[2].symbol_library) == (layers != "own")
    assert (parts[0].template_features is parts[2].template_features) == (layers == "shared")
    assert (parts[0].q_proj is parts[2].q_proj) == (layers == "shared")


def test_waves_have_no_end_and_a_table_has() -> None:
    waves: Any = PositionalSymbols("sinusoidal").build(4)
    output = waves(torch.zeros(1, 3, 4), context([3]))
    assert output[0, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    torch.testing.assert_close(
        output[0, 2],
        torch.tensor([2.0, 0.02, 2.0, 0.02]).sin() * torch.tensor([1, 1, 0, 0])
        + torch.tensor([2.0, 0.02, 2.0, 0.02]).cos() * torch.tensor([0, 0, 1, 1]),
    )
    learned: Any = PositionalSymbols(max_position_embeddings=4).build(4)
    with pytest.raises(
        UserError,
        match=r"^model\.mixer\.symbols\.max_position_embeddings: position 4 is outside the table of 4 positions",
    ):
        learned(torch.zeros(1, 5, 4), context([5]))
    newest = context([3, 3], cache_position=torch.tensor([0, 2]), cached_length=3)
    assert torch.equal(learned(torch.zeros(2, 1, 4), newest)[:, 0], learned.embedding.weight[[0, 2]])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: SymbolicAttention(num_heads=3).build(8),
            r"^model\.mixer\.symbols\.num_heads: must divide hidden_size=8, not 3",
        ),
        (
            lambda: PositionalSymbols("sinusoidal").build(3),
            r"^model\.mixer\.symbols\.embedding: .* an even width, not 3",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()

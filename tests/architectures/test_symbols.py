"""Symbols against published numbers, and by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.symbols import PositionalSymbols, PositionRelativeSymbols, SymbolicAttention
from numerate.errors import UserError
from numerate.kernels.relational import RelationalHeads, pairwise_symbols
from numerate.mixers.mixer import Context
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.models.initialization import Normal

PUBLISHED = {"atol": 5e-6, "rtol": 0.0}


def case_of(shared: Path, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], torch.Tensor]:
    cases = json.loads((shared / "cases" / "dual_attention.json").read_text())["cases"]
    case = next(case for case in cases if case["name"] == name)
    made = {key: filled(**how) for kind in ("weights", "inputs") for key, how in case[kind].items()}
    return case["config"], made, torch.tensor(case["expected"]["out"]).double()


def filled(shape: list[int], salt: int, amp: float, offset: float, **_: Any) -> torch.Tensor:
    """The formula of the cases: offset + amp sin(0.1 (7 i0 + 3 i1 + 2 i2 + 1) + 1.1 salt)."""
    axes = torch.meshgrid(*(torch.arange(size, dtype=torch.float64) for size in shape), indexing="ij")
    index = sum(factor * axis for factor, axis in zip((7, 3, 2), axes, strict=False))
    return offset + amp * torch.sin(0.1 * (index + 1) + 1.1 * salt)


def here(rows: int, time: int, **more: Any) -> Context:
    return Context(torch.full((rows,), time), (), **more)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_symbolic_attention_is_the_published(shared: Path) -> None:
    config, made, expected = case_of(shared, "symbolic_attention_scale_None")
    part = SymbolicAttention(config["n_symbols"], config["n_heads"], scale=config["scale"]).build(8).double()
    part.load_state_dict(
        {
            "template_features": made["template_features"],
            "symbol_library": made["symbol_library"],
            "q_proj.weight": made["q_proj.weight"],
            "q_proj.bias": made["q_proj.bias"],
        }
    )
    torch.testing.assert_close(part(made["x"], here(2, 4)), expected, **PUBLISHED)


def test_positional_symbols_are_the_published(shared: Path) -> None:
    config, made, expected = case_of(shared, "positional_symbols")
    part: Any = PositionalSymbols(max_position_embeddings=config["max_length"]).build(3).double()
    part.load_state_dict({"embedding.weight": made["symbol_library.weight"]})
    x = torch.zeros(2, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(part(x, here(2, 3)).expand(2, -1, -1), expected, **PUBLISHED)


def test_position_relative_symbols_are_the_published_of_all_that_came_before(shared: Path) -> None:
    config, made, expected = case_of(shared, "position_relative_symbols")
    table, time = made["rel_pos_enc.rel_pos_embeddings"], config["length"]
    whole: Any = PositionRelativeSymbols(config["max_rel_pos"], future_distances=True).build(3).double()
    half: Any = PositionRelativeSymbols(config["max_rel_pos"]).build(3).double()
    whole.load_state_dict({"rel_pos_embeddings": table})
    half.load_state_dict({"rel_pos_embeddings": table[:3]})
    past = torch.ones(time, time, dtype=torch.bool).tril()
    for part in (whole, half):
        nothing = torch.zeros(1, 1, time, 3, dtype=torch.float64)
        heads = RelationalHeads(nothing, nothing, distance_symbols=part(time)[None, None])
        torch.testing.assert_close(pairwise_symbols(heads)[0, 0][past], expected[past], **PUBLISHED)


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
    outputs = [part(x, here(1, 3)) for part in parts]
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])


def test_symbols_are_chosen_by_the_stream_or_by_what_the_mixer_reads() -> None:
    x, stream = drawn(2, 3, 8), drawn(2, 3, 8) + 1
    raw: Any = SymbolicAttention(5).build(8).double()
    normed: Any = SymbolicAttention(5, normalized=True).build(8).double()
    normed.load_state_dict(raw.state_dict())
    context = here(2, 3, residual=stream)
    torch.testing.assert_close(normed(x, context), raw(x, here(2, 3)))
    torch.testing.assert_close(raw(x, context), normed(stream, here(2, 3)))


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
    output = waves(torch.zeros(1, 3, 4), here(1, 3))
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
        learned(torch.zeros(1, 5, 4), here(1, 5))
    newest = here(2, 3, cache_position=torch.tensor([0, 2]), cached_length=3)
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

"""Loops and injections written out by hand; turns with and without a gradient; noise that is never drawn again."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from layers import assert_same, gradients
from numerate.batch import Loops, StepContext, Tokens
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Loop, Stack, position_noise
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.positions.added import Sinusoidal
from numerate.positions.bias import FIRE
from numerate.positions.position_ids import RandomSubset
from numerate.positions.rotary import Rotary
from numerate.training.parallel import compile_forward

EXACT = {"atol": 1e-10, "rtol": 1e-10}
INJECTIONS = ("none", "add", "linear", "ffn")
STATES = ("zero", "noise")


def looped(depth: int = 2, times: int = 3, inject: Any = "add", state: Any = "zero", **more: Any) -> Decoder:
    """A decoder whose parts all take part: rotary positions, post-norm with a final norm, a gated feed-forward."""
    settings = {"positions": (Rotary(),), "norm_first": False, "final_norm": True, "embedding_norm": True, **more}
    return Decoder(
        hidden_size=16, backbone=Loop(depth, times, inject, state), feed_forward=FeedForward("geglu"), **settings
    )


def embedded(model: Any, tokens: Tokens) -> tuple[torch.Tensor, Any]:
    found: tuple[torch.Tensor, Any] = model._embed(model.assign_positions(tokens, StepContext.for_evaluation()))
    return found


def injected(trunk: Any, state: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
    """By hand, for every kind of injection."""
    if trunk.injection is None:
        return state
    if not list(trunk.injection.parameters()):
        return state + raw
    both = torch.cat([state, raw], dim=-1)
    if isinstance(trunk.injection.proj, torch.nn.Linear):
        return both @ trunk.injection.proj.weight.T
    part = trunk.injection.proj
    gate, value = (both @ part.in_proj.weight.T + part.in_proj.bias).chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate) * value) @ part.out_proj.weight.T + part.out_proj.bias


@pytest.mark.parametrize("inject", INJECTIONS)
@pytest.mark.parametrize("state", STATES)
@torch.no_grad()
def test_a_loop_written_out(inject: str, state: str, build: Any, make_tokens: Any) -> None:
    model, tokens = build(looped(inject=inject, state=state), seed=5), make_tokens([7, 4])
    raw, context = embedded(model, tokens)
    x = torch.zeros_like(raw) if inject != "none" else raw
    if state == "noise":
        x = x + position_noise(5, torch.arange(7)[None], 16)
    for _ in range(3):
        x = injected(model.backbone, x, raw)
        for block in model.backbone.blocks:
            x = block(x, context)
    found, again = model(tokens).logits, model.train()(tokens).logits
    torch.testing.assert_close(found, model.final_norm(x) @ model.head.weight.T, **EXACT)
    assert torch.equal(found, again), "noise is never drawn again"


@pytest.mark.parametrize("inject", ["linear", "ffn"])
@torch.no_grad()
def test_each_further_block_of_a_stack_has_an_injection_of_its_own(inject: Any, build: Any, make_tokens: Any) -> None:
    model, tokens = (
        build(Decoder(hidden_size=16, backbone=Stack(3, inject), positions=(Sinusoidal(),))),
        make_tokens([5, 3]),
    )
    raw, context = embedded(model, tokens)
    x = model.backbone.blocks[0](raw, context)
    for block, injection in zip(model.backbone.blocks[1:], model.backbone.injections, strict=True):
        x = block(injection.proj(torch.cat([x, raw], dim=-1)), context)
    torch.testing.assert_close(model(tokens).logits, model.final_norm(x) @ model.head.weight.T, **EXACT)
    parameters = {id(parameter) for parameter in model.backbone.injections.parameters()}
    assert len(parameters) == (2 if inject == "linear" else 8)


@torch.no_grad()
def test_one_turn_of_a_loop_is_a_stack(build: Any, make_tokens: Any) -> None:
    for inject in ("none", "add"):
        once, stack = (build(Decoder(hidden_size=16, backbone=t)) for t in (Loop(3, 1, inject), Stack(3)))  # type: ignore[arg-type]
        tokens = make_tokens([6, 2])
        assert torch.equal(once(tokens).logits, stack(tokens).logits)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("inject", INJECTIONS)
def test_turns_with_and_without_a_gradient_say_the_same(inject: str, state: str, build: Any, make_tokens: Any) -> None:
    model, tokens = build(looped(times=4, inject=inject, state=state)), make_tokens([6, 3])
    whole = model(tokens).logits
    for turns in (4, (0, 4), (3, 1), (1, 3), Loops(2, 2), Loops(2, 2, average_gradients=True)):
        torch.testing.assert_close(model(tokens, loops=turns).logits, whole, **EXACT)
    assert not torch.allclose(model(tokens, loops=3).logits, whole, **EXACT)
    torch.testing.assert_close(model(tokens, loops=(5, 1)).logits, model(tokens, loops=6).logits, **EXACT)


@pytest.mark.parametrize("position", [Rotary(), FIRE(), FIRE(position_ids=RandomSubset(20), share_across_layers=True)])
@pytest.mark.parametrize("inject", INJECTIONS)
def test_gradients_are_those_of_the_last_turns_alone(inject: str, position: Any, build: Any, make_tokens: Any) -> None:
    model, tokens = build(looped(times=4, inject=inject, positions=(position,))), make_tokens([6, 3])
    tokens = model.assign_positions(tokens, StepContext(seed=0, step=1))
    raw, context = model._embed(tokens)
    start = raw if inject == "none" else torch.zeros_like(raw)
    with torch.no_grad():
        for _ in range(2):
            start = injected(model.backbone, start, raw)
            for block in model.backbone.blocks:
                start = block(start, replace(context, forward_cache={}))
    x = start + 0 * raw  # the embedding has a gradient, be it of nothing
    for _ in range(2):
        x = injected(model.backbone, x, raw)
        for block in model.backbone.blocks:
            x = block(x, replace(context, forward_cache={}))
    # The logarithms of FIRE are float32.
    exact = EXACT if isinstance(position, Rotary) else {"atol": 1e-6, "rtol": 1e-4}
    found = model(tokens, loops=(2, 2)).logits
    assert_same(found, model.head(model.final_norm(x)), list(model.parameters()), **exact)
    assert bool(gradients(found, [model.embedding.weight])[0].any()) == (inject != "none")


def test_turns_without_a_gradient_take_none_away_in_half_precision(build: Any, make_tokens: Any) -> None:
    """Releases of torch that autocast keeps weights in without their gradient lost that of all maps of the loop."""
    model, tokens = build(looped(times=4, positions=(FIRE(),))).float(), make_tokens([6, 3])
    kept, anew = (gradients_in_half(model, tokens, cache_enabled=is_kept) for is_kept in (True, False))
    for own, other in zip(kept, anew, strict=True):
        assert float((own - other).norm()) < 0.1 * float(other.norm())


def gradients_in_half(model: Any, tokens: Tokens, **settings: Any) -> tuple[torch.Tensor, ...]:
    with torch.autocast("cpu", torch.bfloat16, **settings):
        output = model(tokens, loops=(2, 2)).logits.float()
    return gradients(output, list(model.parameters()))


@pytest.mark.parametrize("inject", INJECTIONS)
def test_a_divided_gradient_is_that_of_the_looped_parameters_alone(inject: str, build: Any, make_tokens: Any) -> None:
    model, tokens = build(looped(times=4, inject=inject, state="noise")), make_tokens([6, 3])
    names, parameters = zip(*model.named_parameters(), strict=True)
    for without, learning in ((0, 3), (1, 3), (3, 1), (0, 4)):
        plain = gradients(model(tokens, loops=(without, learning)).logits, parameters)
        divided = gradients(model(tokens, loops=Loops(without, learning, average_gradients=True)).logits, parameters)
        for name, own, other in zip(names, divided, plain, strict=True):
            assert_same(own, other / (learning if name.startswith("backbone.") else 1), **EXACT)


@pytest.mark.parametrize("state", STATES)
@torch.no_grad()
def test_another_number_of_turns_takes_the_same_weights(state: str, build: Any, make_tokens: Any) -> None:
    spec, tokens = looped(times=2, inject="linear", state=state), make_tokens([6, 3])
    trained = build(spec, seed=3)
    longer = build(replace(spec, backbone=replace(spec.backbone, num_loops=5)), seed=3)  # type: ignore[type-var]
    longer.load_state_dict(trained.state_dict(), strict=True)
    assert (trained.default_num_loops(), longer.default_num_loops()) == (2, 5)
    assert torch.equal(longer(tokens).logits, trained(tokens, loops=5).logits)
    assert torch.equal(longer(tokens, loops=2).logits, trained(tokens).logits)


@torch.no_grad()
def test_noise_is_a_function_of_seed_and_place(build: Any, make_tokens: Any) -> None:
    places = torch.arange(400)[None]
    whole = position_noise(3, places, 64)
    assert abs(float(whole.std()) - 0.02) < 3e-4
    assert abs(float(whole.mean())) < 5e-4
    assert float(whole.abs().max()) < 0.02 * 6
    assert whole.unique().numel() == whole.numel()
    torch.manual_seed(99)
    assert torch.equal(position_noise(3, places[:, 250:260], 64), whole[:, 250:260]), "the same at any length"
    assert not torch.equal(position_noise(4, places, 64), whole)
    far = position_noise(3, torch.tensor([[10**6]]), 64)
    assert bool(far.isfinite().all()), "there is no longest row"
    centred = whole[0] - whole[0].mean(0)
    together = (centred.T @ centred) / (centred.std(0)[:, None] * centred.std(0) * 400)
    assert float((together - torch.eye(64)).abs().max()) < 0.3, "entries are not tied to each other"


@pytest.mark.parametrize("mixer", [Attention(num_heads=2), LSTM()])
@pytest.mark.parametrize("inject", INJECTIONS)
@torch.no_grad()
def test_each_turn_of_each_block_has_a_state_of_its_own(mixer: Any, inject: str, build: Any, make_tokens: Any) -> None:
    positions = (Sinusoidal(),)
    model = build(looped(times=3, inject=inject, state="noise", mixer=mixer, positions=positions))
    tokens = make_tokens([6, 6])
    lengths = torch.tensor([2, 4])
    started = model.prefill(replace(tokens, ids=tokens.ids[:, :4], lengths=lengths), capacity=8)
    assert len(started.state.layer_states) == 6
    whole = model(tokens).logits
    for step in range(2):
        started = model.step(tokens.ids[torch.arange(2), lengths + step], None, started.state)
        expected = whole[torch.arange(2), lengths + step]
        torch.testing.assert_close(started.output.logits[:, 0], expected, **EXACT)
        assert len(started.state.layer_states) == 6


@pytest.mark.parametrize("trunk", [Loop(2, 3, "linear"), Loop(1, 2, "ffn"), Loop(2, 2, "none"), Stack(3, "ffn")])
def test_operations_count_every_turn_and_injection(trunk: Any, vocabulary: Any, make_tokens: Any) -> None:
    fed = FeedForward("geglu", expansion=1.5)
    model = Decoder(
        hidden_size=32, backbone=trunk, mixer=LSTM(), feed_forward=fed, head_feed_forward=fed, head_projection=True
    ).build(vocabulary, 0)
    turns = (None, 1) if isinstance(trunk, Stack) else (None, 1, 5, (2, 3))
    recurrences = trunk.num_blocks() * 2 * 8 * 3 * 2 * (4 * 32 * 2 * 32)
    for number in turns:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(make_tokens([8] * 3), loops=number).logits  # noqa: B018
        # Torch does not count inside an LSTM.
        uncounted = Loops.from_argument(number, trunk.default_num_loops()).total * recurrences // 2
        assert model.flops(3, 8, number) == counter.get_total_flops() + uncounted
    assert trunk.default_num_loops() == model.default_num_loops()


def test_of_a_loop_one_turn_is_compiled_and_only_for_training(
    monkeypatch: pytest.MonkeyPatch, build: Any, make_tokens: Any
) -> None:
    """Compiled whole, a model would be another program for every number of turns, of which an objective draws many."""
    turns = []

    def noted(function: Any, **settings: Any) -> Any:
        return lambda *given: turns.append(given[3] is not None) or function(*given)

    model, tokens = build(looped(times=3)), make_tokens([6, 3])
    expected, indices = model(tokens).logits, torch.tensor([[1, 5], [0, 2]])
    monkeypatch.setattr(torch, "compile", noted)
    assert compile_forward(model) is model
    assert torch.equal(model(tokens).logits, expected)
    assert turns == []
    model.train()
    assert torch.equal(model(tokens, loops=(1, 2)).logits, expected)
    assert turns == [False, False, False]
    output = model(tokens, target_positions=indices).logits
    torch.testing.assert_close(output, expected[torch.arange(2)[:, None], indices], **EXACT)
    assert turns[3:] == [False, False, True]


@pytest.mark.parametrize(("turns", "words"), [(0, "0 and 0"), ((-1, 2), "-1 and 2")])
def test_impossible_numbers_of_turns_are_refused(turns: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"^loops: .* not {words}"):
        Loops.from_argument(turns, 4)

"""What is computed at target positions only equals what is computed everywhere."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from numerate.batch import Batch, StepContext
from numerate.config import Span
from numerate.mixers.attention import Attention, SelfAttention
from numerate.mixers.mixer import Context, Mixer, gather_positions
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder, DecoderModel
from numerate.positions.added import Learned
from numerate.positions.position import AttentionBias, Position
from numerate.positions.position_ids import DigitIndex, PositionIds, Sequential, Shifted
from numerate.positions.rotary import Rotary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters


class Distances(Position):
    """A bias in the scores: a different number for every distance and head."""

    def __init__(self, numbering: PositionIds) -> None:
        self.position_ids = numbering

    def build_attention(self, heads: int, head_width: int) -> AttentionBias:
        return DistanceTable(heads)


class DistanceTable(AttentionBias):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(41, heads))

    def compute_bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).clamp(-20, 20) + 20
        return self.table[distance].permute(0, 3, 1, 2)


def additions(rows: int = 7) -> Batch:
    """Sums of 1 to 6 digits: rows of different lengths, and answers of different lengths."""
    task, tokenizer = Arithmetic(digits=Span(1, 6)), Characters()
    written = tokenizer.encode_examples(task.examples("train", 0, 0, rows), tokenizer.build_vocabulary(task))
    return Continuation().build_batch(written, torch.arange(rows).numpy())


def decoder(spec: Decoder) -> DecoderModel:
    return spec.build(Characters().build_vocabulary(Arithmetic()), seed=3).double()


def gradients(model: torch.nn.Module, output: Tensor) -> dict[str, Tensor]:
    weights = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(1))
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad((output * weights).sum(), parameters, allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))


ATTENTIONS: dict[str, tuple[Attention, tuple[Position, ...]]] = {
    "plain": (Attention(num_heads=2), ()),
    "with bias vectors": (Attention(num_heads=2, bias=True), ()),
    "rotary": (Attention(num_heads=2), (Rotary(),)),
    "rotary by digit": (Attention(num_heads=2), (Rotary(position_ids=DigitIndex(max_offset=9)),)),
    "two rotations, one in part": (
        Attention(num_heads=2),
        (Rotary(partial_rotary_factor=0.5), Rotary(position_ids=Shifted(9))),
    ),
    "a bias in the scores": (Attention(num_heads=2), (Distances(Sequential()),)),
    "a bias by digit": (Attention(num_heads=2), (Distances(DigitIndex(max_offset=9)), Rotary())),
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("hiding", [False, True])
def test_attention_at_target_positions_is_the_whole_attention_there(name: str, hiding: bool) -> None:
    spec, positions = ATTENTIONS[name]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part = SelfAttention(spec, 8, positions).double()
        rows, time = 5, 9
        x = torch.randn(rows, time, 8, dtype=torch.float64, requires_grad=True)
        places = tuple(
            torch.randint(0, 12, (1 if isinstance(position.position_ids, Sequential) else rows, time))
            for position in positions
        )
        indices = torch.randint(0, time, (rows, 4))
        # Hidden keys among the target positions too, and a row of which everything is hidden.
        hidden = torch.rand(rows, time) < 0.4 if hiding else None
    if hidden is not None:
        hidden[0] = True
    indices[1] = torch.tensor([0, time - 1, time - 1, time - 1])

    def context() -> Context:
        return Context(torch.full((rows,), time), places, blocked_keys=hidden)

    whole, fast = gather_positions(part(x, context()), indices), part.forward_at(x, context(), indices)
    torch.testing.assert_close(fast, whole, atol=1e-12, rtol=1e-10)
    weights = torch.randn_like(whole)
    inputs = [x, *part.parameters()]
    for own, other in zip(
        torch.autograd.grad((fast * weights).sum(), inputs),
        torch.autograd.grad((whole * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(own, other, atol=1e-11, rtol=1e-9)


def test_places_are_those_that_gathering_finds() -> None:
    x = torch.arange(24.0).view(2, 4, 3)
    indices = torch.tensor([[0, 2, 2], [3, 1, 0]])
    assert gather_positions(x, indices).tolist() == torch.take_along_dim(x, indices[..., None], dim=1).tolist()
    assert gather_positions(x, indices)[1, 0].tolist() == [21.0, 22.0, 23.0]


@pytest.mark.parametrize("mixer", [Attention(num_heads=2), LSTM()])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("feed_forward", [FeedForward(), None])
def test_a_decoder_says_the_same_at_target_positions(
    mixer: Mixer, norm_first: bool, feed_forward: FeedForward | None
) -> None:
    inside: tuple[Position, ...] = (Rotary(),) if mixer.has_attention() else ()
    spec = Decoder(
        hidden_size=16,
        mixer=mixer,
        positions=(Learned(position_ids=DigitIndex(max_offset=5), max_position_embeddings=32), *inside),
        backbone=Stack(num_layers=2, input_injection="add"),
        norm_first=norm_first,
        feed_forward=feed_forward,
    )
    model, batch = decoder(spec), additions()
    tokens = model.assign_positions(batch.tokens, StepContext(0, 4))
    whole, fast = model(tokens), model(tokens, target_positions=batch.target_positions)
    assert fast.target_positions is not None
    assert whole.target_positions is None
    expected = gather_positions(whole.logits, batch.target_positions)
    torch.testing.assert_close(fast.logits, expected, atol=1e-11, rtol=1e-9)
    found, true = gradients(model, fast.logits), gradients(model, expected)
    for name, gradient in true.items():
        assert torch.allclose(found[name], gradient, atol=1e-9, rtol=1e-7), name


def test_one_block_is_enough_to_ask_of() -> None:
    model, batch = (
        decoder(Decoder(hidden_size=16, backbone=Stack(num_layers=1), mixer=Attention(num_heads=2))),
        additions(),
    )
    tokens = model.assign_positions(batch.tokens, StepContext.for_evaluation())
    torch.testing.assert_close(
        model(tokens, target_positions=batch.target_positions).logits,
        gather_positions(model(tokens).logits, batch.target_positions),
        atol=1e-11,
        rtol=1e-9,
    )


def test_padding_changes_nothing_at_target_positions() -> None:
    model, batch = decoder(Decoder(hidden_size=16, mixer=Attention(num_heads=2), positions=(Rotary(),))), additions()
    longer = replace(batch.tokens, ids=torch.nn.functional.pad(batch.tokens.ids, (0, 5)))
    torch.testing.assert_close(
        model(longer, target_positions=batch.target_positions).logits,
        model(batch.tokens, target_positions=batch.target_positions).logits,
        atol=1e-11,
        rtol=1e-9,
    )


def test_dropout_in_attention_is_drawn_at_target_positions_too() -> None:
    part = SelfAttention(Attention(num_heads=2, dropout=0.5), 8, ()).double()
    x, indices = torch.randn(3, 6, 8, dtype=torch.float64), torch.tensor([[4, 5]] * 3)
    context = Context(torch.full((3,), 6), ())
    assert not torch.equal(part.forward_at(x, context, indices), part.eval().forward_at(x, context, indices))

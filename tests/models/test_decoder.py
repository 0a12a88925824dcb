"""The decoder by hand: what its settings do, and what it refuses."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import gelu, layer_norm
from torch.utils.flop_counter import FlopCounterMode

from numerate.batch import StepContext, Tokens
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned, Sinusoidal
from numerate.positions.position_ids import DigitIndex, NumberIndex, Shifted
from numerate.positions.rotary import Rotary
from numerate.vocabulary import Vocabulary


def test_a_layer_written_out(build: Any, make_tokens: Any) -> None:
    """Pre-norm, one LSTM layer, GELU: embedding, x + mixer(norm(x)), x + feed-forward(norm(x)), norm, head."""
    model = build(Decoder(hidden_size=8, backbone=Stack(num_layers=1), mixer=LSTM(), positions=(Sinusoidal(),)))
    tokens = make_tokens([6, 6])
    block = model.backbone.blocks[0]
    x = model.input_positions["0"](model.embedding(tokens.ids), torch.arange(6)[None])

    def normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
        return layer_norm(x, (8,), norm.weight, norm.bias)

    x = x + block.mixer.out_proj(block.mixer.rnn(normed(x, block.mixer_norm))[0])
    x = x + block.feed_forward.out_proj(gelu(block.feed_forward.in_proj(normed(x, block.feed_forward_norm))))
    expected = normed(x, model.final_norm) @ model.head.weight.T
    torch.testing.assert_close(model(tokens).logits, expected, atol=1e-12, rtol=1e-12)


def test_no_positions_no_order(build: Any, make_tokens: Any) -> None:
    """One layer of attention without positions sees a bag of tokens: earlier ones may change places."""
    tokens = make_tokens([6])
    turned = Tokens(tokens.ids[:, [3, 1, 0, 4, 2, 5]], tokens.lengths, tokens.example_indices)
    assert not torch.equal(tokens.ids, turned.ids)
    without = build(Decoder(hidden_size=16, backbone=Stack(num_layers=1)))
    torch.testing.assert_close(without(tokens).logits[:, -1], without(turned).logits[:, -1], atol=1e-10, rtol=0)
    for position in (Rotary(), Learned(), Sinusoidal()):
        placed = build(Decoder(hidden_size=16, backbone=Stack(num_layers=1), positions=(position,)))
        assert not torch.allclose(placed(tokens).logits[:, -1], placed(turned).logits[:, -1], atol=1e-6)


def test_a_tied_head_is_the_embedding(build: Any, make_tokens: Any, vocabulary: Any) -> None:
    tied, free = build(Decoder(hidden_size=16, tie_word_embeddings=True)), build(Decoder(hidden_size=16))
    assert tied.head.weight is tied.embedding.weight
    assert free.head.weight is not free.embedding.weight
    count = {model: sum(p.numel() for p in model.parameters()) for model in (tied, free)}
    assert count[free] - count[tied] == vocabulary.size * 16
    assert "head.weight" not in tied.optimizer_options_by_parameter()
    before = tied(make_tokens([3])).logits
    with torch.no_grad():
        tied.embedding.weight[7, 0] += 1.0
    assert not torch.allclose(tied(make_tokens([3])).logits[..., 7], before[..., 7])


def test_dropout_is_of_training_alone(build: Any, make_tokens: Any) -> None:
    spec = Decoder(hidden_size=16, dropout=0.5, positions=(Rotary(),))
    model, calm = build(spec), build(Decoder(hidden_size=16, positions=(Rotary(),)))
    tokens = make_tokens([6])
    assert torch.equal(model(tokens).logits, calm(tokens).logits)
    model.train()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        assert not torch.allclose(model(tokens).logits, calm(tokens).logits)


def test_the_embedding_norm_norms_the_embedded_input(build: Any, make_tokens: Any) -> None:
    model = build(Decoder(hidden_size=16, embedding_norm=True, positions=(Sinusoidal(),)))
    seen = []
    model.backbone.blocks[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(make_tokens([6]))
    torch.testing.assert_close(seen[0].mean(-1), torch.zeros(1, 6).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(seen[0].var(-1, unbiased=False), torch.ones(1, 6).double(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_requested_norms_are_there_and_no_others(norm: Any, norm_first: bool, vocabulary: Any) -> None:
    model = Decoder(hidden_size=16, norm=norm, norm_first=norm_first, backbone=Stack(num_layers=3)).build(vocabulary, 0)
    kinds = {"layer": torch.nn.LayerNorm, "rms": torch.nn.RMSNorm}
    found = [module for module in model.modules() if isinstance(module, tuple(kinds.values()))]
    assert len(found) == (0 if norm == "none" else 3 * 2 + norm_first)
    assert all(isinstance(module, kinds[norm]) for module in found)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_final_norm_is_there_if_requested_whatever_the_blocks_have(norm_first: bool, vocabulary: Any) -> None:
    for wanted, there in ((None, norm_first), (True, True), (False, False)):
        spec = Decoder(hidden_size=16, norm_first=norm_first, final_norm=wanted, norm_eps=1e-3, embedding_norm=True)
        model = spec.build(vocabulary, 0)
        assert isinstance(model.final_norm, torch.nn.LayerNorm) == there
        assert {part.eps for part in model.modules() if isinstance(part, torch.nn.LayerNorm)} == {1e-3}


@torch.no_grad()
def test_between_trunk_and_head_stand_feed_forward_norm_and_adapter(build: Any, make_tokens: Any) -> None:
    fed = FeedForward("geglu", expansion=1.0, bias=False)
    spec = Decoder(hidden_size=16, norm_first=False, head_feed_forward=fed, final_norm=True, head_projection=True)
    model, tokens = build(spec), make_tokens([6, 3])
    seen = []
    model.backbone.register_forward_hook(lambda module, given, output: seen.append(output))
    output = model(tokens).logits
    gate, value = (seen[0] @ model.head_feed_forward.in_proj.weight.T).chunk(2, dim=-1)
    x = (gelu(gate) * value) @ model.head_feed_forward.out_proj.weight.T
    x = layer_norm(x, (16,), model.final_norm.weight, model.final_norm.bias)
    torch.testing.assert_close(output, x @ model.head_projection.weight.T @ model.head.weight.T, atol=1e-12, rtol=1e-10)


def test_equal_position_ids_are_assigned_once(build: Any, make_tokens: Any) -> None:
    ids = (DigitIndex(max_offset=3), Shifted(9), DigitIndex(max_offset=3))
    model = build(Decoder(hidden_size=16, positions=tuple(Rotary(position_ids=one) for one in ids)))
    tokens, step_context = make_tokens([8, 5]), StepContext(0, 4)
    first, _, third = model.assign_positions(tokens, step_context).position_ids
    assert third is first
    assert torch.equal(first, ids[2].assign(tokens, model.token_kinds[tokens.ids], step_context))


def test_there_are_as_many_position_offsets_as_the_numbering_with_most(build: Any, make_tokens: Any) -> None:
    positions = (
        Learned(position_ids=Shifted(max_shift=8, num_eval_offsets=3)),
        Rotary(position_ids=Shifted(8, 2)),
        Sinusoidal(),
    )
    model = build(Decoder(hidden_size=16, positions=positions))
    assert model.num_position_offsets() == 3
    first = [
        [int(p[0, 0]) for p in model.assign_positions(make_tokens([4]), StepContext.for_evaluation(i)).position_ids]
        for i in range(3)
    ]
    assert first == [[0, 0, 0], [4, 8, 0], [8, 0, 0]], "fewer position offsets start again"


def test_operations_are_those_that_torch_counts(vocabulary: Any, make_tokens: Any) -> None:
    """Torch counts attention over all pairs of places; half of them, and the diagonal, are computed."""
    model = Decoder(hidden_size=32, positions=(Rotary(),), feed_forward=FeedForward("geglu")).build(vocabulary, 0)
    time, rows, depth = 24, 3, 2
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(make_tokens([time] * rows)).logits  # noqa: B018
    pairs = rows * depth * 2 * 2 * 32 * (time * time - time * (time + 1) // 2)
    assert model.flops(rows, time) == counter.get_total_flops() - pairs


def test_what_cannot_be_built_is_refused(vocabulary: Any, make_tokens: Any) -> None:
    with pytest.raises(UserError, match=r"^positions\.1: Rotary acts inside attention"):
        Decoder(mixer=LSTM(), positions=(Learned(), Rotary()))
    with pytest.raises(UserError, match=r"num_heads: must divide hidden_size=18, not 4"):
        Decoder(hidden_size=18, mixer=Attention(num_heads=4)).build(vocabulary, 0)
    with pytest.raises(UserError, match=r"must be even .*not 9"):
        Decoder(hidden_size=9, mixer=Attention(num_heads=3), positions=(Sinusoidal(),)).build(vocabulary, 0)
    model = Decoder(hidden_size=8).build(vocabulary, 0)
    with pytest.raises(UserError, match="a Decoder has no encoder"):
        model(make_tokens([3]), make_tokens([3]))
    with pytest.raises(UserError, match="a Decoder has no encoder"):
        model.prefill(make_tokens([3]), make_tokens([3]), capacity=4)
    with pytest.raises(UserError, match="loops: must be 1 for a Stack, not 2"):
        model(make_tokens([3]), loops=2)
    assert torch.equal(model(make_tokens([3]), loops=1).logits, model(make_tokens([3])).logits)


def test_without_a_residual_stream_a_block_replaces_what_it_reads() -> None:
    spec = Decoder(
        hidden_size=8, backbone=Stack(num_layers=1), mixer=LSTM(), feed_forward=None, norm="none", residual=False
    )
    model, tokens = spec.build(Vocabulary.with_digits(["+"]), 0), torch.tensor([[4, 5, 6]])
    mixer = model.backbone.blocks[0].mixer  # type: ignore[union-attr, index]
    mixed, _ = mixer.rnn(model.embedding(tokens))  # type: ignore[union-attr, operator]
    output = model(Tokens(tokens, torch.tensor([3]), torch.tensor([0])))
    torch.testing.assert_close(output.logits, model.head(mixer.out_proj(mixed)))  # type: ignore[union-attr, operator]


def test_the_root_scale_multiplies_the_tokens_before_positions_are_added() -> None:
    vocabulary, ids = Vocabulary.with_digits(["+"]), torch.tensor([[4, 5, 6]])
    tokens = Tokens(ids, torch.tensor([3]), torch.tensor([0]))
    added = []
    for scale, factor in ((1.0, 1), ("sqrt", 4)):
        model = Decoder(hidden_size=16, positions=(Sinusoidal(),), embedding_scale=scale).build(vocabulary, 0)
        added.append(
            model._embed(model.assign_positions(tokens, StepContext.for_evaluation()))[0]
            - model.embedding(ids) * factor
        )
    torch.testing.assert_close(added[1], added[0])


def test_a_large_head_read_by_columns_gives_the_logits_of_whole_rows() -> None:
    vocabulary = Vocabulary.with_digits([f"w{number}" for number in range(2**17)])
    model = Decoder(hidden_size=32, backbone=Stack(num_layers=1), head_bias=True).build(vocabulary, 0).eval()
    tokens = Tokens(torch.tensor([[20, 21, 22]]), torch.tensor([2]), torch.tensor([0]))
    with torch.no_grad():
        started = model.prefill(tokens, capacity=40)
        after = model.step(tokens.ids[:, 2], None, started.state)
        whole = model(Tokens(tokens.ids, torch.tensor([3]), tokens.example_indices)).logits
        assert started.state.head is not None
        assert after.state.head is started.state.head
        torch.testing.assert_close(after.output.logits[:, 0], whole[:, 2], atol=1e-6, rtol=1e-6)
        assert model.prefill(tokens, capacity=10).state.head is None, "copying takes longer than reading few times"
        with torch.autocast("cpu", torch.bfloat16):
            assert model.prefill(tokens, capacity=40).state.head is None
    assert model.prefill(tokens, capacity=40).state.head is None, "its gradient would be lost"


def test_a_generated_token_that_leads_beyond_a_table_ends_no_decoding(build: Any, vocabulary: Any) -> None:
    """Of a model that counts numbers, and generates operators without end; the other row stays as it is."""
    position = Learned(position_ids=NumberIndex(), max_position_embeddings=3)
    model = build(Decoder(hidden_size=16, positions=(position,)))
    digit, plus = (vocabulary.tokens.index(text) for text in ("1", "+"))
    prompts = Tokens(torch.tensor([[digit, plus], [digit, digit]]), torch.tensor([2, 2]), torch.arange(2))
    alone = Tokens(prompts.ids[1:], prompts.lengths[1:], prompts.example_indices[1:])
    both, one = model.prefill(prompts, capacity=9), model.prefill(alone, capacity=9)
    for _ in range(5):
        both = model.step(torch.tensor([plus, digit]), None, both.state)
        one = model.step(torch.tensor([digit]), None, one.state)
    torch.testing.assert_close(both.output.logits[1], one.output.logits[0])

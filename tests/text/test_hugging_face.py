"""Promises of models that are held, or read in another way than a Decoder: rows, padding, caches, numbers, weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from numerate.batch import StepContext, Tokens
from numerate.errors import UserError
from numerate.evaluation.generate import greedy_decode
from numerate.text.models.number_inputs import FoNEEmbedding, NumberHead, RegressionTransformerEmbedding, XValScaling
from numerate.text.models.numformer import Numformer
from numerate.text.models.pretrained import PretrainedDecoder
from numerate.text.models.pretrained_seq2seq import PretrainedSeq2Seq
from numerate.text.models.t5 import T5
from numerate.vocabulary import PAD, Vocabulary
from oracle import read_again

pytest.importorskip("transformers", reason="the extra huggingface is not installed")

EXACT = {"atol": 1e-9, "rtol": 1e-9}
WORDS = ("a", "b", "c", "[NUM]", *(f"_{digit}_{order}_" for digit in (0, 5, 9) for order in (-1, 0, 2)))
VOCABULARY = Vocabulary.with_digits(WORDS)
NUM = VOCABULARY.token_to_id["[NUM]"]
LLAMA = (
    '{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, '
    '"num_key_value_heads": 2, "intermediate_size": 32}'
)
GPT2 = '{"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}'
BART = (
    '{"model_type": "bart", "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 256, '
    '"decoder_ffn_dim": 256, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}'
)
SMALL_T5 = T5(hidden_size=16, num_layers=2, num_heads=2, head_dim=8, intermediate_size=32)
XVAL: dict[str, Any] = {"number_embedding": XValScaling(), "number_head": NumberHead(scale="ln")}

T5S = [
    SMALL_T5,
    replace(SMALL_T5, num_decoder_layers=1, feed_forward="geglu", max_position_embeddings=30),
    replace(SMALL_T5, number_embedding=RegressionTransformerEmbedding()),
    replace(SMALL_T5, **XVAL, max_position_embeddings=30),
    replace(SMALL_T5, number_embedding=FoNEEmbedding(), number_head=NumberHead(num_layers=2, read_at="start")),
]
DECODERS = [
    PretrainedDecoder(config=LLAMA),
    PretrainedDecoder(config=GPT2),
    PretrainedDecoder(config=GPT2, number_embedding=RegressionTransformerEmbedding(scale="linear")),
    PretrainedDecoder(config=LLAMA, **XVAL),
    PretrainedDecoder(config=LLAMA, number_embedding=FoNEEmbedding(), number_head=NumberHead(read_at="start")),
]
NUMFORMER = Numformer(hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_position_embeddings=32)
NUMFORMERS = [
    NUMFORMER,
    replace(NUMFORMER, num_layers=1, num_heads=4, intermediate_size=8, number_embedding=None, number_head=None),
]


def name(spec: Any) -> str:
    more = [type(part).__name__ for part in (spec.number_embedding, spec.number_head) if part is not None]
    kind = {LLAMA: "llama", GPT2: "gpt2"}.get(getattr(spec, "config", ""), "")
    return "-".join([type(spec).__name__, *filter(None, [kind]), *more])


every = pytest.mark.parametrize("spec", T5S + DECODERS + NUMFORMERS, ids=name)
every_decoding = pytest.mark.parametrize("spec", T5S + DECODERS, ids=name)


@pytest.fixture(scope="module")
def built() -> Callable[[Any], Any]:
    def make(spec: Any) -> Any:
        model = spec.build(VOCABULARY, 0).double().eval()
        draws = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in model.parameters():
                if not parameter.any():  # zeros would hide errors
                    parameter.normal_(0, 0.3, generator=draws)
        return model

    return make


def made(lengths: list[int], seed: int = 0, width: int | None = None) -> Tokens:
    """Rows of any tokens, some of which are [NUM] with a value of its own."""
    draws = torch.Generator().manual_seed(seed)
    time, sizes = width or max(lengths), torch.tensor(lengths)
    ids = torch.randint(4, VOCABULARY.size, (len(lengths), time), generator=draws)
    ids[torch.rand(ids.shape, generator=draws) < 0.3] = NUM
    ids[torch.arange(time) >= sizes[:, None]] = PAD
    values = torch.where(ids == NUM, 50 * torch.randn(ids.shape, generator=draws), 1.0)
    return Tokens(ids, sizes, torch.arange(len(lengths)), values)


def row_of(tokens: Tokens, row: int) -> Tokens:
    length, one = int(tokens.lengths[row]), slice(row, row + 1)
    assert tokens.number_values is not None
    return Tokens(
        tokens.ids[one, :length], tokens.lengths[one], tokens.example_indices[one], tokens.number_values[one, :length]
    )


def source_for(spec: Any, rows: int = 4) -> Tokens | None:
    return made([6, 2, 5, 1][:rows], seed=5) if isinstance(spec, T5 | PretrainedSeq2Seq) else None


def prompts(tokens: Tokens, lengths: list[int]) -> Tokens:
    sizes, longest = torch.tensor(lengths), max(lengths)
    real = torch.arange(longest) < sizes[:, None]
    assert tokens.number_values is not None
    ids = torch.where(real, tokens.ids[:, :longest], PAD)
    return replace(
        tokens, ids=ids, lengths=sizes, number_values=torch.where(real, tokens.number_values[:, :longest], 1.0)
    )


@torch.no_grad()
@every
def test_a_row_is_what_it_is_alone_and_without_padding(spec: Any, built: Any) -> None:
    model, tokens, source = built(spec), made([8, 3, 6, 1]), source_for(spec)
    wide = made([8, 3, 6, 1], width=8)
    wide = replace(
        wide,
        ids=torch.nn.functional.pad(tokens.ids, (0, 4)),
        number_values=torch.nn.functional.pad(tokens.number_values, (0, 4), value=1.0),
    )
    whole, padded = model(tokens, source), model(wide, source)
    for row, length in enumerate([8, 3, 6, 1]):
        alone = model(row_of(tokens, row), None if source is None else row_of(source, row))
        torch.testing.assert_close(whole.logits[row, :length], alone.logits[0], **EXACT)
        torch.testing.assert_close(padded.logits[row, :length], alone.logits[0], **EXACT)
        if whole.scaled_numbers is not None:
            assert whole.scaled_numbers.shape == (4, 8)
            torch.testing.assert_close(whole.scaled_numbers[row, :length], alone.scaled_numbers[0], **EXACT)


@torch.no_grad()
@every
def test_target_positions_are_those_of_the_whole(spec: Any, built: Any) -> None:
    model, tokens, source = built(spec), made([8, 5]), source_for(spec, 2)
    indices = torch.tensor([[0, 3, 7], [2, 4, 4]])
    output, whole, rows = (
        model(tokens, source, target_positions=indices),
        model(tokens, source),
        torch.arange(2)[:, None],
    )
    torch.testing.assert_close(output.logits, whole.logits[rows, indices], **EXACT)
    torch.testing.assert_close(output.lm_head(output.hidden_states), output.logits, **EXACT)
    assert isinstance(output.lm_head, torch.nn.Linear), "a loss may be fused with it"
    if whole.scaled_numbers is not None:
        torch.testing.assert_close(output.scaled_numbers, whole.scaled_numbers[rows, indices], **EXACT)


@torch.no_grad()
@every_decoding
@pytest.mark.parametrize("lengths", [[1, 5, 3], [4, 4, 4]])
def test_reading_at_once_is_reading_token_by_token(spec: Any, built: Any, lengths: list[int]) -> None:
    model, tokens, source = built(spec), made([9, 9, 9]), source_for(spec, 3)
    sizes, rows = torch.tensor(lengths), torch.arange(3)
    whole = model(tokens, source)
    started = model.prefill(prompts(tokens, lengths), source, capacity=9)
    for step in range(5):
        place = sizes + step - 1
        torch.testing.assert_close(started.output.logits[:, 0], whole.logits[rows, place], **EXACT)
        if whole.number_predictions is not None and spec.number_head.read_at == "place":
            torch.testing.assert_close(
                started.output.number_predictions[:, 0], whole.number_predictions[rows, place], **EXACT
            )
        if step < 4:
            assert tokens.number_values is not None
            state = model.reorder_rows(started.state, rows)
            started = model.step(tokens.ids[rows, place + 1], tokens.number_values[rows, place + 1], state)


@torch.no_grad()
@every_decoding
def test_greedy_decoding_reads_its_own_numbers_back(spec: Any, built: Any) -> None:
    model = built(spec)
    draws = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.normal_(0, 0.4, generator=draws)
    lengths = [1, 1, 1] if isinstance(spec, T5) else [2, 5, 3]
    prompt, source = prompts(made([9, 9, 9]), lengths), source_for(spec, 3)
    assert prompt.number_values is not None
    prompt = replace(prompt, number_values=prompt.number_values.double())
    cached = greedy_decode(model, prompt, 6, source=source, end_id=-1)
    ids, _, numbers = read_again(model, prompt, 6, source, end_id=-1)
    if model.regression_token_id is None:
        assert cached.ids.tolist() == ids
    assert (cached.number_values is None) == (spec.number_head is None)
    if spec.number_head is not None and spec.number_head.read_at == "place":
        torch.testing.assert_close(cached.number_values, torch.stack(numbers, dim=1), **EXACT)
        assert float(cached.number_values.std()) > 0


@torch.no_grad()
@every_decoding
def test_never_looks_ahead(spec: Any, built: Any) -> None:
    model, tokens, source = built(spec), made([8, 8]), source_for(spec, 2)
    assert model.non_causal_reason() is None
    whole = model(tokens, source).logits
    for place in (1, 4, 7):
        ids = torch.where(torch.arange(8) >= place, 4 + (tokens.ids - 3) % 6, tokens.ids)
        after = model(replace(tokens, ids=ids), source).logits
        torch.testing.assert_close(after[:, :place], whole[:, :place], **EXACT)
        assert not torch.allclose(after[:, place:], whole[:, place:], **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("spec", NUMFORMERS, ids=name)
def test_a_numformer_sees_all_of_a_row_and_says_so(spec: Any, built: Any) -> None:
    model, tokens = built(spec), made([8, 8])
    ids = tokens.ids.clone()
    ids[:, 7] = 4 + (ids[:, 7] - 3) % 6
    changed = model(replace(tokens, ids=ids)).logits
    assert not torch.allclose(changed[:, 0], model(tokens).logits[:, 0], **EXACT)
    assert "both directions" in model.non_causal_reason()
    for decode in (lambda: model.prefill(tokens, capacity=9), lambda: model.step(tokens.ids[:, 0], None, None)):
        with pytest.raises(UserError, match="cannot be decoded"):
            decode()


@every
def test_every_parameter_gets_a_finite_gradient_and_has_its_setting(spec: Any) -> None:
    model, tokens, source = spec.build(VOCABULARY, 0), made([8, 8, 8, 8]), source_for(spec)
    output = model.train()(model.assign_positions(tokens, StepContext(seed=0, step=0)), source)
    loss = cross_entropy(output.logits.flatten(0, 1), tokens.ids.flatten())
    (loss if output.scaled_numbers is None else loss + output.scaled_numbers.square().mean()).backward()
    settings = model.optimizer_options_by_parameter()
    named = dict(model.named_parameters())
    assert settings.keys() == named.keys()
    for one, parameter in named.items():
        assert parameter.grad is not None, one
        assert parameter.grad.isfinite().all(), one
        assert float(parameter.grad.abs().sum()) > 0, one
        assert settings[one] == (1.0, parameter.dim() >= 2), one


@every
def test_weights_are_a_function_of_the_seed(spec: Any) -> None:
    state = torch.random.get_rng_state()
    first = spec.build(VOCABULARY, 3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was moved"
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(77)
        again = spec.build(VOCABULARY, 3).state_dict()
    other = spec.build(VOCABULARY, 4).state_dict()
    assert all(torch.equal(first[one], again[one]) for one in first)
    matrices = {one for one in first if first[one].dim() > 1 and first[one].any()}
    assert matrices
    assert all(not torch.equal(first[one], other[one]) for one in matrices)


@every
def test_layers_that_are_computed_again_have_the_same_gradient(spec: Any) -> None:
    tokens, source, gradients = made([8, 8, 8, 8]), source_for(spec), []
    for checkpointing in (False, True):
        model = replace(spec, gradient_checkpointing=checkpointing).build(VOCABULARY, 0).double().train()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(1)  # dropout is drawn again alike
            cross_entropy(model(tokens, source).logits.flatten(0, 1), tokens.ids.flatten()).backward()
        gradients.append({one: p.grad for one, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for one, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][one], gradient, **EXACT)


def test_what_is_counted_are_the_operations_of_pytorch(built: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    wide = LLAMA.replace('"hidden_size": 16', '"hidden_size": 128')
    for spec in (
        replace(SMALL_T5, hidden_size=128, intermediate_size=256, head_dim=16),
        PretrainedSeq2Seq(config=BART),
        PretrainedDecoder(config=wide),
        PretrainedDecoder(config=GPT2.replace('"n_embd": 16', '"n_embd": 128')),
        replace(NUMFORMERS[1], hidden_size=128, intermediate_size=256),
    ):
        model, tokens, source = built(spec), made([12, 12]), source_for(spec, 2)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            _ = model(tokens, source).logits
        counted = model.flops(2, 12) + (0 if source is None else model.source_flops(2, 12, 6))
        assert counted == pytest.approx(counter.get_total_flops(), rel=0.05), name(spec)
        assert 3 * model.flops(1, 10) == model.flops(3, 10)
        assert source is not None or model.source_flops(2, 10, 20) == 0


@every
def test_hidden_tokens_and_other_layouts_are_refused(spec: Any, built: Any) -> None:
    model, tokens = built(spec), made([4, 4])
    if isinstance(spec, T5):
        with pytest.raises(UserError, match="layout=Seq2Seq"):
            model(tokens)
    else:
        with pytest.raises(UserError, match="layout Seq2Seq"):
            model(tokens, tokens)
    if not isinstance(spec, Numformer):
        with pytest.raises(UserError, match=r"^layout\.blocked_tokens"):
            model(replace(tokens, blocked_keys=tokens.ids == NUM), source_for(spec, 2))


def test_rows_beyond_a_table_are_refused_before_any_work_and_in_a_forward(built: Any) -> None:
    short, long = made([9, 4]), made([40, 3])
    for spec in (NUMFORMERS[0], T5S[1]):
        with pytest.raises(UserError, match=r"^model\.max_position_embeddings: 40 tokens are more than the 3[02] posi"):
            built(spec)(long, source_for(spec, 2))
    for spec in (DECODERS[1], NUMFORMERS[0], T5S[1]):
        assert built(spec).check_tokens(short, short) == []
        with pytest.raises(UserError, match=r"40 tokens are more than the 3[02] position embeddings"):
            built(spec).check_tokens(long)
    assert built(DECODERS[0]).check_tokens(long) == []
    assert (
        "position 4 and later ones do not occur in training" in built(NUMFORMERS[0]).check_tokens(short, made([4]))[0]
    )

"""Promises of T5: Hugging Face's own logits in any order of the vocabulary, the published sizes, what is refused."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from numerate.batch import Tokens
from numerate.errors import UserError
from numerate.evaluation.beams import beam_search
from numerate.evaluation.generate import greedy_decode
from numerate.text.models.hugging_face import enable_gradient_checkpointing
from numerate.text.models.number_inputs import NumberHead
from numerate.text.models.t5 import SIZES, T5
from numerate.vocabulary import EOS, PAD, Vocabulary

transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")

TINY = T5(hidden_size=16, num_layers=2, num_heads=2, head_dim=8, intermediate_size=32)
ROWS = 40


@pytest.fixture(scope="module", params=["tied", "untied"])
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 that somebody has trained, with 40 rows of a vocabulary."""
    sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_kv": 8, "d_ff": 32}
    config = transformers.T5Config(vocab_size=ROWS, **sizes, tie_word_embeddings=request.param == "tied")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(5)
        held = transformers.T5ForConditionalGeneration(config)
    place = tmp_path_factory.mktemp("t5")
    held.save_pretrained(place)
    return place


def over(foreign: list[int]) -> Vocabulary:
    """A vocabulary over their ids: pad 0, unk 2 and eos 1 are special tokens of numerate, which has its own [BOS]."""
    plain = Vocabulary.from_words([f"t{i}" for i in range(len(foreign))])
    return replace(plain, pretrained_ids=np.array([0, 2, -1, 1, *foreign]))


def theirs(folder: Path, vocabulary: Vocabulary, source: Tokens, tokens: Tokens) -> torch.Tensor:
    """Their logits of texts that have no new token."""
    held = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).double().eval()
    assert vocabulary.pretrained_ids is not None
    foreign = torch.from_numpy(vocabulary.pretrained_ids)
    seen = (torch.arange(source.ids.shape[1]) < source.lengths[:, None]).long()
    found: torch.Tensor = held(
        input_ids=foreign[source.ids], attention_mask=seen, decoder_input_ids=foreign[tokens.ids]
    ).logits
    return found


def texts(vocabulary: Vocabulary, lengths: list[int], seed: int) -> Tokens:
    """Rows of tokens that their vocabulary has."""
    assert vocabulary.pretrained_ids is not None
    known = torch.from_numpy(np.flatnonzero(vocabulary.pretrained_ids > 2))
    draws = torch.Generator().manual_seed(seed)
    ids = known[torch.randint(len(known), (len(lengths), max(lengths)), generator=draws)]
    sizes = torch.tensor(lengths)
    ids[torch.arange(max(lengths)) >= sizes[:, None]] = PAD
    return Tokens(ids, sizes, torch.arange(len(lengths)))


@torch.no_grad()
@pytest.mark.parametrize(
    "foreign",
    [list(range(3, ROWS)), [31, 7, 3, 39, 20], [31, -1, 7, 3, -1, -1, 20, 5]],
    ids=["permuted", "cut", "cut and grown"],
)
def test_pretrained_logits_are_theirs_up_to_the_order_of_the_vocabulary(folder: Path, foreign: list[int]) -> None:
    vocabulary = over(foreign)
    model = T5(weights=str(folder)).build(vocabulary, 0).double().eval()
    source, tokens = texts(vocabulary, [6, 2, 4], 0), texts(vocabulary, [5, 5, 5], 1)
    expected, found = theirs(folder, vocabulary, source, tokens), model(tokens, source).logits
    ids = vocabulary.pretrained_ids
    assert ids is not None
    known = ids >= 0
    torch.testing.assert_close(found[..., known], expected[..., ids[known]], rtol=2e-6, atol=2e-6)
    assert found.shape[-1] == vocabulary.size == model.hf_model.config.vocab_size
    assert model.hf_model.lm_head.out_features == vocabulary.size


class Operations(TorchDispatchMode):
    """The names of the operations that torch carries out, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "spec", [replace(TINY, dropout=0.2), replace(TINY, feed_forward="geglu", num_decoder_layers=3)]
)
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_a_step_is_theirs_with_its_dropout_in_fewer_operations_and_reads_nothing_from_the_device(
    spec: T5, gradient_checkpointing: bool, vocabulary: Vocabulary
) -> None:
    model = replace(spec, gradient_checkpointing=gradient_checkpointing).build(vocabulary, 0).double().train()
    theirs = type(model.hf_model)(model.hf_model.config).double().train()
    theirs.load_state_dict(model.hf_model.state_dict())
    if gradient_checkpointing:
        enable_gradient_checkpointing(theirs)
    source = Tokens(torch.randint(4, 19, (4, 20)), torch.tensor([20, 3, 7, 1]), torch.arange(4))
    tokens = Tokens(torch.randint(4, 19, (4, 6)), torch.tensor([6, 3, 1, 2]), torch.arange(4))

    def transformers_forward() -> torch.Tensor:
        mask = (torch.arange(20) < source.lengths[:, None]).long()
        encoded = theirs.encoder(inputs_embeds=theirs.shared(source.ids), attention_mask=mask).last_hidden_state
        hidden: torch.Tensor = theirs.decoder(
            inputs_embeds=theirs.shared(tokens.ids),
            encoder_hidden_states=encoded,
            encoder_attention_mask=mask,
            use_cache=False,
        ).last_hidden_state
        return hidden * model.head_scale

    found, names = [], []
    for module, forward in ((theirs, transformers_forward), (model, lambda: model(tokens, source).hidden_states)):
        torch.manual_seed(1)
        with Operations() as operations:
            hidden = forward()
            hidden.pow(3).sum().backward()
        found.append((hidden.detach(), {name: parameter.grad for name, parameter in module.named_parameters()}))
        names.append(operations.names)
    (expected, gradients), (hidden, own_gradients) = found
    torch.testing.assert_close(hidden, expected, rtol=2e-6, atol=2e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(own_gradients[f"hf_model.{name}"], gradient, rtol=2e-6, atol=2e-6)
    assert len(names[1]) < 0.9 * len(names[0])
    assert [name for name in names[1] if name in ("aten::_local_scalar_dense", "aten::nonzero")] == []


@torch.no_grad()
def test_new_rows_lie_around_the_mean_of_theirs_and_are_a_function_of_the_seed(folder: Path) -> None:
    vocabulary = over([5, *[-1] * 30])
    first, again, other = (T5(weights=str(folder)).build(vocabulary, seed).hf_model.shared.weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first[4], other[4])
    new = first[5:]
    assert not torch.equal(new, other[5:])
    old = transformers.T5ForConditionalGeneration.from_pretrained(folder).shared.weight
    far = (new - old.mean(0)) / old.std(0, correction=0)
    assert float(far.std()) == pytest.approx(0.1, rel=0.2)
    assert len(torch.unique(new, dim=0)) == len(new), "no two new tokens are alike"


def test_weights_that_cannot_be_taken_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^tokenizer: has id 40, the weights have 40 rows"):
        T5(weights=str(folder)).build(over([ROWS]), 0)
    with pytest.raises(UserError, match=r"^hidden_size: cannot be set together with weights, which determine it"):
        T5(weights=str(folder), hidden_size=16)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"T5 needs transformers: pip install 'numerate\[huggingface\]'"):
        TINY.build(Vocabulary.with_digits(["+"]), 0)


@pytest.mark.parametrize(
    ("size", "millions"), [("small", 60.5), ("base", 222.9), ("large", 737.7), ("3b", 2851.6), ("11b", 11307.3)]
)
def test_the_sizes_are_the_published_ones(size: Any, millions: float) -> None:
    made = SIZES[size]
    config = transformers.T5Config(
        d_model=made.hidden_size,
        num_layers=made.num_layers,
        num_heads=made.num_heads,
        d_kv=made.head_dim,
        d_ff=made.intermediate_size,
    )
    with torch.device("meta"):
        held = transformers.T5ForConditionalGeneration(config)
    assert sum(parameter.numel() for parameter in held.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)


@torch.no_grad()
def test_a_regression_head_says_one_number_per_question_that_no_answer_changes(vocabulary: Vocabulary) -> None:
    model = replace(TINY, number_head=NumberHead(read_at="start", scale="ln")).build(vocabulary, 0).double().eval()
    source = Tokens(torch.randint(4, 19, (3, 6)), torch.tensor([6, 3, 4]), torch.arange(3))
    begun = Tokens(torch.full((3, 1), PAD), torch.ones(3, dtype=torch.long), torch.arange(3))
    numbers = model(begun, source).number_predictions
    longer = Tokens(torch.cat([begun.ids, torch.randint(4, 19, (3, 4))], 1), torch.full((3,), 5), torch.arange(3))
    found = model(longer, source, target_positions=torch.tensor([[0, 1, 4]] * 3)).number_predictions
    torch.testing.assert_close(found, numbers.expand(3, 3), rtol=1e-9, atol=1e-9)
    assert len(set(numbers[:, 0].tolist())) == 3
    started = model.prefill(begun, source, capacity=3)
    torch.testing.assert_close(started.output.number_predictions, numbers, rtol=1e-9, atol=1e-9)
    further = model.step(torch.full((3,), EOS), started.output.number_predictions[:, 0], started.state)
    torch.testing.assert_close(further.output.number_predictions, numbers, rtol=1e-9, atol=1e-9)


def test_a_model_with_a_regression_head_answers_with_its_number_whatever_it_finds_likely() -> None:
    vocabulary = Vocabulary.from_words(["a", "b", "[NUM]"])
    number = vocabulary.token_to_id["[NUM]"]
    model = replace(TINY, number_head=NumberHead(read_at="start")).build(vocabulary, 0).eval()
    source = Tokens(torch.tensor([[4, 5, 4], [5, 4, PAD]]), torch.tensor([3, 2]), torch.arange(2))
    begun = Tokens(torch.full((2, 1), PAD), torch.ones(2, dtype=torch.long), torch.arange(2))
    meant = model(begun, source).number_predictions[:, 0]
    for decode in (greedy_decode, beam_search):
        generated = decode(model, begun, 4, source=source)
        assert generated.ids[:, :2].tolist() == [[number, EOS]] * 2
        assert generated.lengths.tolist() == [2, 2]
        torch.testing.assert_close(generated.number_values[:, 0], meant)


def test_places_added_to_pretrained_weights_change_nothing_at_first(folder: Path) -> None:
    source = Tokens(torch.randint(4, 19, (2, 6)), torch.tensor([6, 3]), torch.arange(2))
    tokens = Tokens(torch.randint(4, 19, (2, 4)), torch.tensor([4, 4]), torch.arange(2))
    vocabulary = over(list(range(3, 20)))
    plain, placed = (
        T5(weights=str(folder), max_position_embeddings=places).build(vocabulary, 0).eval() for places in (None, 6)
    )
    assert torch.equal(plain(tokens, source).logits, placed(tokens, source).logits)
    with torch.no_grad():
        placed.position_embedding.weight.normal_()
    assert not torch.allclose(plain(tokens, source).logits, placed(tokens, source).logits)

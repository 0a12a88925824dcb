"""Promises of held decoders: Hugging Face's own logits in any order of the vocabulary, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from numerate.batch import Tokens
from numerate.errors import UserError
from numerate.text.models.pretrained import PretrainedDecoder
from numerate.vocabulary import Vocabulary

transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")

ROWS = 40
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "llama": SMALL,
    "llama tied": {**SMALL, "tie_word_embeddings": True},
    "granite": {**SMALL, "logits_scaling": 3.0, "embedding_multiplier": 2.0},
    "gemma": {**SMALL, "head_dim": 8, "num_key_value_heads": 1},
    "phi": SMALL,  # its head has a bias
}


@pytest.fixture(scope="module", params=list(KINDS))
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that somebody has trained, with 40 rows of a vocabulary."""
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(request.param.split()[0], **KINDS[request.param], **ids, vocab_size=ROWS)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(5)
        held = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in held.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    place = tmp_path_factory.mktemp("decoder")
    held.save_pretrained(place)
    return place


def over(foreign: list[int]) -> Vocabulary:
    plain = Vocabulary.from_words([f"t{i}" for i in range(len(foreign))])
    return replace(plain, pretrained_ids=np.array([0, -1, 1, 2, *foreign]))


@torch.no_grad()
@pytest.mark.parametrize("foreign", [list(range(39, 2, -1)), [31, -1, 7, 3, -1, 20]], ids=["permuted", "cut and grown"])
def test_pretrained_logits_are_theirs_up_to_the_order_of_the_vocabulary(folder: Path, foreign: list[int]) -> None:
    vocabulary = over(foreign)
    model = PretrainedDecoder(weights=str(folder)).build(vocabulary, 0).double().eval()
    ids = torch.from_numpy(vocabulary.pretrained_ids)  # type: ignore[arg-type]
    known = torch.nonzero(ids > 2)[:, 0]
    tokens = known[torch.randint(len(known), (3, 9), generator=torch.Generator().manual_seed(0))]
    held = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).double().eval()
    expected = held(input_ids=ids[tokens], attention_mask=torch.ones_like(tokens)).logits
    found = model(Tokens(tokens, torch.full((3,), 9), torch.arange(3))).logits
    torch.testing.assert_close(found[..., ids >= 0], expected[..., ids[ids >= 0]], rtol=1e-6, atol=1e-7)
    assert found.shape[-1] == vocabulary.size


def test_weights_and_configurations_that_cannot_be_taken_are_refused(folder: Path, tmp_path: Path) -> None:
    vocabulary = Vocabulary.with_digits(["+"])
    with pytest.raises(UserError, match=r"^model\.weights: .*nothing' is not a model folder"):
        PretrainedDecoder(weights=str(tmp_path / "nothing")).build(over([3]), 0)
    with pytest.raises(UserError, match=r"^tokenizer: the weights are of another vocabulary"):
        PretrainedDecoder(weights=str(folder)).build(vocabulary, 0)
    with pytest.raises(UserError, match=r"^config: cannot be set together with weights, which have their own"):
        PretrainedDecoder(weights="x", config="{}")
    with pytest.raises(UserError, match=r"^model\.gguf_file: 'q4\.gguf' needs model\.weights"):
        PretrainedDecoder(gguf_file="q4.gguf").build(vocabulary, 0)
    for config in ("{", "{}", '{"model_type": "no such"}', "[1]", '{"model_type": "t5"}'):
        with pytest.raises(UserError, match=r"^model\.config: .* is no configuration of a decoder"):
            PretrainedDecoder(config=config).build(vocabulary, 0)


def test_a_file_of_weights_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^model\.weights: "):
        PretrainedDecoder(weights=str(folder), gguf_file="q4.gguf").build(over([3]), 0)


def test_logits_that_are_more_than_a_linear_map_are_refused(vocabulary: Vocabulary) -> None:
    config = json.dumps({**SMALL, "model_type": "cohere", "logit_scale": 0.01})
    with pytest.raises(UserError, match=r"^model: the logits of a cohere are not a linear function"):
        PretrainedDecoder(config=config).build(vocabulary, 0)


def test_models_that_read_later_tokens_or_have_no_cache_are_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(UserError, match=r"^model: a bert reads later tokens, so that it cannot be decoded"):
        PretrainedDecoder(config=json.dumps({**SMALL, "model_type": "bert"})).build(vocabulary, 0)
    with pytest.raises(UserError, match=r"^model: a rwkv has no cache of transformers"):
        PretrainedDecoder(config=json.dumps({**SMALL, "model_type": "rwkv"})).build(vocabulary, 0)


def test_without_weights_or_a_configuration_there_is_a_small_one(vocabulary: Vocabulary) -> None:
    model = PretrainedDecoder().build(vocabulary, 0)
    assert 5e5 < sum(parameter.numel() for parameter in model.parameters()) < 2e6
    assert model.hf_model.config.vocab_size == vocabulary.size

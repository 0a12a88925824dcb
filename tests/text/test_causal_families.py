"""Promises of `hf:NAME`: decoders of every large family answer a batch with the tokens of transformers' `generate`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hugging_face import QUIET, byte_tokenizer, generate, transformers, until
from numerate.api import recipe
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts
from numerate.evaluation.generate import greedy_decode
from numerate.evaluation.kinds.generated_answers import generate_texts
from numerate.tasks.texts import Example
from numerate.vocabulary import EOS

pytestmark = [*QUIET, pytest.mark.slow]

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL = {**TINY, "intermediate_size": 32}
GEMMA = {**SMALL, "head_dim": 8, "num_key_value_heads": 1, "sliding_window": 6}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "qwen2": {**SMALL, "num_key_value_heads": 1},
    "qwen3": {**SMALL, "num_key_value_heads": 1, "head_dim": 8},
    "mistral": {**SMALL, "num_key_value_heads": 1, "sliding_window": 6},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "gpt_neox": SMALL,
    "phi": SMALL,
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "opt": {**TINY, "ffn_dim": 32, "word_embed_proj_dim": 8},
    "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    "falcon": TINY,
    "falcon with alibi": {**TINY, "alibi": True},
    "mamba": {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
}
EXAMPLES = [Example(question, "") for question in ("12+345=", "1+2=", "How many are 40 less 8?")]


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch_has_the_greedy_answers_of_transformers(family: str, tmp_path: Path) -> None:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(family.split()[0], vocab_size=260, **ids, **FAMILIES[family])
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
        for parameter in theirs.parameters():
            parameter.data.add_(0.5 * torch.randn_like(parameter))
    tokenizer = byte_tokenizer("<unk>")
    theirs.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = recipe(f"hf:{tmp_path}", "evaluation.generation.max_new_tokens=8")
    data = EvaluationData.from_recipe(found)
    model = found.model.build(data.vocabulary, 0).eval()
    rows = data.tokenizer.encode_examples(EXAMPLES, data.vocabulary)
    batch = data.layout.build_batch(rows, torch.arange(3).numpy())
    prompts = [f"Question: {one.question}\nAnswer:" for one in EXAMPLES]
    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    expected, log_probabilities = generate(theirs, inputs, 8)
    own = greedy_decode(model, extract_prompts(batch)[0], 8)
    pretrained_ids = torch.from_numpy(data.vocabulary.pretrained_ids)
    assert [pretrained_ids[until(row, EOS)].tolist() for row in own.ids.tolist()] == expected
    assert own.log_probability.tolist() == pytest.approx(log_probabilities, abs=1e-3)
    texts = tokenizer.batch_decode(expected, skip_special_tokens=True)
    answers = [line["prediction"] for line in generate_texts(model, data, batch)]
    assert [text.replace("[UNK]", "") for text in answers] == [text.strip() for text in texts]

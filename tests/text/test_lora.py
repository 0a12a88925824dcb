"""Promises of LoRA: where it begins, what alone is trained, and what is refused."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hugging_face import save_model
from numerate.api import recipe
from numerate.batch import StepContext, Tokens
from numerate.errors import UserError
from numerate.models import T5, PretrainedDecoder
from numerate.text.models.lora import LoRA, merge_lora
from numerate.vocabulary import Vocabulary
from simulated_device import DEVICE, simulated_device

pytest.importorskip("peft", reason="the extra finetune is not installed")
pytest.importorskip("transformers", reason="the extra huggingface is not installed")

GPT2 = '{"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}'
SPECS: dict[str, Any] = {
    "llama": PretrainedDecoder(
        config='{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, '
        '"intermediate_size": 16}'
    ),
    "gpt2": PretrainedDecoder(config=GPT2),
    "t5": T5(hidden_size=16, num_layers=1, num_heads=2, head_dim=8, intermediate_size=16, dropout=0.0),
}


def built(name: str, vocabulary: Vocabulary, lora: LoRA | None = LoRA()) -> Any:
    return replace(SPECS[name], lora=lora).build(vocabulary, 0)


def logits(model: Any, name: str, device: torch.device = torch.device("cpu")) -> torch.Tensor:
    ids = torch.randint(4, 14, (2, 6), generator=torch.Generator().manual_seed(0))
    tokens = Tokens(ids, torch.tensor([6, 4]), torch.arange(2)).to(device)
    tokens = model.assign_positions(tokens, StepContext.for_evaluation())
    found: torch.Tensor = model(tokens, tokens if name == "t5" else None).logits
    return found


def change_adapters(model: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)


@pytest.mark.parametrize("name", SPECS)
def test_it_begins_with_the_pretrained_function_and_trains_the_adapters_alone(
    name: str, vocabulary: Vocabulary
) -> None:
    plain, adapted = built(name, vocabulary, None).eval(), built(name, vocabulary).eval()
    torch.testing.assert_close(logits(adapted, name), logits(plain, name))
    trained = {key for key, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert trained == {key for key, _ in adapted.named_parameters() if "lora_" in key}
    assert sum(adapted.get_parameter(key).numel() for key in trained) > 0
    logits(adapted.train(), name).square().sum().backward()
    assert {key for key, parameter in adapted.named_parameters() if parameter.grad is not None} == trained


@torch.no_grad()
def test_a_t5_has_its_adapters_on_a_device_too(vocabulary: Vocabulary) -> None:
    """Where query, key and value are one product without them."""
    adapted = built("t5", vocabulary).eval()
    change_adapters(adapted)
    expected = logits(adapted, "t5")
    with simulated_device():
        found = logits(adapted.to(DEVICE), "t5", DEVICE).cpu()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_merged_it_is_the_same_function_with_the_names_of_the_pretrained_weights(
    name: str, vocabulary: Vocabulary
) -> None:
    plain, adapted = built(name, vocabulary, None).eval(), built(name, vocabulary).eval()
    change_adapters(adapted)
    expected = logits(adapted, name)
    assert not torch.allclose(expected, logits(plain, name), atol=1e-3)
    merge_lora(adapted.hf_model)
    torch.testing.assert_close(logits(adapted, name), expected)
    assert adapted.state_dict().keys() == plain.state_dict().keys()


def test_adapters_of_frozen_weights_in_half_precision_are_in_single(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    found = recipe(f"hf:{folder}", "model.dtype=bfloat16", "lora=LoRA(r=2)")
    model = found.model.build(found.tokenizer.build_vocabulary(found.task), 0)
    for parameter in model.parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16)
    ids = torch.tensor([[5, 6, 7]])
    model(Tokens(ids, torch.tensor([3]), torch.arange(1))).logits.float().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def test_only_the_layers_that_are_named_have_an_adapter(vocabulary: Vocabulary) -> None:
    adapted = built("llama", vocabulary, LoRA(r=3, target_modules=("q_proj", "self_attn.v_proj")))
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name, _ in adapted.named_parameters() if "lora_" in name}
    assert layers == {"q_proj", "v_proj"}


def test_layers_that_do_not_exist_are_refused_with_those_that_do(vocabulary: Vocabulary) -> None:
    with pytest.raises(
        UserError,
        match=r"^model\.lora\.target_modules: no linear layer of a llama is called 'query'; there are: down_proj, "
        r"gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj; or all-linear$",
    ):
        built("llama", vocabulary, LoRA(target_modules=("q_proj", "query")))


def test_without_peft_it_says_what_to_install(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"^model\.lora needs peft: pip install 'numerate\[finetune\]'$"):
        built("llama", vocabulary)

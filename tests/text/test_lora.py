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


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_rows_of_tokens_that_are_new_to_the_weights_are_trained_and_merged_too(kind: str, tmp_path: Path) -> None:
    """As `trainable_token_indices` of peft does, in the head too."""
    given = [f"hf:{save_model(tmp_path / kind, kind)}", "tokenizer.number_format=Groups(group_size=2)"]
    plain, adapted = (recipe(*given, *more) for more in ([], ["lora=LoRA(r=2)"]))
    vocabulary = plain.tokenizer.build_vocabulary(plain.task)
    before, model = (one.model.build(vocabulary, 0) for one in (plain, adapted))
    ids = torch.tensor([[vocabulary.token_to_id[text] for text in ("12", "a", "7", "34")]])
    tokens = Tokens(ids, torch.tensor([4]), torch.arange(1))
    source = tokens if kind == "t5" else None
    torch.testing.assert_close(model.eval()(tokens, source).logits, before.eval()(tokens, source).logits)
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad and "lora_" not in name}
    assert [tuple(one.shape) for one in trained.values()] == [(100, 16)] * (1 if kind == "t5" else 2)
    optimizer = torch.optim.SGD(trained.values(), lr=0.1)
    model(tokens, source).logits.log_softmax(-1)[0, 0, ids[0, 3]].backward()
    optimizer.step()
    expected = model(tokens, source).logits
    merge_lora(model.hf_model)
    torch.testing.assert_close(model(tokens, source).logits, expected)
    old, new = before.state_dict(), model.state_dict()
    assert old.keys() == new.keys()
    assert vocabulary.pretrained_ids is not None
    is_new = torch.from_numpy(vocabulary.pretrained_ids < 0)
    changed = {name: (old[name] != new[name]).any(-1) for name in old if not torch.equal(old[name], new[name])}
    assert changed, "the row of 34, as a target, and the others, as another answer"
    assert all(is_new[rows].all() for rows in changed.values())


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


@pytest.mark.parametrize("name", SPECS)
def test_a_rank_above_the_width_and_no_layers_are_refused(name: str, vocabulary: Vocabulary) -> None:
    assert built(name, vocabulary, LoRA(r=16)) is not None
    with pytest.raises(UserError, match=r"^model\.lora\.r: must be at most 16, the width of the layers, not 1000000$"):
        built(name, vocabulary, LoRA(r=1000000))
    with pytest.raises(UserError, match=r"^target_modules: must name a layer, \[q_proj,v_proj\], or be all-linear$"):
        LoRA(target_modules=())


def test_without_peft_it_says_what_to_install(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"^model\.lora needs peft: pip install 'numerate\[finetune\]'$"):
        built("llama", vocabulary)

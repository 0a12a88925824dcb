"""What tests of Hugging Face's libraries share: the libraries, imported at first use, and tiny models."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="the extra huggingface")

QUIET = [
    needs_transformers,
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
"""The `pytestmark` of a file whose tests use transformers."""


class _Transformers:
    """The module transformers, whose import takes seconds."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("transformers"), name)


transformers: Any = _Transformers()


def examples_of(page: str) -> list[str]:
    """The blocks of Python in a page of the documentation."""
    text = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def byte_tokenizer() -> Any:
    """One token a byte, and special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *letters])}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def tiny_llama(num_layers: int = 1) -> Any:
    """A random decoder for `byte_tokenizer`."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=272,  # padded: the tokenizer has 259
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)

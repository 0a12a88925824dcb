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


def tiny_llama(num_layers: int = 1, vocab_size: int = 272) -> Any:
    """A random decoder for `byte_tokenizer`, whose rows are padded: the tokenizer has 259 tokens."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def tiny_t5() -> Any:
    """A random encoder-decoder for `byte_tokenizer`."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=259,
        d_model=16,
        num_layers=1,
        num_heads=2,
        d_kv=8,
        d_ff=16,
        eos_token_id=2,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def save_model(folder: Path, kind: str = "llama", *, chat_template: str | None = None, scale: float = 8.0) -> Path:
    """A folder of a random `llama` or `t5` with its tokenizer, as `save_pretrained` writes it. Its weights are `scale`
    times those of initialization, so that no two tokens are about equally likely."""
    model, tokenizer = tiny_t5() if kind == "t5" else tiny_llama(vocab_size=259), byte_tokenizer()
    for parameter in model.parameters():
        parameter.data.mul_(scale)
    tokenizer.chat_template = chat_template
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

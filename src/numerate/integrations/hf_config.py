"""The configuration of an exported run. Importing this file registers it; see `hf_registration`."""

from importlib import import_module
from typing import Any

_transformers: Any = import_module("transformers")  # of which little is typed


@import_module("huggingface_hub.dataclasses").strict
class NumerateConfig(_transformers.PreTrainedConfig):  # type: ignore[misc]
    """The configuration of an exported run: its recipe as saved in its folder, and its vocabulary.

    `recipe` is the whole recipe as plain data (`recipe["model"]` is what is built, with `recipe["seed"]`);
    `vocabulary` is what a model knows of its tokens (their kinds, run by run) with a fingerprint of their texts; `step`
    is the training step of the weights. The rest are the usual names of Hugging Face.
    """

    model_type = "numerate"
    keys_to_ignore_at_inference = ("past_key_values",)

    recipe: dict | None = None  # type: ignore[type-arg]
    vocabulary: dict | None = None  # type: ignore[type-arg]
    step: int = 0
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    max_position_embeddings: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False
    use_cache: bool = True


_transformers.AutoConfig.register(NumerateConfig.model_type, NumerateConfig, exist_ok=True)

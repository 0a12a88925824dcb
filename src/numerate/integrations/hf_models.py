"""Exported decoders with numerate installed: `AutoModelForCausalLM` without code from the folder.

Importing this file registers them:

    import numerate.integrations.hf_models
    model = AutoModelForCausalLM.from_pretrained("exported")

Elsewhere `from_pretrained("exported", trust_remote_code=True)` runs the code in the folder, or the folder needs neither
(`hf_native`). See docs/hugging-face.md.
"""

import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from numerate.config import from_tree
from numerate.integrations import hf_code
from numerate.integrations.hf_decoder import NumerateConfig as NumerateConfig
from numerate.integrations.hf_decoder import NumerateDecoder, build_model, tied_parameters
from numerate.models.decoder import Decoder
from numerate.vocabulary import Vocabulary

_transformers: Any = import_module("transformers")  # of which little is typed


class NumerateForCausalLM(NumerateDecoder):
    """A `NumerateDecoder` of the parts in numerate's catalogue, and of approved files of users."""

    @staticmethod
    def read_spec(tree: Mapping[str, Any]) -> Decoder:
        return _read_decoder(tree)

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in transformers, and the code that `trust_remote_code=True` runs."""
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if is_main_process and Path(save_directory).is_dir():
            tree = (self.config.recipe or {})["model"]
            hf_code.write_code(Path(save_directory), _read_decoder(tree), tree)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Does nothing: `save_pretrained` writes the code."""


def exported_settings(
    recipe: Mapping[str, Any], vocabulary: Vocabulary, step: int, special_ids: Any, max_length: int | None
) -> dict[str, Any]:
    """What the configuration of every exported folder has.

    The run itself, as plain data (`recipe`, `vocabulary`, `step`: all that `numerate import` reads), and the ids of
    special tokens. `max_length` is the longest row that was trained, where that is known.
    """
    lengths = {} if max_length is None else {"max_position_embeddings": max_length}
    return {
        "recipe": dict(recipe),
        "vocabulary": {
            "size": vocabulary.size,
            "kinds": [[int(kind), len([*run])] for kind, run in groupby(vocabulary.token_kinds.tolist())],
            "fingerprint": fingerprint(vocabulary),
        },
        "step": step,
        "vocab_size": vocabulary.size,
        "bos_token_id": special_ids.bos_token_id,
        "eos_token_id": [*special_ids.eos_token_ids],
        "pad_token_id": special_ids.pad_token_id,
        **lengths,
    }


def make_config(settings: Mapping[str, Any]) -> NumerateConfig:
    """The configuration for `exported_settings`. Raises `UserError` for a model that is not a causal decoder."""
    spec = _read_decoder(settings["recipe"].get("model"))
    config = NumerateConfig(
        **settings,
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.backbone.num_blocks(),
        auto_map=dict(hf_code.AUTO_MAP),
    )
    config.tie_word_embeddings = bool(tied_parameters(build_model(config, spec)))
    return config


def _read_decoder(tree: object) -> Decoder:
    spec: Decoder = from_tree(tree, "model", expected_class=Decoder)
    return spec


def fingerprint(vocabulary: Vocabulary) -> str:
    """A hash of the mapping from ids to tokens."""
    return hashlib.blake2b(
        json.dumps(list(vocabulary.tokens)).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


_transformers.AutoConfig.register(NumerateConfig.model_type, NumerateConfig, exist_ok=True)
_transformers.AutoModelForCausalLM.register(NumerateConfig, NumerateForCausalLM, exist_ok=True)

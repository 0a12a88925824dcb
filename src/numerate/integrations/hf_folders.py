"""Exported folders of decoders: written from a run's model and tokenizer; and reading their configuration."""

import hashlib
import json
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.config import to_tree
from numerate.errors import UserError
from numerate.integrations.hf_config import NumerateConfig
from numerate.integrations.hf_decoder import NumerateForCausalLM, tied_parameters
from numerate.integrations.hf_tokenizers import SpecialIds
from numerate.models.decoder import Decoder
from numerate.text.models.pretrained_weights import silence_transformers
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary


def write_folder(folder: Path, config: NumerateConfig, model: Model, tokenizer: Any) -> None:
    """Writes a decoder with its weights (safetensors) and configuration, and the tokenizer unless it is None."""
    with silence_transformers():
        config.tie_word_embeddings = bool(tied_parameters(model))
        hf_model: Any = NumerateForCausalLM(config)
        hf_model.model.load_state_dict(model.state_dict())
        hf_model.generation_config = import_module("transformers").GenerationConfig(
            **{name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        )
        hf_model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def make_config(
    recipe: Recipe, spec: Decoder, vocabulary: Vocabulary, step: int, special_ids: SpecialIds, max_length: int | None
) -> NumerateConfig:
    """The configuration of a run with this decoder.

    It has the run itself, as plain data (`recipe`, `vocabulary`, `step`: all that `numerate import` reads), and the ids
    of special tokens. `max_length` is the longest row that was trained, where that is known.
    """
    return NumerateConfig(
        recipe=to_tree(recipe),
        vocabulary={
            "size": vocabulary.size,
            "kinds": [[int(kind), len([*run])] for kind, run in groupby(vocabulary.token_kinds.tolist())],
            "fingerprint": fingerprint(vocabulary),
        },
        step=step,
        vocab_size=vocabulary.size,
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.backbone.num_blocks(),
        max_position_embeddings=max_length,
        bos_token_id=special_ids.bos_token_id,
        eos_token_id=[*special_ids.eos_token_ids],
        pad_token_id=special_ids.pad_token_id,
    )


def fingerprint(vocabulary: Vocabulary) -> str:
    """A hash of the mapping from ids to tokens."""
    return hashlib.blake2b(
        json.dumps(list(vocabulary.tokens)).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def read_configuration(folder: Path) -> dict[str, Any]:
    """The config.json of a folder. Raises `UserError` if it is not from a numerate run."""
    path = folder / "config.json"
    if not path.is_file():
        if (folder / "adapter_config.json").is_file():
            raise UserError(f"{folder}: holds an adapter, not a model; save the result of merge_and_unload() first")
        raise UserError(
            f"{folder}: has no config.json; it must be a folder that `numerate export` or save_pretrained wrote"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        model_type, recipe = config.get("model_type"), config.get("recipe")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path}: is not valid JSON; the folder may be incomplete") from error
    if not isinstance(recipe, dict):
        raise UserError(
            f"{folder}: holds a model of the kind {model_type!r}, which is not a numerate run; `numerate train RECIPE "
            f"model=PretrainedDecoder model.weights={folder} training.steps=0` makes a run of a decoder of Hugging Face"
        )
    for name, kind in {"vocabulary": dict, "step": int}.items():
        if not isinstance(config.get(name), kind):
            raise UserError(f"{path}: has no {name} beside the recipe; use a folder that `numerate export` wrote")
    return dict(config)

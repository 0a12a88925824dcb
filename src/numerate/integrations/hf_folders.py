"""Model folders for Hugging Face: written from a run's model and tokenizer; and reading their configuration."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from numerate.batch import Model
from numerate.errors import UserError
from numerate.integrations.hf_models import NumerateForCausalLM, make_config
from numerate.integrations.hf_native import NATIVE_MODELS, native_model
from numerate.models.decoder import Decoder
from numerate.text.models.pretrained_weights import silence_transformers

_transformers: Any = import_module("transformers")  # of which little is typed


def write_folder(folder: Path, spec: Decoder, settings: Mapping[str, Any], model: Model, tokenizer: Any) -> None:
    """Writes a decoder with its weights (safetensors) and configuration, and the tokenizer unless it is None.

    It is a model of transformers where one computes the decoder (`hf_native`), otherwise it comes with its code.
    `settings` are those of `hf_models.exported_settings`.
    """
    native = native_model(spec)
    weights: dict[str, Tensor] | None = None
    with silence_transformers():
        if native is None:
            hf_model: Any = NumerateForCausalLM(make_config(settings))
            hf_model.model.load_state_dict(model.state_dict())
        else:
            config = getattr(_transformers, f"{native.name}Config")(**{**settings, **native.config_settings(spec)})
            for setting, value in native.older_settings(spec).items():
                setattr(config, setting, value)
            with torch.device("meta"):
                hf_model = getattr(_transformers, f"{native.name}ForCausalLM")(config)
            weights = native.to_native(spec, model.state_dict())
            absent = {key: tensor for key, tensor in hf_model.state_dict().items() if key not in weights}
            weights |= {key: torch.zeros(tensor.shape) for key, tensor in absent.items() if key.endswith(".bias")}
        hf_model.generation_config = _transformers.GenerationConfig(
            **{name: settings[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        )
        hf_model.save_pretrained(folder, state_dict=weights)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


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


def decoder_weights(
    config: Mapping[str, Any], spec: Any, weights: Mapping[str, Tensor], folder: Path
) -> dict[str, Tensor]:
    """The weights of a folder with this configuration, by the names of its decoder.

    Raises `UserError` if they are of a class of transformers that does not compute this decoder.
    """
    class_names = list(config.get("architectures") or [])
    natives = [native for native in NATIVE_MODELS if f"{native.name}ForCausalLM" in class_names]
    if not natives:
        return dict(weights)
    if not isinstance(spec, Decoder) or native_model(spec) is not natives[0]:
        raise UserError(f"{folder}: holds a {class_names[0]}, which does not compute the model of the recipe")
    return natives[0].from_native(spec, weights)

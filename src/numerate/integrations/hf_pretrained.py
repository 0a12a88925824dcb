"""A run of a Hugging Face model as a folder of transformers: adapters merged, rows in the order of its tokenizer."""

from importlib import import_module
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.integrations.hf_folders import silence_transformers
from numerate.text.models.hugging_face import HuggingFaceModel
from numerate.text.models.lora import merge_lora
from numerate.text.models.pretrained_weights import restore_vocabulary
from numerate.text.tokenizers.hf_vocabulary import split_digits
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import AsIs, PerDigit
from numerate.tokenizers.tokenizer import Tokenizer
from numerate.vocabulary import Vocabulary


def write_pretrained_folder(
    folder: Path, model: HuggingFaceModel, vocabulary: Vocabulary, tokenizer: Any | None
) -> None:
    """Writes the model and, unless it is None, a tokenizer made by `to_transformers_tokenizer`; the model is changed.

    Raises `UserError` for a model with modules that transformers does not have."""
    for name in ("number_embedding", "number_head", "position_embedding"):
        if getattr(model, name) is not None:
            raise UserError(f"export: the {name.replace('_', ' ')} of this model is not part of transformers' model")
    hf_model = model.hf_model
    merge_lora(hf_model)
    restore_vocabulary(hf_model, vocabulary)
    hf_model.generation_config = import_module("transformers").GenerationConfig.from_model_config(hf_model.config)
    with silence_transformers():
        hf_model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


def to_transformers_tokenizer(tokenizer: Tokenizer) -> Any:
    """The tokenizer of a run for transformers, with the ids that pretrained weights have.

    Raises `UserError` for one that has numbers in tokens of numerate's own."""
    if not isinstance(tokenizer, Subwords) or not isinstance(tokenizer.number_format, AsIs | PerDigit):
        raise UserError(
            "export: a Hugging Face model is exported with tokenizer=Subwords and number_format=AsIs or PerDigit, not "
            f"{type(tokenizer).__name__} and {type(getattr(tokenizer, 'number_format', None)).__name__}"
        )
    file = tokenizer.fast_tokenizer.file
    backend = import_module("tokenizers").Tokenizer.from_str(file.json_text)
    if isinstance(tokenizer.number_format, PerDigit):
        backend = split_digits(backend)
    names = {f"{role}_token": name for role, name in file.special_tokens}
    return import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=backend, **names)

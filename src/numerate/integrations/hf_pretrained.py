"""A run of a Hugging Face model as a folder of transformers: adapters merged, rows in the order of its tokenizer."""

from importlib import import_module
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.integrations.hf_tokenizers import to_fast_tokenizer
from numerate.tasks.task import Task
from numerate.text.models.hugging_face import HuggingFaceModel
from numerate.text.models.lora import merge_lora
from numerate.text.models.pretrained_seq2seq import PretrainedSeq2Seq
from numerate.text.models.pretrained_weights import read_end_ids, restore_vocabulary, silence_transformers
from numerate.text.tokenizers.hf_vocabulary import split_digits
from numerate.text.tokenizers.prompt_formats import load_transformers_tokenizer
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
    if model.spec.lora is not None:
        merge_lora(hf_model)
    if vocabulary.pretrained_ids is not None:
        restore_vocabulary(hf_model, vocabulary)
    generation = import_module("transformers").GenerationConfig.from_model_config(hf_model.config)
    ends = dict.fromkeys([*read_end_ids(generation), *read_end_ids(hf_model.generation_config)])
    if model.other_end_ids and len(ends) > 1:
        generation.eos_token_id = [*ends]
    if isinstance(model.spec, PretrainedSeq2Seq):
        generation.forced_bos_token_id = generation.bos_token_id if model.spec.force_bos else None
        generation.bad_words_ids = [[generation.pad_token_id]] if model.spec.suppress_pad else None
    hf_model.generation_config = generation
    with silence_transformers():
        hf_model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


def to_transformers_tokenizer(tokenizer: Tokenizer, task: Task, vocabulary: Vocabulary) -> Any:
    """The tokenizer of a run for transformers, with the ids of the exported model.

    Raises `UserError` for one that has numbers in tokens of numerate's own."""
    if not isinstance(tokenizer, Subwords):
        return to_fast_tokenizer(tokenizer, task, vocabulary)
    if not isinstance(tokenizer.number_format, AsIs | PerDigit):
        raise UserError(
            f"tokenizer.number_format: {type(tokenizer.number_format).__name__} cannot be written as a tokenizer.json; "
            "AsIs and PerDigit can"
        )
    file = tokenizer.fast_tokenizer.file
    backend = import_module("tokenizers").Tokenizer.from_str(file.json_text)
    if isinstance(tokenizer.number_format, PerDigit):
        backend = split_digits(backend)
    names = {f"{role}_token": name for role, name in file.special_tokens}
    exported = import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    if tokenizer.chat_template:
        exported.chat_template = load_transformers_tokenizer(tokenizer.tokenizer, tokenizer.revision).chat_template
    return exported

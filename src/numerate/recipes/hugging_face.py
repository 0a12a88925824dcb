"""The recipe of a Hugging Face model, `hf:NAME`: its weights, its tokenizer, and prompts in its chat template."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numerate.config import override
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.evaluation.generation_settings import Generation
from numerate.tasks.contents import file_sha256
from numerate.text.models.pretrained import PretrainedDecoder
from numerate.text.models.pretrained_weights import import_transformers, read_config
from numerate.text.models.t5 import T5
from numerate.text.tokenizers.prompt_formats import QUESTION, load_transformers_tokenizer
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.tokenizer_files import is_hub_reachable
from numerate.tokenizers.layout import Continuation, Seq2Seq
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training

QUESTION_TEMPLATE = r"Question: {question}\nAnswer:"
"""How a decoder without a chat template is asked."""

DEFAULT_MAX_LENGTH = 4096
"""The largest number of tokens of a prompt where the configuration of a model names none."""

_EXAMPLE = "hf:HuggingFaceTB/SmolLM2-135M-Instruct"

_MODEL_FILES = (".safetensors", ".bin", ".gguf", ".json", ".jinja", ".model", ".txt")
"""The files of a folder on which answers depend: weights, configurations, tokenizer, chat template."""

FINETUNING_SETTINGS = ("schedule=Linear(warmup=0.03)", "training.best_metric=loss")
"""How a model is fine-tuned, besides the optimizer and batch size of its recipe, unless settings say otherwise."""

LORA_LEARNING_RATE = "2e-4"
"""The learning rate of adapters, ten times that of all weights."""


def hugging_face_recipe(name: str) -> Recipe:
    """The recipe of the model in a folder, or with a name on the hub. `task=` is what it is evaluated or trained on.

        hugging_face_recipe("HuggingFaceTB/SmolLM2-135M-Instruct").title
        'hf-SmolLM2-135M-Instruct'

    A decoder with a chat template is asked in that, another one by `QUESTION_TEMPLATE`, an encoder-decoder by the
    question alone. The commit of a name on the hub, or a hash of the files of a folder, is part of the recipe, so that
    other weights under the same name are another run; where the folder lies is not part of the run's id. Raises
    `UserError` where there is no model or no tokenizer.
    """
    folder = Path(name).expanduser().absolute()
    is_folder = bool(name) and folder.is_dir()
    weights = str(folder) if is_folder else name
    config = _read_config(weights, is_folder=is_folder)
    commit = None if is_folder else _cached_commit(name)
    revision = folder_revision(folder) if is_folder else commit
    tokenizer = load_transformers_tokenizer(weights, revision)
    has_encoder, has_chat = bool(config.is_encoder_decoder), tokenizer.chat_template is not None
    subwords = Subwords(
        weights,
        add_bos_token=not has_chat and tokenizer("1")["input_ids"][0] == tokenizer.bos_token_id,
        answer_prefix="" if has_encoder or has_chat or _adds_space(tokenizer) else " ",
        max_length=getattr(config, "max_position_embeddings", None) or DEFAULT_MAX_LENGTH,
        revision=revision,
        question_template=QUESTION if has_encoder or has_chat else QUESTION_TEMPLATE,
        chat_template=has_chat,
    )
    model = T5(weights=weights, revision=revision) if has_encoder else PretrainedDecoder(weights, revision=revision)
    return Recipe(
        tokenizer=subwords,
        layout=Seq2Seq() if has_encoder else Continuation(),
        model=model,
        optimizer=AdamW(learning_rate=2e-5, max_grad_norm=1.0),
        training=Training(batch_size=16),
        evaluation=Evaluation(generation=Generation(stop=_end_tokens(tokenizer, weights, commit))),
        title=f"hf-{folder.name}",
    )


def finetuning_recipe(base: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe that fine-tunes the model of a `hugging_face_recipe`, with settings. With LoRA the learning rate is
    higher."""
    defaults = [*FINETUNING_SETTINGS, f"title={base.title}-finetuned"]
    recipe = override(base, [*defaults, *settings])
    if getattr(recipe.model, "lora", None) is None:
        return recipe
    return override(base, [*defaults, f"optimizer.learning_rate={LORA_LEARNING_RATE}", *settings])


def untrained_recipe(base: Recipe, recipe: Recipe) -> Recipe:
    """The recipe that evaluates the model of `base` as it is, with its own tokens, on what `recipe` is evaluated on."""
    tokenizer = base.tokenizer
    if isinstance(recipe.tokenizer, Subwords) and isinstance(tokenizer, Subwords):  # with its prompts
        tokenizer = replace(recipe.tokenizer, number_format=tokenizer.number_format, vocabulary=tokenizer.vocabulary)
    model: Any = base.model
    if isinstance(recipe.model, type(model)):
        model = replace(model, dtype=recipe.model.dtype)
    return replace(
        base, task=recipe.task, tokenizer=tokenizer, model=model, evaluation=recipe.evaluation, device=recipe.device
    )


def folder_revision(folder: Path) -> str:
    """A hash of the files of a folder on which the answers of its model depend."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES and path.is_file())
    content = "".join(f"{path.name} {file_sha256(path)}\n" for path in files)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def check_unchanged_weights(model: Any) -> None:
    """Raises `UserError` if the model of a recipe names a folder whose files have changed since."""
    folder = Path(model.weights)
    if model.revision is not None and folder.is_dir() and folder_revision(folder) != model.revision:
        raise UserError(
            f"model.weights: the files of {folder} have changed since this run was made; `numerate evaluate "
            f"hf:{folder}` makes a run of those that are there now"
        )


def _read_config(weights: str, *, is_folder: bool) -> Any:
    """The configuration of a model. Raises `UserError` for one that `T5` and `PretrainedDecoder` do not run."""
    if not weights.strip():
        raise UserError(f"hf: must be followed by the folder or name of a model, for example {_EXAMPLE}")
    if not is_folder and (weights.startswith((".", "/", "~")) or weights.count("/") > 1):
        raise UserError(f"hf:{weights}: there is no such folder")
    try:
        options: dict[str, Any] = {} if is_folder else {"local_files_only": not is_hub_reachable()}
        config = read_config(weights, **options)
    except UserError as error:
        what = "" if is_folder else f"; {weights} is no folder, so it must be a name on the Hugging Face hub"
        raise UserError(f"hf:{error}{what}; for example {_EXAMPLE}") from error
    if config.model_type == "numerate":
        raise UserError(f"hf:{weights}: is an exported run; `numerate import {weights}` makes it a run again")
    if config.is_encoder_decoder and config.model_type != "t5":
        raise UserError(
            f"hf:{weights}: is an encoder-decoder of type {config.model_type}; of these only t5 (T5, FLAN-T5, ByT5) is "
            "supported"
        )
    return config


def _cached_commit(name: str) -> str | None:
    """The commit of a model of the hub whose configuration has been read; None if the cache does not say it."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, "config.json")
    return Path(path).parent.name if isinstance(path, str) else None


def _adds_space(tokenizer: Any) -> bool:
    """Whether a tokenizer puts a space before a text of its own accord."""
    return bool(tokenizer.tokenize("1")[0].startswith("\u2581"))


def _end_tokens(tokenizer: Any, weights: str, commit: str | None) -> tuple[str, ...]:
    """The tokens besides the tokenizer's that end an answer, as the model's generation configuration says."""
    package, options = import_transformers("hf:"), {} if commit is None else {"revision": commit}
    try:
        config = package.GenerationConfig.from_pretrained(weights, **options)
    except OSError:  # it has none
        return ()
    ids = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    tokens = tokenizer.convert_ids_to_tokens([i for i in ids if i not in (None, tokenizer.eos_token_id)])
    return tuple(tokens)

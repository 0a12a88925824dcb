"""The recipe of a Hugging Face model, `hf:NAME`: its weights, its tokenizer, and prompts in its chat template."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numerate.batch import ModelSpec
from numerate.config import override
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import Evaluation
from numerate.evaluation.generation_settings import Generation
from numerate.tasks.contents import file_sha256
from numerate.text.models.pretrained import PretrainedDecoder
from numerate.text.models.pretrained_seq2seq import PretrainedSeq2Seq, max_positions
from numerate.text.models.pretrained_weights import import_transformers, read_config, read_generation_config
from numerate.text.models.t5 import T5
from numerate.text.tokenizers.prompt_formats import QUESTION, load_transformers_tokenizer
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.tokenizer_files import is_hub_reachable
from numerate.tokenizers.layout import Continuation, Layout, Seq2Seq
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
    `UserError` where there is no model or no tokenizer, and for a model that cannot answer questions.
    """
    folder = Path(name).expanduser().absolute()
    is_folder = bool(name) and folder.is_dir()
    weights = str(folder) if is_folder else name
    config = _read_config(weights, is_folder=is_folder)
    commit = None if is_folder else _cached_commit(name)
    revision = folder_revision(folder) if is_folder else commit
    tokenizer = load_transformers_tokenizer(weights, revision)
    has_encoder, has_chat = bool(config.is_encoder_decoder), tokenizer.chat_template is not None
    has_bos = tokenizer("1")["input_ids"][0] == tokenizer.bos_token_id
    subwords = Subwords(
        weights,
        add_bos_token=not has_chat and has_bos,
        answer_prefix="" if has_encoder or has_chat or _adds_space(tokenizer) else " ",
        max_length=_max_length(config),
        revision=revision,
        question_template=QUESTION if has_encoder or has_chat else QUESTION_TEMPLATE,
        chat_template=has_chat,
    )
    generation = read_generation_config(weights, config, commit)
    layout: Layout = Continuation()
    model: ModelSpec = PretrainedDecoder(weights, revision=revision)
    if has_encoder:
        layout = _seq2seq_layout(weights, tokenizer, generation, has_bos=has_bos)
        _check_ids(subwords, tokenizer)
    if config.model_type == "t5" and generation.forced_bos_token_id is None:
        model = T5(weights=weights, revision=revision)
    elif has_encoder:
        model = PretrainedSeq2Seq(
            weights,
            force_bos=generation.forced_bos_token_id is not None,
            suppress_pad=[tokenizer.pad_token_id] in (generation.bad_words_ids or []),
            revision=revision,
        )
    return Recipe(
        tokenizer=subwords,
        layout=layout,
        model=model,
        optimizer=AdamW(learning_rate=2e-5, max_grad_norm=1.0),
        training=Training(batch_size=16),
        evaluation=Evaluation(generation=Generation()),
        title=f"hf-{folder.name}",
    )


def finetuning_recipe(base: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe that fine-tunes the model of a `hugging_face_recipe`, with settings. With LoRA the learning rate is
    higher, and question and answer have half of the positions each where a decoder has too few for the longest."""
    defaults = [*FINETUNING_SETTINGS, f"title={base.title}-finetuned"]
    recipe = override(base, [*defaults, *settings])
    if getattr(recipe.model, "lora", None) is not None:
        defaults.append(f"optimizer.learning_rate={LORA_LEARNING_RATE}")
    if recipe.training.epochs is not None:
        defaults.append("training.steps=null")
    if isinstance(recipe.model, PretrainedDecoder) and isinstance(recipe.tokenizer, Subwords):
        defaults += _shorter_texts(recipe)
    recipe = override(base, [*defaults, *settings])
    if None not in (recipe.training.epochs, recipe.training.steps):
        raise UserError("training.epochs: must be null with training.steps; the length of fine-tuning is one of them")
    return recipe


def _shorter_texts(recipe: Recipe) -> list[str]:
    """The setting that leaves room for question and answer, if the longest of them together do not fit into a model."""
    data = EvaluationData.from_recipe(recipe)
    model = recipe.model.build_on_meta(data.vocabulary, recipe.seed, recipe.model.pretrained_config(data.vocabulary))
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is cut: training warns of that
            model.check_tokens(data.longest_rows(recipe.task))
    except UserError:
        return [f"tokenizer.max_length={((model.max_length() or 0) - 1) // 2}"]  # beside [BOS]
    return []


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
    """The configuration of a model. Raises `UserError` for one that generates no text from a text."""
    if not weights.strip():
        raise UserError(f"hf: must be followed by the folder or name of a model, for example {_EXAMPLE}")
    if not is_folder and (weights.startswith((".", "/", "~")) or weights.count("/") > 1):
        raise UserError(f"hf:{weights}: there is no such folder")
    models = import_transformers(f"hf:{weights}").models.auto.modeling_auto
    try:
        options: dict[str, Any] = {} if is_folder else {"local_files_only": not is_hub_reachable()}
        config = read_config(weights, **options)
    except UserError as error:
        what = "" if is_folder else f"; {weights} is no folder, so it must be a name on the Hugging Face hub"
        raise UserError(f"hf:{error}{what}; for example {_EXAMPLE}") from error
    if config.model_type == "numerate":
        raise UserError(f"hf:{weights}: is an exported run; `numerate import {weights}` makes it a run again")
    with_encoder, causal = models.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, models.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if config.model_type not in (with_encoder if config.is_encoder_decoder else causal):
        raise UserError(
            f"hf:{weights}: is a {config.model_type}, which is neither a causal language model nor an encoder-decoder "
            "of text in transformers; only these can answer questions"
        )
    is_masked = config.model_type in models.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.is_encoder_decoder
    if is_masked and not getattr(config, "is_decoder", False):
        raise UserError(
            f"hf:{weights}: is a {config.model_type}, an encoder that fills in masked tokens; only causal language "
            "models and encoder-decoders can answer questions"
        )
    return config


def _max_length(config: Any) -> int:
    """The largest number of tokens of a prompt; an encoder adds two to them."""
    if config.is_encoder_decoder:
        limit = max_positions(config, "encoder")
        return DEFAULT_MAX_LENGTH if limit is None else limit - 2
    return int(getattr(config, "max_position_embeddings", None) or DEFAULT_MAX_LENGTH)


def _seq2seq_layout(weights: str, tokenizer: Any, generation: Any, *, has_bos: bool) -> Seq2Seq:
    """The layout of an encoder-decoder: with which tokens source and answer begin and end.

    Raises `UserError` for tokens other than [BOS], [EOS] and [PAD]."""
    ids, text_ids = (tokenizer("1", add_special_tokens=added)["input_ids"] for added in (True, False))
    has_eos = ids[-1:] == [tokenizer.eos_token_id]
    if ids != [tokenizer.bos_token_id] * has_bos + text_ids + [tokenizer.eos_token_id] * has_eos:
        raise UserError(
            f"hf:{weights}: its tokenizer makes '1' {' '.join(tokenizer.convert_ids_to_tokens(ids))}; around a text "
            "only its tokens for beginning and end are supported, not those of a language, as of translation models"
        )
    start_id = generation.decoder_start_token_id
    roles = {tokenizer.pad_token_id: "pad", tokenizer.bos_token_id: "bos", tokenizer.eos_token_id: "eos"}
    roles.pop(None, None)
    for what, i, allowed in (
        ("begins an answer with", start_id, [*roles]),
        ("generates first", generation.forced_bos_token_id, [None, tokenizer.bos_token_id]),
    ):
        if i not in allowed:
            token = "a token that it does not name" if i is None else tokenizer.convert_ids_to_tokens(i)
            raise UserError(
                f"hf:{weights}: its decoder {what} {token}; only the tokens for beginning, end and padding are "
                "supported, not that of a language, as translation models have it"
            )
    has_answer_bos = has_bos or generation.forced_bos_token_id is not None
    return Seq2Seq(decoder_start_token=roles[start_id], source_eos=has_eos, answer_bos=has_answer_bos)  # type: ignore[arg-type]


def _check_ids(subwords: Subwords, tokenizer: Any) -> None:
    """Raises `UserError` for a tokenizer whose files are read otherwise than transformers reads them."""
    text, vocabulary = "What is 12 + 9?", subwords.fast_tokenizer.vocabulary
    assert vocabulary.pretrained_ids is not None
    found = vocabulary.pretrained_ids[subwords.encode(text, vocabulary)].tolist()
    if found != tokenizer(text, add_special_tokens=False)["input_ids"]:
        raise UserError(
            f"hf:{subwords.tokenizer}: its tokenizer has other ids in transformers than in its files; "
            "AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes a tokenizer.json that has the same ones"
        )


def _cached_commit(name: str) -> str | None:
    """The commit of a model of the hub whose configuration has been read; None if the cache does not say it."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, "config.json")
    return Path(path).parent.name if isinstance(path, str) else None


def _adds_space(tokenizer: Any) -> bool:
    """Whether a tokenizer puts a space before a text of its own accord."""
    return bool(tokenizer.tokenize("1")[0].startswith("\u2581"))

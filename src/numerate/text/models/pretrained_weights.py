"""Weights and configurations of transformers: loading them, and reordering embeddings to a vocabulary."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.errors import UserError, error_text
from numerate.vocabulary import BOS, EOS, PAD, Vocabulary

NEW_ROW_STD = 0.1
"""How far a row that no pretrained one belongs to is drawn from their mean, in their own standard deviations."""

REVISION_HELP = "of a model on the hub its revision, of a folder the hash of its files, by which runs differ"

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPE_HELP = "type of pretrained weights; bfloat16 and float16 take half the memory, to evaluate"


def import_transformers(needed_by: str) -> Any:
    """The package `transformers`. Raises `UserError` where it is not installed."""
    try:
        import transformers as package
    except ImportError as error:
        raise UserError(f"{needed_by} needs transformers: pip install 'numerate[huggingface]'") from error
    return package


def load_pretrained_config(
    weights: str, vocabulary: Vocabulary, alternative_settings: str, **options: Any
) -> dict[str, Any]:
    """The `pretrained_config` from the configuration (`config.json`) of a folder or of the hub, for this vocabulary.
    Raises `UserError` if it cannot be read; the message suggests `alternative_settings`, which need no weights."""
    try:
        config = read_config(weights, **options)
    except UserError as error:
        raise UserError(
            f"model.weights: {error}; {alternative_settings} counts and times a model without weights"
        ) from error
    generation = read_generation_config(weights, config, options.get("revision"))
    return to_pretrained_config(config, vocabulary, read_end_ids(generation))


def read_generation_config(weights: str, config: Any, revision: str | None = None, **options: Any) -> Any:
    """The generation configuration of a model, in its config.json where it has no file of its own. Raises `UserError`
    for a file that cannot be read, and for end tokens that are no ids."""
    package, options = import_transformers("model.weights"), _hub_options(weights, revision) | options
    try:
        path = package.utils.cached_file(weights, "generation_config.json", **options)
    except OSError as error:
        if os.path.lexists(file := Path(weights) / "generation_config.json"):  # a link to nothing, or a folder
            raise UserError(f"model.weights: {file}, which says what ends an answer, cannot be read") from error
        settings: Any = {}
        if config.is_encoder_decoder:  # from before there were such files
            settings, _ = package.PretrainedConfig.get_config_dict(weights, **options)
        names = ("decoder_start_token_id", "forced_bos_token_id", "bad_words_ids", "eos_token_id")
        text_config = config.get_text_config(decoder=True)
        return package.GenerationConfig(**{one: settings.get(one, getattr(text_config, one, None)) for one in names})
    try:
        generation = package.GenerationConfig.from_pretrained(str(Path(path).parent))
        read_end_ids(generation)
    except Exception as error:  # JSON and the class have errors of their own kind each
        raise UserError(
            f"model.weights: {path}, which says what ends an answer, cannot be read ({error_text(error)}); copy or "
            "download it again"
        ) from error
    return generation


def read_end_ids(generation: Any) -> list[int]:
    """The ids of the end tokens of a generation configuration. Raises `TypeError` where they are none."""
    ids = generation.eos_token_id
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if any(type(i) is not int for i in ids):
        raise TypeError(f"eos_token_id {ids} must be ids")
    return ids


def find_other_end_ids(model: Any, vocabulary: Vocabulary) -> tuple[int, ...]:
    """`Model.other_end_ids` of a model of transformers; GPT-2's end token is [BOS], too."""
    pretrained_ids = get_pretrained_ids(vocabulary).tolist()
    ends = {pretrained_ids[EOS], *read_end_ids(model.generation_config)} - {-1}
    return tuple(i for i, own in enumerate(pretrained_ids) if own in ends and i != EOS)


def read_config(weights: str, revision: str | None = None, **options: Any) -> Any:
    """The configuration of transformers of a folder, or of a name on the hub at a revision. Raises `UserError` if it
    cannot be read."""
    package = import_transformers("model.weights")
    try:
        with silence_transformers():
            config = package.AutoConfig.from_pretrained(
                weights, trust_remote_code=False, **_hub_options(weights, revision), **options
            )
        if re.search(r"\bNaN\b", config.to_json_string(use_diff=False)):
            raise ValueError("its config.json has NaN, which is no number")
        return config
    except Exception as error:  # the hub, JSON and the classes of configurations have errors of their own kind each
        raise UserError(f"{weights}: has no configuration that can be read here ({error_text(error)})") from error


def _hub_options(weights: str, revision: str | None) -> dict[str, str]:
    """The revision of a name on the hub; of a folder, `revision` is the hash of its files."""
    return {} if revision is None or Path(weights).is_dir() else {"revision": revision}


def to_pretrained_config(config: Any, vocabulary: Vocabulary, end_ids: Sequence[int] = ()) -> dict[str, Any]:
    """The `pretrained_config` from a configuration of transformers and its end tokens, for this vocabulary.

    Raises `UserError` for a vocabulary that pretrained rows cannot be put into the order of."""
    get_pretrained_ids(vocabulary)
    _set_token_ids(config, vocabulary)
    # transformers stores an untied head of T5 1.1 this way, and ties the head where the entry is missing.
    tied = config.tie_word_embeddings and getattr(config, "scale_decoder_outputs", True)
    return {"config": json.loads(config.to_json_string(use_diff=False)), "tied": bool(tied), "end_ids": [*end_ids]}


def build_untrained(package: Any, model_class: Any, pretrained_config: Mapping[str, Any], **options: Any) -> Any:
    """A model of transformers from its `pretrained_config`, with random weights. `model_class` builds one from a
    configuration.

    Raises `UserError` for a configuration that this version of transformers does not know."""
    text = json.dumps({**pretrained_config["config"], **options})
    # Infinity is {"__float__": "Infinity"} in transformers, as in the configuration of Mamba2.
    config = json.loads(text, object_hook=lambda part: float(part["__float__"]) if "__float__" in part else part)
    check_no_hub_kernels(config, "model")
    model_type = config.pop("model_type")
    try:
        model = model_class(package.AutoConfig.for_model(model_type, **config))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"model: transformers {package.__version__} does not know a {model_type} as "
            f"{config.get('transformers_version')} wrote it ({error_text(error)}); install that version"
        ) from error
    input_embeddings, output_embeddings = model.get_input_embeddings(), model.get_output_embeddings()
    if not pretrained_config["tied"] and output_embeddings.weight is input_embeddings.weight:
        output_embeddings.weight = nn.Parameter(input_embeddings.weight.detach().clone())
    model.generation_config = package.GenerationConfig(eos_token_id=pretrained_config.get("end_ids"))
    return model


def load_pretrained(
    auto_class: Any, weights: str, revision: str | None = None, dtype: Dtype = "float32", **options: Any
) -> Any:
    """A model from a folder or the hub. Raises `UserError` where there is none under that name, and where
    it is not whole: a file that was cut short, a configuration of other shapes, weights that are missing."""
    folder, hub_options = Path(weights), _hub_options(weights, revision)
    if folder.is_dir() and "gguf_file" not in options and not (folder / "config.json").is_file():
        file_names = sorted(path.name for path in folder.iterdir())[:8]
        raise UserError(
            f"model.weights: {weights} has no config.json (it has: {', '.join(file_names) or 'nothing'}); it must be a "
            "folder that save_pretrained wrote completely"
        )
    try:
        with silence_transformers():
            if "gguf_file" not in options:
                config, _ = import_transformers("model.weights").PretrainedConfig.get_config_dict(
                    weights, **hub_options
                )
                check_no_hub_kernels(config, f"model.weights: {weights}")
            model, loading_info = auto_class.from_pretrained(
                weights,
                dtype=getattr(torch, dtype),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,  # otherwise it prompts on the terminal
                **hub_options,
                **options,
            )
    except UserError:
        raise
    except Exception as error:  # safetensors, pickle and the hub have errors of their own kind each
        raise UserError(_load_error_message(folder, weights, error)) from error
    if problem := _loading_problem(type(model).__name__, loading_info):
        raise UserError(f"model.weights: {weights}: {problem}; weights and config.json must be of one complete model")
    model.generation_config = read_generation_config(weights, model.config, revision, local_files_only=True)
    return model


def _loading_problem(kind: str, loading_info: Mapping[str, Any]) -> str | None:
    """What does not fit between a model and its file of weights."""
    missing, unexpected = (sorted(map(str, loading_info[keys])) for keys in ("missing_keys", "unexpected_keys"))
    mismatched = sorted(loading_info["mismatched_keys"], key=str)
    if missing:
        return f"has no weights {missing[0]!r} ({len(missing)} are missing of a {kind})"
    if unexpected:
        return f"a {kind} does not have {unexpected[0]!r} ({len(unexpected)} would be ignored)"
    if mismatched:
        name, *shapes = mismatched[0] if isinstance(mismatched[0], tuple) else (mismatched[0],)
        shape_names = " and ".join(str(tuple(shape)) for shape in shapes)
        return f"its config.json does not match its weights: {name} has two shapes ({shape_names})"
    return None


def check_no_hub_kernels(config: Any, where: str) -> None:
    """Raises `UserError` for a configuration that names a kernel of the hub, which is code, to compute attention with:
    transformers would fetch it and import it."""
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if key.endswith("attn_implementation") and "/" in str(value):
            raise UserError(f"{where}: its configuration names code of the hub ({key} {value}); must be eager or sdpa")
        check_no_hub_kernels(value, where)


def _load_error_message(folder: Path, weights: str, error: Exception) -> str:
    """Why the model cannot be loaded, with the file at fault and the remedy."""
    reason = error_text(error)
    if isinstance(error, ImportError):
        return f"model.weights: {weights}: {reason}"
    if not folder.is_dir():
        return f"model.weights: {weights!r} is not a model folder, and could not be loaded from the hub: {reason}"
    for path in sorted(folder.glob("*.safetensors")):
        if (file_error := _safetensors_error(path)) is not None:
            return f"model.weights: {path} is incomplete or damaged ({file_error}); copy or download it again"
    file_names = ", ".join(sorted(path.name for path in folder.iterdir())[:8])
    return f"model.weights: no model of this kind can be read from {weights} ({file_names}): {reason}"


def _safetensors_error(path: Path) -> str | None:
    """Why a file of weights cannot be opened."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt"):
            return None
    except (SafetensorError, OSError) as error:
        return error_text(error)


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Silences transformers' logs and progress bars of loading and writing weights; download bars (the hub's) stay."""
    from transformers.utils import logging

    hook = getattr(logging, "set_tqdm_hook", None)
    level = logging.get_verbosity()
    previous_hook = None if hook is None else hook(lambda bar, given, named: bar(*given, **{**named, "disable": True}))
    logging.set_verbosity(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if hook is not None:
            hook(previous_hook)


def resize_to_vocabulary(model: Any, vocabulary: Vocabulary, seed: int) -> None:
    """Reorders embedding and head of a pretrained model to the token ids of `vocabulary`.

    Rows of tokens not in the vocabulary are dropped; tokens new to the model get rows around the mean of the pretrained
    ones. Raises `UserError` for a vocabulary that is not based on a tokenizer of the model's.
    """
    pretrained_ids, num_rows = get_pretrained_ids(vocabulary), model.get_input_embeddings().weight.shape[0]
    if int(pretrained_ids.max()) >= num_rows:
        raise UserError(
            f"tokenizer: has id {int(pretrained_ids.max())}, the weights have {num_rows} rows; "
            "use the tokenizer of the same model"
        )
    _select_vocabulary_rows(model, pretrained_ids, seed)
    _set_token_ids(model.config, vocabulary)


def restore_vocabulary(model: Any, vocabulary: Vocabulary) -> None:
    """The inverse of `resize_to_vocabulary`: rows in the order of the ids of the tokenizer that `vocabulary` is based
    on. An id that is two tokens, such as [BOS] and [EOS], has the row of [EOS].

    Raises `UserError` for a vocabulary with further tokens, such as those of a number format."""
    pretrained_ids = get_pretrained_ids(vocabulary)
    if added := new_ids(vocabulary):
        raise UserError(
            f"tokenizer: {len(added)} tokens, such as {vocabulary.tokens[added[0]]!r}, are not of the pretrained "
            "tokenizer; number_format=AsIs and PerDigit have none"
        )
    has_id = pretrained_ids >= 0
    ids = np.full(int(pretrained_ids.max()) + 1, -1, dtype=np.int64)
    ids[pretrained_ids[has_id]] = np.flatnonzero(has_id)
    _select_vocabulary_rows(model, ids, 0)
    start_id = getattr(model.config, "decoder_start_token_id", None)
    model.config.vocab_size = len(ids)
    for name, i in {"pad": PAD, "bos": BOS, "eos": EOS}.items():
        setattr(model.config, f"{name}_token_id", int(pretrained_ids[i]) if has_id[i] else None)
    if start_id is not None:
        model.config.decoder_start_token_id = int(pretrained_ids[start_id])
    if hasattr(model.config, "decoder_vocab_size"):
        model.config.decoder_vocab_size = len(ids)


def _select_vocabulary_rows(model: Any, row_ids: npt.NDArray[np.int64], seed: int) -> None:
    """Gives embeddings and head these of their rows, in this order; for -1, one drawn around their mean."""
    ids, generator = torch.from_numpy(row_ids), torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings()
    old_weights = {id(table.weight): table.weight for table in token_embeddings(model)}
    new_weights = {
        key: nn.Parameter(select_rows(weight.detach(), ids, generator)) for key, weight in old_weights.items()
    }
    # In place, since some models scale inside their own kind of embedding; a T5 has its table under three more names.
    for part in model.modules():
        if (new_weight := new_weights.get(id(getattr(part, "weight", None)))) is not None and part is not head:
            part.weight, part.num_embeddings = new_weight, len(ids)
            part.padding_idx = _new_id(row_ids, part.padding_idx)
    tied_weight = new_weights.get(id(head.weight))
    head.weight = (
        nn.Parameter(select_rows(head.weight.detach(), ids, generator)) if tied_weight is None else tied_weight
    )
    head.out_features = len(ids)
    if getattr(head, "bias", None) is not None:
        head.bias = nn.Parameter(select_rows(head.bias.detach()[:, None], ids, generator)[:, 0])
    if getattr(model, "final_logits_bias", None) is not None:
        model.final_logits_bias = select_rows(model.final_logits_bias.T, ids, generator).T.contiguous()


def token_embeddings(model: Any) -> list[Any]:
    """The embedding of tokens, of an encoder-decoder those of both parts. Raises `UserError` for other numbers of rows
    than the head has."""
    parts = [model, model.get_encoder(), model.get_decoder()] if model.config.is_encoder_decoder else [model]
    tables = [part.get_input_embeddings() for part in parts]
    sizes = {len(table.weight) for table in (*tables, model.get_output_embeddings())}
    if len(sizes) > 1:
        raise UserError(
            f"model.weights: a {model.config.model_type} whose embeddings and head have different numbers of rows "
            f"({', '.join(map(str, sorted(sizes)))}) is not supported; encoder and decoder must share a vocabulary"
        )
    return tables


def _new_id(row_ids: npt.NDArray[np.int64], old_id: int | None) -> int | None:
    """Where the row of an id is in a new order; None for no id, or a row that is dropped."""
    found = [] if old_id is None else np.flatnonzero(row_ids == old_id).tolist()
    return found[0] if found else None


def _set_token_ids(config: Any, vocabulary: Vocabulary) -> None:
    if config.is_encoder_decoder and hasattr(config, "decoder_start_token_id"):
        config.decoder_start_token_id = _new_id(get_pretrained_ids(vocabulary), config.decoder_start_token_id)
    if hasattr(config, "decoder_vocab_size"):  # Marian's
        config.decoder_vocab_size = vocabulary.size
    config.vocab_size = vocabulary.size
    config.pad_token_id, config.bos_token_id, config.eos_token_id = PAD, BOS, EOS


def get_pretrained_ids(vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """The row of pretrained weights of each token, -1 for none. Raises `UserError` where that is unknown."""
    if vocabulary.pretrained_ids is None:
        raise UserError(
            "tokenizer: the weights are of another vocabulary, and this tokenizer does not say which of its ids are "
            "theirs; Subwords(tokenizer=...) of the same model does, or weights=null"
        )
    return vocabulary.pretrained_ids


def new_ids(vocabulary: Vocabulary) -> list[int]:
    """The ids of tokens that pretrained weights have no row of; [PAD], [UNK], [BOS] and [EOS] are left out."""
    return [*map(int, np.flatnonzero(get_pretrained_ids(vocabulary)[EOS + 1 :] < 0) + EOS + 1)]


def select_rows(
    weight: Float[Tensor, "foreign width"], ids: Int[Tensor, " vocabulary"], generator: torch.Generator
) -> Float[Tensor, "vocabulary width"]:
    """The rows of a table with these ids; for -1, one drawn around their mean."""
    is_new = ids < 0
    rows = weight[ids.clamp(min=0)].clone()
    if bool(is_new.any()):
        std, mean = torch.std_mean(weight, dim=0, correction=0)
        noise = torch.randn(int(is_new.sum()), weight.shape[1], generator=generator, dtype=weight.dtype)
        rows[is_new] = mean + NEW_ROW_STD * std * noise
    return rows

"""Wrappers around Hugging Face models: loading, vocabulary, and batched generation of rows of different lengths."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import ERROR
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.batch import Model, ModelSpec, Output, StepContext, Tokens
from numerate.errors import UserError
from numerate.mixers.attention_maps import LayerMaps, MapKind
from numerate.text.models.number_inputs import NUMBER_TOKEN, NumberEmbedding, NumberHead
from numerate.vocabulary import BOS, EOS, PAD, Vocabulary

NEW_ROW_STD = 0.1
"""How far a row that no pretrained one belongs to is drawn from their mean, in their own standard deviations."""


class HuggingFaceModel(Model):
    """A Hugging Face model with an optional number embedding and number head."""

    def __init__(self, model: nn.Module, embedding: nn.Module, head: nn.Module, width: int) -> None:
        super().__init__()
        self.hf_model = model
        self._embedding, self._head, self.width = (
            (embedding,),
            (head,),
            width,
        )  # in tuples: already submodules of `hf_model`
        self.is_tied = getattr(head, "weight", None) is embedding.weight
        self.number_embedding: nn.Module | None = None
        self.number_head: Any = None

    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """Its layers, each of which FSDP wraps."""

    def pretrained_config(self) -> dict[str, Any] | None:
        """Its configuration, and whether embedding and head are tied; None without pretrained weights."""
        if getattr(getattr(self, "spec", None), "weights", None) is None:
            return None
        wrapped: Any = self.hf_model
        config = json.loads(wrapped.config.to_json_string(use_diff=False))
        config.pop("_name_or_path", None)  # a local path, which may be private
        return {"config": config, "tied": self.is_tied}

    @abstractmethod
    def attention_maps(self, tokens: Tokens, source: Tokens | None = None) -> list[LayerMaps]:
        """The attention weights of a forward over these rows, by layer. Raises `UserError` where there are none."""

    def add_number_modules(
        self, vocabulary: Vocabulary, embedding: NumberEmbedding | None, head: NumberHead | None
    ) -> None:
        """Adds a number embedding and a number head."""
        self.number_embedding = None if embedding is None else embedding.build(vocabulary, self.width)
        self.number_head = None if head is None else head.build(self.width)
        self.regression_token_id = (
            vocabulary.token_to_id.get(NUMBER_TOKEN) if head is not None and head.read_at == "start" else None
        )

    def assign_positions(self, tokens: Tokens, step_context: StepContext) -> Tokens:
        """The wrapped model has its own positions."""
        return replace(tokens, position_ids=())

    def num_position_offsets(self) -> int:
        return 1

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {name: (1.0, parameter.dim() >= 2) for name, parameter in self.named_parameters()}

    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def embed_tokens(
        self, ids: Int[Tensor, "rows time"], number_values: Float[Tensor, "rows time"] | None
    ) -> Float[Tensor, "rows time width"]:
        """The input embeddings of tokens."""
        x: Tensor = self._embedding[0](ids)
        return x if self.number_embedding is None else self.number_embedding(x, ids, number_values)

    def make_output(
        self,
        hidden: Float[Tensor, "rows positions width"],
        target_positions: Int[Tensor, "rows targets"] | None = None,
        *,
        scale: float = 1.0,
        start_state: Float[Tensor, "rows 1 width"] | None = None,
    ) -> Output:
        """The output for hidden states of the last layer, which are multiplied by `scale` before the head.
        `start_state` is the state at the answer's start, for number heads that read only that."""
        number_head = self.number_head
        states = hidden
        if target_positions is not None:
            states = torch.take_along_dim(hidden, target_positions[..., None], dim=1)
        head: Any = self._head[0]
        scaled_states = states if scale == 1.0 else states * scale
        if number_head is None:
            return Output(scaled_states, head, target_positions=target_positions)
        if number_head.read_at == "start":
            states = (hidden[:, :1] if start_state is None else start_state).expand(-1, states.shape[1], -1)
        return Output(
            scaled_states,
            head,
            target_positions=target_positions,
            number_head=BoundNumberHead(number_head, states),
            unscale=number_head.unscale,
        )


class BoundNumberHead:
    """A number head applied to the unscaled hidden states of one output."""

    def __init__(self, number_head: Callable[[Tensor], Tensor], hidden_states: Tensor) -> None:
        self.number_head, self.hidden_states = number_head, hidden_states

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.number_head(self.hidden_states)


@dataclass
class CacheState:
    """The generation state of left-padded rows.

    - `cache` is the Hugging Face cache, `attention_mask` its attention mask, `lengths` the number of tokens of each
      row.
    - `encoder_hidden_states` and `encoder_attention_mask` are the encoder's outputs and their attention mask.
    - `start_state` is the state at each row's last prompt token.
    """

    cache: Any
    attention_mask: Bool[Tensor, "rows columns"]
    lengths: Int[Tensor, " rows"]
    start_state: Float[Tensor, "rows 1 width"] | None = None
    encoder_hidden_states: Float[Tensor, "rows source width"] | None = None
    encoder_attention_mask: Bool[Tensor, "rows source"] | None = None

    def reorder_rows(self, rows: Int[Tensor, " reorder_rows"]) -> "CacheState":
        """These rows, in this order. The cache is changed in place."""
        self.cache.reorder_cache(rows)
        tensors = {name: None if part is None else part[rows] for name, part in vars(self).items() if name != "cache"}
        return CacheState(self.cache, **tensors)  # type: ignore[arg-type]


def to_left_padding(tokens: Tokens) -> tuple[Tokens, Bool[Tensor, "rows columns"]]:
    """The rows padded on the left, and their attention mask."""
    time = tokens.ids.shape[1]
    columns = torch.arange(time, device=tokens.ids.device)
    source_columns = columns + tokens.lengths[:, None] - time
    attention_mask = source_columns >= 0
    gather_index = source_columns.clamp(min=0)
    ids = torch.where(attention_mask, tokens.ids.gather(1, gather_index), 0)
    number_values = (
        None
        if tokens.number_values is None
        else torch.where(attention_mask, tokens.number_values.gather(1, gather_index), 1.0)
    )
    return replace(tokens, ids=ids, number_values=number_values), attention_mask


def make_attention_mask(tokens: Tokens) -> Bool[Tensor, "rows time"]:
    """The attention mask of right-padded rows."""
    return torch.arange(tokens.ids.shape[1], device=tokens.ids.device) < tokens.lengths[:, None]


def check_no_blocked_tokens(tokens: Tokens, name: str) -> None:
    """Raises `UserError` for blocked tokens, which Hugging Face models cannot mask."""
    if tokens.blocked_keys is not None:
        raise UserError(f"layout.blocked_tokens: {name} does not support blocked tokens; use a Decoder with Attention")


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """Switches a model of transformers to eager attention, which returns its weights (fused attention does not)."""
    previous = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(previous)


def layer_maps(kind: MapKind, maps: Sequence[Tensor | None] | None, part: str = "") -> list[LayerMaps]:
    """Attention weights returned by transformers, one entry for each layer with attention."""
    return [
        LayerMaps(i, 0, {kind: weights.detach()}, part) for i, weights in enumerate(maps or ()) if weights is not None
    ]


def import_transformers(needed_by: str) -> Any:
    """The package `transformers`. Raises `UserError` where it is not installed."""
    try:
        import transformers as package
    except ImportError as error:
        raise UserError(f"{needed_by} needs transformers: pip install 'numerate[huggingface]'") from error
    return package


class HuggingFaceSpec(ModelSpec):
    """The spec of a Hugging Face model, with or without pretrained `weights`."""

    is_hugging_face: ClassVar[bool] = True

    weights: str | None

    @abstractmethod
    def pretrained_config(self, vocabulary: Vocabulary) -> dict[str, Any] | None:
        """What `build_from_config` builds of `weights`, by their configuration alone; None without weights.

        Raises `UserError` where the configuration cannot be read, with settings that need none."""

    @abstractmethod
    def build_from_config(
        self, vocabulary: Vocabulary, seed: int, pretrained_config: Mapping[str, Any]
    ) -> HuggingFaceModel:
        """The model that its `pretrained_config` describes, with random weights, to be loaded afterwards."""


def load_pretrained_config(
    weights: str, vocabulary: Vocabulary, alternative_settings: str, **options: Any
) -> dict[str, Any]:
    """The `pretrained_config` from the configuration (`config.json`) of a folder or of the hub, for this vocabulary.
    Raises `UserError` if it cannot be read; the message suggests `alternative_settings`, which need no weights."""
    package = import_transformers("model.weights")
    try:
        with _silence_transformers():
            config = package.AutoConfig.from_pretrained(weights, trust_remote_code=False, **options)
    except Exception as error:  # the hub, JSON and the classes of configurations have errors of their own kind each
        raise UserError(
            f"model.weights: {weights}: has no configuration that can be read here ({first_line(error)}); "
            f"{alternative_settings} counts and times a model without weights"
        ) from error
    return to_pretrained_config(config, vocabulary)


def to_pretrained_config(config: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """The `pretrained_config` from a configuration of transformers, for this vocabulary.

    Raises `UserError` for a vocabulary that pretrained rows cannot be put into the order of."""
    get_pretrained_ids(vocabulary)
    _set_token_ids(config, vocabulary)
    # transformers stores an untied head of T5 1.1 this way, and ties the head where the entry is missing.
    tied = config.tie_word_embeddings and getattr(config, "scale_decoder_outputs", True)
    return {"config": json.loads(config.to_json_string(use_diff=False)), "tied": bool(tied)}


def build_untrained(package: Any, model_class: Any, pretrained_config: Mapping[str, Any], **options: Any) -> Any:
    """A model of transformers from its `pretrained_config`, with random weights. `model_class` builds one from a
    configuration.

    Raises `UserError` for a configuration that this version of transformers does not know."""
    config = {**pretrained_config["config"], **options}
    check_no_hub_kernels(config, "model")
    model_type = config.pop("model_type")
    try:
        model = model_class(package.AutoConfig.for_model(model_type, **config))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"model: transformers {package.__version__} does not know a {model_type} as "
            f"{config.get('transformers_version')} wrote it ({first_line(error)}); install that version"
        ) from error
    input_embeddings, output_embeddings = model.get_input_embeddings(), model.get_output_embeddings()
    if not pretrained_config["tied"] and output_embeddings.weight is input_embeddings.weight:
        output_embeddings.weight = nn.Parameter(input_embeddings.weight.detach().clone())
    return model


def load_pretrained(auto_class: Any, weights: str, **options: Any) -> Any:
    """A model from a folder or the hub, in float32. Raises `UserError` where there is none under that name, and where
    it is not whole: a file that was cut short, a configuration of other shapes, weights that are missing."""
    folder = Path(weights)
    if folder.is_dir() and "gguf_file" not in options and not (folder / "config.json").is_file():
        file_names = sorted(path.name for path in folder.iterdir())[:8]
        raise UserError(
            f"model.weights: {weights} has no config.json (it has: {', '.join(file_names) or 'nothing'}); it must be a "
            "folder that save_pretrained wrote completely"
        )
    try:
        with _silence_transformers():
            if "gguf_file" not in options:
                config, _ = import_transformers("model.weights").PretrainedConfig.get_config_dict(weights)
                check_no_hub_kernels(config, f"model.weights: {weights}")
            model, loading_info = auto_class.from_pretrained(
                weights,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,  # otherwise it prompts on the terminal
                **options,
            )
    except UserError:
        raise
    except Exception as error:  # safetensors, pickle and the hub have errors of their own kind each
        raise UserError(_load_error_message(folder, weights, error)) from error
    missing, unexpected = (sorted(map(str, loading_info[keys])) for keys in ("missing_keys", "unexpected_keys"))
    mismatched = sorted(loading_info["mismatched_keys"], key=str)
    if missing:
        raise UserError(
            f"model.weights: {weights}: has no weights {missing[0]!r} ({len(missing)} are missing of a "
            f"{type(model).__name__}); the file must hold a complete model of this kind"
        )
    if unexpected:
        raise UserError(
            f"model.weights: {weights}: a {type(model).__name__} does not have {unexpected[0]!r} ({len(unexpected)} "
            "would be ignored); the weights must be of exactly this kind of model"
        )
    if mismatched:
        name, *shapes = mismatched[0] if isinstance(mismatched[0], tuple) else (mismatched[0],)
        shape_names = " and ".join(str(tuple(shape)) for shape in shapes)
        raise UserError(
            f"model.weights: {weights}: its config.json does not match its weights: {name} has two shapes "
            f"({shape_names}); both files must be of the same model"
        )
    return model


def check_no_hub_kernels(config: Any, where: str) -> None:
    """Raises `UserError` for a configuration that names a kernel of the hub, which is code, to compute attention with:
    transformers would fetch it and import it."""
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if key.endswith("attn_implementation") and "/" in str(value):
            raise UserError(f"{where}: its configuration names code of the hub ({key} {value}); must be eager or sdpa")
        check_no_hub_kernels(value, where)


def _load_error_message(folder: Path, weights: str, error: Exception) -> str:
    """Why the model cannot be loaded, with the file at fault and the remedy."""
    reason = first_line(error)
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
        return first_line(error)


@contextmanager
def _silence_transformers() -> Iterator[None]:
    """Silences transformers' progress bar and report of loading weights; download bars (the hub's) stay."""
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


def enable_gradient_checkpointing(model: Any) -> None:
    """Enables activation checkpointing: layers are recomputed in the backward pass."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    if enable is not None:  # the newer name, beside which the other is deprecated
        enable()
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def resize_to_vocabulary(model: Any, vocabulary: Vocabulary, seed: int) -> None:
    """Reorders embedding and head of a pretrained model to the token ids of `vocabulary`.

    Rows of tokens not in the vocabulary are dropped; tokens new to the model get rows around the mean of the pretrained
    ones. Raises `UserError` for a vocabulary that is not based on a tokenizer of the model's.
    """
    pretrained_ids = get_pretrained_ids(vocabulary)
    input_embeddings, output_embeddings = model.get_input_embeddings(), model.get_output_embeddings()
    if int(pretrained_ids.max()) >= input_embeddings.weight.shape[0]:
        raise UserError(
            f"tokenizer: has id {int(pretrained_ids.max())}, the weights have {input_embeddings.weight.shape[0]} rows; "
            "use the tokenizer of the same model"
        )
    ids = torch.from_numpy(pretrained_ids)
    generator = torch.Generator().manual_seed(seed)
    old_weight = input_embeddings.weight
    is_tied = output_embeddings.weight is old_weight
    new_weight = nn.Parameter(select_rows(old_weight.detach(), ids, generator))
    # In place, since some models scale inside their own kind of embedding; a T5 has its table under three more names.
    for part in [
        part
        for part in model.modules()
        if getattr(part, "weight", None) is old_weight and part is not output_embeddings
    ]:
        part.weight, part.num_embeddings, part.padding_idx = new_weight, vocabulary.size, None
    output_embeddings.weight = (
        new_weight if is_tied else nn.Parameter(select_rows(output_embeddings.weight.detach(), ids, generator))
    )
    output_embeddings.out_features = vocabulary.size
    if getattr(output_embeddings, "bias", None) is not None:
        output_embeddings.bias = nn.Parameter(
            select_rows(output_embeddings.bias.detach()[:, None], ids, generator)[:, 0]
        )
    _set_token_ids(model.config, vocabulary)


def _set_token_ids(config: Any, vocabulary: Vocabulary) -> None:
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

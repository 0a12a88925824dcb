"""Wrappers around Hugging Face models: loading, vocabulary, and batched generation of rows of different lengths."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import ERROR
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.batch import Model, ModelSpec, Output, StepContext, Tokens
from numerate.errors import UserError
from numerate.mixers.attention_maps import LayerMaps, Sort
from numerate.text.models.number_inputs import NUMBER_TOKEN, NumberEmbedding, NumberHead
from numerate.vocabulary import BEGIN, END, PAD, Vocabulary

NEW_ROW_SPREAD = 0.1
"""How far a row that no pretrained one belongs to is drawn from their mean, in their own standard deviations."""


class HuggingFaceModel(Model):
    """A Hugging Face model with an optional number embedding and number head."""

    def __init__(self, model: nn.Module, embedding: nn.Module, head: nn.Module, width: int) -> None:
        super().__init__()
        self.held = model
        self._embedding, self._head, self.width = (
            (embedding,),
            (head,),
            width,
        )  # in tuples: already submodules of `held`
        self.tied = getattr(head, "weight", None) is embedding.weight
        self.number_embedding: nn.Module | None = None
        self.number_head: Any = None

    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """Its layers, each of which FSDP wraps."""

    def origin(self) -> dict[str, Any] | None:
        """Its configuration, and whether embedding and head are tied; None without pretrained weights."""
        if getattr(getattr(self, "spec", None), "weights", None) is None:
            return None
        wrapped: Any = self.held
        config = json.loads(wrapped.config.to_json_string(use_diff=False))
        config.pop("_name_or_path", None)  # a local path, which may be private
        return {"config": config, "tied": self.tied}

    @abstractmethod
    def maps(self, tokens: Tokens, source: Tokens | None = None) -> list[LayerMaps]:
        """The attention weights of a forward over these rows, by layer. Raises `UserError` where there are none."""

    def add_numbers(self, vocabulary: Vocabulary, embedding: NumberEmbedding | None, head: NumberHead | None) -> None:
        """Adds a number embedding and a number head."""
        self.number_embedding = None if embedding is None else embedding.build(vocabulary, self.width)
        self.number_head = None if head is None else head.build(self.width)
        self.regression = vocabulary.ids.get(NUMBER_TOKEN) if head is not None and head.read_at == "start" else None

    def assign_positions(self, tokens: Tokens, draw: StepContext) -> Tokens:
        """The wrapped model has its own positions."""
        return replace(tokens, position_ids=())

    def position_offsets(self) -> int:
        return 1

    def settings_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {name: (1.0, parameter.dim() >= 2) for name, parameter in self.named_parameters()}

    def parameter_count(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def vectors(
        self, ids: Int[Tensor, "rows time"], values: Float[Tensor, "rows time"] | None
    ) -> Float[Tensor, "rows time width"]:
        """The input embeddings of tokens."""
        x: Tensor = self._embedding[0](ids)
        return x if self.number_embedding is None else self.number_embedding(x, ids, values)

    def output(
        self,
        hidden: Float[Tensor, "rows places width"],
        target_positions: Int[Tensor, "rows targets"] | None = None,
        *,
        scale: float = 1.0,
        first: Float[Tensor, "rows 1 width"] | None = None,
    ) -> Output:
        """The output for hidden states of the last layer, which are multiplied by `scale` before the head. `first` is
        the state at the answer's start, for number heads that read only that."""
        part = self.number_head
        read = hidden
        if target_positions is not None:
            read = torch.take_along_dim(hidden, target_positions[..., None], dim=1)
        head: Any = self._head[0]
        scaled = read if scale == 1.0 else read * scale
        if part is None:
            return Output(scaled, head, target_positions=target_positions)
        if part.reads == "start":
            read = (hidden[:, :1] if first is None else first).expand(-1, read.shape[1], -1)
        return Output(
            scaled,
            head,
            target_positions=target_positions,
            number_head=NumbersThere(part, read),
            unscaled=part.unscaled,
        )


class NumbersThere:
    """A number head applied to the unscaled hidden states of one output."""

    def __init__(self, part: Callable[[Tensor], Tensor], states: Tensor) -> None:
        self.part, self.states = part, states

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.part(self.states)


@dataclass
class CacheState:
    """The generation state of left-padded rows.

    - `cache` is the Hugging Face cache, `seen` its attention mask, `lengths` the number of tokens of each row.
    - `memory` and `memory_seen` are the encoder's outputs and their attention mask.
    - `first` is the state at each row's last prompt token.
    """

    cache: Any
    seen: Bool[Tensor, "rows columns"]
    lengths: Int[Tensor, " rows"]
    first: Float[Tensor, "rows 1 width"] | None = None
    memory: Float[Tensor, "rows source width"] | None = None
    memory_seen: Bool[Tensor, "rows source"] | None = None

    def chosen(self, rows: Int[Tensor, " chosen"]) -> "CacheState":
        """These rows, in this order. The cache is changed in place."""
        self.cache.reorder_cache(rows)
        rest = {name: None if part is None else part[rows] for name, part in vars(self).items() if name != "cache"}
        return CacheState(self.cache, **rest)  # type: ignore[arg-type]


def left_padded(tokens: Tokens) -> tuple[Tokens, Bool[Tensor, "rows columns"]]:
    """The rows padded on the left, and their attention mask."""
    time = tokens.ids.shape[1]
    columns = torch.arange(time, device=tokens.ids.device)
    from_column = columns + tokens.lengths[:, None] - time
    real = from_column >= 0
    place = from_column.clamp(min=0)
    ids = torch.where(real, tokens.ids.gather(1, place), 0)
    values = None if tokens.values is None else torch.where(real, tokens.values.gather(1, place), 1.0)
    return replace(tokens, ids=ids, values=values), real


def real_places(tokens: Tokens) -> Bool[Tensor, "rows time"]:
    """The attention mask of right-padded rows."""
    return torch.arange(tokens.ids.shape[1], device=tokens.ids.device) < tokens.lengths[:, None]


def refuse_hidden(tokens: Tokens, name: str) -> None:
    """Raises `UserError` for blocked tokens, which Hugging Face models cannot mask."""
    if tokens.blocked_keys is not None:
        raise UserError(
            f"layout.blocked_tokens: {name} cannot hide tokens from its attention; a Decoder with Attention can"
        )


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """Switches a model of transformers to eager attention, which returns its weights (fused attention does not)."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def layer_maps(sort: Sort, maps: Sequence[Tensor | None] | None, part: str = "") -> list[LayerMaps]:
    """Attention weights returned by transformers, one entry for each layer with attention."""
    return [LayerMaps(i, 0, {sort: one.detach()}, part) for i, one in enumerate(maps or ()) if one is not None]


def transformers(why: str) -> Any:
    """The package `transformers`. Raises `UserError` where it is not installed."""
    try:
        import transformers as package
    except ImportError as error:
        raise UserError(f"{why} needs transformers: pip install 'numerate[huggingface]'") from error
    return package


class HuggingFaceSpec(ModelSpec):
    """The spec of a Hugging Face model, with or without pretrained `weights`."""

    weights: str | None

    @abstractmethod
    def origin(self, vocabulary: Vocabulary) -> dict[str, Any] | None:
        """What `build_again` builds of `weights`, by their configuration alone; None without weights.

        Raises `UserError` where the configuration cannot be read, with settings that need none."""

    @abstractmethod
    def build_again(self, vocabulary: Vocabulary, seed: int, origin: Mapping[str, Any]) -> HuggingFaceModel:
        """The model that its `origin` describes, with random weights, to be loaded afterwards."""

    def rebuild(self, vocabulary: Vocabulary, seed: int, origin: Mapping[str, Any] | None = None) -> Model:
        if origin is None or self.weights is None:
            return self.build(vocabulary, seed)
        return self.build_again(vocabulary, seed, origin)


def configured(weights: str, vocabulary: Vocabulary, instead: str, **options: Any) -> dict[str, Any]:
    """The origin that the configuration (`config.json`) of a folder or of the hub describes, with the rows of this
    vocabulary. Raises `UserError` where it cannot be read, which names the settings `instead` of weights."""
    package = transformers("model.weights")
    try:
        with _quiet():
            config = package.AutoConfig.from_pretrained(weights, trust_remote_code=False, **options)
    except Exception as error:  # the hub, JSON and the classes of configurations have errors of their own kind each
        raise UserError(
            f"model.weights: {weights}: has no configuration that can be read here ({first_line(error)}); {instead} "
            "counts and times a model without weights"
        ) from error
    return origin_by(config, vocabulary)


def origin_by(config: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """The origin that a configuration of transformers describes, with the rows of this vocabulary.

    Raises `UserError` for a vocabulary that pretrained rows cannot be put into the order of."""
    foreign_ids(vocabulary)
    _take_ids(config, vocabulary)
    # transformers stores an untied head of T5 1.1 this way, and ties the head where the entry is missing.
    tied = config.tie_word_embeddings and getattr(config, "scale_decoder_outputs", True)
    return {"config": json.loads(config.to_json_string(use_diff=False)), "tied": bool(tied)}


def untrained(package: Any, kind: Any, origin: Mapping[str, Any], **options: Any) -> Any:
    """A model of transformers from its origin, with random weights. `kind` builds one from a configuration.

    Raises `UserError` for a configuration that this version of transformers does not know."""
    given = {**origin["config"], **options}
    refuse_kernels(given, "model")
    name = given.pop("model_type")
    try:
        model = kind(package.AutoConfig.for_model(name, **given))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"model: transformers {package.__version__} does not know a {name} as {given.get('transformers_version')} "
            f"wrote it ({first_line(error)}); that version is right"
        ) from error
    inward, outward = model.get_input_embeddings(), model.get_output_embeddings()
    if not origin["tied"] and outward.weight is inward.weight:
        outward.weight = nn.Parameter(inward.weight.detach().clone())
    return model


def pretrained(auto: Any, weights: str, **options: Any) -> Any:
    """A model from a folder or the hub, in float32. Raises `UserError` where there is none under that name, and where
    it is not whole: a file that was cut short, a configuration of other shapes, weights that are missing."""
    folder = Path(weights)
    if folder.is_dir() and "gguf_file" not in options and not (folder / "config.json").is_file():
        known = sorted(path.name for path in folder.iterdir())[:8]
        raise UserError(
            f"model.weights: {weights} has no config.json (it has: {', '.join(known) or 'nothing'}); a folder that "
            "save_pretrained wrote whole is right"
        )
    try:
        with _quiet():
            if "gguf_file" not in options:
                config, _ = transformers("model.weights").PretrainedConfig.get_config_dict(weights)
                refuse_kernels(config, f"model.weights: {weights}")
            model, found = auto.from_pretrained(
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
        raise UserError(_why_not(folder, weights, error)) from error
    missing, left = (sorted(map(str, found[keys])) for keys in ("missing_keys", "unexpected_keys"))
    other = sorted(found["mismatched_keys"], key=str)
    if missing:
        raise UserError(
            f"model.weights: {weights}: has no weights {missing[0]!r} ({len(missing)} are missing of a "
            f"{type(model).__name__}); a whole model of this kind is right"
        )
    if left:
        raise UserError(
            f"model.weights: {weights}: a {type(model).__name__} does not have {left[0]!r} ({len(left)} would be left "
            "out); weights of a model of exactly this kind are right"
        )
    if other:
        name, *shapes = other[0] if isinstance(other[0], tuple) else (other[0],)
        both = " and ".join(str(tuple(shape)) for shape in shapes)
        raise UserError(
            f"model.weights: {weights}: its config.json is not of these weights: {name} has two shapes ({both}); "
            "the two files of one model are right"
        )
    return model


def refuse_kernels(given: Any, where: str) -> None:
    """Raises `UserError` for a configuration that names a kernel of the hub, which is code, to compute attention with:
    transformers would fetch it and import it."""
    for key, value in given.items() if isinstance(given, Mapping) else ():
        if key.endswith("attn_implementation") and "/" in str(value):
            raise UserError(f"{where}: its configuration names code of the hub ({key} {value}); eager or sdpa is right")
        refuse_kernels(value, where)


def _why_not(folder: Path, weights: str, error: Exception) -> str:
    """Why the model cannot be loaded, with the file at fault and the remedy."""
    reason = first_line(error)
    if isinstance(error, ImportError):
        return f"model.weights: {weights}: {reason}"
    if not folder.is_dir():
        return (
            f"model.weights: {weights!r} is no folder with a model, and none of that name could be had from the hub: "
            f"{reason}"
        )
    for path in sorted(folder.glob("*.safetensors")):
        if (why := _torn(path)) is not None:
            return f"model.weights: {path} is not whole ({why}); copying or downloading it once more is right"
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:8])
    return f"model.weights: no model of this kind can be read from {weights} ({found}): {reason}"


def _torn(path: Path) -> str | None:
    """Why a file of weights cannot be opened."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt"):
            return None
    except (SafetensorError, OSError) as error:
        return first_line(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers' progress bar and report of loading weights; download bars (the hub's) stay."""
    from transformers.utils import logging

    hook = getattr(logging, "set_tqdm_hook", None)
    level = logging.get_verbosity()
    before = None if hook is None else hook(lambda bar, given, named: bar(*given, **{**named, "disable": True}))
    logging.set_verbosity(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if hook is not None:
            hook(before)


def enable_gradient_checkpointing(model: Any) -> None:
    """Enables activation checkpointing: layers are recomputed in the backward pass."""
    newer = getattr(model, "activation_checkpointing_enable", None)
    if newer is not None:  # the newer name, beside which the other is deprecated
        newer()
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def fit_vocabulary(model: Any, vocabulary: Vocabulary, seed: int) -> None:
    """Reorders embedding and head of a pretrained model to the token ids of `vocabulary`.

    Rows of tokens not in the vocabulary are dropped; tokens new to the model get rows around the mean of the pretrained
    ones. Raises `UserError` for a vocabulary that is not based on a tokenizer of the model's.
    """
    foreign = foreign_ids(vocabulary)
    inward, outward = model.get_input_embeddings(), model.get_output_embeddings()
    if int(foreign.max()) >= inward.weight.shape[0]:
        raise UserError(
            f"tokenizer: has id {int(foreign.max())}, the weights have {inward.weight.shape[0]} rows; "
            "take the tokenizer of the same model"
        )
    ids = torch.from_numpy(foreign)
    draws = torch.Generator().manual_seed(seed)
    old = inward.weight
    tied = outward.weight is old
    table = nn.Parameter(rows_for(old.detach(), ids, draws))
    # In place, since some models scale inside their own kind of embedding; a T5 has its table under three more names.
    for part in [part for part in model.modules() if getattr(part, "weight", None) is old and part is not outward]:
        part.weight, part.num_embeddings, part.padding_idx = table, vocabulary.size, None
    outward.weight = table if tied else nn.Parameter(rows_for(outward.weight.detach(), ids, draws))
    outward.out_features = vocabulary.size
    if getattr(outward, "bias", None) is not None:
        outward.bias = nn.Parameter(rows_for(outward.bias.detach()[:, None], ids, draws)[:, 0])
    _take_ids(model.config, vocabulary)


def _take_ids(config: Any, vocabulary: Vocabulary) -> None:
    config.vocab_size = vocabulary.size
    config.pad_token_id, config.bos_token_id, config.eos_token_id = PAD, BEGIN, END


def foreign_ids(vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """The row of pretrained weights of each token, -1 for none. Raises `UserError` where that is unknown."""
    if vocabulary.foreign is None:
        raise UserError(
            "tokenizer: the weights are of another vocabulary, and this tokenizer does not say which of its ids are "
            "theirs; Subwords(tokenizer=...) of the same model does, or weights=null"
        )
    return vocabulary.foreign


def rows_for(
    table: Float[Tensor, "foreign width"], ids: Int[Tensor, " vocabulary"], draws: torch.Generator
) -> Float[Tensor, "vocabulary width"]:
    """The rows of a table with these ids; for -1, one drawn around their mean."""
    new = ids < 0
    found = table[ids.clamp(min=0)].clone()
    if bool(new.any()):
        spread, mean = torch.std_mean(table, dim=0, correction=0)
        noise = torch.randn(int(new.sum()), table.shape[1], generator=draws, dtype=table.dtype)
        found[new] = mean + NEW_ROW_SPREAD * spread * noise
    return found

"""Wrappers around Hugging Face models, with batched generation of rows of different lengths."""

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.batch import DecodingStep, Model, ModelSpec, Output, StepContext, Tokens
from numerate.errors import UserError
from numerate.mixers.attention_maps import LayerMaps, MapKind
from numerate.text.models.lora import LoRA, train_new_rows
from numerate.text.models.number_inputs import NUMBER_TOKEN, NumberEmbedding, NumberHead
from numerate.text.models.pretrained_weights import (
    Dtype,
    build_untrained,
    find_other_end_ids,
    import_transformers,
    read_end_ids,
)
from numerate.vocabulary import Vocabulary


class HuggingFaceModel(Model):
    """A Hugging Face model with an optional number embedding and number head.

    A subclass gives the forward pass over whole rows, and `decode` over new columns for generation.
    """

    spec: Any

    head_scale: float = 1.0
    """Factor on the last hidden states before the head."""

    def __init__(self, model: Any, embedding: nn.Module, head: Any, width: int) -> None:
        super().__init__()
        self.hf_model: Any = model
        self._embedding, self._head = (embedding,), (head,)  # in tuples: already submodules of `hf_model`
        self.width = width
        self.is_tied = getattr(head, "weight", None) is embedding.weight
        self.position_embedding: nn.Embedding | None = None
        self.number_embedding: nn.Module | None = None
        self.number_head: Any = None

    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """Its layers, each of which FSDP wraps."""

    def pretrained_config(self) -> dict[str, Any] | None:
        """Its configuration, and whether embedding and head are tied; None without pretrained weights."""
        if getattr(self.spec, "weights", None) is None:
            return None
        config = json.loads(self.hf_model.config.to_json_string(use_diff=False))
        config.pop("_name_or_path", None)  # a local path, which may be private
        return {"config": config, "tied": self.is_tied, "end_ids": read_end_ids(self.hf_model.generation_config)}

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

    def max_length(self) -> int | None:
        if self.position_embedding is not None:
            return self.position_embedding.num_embeddings
        return getattr(getattr(self.hf_model, "config", None), "max_position_embeddings", None)

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
        start_state: Float[Tensor, "rows 1 width"] | None = None,
    ) -> Output:
        """The output for hidden states of the last layer. `start_state` is the state at the answer's start, for number
        heads that read only that."""
        number_head = self.number_head
        states = hidden
        if target_positions is not None:
            states = torch.take_along_dim(hidden, target_positions[..., None], dim=1)
        head: Any = self._head[0]
        scaled_states = states if self.head_scale == 1.0 else states * self.head_scale
        if number_head is None:
            return Output(scaled_states, head, target_positions=target_positions)
        if number_head.read_at == "start":
            states = (hidden[:, :1] if start_state is None else start_state).expand(-1, states.shape[1], -1)
        return Output(
            scaled_states,
            head,
            target_positions=target_positions,
            number_head=lambda _: number_head(states),  # of the states before their scaling
            unscale=number_head.unscale if number_head.scale == "ln" else None,
        )

    # Generation -------------------------------------------------------------------------------------------------------

    def check_inputs(self, tokens: Tokens, source: Tokens | None) -> None:
        """Raises `UserError` for inputs that the model does not support."""
        if tokens.blocked_keys is not None:
            name = type(self.spec).__name__
            raise UserError(
                f"layout.blocked_tokens: {name} does not support blocked tokens; use a Decoder with Attention"
            )

    def encode_source(self, source: Tokens | None) -> tuple[Tensor | None, Tensor | None]:
        """The encoder's hidden states and their attention mask; None without an encoder."""
        return None, None

    def embed(self, tokens: Tokens, position_ids: Tensor | None = None) -> Float[Tensor, "rows time width"]:
        """The input embeddings, with positions if the model adds them."""
        return self.embed_tokens(tokens.ids, tokens.number_values)

    def empty_cache(self) -> Any:
        """A cache of transformers without tokens."""
        raise NotImplementedError

    def decode(self, tokens: Tokens, position_ids: Tensor, state: "CacheState") -> Float[Tensor, "rows read width"]:
        """The last hidden states of new columns, which are added to the cache."""
        raise NotImplementedError

    def prefill(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> DecodingStep:
        self.check_inputs(tokens, source)
        encoded = self.encode_source(source)
        padded_tokens, attention_mask = to_left_padding(tokens)
        state = CacheState(self.empty_cache(), attention_mask, tokens.lengths, None, *encoded)
        position_ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        state.start_state = self.decode(padded_tokens, position_ids, state)[:, -1:]
        return DecodingStep(self.make_output(state.start_state, start_state=state.start_state), state)

    def step(self, ids: Int[Tensor, " rows"], number_values: Tensor | None, state: "CacheState") -> DecodingStep:
        attention_mask = torch.cat([state.attention_mask, torch.ones_like(state.attention_mask[:, :1])], dim=1)
        new_state = replace(state, attention_mask=attention_mask, lengths=state.lengths + 1)
        new_values = None if number_values is None else number_values[:, None]
        tokens = Tokens(ids[:, None], state.lengths, state.lengths, new_values)
        hidden = self.decode(tokens, state.lengths[:, None], new_state)
        return DecodingStep(self.make_output(hidden, start_state=state.start_state), new_state)

    def reorder_rows(self, state: "CacheState", rows: Int[Tensor, " reorder_rows"]) -> "CacheState":
        return state.reorder_rows(rows)

    def check_length(self, num_tokens: int) -> None:
        """Raises `UserError` for more tokens than there are position embeddings."""
        limit = math.inf if self.position_embedding is None else self.position_embedding.num_embeddings
        if num_tokens > limit:
            raise UserError(
                f"model.max_position_embeddings: {num_tokens} tokens are more than the {limit} position embeddings; "
                f"use shorter examples, or model.max_position_embeddings={num_tokens}"
            )


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
    encoder_attention_mask: Bool[Tensor, "rows source"] | Int[Tensor, "rows source"] | None = None

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


class LogitsHead:
    """The head of a model whose logits are more than a linear map of hidden states: with a bias that is not trained, as
    in BART and Marian, or with soft capping, as in Gemma 2."""

    def __init__(self, model: Any) -> None:
        self.model, self.linear = model, model.get_output_embeddings()

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.linear.weight
        return weight

    def __call__(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.linear(hidden)
        bias = getattr(self.model, "final_logits_bias", None)  # a buffer, which moving a model to a device replaces
        if bias is not None:
            logits = logits + bias
        cap = softcap(self.model)
        return logits if cap is None else cap * (logits / cap).tanh()


def softcap(model: Any) -> float | None:
    """The value that the logits of a model stay below, by a hyperbolic tangent."""
    cap: float | None = getattr(model.config.get_text_config(decoder=True), "final_logit_softcapping", None)
    return cap


def make_head(model: Any) -> Any:
    """The function from the last hidden states of a model of transformers, scaled by `head_scale`, to logits."""
    is_linear = getattr(model, "final_logits_bias", None) is None and softcap(model) is None
    return model.get_output_embeddings() if is_linear else LogitsHead(model)


def largest_module_list(part: nn.Module) -> list[nn.Module]:
    """The layers of a stack: its list of modules with the most parameters."""
    module_lists: list[Any] = [module for module in part.modules() if isinstance(module, nn.ModuleList)]
    return list(max(module_lists, key=_num_parameters))


def _num_parameters(part: Any) -> int:
    return sum(int(weight.numel()) for weight in part.parameters())


def make_attention_mask(tokens: Tokens) -> Bool[Tensor, "rows time"]:
    """The attention mask of right-padded rows."""
    return torch.arange(tokens.ids.shape[1], device=tokens.ids.device) < tokens.lengths[:, None]


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


def encoder_decoder_maps(
    encoder: Sequence[Tensor | None] | None,
    decoder: Sequence[Tensor | None] | None,
    cross: Sequence[Tensor | None] | None,
) -> list[LayerMaps]:
    """The same of an encoder, and of a decoder with its self-attention and cross-attention."""
    pairs = zip(layer_maps("attention", decoder, "decoder"), layer_maps("cross attention", cross), strict=True)
    decoder_maps = [replace(one, maps={**one.maps, **two.maps}) for one, two in pairs]
    return layer_maps("attention", encoder, "encoder") + decoder_maps


def enable_gradient_checkpointing(model: Any) -> None:
    """Enables activation checkpointing: layers are recomputed in the backward pass."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    if enable is not None:  # the newer name, beside which the other is deprecated
        enable()
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})


class HuggingFaceSpec(ModelSpec):
    """The spec of a Hugging Face model, with or without pretrained `weights`."""

    is_hugging_face: ClassVar[bool] = True

    weights: str | None
    revision: str | None
    dtype: Dtype
    lora: LoRA | None

    config_overrides: ClassVar[Mapping[str, str]] = {}
    """Settings that replace entries of a pretrained configuration, by their names there."""

    @abstractmethod
    def pretrained_config(self, vocabulary: Vocabulary) -> dict[str, Any] | None:
        """What `build_from_config` builds of `weights`, by their configuration alone; None without weights.

        Raises `UserError` where the configuration cannot be read, with settings that need none."""

    @abstractmethod
    def create(self, package: Any, vocabulary: Vocabulary, seed: int) -> Any:
        """The model of transformers, pretrained or random."""

    @abstractmethod
    def model_class(self, package: Any) -> Callable[[Any], Any]:
        """What builds a model of transformers from a configuration."""

    @abstractmethod
    def wrap(self, model: Any, vocabulary: Vocabulary) -> HuggingFaceModel:
        """The model of transformers as one of numerate."""

    def build(self, vocabulary: Vocabulary, seed: int) -> HuggingFaceModel:
        package = import_transformers(f"model: {type(self).__name__}")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return self._wrap(self.create(package, vocabulary, seed), vocabulary)

    def build_from_config(
        self, vocabulary: Vocabulary, seed: int, pretrained_config: Mapping[str, Any]
    ) -> HuggingFaceModel:
        """The model that its `pretrained_config` describes, with random weights, to be loaded afterwards."""
        package = import_transformers(f"model: {type(self).__name__}")
        overrides = {name: getattr(self, setting) for setting, name in self.config_overrides.items()}
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            model = build_untrained(package, self.model_class(package), pretrained_config, **overrides)
            return self._wrap(model.to(getattr(torch, self.dtype)), vocabulary)

    def _wrap(self, model: Any, vocabulary: Vocabulary) -> HuggingFaceModel:
        if self.lora is not None:
            self.lora.add_to(model)
        wrapped = self.wrap(model, vocabulary)
        if self.weights is not None:
            wrapped.other_end_ids = find_other_end_ids(model, vocabulary)
        if self.lora is not None and self.weights is not None:
            train_new_rows(model, vocabulary)
        return wrapped

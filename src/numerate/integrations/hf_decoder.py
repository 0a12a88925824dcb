"""Numerate decoders as Hugging Face models: `AutoModelForCausalLM`, `generate`, `Trainer`.

Importing this file registers them; see `hf_registration`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from numerate.batch import Model, StepContext
from numerate.config import from_tree
from numerate.errors import UserError, raise_first
from numerate.integrations.hf_cache import NumerateCache, to_right_padding
from numerate.integrations.hf_config import NumerateConfig
from numerate.models.decoder import Decoder
from numerate.vocabulary import Vocabulary

_transformers: Any = import_module("transformers")  # of which little is typed


class NumerateForCausalLM(_transformers.PreTrainedModel, _transformers.GenerationMixin):  # type: ignore[misc]
    """A numerate `Decoder` as a Hugging Face model: any backbone, mixer and positions.

    `model.model` is the decoder itself. Padding may be anywhere: masked tokens have no position and are not attended
    to, so outputs are the same without padding, with left padding and with right padding. In training mode position
    offsets are drawn from (the recipe's seed, how many batches were read so far); in evaluation the first fixed ones
    are used.

        model = AutoModelForCausalLM.from_pretrained("exported", dtype=torch.bfloat16)
        model.generate(**tokenizer(["Once upon a time", "Tim"], return_tensors="pt", padding=True), max_new_tokens=50)

    Raises `UserError` for unsupported arguments (position_ids, inputs_embeds, attentions), for a mask of another
    shape, and for a row without any token.
    """

    config_class = NumerateConfig
    base_model_prefix = "decoder"
    main_input_name = "input_ids"
    _supports_sdpa = True

    def __init__(self, config: NumerateConfig) -> None:
        super().__init__(config)
        tree = (config.recipe or {}).get("model")
        if not isinstance(tree, Mapping):
            raise UserError("config.json: must contain a recipe; use a folder that `numerate export` wrote")
        self.model: Any = _build_model(config, from_tree(tree, "model", expected_class=Decoder))
        self._tied_weights_keys = {
            f"model.{name}": f"model.{first}" for name, first in tied_parameters(self.model).items()
        }
        # Loading leaves what is not in a file of weights empty; `_init_weights` restores it.
        self._buffer_copies = {module: _copy_non_persistent_buffers(module) for module in self.model.modules()}
        self._num_batches = 0
        self.post_init()

    # The interface of Hugging Face -----------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: NumerateCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """A `CausalLMOutputWithPast` with logits `[rows, columns, vocabulary]`, or of the columns of `logits_to_keep`
        (so many of the last; 0: all; or their indices). Logits at padding are meaningless.

        `labels` `[rows, columns]` are shifted here: column t is the target of column t - 1, -100 is ignored.
        The loss is the mean over them in nats, or their sum over `num_items_in_batch`, which Trainer gives. A cache is
        returned with `use_cache=True`, or where one was given.
        """
        num_items = kwargs.pop("num_items_in_batch", None)
        raise_first(self._argument_problems(kwargs, input_ids, past_key_values))
        assert input_ids is not None
        if use_cache and past_key_values is None:
            past_key_values = NumerateCache()
        new_mask = self._new_attention_mask(input_ids, attention_mask, past_key_values)
        if past_key_values is None:
            hidden = self._hidden_states(input_ids, new_mask, logits_to_keep, 0)
        else:
            hidden = self._hidden_states_with_cache(input_ids, new_mask, past_key_values, logits_to_keep)
        logits = self.model.head(hidden)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, num_items_in_batch=num_items
            )
        output_class = _transformers.modeling_outputs.CausalLMOutputWithPast
        output = output_class(loss=loss, logits=logits, past_key_values=past_key_values)
        as_dict = self.config.return_dict if return_dict is None else return_dict
        return output if as_dict else output.to_tuple()

    def get_input_embeddings(self) -> nn.Module:
        embedding: nn.Module = self.model.embedding
        return embedding

    def get_output_embeddings(self) -> nn.Module:
        head: nn.Module = self.model.head
        return head

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Module:
        """Returns the embeddings unchanged. Raises `UserError` for another size, since the meaning of ids is part of
        the recipe."""
        if new_num_tokens not in (None, self.config.vocab_size):
            raise UserError(
                f"resize_token_embeddings: {self.config.vocab_size} tokens are fixed by the recipe; train a run with a "
                f"task or tokenizer with {new_num_tokens} tokens"
            )
        return self.get_input_embeddings()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        return dict(self._tied_weights_keys)

    def save_pretrained(
        self, save_directory: Any, is_main_process: bool = True, state_dict: Any = None, **kwargs: Any
    ) -> None:
        weights = _clone_buffers(self.state_dict() if state_dict is None else state_dict, self)
        super().save_pretrained(save_directory, is_main_process, weights, **kwargs)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        cache = model_kwargs.get("past_key_values")
        if cache is not None:
            cache._is_user_defined = True
        elif generation_config.cache_implementation is not None:
            raise UserError(
                "cache_implementation: must be null, as numerate models have their own cache, not "
                f"{generation_config.cache_implementation!r}"
            )
        elif generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = NumerateCache(capacity=max_cache_length + 1)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Weights are drawn by the recipe when the model is built; what a file of weights lacks is restored here."""
        for name, tensor in self._buffer_copies.get(module, {}).items():
            module.get_buffer(name).copy_(tensor)

    # Inside -----------------------------------------------------------------------------------------------------------

    def _hidden_states(
        self, ids: Tensor, attention_mask: Tensor, logits_to_keep: int | Tensor, cached_length: int
    ) -> Tensor:
        """Hidden states of the columns to keep, none of the first `cached_length` among them, read at once."""
        tokens, column_positions = to_right_padding(ids, attention_mask)
        if self.training:
            tokens = self.model.assign_positions(tokens, StepContext(int(self._recipe["seed"]), self._num_batches))
            self._num_batches += 1
        target_positions = None
        if isinstance(logits_to_keep, Tensor) or logits_to_keep or cached_length:
            columns = torch.arange(ids.shape[1], device=ids.device)
            column_positions = columns.expand(ids.shape) if column_positions is None else column_positions
            target_positions = column_positions[:, cached_length:][
                :,
                logits_to_keep
                if isinstance(logits_to_keep, Tensor)
                else slice(-logits_to_keep, None)
                if logits_to_keep
                else slice(None),
            ]
        hidden: Tensor = self.model(tokens, target_positions=target_positions).hidden_states
        if target_positions is None and column_positions is not None:
            hidden = torch.take_along_dim(hidden, column_positions[..., None], dim=1)
        return hidden

    def _hidden_states_with_cache(
        self, ids: Tensor, attention_mask: Tensor, cache: NumerateCache, logits_to_keep: int | Tensor
    ) -> Tensor:
        """Hidden states of further columns, which are added to the cache."""
        cached_length = cache.get_seq_length()
        if cache.extend(ids, attention_mask):
            return cache.step(self.model, ids[:, 0])
        assert cache.ids is not None
        assert cache.attention_mask is not None
        last_hidden = cache.prefill(self.model, to_right_padding(cache.ids, cache.attention_mask)[0])
        is_single_column = ids.shape[1] == 1 or (isinstance(logits_to_keep, int) and logits_to_keep == 1)
        return (
            last_hidden
            if is_single_column
            else self._hidden_states(cache.ids, cache.attention_mask, logits_to_keep, cached_length)
        )

    def _new_attention_mask(self, ids: Tensor, mask: Tensor | None, cache: NumerateCache | None) -> Tensor:
        """The mask of the new columns that are not padding."""
        if mask is None:
            return torch.ones_like(ids, dtype=torch.bool)
        cached_length = 0 if cache is None else cache.get_seq_length()
        expected_shape = (ids.shape[0], cached_length + ids.shape[1])
        if tuple(mask.shape) != expected_shape:
            raise UserError(
                f"attention_mask: must have the shape {expected_shape}, not {tuple(mask.shape)}: every row with each "
                "column that was read, those in the cache included"
            )
        return mask[:, cached_length:].to(ids.device) != 0

    def _argument_problems(self, kwargs: Mapping[str, Any], ids: Tensor | None, cache: Any) -> Iterator[str]:
        for name, value in kwargs.items():
            if value is not None and value is not False:
                yield (
                    f"{name}: is not supported by numerate models; input_ids, attention_mask, labels, "
                    "past_key_values, use_cache and logits_to_keep are (position ids follow from the mask)"
                )
        if ids is None:
            yield "input_ids: must be given; inputs_embeds is not supported"
        if cache is not None and not isinstance(cache, NumerateCache):
            yield (
                f"past_key_values: {type(cache).__name__} holds keys and values, which not every mixer has; "
                "use_cache=True makes a cache that holds any state"
            )

    @property
    def _recipe(self) -> Mapping[str, Any]:
        return self.config.recipe or {}


def _build_model(config: NumerateConfig, spec: Decoder) -> Model:
    """The decoder with weights as its recipe draws them, on the CPU whatever the default device.

    Hugging Face makes models on the meta device and in the final dtype. What a model computes once (rotary frequencies,
    kinds of tokens) has to be real, and exact.
    """
    vocabulary_config = config.vocabulary or {}
    token_kinds = np.array(
        [kind for kind, count in vocabulary_config.get("kinds", []) for _ in range(count)], dtype=np.int8
    )
    size = len(token_kinds)
    vocabulary = Vocabulary(
        tuple(f"[{i}]" for i in range(size)), token_kinds, np.full(size, np.nan), np.full(size, -1000, dtype=np.int64)
    )
    target_dtype = torch.get_default_dtype()
    with torch.device("cpu"), _default_dtype(torch.float32):
        model = spec.build(vocabulary, int((config.recipe or {}).get("seed", 0)))
    if (reason := model.non_causal_reason()) is not None:
        raise UserError(f"model: {reason}, so it is not causal and cannot generate token by token")
    for parameter in model.parameters() if target_dtype != torch.float32 else ():
        parameter.data = parameter.data.to(target_dtype)
    return model


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def _copy_non_persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the non-persistent buffers of a module, which no checkpoint holds."""
    buffers = module.named_buffers(recurse=False)
    return {name: tensor.clone() for name, tensor in buffers if name in module._non_persistent_buffers_set}


def tied_parameters(model: nn.Module) -> dict[str, str]:
    """Parameters that are another one under a second name: {name: first name}."""
    first_names: dict[int, str] = {}
    parameters = model.named_parameters(remove_duplicate=False)
    return {
        name: first_name
        for name, parameter in parameters
        if (first_name := first_names.setdefault(id(parameter), name)) != name
    }


def _clone_buffers(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Weights of which no two that are not parameters share memory: Hugging Face ties parameters alone."""
    buffer_names = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {name: tensor.clone() if name in buffer_names else tensor for name, tensor in weights.items()}


_transformers.AutoModelForCausalLM.register(NumerateConfig, NumerateForCausalLM, exist_ok=True)

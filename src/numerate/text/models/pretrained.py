"""Causal language models of Hugging Face: Llama, GPT-2, SmolLM and others."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.batch import Loops, Output, Started, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.attention_maps import LayerMaps
from numerate.text.models.hugging_face import (
    CacheState,
    HuggingFaceModel,
    HuggingFaceSpec,
    configured,
    eager_attention,
    enable_gradient_checkpointing,
    first_line,
    fit_vocabulary,
    layer_maps,
    left_padded,
    pretrained,
    refuse_hidden,
    refuse_kernels,
    transformers,
    untrained,
)
from numerate.text.models.number_inputs import NumberEmbedding, NumberHead
from numerate.vocabulary import Vocabulary

DEFAULT_CONFIG = {"model_type": "gpt2", "n_embd": 128, "n_layer": 4, "n_head": 4}
"""The default without weights and without a configuration: a small GPT-2 with random weights."""


@dataclass(frozen=True)
class PretrainedDecoder(HuggingFaceSpec):
    """Causal language model of Hugging Face, pretrained or random, for the layout Continuation.

    `weights` is a folder or a name on the hub; with `gguf_file` the name of a GGUF file there, whose weights are
    dequantised. Its embedding rows are kept, which the tokenizer maps to tokens; only new tokens get new rows.

    >>> PretrainedDecoder(weights="HuggingFaceTB/SmolLM2-135M-Instruct")

    Without weights, `config` is the transformers configuration of a randomly initialised model:

    >>> PretrainedDecoder(config='{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}')

    Raises `UserError` for both at once, and for a model whose logits are more than a linear map of its last states.
    """

    weights: str | None = setting(None, "folder or name on the Hugging Face hub to load weights from; null: random")
    gguf_file: str | None = setting(None, "the GGUF file to load, if any")
    config: str | None = setting(None, "without weights: a transformers configuration as JSON; null: a small GPT-2")
    number_embedding: NumberEmbedding | None = setting(None, "how numbers enter the embeddings; null: not at all")
    number_head: NumberHead | None = setting(None, "number head over the last hidden states; null: none")
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")

    def __post_init__(self) -> None:
        if self.weights is not None and self.config is not None:
            raise UserError("config: weights bring their own; leave one of the two out")

    def build(self, vocabulary: Vocabulary, seed: int) -> "PretrainedModel":
        if self.gguf_file is not None and self.weights is None:
            raise UserError(
                f"model.gguf_file: {self.gguf_file!r} is a file among weights; name their folder as weights"
            )
        package = transformers("model: PretrainedDecoder")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            if self.weights is None:
                model = self._random(package, vocabulary)
            else:
                file = {} if self.gguf_file is None else {"gguf_file": self.gguf_file}
                model = pretrained(package.AutoModelForCausalLM, self.weights, **file)
                fit_vocabulary(model, vocabulary, seed)
            return PretrainedModel(self, model, vocabulary)

    def origin(self, vocabulary: Vocabulary) -> dict[str, Any] | None:
        if self.weights is None:
            return None
        file = {} if self.gguf_file is None else {"gguf_file": self.gguf_file}
        instead = """model.weights=null model.config='{"model_type": "llama", "hidden_size": 64}'"""
        return configured(self.weights, vocabulary, instead, **file)

    def build_again(self, vocabulary: Vocabulary, seed: int, origin: Mapping[str, Any]) -> "PretrainedModel":
        package = transformers("model: PretrainedDecoder")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            model = untrained(package, _of_config(package), origin)
            return PretrainedModel(self, model, vocabulary)

    def _random(self, package: Any, vocabulary: Vocabulary) -> Any:
        try:
            given = DEFAULT_CONFIG if self.config is None else dict(json.loads(self.config))
            refuse_kernels(given, "model.config")
            kind = given.pop("model_type") if self.config is not None else given["model_type"]
            ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
            rest = {name: value for name, value in given.items() if name != "model_type"}
            config = package.AutoConfig.for_model(kind, **{**ids, **rest, "vocab_size": vocabulary.size})
            return _of_config(package)(config)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"model.config: {self.config} is no configuration of a decoder ({first_line(error)}); "
                '{"model_type": "llama", "hidden_size": 64} is one'
            ) from error


def _of_config(package: Any) -> Any:
    """The constructor of a decoder from a configuration; remote code named in it is not run."""
    return partial(package.AutoModelForCausalLM.from_config, trust_remote_code=False)


class PretrainedModel(HuggingFaceModel):
    """The model behind `PretrainedDecoder`."""

    def __init__(self, spec: PretrainedDecoder, model: Any, vocabulary: Vocabulary) -> None:
        super().__init__(
            model,
            model.get_input_embeddings(),
            model.get_output_embeddings(),
            model.get_input_embeddings().embedding_dim,
        )
        self.spec = spec
        self.held: Any = model
        self.base = (model.base_model,)
        self.scale = _scale_of(model)
        self._refuse_other_logits()
        self.add_numbers(vocabulary, spec.number_embedding, spec.number_head)
        if spec.gradient_checkpointing:
            enable_gradient_checkpointing(model)

    def blocks(self) -> list[nn.Module]:
        lists: list[Any] = [part for part in self.held.modules() if isinstance(part, nn.ModuleList)]
        return list(max(lists, key=_size))

    @torch.no_grad()
    def maps(self, tokens: Tokens, source: Tokens | None = None) -> list[LayerMaps]:
        self._refuse(tokens, source)
        with eager_attention(self.held):
            output = self.base[0](
                inputs_embeds=self.vectors(tokens.ids, tokens.values), use_cache=False, output_attentions=True
            )
        return layer_maps("attention", getattr(output, "attentions", None))

    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        self._refuse(tokens, source)
        # No mask: with right padding and causal attention no real token sees the padding.
        output = self.base[0](inputs_embeds=self.vectors(tokens.ids, tokens.values), use_cache=False)
        return self.output(output.last_hidden_state, target_positions, scale=self.scale)

    def start(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> Started:
        self._refuse(tokens, source)
        cache = transformers("model: PretrainedDecoder").DynamicCache(config=self.held.config)
        moved, seen = left_padded(tokens)
        state = CacheState(cache, seen, tokens.lengths)
        places = (seen.long().cumsum(1) - 1).clamp(min=0)
        state.first = self._read(self.vectors(moved.ids, moved.values), places, state)[:, -1:]
        return Started(self.output(state.first, scale=self.scale, first=state.first), state)

    def step(self, ids: Int[Tensor, " rows"], values: Tensor | None, state: CacheState) -> Started:
        seen = torch.cat([state.seen, torch.ones_like(state.seen[:, :1])], dim=1)
        further = CacheState(state.cache, seen, state.lengths + 1, state.first)
        x = self.vectors(ids[:, None], None if values is None else values[:, None])
        hidden = self._read(x, state.lengths[:, None], further)
        return Started(self.output(hidden, scale=self.scale, first=state.first), further)

    def chosen(self, state: CacheState, rows: Int[Tensor, " chosen"]) -> CacheState:
        return state.chosen(rows)

    def check(self, tokens: Tokens, trained: Tokens | None = None) -> list[str]:
        longest, known = int(tokens.lengths.max()), getattr(self.held.config, "max_position_embeddings", None)
        if known is None or longest <= known:
            return []
        inward = self.held.get_input_embeddings()
        tables = [part for part in self.held.modules() if isinstance(part, nn.Embedding) and part is not inward]
        if any(table.num_embeddings >= known for table in tables):
            raise UserError(
                f"model: {longest} tokens are beyond the table of {known} places; shorter examples are right"
            )
        return [f"model: {longest} tokens are more than the {known} that its weights were made for"]

    def flops(self, rows: int, time: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        maps: list[Any] = [part for block in self.blocks() for part in block.modules() if _is_map(part)]
        inside: int = sum(part.weight.numel() for part in maps)
        scores = 2 * len(self.blocks()) * self.width * time * (time + 1)
        ends: int = self.held.get_output_embeddings().weight.numel()
        return rows * (2 * time * (inside + ends) + scores)

    # Inside ------------------------------------------------------------------------------------------------------

    def _read(self, x: Tensor, places: Tensor, state: CacheState) -> Float[Tensor, "rows read width"]:
        """The last hidden states of new columns, which are added to the cache."""
        output: Tensor = self.base[0](
            inputs_embeds=x,
            attention_mask=state.seen.long(),
            position_ids=places,
            past_key_values=state.cache,
            use_cache=True,
        ).last_hidden_state
        return output

    @torch.no_grad()
    def _refuse_other_logits(self) -> None:
        """Raises `UserError` for a model whose logits are not a scaled linear map of its last hidden states."""
        if self.held.device.type == "meta":
            return
        ids = torch.arange(1, min(4, self.held.config.vocab_size))[None]  # no padding among them
        training, _ = self.held.training, self.held.eval()
        theirs = self.held(input_ids=ids, use_cache=False).logits
        ours = self.output(self.base[0](input_ids=ids, use_cache=False).last_hidden_state, scale=self.scale).logits
        self.held.train(training)
        if not torch.allclose(theirs, ours, rtol=1e-3, atol=1e-4):
            raise UserError(
                f"model: the logits of a {self.held.config.model_type} are more than a linear map of its last states; "
                "Llama, GPT-2, Mistral, Qwen, SmolLM and Granite are held rightly"
            )

    def _refuse(self, tokens: Tokens, source: Tokens | None) -> None:
        refuse_hidden(tokens, "a PretrainedDecoder")
        if source is not None:
            raise UserError("model: a PretrainedDecoder reads one text; for pairs (layout Seq2Seq) take T5")


def _scale_of(model: Any) -> float:
    """Factor on the last hidden states before the head: Granite divides its logits."""
    return 1.0 / float(getattr(model.config, "logits_scaling", 1.0) or 1.0)


def _size(part: Any) -> int:
    return sum(int(weight.numel()) for weight in part.parameters())


def _is_map(part: nn.Module) -> bool:
    """Whether a module is a linear map; GPT-2 has its own class of them."""
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"

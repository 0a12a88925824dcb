"""Causal language models of Hugging Face: Llama, GPT-2, SmolLM and others."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.batch import Loops, Output, Tokens
from numerate.config import setting
from numerate.errors import UserError, error_text
from numerate.mixers.attention_maps import LayerMaps
from numerate.text.models.hugging_face import (
    CacheState,
    HuggingFaceModel,
    HuggingFaceSpec,
    eager_attention,
    enable_gradient_checkpointing,
    largest_module_list,
    layer_maps,
    make_head,
)
from numerate.text.models.lora import LORA_HELP, LoRA, is_linear
from numerate.text.models.number_inputs import NumberEmbedding, NumberHead
from numerate.text.models.pretrained_weights import (
    DTYPE_HELP,
    REVISION_HELP,
    Dtype,
    check_no_hub_kernels,
    import_transformers,
    load_pretrained,
    load_pretrained_config,
    resize_to_vocabulary,
)
from numerate.vocabulary import BOS, EOS, PAD, Vocabulary


class AutoModelSpec(HuggingFaceSpec):
    """The spec of a model that a class of transformers such as `AutoModelForCausalLM` builds, from weights or from a
    configuration."""

    auto_class: ClassVar[str]
    default_config: ClassVar[Mapping[str, Any]]
    """What is built without weights and without a configuration."""

    small_config: ClassVar[str]
    """The configuration that errors suggest."""

    config: str | None

    def conflicts(self) -> Iterator[str]:
        if self.weights is not None and self.config is not None:
            yield "config: cannot be set together with weights, which have their own"

    def file_options(self) -> dict[str, str]:
        """Which file of a folder or repository is loaded."""
        return {}

    def create(self, package: Any, vocabulary: Vocabulary, seed: int) -> Any:
        if self.weights is None:
            return self._build_random(package, vocabulary)
        auto_class = getattr(package, self.auto_class)
        model = load_pretrained(auto_class, self.weights, self.revision, self.dtype, **self.file_options())
        resize_to_vocabulary(model, vocabulary, seed)
        return model

    def model_class(self, package: Any) -> Callable[[Any], Any]:
        # Remote code named in a configuration is not run.
        return partial(getattr(package, self.auto_class).from_config, trust_remote_code=False)

    def pretrained_config(self, vocabulary: Vocabulary) -> dict[str, Any] | None:
        if self.weights is None:
            return None
        alternative_settings = f"model.weights=null model.config='{self.small_config}'"
        options = {"revision": self.revision, **self.file_options()}
        return load_pretrained_config(self.weights, vocabulary, alternative_settings, **options)

    def _build_random(self, package: Any, vocabulary: Vocabulary) -> Any:
        try:
            settings = dict(self.default_config if self.config is None else json.loads(self.config))
            check_no_hub_kernels(settings, "model.config")
            model_type = settings.pop("model_type")
            special_ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
            config = package.AutoConfig.for_model(
                model_type, **{**special_ids, **settings, "vocab_size": vocabulary.size}
            )
            return self.model_class(package)(config)
        except (ValueError, KeyError, TypeError) as error:
            kind = "a decoder" if self.auto_class == "AutoModelForCausalLM" else "an encoder-decoder"
            raise UserError(
                f"model.config: {self.config} is no configuration of {kind} ({error_text(error)}); "
                f"{self.small_config} is one"
            ) from error


@dataclass(frozen=True)
class PretrainedDecoder(AutoModelSpec):
    """Causal language model of Hugging Face, pretrained or random, for the layout Continuation.

    `weights` is a folder or a name on the hub; with `gguf_file` the name of a GGUF file there, whose weights are
    dequantized. Its embedding rows are kept, which the tokenizer maps to tokens; only new tokens get new rows.

    >>> spec = PretrainedDecoder(weights="HuggingFaceTB/SmolLM2-135M-Instruct")

    Without weights, `config` is the transformers configuration of a randomly initialized model:

    >>> spec = PretrainedDecoder(config='{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}')

    Raises `UserError` for both at once, for a model that reads later tokens, and for one whose logits are another
    function of its last states than a linear map, perhaps with soft capping.
    """

    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    default_config: ClassVar[Mapping[str, Any]] = {"model_type": "gpt2", "n_embd": 128, "n_layer": 4, "n_head": 4}
    small_config: ClassVar[str] = '{"model_type": "llama", "hidden_size": 64}'

    weights: str | None = setting(
        None, "folder or name on the Hugging Face hub to load weights from; null: random", content_hash="revision"
    )
    gguf_file: str | None = setting(None, "the GGUF file to load, if any")
    config: str | None = setting(None, "without weights: a transformers configuration as JSON; null: a small GPT-2")
    number_embedding: NumberEmbedding | None = setting(None, "how numbers enter the embeddings; null: not at all")
    number_head: NumberHead | None = setting(None, "number head over the last hidden states; null: none")
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")
    revision: str | None = setting(None, REVISION_HELP)
    dtype: Dtype = setting("float32", DTYPE_HELP)
    lora: LoRA | None = setting(None, LORA_HELP)

    def file_options(self) -> dict[str, str]:
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}

    def create(self, package: Any, vocabulary: Vocabulary, seed: int) -> Any:
        if self.weights is None and self.gguf_file is not None:
            raise UserError(f"model.gguf_file: {self.gguf_file!r} needs model.weights, its folder or repository")
        return super().create(package, vocabulary, seed)

    def wrap(self, model: Any, vocabulary: Vocabulary) -> "PretrainedModel":
        return PretrainedModel(self, model, vocabulary)


class PretrainedModel(HuggingFaceModel):
    """The model behind `PretrainedDecoder`."""

    def __init__(self, spec: PretrainedDecoder, model: Any, vocabulary: Vocabulary) -> None:
        super().__init__(
            model,
            model.get_input_embeddings(),
            make_head(model),
            model.get_input_embeddings().embedding_dim,
        )
        self.spec = spec
        self.base_model = (model.base_model,)
        parameters = signature(model.base_model.forward).parameters
        cache_arguments = [name for name in ("past_key_values", "cache_params") if name in parameters]
        if not cache_arguments:
            raise UserError(f"model: a {model.config.model_type} has no cache of transformers, which decoding needs")
        (self.cache_argument,) = cache_arguments
        # Granite divides its logits.
        self.head_scale = 1.0 / float(getattr(model.config, "logits_scaling", 1.0) or 1.0)
        self._check_function()
        self.add_number_modules(vocabulary, spec.number_embedding, spec.number_head)
        if spec.gradient_checkpointing:
            enable_gradient_checkpointing(model)

    def blocks(self) -> list[nn.Module]:
        return largest_module_list(self.hf_model)

    @torch.no_grad()
    def attention_maps(self, tokens: Tokens, source: Tokens | None = None) -> list[LayerMaps]:
        self.check_inputs(tokens, source)
        with eager_attention(self.hf_model):
            output = self.base_model[0](
                inputs_embeds=self.embed_tokens(tokens.ids, tokens.number_values),
                use_cache=False,
                output_attentions=True,
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
        self.check_inputs(tokens, source)
        # No mask: with right padding and causal attention no real token sees the padding.
        output = self.base_model[0](inputs_embeds=self.embed_tokens(tokens.ids, tokens.number_values), use_cache=False)
        return self.make_output(output.last_hidden_state, target_positions)

    def check_tokens(self, tokens: Tokens, training_tokens: Tokens | None = None) -> list[str]:
        longest = int(tokens.lengths.max())
        max_positions = getattr(self.hf_model.config, "max_position_embeddings", None)
        if max_positions is None or longest <= max_positions:
            return []
        input_embeddings = self.hf_model.get_input_embeddings()
        tables = [
            part for part in self.hf_model.modules() if isinstance(part, nn.Embedding) and part is not input_embeddings
        ]
        if any(table.num_embeddings >= max_positions for table in tables):
            raise UserError(
                f"model: {longest} tokens are more than the {max_positions} position embeddings; use shorter examples "
                "or a smaller tokenizer.max_length"
            )
        return [f"model: {longest} tokens are more than the {max_positions} that the model was trained with"]

    def flops(self, batch_size: int, sequence_length: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        linear_layers: list[Any] = [part for block in self.blocks() for part in block.modules() if is_linear(part)]
        block_weights: int = sum(part.weight.numel() for part in linear_layers)
        scores = 2 * len(self.blocks()) * self.width * sequence_length * (sequence_length + 1)
        head_weights: int = self.hf_model.config.vocab_size * self.width
        return batch_size * (2 * sequence_length * (block_weights + head_weights) + scores)

    # Inside ------------------------------------------------------------------------------------------------------

    def empty_cache(self) -> Any:
        return import_transformers("model: PretrainedDecoder").DynamicCache(config=self.hf_model.config)

    def decode(self, tokens: Tokens, position_ids: Tensor, state: CacheState) -> Float[Tensor, "rows read width"]:
        # Mamba takes the mask of new columns.
        is_recurrent_step = self.cache_argument == "cache_params" and tokens.ids.shape[1] == 1
        output: Tensor = self.base_model[0](
            inputs_embeds=self.embed(tokens, position_ids),
            attention_mask=None if is_recurrent_step else state.attention_mask.long(),
            position_ids=position_ids,
            use_cache=True,
            **{self.cache_argument: state.cache},
        ).last_hidden_state
        return output

    @torch.no_grad()
    def _check_function(self) -> None:
        """Raises `UserError` for a model whose logits are not the head's of its last hidden states, and for one that
        reads later tokens."""
        if self.hf_model.device.type == "meta":
            return
        model_type = self.hf_model.config.model_type
        ids = torch.arange(1, min(4, self.hf_model.config.vocab_size))[None]  # no padding among them
        training, _ = self.hf_model.training, self.hf_model.eval()
        expected_logits = self.hf_model(input_ids=ids, use_cache=False).logits
        hidden = self.base_model[0](input_ids=ids, use_cache=False).last_hidden_state
        beginning = self.base_model[0](input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        self.hf_model.train(training)
        tolerance = torch.finfo(hidden.dtype).eps ** 0.5
        if not torch.allclose(hidden[:, :-1], beginning, rtol=tolerance, atol=tolerance):
            raise UserError(f"model: a {model_type} reads later tokens, so that it cannot be decoded; must be causal")
        if not torch.allclose(expected_logits, self.make_output(hidden).logits, rtol=1e-3, atol=1e-4):
            raise UserError(
                f"model: the logits of a {model_type} are not a linear function of its last hidden states, nor one "
                "with soft capping, which is not supported; Llama, GPT-2, Mistral, Qwen, Gemma and Granite are"
            )

    def check_inputs(self, tokens: Tokens, source: Tokens | None) -> None:
        super().check_inputs(tokens, source)
        if source is not None:
            raise UserError("model: a PretrainedDecoder has no encoder; use PretrainedSeq2Seq for the layout Seq2Seq")

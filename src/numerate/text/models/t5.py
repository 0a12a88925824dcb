"""Hugging Face's T5: the encoder reads the question, the decoder generates the answer."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.batch import Loops, Output, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.attention_maps import LayerMaps
from numerate.text.models.hugging_face import (
    CacheState,
    HuggingFaceModel,
    HuggingFaceSpec,
    eager_attention,
    enable_gradient_checkpointing,
    encoder_decoder_maps,
    make_attention_mask,
)
from numerate.text.models.lora import LORA_HELP, LoRA
from numerate.text.models.number_inputs import NumberEmbedding, NumberHead
from numerate.text.models.pretrained_weights import (
    DTYPE_HELP,
    REVISION_HELP,
    Dtype,
    import_transformers,
    load_pretrained,
    load_pretrained_config,
    resize_to_vocabulary,
    to_pretrained_config,
)
from numerate.text.models.t5_forward import replace_forward, run_stack
from numerate.vocabulary import Vocabulary


class T5Dimensions(NamedTuple):
    """The sizes of a T5."""

    hidden_size: int
    num_layers: int
    num_decoder_layers: int
    num_heads: int
    head_dim: int
    intermediate_size: int


SIZES = {
    "small": T5Dimensions(512, 6, 6, 8, 64, 2048),
    "base": T5Dimensions(768, 12, 12, 12, 64, 3072),
    "large": T5Dimensions(1024, 24, 24, 16, 64, 4096),
    "3b": T5Dimensions(1024, 24, 24, 32, 128, 16384),
    "11b": T5Dimensions(1024, 24, 24, 128, 128, 65536),
}
"""The published sizes: Raffel et al. (2020), https://arxiv.org/abs/1910.10683, section 3.7."""

PUBLISHED_SIZES: dict[str, Literal["small", "base", "large", "3b", "11b"]] = {
    "t5-small": "small",
    "t5-base": "base",
    "t5-large": "large",
    "t5-3b": "3b",
    "t5-11b": "11b",
}
"""The sizes of weights that the hub has under these names, with or without `google-t5/` before them."""

FEED_FORWARD_PROJ = {"relu": "relu", "geglu": "gated-gelu"}


@dataclass(frozen=True)
class T5(HuggingFaceSpec):
    """T5 encoder-decoder, pretrained or random, for the layout Seq2Seq.

    Raffel et al. (2020), https://arxiv.org/abs/1910.10683, of transformers, computed in fewer operations
    (`numerate.text.models.t5_forward`). A size is one of the published ones, of which each dimension may be another;
    weights from a folder or the hub bring their own.

    >>> from numerate.models import RegressionTransformerEmbedding
    >>> spec = T5(size="small", hidden_size=128, num_layers=2, num_decoder_layers=2, num_heads=4, head_dim=32)
    >>> spec = T5(weights="google-t5/t5-small", number_embedding=RegressionTransformerEmbedding())

    Pretrained weights keep their embedding rows, which the tokenizer maps to tokens; only new tokens get new rows.
    `number_head=NumberHead(read_at="start")` is a regression head: one number per question, at the decoder's first
    position. Raises `UserError` for impossible dimensions, or dimensions together with weights.
    """

    config_overrides: ClassVar[Mapping[str, str]] = {"dropout": "dropout_rate"}

    size: Literal["small", "base", "large", "3b", "11b"] = setting(
        "small", "published size, from which null settings below are taken; with `weights`: their size"
    )
    weights: str | None = setting(
        None, "folder or name on the Hugging Face hub to load weights from; null: random", content_hash="revision"
    )
    hidden_size: int | None = setting(None, "hidden size; null: that of `size`", at_least=1)
    num_layers: int | None = setting(None, "encoder layers; null: that of `size`", at_least=1)
    num_decoder_layers: int | None = setting(None, "decoder layers; null: num_layers", at_least=1)
    num_heads: int | None = setting(None, "number of attention heads; null: that of `size`", at_least=1)
    head_dim: int | None = setting(None, "dimension of a head; null: that of `size`", at_least=1)
    intermediate_size: int | None = setting(
        None, "intermediate size of feed-forward networks; null: that of `size`", at_least=1
    )
    feed_forward: Literal["relu", "geglu"] = setting("relu", "relu as in T5, or geglu as in T5 1.1")
    dropout: float = setting(0.1, "dropout", at_least=0, below=1)
    max_position_embeddings: int | None = setting(
        None, "additional learned position embeddings, as with xVal (Golkar et al., 2023); null: none", at_least=1
    )
    number_embedding: NumberEmbedding | None = setting(None, "embedding of the values of [NUM] tokens; null: none")
    number_head: NumberHead | None = setting(None, "head that predicts the value of [NUM] tokens; null: none")
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")
    revision: str | None = setting(None, REVISION_HELP)
    dtype: Dtype = setting("float32", DTYPE_HELP)
    lora: LoRA | None = setting(None, LORA_HELP)

    def conflicts(self) -> Iterator[str]:
        for name in T5Dimensions._fields:
            if self.weights is not None and getattr(self, name) is not None:
                yield f"{name}: cannot be set together with weights, which determine it"

    def dimensions(self) -> T5Dimensions:
        """Dimensions of a randomly initialized model."""
        overrides = {name: getattr(self, name) for name in T5Dimensions._fields}
        overrides["num_decoder_layers"] = overrides["num_decoder_layers"] or overrides["num_layers"]
        return SIZES[self.size]._replace(**{name: value for name, value in overrides.items() if value is not None})

    def small(self) -> "T5":
        if self.weights is not None:
            return self
        return replace(
            self, hidden_size=32, num_layers=1, num_decoder_layers=1, num_heads=2, head_dim=16, intermediate_size=64
        )

    def create(self, package: Any, vocabulary: Vocabulary, seed: int) -> Any:
        if self.weights is None:
            return package.T5ForConditionalGeneration(self._config(package, vocabulary))
        model = load_pretrained(
            package.T5ForConditionalGeneration, self.weights, self.revision, self.dtype, dropout_rate=self.dropout
        )
        if {model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight} != {model.shared.weight}:
            raise UserError(
                f"model.weights: {self.weights}: its encoder and decoder do not share shared.weight as embedding; a T5 "
                "has one for both"
            )
        resize_to_vocabulary(model, vocabulary, seed)
        return model

    def model_class(self, package: Any) -> Callable[[Any], Any]:
        constructor: Callable[[Any], Any] = package.T5ForConditionalGeneration
        return constructor

    def wrap(self, model: Any, vocabulary: Vocabulary) -> "T5Model":
        return T5Model(self, model, vocabulary)

    def pretrained_config(self, vocabulary: Vocabulary) -> dict[str, Any] | None:
        if self.weights is None:
            return None
        size = PUBLISHED_SIZES.get(self.weights.removeprefix("google-t5/"))
        if size is None or Path(self.weights).is_dir():
            alternative_settings = "model.weights=null model.size=base"
            return load_pretrained_config(self.weights, vocabulary, alternative_settings, revision=self.revision)
        config = replace(self, weights=None, size=size)._config(import_transformers("model: T5"), vocabulary)
        return to_pretrained_config(config, vocabulary)

    def _config(self, package: Any, vocabulary: Vocabulary) -> Any:
        dimensions = self.dimensions()
        return package.T5Config(
            vocab_size=vocabulary.size,
            d_model=dimensions.hidden_size,
            num_layers=dimensions.num_layers,
            num_decoder_layers=dimensions.num_decoder_layers,
            num_heads=dimensions.num_heads,
            d_kv=dimensions.head_dim,
            d_ff=dimensions.intermediate_size,
            dropout_rate=self.dropout,
            feed_forward_proj=FEED_FORWARD_PROJ[self.feed_forward],
            tie_word_embeddings=True,
        )


class T5Model(HuggingFaceModel):
    """The model behind `T5`."""

    def __init__(self, spec: T5, model: Any, vocabulary: Vocabulary) -> None:
        super().__init__(model, model.shared, model.lm_head, model.config.d_model)
        self.spec = spec
        self.head_scale = model.config.d_model**-0.5 if model.config.scale_decoder_outputs else 1.0
        if spec.max_position_embeddings is not None:
            self.position_embedding = nn.Embedding(spec.max_position_embeddings, self.width)
            if spec.weights is not None:
                nn.init.zeros_(self.position_embedding.weight)  # no change to the pretrained function
        self.add_number_modules(vocabulary, spec.number_embedding, spec.number_head)
        for stack in (model.encoder, model.decoder):
            replace_forward(stack)
        if spec.gradient_checkpointing:
            enable_gradient_checkpointing(model)

    def blocks(self) -> list[nn.Module]:
        return [*self.hf_model.encoder.block, *self.hf_model.decoder.block]

    @torch.no_grad()
    def attention_maps(self, tokens: Tokens, source: Tokens | None = None) -> list[LayerMaps]:
        """The encoder's self-attention, then the decoder's self-attention and cross-attention."""
        self.check_inputs(tokens, source)
        assert source is not None
        encoder_attention_mask = make_attention_mask(source).long()
        with eager_attention(self.hf_model):
            encoder_output = self.hf_model.encoder(
                inputs_embeds=self.embed(source),
                attention_mask=encoder_attention_mask,
                output_attentions=True,
                return_dict=True,
            )
            output = self.hf_model.decoder(
                inputs_embeds=self.embed(tokens),
                encoder_hidden_states=encoder_output.last_hidden_state,
                encoder_attention_mask=encoder_attention_mask,
                use_cache=False,
                output_attentions=True,
                return_dict=True,
            )
        return encoder_decoder_maps(encoder_output.attentions, output.attentions, output.cross_attentions)

    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        self.check_inputs(tokens, source)
        encoder_hidden_states, encoder_attention_mask = self.encode_source(source)
        # No mask for the decoder's input: with right padding and causal attention no real token sees the padding.
        hidden = run_stack(
            self.hf_model.decoder,
            self.embed(tokens),
            encoded=encoder_hidden_states,
            encoded_mask=encoder_attention_mask,
        )
        return self.make_output(hidden, target_positions)

    def check_tokens(self, tokens: Tokens, training_tokens: Tokens | None = None) -> list[str]:
        self.check_length(int(tokens.lengths.max()))
        return []

    def flops(self, batch_size: int, sequence_length: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        config = self.hf_model.config
        attention, feed_forward = self._num_weights()
        layer = 2 * sequence_length * (
            attention + attention // 2 + feed_forward
        ) + 2 * config.num_heads * config.d_kv * sequence_length * (sequence_length + 1)
        head_flops = 2 * sequence_length * self.hf_model.config.vocab_size * self.width
        head_flops += 0 if self.number_head is None else self.number_head.flops(sequence_length)
        return int(batch_size * (config.num_decoder_layers * layer + head_flops))

    def source_flops(self, batch_size: int, sequence_length: int, source_length: int) -> int:
        config = self.hf_model.config
        attention, feed_forward = self._num_weights()
        inner_size = config.num_heads * config.d_kv
        encoder = config.num_layers * (
            2 * source_length * (attention + feed_forward) + 4 * inner_size * source_length * source_length
        )
        return int(
            batch_size
            * (
                encoder
                + config.num_decoder_layers
                * (source_length * attention + 4 * inner_size * sequence_length * source_length)
            )
        )

    # Inside ------------------------------------------------------------------------------------------------------

    def _num_weights(self) -> tuple[int, int]:
        """Number of weights of one attention layer and of one feed-forward network."""
        config = self.hf_model.config
        feed_forward = (3 if config.is_gated_act else 2) * config.d_model * config.d_ff
        return 4 * config.d_model * config.num_heads * config.d_kv, feed_forward

    def check_inputs(self, tokens: Tokens, source: Tokens | None) -> None:
        if source is None:
            raise UserError("model: T5 is an encoder-decoder and needs layout=Seq2Seq")
        for one in (tokens, source):
            super().check_inputs(one, None)

    def encode_source(self, source: Tokens | None) -> tuple[Tensor, Tensor]:
        assert source is not None
        attention_mask = make_attention_mask(source)
        return run_stack(self.hf_model.encoder, self.embed(source), attention_mask), attention_mask

    def empty_cache(self) -> Any:
        package = import_transformers("model: T5")
        caches = [package.DynamicCache(config=self.hf_model.decoder.config) for _ in range(2)]
        return package.EncoderDecoderCache(*caches)

    def decode(self, tokens: Tokens, position_ids: Tensor, state: CacheState) -> Float[Tensor, "rows read width"]:
        output: Tensor = self.hf_model.decoder(
            inputs_embeds=self.embed(tokens, position_ids),
            attention_mask=state.attention_mask.long(),
            encoder_hidden_states=state.encoder_hidden_states,
            encoder_attention_mask=state.encoder_attention_mask,
            past_key_values=state.cache,
            use_cache=True,
        ).last_hidden_state
        return output

    def embed(self, tokens: Tokens, position_ids: Tensor | None = None) -> Float[Tensor, "rows time width"]:
        x = self.embed_tokens(tokens.ids, tokens.number_values)
        if self.position_embedding is None:
            return x
        if position_ids is None:
            self.check_length(x.shape[1])
            return x + self.position_embedding.weight[: x.shape[1]]
        if x.device.type == "cpu":
            self.check_length(int(position_ids.max()) + 1)
        position_embeddings: Tensor = self.position_embedding(position_ids)
        return x + position_embeddings

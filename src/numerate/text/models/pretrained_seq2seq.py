"""Encoder-decoders of Hugging Face other than T5: BART, mT5, Marian, Pegasus, LED and others."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.batch import DecodingStep, Loops, Output, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.attention_maps import LayerMaps
from numerate.text.models.hugging_face import (
    CacheState,
    HuggingFaceModel,
    eager_attention,
    enable_gradient_checkpointing,
    encoder_decoder_maps,
    largest_module_list,
    make_attention_mask,
    make_head,
)
from numerate.text.models.lora import LORA_HELP, LoRA, is_linear
from numerate.text.models.pretrained import AutoModelSpec
from numerate.text.models.pretrained_weights import DTYPE_HELP, REVISION_HELP, Dtype, import_transformers
from numerate.vocabulary import BOS, PAD, Vocabulary

_SMALL_BART = {
    "model_type": "bart",
    "d_model": 128,
    **{f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in (("layers", 3), ("ffn_dim", 512))},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
}


@dataclass(frozen=True)
class PretrainedSeq2Seq(AutoModelSpec):
    """Encoder-decoder of Hugging Face other than T5, pretrained or random: BART, mT5, Marian, Pegasus, LED and others.

    For the layout Seq2Seq. It may be any model of `AutoModelForSeq2SeqLM`; a T5 takes fewer operations as `T5`.

    `weights` is a folder or a name on the hub. Its embedding rows are kept, which the tokenizer maps to tokens; only
    new tokens get new rows. `Seq2Seq.decoder_start_token` must be the model's: BART begins with [EOS], and with
    `Seq2Seq.answer_bos` its answers with [BOS]. The recipe `hf:NAME` has all of it.

    >>> spec = PretrainedSeq2Seq(weights="facebook/bart-base", force_bos=True)

    Without weights, `config` is the transformers configuration of a randomly initialized model:

    >>> spec = PretrainedSeq2Seq(config='{"model_type": "mt5", "d_model": 64, "num_layers": 2}')

    Raises `UserError` for both at once, for an encoder and a decoder with vocabularies of their own, and for a model
    whose logits are another function of the decoder's last states than a linear map, perhaps with soft capping.
    """

    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"
    default_config: ClassVar[Mapping[str, Any]] = _SMALL_BART
    small_config: ClassVar[str] = '{"model_type": "bart", "d_model": 64}'

    weights: str | None = setting(
        None, "folder or name on the Hugging Face hub to load weights from; null: random", content_hash="revision"
    )
    config: str | None = setting(None, "without weights: a transformers configuration as JSON; null: a small BART")
    force_bos: bool = setting(False, "whether every generated answer begins with [BOS], as those of BART")
    suppress_pad: bool = setting(False, "whether [PAD] is never generated, as by Marian")
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")
    revision: str | None = setting(None, REVISION_HELP)
    dtype: Dtype = setting("float32", DTYPE_HELP)
    lora: LoRA | None = setting(None, LORA_HELP)

    def wrap(self, model: Any, vocabulary: Vocabulary) -> "PretrainedSeq2SeqModel":
        return PretrainedSeq2SeqModel(self, model)


class PretrainedSeq2SeqModel(HuggingFaceModel):
    """The model behind `PretrainedSeq2Seq`, which calls encoder and decoder of transformers with token ids."""

    def __init__(self, spec: PretrainedSeq2Seq, model: Any) -> None:
        super().__init__(
            model, model.get_input_embeddings(), make_head(model), model.get_output_embeddings().weight.shape[1]
        )
        self.spec = spec
        self._encoder, self._decoder = (model.get_encoder(),), (model.get_decoder(),)
        self.head_scale = self.width**-0.5 if scales_decoder_outputs(model.config) else 1.0
        self._check_function()
        if spec.gradient_checkpointing:
            enable_gradient_checkpointing(model)

    def blocks(self) -> list[nn.Module]:
        return [*largest_module_list(self._encoder[0]), *largest_module_list(self._decoder[0])]

    @torch.no_grad()
    def attention_maps(self, tokens: Tokens, source: Tokens | None = None) -> list[LayerMaps]:
        """The encoder's self-attention, then the decoder's self-attention and cross-attention."""
        self.check_inputs(tokens, source)
        assert source is not None
        with eager_attention(self.hf_model):
            output = self.hf_model(
                input_ids=source.ids,
                attention_mask=make_attention_mask(source).long(),
                decoder_input_ids=tokens.ids,
                use_cache=False,
                output_attentions=True,
                return_dict=True,
            )
        return encoder_decoder_maps(output.encoder_attentions, output.decoder_attentions, output.cross_attentions)

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
        hidden = self._decoder[0](
            input_ids=tokens.ids,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            use_cache=False,
        ).last_hidden_state
        return self.make_output(hidden, target_positions)

    def max_length(self) -> int | None:
        """The number of positions of the decoder; None for relative positions."""
        return max_positions(self.hf_model.config, "decoder")

    def check_tokens(self, tokens: Tokens, training_tokens: Tokens | None = None) -> list[str]:
        self._check_length(int(tokens.lengths.max()), "decoder")
        return []

    def flops(self, batch_size: int, sequence_length: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        weights, _ = self._num_decoder_weights()
        weights += self.hf_model.config.vocab_size * self.width
        num_layers = len(largest_module_list(self._decoder[0]))
        scores = 2 * num_layers * self.width * sequence_length * (sequence_length + 1)
        return int(batch_size * (2 * sequence_length * weights + scores))

    def source_flops(self, batch_size: int, sequence_length: int, source_length: int) -> int:
        encoder, decoder = (largest_module_list(part[0]) for part in (self._encoder, self._decoder))
        _, source_weights = self._num_decoder_weights()
        weights = source_weights + sum(_num_linear_weights(block) for block in encoder)
        pairs = len(encoder) * source_length + len(decoder) * sequence_length
        return batch_size * source_length * (2 * weights + 4 * self.width * pairs)

    # Generation -------------------------------------------------------------------------------------------------------

    def prefill(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> DecodingStep:
        if bool((tokens.lengths != tokens.ids.shape[1]).any()):  # they are counted from the left of the cache
            raise UserError("model: the decoder's prompts of a PretrainedSeq2Seq must be equally long")
        found = super().prefill(tokens, source, capacity=capacity, position_offset=position_offset)
        return self._restrict(found, is_first=tokens.ids.shape[1] == 1)

    def step(self, ids: Int[Tensor, " rows"], number_values: Tensor | None, state: CacheState) -> DecodingStep:
        return self._restrict(super().step(ids, number_values, state))

    def _restrict(self, decoding_step: DecodingStep, *, is_first: bool = False) -> DecodingStep:
        """The step with logits of which the tokens that the model never generates have none."""
        output, spec = decoding_step.output, self.spec
        forced_id = BOS if spec.force_bos and is_first else None
        if forced_id is None and not spec.suppress_pad:
            return decoding_step
        head = partial(_restricted_logits, output.lm_head, forced_id)
        return replace(decoding_step, output=Output(output.hidden_states, head))

    def encode_source(self, source: Tokens | None) -> tuple[Tensor, Tensor]:
        assert source is not None
        self._check_length(source.ids.shape[1], "encoder")
        attention_mask = make_attention_mask(source).long()
        return self._encoder[0](input_ids=source.ids, attention_mask=attention_mask).last_hidden_state, attention_mask

    def empty_cache(self) -> Any:
        package = import_transformers("model: PretrainedSeq2Seq")
        config = self.hf_model.config.get_text_config(decoder=True)
        return package.EncoderDecoderCache(package.DynamicCache(config=config), package.DynamicCache())

    def decode(self, tokens: Tokens, position_ids: Tensor, state: CacheState) -> Float[Tensor, "rows read width"]:
        output: Tensor = self._decoder[0](
            input_ids=tokens.ids,
            encoder_hidden_states=state.encoder_hidden_states,
            encoder_attention_mask=state.encoder_attention_mask,
            past_key_values=state.cache,
            use_cache=True,
        ).last_hidden_state
        return output

    # Inside ------------------------------------------------------------------------------------------------------

    def check_inputs(self, tokens: Tokens, source: Tokens | None) -> None:
        if source is None:
            raise UserError("model: a PretrainedSeq2Seq is an encoder-decoder and needs layout=Seq2Seq")
        for one in (tokens, source):
            super().check_inputs(one, None)

    def _check_length(self, num_tokens: int, part: str) -> None:
        limit = max_positions(self.hf_model.config, part)
        if limit is not None and num_tokens > limit:
            raise UserError(
                f"model: {num_tokens} tokens are more than the {limit} positions of the {part}; use shorter examples, "
                "or a smaller tokenizer.max_length"
            )

    @torch.no_grad()
    def _check_function(self) -> None:
        """Raises `UserError` for a model whose logits are not the head's of the decoder's last hidden states."""
        if self.hf_model.device.type == "meta":
            return
        model_type, vocab_size = self.hf_model.config.model_type, self.hf_model.get_output_embeddings().out_features
        ids = torch.arange(4, min(8, vocab_size))[None]
        tokens = Tokens(ids, torch.tensor([ids.shape[1]]), torch.zeros(1, dtype=torch.long))
        training, _ = self.hf_model.training, self.hf_model.eval()
        expected_logits = self.hf_model(
            input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=ids, use_cache=False
        ).logits
        try:
            logits = self(tokens, tokens).logits
        except TypeError as error:
            raise UserError(f"model: the decoder of a {model_type} has other inputs than those of BART") from error
        if (logits - expected_logits).abs().max() > 1e-3 * expected_logits.abs().max():
            raise UserError(
                f"model: the logits of a {model_type} are not a linear function of the last hidden states of its "
                "decoder, nor one with soft capping, which is not supported; BART, mT5, Marian, Pegasus and LED are"
            )
        self.hf_model.train(training)

    def _num_decoder_weights(self) -> tuple[int, int]:
        """Number of weights of the decoder's linear layers that read its tokens, and of those that read the source."""
        blocks = largest_module_list(self._decoder[0])
        layers: list[tuple[str, Any]] = [named for block in blocks for named in block.named_modules()]
        source = sum(int(layer.weight.numel()) for name, layer in layers if is_linear(layer) and _reads_source(name))
        return sum(map(_num_linear_weights, blocks)) - source, source


def max_positions(config: Any, part: str) -> int | None:
    """The number of positions of the encoder or decoder of a model; None for relative positions."""
    shared_limit = getattr(config, "max_position_embeddings", None)
    limit: int | None = getattr(config, f"max_{part}_position_embeddings", shared_limit)  # LED has one for each
    return limit


def scales_decoder_outputs(config: Any) -> bool:
    """Whether the last hidden states are divided by the square root of their width before the head, as in T5."""
    is_scaled_if_tied = config.model_type in ("umt5", "switch_transformers") and config.tie_word_embeddings
    return bool(getattr(config, "scale_decoder_outputs", is_scaled_if_tied))


def _restricted_logits(head: Any, forced_id: int | None, hidden: Tensor) -> Tensor:
    """The logits of a head, but those of [PAD], or of all tokens but `forced_id`, which are -inf."""
    logits: Tensor = head(hidden)
    if forced_id is None:
        return logits.index_fill(-1, torch.tensor([PAD], device=logits.device), -torch.inf)
    forced = torch.full_like(logits, -torch.inf)
    return forced.index_fill(-1, torch.tensor([forced_id], device=logits.device), 0.0)


def _reads_source(name: str) -> bool:
    """Whether a linear layer of a decoder is the map to keys or values of its cross-attention."""
    *parents, layer = name.removesuffix(".base_layer").split(".")
    is_cross_attention = any(parent in ("encoder_attn", "EncDecAttention", "cross_attn") for parent in parents)
    return is_cross_attention and layer in ("k_proj", "v_proj", "k", "v")


def _num_linear_weights(block: nn.Module) -> int:
    linear_layers: list[Any] = [part for part in block.modules() if is_linear(part)]
    return sum(int(part.weight.numel()) for part in linear_layers)

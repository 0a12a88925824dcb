"""Hugging Face's T5: the encoder reads the question, the decoder generates the answer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
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
    fit_vocabulary,
    layer_maps,
    left_padded,
    origin_by,
    pretrained,
    real_places,
    refuse_hidden,
    transformers,
    untrained,
)
from numerate.text.models.number_inputs import NumberEmbedding, NumberHead
from numerate.vocabulary import Vocabulary


class Dimensions(NamedTuple):
    """The sizes of a T5."""

    hidden_size: int
    num_layers: int
    num_decoder_layers: int
    num_heads: int
    head_dim: int
    intermediate_size: int

    def parameters(self, rows: int, *, gated: bool = False, buckets: int = 32) -> int:
        """How many weights it has with a vocabulary of so many rows, embedding and head being one.

        >>> SIZES["small"].parameters(32128)
        60506624
        """
        attention = 4 * self.hidden_size * self.num_heads * self.head_dim
        fed = (3 if gated else 2) * self.hidden_size * self.intermediate_size
        encoder = self.num_layers * (attention + fed + 2 * self.hidden_size)
        decoder = self.num_decoder_layers * (2 * attention + fed + 3 * self.hidden_size)
        return rows * self.hidden_size + encoder + decoder + 2 * self.hidden_size + 2 * buckets * self.num_heads


def training_bytes(parameters: int, processes: int = 1, *, half: bool = False) -> int:
    """Bytes on each of so many processes (FSDP) for weights, gradient and both moments of AdamW, all in float32; with
    `half` also for the bfloat16 copy that a forward computes with. What layers make of a batch comes on top of it.

    >>> training_bytes(60_506_624), training_bytes(2_851_598_336, processes=8, half=True)
    (968105984, 6416096256)
    """
    return parameters * (18 if half else 16) // processes


SIZES = {
    "small": Dimensions(512, 6, 6, 8, 64, 2048),
    "base": Dimensions(768, 12, 12, 12, 64, 3072),
    "large": Dimensions(1024, 24, 24, 16, 64, 4096),
    "3b": Dimensions(1024, 24, 24, 32, 128, 16384),
    "11b": Dimensions(1024, 24, 24, 128, 128, 65536),
}
"""The published sizes: Raffel et al. (2020), https://arxiv.org/abs/1910.10683, section 3.7."""

PUBLISHED: dict[str, Literal["small", "base", "large", "3b", "11b"]] = {
    "t5-small": "small",
    "t5-base": "base",
    "t5-large": "large",
    "t5-3b": "3b",
    "t5-11b": "11b",
}
"""The sizes of weights that the hub has under these names, with or without `google-t5/` before them."""

_NO_SOURCE = "model: T5 reads a question and says its answer; layout=Seq2Seq gives it both"

PIECES = {"relu": "relu", "geglu": "gated-gelu"}


@dataclass(frozen=True)
class T5(HuggingFaceSpec):
    """T5 encoder-decoder, pretrained or random, for the layout Seq2Seq.

    Raffel et al. (2020), https://arxiv.org/abs/1910.10683, as Hugging Face's transformers computes it. A size is one of
    the published ones, of which each dimension may be another; weights from a folder or the hub bring their own.

    >>> T5(size="small", hidden_size=128, num_layers=2, num_decoder_layers=2, num_heads=4, head_dim=32)
    >>> T5(weights="google-t5/t5-small", number_embedding=RegressionTransformerEmbedding())

    Pretrained weights keep their embedding rows, which the tokenizer maps to tokens; only new tokens get new rows.
    `number_head=NumberHead(read_at="start")` is a regression head: one number per question, at the decoder's first
    position. Raises `UserError` for impossible dimensions, or dimensions together with weights.
    """

    size: Literal["small", "base", "large", "3b", "11b"] = setting(
        "small", "which published size; not together with weights"
    )
    weights: str | None = setting(None, "folder or name on the Hugging Face hub to load weights from; null: random")
    hidden_size: int | None = setting(None, "hidden size; null: the size's")
    num_layers: int | None = setting(None, "encoder layers; null: the size's")
    num_decoder_layers: int | None = setting(None, "decoder layers; null: num_layers")
    num_heads: int | None = setting(None, "number of attention heads; null: the size's")
    head_dim: int | None = setting(None, "dimension of a head; null: the size's")
    intermediate_size: int | None = setting(None, "intermediate size of feed-forward networks; null: the size's")
    feed_forward: Literal["relu", "geglu"] = setting("relu", "relu as in T5, or geglu as in T5 1.1")
    dropout: float = setting(0.1, "dropout")
    max_position_embeddings: int | None = setting(
        None, "added learned position embeddings, as in its xVal variant; null: none"
    )
    number_embedding: NumberEmbedding | None = setting(None, "how numbers enter the embeddings; null: not at all")
    number_head: NumberHead | None = setting(None, "number head over the decoder; null: none")
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise UserError(f"size: {self.size!r} is none of: {', '.join(SIZES)}")
        if self.feed_forward not in PIECES:
            raise UserError(f"feed_forward: {self.feed_forward!r} is neither relu nor geglu")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout: {self.dropout} is not a share; from 0 to below 1 is right")
        for name in (*Dimensions._fields, "max_position_embeddings"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}: {value} is too few; 1 or more is right, or null")
            if self.weights is not None and value is not None and name != "max_position_embeddings":
                raise UserError(f"{name}: weights bring their own {name}; leave one of the two out")

    def dimensions(self) -> Dimensions:
        """Dimensions of a randomly initialised model."""
        own = {name: getattr(self, name) for name in Dimensions._fields}
        own["num_decoder_layers"] = own["num_decoder_layers"] or own["num_layers"]
        return SIZES[self.size]._replace(**{name: value for name, value in own.items() if value is not None})

    def parameters(self, rows: int) -> int:
        """Number of parameters with a vocabulary of so many rows, without number embedding and head."""
        return self.dimensions().parameters(rows, gated=self.feed_forward == "geglu")

    def build(self, vocabulary: Vocabulary, seed: int) -> "T5Model":
        package = transformers("model: T5")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            if self.weights is None:
                model = package.T5ForConditionalGeneration(self._config(package, vocabulary))
            else:
                model = pretrained(package.T5ForConditionalGeneration, self.weights, dropout_rate=self.dropout)
                if {model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight} != {model.shared.weight}:
                    raise UserError(
                        f"model.weights: {self.weights}: its encoder and decoder read other tables than shared.weight; "
                        "a T5 has one for both"
                    )
                fit_vocabulary(model, vocabulary, seed)
            return T5Model(self, model, vocabulary)

    def origin(self, vocabulary: Vocabulary) -> dict[str, Any] | None:
        if self.weights is None:
            return None
        size = PUBLISHED.get(self.weights.removeprefix("google-t5/"))
        if size is None or Path(self.weights).is_dir():
            return configured(self.weights, vocabulary, "model.weights=null model.size=base")
        config = replace(self, weights=None, size=size)._config(transformers("model: T5"), vocabulary)
        return origin_by(config, vocabulary)

    def build_again(self, vocabulary: Vocabulary, seed: int, origin: Mapping[str, Any]) -> "T5Model":
        package = transformers("model: T5")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            model = untrained(package, package.T5ForConditionalGeneration, origin, dropout_rate=self.dropout)
            return T5Model(self, model, vocabulary)

    def _config(self, package: Any, vocabulary: Vocabulary) -> Any:
        made = self.dimensions()
        return package.T5Config(
            vocab_size=vocabulary.size,
            d_model=made.hidden_size,
            num_layers=made.num_layers,
            num_decoder_layers=made.num_decoder_layers,
            num_heads=made.num_heads,
            d_kv=made.head_dim,
            d_ff=made.intermediate_size,
            dropout_rate=self.dropout,
            feed_forward_proj=PIECES[self.feed_forward],
            tie_word_embeddings=True,
        )


class T5Model(HuggingFaceModel):
    """The model behind `T5`."""

    def __init__(self, spec: T5, model: Any, vocabulary: Vocabulary) -> None:
        super().__init__(model, model.shared, model.lm_head, model.config.d_model)
        self.spec = spec
        self.held: Any = model
        self.scale = model.config.d_model**-0.5 if model.config.scale_decoder_outputs else 1.0
        self.places = (
            None if spec.max_position_embeddings is None else nn.Embedding(spec.max_position_embeddings, self.width)
        )
        if self.places is not None and spec.weights is not None:
            nn.init.zeros_(self.places.weight)  # no change to the pretrained function
        self.add_numbers(vocabulary, spec.number_embedding, spec.number_head)
        if spec.gradient_checkpointing:
            enable_gradient_checkpointing(model)

    def blocks(self) -> list[nn.Module]:
        return [*self.held.encoder.block, *self.held.decoder.block]

    @torch.no_grad()
    def maps(self, tokens: Tokens, source: Tokens | None = None) -> list[LayerMaps]:
        """The encoder's self-attention, then the decoder's self-attention and cross-attention."""
        refuse_hidden(tokens, "T5")
        if source is None:
            raise UserError(_NO_SOURCE)
        seen = real_places(source).long()
        with eager_attention(self.held):
            read = self.held.encoder(
                inputs_embeds=self._placed(source), attention_mask=seen, output_attentions=True, return_dict=True
            )
            output = self.held.decoder(
                inputs_embeds=self._placed(tokens),
                encoder_hidden_states=read.last_hidden_state,
                encoder_attention_mask=seen,
                use_cache=False,
                output_attentions=True,
                return_dict=True,
            )
        across = layer_maps("cross attention", output.cross_attentions)
        own = layer_maps("attention", output.attentions, "decoder")
        both = [replace(one, maps={**one.maps, **two.maps}) for one, two in zip(own, across, strict=True)]
        return layer_maps("attention", read.attentions, "encoder") + both

    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        refuse_hidden(tokens, "T5")
        memory, seen = self._encoded(source)
        # No mask for the decoder's input: with right padding and causal attention no real token sees the padding.
        output = self.held.decoder(
            inputs_embeds=self._placed(tokens),
            encoder_hidden_states=memory,
            encoder_attention_mask=seen,
            use_cache=False,
        )
        return self.output(output.last_hidden_state, target_positions, scale=self.scale)

    def start(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> Started:
        refuse_hidden(tokens, "T5")
        memory, memory_seen = self._encoded(source)
        cache = transformers("model: T5").EncoderDecoderCache(*(self._empty() for _ in range(2)))
        moved, seen = left_padded(tokens)
        state = CacheState(cache, seen, tokens.lengths, None, memory, memory_seen)
        places = (seen.long().cumsum(1) - 1).clamp(min=0)
        state.first = self._read(self._placed(moved, places), state)[:, -1:]
        return Started(self.output(state.first, scale=self.scale, first=state.first), state)

    def step(self, ids: Int[Tensor, " rows"], values: Tensor | None, state: CacheState) -> Started:
        one = Tokens(ids[:, None], state.lengths, state.lengths, None if values is None else values[:, None])
        seen = torch.cat([state.seen, torch.ones_like(state.seen[:, :1])], dim=1)
        further = CacheState(state.cache, seen, state.lengths + 1, state.first, state.memory, state.memory_seen)
        hidden = self._read(self._placed(one, state.lengths[:, None]), further)
        return Started(self.output(hidden, scale=self.scale, first=state.first), further)

    def chosen(self, state: CacheState, rows: Int[Tensor, " chosen"]) -> CacheState:
        return state.chosen(rows)

    def check(self, tokens: Tokens, trained: Tokens | None = None) -> list[str]:
        if self.places is not None:
            self._refuse_places(int(tokens.lengths.max()))
        return []

    def flops(self, rows: int, time: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        config = self.held.config
        attention, fed = self._maps()
        layer = 2 * time * (attention + attention // 2 + fed) + 2 * config.num_heads * config.d_kv * time * (time + 1)
        ends = 2 * time * self.held.lm_head.weight.numel()
        ends += 0 if self.number_head is None else self.number_head.flops(time)
        return int(rows * (config.num_decoder_layers * layer + ends))

    def source_flops(self, rows: int, time: int, source: int) -> int:
        config = self.held.config
        attention, fed = self._maps()
        inside = config.num_heads * config.d_kv
        encoder = config.num_layers * (2 * source * (attention + fed) + 4 * inside * source * source)
        return int(rows * (encoder + config.num_decoder_layers * (source * attention + 4 * inside * time * source)))

    # Inside ------------------------------------------------------------------------------------------------------

    def _maps(self) -> tuple[int, int]:
        """Number of weights of one attention layer and of one feed-forward network."""
        config = self.held.config
        fed = (3 if config.is_gated_act else 2) * config.d_model * config.d_ff
        return 4 * config.d_model * config.num_heads * config.d_kv, fed

    def _encoded(self, source: Tokens | None) -> tuple[Float[Tensor, "rows source width"], Bool[Tensor, "rows source"]]:
        if source is None:
            raise UserError(_NO_SOURCE)
        refuse_hidden(source, "T5")
        seen = real_places(source)
        output = self.held.encoder(inputs_embeds=self._placed(source), attention_mask=seen.long())
        return output.last_hidden_state, seen

    def _read(self, x: Tensor, state: CacheState) -> Float[Tensor, "rows read width"]:
        """The decoder's hidden states of new columns, which are added to the cache."""
        output: Tensor = self.held.decoder(
            inputs_embeds=x,
            attention_mask=state.seen.long(),
            encoder_hidden_states=state.memory,
            encoder_attention_mask=state.memory_seen,
            past_key_values=state.cache,
            use_cache=True,
        ).last_hidden_state
        return output

    def _placed(self, tokens: Tokens, places: Tensor | None = None) -> Float[Tensor, "rows time width"]:
        x = self.vectors(tokens.ids, tokens.values)
        if self.places is None:
            return x
        if places is None:
            places = torch.arange(tokens.ids.shape[1], device=x.device)
        if x.device.type == "cpu":
            self._refuse_places(int(places.max()) + 1)
        added: Tensor = self.places(places)
        return x + added

    def _refuse_places(self, time: int) -> None:
        assert self.places is not None
        if time > self.places.num_embeddings:
            raise UserError(
                f"model.max_position_embeddings: {time} tokens are beyond the table of "
                f"{self.places.num_embeddings} places; "
                f"shorter examples or model.max_position_embeddings={time} are right"
            )

    def _empty(self) -> Any:
        return transformers("model: T5").DynamicCache(config=self.held.decoder.config)

"""Numformer: a bidirectional encoder with a masked answer and a number head."""

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.utils.checkpoint
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, scaled_dot_product_attention

from numerate.batch import Loops, ModelSpec, Output, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.attention_maps import LayerMaps, attention_weights
from numerate.text.models.hugging_face import HuggingFaceModel, make_attention_mask
from numerate.text.models.number_inputs import NumberEmbedding, NumberHead, XValScaling
from numerate.vocabulary import Vocabulary

INITIALIZER_RANGE = 0.02
"""Initial standard deviation of the embeddings."""


@dataclass(frozen=True)
class Numformer(ModelSpec):
    """Numformer: bidirectional encoder with a number head, for the layout MaskedLM (the model of xVal).

    Golkar et al. (2023), https://arxiv.org/abs/2310.02989, in the size that Zausinger et al. (2025),
    https://arxiv.org/abs/2411.02083, compare with. Pre-norm layers, learned positions; both heads are two linear maps
    with a GELU between. `final_norm=false` and `head_bias=false` are the published code. The tokenizer is to write
    numbers as [NUM] (XVal), whose embedding is multiplied by the number.

    Attention is not causal, so the input must not contain the answer: all layouts but `MaskedLM` are refused.
    """

    hidden_size: int = setting(768, "hidden size", at_least=1)
    num_layers: int = setting(12, "number of layers", at_least=1)
    num_heads: int = setting(12, "number of attention heads; must divide hidden_size", at_least=1)
    intermediate_size: int = setting(3072, "intermediate size of feed-forward networks and heads", at_least=1)
    max_position_embeddings: int = setting(512, "longest sequence; number of learned position embeddings", at_least=1)
    dropout: float = setting(0.1, "dropout", at_least=0, below=1)
    number_embedding: NumberEmbedding | None = setting(
        XValScaling("ln"), "how numbers enter the embeddings; null: not at all"
    )
    number_head: NumberHead | None = setting(
        NumberHead(num_layers=2, scale="ln"), "number head over masked positions; null: none"
    )
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")
    final_norm: bool = setting(True, "whether a norm follows the last layer; published: no")
    head_bias: bool = setting(True, "whether the vocabulary head has biases; published: no")

    def small(self) -> "Numformer":
        return replace(self, hidden_size=32, num_layers=1, num_heads=2, intermediate_size=64)

    def build(self, vocabulary: Vocabulary, seed: int) -> "NumformerModel":
        if self.hidden_size % self.num_heads:
            raise UserError(f"model.num_heads: must divide hidden_size ({self.hidden_size}), got {self.num_heads}")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return NumformerModel(self, vocabulary)


class NumformerModel(HuggingFaceModel):
    """The model behind `Numformer`."""

    def __init__(self, spec: Numformer, vocabulary: Vocabulary) -> None:
        embedding = nn.Embedding(vocabulary.size, spec.hidden_size)
        head = nn.Linear(spec.intermediate_size, vocabulary.size, bias=spec.head_bias)
        super().__init__(nn.ModuleDict({"embedding": embedding, "head": head}), embedding, head, spec.hidden_size)
        self.spec = spec
        self.position_embedding = nn.Embedding(spec.max_position_embeddings, spec.hidden_size)
        self.layers = nn.ModuleList(NumformerLayer(spec) for _ in range(spec.num_layers))
        self.final_norm = nn.LayerNorm(spec.hidden_size) if spec.final_norm else nn.Identity()
        self.head_in_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=spec.head_bias)
        for table in (embedding, self.position_embedding):
            nn.init.normal_(table.weight, std=INITIALIZER_RANGE)
        self.add_number_modules(vocabulary, spec.number_embedding, spec.number_head)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    @torch.no_grad()
    def attention_maps(self, tokens: Tokens, source: Tokens | None = None) -> list[LayerMaps]:
        maps: list[LayerMaps] = []

        def record(layer: nn.Module, given: tuple[Any, ...]) -> None:
            assert isinstance(layer, NumformerLayer)
            maps.append(LayerMaps(len(maps), 0, {"attention": layer.attention_weights(*given)}))

        hooks = [layer.register_forward_pre_hook(record) for layer in self.layers]
        try:
            self(tokens, source)
        finally:
            for hook in hooks:
                hook.remove()
        return maps

    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        if source is not None:
            raise UserError("model: a Numformer has no separate encoder; use T5 for the layout Seq2Seq")
        time = tokens.ids.shape[1]
        self.check_length(time)
        assert self.position_embedding is not None
        attention_mask = make_attention_mask(tokens)
        attention_mask = attention_mask if tokens.blocked_keys is None else attention_mask & ~tokens.blocked_keys
        x = self.embed_tokens(tokens.ids, tokens.number_values) + self.position_embedding.weight[:time]
        x = dropout(x, self.spec.dropout, self.training)
        for layer in self.layers:
            if self.spec.gradient_checkpointing and self.training:
                x = torch.utils.checkpoint.checkpoint(layer, x, attention_mask, use_reentrant=False)
            else:
                x = layer(x, attention_mask)
        base_output = self.make_output(self.final_norm(x), target_positions)
        head_input = gelu(self.head_in_proj(base_output.hidden_states))
        return Output(
            head_input,
            base_output.lm_head,
            target_positions=target_positions,
            number_head=base_output.number_head,
            unscale=base_output.unscale,
        )

    def prefill(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> NoReturn:
        self._refuse_decoding()

    def step(self, ids: Int[Tensor, " rows"], number_values: Tensor | None, state: Any) -> NoReturn:
        self._refuse_decoding()

    def _refuse_decoding(self) -> NoReturn:
        raise UserError(f"model: {self.non_causal_reason()}; it cannot be decoded token by token")

    def check_tokens(self, tokens: Tokens, training_tokens: Tokens | None = None) -> list[str]:
        longest = int(tokens.lengths.max())
        self.check_length(longest)
        longest_trained = longest if training_tokens is None else int(training_tokens.lengths.max())
        if longest <= longest_trained:
            return []
        return [
            f"model: position {longest_trained} and later ones do not occur in training; their embeddings are untrained"
        ]

    def flops(self, batch_size: int, sequence_length: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        spec = self.spec
        layer = (
            2 * sequence_length * (4 * spec.hidden_size**2 + 2 * spec.hidden_size * spec.intermediate_size)
            + 4 * spec.hidden_size * sequence_length * sequence_length
        )
        head_flops = 2 * sequence_length * (self.head_in_proj.weight.numel() + self._head[0].weight.numel())
        number_head_flops = 0 if self.number_head is None else self.number_head.flops(sequence_length)
        return int(batch_size * (spec.num_layers * layer + head_flops + number_head_flops))

    def non_causal_reason(self) -> str:
        return "a Numformer attends in both directions, so each position depends on later tokens"


class NumformerLayer(nn.Module):
    """Pre-norm attention in both directions and a feed-forward, each added to the residual stream."""

    def __init__(self, spec: Numformer) -> None:
        super().__init__()
        self.num_heads, self.dropout = spec.num_heads, spec.dropout
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(spec.hidden_size), nn.LayerNorm(spec.hidden_size)
        self.qkv_proj = nn.Linear(spec.hidden_size, 3 * spec.hidden_size)
        self.out_proj = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.fc1, self.fc2 = (
            nn.Linear(spec.hidden_size, spec.intermediate_size),
            nn.Linear(spec.intermediate_size, spec.hidden_size),
        )

    def forward(
        self, x: Float[Tensor, "rows time width"], attention_mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time width"]:
        queries, keys, values = self._project_qkv(x)
        dropout_p = self.dropout if self.training else 0.0
        attention_output = scaled_dot_product_attention(
            queries, keys, values, attn_mask=attention_mask[:, None, None], dropout_p=dropout_p
        )
        x = x + self._apply_dropout(self.out_proj(attention_output.transpose(1, 2).flatten(2)))
        return x + self._apply_dropout(self.fc2(self._apply_dropout(gelu(self.fc1(self.feed_forward_norm(x))))))

    def attention_weights(
        self, x: Float[Tensor, "rows time width"], attention_mask: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows heads time time"]:
        """By which `forward` attends."""
        queries, keys, _ = self._project_qkv(x)
        return attention_weights(queries, keys, attention_mask[:, None, None])

    def _project_qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: rows x heads x time x head width each."""
        rows, time, width = x.shape
        qkv = self.qkv_proj(self.attention_norm(x)).view(rows, time, 3, self.num_heads, width // self.num_heads)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4)
        return queries, keys, values

    def _apply_dropout(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)

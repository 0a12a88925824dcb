"""Numformer: a bidirectional encoder with a masked answer and a number head."""

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.utils.checkpoint
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, scaled_dot_product_attention

from numerate.batch import Loops, ModelSpec, Output, StepContext, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.attention_maps import LayerMaps, weights_of
from numerate.text.models.hugging_face import HuggingFaceModel, real_places
from numerate.text.models.number_inputs import NumberEmbedding, NumberHead, XValScaling
from numerate.vocabulary import Vocabulary

INITIAL_SPREAD = 0.02
"""Initial standard deviation of the embeddings."""


@dataclass(frozen=True)
class Numformer(ModelSpec):
    """Numformer: bidirectional encoder with a number head, for the layout Masked (the model of xVal).

    Golkar et al. (2023), https://arxiv.org/abs/2310.02989, in the size that Zausinger et al. (2025),
    https://arxiv.org/abs/2411.02083, compare with. Pre-norm layers, learned positions; both heads are two linear maps
    with a GELU between. `final_norm=false` and `head_bias=false` are the published code. The tokenizer is to write
    numbers as [NUM] (XVal), whose embedding is multiplied by the number.

    Attention is not causal, so the input must not contain the answer: all layouts but `Masked` are refused.
    """

    hidden_size: int = setting(768, "hidden size")
    num_layers: int = setting(12, "number of layers")
    num_heads: int = setting(12, "number of attention heads; must divide hidden_size")
    intermediate_size: int = setting(3072, "intermediate size of feed-forward networks and heads")
    max_position_embeddings: int = setting(512, "longest sequence; number of learned position embeddings")
    dropout: float = setting(0.1, "dropout")
    number_embedding: NumberEmbedding | None = setting(
        XValScaling("ln"), "how numbers enter the embeddings; null: not at all"
    )
    number_head: NumberHead | None = setting(
        NumberHead(num_layers=2, scale="ln"), "number head over masked positions; null: none"
    )
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")
    final_norm: bool = setting(True, "whether a norm follows the last layer; published: no", later=True)
    head_bias: bool = setting(True, "whether the vocabulary head has biases; published: no", later=True)

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: {getattr(self, name)} is too few; 1 or more is right")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout: {self.dropout} is not a share; from 0 to below 1 is right")

    def build(self, vocabulary: Vocabulary, seed: int) -> "NumformerModel":
        if self.hidden_size % self.num_heads:
            raise UserError(f"model.num_heads: width {self.hidden_size} does not divide into {self.num_heads} heads")
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
        self.places = nn.Embedding(spec.max_position_embeddings, spec.hidden_size)
        self.layers = nn.ModuleList(NumformerLayer(spec) for _ in range(spec.num_layers))
        self.norm = nn.LayerNorm(spec.hidden_size) if spec.final_norm else nn.Identity()
        self.inward = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=spec.head_bias)
        for table in (embedding, self.places):
            nn.init.normal_(table.weight, std=INITIAL_SPREAD)
        self.add_numbers(vocabulary, spec.number_embedding, spec.number_head)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    @torch.no_grad()
    def maps(self, tokens: Tokens, source: Tokens | None = None) -> list[LayerMaps]:
        found: list[LayerMaps] = []

        def note(layer: nn.Module, given: tuple[Any, ...]) -> None:
            assert isinstance(layer, NumformerLayer)
            found.append(LayerMaps(len(found), 0, {"attention": layer.weights(*given)}))

        hooks = [layer.register_forward_pre_hook(note) for layer in self.layers]
        try:
            self(tokens, source)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        if source is not None:
            raise UserError("model: a Numformer reads one text; for pairs (layout Seq2Seq) take T5")
        time = tokens.ids.shape[1]
        self._refuse_places(time)
        seen = real_places(tokens)
        seen = seen if tokens.blocked_keys is None else seen & ~tokens.blocked_keys
        x = self.vectors(tokens.ids, tokens.values) + self.places.weight[:time]
        x = dropout(x, self.spec.dropout, self.training)
        for layer in self.layers:
            if self.spec.gradient_checkpointing and self.training:
                x = torch.utils.checkpoint.checkpoint(layer, x, seen, use_reentrant=False)
            else:
                x = layer(x, seen)
        whole = self.output(self.norm(x), target_positions)
        inner = gelu(self.inward(whole.hidden))
        return Output(
            inner, whole.head, target_positions=target_positions, number_head=whole.number_head, unscaled=whole.unscaled
        )

    def start(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> NoReturn:
        raise UserError(f"model: {self.sees_future()}; it cannot be decoded token by token")

    def step(self, ids: Int[Tensor, " rows"], values: Tensor | None, state: Any) -> NoReturn:
        raise UserError(f"model: {self.sees_future()}; it cannot be decoded token by token")

    def assign_positions(self, tokens: Tokens, draw: StepContext) -> Tokens:
        """Its places are those of the row; nothing is drawn."""
        return replace(tokens, position_ids=())

    def check(self, tokens: Tokens, trained: Tokens | None = None) -> list[str]:
        longest = int(tokens.lengths.max())
        self._refuse_places(longest)
        known = longest if trained is None else int(trained.lengths.max())
        if longest <= known:
            return []
        return [f"model: place {known} is the first that no training example had; its vector is as initialised"]

    def flops(self, rows: int, time: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        spec = self.spec
        layer = (
            2 * time * (4 * spec.hidden_size**2 + 2 * spec.hidden_size * spec.intermediate_size)
            + 4 * spec.hidden_size * time * time
        )
        ends = 2 * time * (self.inward.weight.numel() + self._head[0].weight.numel())  # type: ignore[operator]
        number = 0 if self.number_head is None else self.number_head.flops(time)
        return int(rows * (spec.num_layers * layer + ends + number))

    def sees_future(self) -> str:
        return "a Numformer attends in both directions, so that each place sees what comes later in its row"

    def _refuse_places(self, time: int) -> None:
        if time > self.spec.max_position_embeddings:
            raise UserError(
                f"model.max_position_embeddings: {time} tokens are beyond the "
                f"{self.spec.max_position_embeddings} places of the table; "
                f"shorter examples or model.max_position_embeddings={time} are right"
            )


class NumformerLayer(nn.Module):
    """Pre-norm attention in both directions and a feed-forward, each added to the residual stream."""

    def __init__(self, spec: Numformer) -> None:
        super().__init__()
        self.heads, self.dropout = spec.num_heads, spec.dropout
        self.attention_norm, self.norm = nn.LayerNorm(spec.hidden_size), nn.LayerNorm(spec.hidden_size)
        self.queries_keys_values = nn.Linear(spec.hidden_size, 3 * spec.hidden_size)
        self.out = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.inward, self.outward = (
            nn.Linear(spec.hidden_size, spec.intermediate_size),
            nn.Linear(spec.intermediate_size, spec.hidden_size),
        )

    def forward(
        self, x: Float[Tensor, "rows time width"], seen: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows time width"]:
        queries, keys, values = self._projected(x)
        share = self.dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(queries, keys, values, attn_mask=seen[:, None, None], dropout_p=share)
        x = x + self._dropped(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self._dropped(self.outward(self._dropped(gelu(self.inward(self.norm(x))))))

    def weights(
        self, x: Float[Tensor, "rows time width"], seen: Bool[Tensor, "rows time"]
    ) -> Float[Tensor, "rows heads time time"]:
        """By which `forward` attends."""
        queries, keys, _ = self._projected(x)
        return weights_of(queries, keys, seen[:, None, None])

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: rows x heads x time x head width each."""
        rows, time, width = x.shape
        parts = self.queries_keys_values(self.attention_norm(x)).view(rows, time, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        return queries, keys, values

    def _dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)

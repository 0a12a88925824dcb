"""Contextual position encoding: the position of a key depends on the tokens in between."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from numerate.config import setting
from numerate.positions.position import ContextualBias, Position
from numerate.positions.position_ids import Sequential


@dataclass(frozen=True)
class CoPE(Position):
    """Contextual position encoding (CoPE): positions count only tokens that the query's gates select.

    Golovneva et al. (2024), "Contextual Position Encoding", https://arxiv.org/abs/2405.18719. Query i has the gate
    g_ij = sigmoid(q_i . k_j / sqrt(head width)) for key j; the position of key j is the sum of the gates from j to i,
    at most `max_positions` - 1; and q_i . e_p is added to the score, with an embedding e per integer position p of a
    layer, linearly interpolated in between. (The division by the root is in the listing of the paper's appendix, not in
    its equation.) The embeddings start at 0.

    There are no position ids. With all gates open, the position of key j is i - j + 1.
    """

    position_ids = Sequential()

    max_positions: int = setting(64, "number of position embeddings; larger positions share the last one", at_least=2)

    def build_attention(self, heads: int, head_width: int) -> ContextualBias:
        return CoPEBias(self.max_positions, head_width)


class CoPEBias(ContextualBias):
    """The vectors of `CoPE`, the same for all heads."""

    def __init__(self, max_positions: int, head_width: int) -> None:
        super().__init__()
        self.position_embeddings = nn.Parameter(torch.zeros(max_positions, head_width))

    def compute_bias(
        self,
        queries: Float[Tensor, "rows heads query head_width"],
        keys: Float[Tensor, "rows heads key head_width"],
        attn_mask: Bool[Tensor, "#rows 1 query key"],
    ) -> Float[Tensor, "rows heads query key"]:
        last = len(self.position_embeddings) - 1
        scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
        # A sum of gates is a position, and bfloat16 has no halves above 128.
        gates = scores.to(torch.promote_types(scores.dtype, torch.float32)).sigmoid().masked_fill(~attn_mask, 0.0)
        positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
        floor = positions.detach().floor()
        floor_index = floor.long()
        position_logits = queries @ self.position_embeddings.T
        floor_logits, ceil_logits = (
            position_logits.gather(-1, floor_index),
            position_logits.gather(-1, (floor_index + 1).clamp(max=last)),
        )
        bias: Tensor = floor_logits + (ceil_logits - floor_logits) * (positions - floor).to(floor_logits.dtype)
        return bias

    def flops(self, heads: int, time: int) -> int:
        max_positions, head_width = self.position_embeddings.shape
        return 2 * heads * head_width * (time * time + time * max_positions)

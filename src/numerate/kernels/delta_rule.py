"""The delta rule: the recurrence, and a chunked form of the same in matrix products.

A memory S (keys x values) is read with a query q and written to with a key k, a value v and a strength beta: what the
memory holds at k is replaced by v to the part beta,

    S_t = a_t (1 - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t,

with a gate a_t in (0, 1], or none. Keys have length 1, so that 1 - beta k k^T has one eigenvalue 1 - beta besides ones:
in [0, 1] for beta up to 1, in [-1, 1] for beta up to 2.

A token may write several times, one write after the other, before it reads (DeltaProduct): keys, values and betas are
then `steps` times as long as queries and gates, and the gate acts once, before the token's first write.

Every head of every row has a memory of its own. With a key (1, 0), a value (3, 5), beta 1 and an empty memory, the
query (1, 0) reads (3, 5) and the query (0, 1) reads (0, 0).
"""

from math import ceil

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

CHUNK_SIZE = 32
"""Number of updates solved for at once; measured on one core with 16 to 64 rows of 50 to 128 tokens, width 64."""


def recurrent_delta_rule(
    queries: Float[Tensor, "rows time heads head_width"],
    keys: Float[Tensor, "rows writes heads head_width"],
    values: Float[Tensor, "rows writes heads value_width"],
    betas: Float[Tensor, "rows writes heads"],
    log_gates: Float[Tensor, "rows time heads"] | None = None,
    state: Float[Tensor, "rows heads head_width value_width"] | None = None,
) -> tuple[Float[Tensor, "rows time heads value_width"], Float[Tensor, "rows heads head_width value_width"]]:
    """The sequential recurrence: the output at each position, and the final state."""
    rows, time, heads, head_width = queries.shape
    steps = keys.shape[1] // time
    if state is None:
        state = queries.new_zeros(rows, heads, head_width, values.shape[3])
    read = []
    for place in range(time):
        if log_gates is not None:
            state = state * log_gates[:, place, :, None, None].exp()
        for write in range(place * steps, (place + 1) * steps):
            key = keys[:, write, :, :, None]
            error = values[:, write, :, None] - key.mT @ state
            state = state + betas[:, write, :, None, None] * (key @ error)
        read.append((queries[:, place, :, None] @ state)[:, None, :, 0])
    return torch.cat(read, dim=1), state


def chunked_delta_rule(
    queries: Float[Tensor, "rows time heads head_width"],
    keys: Float[Tensor, "rows writes heads head_width"],
    values: Float[Tensor, "rows writes heads value_width"],
    betas: Float[Tensor, "rows writes heads"],
    log_gates: Float[Tensor, "rows time heads"] | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> tuple[Float[Tensor, "rows time heads value_width"], Float[Tensor, "rows heads head_width value_width"]]:
    """The same from a zero state, chunk by chunk.

    Inside a chunk the writes u are the solution of a triangular system (Yang et al., 2024, whose UT transform is its
    inverse, https://arxiv.org/abs/2406.06484; with gates https://arxiv.org/abs/2412.06464). With K the keys of the
    chunk, S the memory before it, and D_ij the product of the gates behind write j up to write i,

        (1 + diag(beta) tril(D * K K^T, -1)) U = diag(beta) (V - diag(D_0) K S).

    The logarithms behind D are sums of those between two positions, none of which is above 0, never differences of
    longer sums: nothing overflows, and no digits are lost behind a gate that is nearly closed.
    """
    rows, time, heads, _ = queries.shape
    num_householder = keys.shape[1] // time
    num_chunks = ceil(time * num_householder / chunk_size)
    chunk_tokens = ceil(time / num_chunks)  # of a chunk
    padding = num_chunks * chunk_tokens - time

    def split_chunks(x: Tensor, per_place: int) -> Tensor:
        """chunks x (rows x heads) x positions of a chunk x the remaining dimensions, padded with zeros, which change
        nothing."""
        if padding:
            x = pad(x, (0, 0) * (x.dim() - 2) + (0, padding * per_place))
        x = x.reshape(rows, num_chunks, chunk_tokens * per_place, heads, -1).permute(1, 0, 3, 2, 4)
        return x.reshape(num_chunks, rows * heads, chunk_tokens * per_place, -1)

    queries, keys, chunk_betas = (
        split_chunks(queries, 1),
        split_chunks(keys, num_householder),
        split_chunks(betas, num_householder),
    )
    weighted_values, weighted_keys = split_chunks(values, num_householder) * chunk_betas, keys * chunk_betas
    system, scores = weighted_keys @ keys.mT, queries @ keys.mT
    scores = scores.masked_fill(~_causal_mask(chunk_tokens, num_householder, queries.device), 0)
    chunk_decays: tuple[Tensor, ...] = ()
    if log_gates is not None:
        log_decays = split_chunks(log_gates, 1)
        cumulative_decays = log_decays.cumsum(dim=2).exp()
        pairwise_decays = _pairwise_decays(log_decays).repeat_interleave(num_householder, dim=3)
        scores = scores * pairwise_decays
        system = system * pairwise_decays.repeat_interleave(num_householder, dim=2)
        queries, weighted_keys = (
            queries * cumulative_decays,
            weighted_keys * cumulative_decays.repeat_interleave(num_householder, dim=2),
        )
        keys = keys * pairwise_decays[:, :, -1, :, None]
        chunk_decays = cumulative_decays[:, :, -1:].unbind()
    outputs: list[Tensor] = []
    state = None
    chunk_tensors = zip(
        *(part.unbind() for part in (queries, keys, weighted_keys, weighted_values, system, scores)), strict=True
    )
    for number, (query, key, weighted_key, update, lower_triangle, score) in enumerate(chunk_tensors):
        if state is not None:
            update = torch.baddbmm(update, weighted_key, state, alpha=-1)
        # Only the part of the matrix below the diagonal is used.
        update = torch.linalg.solve_triangular(lower_triangle, update, upper=False, unitriangular=True)
        out = torch.bmm(score, update)
        if state is None:
            state = torch.bmm(key.mT, update)
        else:
            out = torch.baddbmm(out, query, state)
            state = torch.baddbmm(state * chunk_decays[number] if chunk_decays else state, key.mT, update)
        outputs.append(out.view(rows, heads, chunk_tokens, -1).transpose(1, 2))
    assert state is not None
    return torch.cat(outputs, dim=1)[:, :time], state.view(rows, heads, *state.shape[1:])


def _pairwise_decays(
    logs: Float[Tensor, "chunks heads positions 1"],
) -> Float[Tensor, "chunks heads positions positions"]:
    """The product of the gates after the second position up to the first; 1 if the second is later."""
    places = logs.shape[2]
    visible = _causal_mask(places, 1, logs.device).to(logs.dtype)
    # Sums as a matrix product with ones are faster than cumulative sums.
    # That of a closed gate stays finite, as 0 times infinity is NaN.
    return (visible @ (logs.clamp(min=-1e5) * visible.tril(-1))).exp()


def _causal_mask(places: int, steps: int, device: torch.device) -> Bool[Tensor, "positions writes"]:
    """The writes that each position reads: those of earlier positions and its own."""
    place = torch.arange(places, device=device)
    return place.repeat_interleave(steps) <= place[:, None]


def delta_rule_flops(
    time: int, num_householder: int, head_width: int, value_width: int, chunk_size: int = CHUNK_SIZE
) -> int:
    """Floating-point operations of the chunked form for one head of one row, a multiply-add as two."""
    chunks = ceil(time * num_householder / chunk_size)
    places = ceil(time / chunks)
    writes = places * num_householder
    inside = (writes + places) * writes * head_width + (writes // 2 + places) * writes * value_width
    memory = (2 * writes + places) * head_width * value_width
    return 2 * chunks * (inside + memory)

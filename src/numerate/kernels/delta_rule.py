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

CHUNK = 32
"""How many writes are solved for at once; measured on one core with 16 to 64 rows of 50 to 128 tokens, width 64."""


def recurrent(
    queries: Float[Tensor, "rows time heads head_width"],
    keys: Float[Tensor, "rows writes heads head_width"],
    values: Float[Tensor, "rows writes heads value_width"],
    betas: Float[Tensor, "rows writes heads"],
    log_gates: Float[Tensor, "rows time heads"] | None = None,
    memory: Float[Tensor, "rows heads head_width value_width"] | None = None,
) -> tuple[Float[Tensor, "rows time heads value_width"], Float[Tensor, "rows heads head_width value_width"]]:
    """Write by write: what each place reads, and the memory behind the last one."""
    rows, time, heads, head_width = queries.shape
    steps = keys.shape[1] // time
    if memory is None:
        memory = queries.new_zeros(rows, heads, head_width, values.shape[3])
    read = []
    for place in range(time):
        if log_gates is not None:
            memory = memory * log_gates[:, place, :, None, None].exp()
        for write in range(place * steps, (place + 1) * steps):
            key = keys[:, write, :, :, None]
            error = values[:, write, :, None] - key.mT @ memory
            memory = memory + betas[:, write, :, None, None] * (key @ error)
        read.append((queries[:, place, :, None] @ memory)[:, None, :, 0])
    return torch.cat(read, dim=1), memory


def chunked(
    queries: Float[Tensor, "rows time heads head_width"],
    keys: Float[Tensor, "rows writes heads head_width"],
    values: Float[Tensor, "rows writes heads value_width"],
    betas: Float[Tensor, "rows writes heads"],
    log_gates: Float[Tensor, "rows time heads"] | None = None,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "rows time heads value_width"], Float[Tensor, "rows heads head_width value_width"]]:
    """The same from an empty memory, chunk by chunk.

    Inside a chunk the writes u are the solution of a triangular system (Yang et al., 2024, whose UT transform is its
    inverse, https://arxiv.org/abs/2406.06484; with gates https://arxiv.org/abs/2412.06464). With K the keys of the
    chunk, S the memory before it, and D_ij the product of the gates behind write j up to write i,

        (1 + diag(beta) tril(D * K K^T, -1)) U = diag(beta) (V - diag(D_0) K S).

    The logarithms behind D are sums of those between two places, none of which is above 0, never differences of longer
    sums: nothing overflows, and no digits are lost behind a gate that is nearly closed.
    """
    rows, time, heads, _ = queries.shape
    steps = keys.shape[1] // time
    chunks = ceil(time * steps / chunk)
    places = ceil(time / chunks)  # of a chunk
    missing = chunks * places - time

    def cut(x: Tensor, per_place: int) -> Tensor:
        """chunks x (rows x heads) x places of a chunk x what is left, filled up with zeros, which write nothing."""
        if missing:
            x = pad(x, (0, 0) * (x.dim() - 2) + (0, missing * per_place))
        x = x.reshape(rows, chunks, places * per_place, heads, -1).permute(1, 0, 3, 2, 4)
        return x.reshape(chunks, rows * heads, places * per_place, -1)

    queries, keys, strengths = cut(queries, 1), cut(keys, steps), cut(betas, steps)
    written, erased = cut(values, steps) * strengths, keys * strengths
    system, scores = erased @ keys.mT, queries @ keys.mT
    fading: tuple[Tensor, ...] = ()
    if log_gates is None:
        scores = scores * _visible(places, steps, queries.device)
    else:
        logs = cut(log_gates, 1)
        kept = logs.cumsum(dim=2).exp()
        between = _between(logs).repeat_interleave(steps, dim=3)
        scores = scores * between
        system = system * between.repeat_interleave(steps, dim=2)
        queries, erased = queries * kept, erased * kept.repeat_interleave(steps, dim=2)
        keys = keys * between[:, :, -1, :, None]
        fading = kept[:, :, -1:].unbind()
    read: list[Tensor] = []
    memory = None
    parts = zip(*(part.unbind() for part in (queries, keys, erased, written, system, scores)), strict=True)
    for number, (query, key, erase, write, equations, score) in enumerate(parts):
        if memory is not None:
            write = torch.baddbmm(write, erase, memory, alpha=-1)
        # Of `equations` only what stands below the diagonal is looked at.
        write = torch.linalg.solve_triangular(equations, write, upper=False, unitriangular=True)
        out = torch.bmm(score, write)
        if memory is None:
            memory = torch.bmm(key.mT, write)
        else:
            out = torch.baddbmm(out, query, memory)
            memory = torch.baddbmm(memory * fading[number] if fading else memory, key.mT, write)
        read.append(out.view(rows, heads, places, -1).transpose(1, 2))
    assert memory is not None
    return torch.cat(read, dim=1)[:, :time], memory.view(rows, heads, *memory.shape[1:])


def _between(logs: Float[Tensor, "chunks heads places 1"]) -> Float[Tensor, "chunks heads places places"]:
    """The product of the gates behind the second place up to the first; 0 where the second is later."""
    places = logs.shape[2]
    visible = _visible(places, 1, logs.device).to(logs.dtype)
    # As a product with ones the sums are quicker than cumulative ones.
    return (visible @ (logs * visible.tril(-1))).exp() * visible


def _visible(places: int, steps: int, device: torch.device) -> Bool[Tensor, "places writes"]:
    """Which writes each place reads: those of the places before it, and its own."""
    place = torch.arange(places, device=device)
    return place.repeat_interleave(steps) <= place[:, None]


def flops(time: int, steps: int, head_width: int, value_width: int, chunk: int = CHUNK) -> int:
    """Floating-point operations of the chunked form for one head of one row, a multiply-add as two."""
    chunks = ceil(time * steps / chunk)
    places = ceil(time / chunks)
    writes = places * steps
    inside = (writes + places) * writes * head_width + (writes // 2 + places) * writes * value_width
    memory = (2 * writes + places) * head_width * value_width
    return 2 * chunks * (inside + memory)

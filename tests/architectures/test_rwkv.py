"""What RWKV's mixers share: products through decays against the sum written out, token shift, norms by head, starts."""

import itertools

import pytest
import torch
from torch import nn

from numerate.architectures.rwkv import (
    CHUNK_SIZE,
    MIN_BLOCK_SIZE,
    HeadNorm,
    apply_token_shift,
    compute_num_heads,
    decayed_scores,
    initial_shift_weights,
    merge_chunks,
    split_chunks,
)
from numerate.errors import UserError

EXACT = {"atol": 1e-12, "rtol": 1e-12}


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("places", [MIN_BLOCK_SIZE, 2 * MIN_BLOCK_SIZE, 8 * MIN_BLOCK_SIZE])
@pytest.mark.parametrize("fast", [0.0, 3.0, 9.0])
def test_each_query_meets_each_earlier_key_through_all_decays_between(places: int, fast: float) -> None:
    queries, keys = drawn(2, places, 2, 3), drawn(2, places, 1, 3, seed=1)
    decays = (-(fast * drawn(2, places, 3, seed=2)).exp()).exp()
    products, reaching_back, reaching_on, whole = decayed_scores(queries, keys, decays)
    for late, early, asking in itertools.product(range(places), range(places), range(2)):
        through = decays[:, early + 1 : late].prod(1)
        expected = (queries[:, late, asking] * through * keys[:, early, 0]).sum(-1) * (early < late)
        torch.testing.assert_close(products[:, late, asking, early, 0], expected, **EXACT)
    for place in range(places):
        torch.testing.assert_close(
            reaching_back[:, place, 1], queries[:, place, 1] * decays[:, :place].prod(1), **EXACT
        )
        torch.testing.assert_close(
            reaching_on[:, place, 0], keys[:, place, 0] * decays[:, place + 1 :].prod(1), **EXACT
        )
    torch.testing.assert_close(whole, decays.prod(1), **EXACT)


def test_a_channel_that_forgets_all_at_once_makes_nothing_infinite() -> None:
    decays = torch.ones(1, 8, 2)
    decays[0, 3, 0] = 0.0
    decays[0, :, 1] = 1e-38
    decays.requires_grad_()
    products = decayed_scores(torch.ones(1, 8, 1, 2), torch.ones(1, 8, 1, 2), decays)[0].view(8, 8)
    assert products.isfinite().all()
    assert products[4, 3] == 2.0, "the decay of the key's own place is not between the two"
    assert products[5, 2] == 0.0
    products.sum().backward()
    assert decays.grad is not None
    assert decays.grad.isfinite().all()


@pytest.mark.parametrize("time", [1, 4, 5, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE - 2])
def test_rows_come_out_of_chunks_as_they_went_in(time: int) -> None:
    x = drawn(2, time, 3, 5)
    cut = split_chunks(x, pad_value=7.0)
    assert cut.shape[3] <= CHUNK_SIZE
    assert cut.shape[2] * cut.shape[3] < time + CHUNK_SIZE
    assert torch.equal(merge_chunks(cut, time), x)
    assert (cut.flatten(2, 3)[:, :, time:] == 7.0).all()


def test_token_shift_takes_its_share_of_the_token_before() -> None:
    x, before = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 6.0]]])
    whole, half = apply_token_shift(x, before, torch.tensor([0.0, 0.0, 0.5, 0.25]))
    assert whole.tolist() == [[[1.0, 2.0]]]
    assert half.tolist() == [[[2.0, 3.0]]]


def test_the_first_channel_begins_with_the_token_before_alone() -> None:
    assert initial_shift_weights(4, 1.0).tolist() == [1.0, 0.75, 0.5, 0.25]
    assert initial_shift_weights(4, 0.5)[1] == 0.5


def test_the_norm_by_head_is_torchs_norm_by_group() -> None:
    norm, theirs = HeadNorm(12, layer=1, depth=4).double(), nn.GroupNorm(3, 12, eps=4e-5).double()
    with torch.no_grad():
        assert norm.weight.unique() == pytest.approx(0.5**0.7)
        for ours, other in ((norm.weight, theirs.weight), (norm.bias, theirs.bias)):
            ours.copy_(drawn(12, seed=3))
            other.copy_(ours)
    x = drawn(2, 5, 3, 4)
    torch.testing.assert_close(norm(x), theirs(x.view(10, 12)).view(2, 5, 12), **EXACT)


def test_heads_have_64_channels_by_default() -> None:
    assert [compute_num_heads(width, None) for width in (16, 64, 128)] == [1, 1, 2]
    assert compute_num_heads(48, 16) == 3


def test_a_width_that_does_not_divide_into_heads_is_refused_with_what_would_do() -> None:
    with pytest.raises(
        UserError, match=r"^model.mixer.head_dim: must divide hidden_size=96, not 64; possible values: .* 96"
    ):
        compute_num_heads(96, None)

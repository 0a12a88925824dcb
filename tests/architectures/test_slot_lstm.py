"""Slots: with one it is an LSTM; with several, other tokens leave a token's own alone."""

import pytest
import torch

from numerate.architectures.slot_lstm import SlotLSTM, SlotLSTMMixer
from numerate.errors import UserError
from numerate.mixers.mixer import Context


def made(slots: int, width: int = 8) -> SlotLSTMMixer:
    torch.manual_seed(0)
    return SlotLSTM(num_slots=slots).build(width, 0, 1, ()).double()


def context(rows: int, time: int) -> Context:
    return Context(torch.full((rows,), time), ())


def test_with_one_slot_it_is_an_lstm() -> None:
    part, x = made(1), torch.randn(3, 7, 8, dtype=torch.float64)
    lstm = torch.nn.LSTM(8, 8, batch_first=True).double()
    with torch.no_grad():
        given = {
            "weight_ih_l0": part.in_proj.weight,
            "weight_hh_l0": part.recurrent_proj.weight,
            "bias_ih_l0": part.in_proj.bias,
        }
        lstm.load_state_dict(given | {"bias_hh_l0": torch.zeros(32)})
    torch.testing.assert_close(part(x, context(3, 7)), part.out_proj(lstm(x)[0]), atol=1e-12, rtol=1e-12)


def test_tokens_of_other_slots_do_not_change_what_a_token_says() -> None:
    part = made(3)
    with torch.no_grad():  # the first three features say which slot
        part.write_proj.weight.zero_()
        part.write_proj.weight[:, :3] = 1000 * torch.eye(3)
        part.read_proj.load_state_dict(part.write_proj.state_dict())
    tokens = torch.randn(4, 8, dtype=torch.float64)
    tokens[:, :3] = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 1]]
    own = torch.stack([tokens[0]] * 3)[None]
    between = tokens[[0, 1, 2, 0, 3, 1, 0]][None]
    alone, mixed = part(own, context(1, 3)), part(between, context(1, 7))
    torch.testing.assert_close(mixed[:, [0, 3, 6]], alone, atol=1e-12, rtol=1e-12)


def test_shares_are_of_the_token_alone_and_sum_to_one() -> None:
    part, x = made(5), torch.randn(2, 6, 8, dtype=torch.float64)
    shares = part.write_weights(x)
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 6, dtype=torch.float64))
    torch.testing.assert_close(part.write_weights(x[:, 3:4]), shares[:, 3:4])


@pytest.mark.parametrize("settings", [{"num_slots": 0}, {"hidden_size": 0}, {"sharpness": 0.0}])
def test_what_remembers_nothing_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        SlotLSTM(**settings)  # type: ignore[arg-type]

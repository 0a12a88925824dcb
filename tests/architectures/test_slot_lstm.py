"""Slots: with one it is an LSTM; with several, other tokens leave a token's own alone."""

import torch

from layers import assert_same, drawn, load_from, made, read
from numerate.architectures.slot_lstm import SlotLSTM


def test_with_one_slot_it_is_an_lstm() -> None:
    part, x = made(SlotLSTM(num_slots=1), 8), drawn(3, 7, 8)
    lstm = torch.nn.LSTM(8, 8, batch_first=True).double()
    given = {"weight_ih_l0": part.in_proj.weight, "weight_hh_l0": part.recurrent_proj.weight}
    load_from(lstm, {**given, "bias_ih_l0": part.in_proj.bias, "bias_hh_l0": torch.zeros(32)})
    assert_same(read(part, x), part.out_proj(lstm(x)[0]))


def test_tokens_of_other_slots_do_not_change_what_a_token_says() -> None:
    part = made(SlotLSTM(num_slots=3), 8)
    chosen = torch.cat([1000 * torch.eye(3), torch.zeros(3, 5)], dim=1)  # the first three features say which slot
    load_from(part, {"write_proj.weight": chosen, "read_proj.weight": chosen, "read_proj.bias": part.write_proj.bias})
    tokens = drawn(4, 8)
    tokens[:, :3] = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 1]]
    between = tokens[[0, 1, 2, 0, 3, 1, 0]][None]
    assert_same(read(part, between)[:, [0, 3, 6]], read(part, tokens[[0, 0, 0]][None]))


def test_shares_are_of_the_token_alone_and_sum_to_one() -> None:
    part, x = made(SlotLSTM(num_slots=5), 8), drawn(2, 6, 8)
    shares = part.write_weights(x)
    assert_same(shares.sum(-1), torch.ones(2, 6).double())
    assert_same(part.write_weights(x[:, 3:4]), shares[:, 3:4])

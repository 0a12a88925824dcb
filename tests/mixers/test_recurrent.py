"""Recurrent nets against torch's modules and cells, and the published sizes."""

from typing import Any

import pytest
import torch
from torch import nn

from layers import assert_same, drawn, made, read
from numerate.errors import UserError
from numerate.mixers.recurrent import GRU, LSTM, RNN

CELLS = {RNN: nn.RNNCell, GRU: nn.GRUCell, LSTM: nn.LSTMCell}
each_spec = pytest.mark.parametrize("spec", list(CELLS), ids=lambda spec: spec.__name__)


@pytest.mark.parametrize("biases", [True, False])
@each_spec
def test_each_is_torchs_cell_token_by_token(spec: Any, biases: bool) -> None:
    part, x = made(spec(hidden_size=9, bias=biases)), drawn(3, 7, 6)
    cell = CELLS[spec](6, 9, bias=biases).double()
    cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in part.rnn.state_dict().items()})
    state, expected = None, []
    for time in range(7):
        state = cell(x[:, time], state)
        expected.append(state[0] if isinstance(state, tuple) else state)
    assert_same(read(part, x), torch.stack(expected, dim=1) @ part.out_proj.weight.T)


@pytest.mark.parametrize(("spec", "parameters"), [(RNN, 33_024), (LSTM, 132_096), (GRU, 99_072)])
def test_without_a_linear_map_it_is_torchs_bare_net_of_the_published_size(spec: Any, parameters: int) -> None:
    part = made(spec(output_projection=False, initialization="torch"), 128, dtype=torch.float32)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        theirs = getattr(nn, spec.__name__)(128, 128, batch_first=True)
    assert sum(parameter.numel() for parameter in part.parameters()) == parameters
    x = drawn(2, 5, 128).float()
    assert torch.equal(read(part, x), theirs(x)[0]), "initialized as torch does, from the same seed"
    assert not part.output_projections()


def test_a_width_that_the_bare_net_does_not_write_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^model.mixer.hidden_size: must equal the model's width 6 without an output projection, not 9"
    ):
        made(GRU(hidden_size=9, output_projection=False))


@each_spec
def test_it_begins_orthogonal_and_without_bias_but_for_an_open_forget_gate(spec: Any) -> None:
    part = made(spec(hidden_size=64), width=100)
    net, gates = part.rnn, {RNN: 1, GRU: 3, LSTM: 4}[spec]
    assert float(net.weight_ih_l0.detach().std()) == pytest.approx(100**-0.5, rel=0.05)
    assert len(net.weight_hh_l0.split(64)) == gates
    for gate in net.weight_hh_l0.split(64):
        assert_same(gate @ gate.T, torch.eye(64).double(), atol=1e-5)
    for number, bias in enumerate((net.bias_ih_l0 + net.bias_hh_l0).chunk(gates)):
        assert torch.equal(bias, torch.full_like(bias, 1.0 if spec is LSTM and number == 1 else 0.0))
    assert part.self_initialized_parameters() == {name for name, _ in part.named_parameters()} - {"out_proj.weight"}

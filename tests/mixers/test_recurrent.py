"""Recurrent nets against torch's modules and cells, the published sizes, and the LSTM's equations written out."""

from typing import Any

import pytest
import torch
from torch import nn

from numerate.errors import UserError
from numerate.mixers.mixer import Context
from numerate.mixers.recurrent import GRU, LSTM, RNN, RecurrentMixer

CELLS = {RNN: nn.RNNCell, GRU: nn.GRUCell, LSTM: nn.LSTMCell}


def made(cells: int | None = None, width: int = 6) -> RecurrentMixer:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return LSTM(hidden_size=cells).build(width, 0, 1, ()).double()


def inputs(rows: int, time: int, width: int = 6) -> torch.Tensor:
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def context(lengths: list[int]) -> Context:
    return Context(torch.tensor(lengths), ())


@pytest.mark.parametrize("cells", [None, 9])
def test_it_is_torchs_lstm_and_a_linear_map(cells: int | None) -> None:
    part, x = made(cells), inputs(3, 5)
    theirs = nn.LSTM(6, cells or 6, batch_first=True).double()
    theirs.load_state_dict(part.rnn.state_dict())
    expected = theirs(x)[0] @ part.out_proj.weight.T
    torch.testing.assert_close(part(x, context([5, 5, 5])), expected, atol=1e-12, rtol=1e-12)


def test_it_is_the_written_out_equations() -> None:
    part, x = made(4), inputs(1, 5)
    net = part.rnn
    h, c = torch.zeros(4).double(), torch.zeros(4).double()
    for time in range(5):
        gates = net.weight_ih_l0 @ x[0, time] + net.bias_ih_l0 + net.weight_hh_l0 @ h + net.bias_hh_l0
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    torch.testing.assert_close(part(x, context([5]))[0, -1], part.out_proj.weight @ h, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("spec", list(CELLS), ids=lambda spec: spec.__name__)
def test_each_is_torchs_cell_token_by_token(spec: Any, biases: bool) -> None:
    part, x = spec(hidden_size=9, bias=biases).build(6, 0, 1, ()).double(), inputs(3, 7)
    cell = CELLS[spec](6, 9, bias=biases).double()
    cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in part.rnn.state_dict().items()})
    state, expected = None, []
    for time in range(7):
        state = cell(x[:, time], state)
        expected.append(state[0] if isinstance(state, tuple) else state)
    whole = torch.stack(expected, dim=1) @ part.out_proj.weight.T
    torch.testing.assert_close(part(x, context([7, 7, 7])), whole, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("spec", "parameters"), [(RNN, 33_024), (LSTM, 132_096), (GRU, 99_072)])
def test_without_a_linear_map_it_is_torchs_bare_net_of_the_published_size(spec: Any, parameters: int) -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        part = spec(output_projection=False, initialization="torch").build(128, 0, 1, ())
        torch.manual_seed(0)
        theirs = getattr(nn, spec.__name__)(128, 128, batch_first=True)
    assert sum(parameter.numel() for parameter in part.parameters()) == parameters
    x = inputs(2, 5, 128).float()
    assert torch.equal(part(x, context([5, 5])), theirs(x)[0]), "initialised as torch does, from the same seed"
    assert not part.output_projections()


def test_a_width_that_the_bare_net_does_not_write_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^model.mixer.hidden_size: must equal the model's width 6 without an output projection, not 9"
    ):
        GRU(hidden_size=9, output_projection=False).build(6, 0, 1, ())


@pytest.mark.parametrize("spec", list(CELLS), ids=lambda spec: spec.__name__)
def test_the_state_behind_each_row_is_that_of_the_row_alone(spec: Any) -> None:
    part, x = spec(hidden_size=5).build(6, 0, 1, ()).double(), inputs(3, 7)
    mixed, state = part.prefill(x, context([3, 7, 1]))
    for row, length in enumerate([3, 7, 1]):
        out, alone = part.rnn(x[row : row + 1, :length])
        torch.testing.assert_close(mixed[row, :length], out[0] @ part.out_proj.weight.T, atol=1e-12, rtol=1e-12)
        for found, expected in zip(*((s if spec is LSTM else (s,)) for s in (state, alone)), strict=True):
            torch.testing.assert_close(found[:, row : row + 1], expected, atol=1e-12, rtol=1e-12)


def test_the_state_of_a_prompt_is_the_one_behind_its_last_real_token() -> None:
    part, x = made(), inputs(2, 7)
    _, (hidden, cell) = part.prefill(x, context([3, 7]))
    _, (alone, alone_cell) = part.rnn(x[:1, :3])
    torch.testing.assert_close(hidden[:, :1], alone, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(cell[:, :1], alone_cell, atol=1e-12, rtol=1e-12)


def test_its_own_initialisation() -> None:
    part = made(64, width=100)
    net = part.rnn
    assert float(net.weight_ih_l0.detach().std()) == pytest.approx(100**-0.5, rel=0.05)
    for gate in net.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(64).double(), atol=1e-5, rtol=0)
    biases = (net.bias_ih_l0 + net.bias_hh_l0).chunk(4)
    for number, bias in enumerate(biases):
        assert torch.equal(bias, torch.full_like(bias, 1.0 if number == 1 else 0.0)), "only the forget gate is open"


@pytest.mark.parametrize(("spec", "gates"), [(RNN, 1), (GRU, 3)])
def test_a_house_rnn_and_gru_begin_orthogonal_and_without_bias(spec: Any, gates: int) -> None:
    net = spec(hidden_size=64).build(100, 0, 1, ()).double().rnn
    assert float(net.weight_ih_l0.detach().std()) == pytest.approx(100**-0.5, rel=0.05)
    assert len(net.weight_hh_l0.split(64)) == gates
    for gate in net.weight_hh_l0.split(64):
        torch.testing.assert_close(gate @ gate.T, torch.eye(64).double(), atol=1e-5, rtol=0)
    assert not net.bias_ih_l0.any()
    assert not net.bias_hh_l0.any()


def test_it_claims_its_recurrence_and_leaves_the_linear_map_to_the_model() -> None:
    part = made()
    assert part.self_initialized_parameters() == {name for name, _ in part.named_parameters()} - {"out_proj.weight"}


def test_it_costs_what_its_matrices_cost() -> None:
    part = made(9)
    matrices = sum(weight.numel() for weight in part.parameters() if weight.dim() == 2)
    assert part.flops(10) == 2 * 10 * matrices


def test_no_cells_are_refused() -> None:
    assert bool(made(1)(inputs(1, 2), context([2])).isfinite().all())

"""sLSTM: an LSTM with exponential gates, whose states are weighted running means."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import group_norm, logsigmoid, silu

from numerate.config import setting
from numerate.kernels.operators import as_operator
from numerate.kernels.token_shift import ShortConvolution, gather_last_tokens
from numerate.mixers.mixer import Context, Mixer, check_divides, check_output_width
from numerate.mixers.recurrence import Recurrence
from numerate.positions.position import Position

ForgetActivation = Literal["sigmoid", "exponential"]
RecurrentInitialization = Literal["uniform", "zeros"]


@dataclass(frozen=True)
class SLSTM(Mixer):
    """The sLSTM of xLSTM: an LSTM with exponential gates, a normalizer state, and heads.

    Beck et al. (2024), https://arxiv.org/abs/2405.04517, section 2.2 and appendix A: with z, i, f and o linear in the
    token and in the head's last h,

        c_t = f c_{t-1} + i tanh(z),    n_t = f n_{t-1} + i,    h_t = sigmoid(o) c_t / n_t

    where i is exp of its input and f a sigmoid or exp. h is then normed head by head and mapped back to the width. With
    i = 1 and f = 1 at every token a cell holds the mean of all tanh(z) so far.

    As in the published block (https://github.com/NX-AI/xlstm), i and f see the last `conv_kernel` tokens through a
    SiLU, and biases of f begin from 5 down to -7 within each head, by a power that grows with the layer. The recurrent
    weights begin uniform within +-1/root(cells), or at zero as in the published configuration. Two things differ from
    that code: the maps from the token are whole, as in the paper, not one per head; and a linear map back follows,
    which `output_projection=false` leaves out.
    """

    hidden_size: int | None = setting(None, "hidden size; null: the model's hidden_size", at_least=1)
    num_heads: int = setting(4, "number of heads; recurrence is within a head", at_least=1)
    conv_kernel: int | None = setting(
        4, "kernel size of the convolution before input and forget gates; null: no convolution, no SiLU", at_least=1
    )
    forget_gate: ForgetActivation = setting("sigmoid", "activation of the forget gate")
    initialization: RecurrentInitialization = setting("uniform", "initialization of the recurrent weights")
    output_projection: bool = setting(True, "whether a linear output projection follows")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "SLSTMMixer":
        cells = self.hidden_size or width
        check_divides("num_heads", self.num_heads, cells)
        check_output_width(cells, width, self.output_projection)
        return SLSTMMixer(self, width, cells, layer / max(1, depth - 1))


class SLSTMMixer(Recurrence):
    """The module of `SLSTM`.

    Its state: the window of the convolution and, rows x cells each, h, the mean c/n, and log n.
    `if_proj` makes the inputs of i and f, `zo_proj` those of z and o; `recurrent_weight` is heads x (4 x head) x head.
    """

    def __init__(self, spec: SLSTM, width: int, cells: int, share: float) -> None:
        super().__init__(spec)
        self.hidden_size, self.num_heads = cells, spec.num_heads
        self.sigmoid_forget = spec.forget_gate == "sigmoid"
        head = cells // spec.num_heads
        self.conv1d = ShortConvolution(width, spec.conv_kernel) if spec.conv_kernel is not None else None
        self.if_proj = nn.Linear(width, 2 * cells, bias=False)
        self.zo_proj = nn.Linear(width, 2 * cells, bias=False)
        within = torch.arange(head) / max(1, head - 1)
        biases = torch.zeros(4, spec.num_heads, head)
        biases[1] = 5 - 12 * within ** (0.3 + 1.3 * share)
        self.bias = nn.Parameter(biases.flatten())
        most = cells**-0.5 if spec.initialization == "uniform" else 0.0
        self.recurrent_weight = nn.Parameter(torch.empty(spec.num_heads, 4 * head, head).uniform_(-most, most))
        self.norm_weight = nn.Parameter(torch.ones(cells))
        self.out_proj = nn.Linear(cells, width, bias=False) if spec.output_projection else nn.Identity()

    def optimizer_options_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {"conv1d.weight": (1.0, False)} if self.conv1d else {}

    def run(self, x: Tensor, context: Context, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        window, *memory = state or (None,)
        seen, rows, time = x, *x.shape[:2]
        if self.conv1d is not None:
            seen, window = self.conv1d.run(x, window, lengths)
        inputs = self._inputs(x, seen)
        settings = (self.recurrent_weight.to(inputs.dtype), self.sigmoid_forget)
        if memory:
            by_head = (part.view(rows, self.num_heads, -1) for part in memory)
            memory = [part.flatten(1) for part in slstm_step(inputs[:, 0], *settings, *by_head)]
            h = memory[0]
        else:
            h, *others = (part.flatten(2) for part in slstm(inputs, *settings))
            memory = [gather_last_tokens(part, lengths) for part in (h, *others)]
        normed = group_norm(h.reshape(rows * time, -1), self.num_heads, self.norm_weight.to(h.dtype))
        return self.out_proj(normed.view(rows, time, -1).to(x.dtype)), (window, *memory)

    def _inputs(self, x: Tensor, seen: Tensor) -> Float[Tensor, "rows time 4 heads head"]:
        """The tokens' contributions to i, f, z and o."""
        gates = self.if_proj(seen if self.conv1d is None else silu(seen))
        found = torch.cat([gates, self.zo_proj(x)], dim=-1)
        found = found.to(torch.promote_types(found.dtype, torch.float32)) + self.bias
        return found.view(*x.shape[:2], 4, self.num_heads, -1)

    def flops(self, time: int) -> int:
        return super().flops(time) + 20 * time * self.hidden_size


def slstm(
    inputs: Float[Tensor, "rows time 4 heads head"],
    recurrent_weight: Float[Tensor, "heads four head"],
    sigmoid_forget: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """h, the means and log n after each token, rows x time x heads x head each."""
    h, means, totals, *_ = _apply_slstm(inputs, recurrent_weight, sigmoid_forget)
    return h, means, totals


def slstm_step(
    inputs: Float[Tensor, "rows 4 heads head"],
    recurrent_weight: Float[Tensor, "heads four head"],
    sigmoid_forget: bool,
    h: Float[Tensor, "rows heads head"],
    mean: Float[Tensor, "rows heads head"],
    log_normalizer: Float[Tensor, "rows heads head"],
) -> tuple[Tensor, Tensor, Tensor]:
    """One token of the recurrence. Cells are kept as their mean c/n and the logarithm of n, which starts at -infinity.

    log n_t = log(exp(log f + log n_{t-1}) + exp(i)), and with the token's share a = exp(i - log n_t) the mean becomes
    (1 - a) c/n + a tanh(z). These are the paper's states; log n itself does what its stabilizer m is for.
    """
    rows, heads, head = h.shape
    fed = torch.einsum("hgd,rhd->rhg", recurrent_weight, h).view(rows, heads, 4, head)
    entering, kept, value, shown = (inputs + fed.transpose(1, 2)).unbind(1)
    log_normalizer = torch.logaddexp((logsigmoid(kept) if sigmoid_forget else kept) + log_normalizer, entering)
    mean = torch.lerp(mean, value.tanh(), (entering - log_normalizer).exp())
    return shown.sigmoid() * mean, mean, log_normalizer


class _SLSTMFunction(torch.autograd.Function):
    """The recurrence over whole rows: h, the means and log n, and without a gradient what the backward needs.

    Inside, time comes first and rows last, so that each gate of each head lies in one piece. With r the means, a the
    shares and l = log n the gradient goes back by

        dr_t = o dh_t + (1 - a_{t+1}) dr_{t+1},    dl_t = (1 - a_{t+1}) dl_{t+1} - a (tanh z - r_{t-1}) dr_t

    (to which is added what comes to r_t and l_t themselves, where a state is read behind them), and then di = a (tanh z
    - r_{t-1}) dr_t + a dl_t, d log f = (1 - a) dl_t, d tanh z = a dr_t, d sigmoid(o) = r dh_t.
    """

    @staticmethod
    def forward(inputs: Tensor, recurrent: Tensor, sigmoid: bool) -> tuple[Tensor, ...]:
        rows, time, _, heads, head = inputs.shape
        gates = inputs.permute(1, 3, 2, 4, 0).clone(memory_format=torch.contiguous_format)  # time heads 4 head rows
        means, totals, hs = (gates.new_empty(time + 1, heads, head, rows) for _ in range(3))
        means[0], totals[0], hs[0] = 0, -torch.inf, 0
        shares = gates.new_empty(time, heads, head, rows)
        whole = gates.view(time, heads, 4 * head, rows).unbind(0)
        entering, kept, value, shown = (gate.unbind(0) for gate in gates.unbind(2))
        of_means, of_totals, of_hs, of_shares = (states.unbind(0) for states in (means, totals, hs, shares))
        for place in range(time):
            whole[place].baddbmm_(recurrent, of_hs[place])
            decay = logsigmoid(kept[place]) if sigmoid else kept[place]
            total = torch.logaddexp(decay + of_totals[place], entering[place], out=of_totals[place + 1])
            share = torch.sub(entering[place], total, out=of_shares[place]).exp_()
            mean = torch.lerp(of_means[place], value[place].tanh_(), share, out=of_means[place + 1])
            torch.mul(shown[place].sigmoid_(), mean, out=of_hs[place + 1])
        return (*(states[1:].permute(3, 0, 1, 2) for states in (hs, means, totals)), gates, shares)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: tuple[Tensor, ...]) -> None:
        h, means, _, gates, shares = output
        ctx.mark_non_differentiable(gates, shares)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[1], h, means, gates, shares)
        ctx.sigmoid = inputs[2]

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_h: Tensor | None, grad_means: Tensor | None, grad_log_normalizers: Tensor | None, *_: Any
    ) -> tuple[Tensor, Tensor, None]:
        recurrent_weight, h, means, gates, input_weights = ctx.saved_tensors
        time, heads, _, head, rows = gates.shape
        zeros = gates.new_zeros(1, heads, head, rows)
        h, means = (torch.cat([zeros, states.permute(1, 2, 3, 0)]) for states in (h, means))
        _, forget_gate, candidate, output_gate = gates.unbind(2)
        forget_weights = 1 - input_weights
        candidate_change = input_weights * (candidate - means[:-1])
        # What each gate's input changes, per change of the mean (i, z), of log n (i, f) and of h (o).
        forget_derivative = forget_weights * (-forget_gate).sigmoid() if ctx.sigmoid else forget_weights
        candidate_derivative = input_weights * (1 - candidate * candidate)
        output_derivative = means[1:] * output_gate * (1 - output_gate)
        grad_gates = torch.empty_like(gates)
        grad_i, grad_f, grad_z, grad_o = (gate.unbind(0) for gate in grad_gates.unbind(2))
        grad_gate_steps = grad_gates.view(time, heads, 4 * head, rows).unbind(0)
        recurrent_weight_t = recurrent_weight.transpose(1, 2)
        grad_h_steps = (
            torch.zeros_like(input_weights) if grad_h is None else grad_h.permute(1, 2, 3, 0).contiguous()
        ).unbind(0)
        grad_mean_steps, grad_normalizer_steps = (
            None if one is None else one.permute(1, 2, 3, 0) for one in (grad_means, grad_log_normalizers)
        )
        grad_states = gates.new_zeros(2, heads, head, rows)
        grad_mean, grad_log_normalizer = grad_states
        grad_hidden = grad_h_steps[-1]
        for t in range(time - 1, -1, -1):
            if grad_mean_steps is not None:
                grad_mean.add_(grad_mean_steps[t])
            if grad_normalizer_steps is not None:
                grad_log_normalizer.add_(grad_normalizer_steps[t])
            grad_mean.addcmul_(grad_hidden, output_gate[t])
            torch.mul(grad_mean, candidate_change[t], out=grad_i[t])
            grad_log_normalizer.sub_(grad_i[t])
            grad_i[t].addcmul_(grad_log_normalizer, input_weights[t])
            torch.mul(grad_log_normalizer, forget_derivative[t], out=grad_f[t])
            torch.mul(grad_mean, candidate_derivative[t], out=grad_z[t])
            torch.mul(grad_hidden, output_derivative[t], out=grad_o[t])
            grad_states.mul_(forget_weights[t])
            if t:
                grad_hidden = torch.baddbmm(grad_h_steps[t - 1], recurrent_weight_t, grad_gate_steps[t])
        grad_recurrent_weight = (grad_gates.flatten(2, 3) @ h[:-1].transpose(2, 3)).sum(0)
        return grad_gates.permute(4, 0, 2, 1, 3), grad_recurrent_weight, None


_apply_slstm = as_operator(_SLSTMFunction)

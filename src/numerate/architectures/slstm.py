"""sLSTM: an LSTM with exponential gates, whose cells hold weighted running means."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import group_norm, logsigmoid, silu

from numerate.config import setting
from numerate.errors import UserError
from numerate.kernels.token_shift import ShortConvolution, behind, uncompiled
from numerate.mixers.mixer import Context, Mixer, TokenMixer, nothing_hidden
from numerate.positions.position import Position

Forget = Literal["sigmoid", "exponential"]
Beginning = Literal["uniform", "zeros"]


@dataclass(frozen=True)
class SLSTM(Mixer):
    """The sLSTM of xLSTM: an LSTM with exponential gates, a normaliser state, and heads.

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

    hidden_size: int | None = setting(None, "hidden size; null: the model's hidden_size")
    num_heads: int = setting(4, "number of heads; recurrence is within a head")
    conv_kernel: int | None = setting(
        4, "kernel size of the convolution before input and forget gates; null: no convolution, no SiLU"
    )
    forget_gate: Forget = setting("sigmoid", "activation of the forget gate")
    initialization: Beginning = setting("uniform", "initialization of the recurrent weights")
    output_projection: bool = setting(True, "whether a linear output projection follows")

    def __post_init__(self) -> None:
        if self.hidden_size is not None and self.hidden_size < 1:
            raise UserError(f"hidden_size: {self.hidden_size} cells remember nothing; 1 or more is right")
        if self.num_heads < 1:
            raise UserError(f"num_heads: {self.num_heads} heads remember nothing; 1 or more is right")
        if self.conv_kernel is not None and self.conv_kernel < 1:
            raise UserError(f"conv_kernel: {self.conv_kernel} tokens are nothing to see; 1 or more is right, or null")
        for name, kinds in (("forget_gate", Forget), ("initialization", Beginning)):
            if getattr(self, name) not in get_args(kinds):
                raise UserError(f"{name}: {getattr(self, name)!r} is none of: {', '.join(get_args(kinds))}")

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> "SLSTMMixer":
        cells = self.hidden_size or width
        if cells % self.num_heads:
            fitting = [heads for heads in range(1, 4 * self.num_heads + 1) if cells % heads == 0]
            raise UserError(
                f"model.mixer.num_heads: {cells} cells do not divide into {self.num_heads} heads; "
                f"{', '.join(map(str, fitting))} heads would do"
            )
        if not self.output_projection and cells != width:
            raise UserError(
                f"model.mixer.hidden_size: without a linear map back (output_projection=false) {cells} cells do "
                f"not fit "
                f"a width of {width}; hidden_size={width}, or output_projection=true"
            )
        return SLSTMMixer(self, width, cells, layer / max(1, depth - 1))


class SLSTMMixer(TokenMixer):
    """The part behind `SLSTM`.

    Its state is what the convolution has seen and, rows x cells each: h, the mean c/n, and log n.
    `gates` makes the inputs of i and f, `inward` those of z and o; `recurrent` is heads x (4 x head) x head.
    """

    def __init__(self, spec: SLSTM, width: int, cells: int, share: float) -> None:
        super().__init__()
        self.cells, self.heads, self.width = cells, spec.num_heads, width
        self.sigmoid = spec.forget_gate == "sigmoid"
        head = cells // spec.num_heads
        self.convolution = ShortConvolution(width, spec.conv_kernel) if spec.conv_kernel is not None else None
        self.gates = nn.Linear(width, 2 * cells, bias=False)
        self.inward = nn.Linear(width, 2 * cells, bias=False)
        within = torch.arange(head) / max(1, head - 1)
        biases = torch.zeros(4, spec.num_heads, head)
        biases[1] = 5 - 12 * within ** (0.3 + 1.3 * share)
        self.bias = nn.Parameter(biases.flatten())
        most = cells**-0.5 if spec.initialization == "uniform" else 0.0
        self.recurrent = nn.Parameter(torch.empty(spec.num_heads, 4 * head, head).uniform_(-most, most))
        self.scale = nn.Parameter(torch.ones(cells))
        self.out = nn.Linear(cells, width, bias=False) if spec.output_projection else nn.Identity()

    def claimed(self) -> set[str]:
        return {"bias", "recurrent", "scale", *(("convolution.weight", "convolution.bias") if self.convolution else ())}

    def settings_by_parameter(self) -> dict[str, tuple[float, bool]]:
        return {"convolution.weight": (1.0, False)} if self.convolution else {}

    def forward(self, x: Float[Tensor, "rows time width"], context: Context) -> Float[Tensor, "rows time width"]:
        nothing_hidden(context, "SLSTM")
        seen = x if self.convolution is None else self.convolution(x)
        return self._output(self._run(x, seen)[0], x)

    def prefill(self, x: Float[Tensor, "rows time width"], context: Context) -> tuple[Tensor, tuple[Tensor, ...]]:
        nothing_hidden(context, "SLSTM")
        seen = x if self.convolution is None else self.convolution(x)
        found = self._run(x, seen)
        before = x[:, :0] if self.convolution is None else self.convolution.state(x, context.lengths)
        return self._output(found[0], x), (before, *(behind(state.flatten(2), context.lengths) for state in found))

    def step(
        self, x: Float[Tensor, "rows 1 width"], context: Context, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        before, *states = state
        seen = x
        if self.convolution is not None:
            seen, before = self.convolution.step(x, before)
        split = (state.view(x.shape[0], self.heads, -1) for state in states)
        inputs = self._inputs(x, seen)
        after = slstm_step(inputs[:, 0], self.recurrent.to(inputs.dtype), self.sigmoid, *split)
        return self._output(after[0][:, None], x), (before, *(state.flatten(1) for state in after))

    def _inputs(self, x: Tensor, seen: Tensor) -> Float[Tensor, "rows time 4 heads head"]:
        """The tokens' contributions to i, f, z and o."""
        gates = self.gates(seen if self.convolution is None else silu(seen))
        found = torch.cat([gates, self.inward(x)], dim=-1)
        found = found.to(torch.promote_types(found.dtype, torch.float32)) + self.bias
        return found.view(*x.shape[:2], 4, self.heads, -1)

    def _run(self, x: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
        """h, the means and log n behind each token: rows x time x heads x head."""
        inputs = self._inputs(x, seen)
        return slstm(inputs, self.recurrent.to(inputs.dtype), self.sigmoid)

    def _output(self, h: Tensor, x: Tensor) -> Tensor:
        rows, time = x.shape[:2]
        normed = group_norm(h.reshape(rows * time, self.cells), self.heads, self.scale.to(h.dtype))
        output: Tensor = self.out(normed.view(rows, time, self.cells).to(x.dtype))
        return output

    def outward(self) -> Sequence[nn.Linear]:
        return (self.out,) if isinstance(self.out, nn.Linear) else ()

    def flops(self, time: int) -> int:
        weights = [weight.numel() for name, weight in self.named_parameters() if weight.dim() >= 2]
        return time * (2 * sum(weights) + 20 * self.cells)


@uncompiled
def slstm(
    inputs: Float[Tensor, "rows time 4 heads head"], recurrent: Float[Tensor, "heads four head"], sigmoid: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """h, the means and log n behind each token, rows x time x heads x head each."""
    h, means, totals, *_ = _SLSTM.apply(inputs, recurrent, sigmoid)  # type: ignore[no-untyped-call]
    return h, means, totals


def slstm_step(
    inputs: Float[Tensor, "rows 4 heads head"],
    recurrent: Float[Tensor, "heads four head"],
    sigmoid: bool,
    h: Float[Tensor, "rows heads head"],
    mean: Float[Tensor, "rows heads head"],
    total: Float[Tensor, "rows heads head"],
) -> tuple[Tensor, Tensor, Tensor]:
    """One token of the recurrence. Cells are kept as their mean c/n and the logarithm of n, which starts at -infinity.

    log n_t = log(exp(log f + log n_{t-1}) + exp(i)), and with the token's share a = exp(i - log n_t) the mean becomes
    (1 - a) c/n + a tanh(z). These are the paper's states; log n itself does what its stabiliser m is for.
    """
    rows, heads, head = h.shape
    fed = torch.einsum("hgd,rhd->rhg", recurrent, h).view(rows, heads, 4, head)
    entering, kept, value, shown = (inputs + fed.transpose(1, 2)).unbind(1)
    total = torch.logaddexp((logsigmoid(kept) if sigmoid else kept) + total, entering)
    mean = torch.lerp(mean, value.tanh(), (entering - total).exp())
    return shown.sigmoid() * mean, mean, total


def slstm_by_steps(
    inputs: Float[Tensor, "rows time 4 heads head"], recurrent: Float[Tensor, "heads four head"], sigmoid: bool
) -> Float[Tensor, "rows time heads head"]:
    """All h, token by token: what the form with a gradient written by hand is tested against."""
    nothing = torch.zeros_like(inputs[:, 0, 0])
    states, found = (nothing, nothing, nothing - torch.inf), []
    for token in inputs.unbind(1):
        states = slstm_step(token, recurrent, sigmoid, *states)
        found.append(states[0])
    return torch.stack(found, dim=1)


class _SLSTM(torch.autograd.Function):
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
        ctx: Any, by_h: Tensor | None, by_means: Tensor | None, by_totals: Tensor | None, *_: Any
    ) -> tuple[Tensor, Tensor, None]:
        recurrent, h, means, gates, shares = ctx.saved_tensors
        time, heads, _, head, rows = gates.shape
        nothing = gates.new_zeros(1, heads, head, rows)
        h, means = (torch.cat([nothing, states.permute(1, 2, 3, 0)]) for states in (h, means))
        _, kept, value, shown = gates.unbind(2)
        left = 1 - shares
        moved = shares * (value - means[:-1])
        # What each gate's input changes, per change of the mean (i, z), of log n (i, f) and of h (o).
        of_forget = left * (-kept).sigmoid() if ctx.sigmoid else left
        of_value = shares * (1 - value * value)
        of_shown = means[1:] * shown * (1 - shown)
        found = torch.empty_like(gates)
        of_i, of_f, of_z, of_o = (gate.unbind(0) for gate in found.unbind(2))
        whole = found.view(time, heads, 4 * head, rows).unbind(0)
        back = recurrent.transpose(1, 2)
        outer = (torch.zeros_like(shares) if by_h is None else by_h.permute(1, 2, 3, 0).contiguous()).unbind(0)
        to_means, to_totals = (None if one is None else one.permute(1, 2, 3, 0) for one in (by_means, by_totals))
        both = gates.new_zeros(2, heads, head, rows)
        of_mean, of_total = both
        of_h = outer[-1]
        for place in range(time - 1, -1, -1):
            if to_means is not None:
                of_mean.add_(to_means[place])
            if to_totals is not None:
                of_total.add_(to_totals[place])
            of_mean.addcmul_(of_h, shown[place])
            torch.mul(of_mean, moved[place], out=of_i[place])
            of_total.sub_(of_i[place])
            of_i[place].addcmul_(of_total, shares[place])
            torch.mul(of_total, of_forget[place], out=of_f[place])
            torch.mul(of_mean, of_value[place], out=of_z[place])
            torch.mul(of_h, of_shown[place], out=of_o[place])
            both.mul_(left[place])
            if place:
                of_h = torch.baddbmm(outer[place - 1], back, whole[place])
        of_recurrent = (found.flatten(2, 3) @ h[:-1].transpose(2, 3)).sum(0)
        return found.permute(4, 0, 2, 1, 3), of_recurrent, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], inputs: Tensor, recurrent: Tensor, sigmoid: bool
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The members of a stack become further heads."""
        members = info.batch_size
        inputs, recurrent = (
            x.expand(members, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((inputs, recurrent), in_dims, strict=False)
        )
        heads = recurrent.shape[1]
        folded = inputs.movedim(0, 3).flatten(3, 4)
        found = _SLSTM.apply(folded, recurrent.flatten(0, 1), sigmoid)  # type: ignore[no-untyped-call]
        states = (x.reshape(*x.shape[:2], members, heads, -1).movedim(2, 0) for x in found[:3])
        kept = (x.reshape(x.shape[0], members, heads, *x.shape[2:]).movedim(1, 0) for x in found[3:])
        return (*states, *kept), (0,) * 5

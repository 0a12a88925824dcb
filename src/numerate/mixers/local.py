"""What mixers share that look at the last few tokens: token shift and short causal convolutions, in both forms."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad


def behind(x: Float[Tensor, "rows time width"], lengths: Int[Tensor, " rows"]) -> Float[Tensor, "rows width"]:
    """The entry at each row's last real token."""
    return x[torch.arange(x.shape[0], device=x.device), lengths - 1]


def previous(x: Float[Tensor, "rows time width"]) -> Float[Tensor, "rows time width"]:
    """Each place gets what stands before it, the first one zeros: token shift over whole rows."""
    return pad(x, (0, 0, 1, -1))


def real(lengths: Int[Tensor, " rows"], time: int) -> Tensor:
    """Which places are tokens and not padding: rows x time, boolean. A recurrence that stands still where this is
    False ends with the state behind each row's last real token."""
    return torch.arange(time, device=lengths.device) < lengths[:, None]


class ShortConvolution(nn.Module):
    """A causal convolution over the last `size` tokens, each channel by itself.

    Its state in a step is the last size - 1 inputs, oldest first: rows x (size - 1) x channels. Weights begin uniform
    within +-1/root(size), as those of `torch.nn.Conv1d` do; a mixer that has one claims its parameters.
    """

    def __init__(self, channels: int, size: int, biases: bool = True) -> None:
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(size, channels).uniform_(-(size**-0.5), size**-0.5))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-(size**-0.5), size**-0.5)) if biases else None

    def forward(self, x: Float[Tensor, "rows time channels"]) -> Float[Tensor, "rows time channels"]:
        """Tap `size - 1` is that of the newest token."""
        time = x.shape[1]
        padded = pad(x, (0, 0, self.size - 1, 0))
        out = padded[:, :time] * self.weight[0]
        for tap in range(1, self.size):
            out = torch.addcmul(out, padded[:, tap : tap + time], self.weight[tap])
        return out if self.bias is None else out + self.bias

    def state(
        self, x: Float[Tensor, "rows time channels"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows kept channels"]:
        """The last size - 1 inputs before and at each row's last real token."""
        padded = pad(x, (0, 0, self.size - 1, 0))
        places = lengths[:, None] + torch.arange(self.size - 1, device=x.device)
        return padded[torch.arange(x.shape[0], device=x.device)[:, None], places]

    def step(
        self, x: Float[Tensor, "rows 1 channels"], state: Float[Tensor, "rows kept channels"]
    ) -> tuple[Tensor, Tensor]:
        """One more token per row, and the state behind it."""
        window = torch.cat([state, x], dim=1)
        out = (window * self.weight).sum(dim=1, keepdim=True)
        return out if self.bias is None else out + self.bias, window[:, 1:]

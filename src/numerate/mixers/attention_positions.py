"""Position schemes inside one layer's attention, for mixers with their own queries and keys."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.mixers.mixer import Context
from numerate.positions.position import Bias, Contextual, Position, Rotation
from numerate.positions.rotary import HalfSplitRotation


class Inside(nn.Module):
    """Turns queries and keys, says which keys a query sees, and what is added to the scores: as `SelfAttention` does.

    Queries stand at all places of a row, or `at` some of each. A token sees those up to itself that are not hidden, and
    always itself.
    """

    def __init__(self, heads: int, head_width: int, positions: Sequence[Position]) -> None:
        super().__init__()
        acting = [(i, position.build_attention(heads, head_width)) for i, position in enumerate(positions)]
        self.specs = {i: positions[i] for i, part in acting if part is not None}
        self.rotations = nn.ModuleDict({str(i): part for i, part in acting if isinstance(part, Rotation)})
        self.biases = nn.ModuleDict({str(i): part for i, part in acting if isinstance(part, Bias)})
        self.contextual = nn.ModuleDict({str(i): part for i, part in acting if isinstance(part, Contextual)})

    def share(self, first: "Inside") -> None:
        """Shares with the first layer the modules of positions that all layers share."""
        for number, position in self.specs.items():
            for kind in ("rotations", "biases", "contextual") if position.shares_layers() else ():
                mine, theirs = getattr(self, kind), getattr(first, kind)
                if str(number) in mine:
                    mine[str(number)] = theirs[str(number)]

    def turned(
        self, x: Float[Tensor, "rows some time width"], context: Context, at: Int[Tensor, "rows time"] | None = None
    ) -> Float[Tensor, "rows some time width"]:
        """Queries or keys, rotated by their positions."""
        for name, part in self.rotations.items():
            assert isinstance(part, Rotation)
            key, places = ("rotation", int(name), x.shape[-1]), context.position_ids[int(name)]
            if at is not None and context.index is None:
                prepared = part.prepare(_gathered(places, at))
            else:
                if key not in context.prepared:
                    index = None if context.index is None else context.index[:, None]
                    context.prepared[key] = part.prepare(places if index is None else _gathered(places, index))
                prepared = context.prepared[key]
            x = part.turn(x, prepared)
        return x

    def seen(
        self,
        queries: Float[Tensor, "rows heads query width"],
        keys: Float[Tensor, "rows heads key width"],
        context: Context,
        at: Int[Tensor, "rows query"] | None = None,
    ) -> tuple[Bool[Tensor, "#rows 1 query key"] | None, Float[Tensor, "#rows #heads query key"] | None]:
        """Which keys each query sees, None where it is those up to itself (of a row's last query: all) and nothing is
        added; and what is added to the scores, if anything."""
        all_seen = at is None or together(context) is not None
        if all_seen and context.hidden is None and not self.biases and not self.contextual:
            return None, None
        place = torch.arange(keys.shape[2], device=keys.device)
        where = place[None] if at is None else at
        visible = place <= where[:, :, None]
        if context.hidden is not None:
            own = place == where[:, :, None]
            visible = (visible & ~context.hidden[:, None, : len(place)]) | own
        visible, bias = visible[:, None], None
        for name, part in self.biases.items():
            assert isinstance(part, Bias)
            added = self._bias(int(name), part, context, at, len(place))
            bias = added if bias is None else bias + added
        for part in self.contextual.values():
            assert isinstance(part, Contextual)
            added = part.bias(queries, keys, visible)
            bias = added if bias is None else bias + added
        return visible, bias

    def _bias(self, position: int, part: Bias, context: Context, at: Tensor | None, keys: int) -> Tensor:
        places = context.position_ids[position]
        if at is not None:
            return part.bias(_gathered(places, at), places[:, :keys])
        # A loop may turn without gradients first: what was made then is not what later turns need.
        name = ("bias", position, id(part), torch.is_grad_enabled())
        if name not in context.prepared:
            context.prepared[name] = part.bias(places, places)
        found: Tensor = context.prepared[name]
        return found

    def claimed(self) -> set[str]:
        """Networks of distances are not drawn as layers of the model are: see `SelfAttention`."""
        return {name for name, _ in self.named_parameters()}

    def flops(self, heads: int, time: int) -> int:
        return sum(part.flops(heads, time) for part in self.contextual.values() if isinstance(part, Contextual))


def turned_in_pairs(
    rotations: nn.ModuleDict, contextual: nn.ModuleDict, x: Tensor, context: Context
) -> tuple[int, HalfSplitRotation] | None:
    """The number of the position and its rotation, where `split_and_turned` may turn the queries and keys of rows.

    That is one rotation of whole heads, whose products alone are used, over whole rows on a CPU in full precision.
    Compiled programs, and models in a stack, turn them as anywhere else.
    """
    if len(rotations) != 1 or contextual or x.device.type != "cpu" or x.element_size() < 4 or context.index is not None:
        return None
    if torch.compiler.is_compiling():
        return None
    (name, part), *_ = rotations.items()
    stacked: bool = torch._C._functorch.is_functorch_wrapped_tensor(x)
    if not isinstance(part, HalfSplitRotation) or not part.whole or stacked or torch.is_autocast_enabled("cpu"):
        return None
    return int(name), part


def together(context: Context) -> int | None:
    """In a step, the position of the newest token where it is the same in all rows and known without a device
    synchronisation; otherwise None."""
    if context.index is None:
        return None
    if "together" not in context.prepared:
        last = context.seen - 1
        alike = len(context.index) == 1 or (context.index.device.type == "cpu" and bool((context.index == last).all()))
        context.prepared["together"] = last if alike else None
    found: int | None = context.prepared["together"]
    return found


def _gathered(places: Int[Tensor, "#rows time"], at: Int[Tensor, "rows targets"]) -> Int[Tensor, "rows targets"]:
    return places.expand(len(at), -1).gather(1, at)

"""Hybrid models: layers alternate between several mixers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numerate.config import setting
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.mixers.mixer import Mixer, TokenMixer
from numerate.mixers.recurrent import LSTM
from numerate.positions.position import Position


@dataclass(frozen=True)
class Alternating(Mixer):
    """Hybrid: layers alternate between the given mixers, such as attention and a recurrence.

    Layer i (from 0) has mixer i modulo their number. Each mixer is built with its index and depth among the layers with
    this mixer, as in a model that has only this mixer. In Lieber et al. (2024), https://arxiv.org/abs/2403.19887,
    attention and Mamba alternate.

    >>> from numerate.models import Decoder, Stack
    >>> spec = Decoder(backbone=Stack(num_layers=4), mixer=Alternating((Attention(num_heads=4), LSTM())))

    This model has attention in layers 0 and 2 and an LSTM in 1 and 3. Raises `UserError` if there are fewer layers
    than mixers.
    """

    mixers: tuple[Mixer, ...] = setting((Attention(), LSTM()), "the mixers, in the order of the layers")

    def conflicts(self) -> Iterator[str]:
        if not self.mixers:
            yield "mixers: must not be empty"
        for number, mixer in enumerate(self.mixers):
            if isinstance(mixer, Alternating):
                yield f"mixers.{number}: must not be Alternating itself; list all mixers in one Alternating"

    def build(self, width: int, layer: int, depth: int, positions: Sequence[Position]) -> TokenMixer:
        kind = layer % len(self.mixers)
        mixer = self.mixers[kind]
        own = positions if mixer.has_attention() else ()
        return mixer.build(width, layer // len(self.mixers), len(range(kind, depth, len(self.mixers))), own)

    def build_layers(self, width: int, depth: int, positions: Sequence[Position]) -> list[TokenMixer]:
        every = len(self.mixers)
        if depth < every:
            raise UserError(
                f"model.mixer.mixers: {every} mixers need at least {every} layers, not {depth}; "
                f"use model.backbone.num_layers={every} or more"
            )
        layers: list[TokenMixer | None] = [None] * depth
        for kind, mixer in enumerate(self.mixers):
            places = range(kind, depth, every)
            own = positions if mixer.has_attention() else ()
            for place, part in zip(places, mixer.build_layers(width, len(places), own), strict=True):
                layers[place] = part
        return [part for part in layers if part is not None]

    def has_attention(self) -> bool:
        return any(mixer.has_attention() for mixer in self.mixers)

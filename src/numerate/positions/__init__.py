"""Where a token stands: which number a place gets (numberings), and what is done with the number (positions)."""

from numerate.catalogue import lazily

CATALOGUE = {
    "PositionIds": {
        "Sequential": "position_ids",
        "DigitIndex": "position_ids",
        "Coupled": "position_ids",
        "NumberIndex": "position_ids",
        "Shifted": "position_ids",
        "RandomSubset": "position_ids",
        "Zooming": "position_ids",
    },
    "Position": {
        "Learned": "added",
        "Sinusoidal": "added",
        "ScaledSinusoidal": "added",
        "Scalar": "added",
        "Rotary": "rotary",
        "FIRE": "bias",
        "ALiBi": "bias",
        "T5Bias": "bias",
        "CoPE": "contextual",
    },
}
__getattr__ = lazily("positions", CATALOGUE)

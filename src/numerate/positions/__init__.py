"""Where a token stands: which number a place gets (numberings), and what is done with the number (positions)."""

from numerate.catalogue import lazily

CATALOGUE = {
    "PositionIds": {
        "Sequential": "numbering",
        "DigitIndex": "numbering",
        "Coupled": "numbering",
        "NumberIndex": "numbering",
        "Shifted": "numbering",
        "RandomSubset": "numbering",
        "Zooming": "numbering",
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

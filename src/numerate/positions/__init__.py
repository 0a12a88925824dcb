"""Position ids (`position_ids.py`), and the positional encodings that use them."""

from numerate.catalogue import lazy_getattr

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
        "Window": "bias",
        "CoPE": "contextual",
    },
}
__getattr__ = lazy_getattr("positions", CATALOGUE)

"""Where a token stands: which number a place gets (numberings), and what is done with the number (positions)."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Numbering": {"Sequential": "numbering", "DigitIndex": "numbering", "Shifted": "numbering"},
    "Position": {"Learned": "added", "Sinusoidal": "added", "Rotary": "rotary"},
}
__getattr__ = lazily("positions", CATALOGUE)

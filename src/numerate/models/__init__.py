"""Whole models, made of positions and mixers."""

from numerate.catalogue import lazily

CATALOGUE = {
    "ModelSpec": {"Decoder": "decoder"},
    "Trunk": {"Loop": "trunk", "Stack": "trunk"},
    "Initialisation": {
        "DeepNorm": "initialisation",
        "FanIn": "initialisation",
        "Normal": "initialisation",
        "Xavier": "initialisation",
    },
}
__getattr__ = lazily("models", CATALOGUE)

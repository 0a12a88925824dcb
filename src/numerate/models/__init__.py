"""Whole models, made of positions and mixers."""

from numerate.catalogue import lazily

CATALOGUE = {
    "ModelSpec": {"Decoder": "decoder"},
    "Trunk": {"Stack": "trunk"},
    "Initialisation": {"FanIn": "initialisation", "Normal": "initialisation", "Xavier": "initialisation"},
}
__getattr__ = lazily("models", CATALOGUE)

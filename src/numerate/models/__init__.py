"""Whole models, made of positions and mixers."""

from numerate.catalogue import lazily

CATALOGUE = {
    "ModelSpec": {
        "Decoder": "decoder",
        "T5": "t5",
        "PretrainedDecoder": "pretrained",
        "Numformer": "numformer",
    },
    "NumberEmbedding": {
        "RegressionTransformerEmbedding": "number_inputs",
        "XValScaling": "number_inputs",
        "FoNEEmbedding": "number_inputs",
    },
    "Backbone": {"Loop": "backbone", "Stack": "backbone"},
    "Initialization": {
        "DeepNorm": "initialization",
        "FanIn": "initialization",
        "Normal": "initialization",
        "TorchDefault": "initialization",
        "Xavier": "initialization",
    },
}
PRESETS = {"ModelSpec": ("tiny_names",)}
__getattr__ = lazily("models", CATALOGUE)

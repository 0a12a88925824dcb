"""Whole models, made of positions and mixers."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {
    "ModelSpec": {
        "Decoder": "decoder",
        "T5": "text.models.t5",
        "PretrainedDecoder": "text.models.pretrained",
        "PretrainedSeq2Seq": "text.models.pretrained_seq2seq",
        "Numformer": "text.models.numformer",
    },
    "NumberEmbedding": {
        "RegressionTransformerEmbedding": "text.models.number_inputs",
        "XValScaling": "text.models.number_inputs",
        "FoNEEmbedding": "text.models.number_inputs",
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
PRESETS = {"ModelSpec": ("published.tiny_names",)}
__getattr__ = lazy_getattr("models", CATALOGUE)

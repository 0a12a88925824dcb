"""Loss functions."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {
    "Loss": {
        "CrossEntropy": "cross_entropy",
        "GaussianCrossEntropy": "number_token",
        "NumberLevel": "number_level",
        "NumberToken": "number_token",
        "Regression": "number_heads",
        "SoftLabels": "soft_labels",
        "XValLoss": "number_heads",
    }
}
__getattr__ = lazy_getattr("losses", CATALOGUE)

"""How far off an output is."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Loss": {
        "CrossEntropy": "cross_entropy",
        "GaussianCrossEntropy": "number_token",
        "NumberLevel": "number_level",
        "NumberToken": "number_token",
        "Regression": "numbers_said",
        "SoftLabels": "soft_labels",
        "XValLoss": "numbers_said",
    }
}
__getattr__ = lazily("losses", CATALOGUE)

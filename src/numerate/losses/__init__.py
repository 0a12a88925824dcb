"""How far off an output is."""

from numerate.catalogue import lazily

CATALOGUE = {"Loss": {"CrossEntropy": "cross_entropy"}}
__getattr__ = lazily("losses", CATALOGUE)

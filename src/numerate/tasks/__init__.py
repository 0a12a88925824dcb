"""Questions with answers: what a model is asked, before anybody spells it. Nothing here imports torch."""

from numerate.catalogue import lazily

CATALOGUE = {"Task": {"Arithmetic": "arithmetic"}}
__getattr__ = lazily("tasks", CATALOGUE)

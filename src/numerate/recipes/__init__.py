"""Recipes by name: one file per paper, one function per row of its tables."""

from numerate.catalogue import lazily

CATALOGUE = {"Recipe": {"addition_abacus": "abacus", "addition_rotary": "abacus"}}
__getattr__ = lazily("recipes", CATALOGUE)

"""How questions become rows of tokens: the spelling of numbers, tokenizers, and the layout of questions and answers."""

from numerate.catalogue import lazily

CATALOGUE = {
    "NumberSpelling": {"Digits": "numbers"},
    "Tokenizer": {"Characters": "tokenizer", "Words": "words"},
    "Layout": {"Continuation": "layout", "Aligned": "layout", "Pair": "layout"},
}
__getattr__ = lazily("tokens", CATALOGUE)

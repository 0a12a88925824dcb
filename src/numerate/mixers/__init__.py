"""How tokens exchange information: attention and recurrent nets, each in a whole-sequence and a one-token form."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Mixer": {
        "Alternating": "alternating",
        "Attention": "attention",
        "LSTM": "recurrent",
    }
}
__getattr__ = lazily("mixers", CATALOGUE)

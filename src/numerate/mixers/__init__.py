"""How tokens exchange information: attention and recurrent nets, each in a whole-sequence and a one-token form."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Mixer": {
        "Alternating": "alternating",
        "Attention": "attention",
        "ChannelMix": "channel_mix",
        "DeltaNet": "delta",
        "DeltaProduct": "delta",
        "DualAttention": "dual_attention",
        "GRU": "recurrent",
        "GatedDeltaNet": "delta",
        "LRU": "lru",
        "LSTM": "recurrent",
        "Mamba": "mamba",
        "Mamba2": "mamba2",
        "MinGRU": "min_gru",
        "Phasor": "phasor",
        "RNN": "recurrent",
        "RWKV4": "rwkv4",
        "RWKV6": "rwkv6",
        "RWKV7": "rwkv7",
        "S4": "s4",
        "S4D": "s4d",
        "SLSTM": "slstm",
        "SlotLSTM": "slot_lstm",
    },
    "Symbols": {
        "PositionRelativeSymbols": "symbols",
        "PositionalSymbols": "symbols",
        "SymbolicAttention": "symbols",
    },
}
__getattr__ = lazily("mixers", CATALOGUE)

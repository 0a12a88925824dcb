"""How tokens exchange information: attention and recurrent nets, each in a whole-sequence and a one-token form."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {
    "Mixer": {
        "Alternating": "alternating",
        "Attention": "attention",
        "ChannelMix": "architectures.channel_mix",
        "DeltaNet": "architectures.delta",
        "DeltaProduct": "architectures.delta",
        "DualAttention": "architectures.dual_attention",
        "GRU": "recurrent",
        "GatedDeltaNet": "architectures.delta",
        "LRU": "architectures.lru",
        "LSTM": "recurrent",
        "Mamba": "architectures.mamba",
        "Mamba2": "architectures.mamba2",
        "MinGRU": "min_gru",
        "Phasor": "architectures.phasor",
        "RNN": "recurrent",
        "RWKV6": "architectures.rwkv6",
        "RWKV7": "architectures.rwkv7",
        "S4": "architectures.s4",
        "SLSTM": "architectures.slstm",
        "SlotLSTM": "architectures.slot_lstm",
    },
    "Symbols": {
        "PositionRelativeSymbols": "architectures.symbols",
        "PositionalSymbols": "architectures.symbols",
        "SymbolicAttention": "architectures.symbols",
    },
}
__getattr__ = lazy_getattr("mixers", CATALOGUE)

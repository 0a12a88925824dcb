"""Mixers beyond attention and the classical recurrent networks: Mamba, RWKV, DeltaNet, S4, dual attention ..."""

"""Evaluation: one-pass exact match, grids of cells, real decoding, intervals."""

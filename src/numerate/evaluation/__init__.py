"""How much of it is right: one-pass exact match, grids of cells, real decoding, intervals."""

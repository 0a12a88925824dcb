"""A run from the outside: train it, open it, evaluate it, ask it, draw it."""

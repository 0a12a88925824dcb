"""The formats, names, weights and metrics of the four published repositories."""

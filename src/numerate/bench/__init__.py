"""A benchmark to cite: fixed test sets, named by hash, and the results of a model on them. See docs/bench.md."""

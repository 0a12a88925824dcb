"""Runs: training, loading, evaluation, questions and attention maps."""

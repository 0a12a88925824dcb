"""Kinds of evaluation: what is asked of a model, in which cells, and how it is scored and summarized."""

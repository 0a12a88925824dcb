"""Kinds of evaluation: which cells are evaluated, how answers are scored, how records are summarized."""

"""Subword tokenizers, and number formats within texts."""

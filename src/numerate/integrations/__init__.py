"""Integrations: experiment trackers, number token losses for Hugging Face trainers, export to transformers."""

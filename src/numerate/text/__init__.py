"""Text: datasets, corpora, Hugging Face tokenizers, T5 and other pretrained models."""

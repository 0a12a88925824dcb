"""For other people's loops and tools: trackers, number tokens and their loss, Hugging Face's trainers."""

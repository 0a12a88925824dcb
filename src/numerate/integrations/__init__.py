"""For other people's loops and tools: trackers."""

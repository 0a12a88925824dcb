"""T5 and other models of Hugging Face behind the interface of `numerate.batch`."""

"""Writing the examples of a task to files, and preparing datasets and corpora."""

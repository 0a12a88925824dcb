"""Tasks whose examples are read from files, and the files of examples."""

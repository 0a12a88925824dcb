"""What a run found, for people: heat maps, curves, tables, pages. Reads the records of runs, never a model."""

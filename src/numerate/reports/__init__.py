"""Reports from the records of runs: heat maps, curves, tables, pages."""

"""What runs have shown: one table of their cells, and the summaries, figures, tables and pages made of it."""

"""The results of a study as one table: chosen, filtered, grouped, written, asked."""

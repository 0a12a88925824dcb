"""The results of a study as one table: selected, filtered, grouped, exported, queried."""

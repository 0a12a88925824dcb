"""What runs, studies and searches leave in files, read back and checked against declared schemas; no torch."""

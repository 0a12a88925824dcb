"""Reading the files of runs, studies and searches, checked against declared schemas; imports no torch."""

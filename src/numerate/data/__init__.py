"""Rows for use elsewhere and from elsewhere: writing a task to files, reading them, and saying what is in them."""

from numerate.data.reading import StoredRows as StoredRows
from numerate.data.reading import open_rows as open_rows

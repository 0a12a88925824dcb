"""Writing the examples of a task to files, reading them, and their statistics."""

from numerate.text.data.reading import StoredRows as StoredRows
from numerate.text.data.reading import open_rows as open_rows

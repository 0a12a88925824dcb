"""Writing the examples of a task to files, and reading them."""

from numerate.text.tasks.stored_rows import StoredRows as StoredRows
from numerate.text.tasks.stored_rows import open_rows as open_rows

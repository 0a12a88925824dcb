"""Executes the notebooks in examples/ and stores their outputs: `python tools/notebooks.py [NAME ...]`.

Timings and the version of Python are not stored, so that a notebook changes where its results do.
"""

import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def execute(path: Path, shorter: int = 1) -> nbformat.NotebookNode:
    """A notebook with the outputs of a new kernel, which trains for the steps in it divided by `shorter`. Raises
    `CellExecutionError` where a cell does."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = re.sub(r"\bsteps=(\d+)", lambda steps: f"steps={int(steps[1]) // shorter}", cell.source)
    NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


if __name__ == "__main__":
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        if path.stem in (sys.argv[1:] or path.stem):
            nbformat.write(execute(path), path)

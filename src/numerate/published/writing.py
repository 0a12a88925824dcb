"""Writing the files of a published data set below a new folder."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from numerate.text.data.new_folder import atomic_folder, check_not_existing

LineBlocks = Callable[[], Iterator[Sequence[bytes]]]
"""The lines of a file, block by block."""


def write_published(
    files: Mapping[str, LineBlocks], out: str | Path, on_progress: Callable[[int, str], None] | None = None
) -> dict[str, int]:
    """Writes the files below a new folder, which appears under its name when all is written, and returns how many lines
    (or other entries of a block) each has.

    `on_progress` gets how many there are so far, and the file that is being written. Raises `UserError` for a folder
    that exists already.
    """
    out = Path(out)
    check_not_existing(out)
    num_lines: dict[str, int] = {}
    with atomic_folder(out) as temporary:
        for file, blocks in files.items():
            path = temporary / file
            path.parent.mkdir(parents=True, exist_ok=True)
            num_lines[file] = 0
            with open(path, "xb") as stream:
                for lines in blocks():
                    stream.write(b"".join(lines))
                    num_lines[file] += len(lines)
                    if on_progress is not None:
                        on_progress(sum(num_lines.values()), file)
                stream.flush()
                os.fsync(stream.fileno())
    return num_lines

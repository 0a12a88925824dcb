"""Files of components that the user has approved, by the hash of their contents, in the user's configuration.

    ~/.config/numerate/approved_parts.jsonl     {"sha256": "9f86d0...", "file": "/home/me/my.py"}

A line is added when the user names a file with new contents. Removing a line withdraws it. The folder is the
environment's NUMERATE_CONFIG, else `numerate` under XDG_CONFIG_HOME, else `~/.config/numerate`.
"""

import json
import os
import warnings
from pathlib import Path


def approvals_file() -> Path:
    """The file that lists approved contents. It may not exist."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    folder = os.environ.get("NUMERATE_CONFIG") or f"{base}/numerate"
    return Path(os.path.expanduser(folder)) / "approved_parts.jsonl"


def approve(sha256: str, file: str) -> None:
    """Records that the user ran these contents from this file. Warns if the list cannot be written."""
    if file in approved_paths(sha256):
        return
    approvals_path = approvals_file()
    try:
        approvals_path.parent.mkdir(parents=True, exist_ok=True)
        with open(approvals_path, "ab") as approvals:  # one write: several commands may append at the same time
            approvals.write(f"\n{json.dumps({'sha256': sha256, 'file': file})}\n".encode())  # after an unfinished line
    except OSError as error:
        warnings.warn(
            f"{approvals_path}: could not be written ({error.strerror}); to open runs that use {file}, pass --parts "
            f"{file} again (in Python: numerate.config.load_user_parts)",
            stacklevel=3,
        )


def approved_paths(sha256: str) -> list[str]:
    """The files that had these contents when the user named them, latest first."""
    try:
        lines = approvals_file().read_bytes().splitlines()
    except OSError:
        return []
    paths = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("sha256") == sha256 and isinstance(record.get("file"), str):
            paths.append(record["file"])
    return paths[::-1]

"""Public datasets: official address, size and license of each, from `datasets.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from numerate.errors import check_choice


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address.

    - `name`: its path in the folder of the dataset. An archive is removed after it is unpacked.
    - `size` in bytes and `sha256` where they are pinned; None: those of the first download are recorded and shown.
    - `archive_format`: whether it is an archive; `members` are the files that must have come out of it, with their
      paths in the folder. Members of an archive lose their first folder.
    """

    name: str
    url: str
    size: int | None = None
    sha256: str | None = None
    archive_format: Literal["tar", "zip", "gz"] | None = None
    members: tuple[str, ...] = ()

    @property
    def is_license(self) -> bool:
        """Whether it is the license text, which is optional."""
        return self.name == "LICENSE"

    @property
    def files(self) -> tuple[str, ...]:
        """The files in the folder after the download."""
        return self.members or (self.name,)


@dataclass(frozen=True)
class Dataset:
    """A dataset: its files, description, license and source."""

    name: str
    folder: str
    description: str
    license: str
    homepage: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int | None:
        """Download size in bytes; None if unknown."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def _read_dataset(name: str, entry: dict[str, Any]) -> Dataset:
    files = tuple(
        RemoteFile(file, **{**settings, "members": tuple(settings.get("members", ()))})
        for file, settings in entry["files"].items()
    )
    return Dataset(name, **{"folder": name, **entry, "files": files})


DATASETS: Mapping[str, Dataset] = {
    name: _read_dataset(name, entry)
    for name, entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items()
}
"""Every dataset by its name."""


def find_dataset(name: str) -> Dataset:
    """The dataset of a name; `mathematics_arithmetic` is a part of `mathematics`. Raises `UserError` for any other."""
    normalized_name = name.replace("-", "_").lower()
    if normalized_name in ("mathematics_arithmetic", "mathematics_dataset"):
        normalized_name = "mathematics"
    check_choice("dataset", normalized_name, DATASETS)
    return DATASETS[normalized_name]

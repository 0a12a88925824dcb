"""Names of files for people."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path


def shortest_unique_names(paths: Iterable[Path]) -> dict[str, Path]:
    """Files keyed by the shortest distinct suffixes of their paths, independent of the location of their common folder.

    >>> paths = [Path("/data/train-easy/sums.txt"), Path("/data/train-hard/sums.txt"), Path("/data/test.txt")]
    >>> list(shortest_unique_names(paths))
    ['train-easy/sums.txt', 'train-hard/sums.txt', 'test.txt']
    """
    absolute_paths = list(dict.fromkeys(path.absolute() for path in paths))
    path_by_name: dict[str, Path] = {}
    num_parts, remaining = 1, absolute_paths
    while remaining:
        names = [Path(*path.parts[-num_parts:]).as_posix() for path in remaining]
        name_counts = Counter(names)
        is_unique = [name_counts[end] == 1 for end in names]
        path_by_name |= {end: path for end, path, one in zip(names, remaining, is_unique, strict=True) if one}
        remaining = [path for path, one in zip(remaining, is_unique, strict=True) if not one]
        num_parts += 1
    name_by_path = {path: name for name, path in path_by_name.items()}
    return {name_by_path[path]: path for path in absolute_paths}

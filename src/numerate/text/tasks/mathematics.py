"""The DeepMind mathematics dataset: generated questions of school mathematics by module."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.folders import dataset_folder
from numerate.text.tasks.readers import TwoLines
from numerate.text.tasks.text_files import open_lines, stamp
from numerate.text.tasks.text_task import Holdings, Stock, TextTask, divided, refuse_part, refuse_share

MODULES = (
    "algebra__linear_1d",
    "algebra__linear_1d_composed",
    "algebra__linear_2d",
    "algebra__linear_2d_composed",
    "algebra__sequence_next_term",
    "arithmetic__add_or_sub",
    "arithmetic__add_sub_multiple",
    "arithmetic__mul",
    "numbers__div_remainder",
    "numbers__div_remainder_composed",
    "numbers__place_value",
    "numbers__round_number",
    "numbers__round_number_composed",
)
"""The modules of the published training."""

EXTRAPOLATION = (
    "arithmetic__add_or_sub_big",
    "arithmetic__add_sub_multiple_longer",
    "arithmetic__mixed_longer",
    "arithmetic__mul_big",
    "arithmetic__mul_div_multiple_longer",
    "numbers__place_value_big",
    "numbers__round_number_big",
)
"""The modules of the published extrapolation test."""

Difficulty = Literal["easy", "medium", "hard"]

DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "medium", "hard")
FOLDERS = ("mathematics_dataset", "mathematics_dataset-v1.0", "mathematics_dataset/mathematics_dataset-v1.0")
SPLIT_FILES = ("train", "val", "test_interpolate", "test_extrapolate")
"""The files of a folder that the published program has prepared; those of the ablation begin with `arithmetic_`."""


@dataclass(frozen=True)
class Mathematics(TextTask):
    """Mathematics dataset of Saxton et al. (2019), by modules: `Round -126.2537 to two dps.`:

    "Analysing Mathematical Reasoning Abilities of Neural Models", https://arxiv.org/abs/1904.01557. Modules, splits and
    tests by default as in Zausinger et al. (2024), https://arxiv.org/abs/2411.02083: of each file of training the last
    0.05 % of a shuffled order are development; the parts of the test are the modules trained on, then the modules of
    the extrapolation test. Of the v1.0 files that is 25,986,948 rows of training, 13,026 of development, 130,000 and
    70,000 of the tests, less the rows of training whose question is in another split (`keep_duplicates` keeps them).
    With other files, sizes follow what there is.

    `train_rows` and `development_rows` are of each file, as in the ablation on `arithmetic__add_sub_multiple` (33,333
    and 1,000); where a file has fewer rows than both, they are divided in the same proportion.

    `data_dir` holds `train-easy`, `train-medium`, `train-hard`, `interpolate` and `extrapolate`, or the four files that
    the published program prepares (`train.txt`, `val.txt` ...), whose tests are one part each, as they no longer say
    which module a row is of.
    """

    axis: ClassVar[str] = "module"

    modules: tuple[str, ...] = setting(MODULES, "modules to train on, and to test at trained sizes")
    extrapolation_modules: tuple[str, ...] = setting(EXTRAPOLATION, "modules of the extrapolation test")
    difficulties: tuple[Literal["easy", "medium", "hard"], ...] = setting(
        DIFFICULTIES, "which training files of each module"
    )
    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    module: int | Span | None = setting(None, "the number of a part: modules first, then extrapolation; null: all")
    development_fraction: float = setting(0.0005, "share of each file used for validation")
    train_rows: int | None = setting(None, "training rows per file; null: all that are left")
    development_rows: int | None = setting(None, "validation rows per file; null: by development_fraction")
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")

    def __post_init__(self) -> None:
        refuse_share("development_fraction", self.development_fraction)
        for name in ("modules", "difficulties"):
            if not getattr(self, name):
                raise UserError(f"{name}: none is named, so there is nothing to train on")
        for name in ("modules", "extrapolation_modules", "difficulties"):
            chosen = getattr(self, name)
            if len(set(chosen)) < len(chosen):
                raise UserError(f"{name}: one stands there twice; once is right")
        for wrong in set(self.difficulties) - set(DIFFICULTIES):
            raise UserError(f"difficulties: there is no {wrong!r}; there are: {', '.join(DIFFICULTIES)}")
        for name in ("train_rows", "development_rows"):
            rows = getattr(self, name)
            if rows is not None and rows < 1:
                raise UserError(f"{name}: {rows} rows are none; 1 or more is right")
        refuse_part("module", self.module)

    @property
    def holdings(self) -> Holdings:
        return prepared(self) if self.is_prepared else _raw(self)

    @property
    def place(self) -> Path:
        """The folder of its files. Raises `UserError` that says how to get them."""
        wanted = ["train-easy", "train.txt", "arithmetic_train.txt", *(f"train-{name}" for name in self.difficulties)]
        return dataset_folder(self.data_dir, "mathematics", FOLDERS, dict.fromkeys(wanted))

    @property
    def is_prepared(self) -> bool:
        """Whether its folder holds the prepared files alone, and not those of the modules."""
        return not any((self.place / f"train-{name}").is_dir() for name in DIFFICULTIES)


def _raw(task: Mathematics) -> Holdings:
    place = task.place
    train = {
        f"train-{name}/{module}.txt": number
        for name in task.difficulties
        for number, module in enumerate(task.modules, start=1)
    }
    tests = [f"interpolate/{module}.txt" for module in task.modules]
    tests += [f"extrapolate/{module}.txt" for module in task.extrapolation_modules]
    lacking = [file for file in (*train, *tests) if not (place / file).is_file()]
    if lacking:
        more = f" (nor are {len(lacking) - 1} others)" if len(lacking) > 1 else ""
        raise UserError(
            f"data_dir: {place / lacking[0]} is not there{more}; `numerate data fetch mathematics` gets all modules"
        )
    numbers = tuple(train.values())
    stamps = tuple(stamp(place / file) for file in (*train, *tests))
    sizes = (task.train_rows, task.development_rows, task.development_fraction)
    names = (*task.modules, *task.extrapolation_modules)
    return _divided(
        stamps, numbers, names, len(task.modules), sizes, task.split_seed, task.keep_duplicates, task.skip_invalid
    )


@lru_cache(maxsize=4)
def _divided(
    stamps: tuple[tuple[str, int, int], ...],
    parts: tuple[int, ...],
    names: tuple[str, ...],
    trained: int,
    sizes: tuple[int | None, int | None, float],
    division: int,
    repeats: bool,
    skip_bad: bool,
) -> Holdings:
    files = [open_lines(Path(path), TwoLines(), skip_bad) for path, _, _ in stamps]
    train, tests = files[: len(parts)], files[len(parts) :]
    every = Stock.of_parts(train, parts)
    kept, held = [], []
    begin = 0
    for file in train:
        named = f"{file.path.parent.name}/{file.path.name}"
        first, second = divided(file.count, rows_of(file.count, *sizes), ("mathematics", named, division))
        kept.append(first + begin)
        held.append(second + begin)
        begin += file.count
    return Holdings.apart(
        names,
        trained,
        every.take(np.concatenate(kept)),
        every.take(np.concatenate(held)),
        Stock.of_parts(tests),
        repeats,
    )


def rows_of(count: int, train: int | None, development: int | None, share: float) -> tuple[int, int]:
    """How many rows of a file of so many are trained, and development.

    >>> rows_of(666_666, None, None, 0.0005), rows_of(1000, 33_333, 1000, 0.0005)
    ((666332, 334), (971, 29))
    """
    if development is None:
        first = int((1 - share) * count)
        return (first if train is None else min(first, train)), count - first
    if train is not None and train + development > count:
        development = max(1, count * development // (train + development))
    development = min(development, count - 1)
    return (count - development if train is None else min(train, count - development)), development


def prepared(task: Mathematics) -> Holdings:
    """The splits of a folder that the published program, or `numerate data write --as published`, has prepared."""
    place = task.place
    begin = "arithmetic_" if not (place / "train.txt").is_file() or "arithmetic" in _only(task) else ""
    begin = begin if (place / f"{begin}train.txt").is_file() else ""
    files = [place / f"{begin}{name}.txt" for name in SPLIT_FILES]
    for file in files:
        if not file.is_file():
            raise UserError(f"data_dir: {file} is not there beside {begin}train.txt; the four files belong together")
    return _prepared(tuple(map(stamp, files)), task.keep_duplicates, task.skip_invalid)


def _only(task: Mathematics) -> str:
    return task.modules[0] if len(task.modules) == 1 else ""


@lru_cache(maxsize=4)
def _prepared(stamps: tuple[tuple[str, int, int], ...], repeats: bool, skip_bad: bool) -> Holdings:
    train, held, near, far = (open_lines(Path(path), TwoLines(), skip_bad) for path, _, _ in stamps)
    tests = Stock.of_parts([near, far])
    return Holdings.apart(("interpolate", "extrapolate"), 1, Stock.of(train), Stock.of(held), tests, repeats)


def arithmetic() -> Mathematics:
    """The published ablation: sums and differences of several numbers, longer ones in OOD test."""
    return Mathematics(
        modules=("arithmetic__add_sub_multiple",),
        extrapolation_modules=("arithmetic__add_sub_multiple_longer",),
        train_rows=33_333,
        development_rows=1000,
    )

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
from numerate.text.tasks.text_files import file_stamp, open_line_file
from numerate.text.tasks.text_task import DatasetSplits, SplitRows, TextTask, check_fraction, check_part, split_indices

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

EXTRAPOLATION_MODULES = (
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
CANDIDATE_FOLDERS = ("mathematics_dataset", "mathematics_dataset-v1.0", "mathematics_dataset/mathematics_dataset-v1.0")
PREPARED_SPLIT_FILES = ("train", "val", "test_interpolate", "test_extrapolate")
"""The files of a folder that the published program has prepared; those of the ablation begin with `arithmetic_`."""


@dataclass(frozen=True)
class Mathematics(TextTask):
    """Mathematics dataset of Saxton et al. (2019), by modules: `Round -126.2537 to two dps.`:

    "Analysing Mathematical Reasoning Abilities of Neural Models", https://arxiv.org/abs/1904.01557. Modules, splits and
    tests by default as in Zausinger et al. (2024), https://arxiv.org/abs/2411.02083: of each file of training the last
    0.05 % of a shuffled order are validation; the parts of the test are the modules trained on, then the modules of
    the extrapolation test. Of the v1.0 files that is 25,986,948 rows of training, 13,026 of validation, 130,000 and
    70,000 of the tests, less the rows of training whose question is in another split (`keep_duplicates` keeps them).
    With other files, sizes follow what there is.

    `train_rows` and `validation_rows` are of each file, as in the ablation on `arithmetic__add_sub_multiple` (33,333
    and 1,000); where a file has fewer rows than both, they are divided in the same proportion.

    `data_dir` holds `train-easy`, `train-medium`, `train-hard`, `interpolate` and `extrapolate`, or the four files that
    the published program prepares (`train.txt`, `val.txt` ...), whose tests are one part each, as they no longer say
    which module a row is of.
    """

    axis: ClassVar[str] = "module"

    modules: tuple[str, ...] = setting(MODULES, "modules to train on, and to test at trained sizes")
    extrapolation_modules: tuple[str, ...] = setting(EXTRAPOLATION_MODULES, "modules of the extrapolation test")
    difficulties: tuple[Literal["easy", "medium", "hard"], ...] = setting(
        DIFFICULTIES, "which training files of each module"
    )
    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    module: int | Span | None = setting(
        None, "index of the module, from 1: modules first, then extrapolation_modules; null: all"
    )
    validation_fraction: float = setting(0.0005, "share of each file used for validation")
    train_rows: int | None = setting(None, "training rows per file; null: all that are left")
    validation_rows: int | None = setting(None, "validation rows per file; null: by validation_fraction")
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")

    def __post_init__(self) -> None:
        check_fraction("validation_fraction", self.validation_fraction)
        for name in ("modules", "difficulties"):
            if not getattr(self, name):
                raise UserError(f"{name}: must not be empty")
        for name in ("modules", "extrapolation_modules", "difficulties"):
            names = getattr(self, name)
            if len(set(names)) < len(names):
                raise UserError(f"{name}: must not contain duplicates")
        for wrong in set(self.difficulties) - set(DIFFICULTIES):
            raise UserError(f"difficulties: there is no {wrong!r}; there are: {', '.join(DIFFICULTIES)}")
        for name in ("train_rows", "validation_rows"):
            rows = getattr(self, name)
            if rows is not None and rows < 1:
                raise UserError(f"{name}: must be at least 1, not {rows}")
        check_part("module", self.module)

    @property
    def splits(self) -> DatasetSplits:
        return read_prepared(self) if self.is_prepared else _read_original(self)

    @property
    def folder(self) -> Path:
        """The folder of its files. Raises `UserError` that says how to get them."""
        expected_files = [
            "train-easy",
            "train.txt",
            "arithmetic_train.txt",
            *(f"train-{name}" for name in self.difficulties),
        ]
        return dataset_folder(self.data_dir, "mathematics", CANDIDATE_FOLDERS, dict.fromkeys(expected_files))

    @property
    def is_prepared(self) -> bool:
        """Whether its folder holds the prepared files alone, and not those of the modules."""
        return not any((self.folder / f"train-{name}").is_dir() for name in DIFFICULTIES)


def _read_original(task: Mathematics) -> DatasetSplits:
    folder = task.folder
    train = {
        f"train-{name}/{module}.txt": number
        for name in task.difficulties
        for number, module in enumerate(task.modules, start=1)
    }
    tests = [f"interpolate/{module}.txt" for module in task.modules]
    tests += [f"extrapolate/{module}.txt" for module in task.extrapolation_modules]
    missing = [file for file in (*train, *tests) if not (folder / file).is_file()]
    if missing:
        more = f" (nor are {len(missing) - 1} others)" if len(missing) > 1 else ""
        raise UserError(
            f"data_dir: {folder / missing[0]} does not exist{more}; `numerate data fetch mathematics` gets all modules"
        )
    numbers = tuple(train.values())
    stamps = tuple(file_stamp(folder / file) for file in (*train, *tests))
    sizes = (task.train_rows, task.validation_rows, task.validation_fraction)
    names = (*task.modules, *task.extrapolation_modules)
    return _read_modules(
        stamps, numbers, names, len(task.modules), sizes, task.split_seed, task.keep_duplicates, task.skip_invalid
    )


@lru_cache(maxsize=4)
def _read_modules(
    stamps: tuple[tuple[str, int, int], ...],
    part_numbers: tuple[int, ...],
    names: tuple[str, ...],
    num_trained_parts: int,
    sizes: tuple[int | None, int | None, float],
    split_seed: int,
    keep_duplicates: bool,
    skip_invalid: bool,
) -> DatasetSplits:
    files = [open_line_file(Path(path), TwoLines(), skip_invalid) for path, _, _ in stamps]
    train, tests = files[: len(part_numbers)], files[len(part_numbers) :]
    all_rows = SplitRows.from_sources(train, part_numbers)
    train_rows, validation_rows = [], []
    offset = 0
    for file in train:
        file_key = f"{file.path.parent.name}/{file.path.name}"
        first, second = split_indices(
            file.num_examples, split_sizes(file.num_examples, *sizes), ("mathematics", file_key, split_seed)
        )
        train_rows.append(first + offset)
        validation_rows.append(second + offset)
        offset += file.num_examples
    return DatasetSplits.without_overlap(
        names,
        num_trained_parts,
        all_rows.take(np.concatenate(train_rows)),
        all_rows.take(np.concatenate(validation_rows)),
        SplitRows.from_sources(tests),
        keep_duplicates,
    )


def split_sizes(count: int, train: int | None, validation: int | None, validation_fraction: float) -> tuple[int, int]:
    """How many rows of a file of so many are trained, and validation.

    >>> split_sizes(666_666, None, None, 0.0005), split_sizes(1000, 33_333, 1000, 0.0005)
    ((666332, 334), (971, 29))
    """
    if validation is None:
        first = int((1 - validation_fraction) * count)
        return (first if train is None else min(first, train)), count - first
    if train is not None and train + validation > count:
        validation = max(1, count * validation // (train + validation))
    validation = min(validation, count - 1)
    return (count - validation if train is None else min(train, count - validation)), validation


def read_prepared(task: Mathematics) -> DatasetSplits:
    """The splits of a folder that the published program, or `numerate data write --as published`, has prepared."""
    folder = task.folder
    prefix = "arithmetic_" if not (folder / "train.txt").is_file() or "arithmetic" in _single_module(task) else ""
    prefix = prefix if (folder / f"{prefix}train.txt").is_file() else ""
    files = [folder / f"{prefix}{name}.txt" for name in PREPARED_SPLIT_FILES]
    for file in files:
        if not file.is_file():
            raise UserError(f"data_dir: {file} is not there beside {prefix}train.txt; the four files belong together")
    return _read_prepared_files(tuple(map(file_stamp, files)), task.keep_duplicates, task.skip_invalid)


def _single_module(task: Mathematics) -> str:
    return task.modules[0] if len(task.modules) == 1 else ""


@lru_cache(maxsize=4)
def _read_prepared_files(
    stamps: tuple[tuple[str, int, int], ...], keep_duplicates: bool, skip_invalid: bool
) -> DatasetSplits:
    train, validation, interpolation, extrapolation = (
        open_line_file(Path(path), TwoLines(), skip_invalid) for path, _, _ in stamps
    )
    tests = SplitRows.from_sources([interpolation, extrapolation])
    return DatasetSplits.without_overlap(
        ("interpolate", "extrapolate"),
        1,
        SplitRows.from_source(train),
        SplitRows.from_source(validation),
        tests,
        keep_duplicates,
    )


def arithmetic_ablation() -> Mathematics:
    """The published ablation: sums and differences of several numbers, longer ones in OOD test."""
    return Mathematics(
        modules=("arithmetic__add_sub_multiple",),
        extrapolation_modules=("arithmetic__add_sub_multiple_longer",),
        train_rows=33_333,
        validation_rows=1000,
    )

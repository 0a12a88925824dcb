"""The DeepMind mathematics dataset: generated questions of school mathematics by module."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.folders import dataset_folder
from numerate.text.tasks.input_errors import duplicate_names
from numerate.text.tasks.readers import TwoLines
from numerate.text.tasks.text_files import open_examples
from numerate.text.tasks.text_task import DatasetSplits, SplitRows, TextTask, split_indices

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

DIFFICULTIES: tuple[Literal["easy", "medium", "hard"], ...] = ("easy", "medium", "hard")
CANDIDATE_FOLDERS = ("mathematics_dataset", "mathematics_dataset-v1.0", "mathematics_dataset/mathematics_dataset-v1.0")
PREPARED_SPLIT_FILES = ("train", "val", "test_interpolate", "test_extrapolate")
"""The files of a folder that the published program has prepared; those of the ablation begin with `arithmetic_`."""


@dataclass(frozen=True)
class Mathematics(TextTask):
    """Mathematics dataset of Saxton et al. (2019), by modules (kinds of question): `Round -126.2537 to two dps.`.

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
        DIFFICULTIES, "training files of each module: easy, medium, hard"
    )
    data_dir: str | None = setting(None, "folder of the data files; null: the user's data folder")
    module: int | Span | None = setting(
        None, "number of a module: 1, 2, ... in the order of modules, then extrapolation_modules; null: all", at_least=1
    )
    validation_fraction: float = setting(0.0005, "share of each file used for validation", at_least=0, below=1)
    train_rows: int | None = setting(None, "training rows per file; null: all that are left", at_least=1)
    validation_rows: int | None = setting(None, "validation rows per file; null: by validation_fraction", at_least=1)
    split_seed: int = setting(0, "seed of the split")
    keep_duplicates: bool = setting(False, "whether training keeps rows that also occur in another split")
    skip_invalid: bool = setting(False, "whether unreadable records are skipped and counted")

    def conflicts(self) -> Iterator[str]:
        if not self.modules or not self.difficulties:
            yield f"{'difficulties' if self.modules else 'modules'}: must not be empty"
        for setting_name in ("modules", "extrapolation_modules", "difficulties"):
            yield from duplicate_names(setting_name, getattr(self, setting_name))

    def data_files(self) -> list[Path]:
        expected_files = (
            "train-easy",
            "train.txt",
            "arithmetic_train.txt",
            *(f"train-{name}" for name in DIFFICULTIES),
        )
        folder = dataset_folder(self.data_dir, "mathematics", CANDIDATE_FOLDERS, dict.fromkeys(expected_files))
        if any((folder / f"train-{name}").is_dir() for name in DIFFICULTIES):
            files = [folder / f"train-{name}/{module}.txt" for name in self.difficulties for module in self.modules]
            files += [folder / f"interpolate/{module}.txt" for module in self.modules]
            files += [folder / f"extrapolate/{module}.txt" for module in self.extrapolation_modules]
        else:
            is_ablation = len(self.modules) == 1 and "arithmetic" in self.modules[0]
            prefix = "arithmetic_" if is_ablation or not (folder / "train.txt").is_file() else ""
            prefix = prefix if (folder / f"{prefix}train.txt").is_file() else ""
            files = [folder / f"{prefix}{name}.txt" for name in PREPARED_SPLIT_FILES]
        missing = [file for file in files if not file.is_file()]
        if missing:
            more = f" (nor are {len(missing) - 1} others)" if len(missing) > 1 else ""
            raise UserError(
                f"data_dir: {missing[0]} does not exist{more}; `numerate data fetch mathematics` gets all modules"
            )
        return files

    def read_splits(self, files: Sequence[Path]) -> DatasetSplits:
        sources = [open_examples(file, TwoLines(), self.skip_invalid) for file in files]
        if files[0].name in ("train.txt", "arithmetic_train.txt"):  # prepared by the published program
            train, validation = (SplitRows.from_files([source]) for source in sources[:2])
            tests = SplitRows.from_files(sources[2:])
            names = ("interpolate", "extrapolate")
            return DatasetSplits.without_overlap(names, 1, train, validation, tests, self.keep_duplicates)
        num_files = len(self.difficulties) * len(self.modules)
        module_numbers = [*range(1, len(self.modules) + 1)] * len(self.difficulties)
        all_rows = SplitRows.from_files(sources[:num_files], module_numbers)
        train_rows, validation_rows = [], []
        offset = 0
        for file, count in ((source.path, source.num_examples) for source in sources[:num_files]):
            sizes = split_sizes(count, self.train_rows, self.validation_rows, self.validation_fraction)
            key = ("mathematics", f"{file.parent.name}/{file.name}", self.split_seed)
            first, second = split_indices(count, sizes, key)
            train_rows.append(first + offset)
            validation_rows.append(second + offset)
            offset += count
        return DatasetSplits.without_overlap(
            (*self.modules, *self.extrapolation_modules),
            len(self.modules),
            all_rows.take(np.concatenate(train_rows)),
            all_rows.take(np.concatenate(validation_rows)),
            SplitRows.from_files(sources[num_files:]),
            self.keep_duplicates,
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


def arithmetic_ablation() -> Mathematics:
    """The published ablation: sums and differences of several numbers, longer ones in OOD test."""
    return Mathematics(
        modules=("arithmetic__add_sub_multiple",),
        extrapolation_modules=("arithmetic__add_sub_multiple_longer",),
        train_rows=33_333,
        validation_rows=1000,
    )

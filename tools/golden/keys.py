"""Lists the random keys of data and of position ids, which decide questions, splits and offsets, as a hash per label.

    PYTHONPATH=src python tools/golden/keys.py > tools/golden/keys.txt

`keys.txt` has those of 0.2, of every recipe in `cases.py` and of every task and kind of position ids; a test compares.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numerate
from cases import CASES, TESTS
from numerate import catalogue
from numerate.positions.position_ids import DigitIndex, PositionIds
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import random_key
from numerate.tasks.multiplication import Multiplication
from numerate.tasks.task import Task

RARE = {
    "Arithmetic(stratum)": Arithmetic(stratum="nines_plus_one"),
    "Arithmetic(longest_carry_chain)": Arithmetic(digits=9, longest_carry_chain=2),
    "Multiplication(stratum)": Multiplication(stratum="nines_times_nine"),
    "DigitIndex(random_gaps)": DigitIndex(max_offset=9, random_gaps=True),
}
"""Settings that no recipe has."""


def keys_in(value: Any) -> Iterator[int]:
    """The keys of the tasks and position ids in a spec, in the order of its fields."""
    if isinstance(value, Task):
        yield random_key(value, "train", 0)
    if isinstance(value, PositionIds):
        yield value._salt()
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    for item in value if isinstance(value, tuple | list) else ():
        yield from keys_in(item)


def keys() -> dict[str, str]:
    """The hash of the keys of each case, task and kind of position ids, with files relative to the current folder."""
    local = {label: [word.replace(f"{TESTS}/", "tests/") for word in words] for label, words in CASES.items()}
    specs: dict[str, Any] = {label: numerate.recipe(*words) for label, words in local.items()} | RARE
    for kind in ("Task", "PositionIds"):
        specs |= {name: catalogue.get_class(kind, name)() for name in catalogue.parts_by_kind()[kind]}
    return {label: hashlib.sha256(repr([*keys_in(one)]).encode()).hexdigest()[:12] for label, one in specs.items()}


if __name__ == "__main__":
    os.chdir(TESTS.parent)
    print("\n".join(f"{key} {label}" for label, key in keys().items()))

"""Promises of run ids, random keys and position offsets: no rename changes them from version 0.2 on."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest

import numerate
from numerate import catalogue
from numerate.config import identity, setting
from numerate.config.settings import stored_class_name
from numerate.positions.position_ids import DigitIndex, PositionIds, Shifted
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import random_key


@dataclass(frozen=True)
class Trapezoid:
    warmup: int = setting(10, "steps of the warmup")
    decay_from: float = setting(0.9, "share after which the rate falls")


@dataclass(frozen=True)
class Renamed:
    stored_name = "Trapezoid"

    warmup: int = setting(10, "steps of the warmup")
    decay_start: float = setting(0.9, "share after which the rate falls", stored_name="decay_from")
    floor: float = setting(0.0, "smallest rate", added_later=True)


@dataclass(frozen=True)
class Inherits(Renamed):
    pass


def test_a_renamed_class_and_setting_keep_ids_and_random_keys() -> None:
    assert identity(Renamed()) == identity(Trapezoid())
    assert random_key(Renamed(), 3) == random_key(Trapezoid(), 3)
    assert identity(Renamed(decay_start=0.5)) == identity(Trapezoid(decay_from=0.5)) != identity(Trapezoid())


def test_a_setting_that_was_added_later_counts_where_it_is_not_its_default() -> None:
    assert identity(Renamed(floor=0.1)) != identity(Renamed(floor=0.0)) == identity(Trapezoid())
    assert random_key(Renamed(floor=0.1)) != random_key(Renamed(floor=0.0)) == random_key(Trapezoid())


def test_a_stored_name_is_not_inherited() -> None:
    assert stored_class_name(Inherits) == "Inherits"
    assert identity(Inherits()) != identity(Renamed())


def test_renamed_position_ids_keep_their_offsets() -> None:
    @dataclass(frozen=True)
    class OffsetPerNumber(DigitIndex):
        stored_name = "DigitIndex"

    assert OffsetPerNumber(max_offset=20)._salt() == DigitIndex(max_offset=20)._salt()
    assert OffsetPerNumber(max_offset=21)._salt() != DigitIndex(max_offset=20)._salt()


def test_the_stored_names_of_the_parts_of_a_kind_and_of_the_settings_of_a_part_are_unique() -> None:
    for kind, names in catalogue.parts_by_kind().items():
        parts = [catalogue.get_class(kind, name) for name in names]
        assert len({stored_class_name(part) for part in parts}) == len(parts)
        for part in (part for part in parts if is_dataclass(part)):
            stored = [field.metadata.get("stored_name") or field.name for field in fields(part)]
            assert len(set(stored)) == len(stored), part


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: identity(numerate.recipe("addition_abacus")), "d22631f49163"),
        (lambda: identity(numerate.recipe("counting_mod10_lstm")), "47f1ac243d46"),
        (lambda: random_key(Arithmetic()) % 2**32, 4029859489),
        (lambda: Shifted(100)._salt(), 1277880791),
    ],
)
def test_ids_keys_and_offsets_are_those_of_version_0_2(found: Any, expected: object) -> None:
    assert found() == expected


def test_position_ids_of_different_settings_have_different_offsets() -> None:
    schemes: list[PositionIds] = [Shifted(100), Shifted(101), DigitIndex(max_offset=100), DigitIndex(max_offset=101)]
    assert len({scheme._salt() for scheme in schemes}) == 4

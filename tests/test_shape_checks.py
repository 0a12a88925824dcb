"""Promises of what checks shapes while tests run: nothing that was found good hides what is not."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from shape_checks import checked

LONG = torch.zeros(3, 5)


@checked
def turned(x: Float[Tensor, "rows time"], way: str = "right", *, more: Any = ()) -> Float[Tensor, "time rows"]:
    return {"right": x.mT, "wrong": x, "flat": x.flatten(), "whole": x.mT.long()}[way]


def test_what_goes_in_and_what_comes_out_is_checked_also_after_it_was_good() -> None:
    for _ in range(2):
        assert turned(LONG).shape == (5, 3)
        assert turned(LONG, more={"of": LONG}).shape == (5, 3)
        for wrong in (torch.zeros(3), torch.zeros(3, 5, 1), LONG.long()):
            with pytest.raises(TypeCheckError, match=r"parameters of .*turned"):
                turned(wrong)
        for way in ("wrong", "flat", "whole"):
            with pytest.raises(TypeCheckError, match="return value"):
                turned(LONG, way)


def test_the_same_arguments_may_be_answered_otherwise_the_next_time() -> None:
    answers = [torch.zeros(3), torch.zeros(3), torch.zeros(4), torch.zeros(3)]

    @checked
    def next_one(x: Float[Tensor, " rows"], more: Any = None) -> Float[Tensor, " rows"]:
        return answers.pop(0)

    next_one(torch.zeros(3))
    next_one(torch.zeros(3))
    with pytest.raises(TypeCheckError, match="return value"):
        next_one(torch.zeros(3))
    next_one(torch.zeros(3))


def test_dimensions_of_one_name_are_one_size_also_within_tuples_and_classes() -> None:
    @checked
    @dataclass
    class Held:
        x: Float[Tensor, "rows time"]
        sizes: tuple[Float[Tensor, " rows"], ...] = ()

    for _ in range(2):
        Held(LONG, (torch.zeros(3),))
        with pytest.raises(TypeCheckError, match="sizes"):
            Held(LONG, (torch.zeros(2),))


def test_what_names_no_shape_is_left_as_it_is() -> None:
    def plain(x: Tensor, count: int) -> Tensor:
        return x

    assert checked(plain) is plain

"""Promises of the constraints: the tested versions are ones that `pyproject.toml` allows, and the oldest are its."""

import re
import tomllib
from pathlib import Path

TOP = Path(__file__).parents[1]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def promised() -> dict[str, str]:
    """What is asked for of each package, in the package itself and its extras: the same wherever it stands."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, set[str]] = {}
    for line in [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        assert name is not None
        found.setdefault(canonical(name[0]), set()).add(line[name.end() :])
    assert all(len(bounds) == 1 for bounds in found.values()), found
    return {name: next(iter(bounds)) for name, bounds in found.items()}


def pinned(file: str) -> dict[str, str]:
    lines = (TOP / file).read_text(encoding="utf-8").splitlines()
    pins = (line.split("#")[0].strip().split("==") for line in lines if "==" in line.split("#")[0])
    return {canonical(name): version for name, version in pins}


def as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_nothing_newer_is_kept_out() -> None:
    assert [bound for bound in promised().values() if "<" in bound or "~=" in bound] == []


def test_the_oldest_versions_are_those_that_are_promised() -> None:
    oldest = pinned("constraints-oldest.txt")
    asked = {name: bound for name, bound in promised().items() if bound}
    assert asked.keys() <= oldest.keys()  # it also pins what these packages ask for, where that matters
    for name, bound in asked.items():
        wanted, given = as_numbers(bound.removeprefix(">=").removeprefix("==")), as_numbers(oldest[name])
        assert given[: len(wanted)] == wanted, name
        assert not any(given[len(wanted) :]), name


def test_the_tested_versions_are_allowed() -> None:
    oldest = pinned("constraints-oldest.txt")
    for name, version in pinned("constraints.txt").items():
        assert as_numbers(version) >= as_numbers(oldest[name]), name

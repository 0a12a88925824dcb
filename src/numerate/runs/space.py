"""The space of a search: settings that are fixed, have several values, or have a range `between(low,high,step)` or
`log(low,high)`."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import inf, isfinite, log, prod
from typing import Any

from numerate.config import expand_sweep, format_value, identity, override
from numerate.config.values import parse_number, resolve_setting_name, split_at_commas
from numerate.errors import UserError, import_extra

_EDGE_FRACTION = 0.05  # of a range at either end, where a best value suggests a wider search
_MAX_COMBINATIONS = 500  # combinations with other fields in which a value is tried before it is refused
_RANGE_PATTERN = re.compile(r"\s*(between|log)\s*\((.*)\)\s*", re.DOTALL)


def load_optuna() -> Any:
    """Imports Optuna. Raises `UserError` if it is not installed."""
    return import_extra("optuna", "search", "search")


@dataclass(frozen=True)
class Field:
    """A setting with Optuna's distribution of its values: the texts `choices`, of which a fixed setting has one, or
    numbers."""

    path: str
    value: str
    distribution: Any = field(repr=False)
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}={self.value}"

    @property
    def size(self) -> float:
        """The number of values, which may be infinite."""
        found = self.distribution
        return len(self.choices) or (inf if found.step is None else round((found.high - found.low) / found.step) + 1)

    @property
    def tried(self) -> list[str]:
        """The settings with which the recipe is built before anything runs: all values, or both ends of a range."""
        texts = self.choices or map(format_value, (self.distribution.low, self.distribution.high))
        return [f"{self.path}={text}" for text in texts]

    def rounded(self, value: Any) -> Any:
        """A value that was drawn, with few digits: enough for any effect, few enough to type."""
        if not isinstance(value, float):
            return value
        found = self.distribution
        return min(max(float(f"{value:.{4 if found.step is None else 10}g}"), found.low), found.high)

    def is_edge(self, value: Any) -> bool:
        """Whether a value is near an end of a range."""
        if self.choices:
            return False
        found = self.distribution
        low, high, position = (log(x) if found.log else x for x in (found.low, found.high, value))
        return not _EDGE_FRACTION < (position - low) / (high - low) < 1 - _EDGE_FRACTION


@dataclass(frozen=True)
class Space:
    """The settings of a search in the given order, fixed ones and the fields to search.

    >>> import numerate
    >>> recipe = numerate.recipe("addition_abacus")
    >>> space = Space.parse(recipe, ["optimizer.learning_rate=log(1e-4,1e-2)", "model.hidden_size=32,64"])
    >>> space.settings({"optimizer.learning_rate": 0.003, "model.hidden_size": "64"})
    ['optimizer.learning_rate=0.003', 'model.hidden_size=64']
    """

    items: tuple[Field, ...]

    @classmethod
    def parse(cls, recipe: Any, settings: Sequence[str] | Mapping[str, Any]) -> "Space":
        """From `path=value` texts, or from a dict, in which a list has the values to choose from.

        Every field is tried in the recipe, at both ends of a range and at every value. Raises `UserError` for an
        unknown path, an invalid value, a field that is given twice or that does not change the run's identity (a
        budget), and if there is no field.
        """
        if isinstance(settings, Mapping):
            lists = {path: value if isinstance(value, list) else [value] for path, value in settings.items()}
            settings = [f"{path}={','.join(map(value_text, values))}" for path, values in lists.items()]
        space = cls(tuple(map(_parse_item, settings)))
        if not space.fields:
            example = "a setting must have a range or several values, such as log(1e-4,1e-2) or 32,64"
            raise UserError(f"there is nothing to search over: {example}")
        for path in space.distributions:
            if [item.path for item in space.items].count(path) > 1:
                raise UserError(f"{path} is given twice; must be given once")
        return cls(tuple(space._checked(recipe, index) for index in range(len(space.items))))

    @property
    def fields(self) -> list[Field]:
        """The fields to search."""
        return [item for item in self.items if len(item.choices) != 1]

    @property
    def distributions(self) -> dict[str, Any]:
        """The distribution of each field by its path, as Optuna takes them."""
        return {field.path: field.distribution for field in self.fields}

    @property
    def size(self) -> float:
        """The number of points, which may be infinite."""
        return prod(field.size for field in self.fields)

    def settings(self, parameters: Mapping[str, Any]) -> list[str]:
        """The `path=value` texts of one point of the space, for `numerate run`."""
        return [f"{item.path}={value_text(parameters.get(item.path, item.value))}" for item in self.items]

    def _checked(self, recipe: Any, index: int) -> Field:
        """The setting, with integers for an integer one; every value is accepted in some combination with others."""
        field, recipes = self.items[index], []
        for text in field.tried if len(field.choices) != 1 else ():
            tried = [[text] if item is field else item.tried for item in self.items]
            recipes.append(_build(recipe, tried))
        if len({identity(one) for one in recipes}) < len(recipes):
            remedy = "a budget or a label must have one value, and each value once"
            raise UserError(f"{field}: some of these values give the same run; {remedy}")
        ends = [] if field.choices else [_value_at(one, field.path) for one in recipes]
        if not ends or not all(isinstance(end, int) for end in ends):
            return field
        found = field.distribution
        if found.step is not None and not found.step.is_integer():
            raise UserError(f"{field}: {field.path} is an integer, so its step must be one")
        kind = load_optuna().distributions.IntDistribution
        return replace(field, distribution=kind(*map(int, ends), log=found.log, step=int(found.step or 1)))


def value_text(value: Any) -> str:
    """A value of a field as text for the command line."""
    return value if isinstance(value, str) else format_value(value)


def _parse_item(text: str) -> Field:
    """Parses one `path=value`. Ranges are of floats until the type of the setting is known."""
    texts, kinds = [one for (one,) in expand_sweep([text])], load_optuna().distributions
    path, choices = texts[0].partition("=")[0], tuple(one.partition("=")[2] for one in texts)
    if path == "seed":
        raise UserError("seed, seeds: those of all trials are set by seed= and seeds= of the search")
    item = Field(path, ",".join(choices), kinds.CategoricalDistribution(choices), choices)
    if len(choices) > 1 or (found := _RANGE_PATTERN.fullmatch(choices[0])) is None:
        return item
    numbers = [parse_number(piece) for piece in split_at_commas(found[2]) or []]
    if not 2 <= len(numbers) <= 3 or not all(number is not None and isfinite(number) for number in numbers):
        raise UserError(f"{item}: must be a range of numbers; for example {path}={found[1]}(16,128)")
    low, high, step = (*numbers, None)[:3]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the last step may end below the upper bound
            distribution = kinds.FloatDistribution(low, high, log=found[1] == "log", step=step)
    except ValueError as error:
        raise UserError(f"{item}: {error}") from error
    return replace(item, distribution=distribution, choices=())


def _build(recipe: Any, tried: Sequence[Sequence[str]]) -> Any:
    """The recipe with one of several values of each setting: the first combination with which it is valid."""
    errors = []
    for combination in islice(product(*tried), _MAX_COMBINATIONS):
        try:
            return override(recipe, combination)
        except UserError as error:
            errors.append(error)
    raise errors[0]


def _value_at(recipe: Any, path: str) -> Any:
    """The value at a path that `override` accepted."""
    value = recipe
    for name in path.split("."):
        is_list = isinstance(value, tuple)
        value = value[int(name)] if is_list else getattr(value, resolve_setting_name(type(value), name, path))
    return value

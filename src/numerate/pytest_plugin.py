"""`pytest --numerate-promises PACKAGE`: the tests of `numerate.promises` on the parts that a package declares."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

OPTION = "--numerate-promises"


def pytest_addoption(parser: "pytest.Parser") -> None:
    parser.getgroup("numerate").addoption(
        OPTION, metavar="PACKAGE", help="test what numerate promises of every part on those that this package declares"
    )


def pytest_configure(config: "pytest.Config") -> None:
    """Collects the promises, in place of the tests of the current folder unless some are named."""
    package = config.getoption(OPTION)
    if package is None:
        return
    import pytest

    from numerate.errors import UserError

    try:
        parts = declared_parts(package)
    except UserError as error:  # a part that cannot be loaded
        raise pytest.UsageError(str(error)) from error
    if not parts:
        raise pytest.UsageError(
            f"{OPTION}: no installed package {package!r} declares parts (as entry points in the group numerate.parts)"
        )
    config.pluginmanager.register(_Promises(parts))
    promises = __file__.replace("pytest_plugin", "promises")
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS
    config.args = [*config.args, promises] if is_named else [promises]


def declared_parts(package: str) -> list[Any]:
    """The classes and recipes that a package declares: one with this name, or whose module is in it."""
    from numerate.config import packaged_parts

    names = {package, package.replace("_", "-"), package.replace("-", "_")}
    return [
        packaged_parts.load_packaged_part(address)
        for address, entry in packaged_parts.declared_entry_points().items()
        if (entry.dist is not None and entry.dist.name in names) or entry.module.partition(".")[0] in names
    ]


class _Promises:
    """Runs each promise on the parts that it is about, and leaves out those about no part."""

    def __init__(self, parts: list[Any]) -> None:
        from numerate.batch import ModelSpec
        from numerate.config import packaged_parts
        from numerate.losses.loss import Loss
        from numerate.mixers.mixer import Mixer
        from numerate.positions.position_ids import PositionIds
        from numerate.tasks.task import Task
        from numerate.text.tasks.text_task import RowTask

        classes = [part for part in parts if isinstance(part, type)]

        def made(kind: type, is_meant: Callable[[Any], bool] = lambda part: True) -> list[Any]:
            return [instance for part in classes if issubclass(part, kind) and is_meant(instance := part())]

        mixings = [(mixer, ()) for mixer in made(Mixer)]
        self.variants: dict[str, list[Any]] = {
            "any_part": classes,
            "any_mixing": mixings,
            "each_mixing": mixings,
            "any_causal_position_ids": made(PositionIds, lambda scheme: scheme.causal),
            "any_model": made(ModelSpec),
            "any_loss": made(Loss),
            "any_generated_task": made(Task, lambda task: not (isinstance(task, RowTask) or task.is_language_modeling)),
            "any_recipe": [part for part in parts if packaged_parts.kind_of_function(part) == "Recipe"],
        }

    def pytest_generate_tests(self, metafunc: "pytest.Metafunc") -> None:
        if metafunc.module.__name__.rpartition(".")[2] == "promises":
            for name in metafunc.fixturenames:
                if name in self.variants:
                    metafunc.parametrize(name, self.variants[name], ids=map(_name_of, self.variants[name]))

    def pytest_collection_modifyitems(self, items: list["pytest.Item"]) -> None:
        items[:] = [item for item in items if "[NOTSET]" not in item.name]


def _name_of(part: Any) -> str:
    if isinstance(part, tuple):
        return _name_of(part[0])
    return str(getattr(part, "__name__", type(part).__name__))

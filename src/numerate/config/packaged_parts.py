"""Parts of installed packages, declared by entry points in the group `numerate.parts`; others are not loaded.

    [project.entry-points."numerate.parts"]
    Bitter = "acme.mixers:Bitter"
    bitter_addition = "acme.recipes:bitter_addition"

The part is then `model.mixer=Bitter` or `model.mixer=acme.mixers:Bitter`; a saved recipe has the latter. A function is
a recipe or, if it is annotated to return a `Study`, a study: `numerate train bitter_addition`.
"""

import inspect
import sys
from functools import cache
from typing import Any

from numerate.errors import UserError

ENTRY_POINT_GROUP = "numerate.parts"


def load_packaged_part(address: str) -> Any:
    """What an installed package declares at an address: `load_packaged_part("acme.mixers:Bitter")`. A class in a module
    that is already imported needs no declaration.

    Raises `UserError` if there is none, without importing anything.
    """
    if address in declared_entry_points():
        return _load_entry_point(address)
    module, _, name = address.rpartition(":")
    if name in getattr(sys.modules.get(module), "__dict__", {}):
        return vars(sys.modules[module])[name]
    raise UserError(
        f"{address}: no installed package declares such a part (as an entry point in the group {ENTRY_POINT_GROUP}); "
        "import its module first (in Python), or declare it"
    )


def address_of_name(name: str) -> str | None:
    """The address of the part that a package declares under a name, such as `Bitter`; None if none does."""
    return next((address for address, entry in declared_entry_points().items() if entry.name == name), None)


def kind_of_function(part: Any) -> str | None:
    """`Study` for a function that is annotated to return one, `Recipe` for any other; None for a class."""
    if not inspect.isfunction(part):
        return None
    return "Study" if "Study" in str(part.__annotations__.get("return")) else "Recipe"


def address_of_class(part: type) -> tuple[str, str] | None:
    """The address at which a package declares a class, and its module with the package's version; None if no package
    does. Only its own package is imported."""
    package = part.__module__.partition(".")[0]
    for address, entry in declared_entry_points().items():
        if (
            entry.module.partition(".")[0] == package
            and entry.attr == part.__name__
            and _load_entry_point(address) is part
        ):
            return address, f"{part.__module__} {entry.dist.version if entry.dist is not None else None}"
    return None


@cache
def declared_entry_points() -> dict[str, Any]:
    """The entry points of parts declared by installed packages, by address. Nothing is imported."""
    from importlib.metadata import entry_points  # imported here because it is slow and rarely needed

    return {f"{entry.module}:{entry.attr}": entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _load_entry_point(address: str) -> Any:
    entry = declared_entry_points()[address]
    try:
        return entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist is not None else entry.module
        raise UserError(
            f"{address}: the package {package} declares this part but loading it failed "
            f"({type(error).__name__}: {error})"
        ) from error

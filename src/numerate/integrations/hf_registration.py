"""What makes `import numerate` enough for transformers to open exported runs, whichever of the two is imported first.

transformers knows a model by a class for each. Ours need torch and transformers, which `import numerate` does not
import: they are registered when transformers imports its own list of classes. (wrapt has such hooks, but its import
takes 0.1 s, four times that of numerate.)
"""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

OLDEST_TRANSFORMERS = (5, 4)

_REGISTRATIONS = {
    "transformers.models.auto.configuration_auto": "numerate.integrations.hf_config",
    "transformers.models.auto.modeling_auto": "numerate.integrations.hf_decoder",
}
"""Modules of transformers, with ours that are imported after them."""


def register_exported_models() -> None:
    """Registers the classes of exported runs now or, where transformers has not got that far, as soon as it has."""
    for theirs, ours in _REGISTRATIONS.items():
        if theirs in sys.modules:
            _register(ours)
    sys.meta_path.insert(0, _AfterTransformers())


def _register(module: str) -> None:
    version = re.findall(r"\d+", sys.modules["transformers"].__version__)
    if tuple(map(int, version[:2])) >= OLDEST_TRANSFORMERS:
        import_module(module)


class _AfterTransformers:
    """Finds a module of transformers as Python does, and imports ours after it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path, target) if name in _REGISTRATIONS else None
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register(_REGISTRATIONS[name])

            found.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return found

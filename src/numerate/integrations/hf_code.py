"""The code of an exported folder: the source of its decoder and of the parts in it, which needs torch and transformers.

transformers copies the modeling file of a folder, and the files beside it that it imports by `from .file import name`;
folders inside are not supported (`transformers.dynamic_module_utils`). So every module of numerate that is needed
becomes one file, numerate/mixers/attention.py for instance `numerate_mixers_attention.py`. It has those definitions
that the decoder uses, as they are written in the source; only imports are rewritten. Files of users, and packages with
parts, are treated in the same way.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from numerate.config import Spec
from numerate.errors import UserError
from numerate.integrations import hf_shapes
from numerate.training import provenance

MODELING_FILE = "modeling_numerate"
AUTO_MAP = {
    "AutoConfig": f"{MODELING_FILE}.NumerateConfig",
    "AutoModelForCausalLM": f"{MODELING_FILE}.NumerateForCausalLM",
}
"""Where transformers finds the classes of a folder."""

_DECODER = "numerate.integrations.hf_decoder"
_INSTALLED = {
    *sys.stdlib_module_names,
    *["huggingface_hub", "numpy", "safetensors", "tokenizers", "torch", "transformers"],
}
"""What every program with transformers has. Imports of anything else are put in `try`, where transformers does not
require them before they are needed."""

_Import = ast.Import | ast.ImportFrom

_MODELING = '''"""A decoder of numerate for transformers:

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

The other files are the source of its parts, its settings are in config.json.
"""

from typing import TYPE_CHECKING

{imports}

if TYPE_CHECKING:  # older releases of transformers copy no file that is not named here
{others}

PARTS = {{
{parts}
}}


def build_part(setting):
    """A setting of config.json: a part by its class, a list as a tuple, or a plain value."""
    if isinstance(setting, dict):
        settings = {{name: build_part(value) for name, value in setting.items() if name not in ("kind", "source")}}
        return PARTS[setting["kind"]](**settings)
    return tuple(map(build_part, setting)) if isinstance(setting, list) else setting


class NumerateForCausalLM(NumerateDecoder):
    read_spec = staticmethod(build_part)
'''


def write_code(folder: Path, spec: Spec, tree: Mapping[str, Any]) -> None:
    """Writes the files of `code_files` to a folder."""
    for name, text in code_files(spec, tree).items():
        (folder / name).write_text(text, encoding="utf-8")


def code_files(spec: Spec, tree: Mapping[str, Any]) -> dict[str, str]:
    """The modeling file of a decoder and all files that it imports, by name. `tree` is the spec as plain data.

    >>> from numerate.config import to_tree
    >>> from numerate.models import Decoder
    >>> files = code_files(Decoder(), to_tree(Decoder()))
    >>> [name for name in files if "_models_" in name]
    ['numerate_models_backbone.py', 'numerate_models_block.py', 'numerate_models_decoder.py', \
'numerate_models_initialization.py', 'numerate_models_injection.py']

    Raises `UserError` for a part of a user whose imports cannot be rewritten.
    """
    parts = dict(sorted(_parts(spec, tree)))
    source = _Source({part.__module__ for part in parts.values()})
    roots = [(_DECODER, "NumerateConfig"), (_DECODER, "NumerateDecoder")]
    roots += sorted({(part.__module__, part.__name__) for part in parts.values()})
    for module, name in roots:
        source.add(module, name)
    files = {f"{_flat(name)}.py": source.text(module) for name, module in sorted(source.modules.items()) if module.kept}
    modeling = _MODELING.format(
        imports="\n".join(f"from .{_flat(module)} import {name}" for module, name in roots),
        others="\n".join(
            f"    from .{_flat(name)} import {module.a_name()}"
            for name, module in sorted(source.modules.items())
            if module.kept and name not in dict(roots)
        ),
        parts="\n".join(f"    {kind!r}: {part.__name__}," for kind, part in parts.items()),
    )
    return {f"{MODELING_FILE}.py": modeling, **files}


def _parts(spec: Any, tree: Any) -> Iterator[tuple[str, type]]:
    """All parts of a spec, by the kinds that its plain data names."""
    if isinstance(tree, Mapping) and "kind" in tree:
        yield tree["kind"], type(spec)
        for name in tree.keys() - {"kind", "source"}:
            yield from _parts(getattr(spec, name), tree[name])
    elif isinstance(tree, list | tuple):
        for one, item in zip(spec, tree, strict=True):
            yield from _parts(one, item)


def _flat(module: str) -> str:
    return module.replace(".", "_")


class _Source:
    """The modules of which definitions are needed: numerate's, and those of the packages or files of `part_modules`."""

    def __init__(self, part_modules: set[str]) -> None:
        self.modules: dict[str, _Module] = {}
        self.packages = {"numerate", *(name.partition(".")[0] for name in part_modules)}
        # A file of a user may import others beside it.
        self.folders = {_file(name).parent for name in part_modules if "." not in name}

    def add(self, module: str, name: str) -> None:
        """Keeps the definition of a name, and all that it uses."""
        found = self._module(module)
        if not found.kept:
            for statement in found.side_effects:
                self._keep(found, statement)
        self._keep(found, found.definitions[name])

    def text(self, module: "_Module") -> str:
        """The file of a module in the folder."""
        imports = [
            line
            for statement in module.body
            if isinstance(statement, _Import)
            for line in self._imports(module, statement, module.used)
        ]
        definitions = [self._definition(module, statement) for statement in module.body if statement in module.kept]
        is_ours = module.name.startswith("numerate.")
        licence = f" {provenance.versions().get('numerate', '')}, MIT licence" if is_ours else ""
        head = f'"""From {module.name}{licence}."""'
        return "\n\n\n".join(["\n".join([head, *([""] if imports else []), *imports]), *definitions]) + "\n"

    def _module(self, name: str) -> "_Module":
        if name not in self.modules:
            self.modules[name] = _Module(name)
        return self.modules[name]

    def _keep(self, module: "_Module", statement: ast.stmt) -> None:
        if statement in module.kept:
            return
        module.kept.add(statement)
        imports = [(node, name) for node in ast.walk(statement) if isinstance(node, _Import) for name in _names(node)]
        for name in {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} & module.definitions.keys():
            used = module.definitions[name]
            if isinstance(used, _Import):
                module.used.add(name)
                imports.append((used, name))
            else:
                self._keep(module, used)
        for used, name in imports:
            if (origin := self._origin(module, used, name)) is not None:
                self.add(*origin)

    def _origin(self, module: "_Module", statement: _Import, name: str) -> tuple[str, str] | None:
        """The module that defines an imported name, and its name there; None for a module that is not copied."""
        imported = _names(statement)[name]
        target = module.absolute(statement) if isinstance(statement, ast.ImportFrom) else imported
        if target == "jaxtyping":
            return hf_shapes.__name__, imported
        if not self._is_copied(target):
            return None
        if isinstance(statement, ast.ImportFrom):
            found = self._module(target)
            defined = found.definitions.get(imported)
            if isinstance(defined, ast.ImportFrom):
                return self._origin(found, defined, imported)
            if defined is None:  # a name that the `__getattr__` of a folder of parts finds
                target = getattr(getattr(sys.modules.get(target), imported, None), "__module__", target)
            if imported in self._module(target).definitions:
                return target, imported
        raise UserError(
            f"export: {module.name}: cannot copy what `{ast.unparse(statement)}` imports; write `from MODULE import "
            "NAME`, with the module that defines it"
        )

    def _is_copied(self, module: str) -> bool:
        top = module.partition(".")[0]
        if top in self.packages:
            return True
        spec = find_spec(top) if self.folders and top not in _INSTALLED else None
        return spec is not None and spec.origin is not None and Path(spec.origin).parent in self.folders

    def _imports(self, module: "_Module", statement: _Import, names: set[str]) -> list[str]:
        """The lines that import some names of a statement, from files of the folder where they are copied."""
        copied: dict[str, list[ast.alias]] = {}
        others = []
        for alias in statement.names:
            name = _bound_name(alias)
            if name in names and (origin := self._origin(module, statement, name)) is not None:
                copied.setdefault(origin[0], []).append(ast.alias(origin[1], None if origin[1] == name else name))
            elif name in names:
                others.append(alias)
        lines = [ast.unparse(ast.ImportFrom(_flat(origin), aliases, level=1)) for origin, aliases in copied.items()]
        if others:
            module_name = "" if isinstance(statement, ast.Import) else statement.module
            line = ast.unparse(ast.ImportFrom(module_name, others, level=0) if module_name else ast.Import(others))
            top = (module_name or others[0].name).partition(".")[0]
            lines += [line] if top in _INSTALLED else ["try:", f"    {line}", "except ImportError:", "    raise"]
        return lines

    def _definition(self, module: "_Module", statement: ast.stmt) -> str:
        """The source of a statement, the comments before it and the text behind it; imports inside are rewritten."""
        following = module.body[module.body.index(statement) + 1 :][:1]
        last = following[0] if following and _is_text(following[0]) else statement
        first = min([statement.lineno, *(node.lineno for node in getattr(statement, "decorator_list", []))])
        while first > 1 and module.lines[first - 2].startswith("#"):
            first -= 1
        lines = list(module.lines)
        for node in ast.walk(statement):
            if isinstance(node, _Import):
                new = self._imports(module, node, {*_names(node)})
                lines[node.lineno - 1] = "\n".join(" " * node.col_offset + line for line in new)
                lines[node.lineno : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno)
        return "\n".join(lines[first - 1 : last.end_lineno])


class _Module:
    """The source of a module, with what is kept of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = _file(name).read_text(encoding="utf-8").splitlines()
        self.body = ast.parse("\n".join(self.lines)).body
        self.definitions = {name: statement for statement in self.body for name in _names(statement)}
        # What our modules do when they are imported. A script of a user may train there.
        self.side_effects = [
            statement
            for statement in (self.body if name.startswith("numerate.") else [])
            if not _names(statement) and not _is_text(statement)
        ]
        self.kept: set[ast.stmt] = set()
        self.used: set[str] = set()

    def a_name(self) -> str:
        """One of the names that are kept, a public one if there is any."""
        names = [name for statement in self.body if statement in self.kept for name in _names(statement)]
        return min(names, key=lambda name: name.startswith("_"))

    def absolute(self, statement: ast.ImportFrom) -> str:
        """The module that a statement imports from."""
        is_package = _file(self.name).name == "__init__.py"
        package = self.name if is_package else self.name.rpartition(".")[0]
        return resolve_name("." * statement.level + (statement.module or ""), package)


def _file(module: str) -> Path:
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None) if found is not None else getattr(find_spec(module), "origin", None)
    if not isinstance(file, str):
        raise UserError(f"export: {module} has no file, whose source could be copied; define its parts in a file")
    return Path(file)


def _names(statement: ast.stmt) -> dict[str, str]:
    """The names that a statement at the top of a module defines; those imported, by what they are called there."""
    if isinstance(statement, _Import):
        return {_bound_name(alias): alias.name for alias in statement.names}
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name: statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    stored = (node for target in targets if target is not None for node in ast.walk(target))
    return {node.id: node.id for node in stored if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]

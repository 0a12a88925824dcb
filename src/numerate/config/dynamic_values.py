"""Values that the code of a part uses and its file does not fix: from the command line, a loop, or a factory.

They tell parts of one file apart that have the same name. What a file writes as a literal is in its hash already.
"""

import ast
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache

from numerate.config.used_values import constant_text, used_values

_PURE = {
    *("Path", "__file__", "abs", "bytes", "chr", "dict", "divmod", "enumerate", "float", "frozenset", "int", "len"),
    *("list", "map", "math", "max", "min", "ord", "pow", "range", "reversed", "round", "set", "sorted", "str", "sum"),
    *("tuple", "zip"),
}
"""Functions whose result is determined by their arguments."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def dynamic_values(part: type, source: bytes) -> dict[str, str]:
    """The values that the code of a class uses, itself or through others of its module, by name; without its settings,
    imports, and what equals the first literal or definition for this name in the source of the module.

        SCALE = float(sys.argv[1])     {"SCALE": "2.0"}
    """
    found = dict[str, str]()
    folder = os.path.dirname(os.path.realpath(sys.modules[part.__module__].__file__ or ""))
    for name, text in used_values(part, _written(source)):
        found[name] = f"{found.get(name, '')}{text.replace(folder, '.')};"
    return found


@cache
def _written(source: bytes) -> dict[str, str | None]:
    """What a file determines, by name: `SCALE`, `Scaled.factor`, and `scaled(gamma)` for the default of an argument.
    It is the text of the first literal; `scaled:3` for a function that line 3 defines; `Scaled()` for an object; None
    for what is imported, defined, or computed once from these; empty for what it leaves open."""
    tree = ast.parse(source)
    written: dict[str, str | None] = {}
    _add_scope(written, "", tree, frozenset())
    return written


def _add_scope(written: dict[str, str | None], prefix: str, scope: ast.AST, outer: frozenset[str]) -> None:
    """Adds what a file, a class, or a function determines; `outer` are the names around it that are not fixed."""
    nodes = [*_nodes_of_scope(scope)]
    several = _bound_several_times(scope, nodes)
    if isinstance(scope, _Function):
        outer |= {node.arg for node in nodes if isinstance(node, ast.arg)} | {*_bound_names(scope)}
    elif isinstance(scope, ast.Module):
        outer |= several

    def text_of(value: ast.expr, is_single: bool) -> str | None:
        known = {key for key in written if written[key] != ""} - outer
        if (text := _literal_text(value)) or not is_single:
            return text
        if _is_determined(value, known):
            return None
        if isinstance(value, ast.Call) and (names := _names_in(value.func)) and not names & ({"sys", "os"} | outer):
            arguments = [*value.args, *(keyword.value for keyword in value.keywords)]
            if all(_is_determined(one, known) for one in arguments):
                return f"{ast.unparse(value.func).rpartition('.')[2]}()"
        return ""

    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name, _ in _imported_names(node):
                written.setdefault(prefix + name, "" if name in several else None)
        elif isinstance(node, ast.ClassDef):
            names = {name for base in node.bases for name in _names_in(base)}
            is_open = bool(names & ({"sys", "os"} | outer | {key for key in names if written.get(key) == ""}))
            written.setdefault(prefix + node.name, "" if node.name in several else None)
            written.setdefault(f"{prefix}{node.name}.__bases__", "" if is_open or node.name in several else None)
            _add_scope(written, f"{prefix}{node.name}.", node, outer)
        elif isinstance(node, _Function):
            text = None if node.decorator_list else f"{prefix}{node.name}:{node.lineno}"
            written.setdefault(prefix + node.name, "" if node.name in several else text)
            positional = [*node.args.posonlyargs, *node.args.args]
            defaults: list[tuple[ast.arg, ast.expr | None]] = [
                *zip(positional[::-1], node.args.defaults[::-1], strict=False)
            ]
            defaults += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            for argument, value in defaults:
                if value is not None:
                    text = text_of(value, node.name not in several)
                    written.setdefault(f"{prefix}{node.name}({argument.arg})", text)
            _add_scope(written, f"{prefix}{node.name}.<locals>.", node, outer)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_unpacked = not all(isinstance(target, ast.Name) for target in targets)
            for name in (name for target in targets for name in _bound_names(target)):
                text = text_of(node.value, name not in several)
                written.setdefault(prefix + name, ("" if name in several else None) if is_unpacked and text else text)


def _nodes_of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a file, class or function in their order, without those of the classes and functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, _Definition | ast.Lambda):
            yield from _nodes_of_scope(node)


def _bound_several_times(scope: ast.AST, nodes: list[ast.AST]) -> set[str]:
    """The names that a scope binds in several places, or whose attributes or items it sets."""
    bound, changed = set[tuple[str, object]](), list[str]()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add((node.id, node))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound.update(_imported_names(node))
        elif isinstance(node, _Definition):
            decorators = [ast.unparse(one) for one in node.decorator_list]
            if not {f"{node.name}.setter", f"{node.name}.deleter", "overload", "typing.overload"} & {*decorators}:
                bound.add((node.name, node))
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            changed += _bound_root(node)
    if isinstance(scope, ast.Module):
        changed += [name for node in ast.walk(scope) if isinstance(node, ast.Global) for name in node.names]
    imported = {name for name, what in bound if isinstance(what, str)}
    counts = Counter(name for name, _ in bound)
    return {name for name, count in counts.items() if count > 1} | {name for name in changed if name not in imported}


def _bound_root(node: ast.expr) -> list[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return [node.id] if isinstance(node, ast.Name) else []


def _imported_names(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that an import binds, each with what it is."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{'.' * node.level}{node.module}.{alias.name}"
        else:
            root = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (root, root)


def _bound_names(node: ast.AST) -> list[str]:
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]


def _names_in(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def _literal_text(expression: ast.expr) -> str:
    try:
        return constant_text(ast.literal_eval(expression))
    except (ValueError, TypeError):
        return ""


def _is_determined(expression: ast.expr, known: set[str]) -> bool:
    """Whether an expression consists of literals, of names that the file determines, and of calls of pure functions."""
    nodes = [*ast.walk(expression)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - {*_bound_names(expression)}
    roots = [_root(node.func) for node in nodes if isinstance(node, ast.Call)]
    is_pure = all(isinstance(root, ast.Constant) or (isinstance(root, ast.Name) and root.id in _PURE) for root in roots)
    return is_pure and names <= (known | _PURE) - {"sys", "os"}


def _root(expression: ast.expr) -> ast.expr:
    """What a chain of attributes and calls begins with: `Path` of `Path("a").resolve().parent`."""
    while isinstance(expression, ast.Attribute | ast.Call):
        expression = expression.value if isinstance(expression, ast.Attribute) else expression.func
    return expression

"""The calls into flash-linear-attention fit the signatures of the installed version, which need not be imported."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

import numerate

if importlib.util.find_spec("fla") is None:
    pytest.skip("flash-linear-attention is not installed", allow_module_level=True)

SOURCE = Path(numerate.__file__).parent


def imported_functions() -> list[tuple[str, str, str]]:
    """File, module and function of everything that numerate imports from flash-linear-attention."""
    return [
        (path.relative_to(SOURCE).as_posix(), node.module, alias.name)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fla"
        for alias in node.names
    ]


def calls(file: str, function: str) -> Iterator[tuple[int, set[str]]]:
    """Of each call of a function in a file: the number of positional arguments, and the names of the others. What
    `**options` holds is read from the literal that is assigned to it."""
    for scope in ast.walk(ast.parse((SOURCE / file).read_text(encoding="utf-8"))):
        if not isinstance(scope, ast.FunctionDef):
            continue
        literals = {
            target.id: [ast.literal_eval(key) for key in node.value.keys if key is not None]
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                named = [[word.arg] if word.arg else literals[ast.unparse(word.value)] for word in node.keywords]
                yield len(node.args), {name for names in named for name in names}


def signature(module: str, function: str) -> ast.arguments:
    """The arguments of a function of a package that is not imported, also where the module imports the function."""
    root = importlib.util.find_spec("fla")
    assert root is not None
    assert root.submodule_search_locations is not None
    while True:
        path = Path(root.submodule_search_locations[0], *module.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                return node.args
        module = next(
            f"{module}.{node.module}" if node.level else node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module and function in [alias.name for alias in node.names]
        )


def test_there_is_a_call_of_every_kernel_that_is_imported() -> None:
    functions = imported_functions()
    assert {name for _, _, name in functions} >= {"chunk_delta_rule", "chunk_simple_gla", "chunk_rwkv6", "chunk_rwkv7"}
    assert all(list(calls(file, function)) for file, _, function in functions)


@pytest.mark.parametrize(("file", "module", "function"), imported_functions())
def test_a_call_fits_the_signature(file: str, module: str, function: str) -> None:
    """An argument that the function does not name would go into its `**kwargs`, and be ignored."""
    arguments = signature(module, function)
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    required = set(positional[: len(positional) - len(arguments.defaults)])
    known = {*positional, *(argument.arg for argument in arguments.kwonlyargs)}
    for number, named in calls(file, function):
        assert number <= len(positional)
        assert named <= known
        assert not named & set(positional[:number]), "given twice"
        assert required <= {*positional[:number], *named}

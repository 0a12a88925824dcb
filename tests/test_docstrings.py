"""Promises of docstrings: their examples run as they stand there, and give what they show."""

import ast
import doctest
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "numerate"
PARSER = doctest.DocTestParser()
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, int, str]]:
    """The docstrings of a file as (name of what is documented, line, text), from its source: a wrapped function (by a
    cache, by checks of shapes) has its examples too."""
    if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node, clean=False)) is not None:
        yield name, node.body[0].lineno - 1, text
    for child in ast.iter_child_nodes(node):
        yield from docstrings(child, f"{name}.{child.name}" if hasattr(child, "name") else name)


def examples_of(path: Path, name: str) -> list[doctest.DocTest]:
    """One test per docstring of a file that has examples."""
    tests = [
        PARSER.get_doctest(text, {}, documented, str(path), line)
        for documented, line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")), name)
    ]
    return [test for test in tests if test.examples]


def modules_with_examples() -> dict[str, Path]:
    """Every file of the package with `>>>` in it, by the name of its module."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules_with_examples()


def skip_without_optional_packages(module: str, tests: list[doctest.DocTest]) -> None:
    """Skips where the module, or one of its examples, imports a package that is not installed."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "numerate":
            raise
        pytest.skip(f"needs {error.name}")
    for example in (example for test in tests for example in test.examples):
        for package in re.findall(r"^(?:from|import) (\w+)", example.source, re.MULTILINE):
            if find_spec(package) is None:
                pytest.skip(f"an example needs {package}")


def test_every_example_stands_in_a_docstring() -> None:
    assert len(MODULES) > 100
    for module, path in MODULES.items():
        shown = re.findall(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert sum(len(test.examples) for test in examples_of(path, module)) == len(shown), module


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_give_what_they_show(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = examples_of(MODULES[module], module)
    skip_without_optional_packages(module, tests)
    monkeypatch.chdir(tmp_path)
    output: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    for test in tests:
        test.globs = dict(vars(import_module(module)))
        runner.run(test, out=output.append)
    assert not output, "".join(output)
    assert list(tmp_path.iterdir()) == [], "an example leaves no files behind"

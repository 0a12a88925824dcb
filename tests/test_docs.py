"""Promises of the pages: what they show runs as it stands there, and every command line in them is understood."""

import ast
import importlib
import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import numerate
from cases import case
from hugging_face import save_model
from newcomers import forget_parts_of_users
from numerate import catalogue
from numerate.catalogue import is_recipe
from numerate.cli import main, parse
from numerate.commands.show import find_parts
from numerate.commands.studies import load_study
from numerate.commands.table import COMMANDS
from numerate.config import override
from numerate.recipes.naming import load_recipe
from numerate.records.kinds import EVALUATION
from numerate.results.figures import FIGURES
from numerate.results.rows import COLUMNS
from numerate.runs.space import Space
from numerate.text.data.datasets import DATASETS as DATASETS
from results_records import done, recipe, sums
from run_records import Studies

torch.set_num_threads(1)

TOP = Path(__file__).parents[1]
PAGES = sorted([*TOP.glob("*.md"), *TOP.glob("docs/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


BEFORE = re.compile(r"(?:\w+=\S+ )*(?:(?:torchrun|python3?|srun|docker run) .*)?(?:-m )?numerate(?::\w+)? ")
"""What may stand before the words of a command."""


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def examples() -> dict[str, str]:
    """The whole files in docs/adding.md, by the name in their first line."""
    found = {}
    for text in blocks(TOP / "docs" / "adding.md", "python"):
        name = re.match(r"# (\w+\.py)\n", text)
        assert name is not None, f"an example says its name in its first line: {text[:60]}"
        found[name[1]] = text
    return found


def command_lines(text: str) -> list[str]:
    """Every `numerate ...` that a text shows, also behind torchrun or python -m, and with its continuation lines."""
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"\s{2,}(#.*|\(.*\))$", "", line.strip().removeprefix("$ "))
        begun = BEFORE.match(f"{line} ")
        if begun is not None:
            lines.append(f"{line} "[begun.end() :].strip())
    return lines


def shown(page: Path) -> list[str]:
    """Every command line that a page shows."""
    text = page.read_text(encoding="utf-8")
    found = [line for kind, block in BLOCK.findall(text) if kind != "python" for line in command_lines(block)]
    for inline in re.findall(r"`(numerate [^`\n]+)`", BLOCK.sub("", text)):
        found += command_lines(inline)
    return [line for line in dict.fromkeys(found) if line == "list" or (" " in line and line not in COMMANDS)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the example files of docs/adding.md in it."""
    for name, text in examples().items():
        (tmp_path / name).write_text(text)
    (tmp_path / "my.py").write_text(examples()["my_task.py"])  # what the pages call a file of one's own
    scale = next(page for page in PAGES if page.stem == "scale").read_text()
    (tmp_path / "widths.yaml").write_text(scale.partition("```yaml\n")[2].partition("```")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NUMERATE_RUNS", raising=False)
    forget_parts_of_users(monkeypatch)
    return tmp_path


def test_the_pages_show_commands() -> None:
    lines = [line for page in PAGES for line in shown(page)]
    assert len(lines) > 40
    assert {line.split()[0] for line in lines} >= {name.split()[0] for name in COMMANDS}


@pytest.mark.parametrize("page", [page for page in PAGES if shown(page)], ids=lambda page: page.stem)
def test_the_command_lines_of_a_page_are_understood(page: Path, folder: Path) -> None:
    for line in shown(page):
        with case(line):
            assert_understood(line)


def test_the_examples_of_help_are_understood(folder: Path) -> None:
    for command in COMMANDS.values():
        for line in command_lines(command.examples):
            with case(line):
                assert_understood(line)


def assert_understood(line: str) -> None:
    if any(word in f" {line}" for word in (" RECIPE", " COMMAND", " RUN", " STUDY", " KIND", " NAME")):
        return  # a placeholder stands in it
    if line == "train repeat_mean":
        return  # the recipe of examples/plugin, which tests/test_plugin.py installs
    call = parse(shlex.split(re.sub(r"\bseeds=\d+\b", "seeds=3", line)))  # each seed is a recipe of its own
    name, settings = next(iter(call.arguments), ""), call.values.get("settings", [])
    if name.startswith("hf:"):  # a tiny model stands for that of the page
        model = Path("tiny_model")
        assert load_study(f"hf:{model if model.exists() else save_model(model)}", settings).recipes
    elif call.command == "show" and not is_recipe(name):
        assert list(find_parts(name))
        assert settings == [], "a part"
    elif call.command in ("train", "run", "show"):
        assert load_study(name, settings).recipes  # every override is applied to every recipe
    elif call.command == "list" and name != "runs":
        assert main(["list", *call.arguments]) == 0
    elif call.command == "sample" and not is_recipe(name):
        catalogue.get_part("Task", name)
    elif call.command == "search":
        assert Space.parse(load_recipe(name), settings).fields
    elif call.command == "plot":
        assert name in FIGURES
    elif call.command == "data fetch":
        assert {*call.arguments} <= {*DATASETS}


KINDS = {
    "my_module.py": ("models", "TinyGRU"),
    "my_function_loss.py": ("losses", "poly"),
    "my_task.py": ("tasks", "Backwards"),
    "my_position_ids.py": ("position-ids", "DigitsBefore"),
    "my_bias.py": ("positions", "DistanceBias"),
    "my_rotation.py": ("positions", "LearnedRotary"),
    "my_mixer.py": ("mixers", "LinearAttention"),
    "my_loss.py": ("losses", "Focal"),
    "my_verifier.py": ("evaluation-kinds", "Verified"),
    "my_column.py": ("evaluation-kinds", "AnswerLengths"),
}


def test_every_example_of_a_part_is_tried_here() -> None:
    assert set(examples()) == {*KINDS, "my_data.py", "my_recipe.py", "my_figure.py", "by_longest.py"}


@pytest.mark.parametrize(("name", "kind", "part"), [(name, *found) for name, found in KINDS.items()], ids=KINDS)
def test_a_part_of_ones_own_is_listed_with_its_first_line(
    name: str, kind: str, part: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", kind, "--parts", name]) == 0
    meaning = re.search(rf'(?:class|def) {part}\(.*?"""(.*?)"""', examples()[name], re.DOTALL)
    assert meaning is not None
    assert any(line.split() == [part, *meaning[1].split()] for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("name", [*KINDS, "my_data.py"])
@pytest.mark.slow
def test_the_commands_beside_an_example_train_with_it(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands as they stand on the page, at the size of `preset=debug`."""
    page = (TOP / "docs" / "adding.md").read_text(encoding="utf-8")
    after = page.partition(examples()[name])[2]
    told = re.search(r"```sh\n(.*?)```", after, re.DOTALL)
    assert told is not None
    lines = [shlex.split(line) for line in command_lines(told[1])]
    assert any(words[0] == "train" for words in lines)
    for words in lines:
        short = {"train": ["preset=debug"], "evaluate": ["count=4"]}.get(words[0], [])
        status = main([*words, *short])
        assert status == 0, capsys.readouterr().err
    trained = list(folder.glob("runs/*/*/recipe.yaml"))
    part = "QuestionFiles" if name == "my_data.py" else f"{name}:{KINDS[name][1]}"
    assert any(f"kind: {part}" in head.read_text() for head in trained) or name in ("my_verifier.py", "my_column.py")
    if name == "my_column.py":
        assert "right length: answers as long as the correct one" in capsys.readouterr().out
        cells = numerate.cells(trained[0].parent)
        assert "right_length, %" in numerate.load(trained[0].parent).report().read_text()
        assert cells["score.right_length"].between(0, 1).all()
        assert set(numerate.summary(cells, by=["seed"], metric="score.right_length")["seeds"]) == {1}


def test_the_figure_and_the_table_on_the_page_are_made_of_the_cells_of_a_study(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Studies(folder / "runs")([(recipe(seed=i), done(cells=sums(lambda n: 1 / n))) for i in (0, 1)], "quickstart")
    for name in ("my_figure.py", "by_longest.py"):
        assert len(examples()[name].splitlines()) <= 30
        runpy.run_path(name, run_name="__main__")
    assert Path("near_and_far.pdf").read_bytes().startswith(b"%PDF")
    assert "longest" in capsys.readouterr().out


def test_the_page_of_runs_has_every_column_of_the_table_of_cells_and_every_entry_of_a_line_once() -> None:
    rows = re.findall(r"^\| (`.+)\|$", (TOP / "docs" / "runs.md").read_text(encoding="utf-8"), re.MULTILINE)
    table = [re.split(r" (?<!\\)\| ", row) for row in rows if row.count(" | ") >= 3]
    columns = [name for row in table for name in re.findall("`([^`]+)`", row[0])]
    examples_of_names = {"model.hidden_size", "first_digits", "score.NAME"}
    assert sorted(columns) == sorted({*COLUMNS} | examples_of_names)
    assert isinstance(EVALUATION.kinds, Mapping)
    fields = {field for kind in EVALUATION.kinds.values() for field in kind.__struct_fields__}
    entries = [name for row in table for name in re.findall("`([^`]+)`", row[3]) if name in fields]
    assert sorted(entries) == sorted(fields)


def test_recipes_of_ones_own_are_named_by_file_and_function(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "my_recipe.py:lstm"]) == 0
    assert "LSTM" in capsys.readouterr().out
    wider = numerate.recipe("my_recipe.py:wider", "model.backbone.num_layers=4")
    assert (wider.model.hidden_size, wider.model.backbone.num_layers) == (256, 4)  # type: ignore[attr-defined]
    assert override(
        wider, ["model.hidden_size=128", "model.backbone.num_layers=2", "title=addition_abacus"]
    ) == numerate.recipe("addition_abacus")


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ("model.mixer=LSTM seeds=2", "addition_abacus-LSTM"),
        ("model.mixer=LSTM objective.loss=my_loss.py:Focal", "addition_abacus-LSTM-Focal"),
        ("model.mixer=LSTM title=addition_abacus", "addition_abacus"),
        ("model.mixer=LSTM,GRU", "addition_abacus"),
    ],
)
def test_another_mixer_and_a_part_of_ones_own_are_in_the_title(settings: str, title: str, folder: Path) -> None:
    assert {one.title for one in load_study("addition_abacus", settings.split()).recipes} == {title}


SHORTER = {
    '"training.steps=3000"': '"training.steps=3", "training.batch_size=8", "evaluation.validation_examples=8"',
    '"1:8"': '"1:2"',
}
"""What makes the example of the README a matter of seconds."""


@pytest.mark.slow
def test_the_example_in_the_readme_runs(tmp_path: Path) -> None:
    (code,) = blocks(TOP / "README.md", "python")
    for long, short in SHORTER.items():
        assert code.count(long) == 1, long
        code = code.replace(long, short)
    source = Path(numerate.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "NUMERATE_RUNS": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "in distribution" in done.stdout
    assert list(tmp_path.glob("runs/addition_abacus/*/report.html"))


def test_every_picture_of_the_pages_is_made_by_a_command_on_them() -> None:
    lines = [line for page in PAGES for line in shown(page)]
    for picture in TOP.glob("docs/*.png"):
        assert [line for line in lines if line.startswith("plot ") and line.endswith(f"out=docs/{picture.name}")]


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_page_of_the_package_index_has_no_links_that_lead_nowhere() -> None:
    tool = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    text = (TOP / "README.md").read_text(encoding="utf-8")
    for change in tool["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    assert re.findall(r"\]\((?!https?://)[^)]*\)", text) == []
    assert "what stays the same (`docs/stability.md`)" in text


def architecture() -> str:
    return (TOP / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_tree_in_the_architecture_page_names_every_folder_and_no_file_that_is_not_there() -> None:
    package = Path(numerate.__file__).parent
    tree = architecture().partition("src/numerate/\n")[2].partition("\n```")[0]
    entries = dict(re.findall(r"^  (\S+) +((?:.|\n {3,})+)", tree, re.MULTILINE))
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert set(entries) == folders | {path.name for path in package.glob("*.py") if path.stem[:2] != "__"}
    files = [package / name / file for name, text in entries.items() for file in re.findall(r"\w+\.py", text)]
    assert len(files) > 20
    assert [file for file in files if not file.exists()] == []


def signatures() -> list[tuple[str, ast.FunctionDef]]:
    """Every method in the sketch of the abstractions, with its class's name."""
    code = blocks(TOP / "docs" / "architecture.md", "python")
    classes = [node for text in code for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return [(one.name, method) for one in classes for method in one.body if isinstance(method, ast.FunctionDef)]


HOMES = (
    "batch",
    "tasks.task",
    "tokenizers.number_formats",
    "tokenizers.tokenizer",
    "tokenizers.layout",
    "losses.loss",
    "positions.position_ids",
    "positions.position",
    "mixers.mixer",
    "models.backbone",
    "training.objective",
    "runs.engines.engine",
    "evaluation.kinds.kind",
)
"""Where the abstractions stand."""


def test_the_signatures_in_the_architecture_page_are_those_in_the_code() -> None:
    modules = [importlib.import_module(f"numerate.{home}") for home in HOMES]
    assert len(signatures()) > 20
    for owner, method in signatures():
        found = next(vars(module)[owner] for module in modules if owner in vars(module))
        there = vars(found)[method.name]
        real = inspect.signature(inspect.unwrap(there.__func__ if isinstance(there, classmethod) else there))
        told = [argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)]
        told += [argument.arg for argument in (method.args.vararg, method.args.kwarg) if argument is not None]
        assert told == list(real.parameters), f"{owner}.{method.name}"

"""Galleries of tasks and of recipes, from the catalogue."""

import re
from pathlib import Path
from typing import Any

from numerate import catalogue
from numerate.errors import UserError
from numerate.recipes.papers import PAPERS
from numerate.recipes.study import Study
from numerate.tasks.plain import format_question
from numerate.tasks.task import Task

MAX_SAMPLE = 64
"""The number of characters of a question or an answer that are shown."""

WIDE = "---\nhide: [navigation]\n---\n\n"
"""What stands above a page of wide tables."""

RESULTS = Path(__file__).parents[1] / "results.md"


def pages() -> dict[str, str]:
    return {"gallery/tasks.md": tasks(), "gallery/recipes.md": recipes()}


# Tasks ----------------------------------------------------------------------------------------------------------------


def tasks() -> str:
    names, presets = catalogue.parts_by_kind()["Task"], catalogue.presets("Task")
    rows = [[f"`{name}`", catalogue.part_summary("Task", name), *sample(name)] for name in sorted(names)]
    preset_rows = [[f"`{name}`", *sample(name)] for name in presets]
    return f"""{WIDE}# Tasks

The first training example of each task with its default settings, as `numerate sample NAME` prints it; `numerate show
NAME` has the settings. A label belongs to the token at its place; a dot is no label.
[Adding a task](../adding.md#a-task) takes one class.

{table(["task", "what it is", "question", "answer"], rows)}

## Named settings

Tasks of papers, for `task=NAME`.

{table(["task", "question", "answer"], preset_rows)}
"""


def sample(name: str) -> list[str]:
    """Question and answer of the first training example; how to get the files of a task whose files are not there."""
    try:
        task: Task = catalogue.get_part("Task", name)
        return [f"`{shortened(text)}`" for text in format_question(task.examples("train", 0, 0, 1), 0)]
    except UserError as error:
        command = re.search("`numerate data [^`]+`", str(error))
        return [f"from files: {command[0] if command else 'your own'}", ""]


def shortened(text: str) -> str:
    """A text in one line, cut where it is long."""
    text = " ".join(text.splitlines())
    return text if len(text) <= MAX_SAMPLE else f"{text[: MAX_SAMPLE - 4]} ..."


# Recipes --------------------------------------------------------------------------------------------------------------


def recipes() -> str:
    parts = catalogue.parts_by_kind()
    sections, measured = [], results_by_recipe()
    by_paper: dict[str | None, list[list[str]]] = {}
    for name in parts["Recipe"]:
        build: Any = catalogue.get_class("Recipe", name)
        summary, _, notes = build.__doc__.partition("\n\n")
        row = [f"`{name}`", summary, " ".join([*notes.split(), measured.get(name, "")]).strip()]
        by_paper.setdefault(build().paper, []).append(row)
    for paper, rows in sorted(by_paper.items(), key=lambda entry: -len(entry[1])):
        sections.append(f"{heading(paper)}\n\n{table(['recipe', 'what it is', 'cost and result'], rows)}")
    families = [
        [f"`{pattern}`", catalogue.module_summary(module), f"`numerate list recipes {pattern.partition('_')[0]}_`"]
        for pattern, module in catalogue.family_modules("Recipe").items()
    ]
    studies = [[f"`{name}`", catalogue.part_summary("Study", name)] for name in parts["Study"]]
    return "\n\n".join(
        [
            f"{WIDE}# Recipes",
            "`numerate train RECIPE` trains one; `numerate show RECIPE` has its settings, its size and the paper as "
            "BibTeX. Costs are those of the published runs, as far as they are known; a link leads to what was "
            "measured here, with the cost of its command ([results](../results.md)).",
            "## Studies\n\nSeveral recipes with one question, for `numerate run STUDY`.",
            table(["study", "question"], studies),
            *sections,
            "## Families of names\n\nEvery published setting of a paper, by a name that says it.",
            table(["recipes", "what they are", "list"], families),
        ]
    )


def heading(paper: str | None) -> str:
    if paper is None:
        return "## Without a paper"
    fields = dict(re.findall(r"^  (\w+) *= \{(.*?)\},?$", PAPERS[paper], re.MULTILINE | re.DOTALL))
    title, url = " ".join(fields["title"].replace("{", "").replace("}", "").split()), fields.get("url")
    link = f"\n\n{fields['author'].split(',')[0]} et al. ({fields['year']}), <{url}>" if url else ""
    return f"## {title}{link}"


def results_by_recipe() -> dict[str, str]:
    """A link to the section of docs/results.md that is about a recipe, or about a study that has it."""
    found = {}
    parts = catalogue.parts_by_kind()
    for title, name in re.findall(r"^##+ (.*`(\w+)`)$", RESULTS.read_text(encoding="utf-8"), re.MULTILINE):
        if name in parts["Study"]:
            study: Study = catalogue.get_class("Study", name)()  # type: ignore[assignment]
            names = {recipe.title for recipe in study.recipes}
        else:
            names = {name} if name in parts["Recipe"] else set()
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for recipe in names:
            found.setdefault(recipe, f"[Measured: {name}](../results.md#{anchor})")
    return found


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""The API reference: a page for the names of `import numerate`, and one for the interfaces of parts."""

import ast
import importlib
import inspect
import re
from typing import Any

import griffe

import numerate

FOR_OTHER_LIBRARIES = (
    *("NumberTokenLoss", "number_tokens", "AbacusEmbedding"),
    *("from_published", "to_published"),
)
"""The names of `import numerate` that need no recipe."""

INTERFACES = (
    "numerate.tasks.task.Task",
    "numerate.tokenizers.tokenizer.Tokenizer",
    "numerate.tokenizers.number_formats.NumberFormat",
    "numerate.tokenizers.layout.Layout",
    "numerate.positions.position_ids.PositionIds",
    "numerate.positions.position.Position",
    "numerate.positions.position.InputPosition",
    "numerate.positions.position.AttentionBias",
    "numerate.mixers.mixer.Mixer",
    "numerate.mixers.mixer.TokenMixer",
    "numerate.losses.loss.Loss",
    "numerate.losses.loss.LossModule",
    "numerate.evaluation.kinds.kind.EvaluationKind",
    "numerate.evaluation.kinds.answers.AnswerKind",
    "numerate.batch.Model",
    "numerate.batch.ModelSpec",
    "numerate.batch.StepContext",
    "numerate.batch.Tokens",
    "numerate.batch.Batch",
    "numerate.batch.Output",
)


def pages() -> dict[str, str]:
    """The Markdown of the reference, by path; mkdocstrings fills in signatures and docstrings."""
    public = [name for name in numerate.__all__ if not name.startswith("__")]
    runs = {f"numerate.{name}": full_name(name) for name in public if name not in FOR_OTHER_LIBRARIES}
    runs["Results, from Run.evaluate"] = "numerate.runs.results.Results"
    others = {f"numerate.{name}": full_name(name) for name in FOR_OTHER_LIBRARIES}
    interfaces = {name.rpartition(".")[2]: name for name in INTERFACES}
    return {
        "reference/numerate.md": page("Recipes, runs, studies", "The names of `import numerate`.", runs),
        "reference/other-libraries.md": page(
            "For other libraries", "Names of `import numerate` that need neither a recipe nor a run.", others
        ),
        "reference/interfaces.md": page(
            "Interfaces of parts", "What a part derives from: [Adding a part](../adding.md) has examples.", interfaces
        ),
    }


def full_name(name: str) -> str:
    found = getattr(numerate, name)
    return f"{found.__module__}.{found.__qualname__}"


def page(title: str, line: str, names: dict[str, str]) -> str:
    for name in names.values():
        module, _, attribute = name.rpartition(".")
        if not inspect.getdoc(getattr(importlib.import_module(module), attribute)):
            raise LookupError(f"{name} has no docstring")
    entries = [f"::: {name}\n    options:\n      heading: {heading}\n" for heading, name in names.items()]
    return "\n\n".join([f"# {title}", line, *entries])


class Docstrings(griffe.Extension):
    """Gives fields the default and the meaning that `setting(default, "meaning")` declares, and fences `>>>` examples,
    since docstrings are read as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.is_attribute and is_setting(obj.value):
            default, meaning, *_bounds = obj.value.arguments
            obj.value = default
            if isinstance(meaning, str):  # otherwise the name of a constant
                obj.docstring = griffe.Docstring(ast.literal_eval(meaning), parent=obj)
        elif obj.is_function:
            for parameter in obj.parameters:  # of the constructor of a dataclass
                if is_setting(parameter.default):
                    parameter.default = parameter.default.arguments[0]
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^>>> .*?(?=\n\n|\Z)", r"```pycon\n\g<0>\n```", obj.docstring.value, flags=re.MULTILINE | re.DOTALL
            )


def is_setting(value: Any) -> bool:
    return isinstance(value, griffe.ExprCall) and str(value.function) == "setting"

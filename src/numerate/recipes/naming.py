"""Loading recipes and studies by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numerate import catalogue
from numerate.config import add_packaged_part, from_tree, load_user_object, load_yaml, override, to_tree
from numerate.config.differences import flatten_settings
from numerate.errors import UserError, did_you_mean
from numerate.recipes.study import Study
from numerate.records.heads import is_run_header, read_header
from numerate.training.recipe import Recipe


def load_recipe(text: str) -> Recipe:
    """`addition_abacus` (or `addition-abacus`), `my.py:recipe`, the path of a saved `recipe.yaml`, or `hf:` with the
    folder or name of a Hugging Face model.

    Raises `UserError` for anything else, also for a study.
    """
    loaded = load_recipe_or_study(text)
    if isinstance(loaded, Recipe):
        return loaded
    if isinstance(loaded, Study):
        raise UserError(f"{text} is a study of several recipes; `numerate run {text}` trains, evaluates and reports it")
    raise UserError(f"{text}: must be a Recipe, not {type(loaded).__name__}")


def load_recipe_or_study(text: str) -> Any:
    """A recipe or a study by its name; see `load_recipe`. Raises `UserError` with the most similar name."""
    if text.startswith("hf:"):
        from numerate.recipes.hugging_face import hugging_face_recipe

        return hugging_face_recipe(text.removeprefix("hf:"))
    if text.endswith((".yaml", ".yml")):
        head = read_header(Path(text)) if is_run_header(Path(text)) else load_yaml(text)
        if isinstance(head, Mapping) and "recipes" in head:
            return _study_from_tree(head, text)
        tree = head.get("recipe", head) if isinstance(head, Mapping) else head
        return from_tree(tree, text, expected_class=Recipe)
    if ":" in text and text.rpartition(":")[0].endswith(".py"):
        user_part = load_user_object(text)
        result = user_part() if callable(user_part) and not isinstance(user_part, Recipe) else user_part
        return _with_title(result, text.rpartition("/")[2].replace(".py:", "-"))
    name = text.replace("-", "_")
    add_packaged_part(name)
    kinds = catalogue.parts_by_kind()
    for kind in ("Recipe", "Study"):
        if name in kinds.get(kind, {}):
            factory: Callable[[], Any] = catalogue.get_class(kind, name)
            return _with_title(factory(), name)
        if (row := catalogue.family_row(kind, name)) is not None:
            return row.build(name)
    if text.endswith(".py"):
        raise UserError(f"{text}: must be a recipe in this file, {text}:NAME, where NAME is a Recipe or a function")
    if part_kinds := [kind for kind, parts in kinds.items() if name in parts]:
        raise UserError(f"{text} is a {part_kinds[0]}, not a recipe; `numerate show {text}` says how a recipe uses it")
    known = [*kinds.get("Recipe", {}), *kinds.get("Study", {}), *catalogue.family_names("Recipe")]
    raise UserError(
        f"no recipe or study is named {text!r}; `numerate list` shows all of them.{did_you_mean(text, known)}"
    )


def with_settings(base: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with settings. Without `title=` its title names another mixer and parts of the user: `counting-GRU`."""
    recipe = override(base, settings)
    parts, known = (flatten_settings(to_tree(one)) for one in (recipe, base))
    named = (path for path in parts if path == "model.mixer" or f"{path}.source" in parts)
    names = dict.fromkeys(parts[path].rpartition(":")[2] for path in named if parts[path] != known.get(path))
    is_titled = any(text.startswith("title=") for text in settings)
    return recipe if is_titled else replace(recipe, title="-".join([recipe.title, *names]))


def _with_title(value: Any, title: str) -> Any:
    """A recipe without a title of its own with this one; anything else unchanged."""
    return replace(value, title=title) if isinstance(value, Recipe) and value.title == "recipe" else value


def quick_recipes() -> Iterator[tuple[str, Recipe]]:
    """Every recipe by its name, except the few that are slow to build."""
    for name in catalogue.parts_by_kind()["Recipe"]:
        yield name, load_recipe(name)
    for name, row in catalogue.family_rows("Recipe").items():
        if not row.is_slow_to_build:
            yield name, row.build(name)


def _study_from_tree(tree: Mapping[str, Any], path: str) -> Study:
    """The study in a YAML file; see "Studies in YAML" in docs/scale.md. Raises `UserError` for anything else in it."""
    types = {"title": str, "question": str, "recipes": list, "sweep": list}
    for name, value in tree.items():
        if name not in types:
            raise UserError(f"{path}: {name}: a study has no such entry.{did_you_mean(str(name), types)}")
        if not isinstance(value, types[name]):
            raise UserError(f"{path}: {name}: must be a {'text' if types[name] is str else 'list'}, not {value!r}")
    recipes: list[Recipe] = []
    labels: dict[str, str] = {}
    for i, entry in enumerate(tree["recipes"]):
        where = f"{path}: recipes.{i}"
        named = entry if isinstance(entry, Mapping) else {"recipe": entry}
        if "kind" in named:
            named = {"recipe": named}
        settings, base = named.get("settings", []), named.get("recipe")
        if named.keys() - {"recipe", "settings", "label"} or not isinstance(base, str | Mapping):
            raise UserError(
                f"{where}: must be a name of a recipe, or have a recipe, settings and a label, not {entry!r}"
            )
        if not isinstance(settings, list) or not all(isinstance(one, str) for one in settings):
            raise UserError(f"{where}.settings: must be a list of settings such as model.hidden_size=64")
        recipe = load_recipe(base) if isinstance(base, str) else from_tree(base, where, expected_class=Recipe)
        recipes.append(with_settings(recipe, settings))
        recipe_title = recipes[-1].title
        if "label" in named and labels.setdefault(recipe_title, str(named["label"])) != str(named["label"]):
            raise UserError(f"{where}: another label of {recipe_title}; title= in its settings tells the two apart")
    title = tree.get("title", Path(path).stem)
    return Study(title, tree.get("question", ""), recipes, labels).sweep([str(one) for one in tree.get("sweep", [])])

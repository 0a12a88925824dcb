"""Changing a recipe from the command line: `path=value`, and sweeps of several values.

model.hidden_size=64                      a setting; `-` and `_` are one; whole numbers also as 1e6, 64k, 1M
task.digits=1:5                     a span, both ends included; null for nothing; text as it is, or quoted
model.mixer=LSTM                    a variant by its class name, with its own defaults
model.mixer=LSTM(layers=2)          with settings, nested as deep as needed; my.py:Bitter for one's own
model.positions=[Rotary, Learned]   a list; a single item needs no brackets
model.positions.0.base=500          an item by its index, from 0; -1 is the last
model.positions.+=Rotary            one more item
seed=0,1,2   task.digits=range(5,20,5)   seeds=3     several values: the sweep runs their product
"""

import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from itertools import product
from math import prod
from typing import Any, TypeVar, get_origin

from numerate.config.user_parts import kind_of
from numerate.config.values import (
    Draft,
    alternatives,
    as_text,
    built,
    classes_in,
    drafted,
    example,
    fixed_length,
    fold,
    from_text,
    is_spec,
    item_hint,
    setting_name,
    settings_of,
    split,
    type_text,
    under,
)
from numerate.errors import UserError, did_you_mean

R = TypeVar("R")

_RANGE = re.compile(r"range\s*\(([^()]*)\)")
_RATE, _BATCH, _DEPTH = (
    ("optimizer.learning_rate",),
    ("training.batch_size",),
    ("model.backbone.num_layers", "model.num_layers"),
)
_WIDTH, _HEADS, _EPOCHS = ("model.hidden_size",), ("model.mixer.num_heads",), ("training.epochs",)
NAMES_ELSEWHERE = {
    **dict.fromkeys(("lr", "learning_rate", "max_lr"), _RATE),
    **dict.fromkeys(("batch_size", "per_device_train_batch_size", "train_batch_size"), _BATCH),
    "micro_batch_size": ("training.micro_batch_size",),
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum_steps"), ("training.gradient_accumulation_steps",)),
    **dict.fromkeys(("hidden_size", "hidden_dim", "d_model", "n_embd", "embed_dim", "dim"), _WIDTH),
    **dict.fromkeys(("num_layers", "num_hidden_layers", "n_layer", "n_layers", "layers", "depth"), _DEPTH),
    **dict.fromkeys(("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads"), _HEADS),
    **dict.fromkeys(("weight_decay", "wd"), ("optimizer.weight_decay",)),
    **dict.fromkeys(("eps", "adam_epsilon", "epsilon"), ("optimizer.eps",)),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "gradient_clip_val", "clip"), ("optimizer.max_grad_norm",)),
    **dict.fromkeys(("warmup", "warmup_steps", "warmup_iters", "warmup_ratio"), ("schedule.warmup",)),
    **dict.fromkeys(("lr_scheduler", "lr_scheduler_type", "scheduler"), ("schedule",)),
    **dict.fromkeys(("max_steps", "max_iters", "num_steps", "steps", "iterations"), ("training.steps",)),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs", "max_epochs"), _EPOCHS),
    **dict.fromkeys(("eval_steps", "eval_interval"), ("training.evaluate_every",)),
    **dict.fromkeys(("save_steps", "save_interval"), ("training.checkpoint_every",)),
    **dict.fromkeys(("logging_steps", "log_interval"), ("training.log_every",)),
    "label_smoothing": ("objective.loss.label_smoothing",),
    **dict.fromkeys(("tie_word_embeddings", "tie_weights"), ("model.tie_word_embeddings",)),
    **dict.fromkeys(("fp16", "bf16", "dtype", "mixed_precision"), ("training.precision",)),
    **dict.fromkeys(("random_seed", "manual_seed"), ("seed",)),
}
"""What PyTorch, Hugging Face and nanoGPT call settings, with the paths of these here."""

ALIASES = dict.fromkeys(("lr", "optimizer.lr"), "optimizer.learning_rate")
"""Short forms of settings."""

MOST_RUNS = 100_000
"""A larger sweep is an error."""


def override(recipe: R, overrides: Sequence[str]) -> R:
    """The recipe with settings changed, in order; built once at the end, so that changes may need each other.

    >>> override(recipe, ["model.mixer=LSTM", "model.mixer.layers=2", "seed=7"])

    Raises `UserError` for a path that leads nowhere, a value of the wrong type, or one that a part refuses.
    """
    if not is_dataclass(recipe) or isinstance(recipe, type):
        raise UserError(f"only a recipe (a frozen dataclass) has settings to change, not {recipe!r}")
    changed: Any = recipe
    for text in overrides:
        path, value = _parted(text)
        segments = path.split(".")
        if segments[0] not in settings_of(type(recipe)):
            _refuse_first(recipe, path, segments)
        try:
            changed = _put(changed, type(recipe), segments, value, "")
        except UserError as error:
            near = _elsewhere(recipe, segments[-1]) if "has no setting" in str(error) else ""
            if not near or "Did you mean" in str(error):
                raise
            raise UserError(f"{error}{near}") from error
    result: R = built(changed, "")
    return result


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The override lists of a sweep: the product of all values given with commas, the last one varying fastest.

    >>> expand(["seed=0,1", "model.mixer=LSTM(layers=1,width=2)"])
    [['seed=0', 'model.mixer=LSTM(layers=1,width=2)'], ['seed=1', 'model.mixer=LSTM(layers=1,width=2)']]

    `range(5,20,5)` is 5,10,15 as in Python; `seeds=3` is `seed=0,1,2`. A comma in brackets or quotes sweeps nothing.
    Raises `UserError` for an empty range, nothing beside a comma, or a setting swept twice.
    """
    paths: list[str] = []
    choices: list[list[str]] = []
    for text in overrides:
        path, value = _parted(text)
        values = _seeds(value) if path == "seeds" else _several(path, value)
        paths.append("seed" if path == "seeds" else path)
        choices.append([f"{paths[-1]}={one}" for one in values])
    for path, values in zip(paths, choices, strict=True):
        if len(values) > 1 and paths.count(path) > 1 and not path.endswith("+"):
            raise UserError(f"{path} is given twice, and once with several values; give all of them in one place")
    if prod(map(len, choices)) > MOST_RUNS:
        raise UserError(f"this is a sweep of {prod(map(len, choices))} runs; at most {MOST_RUNS} are begun at once")
    return [list(chosen) for chosen in product(*choices)]


def describe_settings(recipe: object) -> list[tuple[str, str, str, str]]:
    """Every setting, from the outside in: (path, value, type, one-line meaning), all as text.

    For example `("model.hidden_size", "128", "int", "numbers per place")`. The line of a part names its class only, as
    its settings follow in lines of their own: all lines as overrides, in their order, make the recipe again.
    """
    return list(_described(recipe, ""))


def _parted(text: str) -> tuple[str, str]:
    """Path and value of an override, the path with `_` for `-` and a `.` before a final `+`."""
    path, equals, value = text.partition("=")
    segments = ALIASES.get(path.strip(), path.strip()).split(".")
    if len(segments[-1]) > 1 and segments[-1].endswith("+"):
        segments[-1:] = [segments[-1][:-1], "+"]
    if not equals or not all(segments):
        raise UserError(f"{text!r} changes no setting; write path=value, for example model.hidden_size=64")
    return ".".join(s if re.fullmatch(r"-[0-9]+", s) else fold(s) for s in segments), value


def _put(value: Any, hint: Any, segments: list[str], text: str, path: str) -> Any:
    """The value with what `segments` lead to replaced, opened as drafts and lists along the way."""
    if not segments:
        return from_text(text, hint, path)
    head, rest = segments[0], segments[1:]
    inside = under(path, head)
    lists = _lists(hint)
    value = drafted(value)
    if isinstance(value, list) or (value is None and lists and head == "+"):
        return _put_item(value or [], lists[0] if lists else Any, head, rest, text, path)
    if not isinstance(value, Draft):
        classes = classes_in(hint)
        if value is None and classes:
            raise UserError(f"{inside}: {path} is null; first choose one, as {path}={example(classes[0])}")
        raise UserError(f"{inside}: {path} is {as_text(value)} and has no settings inside")
    if head not in settings_of(value.part) and len(deeper := _deeper(value, head)) == 1:
        raise UserError(
            f"{inside}: {value.part.__name__} has no setting {head!r} of its own. Did you mean "
            f"{'.'.join([under(path, deeper[0]), *rest])!r}?"
        )
    name = setting_name(value.part, head, inside)
    value.given[name] = _put(value.get(name), settings_of(value.part)[name][1], rest, text, under(path, name))
    return value


def _deeper(draft: Draft, name: str) -> list[str]:
    """The paths inside a part where a name is a setting; parts in lists are left out."""
    found = []
    for one in settings_of(draft.part):
        inside = drafted(draft.get(one))
        if isinstance(inside, Draft):
            found += [f"{one}.{name}"] if name in settings_of(inside.part) else []
            found += [f"{one}.{path}" for path in _deeper(inside, name)]
    return found


def _put_item(items: list[Any], hint: Any, head: str, rest: list[str], text: str, path: str) -> list[Any]:
    if head == "+":
        if rest:
            raise UserError(f"{path}.+: an item is added whole, for example {path}.+={example(item_hint(hint, 0))}")
        if fixed_length(hint) is not None:
            raise UserError(f"{path}: takes {fixed_length(hint)} items and no more: {type_text(hint)}")
        return [*items, from_text(text, item_hint(hint, 0), under(path, len(items)))]
    if not re.fullmatch(r"-?[0-9]{1,6}", head) or not -len(items) <= int(head) < len(items):
        there = f"its items are 0 to {len(items) - 1}" if items else "it is empty"
        raise UserError(f"{path}.{head}: there is no such item; {there}, and {path}.+=... adds one")
    at = int(head) % len(items)
    return [*items[:at], _put(items[at], item_hint(hint, at), rest, text, under(path, at)), *items[at + 1 :]]


def _refuse_first(recipe: Any, path: str, segments: list[str]) -> None:
    """Raises `UserError` for an unknown first name, with the deeper path of that name, if unique."""
    known = settings_of(type(recipe))
    near = _elsewhere(recipe, segments[-1]) or did_you_mean(segments[0], known)
    if not near:
        deeper = [line[0] for line in describe_settings(recipe) if line[0].endswith(f".{path}")]
        near = f" Did you mean {deeper[0]!r}?" if len(deeper) == 1 else ""
    name = type(recipe).__name__
    raise UserError(f"{path}: {name} has no setting {segments[0]!r}; it has: {', '.join(known)}.{near}")


def _elsewhere(recipe: Any, name: str) -> str:
    """The setting of a recipe that PyTorch, Hugging Face or nanoGPT call by this name, as a question; else nothing."""
    there = {line[0] for line in describe_settings(recipe)}
    paths = [path for path in NAMES_ELSEWHERE.get(name, ()) if path in there]
    return f" Did you mean {' or '.join(map(repr, paths))}?" if paths else ""


def _several(path: str, text: str) -> list[str]:
    pieces = split(text)
    if pieces is None or (len(pieces) == 1 and not _RANGE.fullmatch(pieces[0])):
        return [text]
    values: list[str] = []
    for piece in pieces:
        found = _RANGE.fullmatch(piece)
        if not piece:
            raise UserError(f"{path}: nothing stands beside a comma in {text!r}")
        values += _range(path, found[1], piece) if found else [piece]
    return values


def _range(path: str, inside: str, piece: str) -> list[str]:
    try:
        numbers = range(*(int(number) for number in inside.split(",")))
        if len(numbers) > MOST_RUNS:
            raise UserError(f"{path}: {piece} holds {len(numbers)} values; at most {MOST_RUNS} are begun at once")
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{path}: {piece} is no range; for example range(5,20,5), which is 5,10,15") from error
    if not numbers:
        raise UserError(f"{path}: {piece} is empty; for example range(5,20,5), which is 5,10,15")
    return [str(number) for number in numbers]


def _seeds(text: str) -> list[str]:
    if not re.fullmatch(r"\s*[0-9]{1,6}\s*", text) or not 0 < int(text) <= MOST_RUNS:
        raise UserError(f"seeds: {text!r} is no number of seeds; seeds=3 is seed=0,1,2")
    return [str(seed) for seed in range(int(text))]


def _described(value: Any, path: str) -> list[tuple[str, str, str, str]]:
    lines = []
    for name, (field, hint) in settings_of(type(value)).items():
        lines += _line(getattr(value, name), hint, under(path, name), field.metadata.get("help", ""))
    return lines


def _line(value: Any, hint: Any, path: str, help: str) -> list[tuple[str, str, str, str]]:
    if is_spec(value):
        return [(path, kind_of(type(value))[0], type_text(hint), help), *_described(value, path)]
    lines = [(path, as_text(value), type_text(hint), help)]
    lists = _lists(hint)
    if lists and isinstance(value, tuple) and any(map(is_spec, value)):
        for i, item in enumerate(value):
            lines += _line(item, item_hint(lists[0], i), under(path, i), "")
    return lines


def _lists(hint: Any) -> list[Any]:
    return [option for option in alternatives(hint) if get_origin(option) in (tuple, list)]

"""Promises of specs, on every part of every kind: each setting explains itself, and survives saving and overriding."""

import math
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal

import pytest

from numerate import catalogue
from numerate.commands.catalogue import SLOTS
from numerate.config import Span, format_value, identity, override
from numerate.config.common_names import PARTS_BY_COMMON_NAME, PATHS_BY_COMMON_NAME
from numerate.config.overrides import describe_settings
from numerate.config.settings import Bounds, _declared_settings
from numerate.config.values import common_part_hint
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.evaluation.generation_settings import Generation
from numerate.evaluation.sampling import Sampling
from numerate.models.block import FeedForward
from numerate.recipes.papers import BIBTEX_BY_LINK, bibtex_of
from numerate.training.recipe import Recipe, Training
from numerate.training.samples import Samples
from promises import (  # noqa: F401
    test_it_is_a_frozen_dataclass_of_explained_settings,
    test_the_defaults_survive_saving,
    through_a_file,
)

NO_CHOICE = {
    ("Mixture", "weights"),
    ("Arithmetic", "longest_carry_chain"),
    ("DigitIndex", "random_gaps"),
    *(("Training", name) for name in ("batch_size_warmup", "initial_batch_size")),
    *(("InProcess", name) for name in ("workers", "timeout", "memory")),
    *(("Subwords", name) for name in ("question_template", "system_prompt")),
}
"""Settings whose other values hang on another setting, that a part has from its kind and does not allow, or that have a
form of their own."""


def kind_of(part: type) -> str:
    name = part.__name__  # XVal is a loss and a spelling
    return next(
        kind
        for kind, parts in catalogue.parts_by_kind().items()
        if name in parts and catalogue.get_class(kind, name) is part
    )


def others(value: Any, hint: Any) -> list[Any]:
    """Other values that a setting of this type might take."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [one for one in typing.get_args(hint) if one is not type(None)]
        none = [None] if len(rest) < len(typing.get_args(hint)) else []
        return [other for one in rest for other in others(value, one)] + none
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        if Ellipsis in inner:
            return [(other,) for other in others(None, inner[0])] + [()]
        return [tuple(0.5 for _ in inner), tuple(2 for _ in inner)]
    if hint is bool:
        return [True, False]
    if hint is int:
        return [3, 7, 0, 64, 2]
    if hint is float:
        return [0.25, 0.75, 3.5]
    if hint is str:
        return ["+", "-", "x", "other"]
    if hint is Span:
        return [Span(2, 3)]
    if isinstance(hint, type) and hint.__name__ in catalogue.parts_by_kind():
        defaults = [part() for part in catalogue.all_classes(hint.__name__)]
        return (
            defaults
            + [
                made
                for one in defaults
                for field in fields(one)[-1:]
                for its_hint in [typing.get_type_hints(type(one))[field.name]]
                if hint not in (its_hint, *typing.get_args(its_hint))  # parts of its own kind
                for made in all_changes(one, field.name)[:1]
            ]
        )
    if is_dataclass(hint):
        return [changed for field in fields(hint) for changed in all_changes(hint(), field.name)]
    return []


def all_changes(spec: Any, name: str) -> list[Any]:
    """This spec with one setting changed, in every way that it does not refuse."""
    hint = typing.get_type_hints(type(spec))[name]
    found = []
    for value in others(getattr(spec, name), hint):
        if value != getattr(spec, name):
            try:
                found.append(replace(spec, **{name: value}))
            except UserError:
                continue
    return found


def test_every_kind_has_its_place_in_a_recipe() -> None:
    assert set(SLOTS) == set(catalogue.parts_by_kind()) - {"Recipe", "Study", "Engine", "EvaluationKind"}


@pytest.mark.where(any_part=lambda part: kind_of(part) not in ("Engine", "EvaluationKind"))  # no part of a recipe
def test_the_class_alone_chooses_it_with_its_defaults(any_part: Any) -> None:
    kind = kind_of(any_part)
    base = Recipe() if kind not in ("Mixer",) else override(Recipe(), ["model.positions=[]"])
    changed = override(base, [SLOTS[kind].format(any_part.__name__)])
    assert any_part() in parts_within(changed)
    assert through_a_file(changed) == changed


def parts_within(spec: Any) -> list[Any]:
    found = [spec] if is_dataclass(spec) else []
    if is_dataclass(spec):
        for field in fields(spec):
            found += parts_within(getattr(spec, field.name))
    elif isinstance(spec, tuple):
        for item in spec:
            found += parts_within(item)
    return found


def test_every_setting_can_be_changed_and_survives_saving_and_overriding(any_part: Any) -> None:
    spec = any_part()
    for field in fields(any_part):
        changes = all_changes(spec, field.name)
        assert changes or (any_part.__name__, field.name) in NO_CHOICE, f"{field.name}: no other value is accepted"
        for changed in changes[:6]:
            assert through_a_file(changed) == changed
            value = getattr(changed, field.name)
            text = f"{field.name}={format_value(value)}"
            assert override(spec, [text]) == changed, text
            assert override(spec, [f"{field.name.replace('_', '-')}={format_value(value)}"]) == changed, text
            same = identity(changed) == identity(spec)
            assert same == (not field.metadata["identity"]), text


@pytest.mark.where(any_part=lambda part: kind_of(part) != "Engine")  # no part of a recipe
def test_a_call_says_the_same_as_single_overrides(any_part: Any) -> None:
    spec, kind = any_part(), kind_of(any_part)
    base = override(Recipe(), ["model.positions=[]"])
    for field in fields(any_part):
        for changed in all_changes(spec, field.name)[:1]:
            call = f"{any_part.__name__}({field.name}={format_value(getattr(changed, field.name))})"
            try:
                within = override(base, [SLOTS[kind].format(call)])
            except UserError:
                assert kind == "ModelSpec", call  # parts of a model may exclude each other
                continue
            assert changed in parts_within(within), call


def number_values(bounds: Bounds, step: Callable[[float, float], float]) -> Iterator[tuple[float, bool]]:
    """Numbers at and just outside of each bound, with whether they are allowed."""
    for bound, is_inclusive, inward in (
        (bounds.at_least, True, math.inf),
        (bounds.above, False, math.inf),
        (bounds.at_most, True, -math.inf),
        (bounds.below, False, -math.inf),
    ):
        if bound is not None and math.isfinite(bound):
            yield bound, is_inclusive
            yield (step(bound, -inward), False) if is_inclusive else (step(bound, inward), True)
    if step is math.nextafter:
        yield math.nan, False
        yield from ((value, False) for value in (math.inf, -math.inf) if value not in (bounds.at_least, bounds.at_most))


def next_integer(bound: float, direction: float) -> float:
    return int(bound) + (1 if direction > 0 else -1)


@pytest.mark.parametrize("nested", [Evaluation, FeedForward, Recipe, Samples, Sampling, Training])
def test_settings_of_a_nested_spec_have_their_bounds_and_can_be_changed_too(nested: Any) -> None:
    test_every_declared_bound_and_choice_holds_exactly(nested)
    if nested is not Recipe:  # whose parts have settings that extend a run
        test_every_setting_can_be_changed_and_survives_saving_and_overriding(nested)


def test_every_declared_bound_and_choice_holds_exactly(any_part: Any) -> None:
    hints = typing.get_type_hints(any_part)
    for field in fields(any_part):
        bounds, hint = field.metadata.get("bounds", Bounds()), hints[field.name]
        options = [hint, *typing.get_args(hint)]
        if bounds != Bounds():
            options = [hint, *typing.get_args(hint)]
            step = (
                math.nextafter
                if any(one in (float, tuple[float, ...], tuple[float, float]) for one in options)
                else next_integer
            )
            is_tuple = any(typing.get_origin(one) is tuple for one in options)
            for value in ("text", True, *([1.5] if step is next_integer else [])):
                if type(value) not in options:
                    check(any_part, field.name, value, False)
            for value, is_allowed in number_values(bounds, step):
                check(any_part, field.name, (value, value) if is_tuple else value, is_allowed)
        choices = [
            word
            for one in [hint, *typing.get_args(hint)]
            if typing.get_origin(one) is Literal
            for word in typing.get_args(one)
        ]
        is_of_each_item = typing.get_origin(hint) is tuple
        if is_of_each_item:
            choices = [word for word in typing.get_args(typing.get_args(hint)[0]) if isinstance(word, str)]
        if choices and str not in typing.get_args(hint):
            for choice in ["no such choice", *choices]:
                value = (choice,) if is_of_each_item else choice
                check(any_part, field.name, value, choice != "no such choice", choice)


def check(part: Any, name: str, value: Any, is_allowed: bool, named: Any = None) -> None:
    """A part with this value of a setting is refused with a declared bound or choice of it, or not; the error names the
    value, or the item of it that is wrong."""
    named = value if named is None else named
    (declared,) = (one for one in _declared_settings(part) if one.name == name)
    problem, error = declared.find_problem(value), ""
    try:
        replace(part(), **{name: value})
    except UserError as found:  # a value that is allowed by itself may conflict with other settings
        error = str(found)
    assert (problem is None) == is_allowed, (name, value, problem)
    assert (error == f"{name}: {problem}") != is_allowed, (name, value, error)
    assert is_allowed or repr(named) in error, (name, value, error)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("learning_rate", "optimizer.learning_rate"),
        ("per-device-train-batch-size", "training.batch_size"),
        ("model.n_embd", "model.hidden_size"),
        ("num_train_epochs", "training.epochs"),
        ("report_to", "trackers=wandb"),
        ("task.op", "task.operator"),
        ("shots", "evaluation.generation.num_fewshot"),
    ],
)
def test_a_word_of_pytorch_or_hugging_face_is_answered_with_the_setting(word: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"has no setting .* Did you mean '{re.escape(meant)}'\?"):
        override(Recipe(evaluation=Evaluation(generation=Generation())), [f"{word}=1"])


def test_every_setting_that_such_a_word_names_is_there() -> None:
    recipes = (Recipe(), override(Recipe(), ["model=T5", "evaluation.generation=Generation"]))
    known = {line[0] for recipe in recipes for line in describe_settings(recipe)}
    named = {path.partition("=")[0] for paths in PATHS_BY_COMMON_NAME.values() for path in paths}
    assert named <= known | {"model.num_layers"}


def test_every_part_that_a_name_of_a_paper_means_is_there() -> None:
    kinds = {"Loss": "ntl", "Position": "rope", "Mixer": "mha", "ModelSpec": "gpt", "Task": "addition"}
    for kind, name in kinds.items():
        assert common_part_hint(name, catalogue.parts_by_kind()[kind])
    assert "'QuestionFiles(train_file=a/b.jsonl)'" in common_part_hint("a/b.jsonl", catalogue.parts_by_kind()["Task"])
    known = {name for parts in catalogue.parts_by_kind().values() for name in parts}
    meant = {text.partition("(")[0] for texts in PARTS_BY_COMMON_NAME.values() for text in texts}
    assert meant <= known | {"model.positions=[]"}


def test_every_paper_that_it_links_to_has_bibtex(any_part: Any) -> None:
    paper = r"https?://(?:arxiv\.org|doi\.org|aclanthology\.org|proceedings\.mlr\.press)/[^\s,;)\"]+"
    links = {link.rstrip(".:") for link in re.findall(paper, any_part.__doc__)}
    assert links <= BIBTEX_BY_LINK.keys()
    assert len(bibtex_of(any_part.__doc__)) == len(links)

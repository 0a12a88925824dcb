"""Promises of settings, of recipes on disk, and of their identity."""

import re
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numerate import catalogue
from numerate.config import Span, Spec, from_tree, identity, load_yaml, parse_yaml, setting, to_tree, yaml_text
from numerate.errors import UserError


class Blend(ABC):
    @abstractmethod
    def blend(self) -> int: ...


@dataclass(frozen=True)
class Soft(Blend):
    heads: int = setting(4, "how many heads")
    scale: float | None = setting(None, "what scores are multiplied with")

    def blend(self) -> int:
        return self.heads

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise UserError(f"heads: {self.heads} is too few; at least 1")


@dataclass(frozen=True)
class Hard(Blend):
    layers: tuple[int, ...] = setting((1, 2), "sizes")

    def blend(self) -> int:
        return len(self.layers)


@dataclass(frozen=True)
class Maker:
    width: int = setting(128, "numbers per place")
    blend: Blend = setting(Soft(), "how places are blended")
    others: tuple[Blend, ...] = setting((), "more of them")


@dataclass(frozen=True)
class Whole:
    seed: int = setting(0, "what everything random follows from")
    maker: Maker = setting(Maker(), "what answers")
    digits: int | Span = setting(Span(1, 20), "digits of both numbers")
    either: Span | str = setting("1:5", "a span, or any text")
    order: Literal["normal", "reversed"] = setting("normal", "which digit comes first")
    rate: float = setting(1e-3, "the learning rate")
    note: str = setting("", "any text")
    label: str | int | None = setting(None, "a name, a number, or none")
    steps: int = setting(1000, "how long to train", in_run_id=False)


@pytest.fixture(autouse=True)
def catalogue_of_made_up_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "PART_PACKAGES", ())
    monkeypatch.setattr(catalogue, "_user_classes", {})
    for kind, part in (("Blend", Soft), ("Blend", Hard), ("Maker", Maker), ("Whole", Whole)):
        catalogue.register(kind, part)


def test_a_span_holds_both_its_ends() -> None:
    assert list(Span(2, 4)) == [2, 3, 4]
    assert (2 in Span(2, 4), 4 in Span(2, 4), 5 in Span(2, 4), np.int64(3) in Span(2, 4)) == (True, True, False, True)
    assert (len(Span(2, 4)), str(Span(2, 4))) == (3, "2:4")
    assert Span.from_value(3) == Span.parse("3") == Span(3, 3)
    assert Span.from_value(Span(1, 2)) == Span.parse("1:2") == Span.parse(str(Span(1, 2)))
    assert type(Span(np.int64(1), np.int64(2)).low) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Span(5, 1), "1:5"),
        (lambda: Span.parse("5:1"), "1:5"),
        (lambda: Span.parse("1-5"), "1:5"),
        (lambda: Span(1.5, 2), r"low: must be an integer, not 1\.5"),  # type: ignore[arg-type]
        (lambda: Span(1, True), "high: must be an integer, not True"),
    ],
)
def test_a_span_that_holds_nothing_or_no_whole_numbers_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_a_tree_names_the_class_at_every_node_and_holds_plain_data_only() -> None:
    recipe = Whole(maker=Maker(blend=Hard((3,)), others=(Soft(),)), digits=Span(1, 5), either=Span(1, 5))
    assert to_tree(recipe) == {
        "kind": "Whole",
        "seed": 0,
        "maker": {
            "kind": "Maker",
            "width": 128,
            "blend": {"kind": "Hard", "layers": [3]},
            "others": [{"kind": "Soft", "heads": 4, "scale": None}],
        },
        "digits": "1:5",
        "either": {"kind": "Span", "low": 1, "high": 5},
        "order": "normal",
        "rate": 0.001,
        "note": "",
        "label": None,
        "steps": 1000,
    }


def test_what_no_recipe_may_hold_is_refused_with_its_path() -> None:
    with pytest.raises(UserError, match=r"maker\.blend: must be a spec \(a frozen dataclass\), not <object object "):
        to_tree(Whole(maker=Maker(blend=object())))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sede": 1}, "r.yaml: sede: Whole has no setting 'sede'; it has: seed, .* Did you mean 'seed'?"),
        ({"seed": "four"}, "r.yaml: seed: must be an integer, not 'four'; for example seed=4"),
        ({"seed": True}, "r.yaml: seed: must be an integer, not true"),
        ({"seed": 1.5}, "r.yaml: seed: must be an integer, not 1.5"),
        ({"seed": None}, "r.yaml: seed: must be an integer, not null"),
        ({"note": 7}, "r.yaml: note: must be a text, not 7"),
        ({"order": "backwards"}, "r.yaml: order: must be normal or reversed, not 'backwards'"),
        ({"digits": "5:1"}, "r.yaml: digits: a span must go from low to high, both included: 1:5, not 5:1"),
        (
            {"either": {"kind": "Span", "low": 2, "high": 1}},
            "r.yaml: either: a span must go from low to high, .*: 1:2, not 2:1",
        ),
        ({"maker": {"blend": {"kind": "Soft"}}, "kind": "Hole"}, "r.yaml: unknown part 'Hole'; .*"),
        ({"maker": {"blend": {"heads": 1}}}, "r.yaml: maker.blend: kind is missing; it must be one of: Hard, Soft"),
        (
            {"maker": {"blend": {"kind": "Sotf"}}},
            "r.yaml: maker.blend: no Blend is named 'Sotf'; there are: Hard, Soft. Did you mean 'Soft'?",
        ),
        ({"maker": {"blend": {"kind": "Soft", "heads": 0}}}, "r.yaml: maker.blend.heads: 0 is too few; at least 1"),
        ({"maker": {"others": [{"kind": "Soft"}, 3]}}, "r.yaml: maker.others.1: must be a Blend, not 3"),
        (
            {"maker": {"blend": {"kind": "Hard", "layers": {"a": 1}}}},
            "r.yaml: maker.blend.layers: must be a list of integers, not .*",
        ),
        ({"maker": [1]}, r"r.yaml: maker: must be a Maker, not \[1\]"),
        ({"kind": 3}, "r.yaml: a recipe must have a line such as kind: Recipe"),
    ],
)
def test_a_tree_that_is_wrong_is_refused_with_file_and_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        from_tree({"kind": "Whole", **change}, "r.yaml")
    pattern = message if "\\" in message else re.escape(message).replace(r"\.\*", ".*")
    assert re.fullmatch(pattern, str(refused.value)), refused.value


def test_a_tree_by_hand_may_be_short_and_leave_defaults_out() -> None:
    text = "kind: Whole\nseed: 1e3\ndigits: 1:20\nrate: 1\n"
    text += "maker:\n  width: 64k\n  blend: Hard(layers=[5])\n  others: [Soft]\n"
    made = from_tree(parse_yaml(text))
    expected = Maker(width=64_000, blend=Hard((5,)), others=(Soft(),))
    assert made == Whole(seed=1000, digits=Span(1, 20), rate=1.0, maker=expected)
    assert (type(made.seed), type(made.rate)) == (int, float)


def test_a_root_may_be_of_a_declared_class_that_no_catalogue_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = to_tree(Whole())
    monkeypatch.setattr(catalogue, "_user_classes", {"Blend": {"Soft": Soft}})
    assert from_tree(tree, expected_class=Whole) == Whole()


def test_yaml_is_read_without_surprises() -> None:
    text = "a: 1:20\nb: no\nc: 1e6\nd: 2025-01-01\ne: 010\nf: ~\ng: true\nh: ${x}\ni: .5\nj: 1_000\nk: '5'\n"
    assert parse_yaml(text) == {
        "a": "1:20", "b": "no", "c": 1e6, "d": "2025-01-01", "e": 10, "f": None,
        "g": True, "h": "${x}", "i": 0.5, "j": "1_000", "k": "5",
    }  # fmt: skip


def test_what_other_readers_would_misread_is_written_with_quotes() -> None:
    import yaml

    texts = ["1:20", "no", "1e6", "010", "2025-01-01", "null", "5", "~", "=", "<<", "${x}", "???"]
    assert yaml.safe_load(yaml_text(texts)) == parse_yaml(yaml_text(texts)) == texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "f.yaml, line 2: .*'a' is given twice"),
        ("1: a\n1.0: b", "f.yaml, line 2: .*1.0 is given twice"),
        ("a: [1", r"f.yaml, line \d: .*"),
        ("a: &x 1\nb: *x", "f.yaml, line 2: .*aliases"),
        ("a: !!python/object/apply:os.system ['true']", "f.yaml, line 1: .*could not determine a constructor"),
        ("[" * 5000, "f.yaml, line 1: .* nested too deeply"),
        *((mark * 200_000, "f.yaml, line 1: .* nested too deeply") for mark in ("[", "{a: ", "- ", "? ")),
        ("".join(f"{' ' * depth}a:\n" for depth in range(200)), "f.yaml, line 101: .* nested too deeply"),
        ("a: " + "9" * 5000, "f.yaml.*"),
        ("a: \x00", "f.yaml.*"),
    ],
)
def test_yaml_that_cannot_be_read_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_yaml(text, "f.yaml")
    assert re.match(message, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: cannot be read: No such file"):
        load_yaml(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match="must be a UTF-8 text file"):
        load_yaml(tmp_path / "bytes.yaml")


quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
whole = st.integers(-(10**20), 10**20)
floats = st.floats(allow_nan=False)
spans = st.tuples(st.integers(-99, 99), st.integers(0, 99)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))
tricky = st.sampled_from(
    ["null", "1", "1:20", "no", "1e6", "${a}", "???", "Soft", "'a'", "\x85", "\u2028", "a\r\nb", " "]
)
texts = st.text(max_size=12) | tricky
blends = st.builds(Soft, heads=st.integers(1, 9), scale=st.none() | floats) | st.builds(
    Hard, layers=st.lists(whole, max_size=3).map(tuple)
)
wholes = st.builds(
    Whole,
    seed=whole,
    maker=st.builds(Maker, width=whole, blend=blends, others=st.lists(blends, max_size=2).map(tuple)),
    digits=whole | spans,
    either=spans | texts,
    order=st.sampled_from(["normal", "reversed"]),
    rate=floats,
    note=texts,
    label=st.none() | texts | whole,
)


@quick
@given(wholes)
def test_any_recipe_survives_saving(recipe: Whole) -> None:
    again = from_tree(parse_yaml(yaml_text(to_tree(recipe))))
    assert again == recipe
    assert to_tree(again) == to_tree(recipe)
    assert identity(again) == identity(recipe)


json_like = st.recursive(
    st.none() | st.booleans() | whole | floats | texts, lambda x: st.lists(x) | st.dictionaries(texts, x)
)


@quick
@given(json_like)
def test_any_plain_data_survives_yaml(data: Any) -> None:
    assert parse_yaml(yaml_text(data)) == data


@quick
@given(st.text(max_size=30) | st.text(alphabet="kind: Whole\n-[]{}&*!|>'\"%@`#,?", max_size=40))
def test_any_text_as_a_recipe_is_either_read_or_refused(text: str) -> None:
    message = ""
    try:
        from_tree(parse_yaml(text))
    except UserError as refused:
        message = str(refused)
    assert len(message.splitlines()) <= 2


def test_identity_is_the_same_for_the_same_experiment_only() -> None:
    same = identity(Whole())
    assert re.fullmatch("[0-9a-f]{12}", same)
    assert identity(Whole(steps=9)) == same, "a larger budget extends a run"
    assert identity(Whole(rate=1)) == identity(Whole(rate=1.0)) != same
    assert identity(Whole(seed=1)) != same
    assert identity(Whole(maker=Maker(blend=Hard()))) != same
    assert identity(Whole(digits=Span(3, 3))) != identity(Whole(digits=3))


def test_importing_it_imports_no_heavy_library() -> None:
    heavy = {"numpy", "torch", "omegaconf", "yaml", "importlib.metadata"}
    code = f"import sys, numerate.config; print(*{heavy} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "\n"


@dataclass(frozen=True)
class Typed(Spec):
    count: int = setting(1, "a number of things", at_most=10**6)
    end: int | None = setting(None, "an integer without bounds")
    scale: float = setting(1.0, "a number without bounds")
    factor: float | Literal["sqrt"] = setting(1.0, "a number or a word", above=0)
    flag: bool = setting(False, "whether it is so")
    label: str | None = setting(None, "a text")
    sizes: int | Span = setting(3, "sizes", at_least=1)
    pair: tuple[float, float] = setting((0.5, 0.5), "two numbers", below=1)
    words: tuple[Literal["a", "b"], ...] = setting((), "choices")
    maker: Maker = setting(Maker(), "a part")
    grid: tuple[tuple[int, ...], ...] = setting((), "lists of integers")


anything: Any = json_like | spans | st.floats() | st.sampled_from(["a", "sqrt", -0.0, 1.0, b"a", Soft(), {1}, 10**400])


@quick
@given(st.sampled_from([*Typed.__dataclass_fields__]), anything | st.lists(anything, max_size=3).map(tuple))
def test_any_value_is_either_refused_by_the_name_of_its_setting_or_can_be_saved(name: str, value: Any) -> None:
    made, message = Typed(), f"{name}: must be"
    try:
        made = Typed(**{name: value})
    except UserError as refused:
        message = str(refused)
    assert message.startswith(f"{name}: must be")
    again = from_tree(parse_yaml(yaml_text(to_tree(made))), expected_class=Typed)
    assert again == made
    assert identity(again) == identity(made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flag": "yes"}, "flag: must be true or false, not 'yes'"),
        ({"flag": 1}, "flag: must be true or false, not 1"),
        ({"count": True}, "count: must be an integer, not True"),
        ({"count": 2.5}, "count: must be an integer, not 2.5"),
        ({"count": 10**20}, f"count: must be at most {10**6}, not {10**20}"),
        ({"end": "7"}, "end: must be an integer or null, not '7'"),
        ({"scale": float("nan")}, "scale: must be finite, not nan"),
        ({"factor": float("inf")}, "factor: must be finite and greater than 0, or sqrt, not inf"),
        ({"factor": "sqr"}, "factor: must be a number or sqrt, not 'sqr'. Did you mean 'sqrt'?"),
        ({"label": 3}, "label: must be a text or null, not 3"),
        ({"pair": (0.5,)}, "pair: must be 2 numbers, not (0.5,)"),
        ({"pair": (0.5, "x")}, "pair: must be a number, not 'x'"),
        ({"pair": (0.5, 1.0)}, "pair: must be less than 1, not (0.5, 1.0)"),
        ({"words": "a"}, "words: must be a list of a or b, not 'a'"),
        ({"words": ("a", "c")}, "words: must be a or b, not 'c'"),
        ({"maker": "Maker"}, "maker: must be a Maker, not 'Maker'"),
        ({"grid": ((1,), (2, "x"))}, "grid: must be an integer, not 'x'"),
    ],
)
def test_a_value_of_another_type_is_refused_in_words(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        Typed(**changes)
    assert str(refused.value) == message


def test_lists_from_python_become_tuples() -> None:
    assert Typed(words=["a"], pair=[0.1, 0.2]) == Typed(words=("a",), pair=(0.1, 0.2))  # type: ignore[arg-type]

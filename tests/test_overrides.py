"""Promises of the override grammar, on a small made-up recipe."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numerate import catalogue
from numerate.config import Span, describe_settings, expand_sweep, format_value, override, setting
from numerate.errors import UserError


class Counting(ABC):
    @abstractmethod
    def count(self) -> int: ...


class Place(ABC):
    @abstractmethod
    def place(self) -> int: ...


class Mixing(ABC):
    @abstractmethod
    def mix(self) -> int: ...


@dataclass(frozen=True)
class Plainly(Counting):
    def count(self) -> int:
        return 0


@dataclass(frozen=True)
class FromOffset(Counting):
    most: int = setting(100, "the largest offset")

    def count(self) -> int:
        return self.most


@dataclass(frozen=True)
class Table(Place):
    numbering: Counting = setting(Plainly(), "which number a place gets")
    size: int = setting(512, "how many places there are")

    def place(self) -> int:
        return self.size


@dataclass(frozen=True)
class Turning(Place):
    base: float = setting(10000.0, "the slowest wavelength")

    def place(self) -> int:
        return 1


@dataclass(frozen=True)
class Heads(Mixing):
    heads: int = setting(4, "how many heads")
    scale: float | None = setting(None, "what scores are multiplied with; null: by the width")

    def mix(self) -> int:
        return self.heads


@dataclass(frozen=True)
class Cells(Mixing):
    layers: int = setting(1, "how many cells stand on each other")
    heads: int = setting(3, "a setting of the same name as another part's")

    def mix(self) -> int:
        return self.layers


@dataclass(frozen=True)
class Net:
    width: int = setting(128, "numbers per place")
    mixer: Mixing = setting(Heads(), "how places exchange information")
    positions: tuple[Place, ...] = setting((Turning(),), "where a place stands")
    memory: Mixing | None = setting(None, "a second mixer")

    def __post_init__(self) -> None:
        if self.width < 1:
            raise UserError(f"width: {self.width} is too small; it is at least 1")
        if isinstance(self.mixer, Heads) and (self.mixer.heads < 1 or self.width % self.mixer.heads):
            raise UserError(f"mixer.heads: {self.mixer.heads} does not divide the width {self.width}")


@dataclass(frozen=True)
class Sums:
    digits: int | Span = setting(Span(1, 20), "digits of both numbers")
    lengths: Literal["cycle", "left-to-right"] = setting("cycle", "how lengths are chosen")
    zero: bool = setting(False, "whether 0 may be a number")


@dataclass(frozen=True)
class Plan:
    seed: int = setting(0, "what everything random follows from")
    task: Sums = setting(Sums(), "the task")
    model: Net = setting(Net(), "what answers")
    rate: float = setting(1e-3, "the highest learning rate")
    batch_size: int = setting(64, "examples per step")
    note: str = setting("", "any text")
    label: str | None = setting(None, "a name, or none")
    limit: int | float | None = setting(None, "a whole or a broken number")
    betas: tuple[float, float] = setting((0.9, 0.95), "two numbers")
    trackers: tuple[str, ...] = setting((), "the trackers")


PARTS: dict[type, tuple[type, ...]] = {Counting: (Plainly, FromOffset), Place: (Table, Turning), Mixing: (Heads, Cells)}


@pytest.fixture(autouse=True)
def catalogue_of_made_up_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "PART_PACKAGES", ())
    monkeypatch.setattr(catalogue, "_user_classes", {})
    for kind, parts in PARTS.items():
        for part in parts:
            catalogue.register(kind.__name__, part)


def changed(*overrides: str) -> Plan:
    return override(Plan(), overrides)


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("batch_size", "128", 128),
        ("batch-size", "1e6", 1_000_000),
        ("batch_size", "64k", 64_000),
        ("batch_size", "1.5M", 1_500_000),
        ("batch_size", "1_000", 1000),
        ("rate", "3", 3.0),
        ("rate", "3e-4", 3e-4),
        ("rate", "inf", float("inf")),
        ("limit", "3", 3),
        ("limit", "3.0", 3.0),
        ("limit", "null", None),
        ("label", "None", None),
        ("label", "'None'", "None"),
        ("note", "null", "null"),
        ("note", "a, b = ${c}: 'd'", "a, b = ${c}: 'd'"),
        ("note", '"quoted"', "quoted"),
        ("note", "", ""),
        ("betas", "(0.8, 1)", (0.8, 1.0)),
        ("trackers", "wandb", ("wandb",)),
        ("trackers", "[wandb, 'a, b',]", ("wandb", "a, b")),
        ("trackers", "[]", ()),
        ("task.digits", "1:20", Span(1, 20)),
        ("task.digits", "Span(1, 20)", Span(1, 20)),
        ("task.digits", "20", 20),
        ("task.lengths", "left_to_right", "left-to-right"),
        ("task.zero", "yes", True),
        ("model.mixer", "Cells", Cells()),
        ("model.mixer", "Cells(layers=2)", Cells(layers=2)),
        ("model.mixer", "Cells(2)", Cells(layers=2)),
        ("model.memory", "Heads( scale = 0.5 )", Heads(scale=0.5)),
        ("model.positions", "[Table(numbering=FromOffset(most=10)), Turning]", (Table(FromOffset(10)), Turning())),
        ("model.positions.0.base", "500", (Turning(500.0),)),
        ("model.positions.-1", "Table", (Table(),)),
        ("model.positions", "none", ()),
        ("model.positions.+", "Table(size=9)", (Turning(), Table(size=9))),
        ("model.positions+", "Table", (Turning(), Table())),
    ],
)
def test_a_value_is_read_by_the_type_of_its_setting(path: str, text: str, value: Any) -> None:
    recipe: Any = changed(f"{path}={text}")
    for name in path.replace("-size", "_size").removesuffix("+").split("."):
        if name.lstrip("-").isdigit() or not name:
            break
        recipe = getattr(recipe, name)
    assert recipe == value
    assert type(recipe) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.width=four", "model.width: must be an integer, not 'four'; for example model.width=4"),
        ("batch_size=2.5", "batch_size: must be an integer, not '2.5'; for example batch_size=4"),
        ("batch_size=0,1", "batch_size: must be an integer, not '0,1'; for example batch_size=4"),
        ("rate=1e999", "rate: must be a number, not '1e999'; for example rate=0.5"),
        ("task.zero=2", "task.zero: must be true or false, not '2'; for example task.zero=true"),
        (
            "task.digits=few",
            "task.digits: must be an integer or a span such as 1:5, not 'few'; for example task.digits=4",
        ),
        ("task.digits=5:1", "task.digits: a span must go from low to high, both included: 1:5, not 5:1"),
        ("task.lengths=cycles", "task.lengths: must be cycle or left-to-right, not 'cycles'. Did you mean 'cycle'?"),
        (
            "model.widht=3",
            "model.widht: Net has no setting 'widht'; it has: width, mixer, positions, memory. Did you mean 'width'?",
        ),
        (
            "model.mixer=Sells",
            "model.mixer: no Mixing is named 'Sells'; there are: Cells, Heads. Did you mean 'Cells'?",
        ),
        ("model.heads=2", "model.heads: Net has no setting 'heads' of its own. Did you mean 'model.mixer.heads'?"),
        ("model.mixer=Cells(2,3,4)", "model.mixer: Cells takes at most 2 settings; '4' is unexpected"),
        ("model.mixer=Cells(2,layers=3)", "model.mixer.layers: given twice"),
        (
            "model.mixer=Cells(layers=2",
            "model.mixer: must be a Mixing, not 'Cells(layers=2'; for example model.mixer=Cells",
        ),
        ("model.mixer=null", "model.mixer: no Mixing is named 'null'; there are: Cells, Heads."),
        ("model.mixer=Table", "model.mixer: no Mixing is named 'Table'; there are: Cells, Heads."),
        ("model.mixer.scale.x=1", "model.mixer.scale.x: model.mixer.scale is null, which has no settings of its own"),
        ("model.memory.heads=1", "model.memory.heads: model.memory is null; first choose one, as model.memory=Cells"),
        (
            "model.positions.1.base=5",
            "model.positions.1: there is no such item; its items are 0 to 0, and model.positions.+=... adds one",
        ),
        (
            "model.positions.+.base=5",
            "model.positions.+: + must be followed by a complete item, for example model.positions.+=Table",
        ),
        ("betas=[1]", "betas: must be 2 numbers, not [1]; for example betas=[0.5, 0.5]"),
        ("betas.+=1", "betas: must be 2 numbers; betas.0=... changes one of them"),
        ("model.mixer.heads=0", "model.mixer.heads: 0 does not divide the width 128"),
        ("model.width=0", "model.width: 0 is too small; it is at least 1"),
        ("model.width", "'model.width': an override must be path=value, for example model.hidden_size=64"),
        ("model..width=3", "'model..width=3': an override must be path=value, for example model.hidden_size=64"),
    ],
)
def test_a_refusal_says_what_where_and_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        changed(text)
    assert str(refused.value) == message


def test_an_unknown_first_name_points_to_the_one_place_where_it_is_a_setting() -> None:
    with pytest.raises(UserError, match=r"Plan has no setting 'width'; it has: seed, .* Did you mean 'model\.width'\?"):
        changed("width=64")


def test_a_variant_starts_from_its_own_defaults_and_may_then_be_changed() -> None:
    assert changed("model.mixer.heads=8", "model.mixer=Cells").model.mixer == Cells(layers=1, heads=3)
    assert changed("model.mixer=Cells", "model.mixer.layers=2").model.mixer == Cells(layers=2)


def test_changes_that_need_each_other_may_come_in_any_order() -> None:
    changes = ["model.mixer.heads=6", "model.width=60"]
    assert changed(*changes) == changed(*reversed(changes))


def test_every_line_of_the_description_reads_back() -> None:
    recipe = changed("model.mixer=Cells(5)", "model.positions=[Table(FromOffset(3)),Turning(2)]", "label='null'")
    lines = describe_settings(recipe)
    assert override(Plan(), [f"{path}={value}" for path, value, _, _ in lines]) == recipe
    assert ("model.positions.0.numbering.most", "3", "an integer", "the largest offset") in lines
    assert ("model.positions.0", "Table", "a Place", "") in lines
    assert ("task.digits", "1:20", "an integer or a span such as 1:5", "digits of both numbers") in lines
    assert ("label", "'null'", "a text or null", "a name, or none") in lines


@pytest.mark.parametrize(
    ("overrides", "sweep"),
    [
        ([], [[]]),
        (["seed=0,1,2"], [["seed=0"], ["seed=1"], ["seed=2"]]),
        (["seeds=3"], [["seed=0"], ["seed=1"], ["seed=2"]]),
        (["task.digits=range(5,20,5)"], [["task.digits=5"], ["task.digits=10"], ["task.digits=15"]]),
        (["seed=range(2), 9"], [["seed=0"], ["seed=1"], ["seed=9"]]),
        (["seed=0,1", "rate=1,2"], [[f"seed={s}", f"rate={r}"] for s in (0, 1) for r in (1, 2)]),
        (["task.digits=1:5,1:10"], [["task.digits=1:5"], ["task.digits=1:10"]]),
        (["betas=[0.9,0.95]"], [["betas=[0.9,0.95]"]]),
        (["model.mixer=Cells(1,2),Heads"], [["model.mixer=Cells(1,2)"], ["model.mixer=Heads"]]),
        (["note='a, b'"], [["note='a, b'"]]),
        (["note=Ann's, Bob's"], [["note=Ann's"], ["note=Bob's"]]),
        (["note=:-), (-:"], [["note=:-), (-:"]]),
        (["batch-size=1", "seed=0"], [["batch_size=1", "seed=0"]]),
    ],
)
def test_a_sweep_is_the_product_of_its_values_in_order(overrides: list[str], sweep: list[list[str]]) -> None:
    assert expand_sweep(overrides) == sweep


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=0,"], "seed: empty value in '0,'"),
        (["seed=range(5,5)"], r"seed: range\(5,5\) is empty; for example range\(5,20,5\), which is 5,10,15"),
        (["seed=range(1,2,0)"], r"seed: range\(1,2,0\) must be a range such as"),
        (["seed=range(a)"], r"seed: range\(a\) must be a range such as"),
        (["seeds=0"], "seeds: must be the number of seeds, 1 to 100000, not '0'; seeds=3 is seed=0,1,2"),
        (["seeds=3", "seed=7"], "seed is given twice, once with several values"),
        (["seed=range(1000)", "rate=range(1000)"], "the sweep has 1000000 runs; it must have at most 100000"),
        (["seed=range(10**9)"], "must be a range such as"),
        (["seed=range(999999999)"], "has 999999999 values; it must have at most 100000"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        expand_sweep(overrides)


quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
numbers = st.floats(allow_nan=False)
whole = st.integers(-(10**20), 10**20)
spans = st.tuples(st.integers(-99, 99), st.integers(0, 99)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))
places = st.builds(Table, numbering=st.one_of(st.builds(Plainly), st.builds(FromOffset, most=whole)), size=whole)
mixers = st.one_of(st.builds(Cells, layers=whole, heads=whole), st.builds(Heads, scale=st.none() | numbers))
nets = st.builds(
    Net,
    mixer=mixers,
    positions=st.lists(places | st.builds(Turning, base=numbers), max_size=3).map(tuple),
    memory=st.none() | mixers,
)
plans = st.builds(
    Plan,
    seed=whole,
    task=st.builds(Sums, digits=whole | spans, lengths=st.sampled_from(["cycle", "left-to-right"]), zero=st.booleans()),
    model=nets,
    rate=numbers,
    note=st.text(max_size=9),
    label=st.none() | st.text(max_size=9) | st.sampled_from(["null", "1", "true", "a'b", "\\", "'", '"']),
    limit=st.none() | whole | numbers,
    betas=st.tuples(numbers, numbers),
    trackers=st.lists(st.text(max_size=5), max_size=3).map(tuple),
)


@quick
@given(plans)
def test_any_recipe_can_be_written_as_overrides(plan: Plan) -> None:
    overrides = [f"{name}={format_value(getattr(plan, name))}" for name in vars(plan)]
    assert override(Plan(), overrides) == plan
    assert expand_sweep(overrides) == [overrides], "what is written as one value is no sweep"
    described = override(Plan(), [f"{path}={value}" for path, value, _, _ in describe_settings(plan)])
    assert described == plan


@quick
@given(
    st.sampled_from(["model.mixer", "model.positions", "task.digits", "rate", "betas", "label", "model.positions.+"]),
    st.text(alphabet="aLCHeTabls()[]'\",=:.-+019kM \\", max_size=14) | st.text(max_size=8),
)
def test_any_text_is_either_read_or_refused_with_its_path(path: str, text: str) -> None:
    message = path
    try:
        changed(f"{path}={text}")
    except UserError as refused:
        message = str(refused)
    assert message.startswith(path.removesuffix(".+"))
    assert "\n" not in message
    runs, message = [[f"{path}="]], path
    try:
        runs = expand_sweep([f"{path}={text}"])
    except UserError as refused:
        message = str(refused)
    assert message.startswith(path)
    assert all(run[0].startswith(f"{path}=") for run in runs)

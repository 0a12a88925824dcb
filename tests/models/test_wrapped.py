"""Any module from ids to logits is a model: trained, resumed, and decoded with or without a cache of its own."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import numerate
from numerate import catalogue
from numerate.batch import StepContext
from numerate.config import from_tree, identity, load_user_parts, override, setting, to_tree
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import evaluate_cell
from numerate.experiments.train import train
from numerate.training.checkpoint import step_folder
from numerate.training.recipe import Recipe
from promises import through_a_file
from small_runs import ADDING, same, weights


@numerate.wrap_model
class TinyGRU(nn.Module):
    """A GRU between embedding and head."""

    def __init__(self, vocab_size: int, hidden_size: int = setting(32, "hidden size", at_least=1)) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.gru(self.embedding(ids))[0])
        return logits


@numerate.wrap_model
def llama(vocab_size: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **sizes))


class WithCache(nn.Module):
    """The same GRU, which keeps its state; its `step` may be wrong on purpose."""

    def __init__(self, vocab_size: int, fault: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 32)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, vocab_size)
        self.fault = fault

    def forward(self, ids: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.gru(self.embedding(ids))[0]))

    def prefill(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        states = self.gru(self.embedding(ids))[0]
        last = states[torch.arange(len(ids)), lengths - 1]
        return self.head(last), last[None].contiguous()

    def step(self, ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        states, state = self.gru(self.embedding(ids[:, None]), state)
        return self.head(states[:, 0]) + self.fault, state


@numerate.wrap_model
def cached_gru(vocab_size: int, fault: float = 0.0) -> nn.Module:
    return WithCache(vocab_size, fault)


@numerate.wrap_model
def faulty(vocab_size: int, fault: str = "looks ahead") -> Any:
    """Wrong in one of these ways."""
    if fault == "is no module":
        return 3
    if fault == "is too short":
        return Positioned(vocab_size, 6)
    if fault == "has another vocabulary":
        return nn.Embedding(vocab_size, vocab_size + 1)
    mixer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)  # without a mask, and a class of torch's own
    return nn.Sequential(nn.Embedding(vocab_size, 8), mixer, nn.Linear(8, vocab_size))


def factory() -> Any:
    def inner(vocab_size: int) -> nn.Module:
        return nn.Embedding(vocab_size, vocab_size)

    return inner


def listed(vocab_size: int, sizes: Any = [1]) -> nn.Module:  # noqa: B006
    return nn.Embedding(vocab_size, *sizes)


class Positioned(nn.Module):
    def __init__(self, vocab_size: int, max_length: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab_size, vocab_size), nn.Embedding(max_length, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        return cast(Tensor, self.embedding(ids) + self.positions(torch.arange(ids.shape[1])))


@pytest.fixture(autouse=True)
def parts_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def recipe_of(model: Any) -> Recipe:
    return replace(ADDING, model=model)


def test_a_module_is_trained_and_resumed_bit_by_bit(tmp_path: Path) -> None:
    recipe = recipe_of(TinyGRU(hidden_size=16))
    run = train(recipe, runs_dir=tmp_path, quiet=True).run
    before = weights(run)
    assert before["module.head.weight"].shape[1] == 16
    shutil.rmtree(run.folder.checkpoints / step_folder(8))
    assert same(weights(train(recipe, runs_dir=tmp_path, quiet=True)), before)
    loaded = numerate.load(run.path)
    assert loaded.recipe.model == recipe.model
    assert len(loaded.evaluate("1:2x1:2", count=4)) == 4
    assert isinstance(loaded.ask("12+34=").prediction, str)
    assert loaded.report().exists()


@pytest.mark.parametrize("spec", [TinyGRU(), cached_gru(), llama()], ids=["no cache", "a cache", "of transformers"])
def test_it_decodes_what_it_computes_at_once(spec: Any, make_tokens: Any, vocabulary: Any) -> None:
    model, tokens = spec.build(vocabulary, 0).eval(), make_tokens([9, 9, 9])
    lengths, rows = torch.tensor([1, 5, 3]), torch.arange(3)
    with torch.no_grad():
        whole = model(model.assign_positions(tokens, StepContext.for_evaluation())).logits
        there = model(tokens, target_positions=torch.tensor([[0, 3], [2, 2], [8, 1]])).logits
        torch.testing.assert_close(there[1], whole[1, [2, 2]])
        read = torch.where(torch.arange(5) < lengths[:, None], tokens.ids[:, :5], 0)
        decoded = model.prefill(replace(tokens, ids=read, lengths=lengths), capacity=9)
        for step in range(4):
            torch.testing.assert_close(decoded.output.logits[:, 0], whole[rows, lengths + step - 1])
            decoded = model.step(tokens.ids[rows, lengths + step], None, decoded.state)


@pytest.mark.parametrize("spec", [TinyGRU(), cached_gru()])
def test_one_pass_and_decoding_find_the_same_answers_right(spec: Any) -> None:
    data = EvaluationData(ADDING.task, ADDING.tokenizer, ADDING.layout)
    model = spec.build(data.vocabulary, 0).eval()
    one, decoded = (evaluate_cell(model, data, {}, count=50, method=method) for method in ("one pass", "decoding"))
    assert one["first_error_counts"] == decoded["first_error_counts"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (faulty(), "model: faulty depends on later tokens, so that it would see the answers; it must be causal"),
        (faulty(fault="is no module"), "model: faulty must return an nn.Module, not int"),
        (
            faulty(fault="has another vocabulary"),
            r"model: faulty must return logits of rows x time x vocabulary, .* \(1, 9, 20\), not \(1, 9, 21\)",
        ),
        (faulty(fault="is too short"), "model: faulty cannot read a row of 9 tokens: index out of range"),
        (cached_gru(fault=0.5), "model: cached_gru must compute in prefill and step what it computes in forward"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_module_that_is_no_causal_model_is_refused_before_training(model: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        train(recipe_of(model), runs_dir=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_its_settings_are_those_of_the_function(vocabulary: Any) -> None:
    recipe = override(recipe_of(TinyGRU()), ["model.hidden_size=8"])
    assert recipe.model == TinyGRU(hidden_size=8)
    assert through_a_file(recipe) == recipe
    with pytest.raises(UserError, match="hidden_size: must be 1 or more, not 0"):
        TinyGRU(hidden_size=0)
    first, again, other = (TinyGRU().build(vocabulary, seed).state_dict() for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            nn.Linear(2, 2),
            r"wrap_model: must decorate a function or class \(`def name\(vocab_size\): ...`\), not a Linear",
        ),
        (lambda vocab_size: nn.Embedding(vocab_size, vocab_size), "wrap_model: must decorate .*, not <lambda>"),
        (nn.Linear, "Linear: out_features has no default; every setting needs one"),
        (
            factory(),
            "wrap_model: inner must be defined at the top level of a file, where a saved run finds it, not in factory; "
            "what varies is an argument with a default",
        ),
        (listed, "listed: the default of sizes can be changed in place; use a tuple or a text"),
    ],
    ids=["a module", "a lambda", "no default", "in a function", "a list"],
)
def test_what_cannot_be_built_again_is_refused(build: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}$"):
        numerate.wrap_model(build)


SESSION = """
from functools import partial
import numerate, torch
from torch import nn

SCALE = 1.0

class Scaled(nn.Linear):
    def forward(self, x):
        return SCALE * super().forward(x)

def unused():
    return 1

def make(bias):
    def build(width, vocab_size, *, scaled=Scaled):
        return scaled(width, vocab_size, bias=bias)
    return build

class First:
    def __init__(self, x=1):
        self.x = x

class Second(First):
    pass

SIZES = [1]
build = make(True)
function = len
listed = [lambda x: x]
inner = First()
loss = nn.CrossEntropyLoss(label_smoothing=0.1)
weight = torch.ones(1)
dropped = partial(nn.functional.dropout, p=0.1)

@numerate.wrap_model
def bigram(vocab_size: int, width: int = 8) -> nn.Module:
    function, listed, inner, loss, weight, dropped
    return nn.Sequential(nn.Embedding(vocab_size, width * SIZES[0]), build(width, vocab_size))
"""


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A notebook, in which the cells of `SESSION` have been run."""
    session = ModuleType("__main__")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", session)
        exec(SESSION, vars(session))
        yield session


def test_a_model_of_a_session_is_resumed_and_evaluated_in_it(session: ModuleType, tmp_path: Path) -> None:
    recipe = recipe_of(session.bigram(width=4))
    run = train(recipe, runs_dir=tmp_path, quiet=True).run
    exec(SESSION, vars(session))  # the cells once more
    again = recipe_of(session.bigram(width=4))
    assert train(again, runs_dir=tmp_path, quiet=True).stop_reason == "done"
    assert numerate.load(run.path).recipe == again
    assert len(numerate.load(run.path).evaluate("1x1", count=2)) == 1
    with pytest.raises(UserError, match=r"bigram: __main__ .* has defined it again since; .* make the recipe again"):
        to_tree(recipe)


@pytest.mark.parametrize(
    ("old", "new", "is_another"),
    [
        ("SCALE = 1.0", "SCALE = 2.0", True),
        ("super().forward(x)", "super().forward(-x)", True),
        ("build(width, vocab_size))", "build(width, vocab_size, scaled=nn.Linear))", True),
        ("make(True)", "make(False)", True),
        ("scaled=Scaled", "scaled=nn.Linear", True),
        ("SIZES = [1]", "SIZES = [1, 1]", True),
        ("function = len", "function = max", True),
        ("[lambda x: x]", "[lambda x: 2 * x]", True),
        ("inner = First()", "inner = Second()", True),
        ("inner = First()", "inner = First(2)", True),
        ("label_smoothing=0.1", "label_smoothing=0.5", True),
        ("torch.ones(1)", "torch.zeros(1)", True),
        ("p=0.1", "p=0.5", True),
        ("return 1", "return 2", False),
    ],
)
def test_a_changed_cell_makes_another_run_where_the_model_uses_it(
    session: ModuleType, old: str, new: str, is_another: bool
) -> None:
    before, tree = identity(recipe_of(session.bigram())), to_tree(recipe_of(session.bigram()))
    assert SESSION.count(old) == 1
    exec(SESSION.replace(old, new), vars(session))
    assert (identity(recipe_of(session.bigram())) != before) == is_another
    with pytest.warns(UserWarning, match="__main__:bigram has changed since") if is_another else nullcontext():
        from_tree(tree, expected_class=Recipe)


@pytest.mark.parametrize("file", [None, "<stdin>"])
def test_a_model_of_a_session_needs_a_file_in_another(
    file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ModuleType("__main__")
    session.__file__ = file
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", session)
        exec(SESSION, vars(session))
        run = train(recipe_of(session.bigram()), runs_dir=tmp_path, quiet=True).run
    message = "__main__:bigram: was defined in a notebook .* put it in a file and pass --parts"
    with pytest.raises(UserError, match=message):
        numerate.load(run.path).evaluate("1x1", count=2)
    monkeypatch.setattr(catalogue, "_user_classes", {})
    (tmp_path / "mine.py").write_text(SESSION)
    load_user_parts(tmp_path / "mine.py")
    assert len(numerate.load(run.path).evaluate("1x1", count=2)) == 1

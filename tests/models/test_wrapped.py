"""Any module from ids to logits is a model: trained, resumed, and decoded."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import numerate
from numerate.batch import StepContext
from numerate.config import override, setting
from numerate.errors import UserError
from numerate.runs.train import train
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


@pytest.mark.parametrize("spec", [TinyGRU(), llama()], ids=["of torch", "of transformers"])
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

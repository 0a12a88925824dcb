"""Weights that the published code of dual attention wrote become a run, whole or not at all."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import numerate
from numerate.batch import Tokens
from numerate.cli import main
from numerate.config import to_tree, yaml_text
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.integrations.weight_files import read_weights
from numerate.models.decoder import Decoder
from numerate.published.dual_attention_models import current
from numerate.published.dual_attention_weights import from_published, to_published
from numerate.runs.importing import import_published
from numerate.runs.run import Run
from numerate.tasks.arithmetic import Arithmetic
from numerate.training.recipe import Recipe

torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_self_heads": 2,
    "num_relational_heads": 2,
    "context_length": 8,
}
PLAIN = current(**SMALL)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recipe_of(model: Decoder) -> Recipe:
    return replace(Recipe(), task=Arithmetic(), model=model, device="cpu", title="theirs")


def checkpoint_of(spec: Decoder) -> dict[str, Tensor]:
    """What the published code saves of a trained model of a spec."""
    recipe = recipe_of(spec)
    model = spec.build(EvaluationData(recipe.task, recipe.tokenizer, recipe.layout).vocabulary, 1)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return to_published(model.state_dict(), spec)


def reference(spec: Decoder, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    recipe = recipe_of(spec)
    model = spec.build(EvaluationData(recipe.task, recipe.tokenizer, recipe.layout).vocabulary, 0).eval()
    model.load_state_dict(from_published(weights, spec))
    ids = torch.tensor([[5, 9, 6, 7, 9, 8], [3, 3, 2, 14, 8, 11]])
    with torch.no_grad():
        return {"ids": ids, "logits": model(Tokens(ids, torch.tensor([6, 6]), torch.arange(2))).logits}


NOT_THEIRS: dict[str, tuple[Decoder, Decoder, str]] = {
    "asymmetric relations": (
        PLAIN,
        current(**SMALL, symmetric=True),
        "wk_rel.weight differs",
    ),
    "own symbols": (
        current(**SMALL, symbol_sharing="own"),
        PLAIN,
        r"symbol_retrievers\.1\.symbol_library differs",
    ),
    "an untied head": (
        replace(PLAIN, tie_word_embeddings=False),
        PLAIN,
        r"final_out\.weight differs",
    ),
    "more layers": (
        current(**SMALL | {"num_layers": 3}),
        PLAIN,
        r"does not have blocks\.2\..* and \d+ more; is it of another model",
    ),
    "farther symbols": (
        current(**SMALL | {"context_length": 16}, symbols="position_relative"),
        current(**SMALL, symbols="position_relative"),
        "rel_pos_embeddings has 33 rows, the model 17",
    ),
}


@pytest.mark.parametrize("name", NOT_THEIRS)
def test_a_checkpoint_that_a_recipe_would_take_in_part_is_refused_with_the_tensor(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, spec, message = NOT_THEIRS[name]
    weights = checkpoint_of(theirs)
    assert from_published(weights, theirs)
    with pytest.raises(UserError, match=f"^weights: .*{message}"):
        from_published(weights, spec)
    torch.save({"model": weights}, "ckpt.pt")
    with pytest.raises(UserError, match=rf"^ckpt\.pt: .*{message}"):
        import_published("ckpt.pt", recipe_of(spec))
    Path("recipe.yaml").write_text(yaml_text(to_tree(recipe_of(spec))))
    assert main(["import", "ckpt.pt", "recipe=recipe.yaml"]) == 2
    assert message.split(r"\.")[0].split(" ")[-1].strip("(") in capsys.readouterr().err
    assert not Path("runs").exists()


def wrong_heads(_: dict[str, Tensor]) -> None:
    """Weights do not tell how many heads choose symbols."""


def other_logits(given: dict[str, Tensor]) -> None:
    given["logits"][1, 4, 3] += 0.01


def no_number(given: dict[str, Tensor]) -> None:
    given["logits"][0, 2, 3] = float("nan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wrong_heads, r"by up to"),
        (other_logits, r"by up to 0\.01 \(row 1, token 4\); 0\.001 is allowed"),
        (no_number, "inf"),
    ],
)
def test_logits_that_differ_from_the_reference_are_refused(
    change: Callable[[dict[str, Tensor]], None], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = checkpoint_of(PLAIN)
    given = reference(PLAIN, weights)
    change(given)
    spec = current(**SMALL, num_symbol_heads=2) if change is wrong_heads else PLAIN
    torch.save({"model": weights}, "ckpt.pt")
    save_file(given, "logits.safetensors")
    with pytest.raises(UserError, match=rf"^check: logits differ from logits\.safetensors .*{message}"):
        import_published("ckpt.pt", recipe_of(spec), check="logits.safetensors")
    Path("recipe.yaml").write_text(yaml_text(to_tree(recipe_of(spec))))
    assert main(["import", "ckpt.pt", "recipe=recipe.yaml", "check=logits.safetensors"]) == 2
    assert "logits differ from logits.safetensors" in capsys.readouterr().err
    assert not Path("runs").exists()
    if change is other_logits:
        assert main(["import", "ckpt.pt", "recipe=recipe.yaml", "check=logits.safetensors", "tolerance=0.02"]) == 0


@pytest.mark.parametrize("where", ["beside the model", "among the weights", "in the folder"])
def test_logits_that_come_with_the_weights_are_compared_by_default(where: str) -> None:
    weights = checkpoint_of(PLAIN)
    given, place = reference(PLAIN, weights), Path("folder" if where == "in the folder" else "ckpt.pt")

    def written() -> None:
        if where == "in the folder":
            place.mkdir(exist_ok=True)
            save_file({name: tensor.clone() for name, tensor in weights.items()}, place / "model.safetensors")
            save_file(given, place / "logits.safetensors")
        else:
            torch.save({"model": weights, **given} if where == "beside the model" else {**weights, **given}, place)

    written()
    run = import_published(place, recipe_of(PLAIN))
    assert torch.equal(run.load_model()(_tokens(given["ids"])).logits, given["logits"])
    other_logits(given)
    written()
    with pytest.raises(UserError, match=r"^check: logits differ"):
        import_published(place, recipe_of(PLAIN))


def _tokens(ids: Tensor) -> Tokens:
    return Tokens(ids, torch.full((len(ids),), ids.shape[1]), torch.arange(len(ids)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ids": torch.ones(2, 3, dtype=torch.long)}, r"it has ids \(2, 3\)"),
        ({"ids": torch.ones(2, 3), "logits": torch.ones(2, 3, 19)}, r"ids must be integers, not torch\.float32"),
        ({"ids": torch.ones(2, 3, dtype=torch.long), "logits": torch.ones(2, 4, 19)}, r"logits \(2, 4, 19\)"),
        ({"ids": torch.ones(2, 3, dtype=torch.long), "logits": torch.ones(2, 3, 7)}, "has 7 logits per token"),
        ({"ids": torch.full((2, 3), 99), "logits": torch.ones(2, 3, 19)}, "ids from 99 to 99"),
    ],
)
def test_reference_logits_of_other_shapes_are_refused(given: dict[str, Tensor], message: str) -> None:
    torch.save(checkpoint_of(PLAIN), "ckpt.pt")
    save_file(given, "logits.safetensors")
    with pytest.raises(UserError, match=rf"^check: logits\.safetensors.*{message}"):
        import_published("ckpt.pt", recipe_of(PLAIN), check="logits.safetensors")


def test_a_tensor_of_another_shape_is_refused_by_name() -> None:
    weights, name = checkpoint_of(PLAIN), "layers.blocks.0.dual_attn.relational_attention.wq_attn.weight"
    for wrong, message in ((weights[name][:, :8], "have rows of different widths"), (torch.tensor(1.0), "is a single")):
        with pytest.raises(UserError, match=rf"wq_attn\.weight {message}"):
            from_published({**weights, name: wrong}, PLAIN)


def test_a_file_whose_names_mean_something_else_is_refused_too() -> None:
    weights = checkpoint_of(PLAIN)
    save_file({**weights, "model": torch.ones(2)}, "one.safetensors")
    with pytest.raises(UserError, match="the model does not have model"):
        import_published("one.safetensors", recipe_of(PLAIN))
    torch.save({"model": weights, "ids": [1], "logits": None}, "ckpt.pt")
    with pytest.raises(UserError, match=r"^check: ckpt\.pt needs ids .* it has neither"):
        import_published("ckpt.pt", recipe_of(PLAIN))


def test_a_file_in_which_each_shared_tensor_stands_once_is_whole() -> None:
    """As `safetensors.torch.save_model` and the hub keep them: of several names the first in the alphabet."""
    for spec in (PLAIN, current(**SMALL, symmetric=True), current(**SMALL, shared_queries=True)):
        weights = checkpoint_of(spec)
        first: dict[bytes, str] = {}
        kept = {name: weights[name] for name in sorted(weights) if _first(first, name, weights[name])}
        assert "layers.token_embedder.weight" not in kept
        save_file(kept, "model.safetensors")
        found = from_published(load_file("model.safetensors"), spec)
        whole = from_published(weights, spec)
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


def _first(seen: dict[bytes, str], name: str, tensor: Tensor) -> bool:
    content = tensor.numpy().tobytes() if tensor.dim() > 1 else name.encode()
    return seen.setdefault(content, name) == name


def test_weights_in_several_files_are_read_together_and_none_from_outside_the_folder() -> None:
    weights, place = checkpoint_of(PLAIN), Path("folder")
    place.mkdir()
    names = sorted(weights)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: weights[name].clone() for name in held}, place / file)
    index = {name: file for file, held in parts.items() for name in held}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    run: Run = import_published(place, recipe_of(PLAIN))
    kept = to_published(run.load_model().state_dict(), PLAIN)
    assert all(torch.equal(kept[name], tensor) for name, tensor in weights.items())
    for wrong, message in (
        ('{"weight_map": {"a": "../one.safetensors"}}', "outside its folder"),
        ('{"weight_map": {"a": 1}}', "is damaged"),
        ("{", "is damaged"),
    ):
        (place / "model.safetensors.index.json").write_text(wrong)
        with pytest.raises(UserError, match=message):
            import_published(place, recipe_of(PLAIN))
    assert numerate.load("latest").path == run.path


@pytest.mark.parametrize("change", [lambda one: one * (1 + 1j), Tensor.to_sparse], ids=["complex", "sparse"])
def test_tensors_that_are_no_dense_real_numbers_are_refused_by_name(
    tmp_path: Path, change: Callable[[Tensor], Tensor]
) -> None:
    weights = {"a.weight": torch.ones(2, 2), "b.weight": change(torch.ones(2, 2))}
    torch.save(weights, tmp_path / "ckpt.pt")
    with pytest.raises(UserError, match=r"b\.weight must be a dense real tensor, not (complex64|float32, sparse)"):
        read_weights(tmp_path / "ckpt.pt")

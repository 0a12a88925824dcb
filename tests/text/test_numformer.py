"""Promises of the Numformer: it answers behind masks, is trained and evaluated so, and nothing else is let through."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from numerate.api import load, recipe
from numerate.batch import Tokens
from numerate.errors import UserError
from numerate.runs.train import train
from numerate.text.models.numformer import Numformer
from numerate.training.recipe import Recipe
from numerate.vocabulary import UNK, Vocabulary

SIZES = "hidden_size=32,num_layers=2,num_heads=2,intermediate_size=64,max_position_embeddings=16"
SMALL = (
    f"task.digits=1 model=Numformer({SIZES},number_embedding=null,number_head=null,dropout=0) training.batch_size=64 "
    "training.shuffle_window=4 training.steps=150 training.evaluate_every=75 evaluation.validation_examples=32 "
    "evaluation.grid=1:1x1:1 evaluation.examples_per_cell=40 schedule=Constant(warmup=10) "
    "optimizer.learning_rate=0.003 device=cpu"
).split()


def masked(*more: str) -> Recipe:
    return recipe("addition_rotary", *SMALL, "layout=MaskedLM", *more)


@torch.no_grad()
def test_what_it_says_does_not_depend_on_the_answer(tmp_path: Path) -> None:
    made = masked()
    vocabulary = made.tokenizer.build_vocabulary(made.task)
    model = made.model.build(vocabulary, 0).eval()
    rows = made.tokenizer.encode_examples(made.task.examples("test", 0, 0, 20), vocabulary)
    other = rows.ids.copy()
    other[rows.target_mask] = vocabulary.token_to_id["7"]
    index = torch.arange(20).numpy()
    first = made.layout.build_batch(rows, index)
    second = made.layout.build_batch(type(rows)(other, rows.lengths, rows.target_mask), index)
    assert not torch.equal(first.targets, second.targets)
    assert torch.equal(model(first.tokens).logits, model(second.tokens).logits)
    assert int((first.tokens.ids == UNK).sum()) == first.counts["tokens"]


def test_it_is_trained_and_evaluated_behind_masks_and_claims_are_allowed(tmp_path: Path) -> None:
    made = train(masked(), runs_dir=tmp_path, quiet=True)
    run = load(str(made.run.path), runs_dir=tmp_path)
    run.evaluate("1:1x1:1")
    (record,) = [json.loads(line) for line in (made.run.path / "cells.jsonl").read_text().splitlines()]
    assert record["method"] == "one pass"
    assert "non_causal_reason" not in record
    assert "labels" not in record
    losses = [json.loads(line).get("loss") for line in (made.run.path / "metrics.jsonl").read_text().splitlines()]
    known = [loss for loss in losses if loss is not None]
    assert known[-1] < 0.6 * known[0], "it learns"
    assert run.ask("3+4=").prediction.isdigit()


def test_layouts_from_which_it_could_read_the_answer_are_refused(tmp_path: Path) -> None:
    for layout in ("Continuation", "Continuation(targets=all)"):
        with pytest.raises(UserError, match=r"both directions.*use layout=MaskedLM"):
            train(masked(f"layout={layout}"), runs_dir=tmp_path, quiet=True)


def test_its_first_size_is_the_published_one() -> None:
    spec: Any = Numformer(number_embedding=None)
    with torch.device("meta"):
        model = spec.build(Vocabulary.with_digits([]), 0)
    layers = sum(parameter.numel() for parameter in model.layers.parameters())
    assert layers == 12 * (4 * 768**2 + 2 * 768 * 3072 + 9 * 768 + 3072)
    assert model.position_embedding.weight.shape == (512, 768)


def test_as_published_it_has_no_final_norm_and_no_biases_in_the_vocabulary_head(vocabulary: Vocabulary) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 8}
    sizes |= {"max_position_embeddings": 4, "number_embedding": None}
    ours = Numformer(**sizes).build(vocabulary, 0)
    theirs = Numformer(**sizes, final_norm=False, head_bias=False).build(vocabulary, 0)
    more = ours.state_dict().keys() - theirs.state_dict().keys()
    assert more == {"final_norm.weight", "final_norm.bias", "head_in_proj.bias", "hf_model.head.bias"}
    ids = torch.arange(4, 8)[None]
    hidden = []
    theirs.eval().layers[-1].register_forward_hook(lambda part, given, output: hidden.append(output))
    found = theirs(Tokens(ids, torch.tensor([4]), torch.tensor([0]))).logits
    head = theirs.hf_model["head"].weight
    expected = torch.nn.functional.gelu(hidden[0] @ theirs.head_in_proj.weight.T) @ head.T
    torch.testing.assert_close(found, expected)


def test_shapes_that_cannot_be_are_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(UserError, match=r"^model\.num_heads: must divide hidden_size \(10\), got 3"):
        Numformer(hidden_size=10, num_heads=3).build(vocabulary, 0)
    with pytest.raises(UserError, match=r"the tokenizer has no \[NUM\]"):
        Numformer(hidden_size=16, num_heads=2).build(vocabulary, 0)

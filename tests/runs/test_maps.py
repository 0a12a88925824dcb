"""Attention maps of a run: of what it reads and generates, as arrays and as a figure, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from numerate.architectures.dual_attention import DualAttention
from numerate.batch import Tokens
from numerate.cli import main
from numerate.config import Span
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Loop
from numerate.models.decoder import Decoder
from numerate.results.figures import token_label
from numerate.runs.run import Run
from numerate.runs.train import train
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.data.corpora import write_corpus
from numerate.text.models.numformer import Numformer
from numerate.text.models.pretrained import PretrainedDecoder
from numerate.text.models.t5 import T5
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER
from numerate.tokenizers.layout import MaskedLM, NextToken, Seq2Seq
from numerate.training.recipe import Recipe, Training

SMALL = Recipe(
    task=Arithmetic(digits=Span(1, 2)),
    model=Decoder(hidden_size=16, mixer=DualAttention()),
    training=Training(
        steps=0, batch_size=4, shuffle_window=4, threads=1, log_every=1, evaluate_every=1, checkpoint_every=1
    ),
    evaluation=Evaluation(grid="1:1x1:1", examples_per_cell=4, validation_examples=4),
    device="cpu",
)


def trained(folder: Path, **changes: Any) -> Run:
    return train(replace(SMALL, **changes), runs_dir=folder / "runs", quiet=True).run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("maps"))


def test_a_prompt_gives_every_head_of_every_layer_over_the_prompt_and_the_answer(run: Run) -> None:
    maps = run.maps("12+34=")
    assert maps.tokens[:6] == ("2", "1", "+", "4", "3", "=")
    assert maps.answer_start in (6, None)
    alone = run.maps("12+34=", answer=False)
    assert (alone.tokens, alone.answer_start) == (maps.tokens[:6], None)
    assert [layer.name for layer in alone.layers] == ["layer 0", "layer 1"]
    assert tuple(alone.layers[0].maps) == ("attention", "relational attention", "relations", "symbols")
    weights = alone.layers[1].maps["attention"]
    assert weights.shape == (2, 6, 6)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(maps.layers[1].maps["attention"][:, :6, :6], weights, atol=1e-6)


def test_the_command_draws_every_head_and_writes_the_same_file_again(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["maps", str(run.path), "12+34=", "layer=1"]) == 0
    tokens, path = capsys.readouterr().out.splitlines()
    assert "tokens" in tokens
    assert tokens.partition(": ")[2].startswith("2 1 + 4 3 =")
    content = Path(path).read_bytes()
    assert Path(path).parent == run.path / "maps"
    assert main(["maps", str(run.path), "12+34=", "layer=1"]) == 0
    assert Path(path).read_bytes() == content
    assert main(["maps", str(run.path), "12+34=", f"out={tmp_path / 'maps.svg'}"]) == 0
    text = (tmp_path / "maps.svg").read_text()
    assert all(f">{kind}<" in text for kind in ("attention", "relational attention", "relations", "symbols"))
    assert main(["maps", str(run.path), "12+34=", f"out={tmp_path / 'maps.html'}"]) == 2
    assert run.maps("12+34=")._repr_png_().startswith(b"\x89PNG")


def test_each_head_is_a_panel_of_its_numbers_queries_down_and_keys_to_the_right(run: Run) -> None:
    maps = run.maps("12+34=", answer=False)
    drawn = [axes for axes in maps.figure().axes if axes.get_images()]
    kinds = ["attention", "relational attention", "relations", "symbols"]
    assert [axes.get_title(loc="left") for axes in drawn[:4]] == kinds
    image = np.asarray(drawn[0].get_images()[0].get_array().filled(np.nan))
    first, second = maps.layers[0].maps["attention"]
    np.testing.assert_array_equal(image[:6], np.concatenate([first, np.full((6, 1), np.nan), second], axis=1))
    assert [label.get_text() for label in drawn[0].get_yticklabels()] == ["layer 0", "layer 1"]
    assert [label.get_text() for label in drawn[0].get_xticklabels()] == ["head 0", "head 1"]
    assert [token_label(token) for token in ("\n", " a", "▁a", "")] == ["↵", "␣a", "␣a", "∅"]


def test_without_a_prompt_a_question_of_the_test_split_is_read(run: Run) -> None:
    assert "=" in run.maps().tokens


def test_what_cannot_be_shown_is_refused_with_what_can(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^prompt: 6 tokens are more than 5, .*max_tokens=6"):
        run.maps("12+34=", max_tokens=5)
    with pytest.raises(UserError, match=r"^layer: 7 has no maps; there are: 0, 1$"):
        run.maps("12+34=", layers=[7])
    other = trained(tmp_path, model=Decoder(hidden_size=16, mixer=LSTM()))
    with pytest.raises(UserError, match=r"^model: LSTM has no attention, so there are no maps$"):
        other.maps("12+34=")


def test_turns_of_a_loop_have_maps_of_their_own_also_of_more_than_were_trained(tmp_path: Path) -> None:
    run = trained(tmp_path, model=Decoder(hidden_size=16, backbone=Loop(num_layers=1, num_loops=2)))
    assert [layer.name for layer in run.maps("1+2=").layers] == ["layer 0, loop 0", "layer 0, loop 1"]
    more = run.maps("1+2=", settings=["model.backbone.num_loops=3"])
    assert (len(more.layers), dict(more.settings)) == (3, {"model.backbone.num_loops": 3})


@pytest.mark.parametrize("kind", ["t5", "gpt2", "masked"])
def test_held_models_say_the_weights_that_they_use(tmp_path: Path, kind: str) -> None:
    """Their values, weighted by the maps, give what their attention says."""
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    gpt2 = '{"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2}'
    specs: dict[str, dict[str, Any]] = {
        "t5": {
            "model": T5(hidden_size=16, num_layers=2, num_heads=2, head_dim=8, intermediate_size=32),
            "layout": Seq2Seq(),
        },
        "gpt2": {"model": PretrainedDecoder(config=gpt2)},
        "masked": {
            "model": Numformer(
                hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, number_embedding=None, number_head=None
            ),
            "layout": MaskedLM(),
        },
    }
    run = trained(tmp_path, **specs[kind])
    maps = run.maps("12+34=")
    expected = {"t5": ["encoder layer 0", "encoder layer 1", "decoder layer 0", "decoder layer 1"]}
    assert [layer.name for layer in maps.layers] == expected.get(kind, ["layer 0", "layer 1"])
    last = maps.layers[-1]
    for sort in last.maps:
        np.testing.assert_allclose(last.maps[sort].sum(-1), 1, rtol=1e-5)
    if kind == "t5":
        assert maps.source is not None
        assert maps.source[-1] == "[EOS]"
        assert last.maps["cross attention"].shape == (2, len(maps.tokens), len(maps.source))
    if kind != "masked":
        assert not np.triu(last.maps["attention"], 1).any()
    if kind == "gpt2":
        promise_values(run, maps.tokens)


def promise_values(run: Run, symbols: tuple[str, ...]) -> None:
    model: Any = run.load_model()
    ids = torch.tensor([[run.evaluation_data.vocabulary.token_to_id[symbol] for symbol in symbols]])
    tokens = Tokens(ids, torch.tensor([ids.shape[1]]), torch.tensor([0]))
    attention = model.hf_model.base_model.h[1].attn
    on_progress: dict[str, torch.Tensor] = {}
    hooks = [
        attention.c_attn.register_forward_hook(lambda _, __, out: on_progress.update(values=out.chunk(3, -1)[2])),
        attention.c_proj.register_forward_hook(lambda _, given, __: on_progress.update(output=given[0])),
    ]
    before = model.hf_model.config._attn_implementation
    weights = model.attention_maps(tokens)[1].maps["attention"]
    assert model.hf_model.config._attn_implementation == before
    with torch.no_grad():
        model(tokens)  # as it is run, by another kernel
    for hook in hooks:
        hook.remove()
    values = torch.unflatten(on_progress["values"], -1, (2, -1)).transpose(1, 2)
    torch.testing.assert_close((weights @ values).transpose(1, 2).flatten(2), on_progress["output"])


def test_text_is_read_behind_its_beginning_and_without_a_prompt_as_it_is_held_out(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra huggingface has it")
    text, tokens = tmp_path / "stories.txt", tmp_path / "tokens"
    text.write_text("a cat. " * 40 + "\n<|endoftext|>\n" + "a dog. " * 20)
    write_corpus([text], tokens, CHARACTER_TOKENIZER, processes=1)
    task = LanguageModeling(str(tokens), str(tokens), CHARACTER_TOKENIZER, context_length=16)
    run = trained(
        tmp_path, task=task, tokenizer=TokenIds(), layout=NextToken(), evaluation=Evaluation(validation_batches=1)
    )
    maps = run.maps("a cat")
    assert (maps.tokens[1:], maps.answer_start) == (("a", " ", "c", "a", "t"), None)
    assert run.maps().tokens[:6] == maps.tokens
    assert len(run.maps(max_tokens=9).tokens) == 9

"""Promises of decoders that a class of transformers computes: which they are, the same logits and texts, and the way
back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hugging_face import CODE_SPECS, NATIVE_SPECS, QUIET, ids_of, on_the_left, recipe_of, run_of, transformers
from numerate.batch import Tokens
from numerate.cli import main
from numerate.errors import UserError
from numerate.evaluation.generate import greedy_decode
from numerate.experiments.exporting import export, import_folder
from numerate.integrations.hf_native import native_model
from numerate.mixers.attention import Attention
from numerate.models.backbone import Loop, Stack
from numerate.models.block import FeedForward
from numerate.positions.added import Learned
from numerate.positions.position_ids import DigitIndex, Shifted
from numerate.positions.rotary import Rotary

pytestmark = QUIET


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def opened(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("name", NATIVE_SPECS)
@torch.no_grad()
def test_the_class_of_transformers_computes_the_logits_and_the_texts_of_the_run(name: str) -> None:
    spec = NATIVE_SPECS[name]
    run = run_of(recipe_of(spec))
    export(run, "exported")
    theirs = opened("exported")
    assert type(theirs).__module__.startswith("transformers.")
    tokens, real = ids_of()
    ours = run.load_model()(tokens).logits
    ids, mask = on_the_left(tokens, real)
    for given, is_token in ((tokens.ids, real), (ids, mask)):
        logits = theirs(given, attention_mask=is_token.long()).logits[is_token]
        torch.testing.assert_close(logits, ours[real], rtol=0, atol=1e-5)
    texts = greedy_decode(run.load_model(), tokens, 6, end_id=-1).ids
    for use_cache in (True, False):
        how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "use_cache": use_cache}
        assert torch.equal(theirs.generate(ids, attention_mask=mask.long(), **how)[:, 9:], texts)


@pytest.mark.parametrize("name", NATIVE_SPECS)
def test_every_weight_comes_back_bit_for_bit(name: str) -> None:
    run = run_of(recipe_of(NATIVE_SPECS[name]))
    export(run, "exported")
    opened("exported").save_pretrained("again")
    for folder in ("exported", "again"):
        back = import_folder(folder)
        assert back.recipe.model == run.recipe.model
        for weight, tensor in run.load_model().state_dict().items():
            assert torch.equal(back.load_model().state_dict()[weight], tensor), weight


def test_every_class_is_chosen_by_what_it_computes() -> None:
    for name, spec in NATIVE_SPECS.items():
        native = native_model(spec)
        assert native is not None
        assert (
            native.name.lower()
            == {"llama": "llama", "stablelm": "stablelm", "gpt": "gptneox", "opt": "opt"}[name.split("_")[0]]
        )
    assert not any(map(native_model, CODE_SPECS.values()))


PLAIN = NATIVE_SPECS["gpt_neox"]


@pytest.mark.parametrize(
    "change",
    [
        {"mixer": Attention(num_heads=4, logit_scale=2.0)},
        {"mixer": Attention(num_heads=4, logit_scale="log")},
        {"mixer": Attention(num_heads=4, scale_by_inverse_layer_index=True)},
        {"backbone": Stack(input_injection="add")},
        {"backbone": Stack(initial_state="noise")},
        {"backbone": Loop()},
        {"feed_forward": None},
        {"feed_forward": FeedForward("swiglu", bias=True)},
        {"positions": (Rotary(), Learned())},
        {"positions": (Rotary(position_ids=Shifted(max_shift=9)),)},
        {"positions": (Learned(position_ids=DigitIndex()),)},
        {"positions": (Learned(frozen=True),)},
        {"positions": (Learned(),), "norm_eps": 1e-6},
        {"norm": "none"},
        {"norm": "rms"},
        {"norm_first": False},
        {"final_norm": False},
        {"embedding_norm": True},
        {"embedding_scale": "sqrt"},
        {"head_feed_forward": FeedForward()},
        {"head_projection": True},
        {"head_bias": True},
        {"residual": False},
    ],
    ids=str,
)
def test_what_no_class_computes_is_exported_with_its_code(change: dict[str, Any]) -> None:
    assert native_model(PLAIN) is not None
    assert native_model(replace(PLAIN, **change)) is None


def test_what_an_export_needs_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for spec, line in (
        (PLAIN, "as GPTNeoXForCausalLM: needs transformers alone"),
        (CODE_SPECS["lstm"], "with its code: trust_remote_code=True"),
    ):
        run = run_of(recipe_of(spec))
        out = f"exported-{len(line)}"
        assert main(["export", str(run.path), f"out={out}"]) == 0
        assert capsys.readouterr().out.splitlines() == [out, line]
        assert (line.startswith("with")) == (Path(out) / "modeling_numerate.py").exists()


def test_rotary_embeddings_are_written_for_older_releases_of_transformers_too() -> None:
    export(run_of(recipe_of(NATIVE_SPECS["gpt_neox_partial"])), "exported")
    config = json.loads(Path("exported/config.json").read_text())
    assert (config["rotary_pct"], config["partial_rotary_factor"]) == (0.5, 0.5)
    assert (config["rope_theta"], config["rotary_emb_base"]) == (10_000, 10_000)


def test_biases_that_were_trained_elsewhere_need_a_recipe_with_biases(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(recipe_of(NATIVE_SPECS["gpt_neox_nope"]))
    export(run, "exported")
    theirs = opened("exported")
    with torch.no_grad():
        theirs.gpt_neox.layers[0].mlp.dense_4h_to_h.bias += 1
    theirs.save_pretrained("trained")
    assert main(["import", "trained"]) == 2
    assert "out_proj.bias; use model.feed_forward.bias=true" in capsys.readouterr().err
    back = import_folder("trained", settings=["model.feed_forward.bias=true"])
    ids = ids_of((9,))[0]
    with torch.no_grad():
        torch.testing.assert_close(back.load_model()(ids).logits, theirs(ids.ids).logits, rtol=0, atol=1e-5)


def test_a_folder_of_another_class_or_with_other_tensors_is_not_imported() -> None:
    from safetensors.torch import load_file, save_file

    export(run_of(recipe_of(PLAIN)), "exported")
    with pytest.raises(UserError, match="holds a GPTNeoXForCausalLM, which does not compute the model of the recipe"):
        import_folder("exported", settings=["model.norm=rms"])
    whole = load_file("exported/model.safetensors")
    name = "gpt_neox.layers.1.attention.dense.weight"
    for weights, message in (
        ({key: value for key, value in whole.items() if key != name}, r"has no backbone\.blocks\.1\.mixer\.out_proj"),
        ({**whole, "adapter.weight": torch.ones(2)}, r"does not have adapter\.weight"),
        ({**whole, name: torch.ones(2, 2)}, r"out_proj\.weight has the shape"),
    ):
        save_file(weights, "exported/model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match=message):
            import_folder("exported")
    config = json.loads(Path("exported/config.json").read_text())
    del config["recipe"]
    Path("exported/config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="'gpt_neox', which is not a numerate run"):
        import_folder("exported")


def test_long_rows_have_the_same_logits() -> None:
    run = run_of(recipe_of(NATIVE_SPECS["llama"]))
    export(run, "exported")
    ids = ids_of((300,))[0].ids
    with torch.no_grad():
        ours = run.load_model()(Tokens(ids, torch.tensor([300]), torch.arange(1))).logits
        torch.testing.assert_close(opened("exported")(ids).logits, ours, rtol=0, atol=1e-5)

"""Promises of runs that begin from pretrained weights: they hold all that they need, and one table is one."""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from numerate.api import load, recipe
from numerate.batch import Tokens
from numerate.errors import UserError
from numerate.integrations.hf_export import export
from numerate.runs.train import train
from numerate.runs.trial import dry_run
from numerate.text.models.t5 import T5
from numerate.training import checkpoint
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary

transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")
pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")

torch.set_num_threads(1)

TOKENS = Path(__file__).parent.parent / "text" / "tiny"
ROWS = 300
SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 16}
LLAMA = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TABLES = [f"hf_model.{name}.weight" for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")]
BART = {
    f"{part}_{name}": size
    for part in ("encoder", "decoder")
    for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
}
KINDS = ["t5", "t5 1.1", "t5 lora", "t5 groups lora", "llama", "llama lora", "llama groups lora", "bart", "bart lora"]
MODELS = {
    "llama": ("PretrainedDecoder", "Continuation"),
    "t5": ("T5", "Seq2Seq"),
    "bart": ("PretrainedSeq2Seq", "Seq2Seq(decoder_start_token=eos)"),
}


def write_weights(folder: Path, kind: str) -> None:
    """Weights that somebody has trained. Those of T5 1.1 have a head of their own, and other layers."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(5)
        if kind.startswith("llama"):
            held = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, vocab_size=ROWS))
        elif kind.startswith("bart"):
            ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 1, "bos_token_id": None}
            config = transformers.BartConfig(**BART, **ids, d_model=16, vocab_size=ROWS)
            held = transformers.BartForConditionalGeneration(config)
            held.final_logits_bias.normal_()
        else:
            more = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if kind == "t5 1.1" else {}
            held = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES, **more, vocab_size=ROWS))
            if kind == "t5 1.1":
                held.lm_head.weight = torch.nn.Parameter(torch.randn(ROWS, 16))
                held._tied_weights_keys = {k: v for k, v in held._tied_weights_keys.items() if "lm_head" not in k}
        held.save_pretrained(folder)


def over(words: int) -> Vocabulary:
    """A vocabulary over their ids: pad 0, unk 2 and eos 1 are special tokens of numerate, which has its own [BOS]."""
    plain = Vocabulary.from_words([f"t{i}" for i in range(words)])
    return replace(plain, pretrained_ids=np.array([0, 2, -1, 1, *range(3, 3 + words)]))


def begun_from(weights: str, kind: str, *more: str) -> Recipe:
    model, layout = MODELS[kind.split()[0]]
    lora = ",lora=LoRA(r=2)" * kind.endswith("lora")
    numbers = "Groups" if "groups" in kind else "PerDigit"
    given = (
        f"task.digits=1 model={model}(weights={weights}{lora}) layout={layout} training.batch_size=8 "
        "training.shuffle_window=1 training.evaluate_every=2 training.checkpoint_every=2 "
        "training.keep_checkpoints=null evaluation.validation_examples=4 evaluation.grid=1:1x1:1 "
        "evaluation.examples_per_cell=4 device=cpu"
    ).split()
    tokenizer = f"tokenizer=Subwords(tokenizer={TOKENS},number_format={numbers})"  # the path may have spaces
    return recipe("addition_rotary", tokenizer, *given, *more)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def place(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where weights were that are gone, with runs that began from them by a relative name."""
    place = tmp_path_factory.mktemp("there")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        write_weights(place / "weights", kind)
        train(begun_from("weights", kind, "training.steps=2"), runs_dir=place / "runs", quiet=True)
        train(begun_from("weights", kind, "training.steps=4"), runs_dir=place / "whole", quiet=True)
        (place / "weights").rename(place / "gone")
    return place


def tensors(path: Path) -> Mapping[str, torch.Tensor]:
    last = checkpoint.latest_valid(path / "checkpoints")[0]
    assert last is not None
    return last.read()["weights"]


def test_a_run_is_evaluated_prompted_and_resumed_without_the_weights_that_it_started_from(
    place: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "copied"
    shutil.copytree(place / "runs", runs)
    (path,) = runs.glob("*/*/")
    run = load(path)
    assert len(run.evaluate("1:1x1:1", count=4)) == 1
    assert run.ask("3+4=").correct_answer == "7"
    found, stored = run.load_model(), tensors(path)
    assert all(torch.equal(value, stored[name]) for name, value in found.state_dict().items())
    again = train(begun_from("weights", kind, "training.steps=2"), runs_dir=runs, quiet=True)
    assert again.stop_reason == "done"
    train(begun_from("weights", kind, "training.steps=4"), runs_dir=runs, quiet=True)
    (whole,) = (place / "whole").glob("*/*/")
    one, other = tensors(whole), tensors(path)
    assert all(torch.equal(one[name], other[name]) for name in one), "it resumes bit by bit"
    trained = "lora_" if kind.endswith("lora") else ".q." if kind.startswith("t5") else "q_proj"
    changed = {name for name in stored if not torch.equal(stored[name], other[name])}
    assert changed >= {name for name in stored if trained in name}
    if kind.endswith("lora"):
        rows = {name for name in changed if name.endswith("weight.0.rows")}  # of new tokens
        assert all("lora_" in name for name in changed - rows)
        assert bool(rows) == ("groups" in kind)


@torch.no_grad()
def test_an_export_is_a_model_of_transformers_with_the_ids_of_its_tokenizer(
    place: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "groups" in kind:
        pytest.skip("Groups has tokens that are not of the tokenizer")
    monkeypatch.chdir(place)
    (path,) = (place / "runs").glob("*/*/")
    run, is_decoder = load(path), kind.startswith("llama")
    folder = export(run, tmp_path / "exported")
    auto_class = transformers.AutoModelForCausalLM if is_decoder else transformers.AutoModelForSeq2SeqLM
    exported, read = auto_class.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)
    vocabulary, model = run.evaluation_data.vocabulary, run.load_model()
    ids = torch.tensor([run.recipe.tokenizer.encode("12+345=", vocabulary)])
    theirs = torch.from_numpy(vocabulary.pretrained_ids)
    assert read("12+345=", add_special_tokens=False)["input_ids"] == theirs[ids][0].tolist()
    tokens = Tokens(ids, torch.tensor([ids.shape[1]]), torch.arange(1))
    found = model(tokens, None if is_decoder else tokens).logits
    inputs = {} if is_decoder else {"decoder_input_ids": theirs[ids]}
    expected = exported(input_ids=theirs[ids], **inputs).logits
    assert exported.config.vocab_size == expected.shape[-1] == int(theirs.max()) + 1
    known = theirs >= 0
    torch.testing.assert_close(found[..., known], expected[..., theirs[known]], rtol=1e-4, atol=1e-5)
    assert not any("lora" in name for name in exported.state_dict())


def test_a_dry_run_needs_the_configuration_alone(kind: str, tmp_path: Path) -> None:
    write_weights(tmp_path / "weights", kind)
    wanted = begun_from(str(tmp_path / "weights"), kind)
    model = wanted.model.build(wanted.tokenizer.build_vocabulary(wanted.task), 0)
    for file in (tmp_path / "weights").iterdir():
        if file.name != "config.json":
            file.unlink()
    estimate = dry_run(wanted, num_timed_steps=1)
    assert estimate.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert estimate.seconds_per_step is not None
    assert [file.name for file in (tmp_path / "weights").iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["google-t5/t5-3b", "t5-3b"])
def test_a_dry_run_knows_the_published_sizes_of_t5(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    wanted = begun_from(name, "t5")
    estimate = dry_run(wanted)
    rows = wanted.tokenizer.build_vocabulary(wanted.task).size
    assert estimate.num_parameters - 1024 * rows == pytest.approx(2851.6e6 - 1024 * 32128, abs=1e5)
    assert "not measured" in str(estimate)


def test_a_dry_run_without_a_configuration_says_what_needs_none(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    message = "model.weights=null model." + ("size=base" if kind.startswith("t5") else "config=")
    for weights in ("someone/unknown", str(tmp_path)):
        with pytest.raises(UserError, match=rf"^model\.weights: {weights}: has no config.*; {re.escape(message)}"):
            dry_run(begun_from(weights, kind))


def test_every_name_of_the_table_of_a_t5_is_one_parameter(tmp_path: Path) -> None:
    write_weights(tmp_path / "weights", "t5")
    vocabulary = over(20)
    model = T5(weights=str(tmp_path / "weights")).build(vocabulary, 0)
    alike = T5(hidden_size=16, num_layers=1, num_heads=2, head_dim=8, intermediate_size=16)
    counts = [sum(parameter.numel() for parameter in one.parameters()) for one in (model, alike.build(vocabulary, 0))]
    assert counts[0] == counts[1]
    state = model.state_dict(keep_vars=True)
    assert len({id(state[name]) for name in TABLES}) == 1
    assert [name for name, _ in model.named_parameters() if name in TABLES] == TABLES[:1]
    assert model.hf_model.encoder.embed_tokens.num_embeddings == vocabulary.size


def test_a_t5_whose_encoder_has_a_table_of_its_own_is_refused(tmp_path: Path) -> None:
    write_weights(tmp_path / "weights", "t5")
    rewritten(tmp_path / "weights", **{TABLES[1].removeprefix("hf_model."): torch.ones(ROWS, 16)})
    with pytest.raises(UserError, match=r"^model\.weights: .* its encoder and decoder do not share shared\.weight"):
        T5(weights=str(tmp_path / "weights")).build(over(1), 0)


def rewritten(folder: Path, kept: str | None = None, **more: torch.Tensor) -> None:
    """The file of weights without those that have `kept` in their name, and with others."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    found = {name: value for name, value in load_file(file).items() if kept is None or kept not in name}
    save_file({**found, **more}, file, metadata={"format": "pt"})


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def edited(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


TORN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (
        lambda folder: cut(folder / "model.safetensors", 5000),
        r"model\.safetensors is incomplete or damaged \(.*\); copy or download it again",
    ),
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        r"has no config\.json \(it has: generation_config\.json, model\.safetensors\)",
    ),
    "no JSON": (lambda folder: cut(folder / "config.json", 9), r"config\.json' is not a valid JSON file"),
    "other sizes": (
        lambda folder: edited(folder / "config.json", '"d_model": 16', '"d_model": 24'),
        r"its config\.json does not match its weights: .* has two shapes \(\(16, 16\) and \(16, 24\)\)",
    ),
    "part of it": (
        lambda folder: rewritten(folder, "decoder.block"),
        r"has no weights 'decoder\.block.* are missing of a T5ForConditionalGeneration",
    ),
    "more": (
        lambda folder: rewritten(folder, **{"regression.weight": torch.ones(2)}),
        r"a T5ForConditionalGeneration does not have 'regression\.weight' \(1 would be ignored\)",
    ),
    "another kind": (
        lambda folder: write_weights(folder, "llama"),
        r"has no weights .* are missing of a T5ForConditionalGeneration",
    ),
}


@pytest.mark.parametrize("way", TORN)
def test_weights_that_are_not_whole_are_refused_with_what_is_wrong(
    way: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_weights(tmp_path / "weights", "t5")
    tear, says = TORN[way]
    tear(tmp_path / "weights")
    capfd.readouterr()
    with pytest.raises(UserError, match=rf"^model\.weights: .*{says}"):
        T5(weights=str(tmp_path / "weights")).build(over(1), 0)
    assert capfd.readouterr() == ("", ""), "the report of transformers is held back"

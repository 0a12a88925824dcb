"""Promises of exported runs of Hugging Face models beyond their logits: tokenizers, chat templates, what is refused."""

from pathlib import Path
from typing import Any

import pytest

from hugging_face import CHAT_TEMPLATE, QUIET, save_model, transformers
from numerate.api import recipe
from numerate.errors import UserError
from numerate.integrations.hf_export import export
from numerate.runs.pretrained_run import pretrained_run
from numerate.runs.run import Run
from numerate.runs.train import train

pytestmark = QUIET


def untrained(runs: Path, *settings: str) -> Run:
    """A run of a random model at step 0."""
    fixed = ["task.digits=1", "training.steps=0", "evaluation.validation_examples=4", "device=cpu"]
    return train(recipe("addition_rotary", "model=PretrainedDecoder", *fixed, *settings), runs_dir=runs, quiet=True).run


def test_a_model_keeps_its_weights_and_its_chat_template(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", chat_template=CHAT_TEMPLATE)
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 0]}')
    run = pretrained_run(recipe(f"hf:{folder}", "task.digits=1"), runs_dir=tmp_path / "runs")
    exported = export(run, tmp_path / "exported")
    models: list[Any] = [transformers.AutoModelForCausalLM.from_pretrained(path) for path in (folder, exported)]
    states = [model.state_dict() for model in models]
    assert states[0].keys() == states[1].keys()
    assert all((states[0][name] == states[1][name]).all() for name in states[0])
    read = [transformers.AutoTokenizer.from_pretrained(path) for path in (folder, exported)]
    messages = [{"role": "user", "content": "12+9="}]
    prompts = [tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] for tokenizer in read]
    assert prompts[0] == prompts[1]
    assert models[1].generation_config.eos_token_id == [read[0].eos_token_id, 9, 0]


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_card_names_the_weights_that_a_run_began_from_and_the_class_that_opens_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(Path("someone/tiny"), kind)
    tokenizer = save_model(tmp_path / "tokenizer", kind)
    model = "PretrainedSeq2Seq layout=Seq2Seq" if kind == "t5" else "PretrainedDecoder"
    settings = f"model={model} model.weights=someone/tiny tokenizer=Subwords(tokenizer={tokenizer})".split()
    run = untrained(tmp_path / "runs", *settings)
    export(run, "here")
    Path("someone").rename("gone")  # as a name on the hub
    export(run, "exported")
    cards = [Path(folder, "README.md").read_text() for folder in ("here", "exported")]
    assert ["base_model: someone/tiny\n" in card for card in cards] == [False, True]
    auto_class = "AutoModelForSeq2SeqLM" if kind == "t5" else "AutoModelForCausalLM"
    assert f"model = {auto_class}.from_pretrained(folder)\n" in cards[0]


def test_a_model_of_characters_has_the_ids_of_its_run(tmp_path: Path) -> None:
    run = untrained(tmp_path / "runs")
    exported = export(run, tmp_path / "exported")
    vocabulary = run.evaluation_data.vocabulary
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    assert model.config.vocab_size == vocabulary.size
    read = transformers.AutoTokenizer.from_pretrained(exported)
    ids = read("1+2=", add_special_tokens=False)["input_ids"]
    assert ids == [vocabulary.token_to_id[symbol] for symbol in "1+2="]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "tokenizer.number_format=RegressionTransformer",
            "tokenizer.number_format: RegressionTransformer cannot be written as a tokenizer.json; "
            "AsIs and PerDigit can",
        ),
        ("model.number_head=NumberHead", "export: the number head of this model is not part of transformers' model"),
    ],
)
def test_what_transformers_does_not_have_is_refused(setting: str, message: str, tmp_path: Path) -> None:
    run = untrained(tmp_path / "runs", "tokenizer=Subwords(tokenizer=characters)", setting)
    with pytest.raises(UserError) as error:
        export(run, tmp_path / "exported")
    assert str(error.value) == message
    assert not (tmp_path / "exported").exists()

"""Promises of `numerate finetune`: answers before and after training, resumed by the same command."""

import json
import re
from pathlib import Path

import pytest

from hugging_face import QUIET, save_model
from numerate.api import load, recipe
from numerate.cli import main
from numerate.recipes.hugging_face import LORA_LEARNING_RATE, finetuning_recipe, untrained_recipe
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import AsIs, PerDigit
from numerate.training.optimizer import AdamW

pytestmark = QUIET

SETTINGS = [
    "task=GSM8K(data_dir=.)",
    "training.steps=2",
    "training.batch_size=4",
    "evaluation.generation.max_new_tokens=4",
    "evaluation.validation_examples=4",
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model and the two files of GSM8K."""
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "tiny")
    for name, begin, count in (("train", 0, 30), ("test", 100, 5)):
        rows = [
            {"question": f"{i} and {i}?", "answer": f"ok\n#### {2 * i if i < 104 else 'no'}"}
            for i in range(begin, begin + count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def finetune(*settings: str) -> int:
    return main(["finetune", "hf:tiny", *SETTINGS, *settings])


def paths_in(output: str) -> list[str]:
    """The folders of the runs that the command names at its end."""
    return re.findall(r"^(runs/\S+/[0-9a-f]{12})$", output, re.MULTILINE)


def test_the_answers_before_and_after_are_compared_and_the_same_command_finds_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft", reason="the extra finetune is not installed")
    assert finetune("loss=NumberToken", "lora=LoRA") == 0
    output = capsys.readouterr().out
    before, after = paths_in(output)
    assert (Path(before).parent.name, Path(after).parent.name) == ("hf-tiny", "hf-tiny-finetuned")
    assert re.search(r"hf-tiny-finetuned / hf-tiny +correct, %", output)
    assert "compared as text: 1\n" in output
    assert "Differences over the same questions" in (place / "compare.html").read_text()
    files = {path: path.read_bytes() for path in place.glob("runs/*/*/*.jsonl")}
    assert len({path.parent for path in files if path.name == "predictions.jsonl"}) == 2
    (place / "tiny" / "README.md").write_text("which is no part of the model")
    assert finetune("loss=NumberToken", "lora=LoRA") == 0
    assert paths_in(capsys.readouterr().out) == [before, after]
    assert {path: path.read_bytes() for path in files} == files
    assert finetune("loss=NumberToken", "lora=LoRA", "training.steps=3") == 0
    assert load(after).checkpoints()[0].step == 3


def test_losses_and_seeds_share_what_was_measured_before(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finetune("loss=CrossEntropy,NumberToken", "seeds=2") == 0
    before, *after = paths_in(capsys.readouterr().out)
    losses = [type(load(path).recipe.objective.loss).__name__ for path in after]  # type: ignore[attr-defined]
    assert losses == ["CrossEntropy"] * 2 + ["NumberToken"] * 2
    assert [load(path).recipe.seed for path in after] == [0, 1, 0, 1]
    assert main(["evaluate", "hf:tiny", SETTINGS[0], *SETTINGS[3:]]) == 0
    output = capsys.readouterr().out
    assert before in output
    assert "compared as text: 1\n" in output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["lora=LoRA(target_modules=[query])"],
            "model.lora.target_modules: no linear layer of a llama is called 'query'",
        ),
        (["layout=NextToken"], "layout: NextToken supports language modeling only"),
        (["loss=NumberTokens"], "Did you mean 'NumberToken'?"),
        (["epochs=2"], "training.epochs: must be null with training.steps; the length of fine-tuning is one of them"),
        (["trackers=nothing"], "trackers: must be one of wandb, tensorboard, trackio, not 'nothing'"),
        (["lora=true"], "model.lora: must be LoRA, or LoRA(r=...) with settings, not 'true'"),
        (["task=nothing"], "task: no Task is named 'nothing'"),
        (["training.micro_batch_size=3"], "training.micro_batch_size: must divide the 4 examples of a batch, not 3"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_evaluated(
    settings: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "lora" in settings[0]:
        pytest.importorskip("peft", reason="the extra finetune is not installed")
    assert finetune(*settings) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (place / "runs").exists()


def test_a_dry_run_writes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finetune("--dry-run") == 0
    output = capsys.readouterr().out
    assert "5, method decoding" in output
    assert "hf-tiny-finetuned seed=0" in output
    assert not (place / "runs").exists()


def test_the_length_is_in_steps_or_epochs_and_what_is_read_again_is_said(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["finetune", "hf:tiny", SETTINGS[0], SETTINGS[2], "epochs=2.5", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "budget            17 steps, 68 examples, about" in out
    assert "tokens, 2.62 epochs of 26\n" in out
    assert finetune("training.steps=9") == 0
    assert "9 steps are 1.38 epochs of 26 examples" in capsys.readouterr().err
    assert finetune("training.steps=6", "seed=1") == 0
    assert "epochs" not in capsys.readouterr().err


def test_adapters_learn_faster_and_a_setting_counts_more_than_a_default(place: Path) -> None:
    base = recipe("hf:tiny")
    rates = []
    for settings in ([], ["lora=LoRA"], ["lora=LoRA", "lr=0.5"]):
        optimizer = finetuning_recipe(base, settings).optimizer
        assert isinstance(optimizer, AdamW)
        rates.append(optimizer.learning_rate)
    assert rates == [2e-5, float(LORA_LEARNING_RATE), 0.5]


def test_before_training_numbers_are_tokenized_as_the_model_knows_them(place: Path) -> None:
    base = recipe("hf:tiny")
    trained = finetuning_recipe(base, ["tokenizer.number_format=PerDigit", "tokenizer.question_template={question}="])
    before = untrained_recipe(base, trained)
    assert isinstance(trained.tokenizer, Subwords)
    assert isinstance(before.tokenizer, Subwords)
    assert (trained.tokenizer.number_format, before.tokenizer.number_format) == (PerDigit(), AsIs())
    assert before.tokenizer.question_template == "{question}="

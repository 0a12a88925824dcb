"""Promises of the example that fine-tunes a pretrained decoder on GSM8K with and without a number token loss."""

import importlib.util
import json
import sys
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from hugging_face import QUIET, byte_tokenizer, tiny_llama

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune_gsm8k.py"

pytestmark = QUIET


@cache
def example() -> Any:
    spec = importlib.util.spec_from_file_location("finetune_gsm8k", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the two files of GSM8K, and a tiny random model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, begin, count in (("train", 0, 30), ("test", 100, 5)):
        lines = [
            json.dumps({"question": f"{i} and {i + 1}?", "answer": f"<<{i}+{i + 1}={2 * i + 1}>>ok\n#### {2 * i + 1}"})
            for i in range(begin, begin + count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    tiny_llama(2).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path


def run(words: str) -> dict[str, Any]:
    fixed = "--model model --data . --prompt plain --device cpu --steps 2 --batch 3 --new-tokens 4 --decode-batch 2 "
    found: dict[str, Any] = example().main((fixed + words).split())
    return found


@pytest.mark.parametrize("rank", ["--rank 0", "--rank 2 --layers 1"])
@pytest.mark.slow
def test_the_runs_of_a_seed_differ_in_the_weight_alone(
    rank: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if rank != "--rank 0":
        pytest.importorskip("peft", reason="the extra finetune")
    found = run(f"{rank} --weights 0 3 --seeds 0 1 --out results/found.json")
    runs = {(one["seed"], one["weight"]): one for one in found["runs"]}
    assert list(runs) == [(0, 0), (0, 3), (1, 0), (1, 3)]
    for seed in (0, 1):
        assert runs[seed, 0]["by_row"]["distance"] != runs[seed, 3]["by_row"]["distance"]
        assert runs[seed, 0]["cross_entropy"] < found["before"]["cross_entropy"]
    assert runs[0, 0]["by_row"] != runs[1, 0]["by_row"]
    assert run(f"{rank} --weights 3 0 --questions 0")["runs"][1]["by_row"] == runs[0, 0]["by_row"]
    assert json.loads((place / "results" / "found.json").read_text())["runs"] == found["runs"]
    output = capsys.readouterr().out
    assert "weight 3 less weight 0, 2 seeds" in output
    assert "5 questions are few" in output


def test_losses_by_row_are_those_of_each_row_by_itself(place: Path) -> None:
    from numerate import NumberTokenLoss, number_tokens

    module, model, read = example(), tiny_llama(2).eval(), byte_tokenizer()
    rows = [module.Row(read("12+3=")["input_ids"], read(answer)["input_ids"], answer) for answer in ("15", "a 7, b")]
    loss = NumberTokenLoss.from_tokenizer(read, model=model)
    found = module.losses_by_row(model, loss, rows, 2, 0)
    values = number_tokens(read).values
    digits = torch.tensor(list(values))
    for i, row in enumerate(rows):
        logits = model(input_ids=torch.tensor([row.prompt_ids + row.answer_ids])).logits[
            0, len(row.prompt_ids) - 1 : -1
        ]
        labels = torch.tensor(row.answer_ids)
        number = torch.isin(labels, digits)
        odds = logits[number][:, digits].softmax(-1)
        right = torch.tensor([values[label] for label in labels[number].tolist()])
        distance = (odds * (torch.tensor(list(values.values())) - right[:, None]).abs()).sum()
        assert found["labels"][i] == len(labels)
        assert found["numbers"][i] == int(number.sum())
        assert found["cross_entropy"][i] == pytest.approx(
            cross_entropy(logits, labels, reduction="sum").item(), rel=1e-5
        )
        assert found["distance"][i] == pytest.approx(distance.item(), rel=1e-5)
        assert found["digits"][i] == int((logits.argmax(-1) == labels)[number].sum())


def test_digits_are_those_of_the_answer_that_are_the_most_probable_token() -> None:
    from numerate import NumberTokenLoss

    module, read = example(), byte_tokenizer()
    seven, eight = read("78")["input_ids"]

    class KnowsAllButSeven(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            following = input_ids.roll(-1, dims=1)
            following = torch.where(following == seven, eight, following)
            return SimpleNamespace(logits=torch.nn.functional.one_hot(following, 272) * 30.0)

    rows = [module.Row(read("7+70=")["input_ids"], read(answer)["input_ids"], answer) for answer in ("77", "a 3.178")]
    loss = NumberTokenLoss.from_tokenizer(read, shift=True)
    found = module.losses_by_row(KnowsAllButSeven(), loss, rows, 2, 0)
    assert found["digits"] == [0, 3]
    assert found["numbers"] == [2, 4]
    assert found["distance"] == pytest.approx([2, 1])


def test_questions_decoded_together_are_answered_as_each_by_itself() -> None:
    module, model, read = example(), tiny_llama(2), byte_tokenizer()
    with torch.no_grad():
        model.lm_head.weight *= 50  # a most probable token that stands out
    rows = [module.Row(read(question)["input_ids"], [2], "") for question in ("9+9=", "1", "what is 12 + 30?")]
    together = module.decoded(model, read, rows, 3, 6, 0)
    assert together == [module.decoded(model, read, [row], 1, 6, 0)[0] for row in rows]
    assert len(set(together)) > 1


def test_the_final_number_stands_behind_the_mark() -> None:
    final = example().final_number
    assert final("48/2 = 24\n#### 1,072.50").value == Decimal("1072.5")
    assert final("so it is 72").missing
    assert final("12 ####").missing


def test_rows_that_are_too_long_are_left_out_and_answers_alone_are_learnt(place: Path) -> None:
    module, read = example(), byte_tokenizer()
    task = module.GSM8K(data_dir=str(place))
    rows = module.rows_of(task.splits.test, read, "plain", 1000)
    assert len(rows) == 5
    assert read.decode(rows[0].answer_ids) == "ok\n#### 201</s>"
    assert module.rows_of(task.splits.test, read, "plain", len(rows[0]) - 1) == []
    batch = module.padded([rows[0], module.Row([5], [6, 2], "")], 0, "cpu")
    assert batch["labels"][1].tolist() == [-100, 6, 2] + [-100] * (len(rows[0]) - 3)
    assert batch["attention_mask"][1].sum() == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data nowhere", "numerate data fetch gsm8k"),
        ("--longest 5", "so short are 0 rows of training, 0 of the test"),
        ("--prompt chat", "no template of a chat"),
        ("--rank 0 --dtype bfloat16", "trains all weights: in float32"),
        ("--layers 3", "the model has 2"),
        ("--weights 0 0", "each once"),
    ],
)
@pytest.mark.usefixtures("place")
def test_what_cannot_be_run_is_refused_before_anything_is(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--rank 0" not in words:
        pytest.importorskip("peft", reason="the extra finetune")
    with pytest.raises(SystemExit):
        run(words)
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("place")
def test_a_broken_line_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft", reason="the extra finetune")
    with Path("train.jsonl").open("a") as rows:
        rows.write("{broken\n")
    with pytest.raises(SystemExit):
        run("")
    assert "train.jsonl, line 31" in capsys.readouterr().err

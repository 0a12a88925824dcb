"""Promises of questions to a model of texts: any text is a question, and its correct answer is unknown."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from numerate.cli import main
from numerate.config import Span
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.losses.number_heads import XValLoss
from numerate.models.decoder import Decoder
from numerate.runs.run import Run
from numerate.runs.train import train
from numerate.text.models.numformer import Numformer
from numerate.text.tasks.generated_mathematics import GeneratedMathematics
from numerate.text.tasks.question_files import QuestionFiles
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import XVal as Numbers
from numerate.tokenizers.layout import MaskedLM
from numerate.tokenizers.tokenizer import Characters
from numerate.training.objective import Supervised
from numerate.training.recipe import Recipe, Training
from small_runs import best_step

torch.set_num_threads(1)

SMALL = Recipe(
    task=GeneratedMathematics(kinds=("mul",), digits=Span(1, 2)),
    tokenizer=Characters(),
    model=Decoder(hidden_size=16),
    training=Training(
        steps=2, batch_size=8, shuffle_window=4, threads=1, log_every=1, evaluate_every=2, checkpoint_every=2
    ),
    evaluation=Evaluation(grid="1", examples_per_cell=4, validation_examples=4),
    device="cpu",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("texts")
    pairs = [(f"What is {n} + 3?", f"{n + 3}") for n in range(40)]
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in pairs))
    return train(replace(SMALL, task=QuestionFiles(train_file=str(file))), runs_dir=folder / "runs", quiet=True).run


def test_any_text_is_answered_by_the_command_and_nothing_is_judged(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", str(run.path), "What is 3 + 4?", "Why?"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line.split("   ")[0] for line in output] == ["What is 3 + 4?", "Why?"]
    assert all(line.split("   ")[2].startswith("probability ") for line in output)
    assert not any(word in line for word in ("right", "wrong", "None") for line in output)
    with pytest.raises(UserError, match=r"^question: must not be empty"):
        run.ask(" ")


def test_a_number_head_says_its_number_and_what_cannot_decode_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")
    numbers = replace(
        SMALL,
        model=Numformer(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_position_embeddings=64),
        tokenizer=Subwords("characters", Numbers()),
        layout=MaskedLM(),
        objective=Supervised(XValLoss()),
    )
    run = train(numbers, runs_dir=tmp_path, quiet=True).run
    assert best_step(run)["metric"] == "loss"
    model: Any = run.load_model()
    with torch.no_grad():
        model.hf_model["head"].bias[run.evaluation_data.vocabulary.token_to_id["[NUM]"]] += 100.0
    monkeypatch.setattr(Run, "load_model", lambda self, name: model)
    words = run.ask("Calculate 7*8.").prediction.split()
    assert words
    assert all(-1e9 < float(word) < 1e9 for word in words), "and no [NUM]"
    with pytest.raises(
        UserError, match=r"^method: must be 'one pass', not 'beams', since layout=MaskedLM predicts all positions"
    ):
        run.evaluate(method="beams")

"""Promises of `numerate generate`: what it prints, writes and refuses."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from numerate.cli import main
from numerate.config import override
from numerate.runs.run import Run
from numerate.runs.train import train
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer
from numerate.training.recipe import Recipe
from text_corpus import recipe_of

torch.set_num_threads(1)

TINY = str(Path(__file__).parent / "text" / "tiny")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("stories")
    known = load_tokenizer(TINY)
    ids, _ = known.encode(["Once upon a time a dög said «hello» to me. " * 3])
    np.tile(np.concatenate([[known.document_start_id], ids]), 40).astype(np.uint16).tofile(folder / "train.bin")
    np.tile(np.concatenate([[known.document_start_id], ids]), 3).astype(np.uint16).tofile(folder / "val.bin")
    task = LanguageModeling(str(folder / "train.bin"), str(folder / "val.bin"), TINY, context_length=32)
    settings = ["model.hidden_size=32", "model.positions=[Rotary]", "optimizer.learning_rate=1e-2", "device=cpu"]
    settings += ["training.batch_size=8", "training.evaluate_every=80", "training.checkpoint_every=80"]
    recipe: Recipe = override(recipe_of(task, steps=80), settings)
    return train(recipe, runs_dir=folder, quiet=True).run


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["generate", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_one_prompt_is_gone_on_with_and_printed_with_its_text(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, str(run.path), "Once upon", "max_new_tokens=8", "do_sample=false")
    assert (status, err) == (0, "")
    [completion] = run.generate("Once upon", max_new_tokens=8, do_sample=False)
    assert out == f"{completion}\n"
    _, again, _ = call(
        capsys, str(run.path), "Once upon", "max_new_tokens=8", "top_k=1", "top-p=0.9", "min_p=0.1", "seed=7"
    )
    assert again == out
    assert call(capsys, str(run.path), "max_new_tokens=5", "seed=1") == call(
        capsys, str(run.path), "", "max_new_tokens=5", "seed=1"
    )


def test_several_come_as_blocks_and_all_of_them_go_to_a_file(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "out.jsonl"
    status, out, err = call(capsys, str(run.path), "Once", "a dög", "count=2", "max_new_tokens=4", f"out={file}")
    assert status == 0
    assert f"4 completions written to {file}" in err
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["prompt"], one["sample"]) for one in records] == [("Once", 0), ("Once", 1), ("a dög", 0), ("a dög", 1)]
    for one in records:
        assert one["prompt"] + one["text"] in out
    assert out.count("===") == 8
    assert "=== prompt 2, sample 1 of 2 ===" in out


def test_prompts_come_from_files_and_from_standard_input(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.txt").write_text("Once\nupon a\n")
    (tmp_path / "lines.jsonl").write_text('{"prompt": "Once"}\n{"prompt": "upon a"}\n')
    _, plain, _ = call(capsys, str(run.path), f"prompts={tmp_path / 'plain.txt'}", "max_new_tokens=3")
    _, lines, _ = call(capsys, str(run.path), f"prompts={tmp_path / 'lines.jsonl'}", "max_new_tokens=3")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once\nupon a\n")))
    _, piped, _ = call(capsys, str(run.path), "-", "max_new_tokens=3")
    assert plain == lines == piped
    assert plain.count("===") == 4
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "broken.txt").write_bytes(b"Once \xff")
    (tmp_path / "broken.jsonl").write_text('{"prompt": "Once"}\n{"text": "upon a"}\n')
    for name, message in (
        ("empty.txt", "is empty"),
        ("broken.txt", "must be UTF-8 text"),
        ("broken.jsonl", "line 2: must be an object with a prompt"),
        ("none.txt", "cannot be read"),
    ):
        status, _, err = call(capsys, str(run.path), f"prompts={tmp_path / name}")
        assert status == 2
        assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("top_p=2",), "top_p"),
        (("temperature=hot",), "temperature: must be a number, not 'hot'"),
        (("topk=5",), "Did you mean 'top_k'?"),
        (("max_new_tokens=0",), "max_new_tokens"),
        (("checkpoint=step-9",), "9"),
        (("checkpoint=all",), "final, best or a step"),
        (("out=/",), "out: / already exists"),
        (("out=nowhere/out.jsonl",), "the folder nowhere must exist"),
        ((f"out={__file__}",), "already exists"),
    ],
    ids=str,
)
def test_errors_are_reported_and_end_with_2(
    run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    status, out, err = call(capsys, str(run.path), "Once", *words)
    assert (status, out) == (2, "")
    assert message in err


def test_text_streams_and_ctrl_c_ends_with_what_was_generated(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    words = [sys.executable, "-m", "numerate", "generate", str(run.path), "Once", "max_new_tokens=20000", f"out={file}"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, bufsize=0
    )
    assert process.stdout is not None
    begun = b"".join(process.stdout.read(1) for _ in range(12))  # long before the end; nothing more is held back here
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - began < 30
    assert b"stopped; the text is incomplete" in err
    assert b"Traceback" not in err
    [record] = [json.loads(line) for line in file.read_text().splitlines()]
    assert (begun + out).decode() == record["prompt"] + record["text"] + "\n"
    assert 0 < len(record["tokens"]) < 20000

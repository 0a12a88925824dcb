"""Promises of docs/coming-from-inductive-counting.md: every command in a middle column runs, every setting is one."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import numerate
from numerate import catalogue
from numerate.cli import main
from numerate.config import override
from numerate.laboratory.train import debug, train
from numerate.tasks.counting_names import named_tasks
from numerate.training.recipe import Recipe

torch.set_num_threads(1)

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-inductive-counting.md"

TINY = {
    "train": "preset=debug training.steps=1 training.batch=2 evaluation.during=1",
    "run": "preset=debug training.steps=1 training.batch=2 evaluation.during=1 evaluation.count=2 workers=1",
    "evaluate": "grid=50+51 count=2",
}
"""What is added to a command, so that it is done in a moment."""

KEYS = """
    seed date hf_cache_dir num_hidden_layers vocab task aux_tasks hidden_size num_attention_heads mlp_dim_multipler
    max_position_embeddings max_seq_len freeze_null_emb layer_norm_epsilon scale_attn_weights
    scale_attn_by_inverse_layer_idx resid_pdrop embd_pdrop attn_pdrop must_attend_to_identity tie_word_embeddings
    activation_function initializer_range max_grad_norm output_dir ckpt_dir train_data_path eval_data_path test_files
    per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps eval_accumulation_steps
    logging_steps warmup_steps learning_rate num_epochs eval_every_steps absolute_posemb rotary_posemb scaler_posemb
    sinusoidal_posemb _shift _rdmz _freeze _initfromsine zooming load_from_dir init_from_ckpt model dropout
    weight_decay precision
    accelerate run.py tester.py tester_bulk.py config.py causal_transformer s4 mamba rwkv-v5 --task --cuda --port
    --handle --test_files
"""
"""What users of the published system type or edit: commands, options, config keys."""


def rows() -> list[tuple[str, str, str]]:
    """The section, left and middle column of every line of the tables."""
    found, section = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if line.startswith("|") and not line.startswith(("| theirs", "|---")):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 3, line
            found.append((section, cells[0], cells[1]))
    return found


def told(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def commands() -> list[str]:
    """Every command of the middle columns, from behind `numerate` on."""
    shown = [text for _, _, ours in rows() for text in told(ours)]
    found = [re.fullmatch(r"(?:torchrun .* -m )?numerate (.+)", text) for text in shown]
    return list(dict.fromkeys(match[1] for match in found if match))


def settings() -> list[str]:
    return [
        text
        for section, _, ours in rows()
        if section == "Config keys"
        for text in told(ours)
        if re.match(r"[a-z][\w.]*=", text)
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one in it, of a task with an auxiliary one, trained for a moment and evaluated."""
    runs = tmp_path_factory.mktemp("trained")
    recipe = debug(numerate.recipe("counting_samesymbol_plain3_addbigram_rope"))
    tiny = ["training.steps=2", "training.checkpoint_every=1", "evaluation.during=2", "model.width=16"]
    train(override(recipe, tiny), runs_dir=runs, quiet=True).run.evaluate("50:51", count=2)
    return runs


@pytest.fixture
def folder(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, from where `latest` is the trained run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUMERATE_RUNS", str(trained))
    monkeypatch.setattr(catalogue, "_added", {})
    return tmp_path


def in_small(line: str) -> list[str]:
    """The words of a command as on the page, with what makes it small: several seeds are two."""
    words = [re.sub(r"^seeds=\d+$", "seeds=2", word) for word in shlex.split(line)]
    words = [",".join(word.split(",")[:2]) if word.startswith("seed=") else word for word in words]
    more = TINY.get(words[0], "").split()
    if words[0] in ("train", "run"):
        more += ["runs_dir=elsewhere"]
    return [*words, *more]


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_page_runs(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(in_small(line))
    said = capsys.readouterr()
    assert status == 0, said.err
    if line.startswith(("train", "run")) and "--dry-run" not in line:
        assert list(folder.glob("elsewhere/*/*/recipe.yaml"))


def test_every_checkpoint_of_a_run_is_evaluated(trained: Path) -> None:
    results = numerate.load("latest", trained).evaluate("50", count=2, checkpoint="all")
    assert {record["step"] for record in results} == {1, 2}


@pytest.mark.parametrize("text", settings())
def test_a_setting_of_the_page_is_one(text: str) -> None:
    path = text.partition("=")[0]
    if path == "runs_dir":
        return
    assert path.partition(".")[0] in {field.name for field in fields(Recipe)}
    override(numerate.recipe("counting_samesymbol_mod10_ape"), [text])


def test_every_published_command_option_and_key_stands_on_the_page() -> None:
    words = set(re.findall(r"[\w.-]+", "\n".join(theirs for _, theirs, _ in rows())))
    names = words | {part for word in words for part in word.split("/")}
    assert [key for key in KEYS.split() if key not in names] == []


def test_every_published_task_stands_on_the_page() -> None:
    shown = {text for section, theirs, _ in rows() if section == "Tasks and data" for text in told(theirs)}
    assert set(named_tasks()) <= shown


def test_every_published_model_stands_on_the_page() -> None:
    from numerate.recipes.counting_family import MODELS

    shown = {line.split()[1] for line in commands() if line.startswith(("train", "run"))}
    assert {model for model in MODELS for name in shown if name.endswith(f"_{model}")} == set(MODELS)


def test_every_line_of_ours_is_a_command_a_setting_or_none() -> None:
    for section, theirs, ours in rows():
        assert told(ours) or ours.startswith(("none", "see [", "[")), (section, theirs)

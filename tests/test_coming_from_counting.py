"""Promises of docs/coming-from-inductive-counting.md: every command in a middle column runs, every setting is one."""

import sys
from pathlib import Path

import pytest
import torch

import numerate
from numerate.config import override
from numerate.experiments.train import debug, train
from numerate.published.counting_names import published_tasks

sys.path.append(str(Path(__file__).parent))

from cases import case
from pages import Page, in_small, run_here, set_one, stand_in, told

torch.set_num_threads(1)

PAGE = Page("coming-from-inductive-counting.md")

TINY = {
    "train": "preset=debug training.steps=1 training.batch_size=2 evaluation.validation_examples=1",
    "run": "preset=debug training.steps=1 training.batch_size=2 evaluation.validation_examples=1 "
    "evaluation.examples_per_cell=2 workers=1",
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one in it, of a task with an auxiliary one, trained for a moment and evaluated."""
    runs = tmp_path_factory.mktemp("in_distribution")
    recipe = debug(numerate.recipe("counting_samesymbol_plain3_addbigram_rope"))
    tiny = [
        "training.steps=2",
        "training.checkpoint_every=1",
        "evaluation.validation_examples=2",
        "model.hidden_size=16",
    ]
    train(override(recipe, tiny), runs_dir=runs, quiet=True).run.evaluate("50:51", count=2)
    return runs


@pytest.fixture
def folder(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, from where `latest` is the trained run."""
    return stand_in(tmp_path, trained, monkeypatch)


@pytest.mark.parametrize("line", PAGE.commands())
@pytest.mark.slow
def test_a_command_of_the_page_runs(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(in_small(line, TINY), folder, capsys)


def test_every_checkpoint_of_a_run_is_evaluated(trained: Path) -> None:
    results = numerate.load("latest", trained).evaluate("50", count=2, checkpoint="all")
    assert {record["step"] for record in results} == {1, 2}


def test_the_settings_of_the_page_are_settings() -> None:
    for text in PAGE.settings("Config keys"):
        with case(text):
            set_one(text, "counting_samesymbol_mod10_ape")


def test_every_published_command_option_and_key_stands_on_the_page() -> None:
    assert PAGE.missing(KEYS) == []


def test_every_published_task_stands_on_the_page() -> None:
    shown = {text for section, theirs, _ in PAGE.rows if section == "Tasks and data" for text in told(theirs)}
    assert set(published_tasks()) <= shown


def test_every_published_model_stands_on_the_page() -> None:
    from numerate.recipes.inductive_counting import MODELS

    shown = PAGE.shown_recipes()
    assert {model for model in MODELS for name in shown if name.endswith(f"_{model}")} == set(MODELS)


def test_every_line_of_ours_is_a_command_a_setting_or_none() -> None:
    assert PAGE.unanswered() == []

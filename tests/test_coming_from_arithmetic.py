"""Promises of docs/coming-from-arithmetic.md: every command in a middle column runs, every setting is one."""

import sys
from pathlib import Path

import pytest
import torch

import numerate
from numerate.config import override
from numerate.evaluation.grid import Grid
from numerate.experiments.train import debug, train
from numerate.recipes.abacus import ROWS
from numerate.tasks.arithmetic import Arithmetic

sys.path.append(str(Path(__file__).parent))

from cases import case
from pages import Page, in_small, run_here, set_one, stand_in

torch.set_num_threads(1)

PAGE = Page("coming-from-arithmetic.md")

TINY = {
    "train": "preset=debug training.steps=1 training.shuffle_window=1 evaluation.validation_examples=1",
    "run": "preset=debug training.steps=1 training.shuffle_window=1 evaluation.validation_examples=1 workers=1",
    "evaluate": "grid=1:2x1:2 count=2",
    "data": "count=20",
}
"""What is added to a command, so that it is done in a moment."""

KEYS = """
    name base_dir budget overall_budget seed dryrun data arch objective_layout layers_in_recurrent_block
    maximal_recurrence max_backprop maximal_recurrence_in_eval hidden_size intermed_size input_injection_type
    initial_hidden_randomized state_init norm norm_scheme nonlin tie_weights final_norm head throttle alpha
    mask_before_equals local_compilation loss_reduction forward_only_model_with_skip pos_embedding max_seq_length
    max_abacus_len normalization type rotary_embedding max_length num_attention_heads sequence_op microbatch_size
    compile_torch fullgraph mixed_precision save_intermediate_checkpoints save_every_nth_step save_every_n_minutes
    save_intermediate_model_name save_final_model forbid_dataset_preprocessing print_loss_every_nth_step threads path
    early_termination lr batch_size batch_size_ramp warmup_steps cooldown_steps steps scheduler gradient_clipping
    tokenized_dataset_path tokenizer_type reverse_inputs extended_eval greedy temp token_limit max_rec remove_padding
    large ood_only up_to_40 up_to_50 checkerboard big_eval_step_ max_size_given start_ind_1_given start_ind_2_given mul
    pos_arth pos_arth_ood pad_zeros checkpoint arch_modifications
    create_data_split.py create_pos_or_variants.py pretrain.py torchrun arithmetic_eval_quicker.py sort_eval.py
    gen_eval_script.py pretty_plotter.py pretty_plotter_big.py pretty_plotter_sort.py dataset_analysis.py
    upload_processed_dataset.py load_local_model.py cramming_base_dir wandb.entity wandb.project abacus
    addition_ff.sh addition_lt.sh multiplication.sh bitwise_or.sh sorting.sh
"""
"""What users of the published system type: commands, scripts, settings, switches."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one in it, trained for a moment and evaluated."""
    runs = tmp_path_factory.mktemp("in_distribution")
    recipe = numerate.recipe("addition_lt_abacus_4x4")
    tiny = ["training.steps=2", "evaluation.validation_examples=2", "evaluation.grid=1:2x1:2"]
    train(override(debug(recipe), tiny), runs_dir=runs, quiet=True).run.evaluate(count=2)
    return runs


@pytest.fixture
def folder(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for the rows of a file, from where `latest` is the trained run."""
    (tmp_path / "sums").mkdir()
    sums = [f"{str(i)[::-1]}+{str(7 * i)[::-1]}={str(8 * i)[::-1]}\n" for i in range(10, 60)]
    (tmp_path / "sums" / "rows.txt").write_text("".join(sums))
    return stand_in(tmp_path, trained, monkeypatch)


def made_small(line: str) -> list[str]:
    """The words of a command as on the page, with what makes it small."""
    more = {"run": ["evaluation.grid=1:1x1:1", "evaluation.examples_per_cell=2"], "data": ["out=written"]}
    line = line.replace(" out=sums", "")  # a folder of the fixture
    return in_small(line, TINY, more.get(line.split()[0], []))


@pytest.mark.parametrize("line", PAGE.commands())
@pytest.mark.slow
def test_a_command_of_the_page_runs(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(made_small(line), folder, capsys)


def test_grids_of_the_page_are_grids() -> None:
    axes = Arithmetic().axes()
    grids = [word[5:] for line in PAGE.commands() for word in line.split() if word.startswith("grid=")]
    assert len(grids) > 10
    assert all(Grid.parse(text, axes).cells() for text in grids)


def test_the_settings_of_the_page_are_settings() -> None:
    for text in PAGE.settings("Settings and switches"):
        with case(text):
            set_one(text, "addition_lt_abacus_4x4")


def test_every_published_command_and_setting_stands_on_the_page() -> None:
    assert PAGE.missing(KEYS) == []


def test_every_published_recipe_stands_on_the_page() -> None:
    published = {name for name, row in ROWS.items() if row.base == "abacus_paper.published"}
    assert published <= PAGE.shown_recipes()


def test_every_line_of_ours_is_a_command_a_setting_or_none() -> None:
    assert PAGE.unanswered() == []

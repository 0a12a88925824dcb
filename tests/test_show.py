"""Promises of `numerate show` about the size of a model."""

import os
import sys
from pathlib import Path

import pytest

from numerate.cli import main
from numerate.commands.catalogue import parameter_count
from numerate.config import override
from numerate.studies.naming import load_recipe_or_study
from numerate.training.recipe import Recipe


def recipe(name: str, *settings: str) -> Recipe:
    found = override(load_recipe_or_study(name), list(settings))
    assert isinstance(found, Recipe)
    return found


def test_show_tells_how_many_parameters_a_model_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "addition_abacus", "model.hidden_size=64"]) == 0
    told = capsys.readouterr().out
    one = recipe("addition_abacus", "model.hidden_size=64")
    model = one.model.build(one.tokenizer.build_vocabulary(one.task), one.seed)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert f"parameters: {count:,}\n" in told


def test_a_model_of_billions_is_counted_without_memory_for_them() -> None:
    pytest.importorskip("transformers", reason="T5 is held by transformers")
    settings = ("model=T5(size=11b)", "layout=Seq2Seq")
    count = int(parameter_count(recipe("addition_abacus", *settings)).replace(",", ""))
    assert 11.2e9 < count < 11.4e9


def test_what_needs_files_that_are_not_here_is_said_and_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers", reason="subwords are read by tokenizers")
    monkeypatch.setenv("NUMERATE_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    before = getattr(sys.modules.get("huggingface_hub.constants"), "HF_HUB_OFFLINE", False)
    told = parameter_count(recipe("number_loss_small_ce", "tokenizer=Subwords(tokenizer=nobody/has-it)"))
    assert told.startswith("unknown (tokenizer: nobody/has-it")
    assert "HF_HUB_OFFLINE" not in os.environ
    constants = sys.modules.get("huggingface_hub.constants")
    assert constants is None or before == constants.HF_HUB_OFFLINE, "it stays away from the hub meanwhile alone"
    missing = parameter_count(recipe("number_loss_small_ce", "task=Mathematics"))
    assert missing.startswith("unknown (")
    assert "numerate data fetch mathematics" in missing
    assert "google-t5/t5-small" in parameter_count(recipe("arithmetic_t5_ce"))


def test_show_tells_the_settings_of_a_part_and_how_a_recipe_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "LSTM"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("LSTM, Mixer: Long short-term memory")
    assert "hidden size of the recurrent layer; null:" in out
    assert "use: numerate train RECIPE 'model.mixer=LSTM'" in out
    assert main(["show", "LSTM", "hidden_size=3"]) == 2
    for name in ("XVal", "XValLoss"):
        assert main(["show", name]) == 0
        assert capsys.readouterr().out.count("use: numerate train") == 1, "a spelling, and a loss"


@pytest.mark.parametrize(("words", "same"), [(["help"], ["--help"]), (["help", "train"], ["train", "--help"])])
def test_help_is_a_command_too(words: list[str], same: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for line in (words, same):
        with pytest.raises(SystemExit) as ended:
            main(line)
        assert ended.value.code == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != ""

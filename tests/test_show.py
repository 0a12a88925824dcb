"""Promises of `numerate show`: what there is to know about a name, and the size of a model."""

import os
import re
import sys
from pathlib import Path

import pytest

from numerate import catalogue
from numerate.cli import main
from numerate.commands.show import parameter_count
from numerate.config import override
from numerate.recipes.naming import load_recipe_or_study
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


@pytest.mark.parametrize(("words", "same"), [(["help"], ["--help"]), (["help", "train"], ["train", "--help"])])
def test_help_is_a_command_too(words: list[str], same: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for line in (words, same):
        with pytest.raises(SystemExit) as ended:
            main(line)
        assert ended.value.code == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != ""


def shown(name: str, capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    assert main(["show", name, *settings]) == 0
    return capsys.readouterr().out


def test_show_tells_of_a_part_all_there_is_to_know(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown("LSTM", capsys)
    assert told.startswith("LSTM, Mixer: Long short-term memory")
    assert re.search(r"hidden_size=null +hidden size of the recurrent layer; .* \(1 or more, or null\)\n", told)
    assert "use: numerate train RECIPE 'model.mixer=LSTM'" in told
    assert "Hochreiter and Schmidhuber (1997), https://doi.org/10.1162/neco.1997.9.8.1735" in told
    assert "@article{hochreiter1997long," in told
    assert re.search(r"used by \d+ recipes: .*counting_mod10_lstm", told)
    assert "addition_abacus" not in told
    assert 'at width 128:\n    >>> mixer = LSTM(output_projection=False, initialization="torch")\n' in told


def test_a_part_is_shown_with_the_settings_in_its_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown("Learned(position_ids=DigitIndex,max_position_embeddings=8)", capsys)
    assert told.startswith("Learned(position_ids=DigitIndex,max_position_embeddings=8), Position: Learned position")
    assert re.search(r"^position_ids=DigitIndex +how position ids.*\n^max_position_embeddings=8 ", told, re.MULTILINE)
    assert re.search(r"^extra_tests=\[svamp\](.*\n)+test=2 ", shown("svamp(test=2)", capsys), re.MULTILINE)


def test_a_name_of_several_things_shows_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown("XVal", capsys).count("use: numerate train") == 1, "a number format, and no loss"
    told = shown("gsm8k", capsys)
    assert told.startswith("gsm8k, Task: GSM8K. GSM8K math word problems")
    assert "use: numerate train RECIPE 'task=gsm8k'" in told
    assert "gsm8k_t5_ntl_was" in told
    assert "gsm8k, dataset: GSM8K, 7,473 + 1,319 word problems with solutions" in told
    assert "use: numerate data fetch gsm8k" in told


def test_parts_of_a_users_file_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "_user_classes", {})
    Path("my.py").write_text(
        "from dataclasses import dataclass\nfrom numerate.config import setting\n"
        "from numerate.mixers.mixer import Mixer\n\n@dataclass(frozen=True)\nclass Mean(Mixer):\n"
        '    """The mean of all tokens."""\n    window: int = setting(3, "number of tokens", at_least=1)\n'
        "    def build(self, hidden_size, backbone):\n        raise NotImplementedError\n"
    )
    told = shown("my.py:Mean", capsys)
    assert told.startswith("my.py:Mean, Mixer: The mean of all tokens.\n\nwindow=3  number of tokens (1 or more)\n")
    assert shown("my.py", capsys) == told
    assert "use: numerate train RECIPE 'model.mixer=my.py:Mean(window=5)'" in shown("my.py:Mean(window=5)", capsys)
    Path("none.py").write_text("x = 1\n")
    assert main(["show", "none.py"]) == 2
    assert "none.py has no part; `numerate show none.py:NAME` shows a recipe" in capsys.readouterr().err

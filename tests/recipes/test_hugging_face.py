"""Promises of the recipe of a Hugging Face model: prompts have the ids of transformers, and weights identify a run."""

import json
import math
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hugging_face import QUIET, save_model, save_models, transformers
from numerate.api import recipe
from numerate.cli import main
from numerate.config import identity
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts
from numerate.recipes.hugging_face import finetuning_recipe
from numerate.runs.pretrained_run import pretrained_run
from numerate.runs.trial import dry_run
from numerate.tasks.plain import plain_examples
from numerate.text.models.pretrained import PretrainedDecoder
from numerate.text.models.pretrained_weights import build_untrained
from numerate.text.models.t5 import T5
from numerate.tokenizers.layout import Seq2Seq

pytestmark = QUIET

NUM_FEWSHOT = "num_fewshot={}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("command", ["evaluate", "compare", "finetune", "show", "train", "sample", "run"])
def test_without_the_packages_of_hugging_face_a_command_names_the_extra(
    command: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("huggingface_hub", "tokenizers", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    task = ["task=Arithmetic"] * (command not in ("show", "run"))
    assert main([*command.split(), "hf:someone/model", *task]) == 2
    message = "numerate: hf:someone/model needs transformers: pip install 'numerate[huggingface]'\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "config.json",
            r'("rms_norm_eps"): [^,]+',
            r"\1: NaN",
            r"has no configuration that .* \(its config\.json has NaN",
        ),
        (
            "tokenizer.json",
            r'(\s"%": \d+)',
            r'\1,"%": 90',
            "259 tokens have 258 ids from 0 to 258; one token may stand twice",
        ),
        ("tokenizer.json", r'(\s"%"): \d+', r"\1: 90", "259 tokens have 258 ids"),
        ("tokenizer_config.json", "^", "]", "transformers cannot load its tokenizer"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused_before_an_evaluation(
    file: str, old: str, new: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    path = save_model(tmp_path / "model") / file
    path.write_text(re.sub(old, new, path.read_text(), count=1))
    assert main(["evaluate", f"hf:{tmp_path}/model", "task=Arithmetic", f"runs_dir={tmp_path}/runs"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(message, error), error
    assert "internal" not in error


def test_infinity_in_a_configuration_is_read() -> None:
    config = transformers.Mamba2Config(
        hidden_size=8, num_heads=2, head_dim=8, num_hidden_layers=1, state_size=2, n_groups=1
    )
    saved = {"config": json.loads(config.to_json_string(use_diff=False)), "tied": True}
    with torch.device("meta"):
        model = build_untrained(transformers, transformers.AutoModelForCausalLM.from_config, saved)
    assert list(model.config.time_step_limit) == [0.0, math.inf]


def prompt_ids(found: Any, question: str = "12+9=") -> list[int]:
    """The ids of a prompt in the tokenizer's own vocabulary."""
    data = EvaluationData.from_recipe(found)
    batch = data.batch(found.task.parse_question(question))
    tokens = extract_prompts(batch)[0] if batch.source is None else batch.source
    assert data.vocabulary.pretrained_ids is not None
    ids: list[int] = data.vocabulary.pretrained_ids[tokens.ids[0, : tokens.lengths[0]].numpy()].tolist()
    return ids


def test_a_recipe_has_the_name_the_weights_and_the_layout_of_the_model(folders: dict[str, Path]) -> None:
    decoder, encoder_decoder = recipe(f"hf:{folders['llama']}"), recipe(f"hf:{folders['t5']}")
    assert (decoder.title, encoder_decoder.title) == ("hf-llama", "hf-t5")
    assert isinstance(decoder.model, PretrainedDecoder)
    assert isinstance(encoder_decoder.model, T5)
    assert isinstance(encoder_decoder.layout, Seq2Seq)
    assert decoder.model.weights == str(folders["llama"])


def test_prompts_have_the_ids_of_transformers(folders: dict[str, Path]) -> None:
    for name, text in {"llama": "Question: 12+9=\nAnswer:", "t5": "12+9="}.items():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folders[name])
        assert prompt_ids(recipe(f"hf:{folders[name]}")) == tokenizer(text)["input_ids"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["chat"])
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "12+9="}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert tokenizer.bos_token_id in expected
    assert prompt_ids(recipe(f"hf:{folders['chat']}", "tokenizer.system_prompt=Add.")) == expected
    assert prompt_ids(recipe(f"hf:{folders['chat']}")) != expected


def test_few_shot_examples_are_training_examples_before_every_question(folders: dict[str, Path]) -> None:
    plain = recipe(f"hf:{folders['llama']}", "task.digits=2", NUM_FEWSHOT.format(2))
    examples = EvaluationData.from_recipe(plain).few_shot_examples
    trained = plain.task.examples("train", 0, 0, 2)
    assert examples == plain_examples(trained)
    decode = transformers.AutoTokenizer.from_pretrained(folders["llama"]).decode
    shown = "".join(f"Question: {one.question}\nAnswer: {one.answer}\n\n" for one in examples)
    assert decode(prompt_ids(plain)) == f"{shown}Question: 12+9=\nAnswer:"
    chat = recipe(f"hf:{folders['chat']}", "task.digits=2", NUM_FEWSHOT.format(2))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["chat"])
    messages = [
        {"role": role, "content": text}
        for one in examples
        for role, text in (("user", one.question), ("assistant", one.answer))
    ]
    messages.append({"role": "user", "content": "12+9="})
    assert prompt_ids(chat) == tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


def test_the_settings_on_the_page_are_settings(folders: dict[str, Path]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluating-models.md").read_text(encoding="utf-8")
    settings = re.findall(r"^\| `(\S+=.*?)` \|", page, re.MULTILINE)
    assert len(settings) == 9
    for text in settings:
        path, _, value = "".join(shlex.split(text)).partition("=")
        found: Any = recipe(f"hf:{folders['chat']}", f"{path}={value}")
        for name in path.split("."):
            found = getattr(found, name)
        assert str(found) in (value, value.title(), "('\\\\n\\\\n',)"), text


def test_other_weights_under_the_same_name_are_another_run(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = save_model(tmp_path / "mine")
    before = recipe(f"hf:{folder}")
    (folder / "README.md").write_text("A model.")
    assert identity(recipe(f"hf:{folder}")) == identity(before)
    save_model(folder, scale=4.0)
    after = recipe(f"hf:{folder}")
    assert identity(after) != identity(before)
    assert replace(after, model=before.model, tokenizer=before.tokenizer) == before


@pytest.mark.parametrize("name", ["llama", "t5", "chat"])
def test_a_folder_that_was_moved_is_the_same_run(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    moved = shutil.copytree(folders[name], tmp_path / "moved")
    assert identity(recipe(f"hf:{moved}")) == identity(recipe(f"hf:{folders[name]}"))
    assert prompt_ids(recipe(f"hf:{moved}")) == prompt_ids(recipe(f"hf:{folders[name]}"))


def test_few_shot_examples_are_not_repeated(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.tsv").write_text("".join(f"{i}+{i}=\t{2 * i}\n" for i in range(10)))
    task = f"task=QuestionFiles(train_file={tmp_path / 'mine.tsv'})"
    assert (
        len(EvaluationData.from_recipe(recipe(f"hf:{folders['llama']}", task, NUM_FEWSHOT.format(8))).few_shot_examples)
        == 8
    )
    with pytest.raises(UserError, match="num_fewshot: must be at most 8, the number of training questions, not 9"):
        prompt_ids(recipe(f"hf:{folders['llama']}", task, NUM_FEWSHOT.format(9)))


@pytest.mark.filterwarnings("ignore:tokenizer.max_length. ")
def test_long_questions_and_answers_fit_into_few_positions_by_default(tmp_path: Path) -> None:
    folder, ids = save_model(tmp_path / "model"), {"bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(n_positions=512, n_embd=16, n_layer=1, n_head=2, vocab_size=259, **ids)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    (tmp_path / "mine.tsv").write_text("".join(f"{i}{'+1' * 300}=\t{'7' * 600}\n" for i in range(9)))
    base, task = recipe(f"hf:{folder}"), f"task=QuestionFiles(train_file={tmp_path / 'mine.tsv'})"
    assert finetuning_recipe(base, ["task.digits=9"]).tokenizer == base.tokenizer
    fitting = finetuning_recipe(base, [task, NUM_FEWSHOT.format(1)])
    assert fitting.tokenizer == replace(base.tokenizer, max_length=255)  # type: ignore[type-var]
    dry_run(fitting, num_timed_steps=0)
    with pytest.raises(UserError, match=r"model: 1024 tokens are more than the 512 position .*tokenizer\.max_length"):
        dry_run(finetuning_recipe(base, [task, "tokenizer.max_length=512"]), num_timed_steps=0)
    with pytest.raises(UserError, match=r"num_fewshot: must be less than 1: the longest prompt has .* the 255 tokens"):
        pretrained_run(fitting, runs_dir=tmp_path).evaluate(count=1)


def test_a_name_on_the_hub_is_its_commit(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = ["a" * 40, "b" * 40]
    model = tmp_path / "models--me--tiny"
    for commit in commits:
        shutil.copytree(folders["chat"], model / "snapshots" / commit)
    (model / "refs").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = []
    for commit in commits:
        (model / "refs" / "main").write_text(commit)
        found.append(recipe("hf:me/tiny"))
        assert found[-1].title == "hf-tiny"
        assert (found[-1].model.revision, found[-1].tokenizer.revision) == (commit, commit)  # type: ignore[attr-defined]
        assert len(prompt_ids(found[-1])) > 10
    assert identity(found[0]) != identity(found[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", r"^hf: must be followed by the folder or name of a model, for example hf:HuggingFaceTB/SmolLM2"),
        ("./nowhere", r"^hf:./nowhere: there is no such folder"),
        ("nobody/nothing", r"^hf:nobody/nothing: .* is no folder, so it must be a name on the Hugging Face hub"),
    ],
)
def test_a_name_that_is_no_model_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe(f"hf:{name}")


def test_what_a_model_cannot_do_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^tokenizer\.chat_template: must be false for .* has no chat template"):
        prompt_ids(recipe(f"hf:{folders['llama']}", "tokenizer.chat_template=true"))
    with pytest.raises(UserError, match=r"^tokenizer\.system_prompt: must be null without chat_template"):
        recipe(f"hf:{folders['llama']}", "tokenizer.system_prompt=Add.")
    with pytest.raises(UserError, match=r"^tokenizer\.question_template: must have \{question\} once"):
        recipe(f"hf:{folders['llama']}", "tokenizer.question_template=Q:")
    with pytest.raises(UserError, match=r"^evaluation\.generation\.answer_pattern: '\(' must be a regular expression"):
        recipe(f"hf:{folders['llama']}", "evaluation.generation.answer_pattern='('")
    with pytest.raises(UserError, match=r"^task: no Task is named 'gsm9k'.*Did you mean 'gsm8k'"):
        recipe(f"hf:{folders['llama']}", "task=gsm9k")
    shutil.copy(folders["llama"] / "config.json", tmp_path)
    with pytest.raises(UserError, match=r"^tokenizer: .* has no files of a tokenizer; `tokenizer.save_pretrained"):
        recipe(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "newer"}')
    with pytest.raises(UserError, match=r"has model type `newer` but .*`pip install --upgrade transformers`"):
        recipe(f"hf:{tmp_path}")

"""Promises of docs/coming-from-dual-attention.md: every command in a middle column runs, every setting is one."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import numerate
from hugging_face import examples_of
from numerate.catalogue import parts_by_kind
from numerate.config import override
from numerate.evaluation.evaluator import EvaluationData
from numerate.published.tiny_names import RUNS
from numerate.recipes.preset import debug
from numerate.runs.train import train
from numerate.tasks.folders import corpora_folder
from numerate.text.data.documents import detect_file_span
from numerate.text.data.prepared import prepare, prepare_texts
from numerate.text.data.vocabularies import save_tokenizer
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER
from numerate.training.recipe import Recipe
from pages import DOCS, Page, in_small, run_here, stand_in

pytest.importorskip("transformers", reason="the extra huggingface is not installed")
pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")

torch.set_num_threads(1)

PAGE = Page("coming-from-dual-attention.md")
DUAL, FINEWEB = "tiny_stories_d64_l4_4+4_symbolic", "fineweb_edu_dual_343m"
STORIES = [f"Story {n}: once upon a time there were {n} cats and a dog." for n in range(200)]

TINY = {
    "train": "preset=debug training.steps=1 training.batch_size=4 training.gradient_accumulation_steps=1 "
    "training.micro_batch_size=null "
    "training.precision=fp32 training.compile=false evaluation.validation_examples=2 task.context_length=16 "
    "model.backbone.num_layers=1 "
    "samples.max_new_tokens=2",
    "evaluate": "count=2",
    "data": "out=written",
    "tokens": "out=written",
    "import": "runs_dir=elsewhere",
}
"""What is added to a command, so that it is done in a moment."""

TINY_FINEWEB = (
    "model.hidden_size=64 model.backbone.num_layers=1 model.mixer.num_relations=8 model.mixer.symbols.num_symbols=8"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stories in the layouts of both programs, tokenizers, prepared corpora, and a run."""
    place = tmp_path_factory.mktemp("there")
    data, known = place / "data", load_tokenizer(CHARACTER_TOKENIZER)
    for name in ("llama2", "gpt2", "tok4096"):
        save_tokenizer(known, data / "tokenizers" / name)
    (data / "tinystories").mkdir()
    for shard in range(50):
        stories = [{"story": story} for story in STORIES[4 * shard : 4 * shard + 4]]
        (data / "tinystories" / f"data{shard:02d}.json").write_text(json.dumps(stories))
    ids = np.concatenate([np.array([known.document_start_id]), *known.encode(STORIES[:40])]).astype("<u2")
    for folder, names in (("bins", ("data00.bin", "data01.bin")), ("fineweb_edu", ("val_0.npy", "train_1.npy"))):
        (data / folder).mkdir()
        for file in names:
            path = data / folder / file
            ids.tofile(path) if file.endswith(".bin") else np.save(path, ids)
    with pytest.MonkeyPatch.context() as patch:
        _surroundings(place, patch)
        prepare("tiny_stories", processes=1)
        (place / "stories.txt").write_text("<|endoftext|>".join(STORIES))
        texts = [detect_file_span(place / "stories.txt")]
        prepare_texts(texts, corpora_folder() / "tiny_stories_2048", tokenizer=CHARACTER_TOKENIZER, processes=1)
        small = [word for word in TINY["train"].split() if "preset" not in word and "context" not in word]
        recipe = override(debug(numerate.recipe(DUAL)), [*small, "task.context_length=32"])
        train(recipe, runs_dir=place / "in_distribution", quiet=True).run.evaluate(count=2)
    return place


def _surroundings(place: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("NUMERATE_DATA", str(place / "data"))
    patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    patch.delenv("NUMERATE_CACHE", raising=False)


@pytest.fixture
def there(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for files of the published programs, from where `latest` is the trained run."""
    _surroundings(place, monkeypatch)
    (tmp_path / "TinyStories_all_data").symlink_to(place / "data" / "bins")
    (tmp_path / "edu_fineweb10B").symlink_to(place / "data" / "fineweb_edu")
    (tmp_path / "stories4096").symlink_to(corpora_folder() / "tiny_stories" / "tokens")
    lines = [json.dumps({"text": story}) for story in STORIES]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    return stand_in(tmp_path, place / "in_distribution", monkeypatch)


def made_small(line: str) -> list[str]:
    """The words of a command as on the page, with what makes it small."""
    words = in_small(line.replace("--size 4096", "--size 290"), TINY)
    if words[0] == "data" and not any(word.startswith("out=") for word in line.split()):
        words.remove("out=written")
    if words[0] == "import" and any(FINEWEB in word for word in words):
        words += TINY_FINEWEB.split()
    if words[0] == "train" and "model.mixer.num_relations=128" in words:
        words.append("model.mixer.num_relations=2")
    untrained = [word for word in line.split() if word == "training.steps=0"]
    return [re.sub(r"^max_new_tokens=\d+$", "max_new_tokens=4", word) for word in words] + untrained


def imported(words: list[str]) -> Recipe:
    """The recipe of an `import`, of which the file or folder is written as the published programs write it."""
    told = dict(word.split("=", 1) for word in words[2:])
    changes = [f"{name}={value}" for name, value in told.items() if name.partition(".")[0] == "model"]
    recipe = override(numerate.recipe(told["recipe"]), changes)
    assert isinstance(recipe, Recipe)
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    weights = numerate.to_published(recipe.model.build(exam.vocabulary, seed=1).state_dict(), recipe.model)
    file = Path(words[1])
    if file.suffix:
        torch.save({"model": weights, "optimizer": {}, "iter_num": 7, "best_val_loss": 1.0}, file)
    else:
        file.mkdir()
        torch.save(weights, file / "pytorch_model.bin")
    return recipe


@pytest.mark.parametrize("line", PAGE.commands())
@pytest.mark.slow
def test_a_command_of_the_page_runs(line: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = made_small(line)
    if words[0] == "import":
        imported(words)
    run_here(words, there, capsys)


def test_the_program_of_the_page_loads_a_checkpoint(there: Path) -> None:
    line = next(line for line in PAGE.commands() if "today.pt" in line)
    imported(made_small(line))
    known: dict[str, dict[str, torch.Tensor]] = {}
    exec(examples_of(PAGE.name)[0], known)
    weights, theirs = known["weights"], known["theirs"]
    assert all(torch.equal(weights[name], theirs[name]) for name in weights)


def test_every_published_run_stands_on_the_page_with_what_it_reached() -> None:
    text = (DOCS / PAGE.name).read_text(encoding="utf-8")
    for run in RUNS:
        assert f"| `numerate train tiny_stories_{run.name}` | {run.loss:.4f}" in text
    fineweb = {name for name in parts_by_kind()["Recipe"] if name.startswith("fineweb_edu_")}
    assert fineweb <= PAGE.shown_recipes()

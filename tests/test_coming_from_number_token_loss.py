"""Promises of docs/coming-from-number-token-loss.md: every command in a middle column runs, every setting is one."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import numerate
from numerate.config import override
from numerate.evaluation import answer_metrics
from numerate.recipes.number_loss import PUBLISHED
from numerate.runs.train import train
from numerate.text.tasks.mathematics import DIFFICULTIES, EXTRAPOLATION_MODULES, MODULES
from pages import Page, in_small, run_here, stand_in, told

transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")
pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")

torch.set_num_threads(1)

PAGE = Page("coming-from-number-token-loss.md")
HERE = Path(__file__).parent

SMALL_STEPS = (
    "preset=debug training.steps=1 training.batch_size=2 evaluation.validation_examples=1 training.checkpoint_every=1"
)
TINY_T5 = "model.hidden_size=16 model.num_layers=1 model.num_heads=2 model.head_dim=8 model.intermediate_size=16"
TINY = {"train": SMALL_STEPS, "evaluate": "grid=1+14 count=2"}
"""What is added to a command, so that it is done in a moment."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer (`tokens`), weights that somebody has trained (`folder`), datasets and a run."""
    place = tmp_path_factory.mktemp("there")
    _tokenizer(place / "tokens")
    _weights(place / "folder")
    _datasets(place / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMERATE_DATA", str(place / "data"))
        patch.chdir(place)
        words = in_small("train mathematics_t5_ntl_was", TINY, offline("mathematics_t5_ntl_was"))
        recipe = override(numerate.recipe("mathematics_t5_ntl_was"), [word for word in words[3:] if "=" in word][:-1])
        run = train(recipe, runs_dir=place / "in_distribution", quiet=True).run
        run.evaluate("1+14", count=2)
    return place


def _tokenizer(folder: Path) -> None:
    """The tests' tokenizer with the token that T5 masks with."""
    shutil.copytree(HERE / "text" / "tiny", folder)
    found = json.loads((folder / "tokenizer.json").read_text())
    last = max(found["model"]["vocab"].values())
    found["added_tokens"].append({**found["added_tokens"][0], "id": last + 1, "content": "<extra_id_0>"})
    (folder / "tokenizer.json").write_text(json.dumps(found))


def _weights(folder: Path) -> None:
    sizes = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 16, "vocab_size": 300}
    with torch.random.fork_rng(devices=()):
        transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).save_pretrained(folder)


def _datasets(folder: Path) -> None:
    shutil.copytree(HERE / "text" / "texts", folder)
    mathematics = folder / "mathematics_dataset"
    for number, module in enumerate(MODULES):
        for part in (*(f"train-{name}" for name in DIFFICULTIES), "interpolate"):
            _questions(mathematics / part / f"{module}.txt", number, part)
    for number, module in enumerate(EXTRAPOLATION_MODULES):
        _questions(mathematics / "extrapolate" / f"{module}.txt", number, "ood_test")


def _questions(path: Path, number: int, part: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"What is {len(part)}{i} plus {number}.5?\n{i}{number}.5\n" for i in range(10)]
    path.write_text("".join(lines))


@pytest.fixture
def there(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder beside which everything lies, from where `latest` is the trained run."""
    for name in ("tokens", "folder"):
        (tmp_path / name).symlink_to(place / name)
    return stand_in(tmp_path, place / "in_distribution", monkeypatch, place / "data")


def offline(name: str, *given: str) -> list[str]:
    """What a published recipe needs so that nothing comes from the hub: tiny random weights, a tokenizer at hand."""
    if name not in PUBLISHED and "_laptop_" not in name:
        return []
    if any(word.startswith("model.weights=") for word in given):
        return ["tokenizer.tokenizer=tokens"]
    small = TINY_T5.replace("model.head_dim=8 ", "") if "numformer" in name else f"model.weights=null {TINY_T5}"
    return ["tokenizer.tokenizer=tokens", "evaluation.grid=null", *small.split()]


def made_small(line: str) -> list[str]:
    words = line.split()
    if words[0] == "train":
        more = offline(*words[1:])
    else:
        more = ["out=written"] if words[0] == "data" and "out=" in line else []
    found = in_small(line, TINY, more)
    own = [word for word in found if word.startswith("grid=")]
    untrained = [word for word in line.split() if word == "training.steps=0"]
    return [word for word in found if word not in own] + own[-1:] + untrained


@pytest.mark.parametrize("line", PAGE.commands())
@pytest.mark.slow
def test_a_command_of_the_page_runs(line: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(made_small(line), there, capsys)


def test_metrics_of_the_page_are_metrics() -> None:
    shown = {text for row in PAGE.rows if row.section == "Metrics" for text in told(row.ours) if " " not in text}
    assert len(shown) > 12
    assert shown <= set(answer_metrics.ANSWER_METRICS)


def test_published_recipes_of_t5_evaluate_at_the_start() -> None:
    late = [name for name in PUBLISHED if not numerate.recipe(name).training.evaluate_at_start]
    assert late == ["mathematics_numformer"], "that one has a program of its own"


def test_every_published_recipe_stands_on_the_page() -> None:
    assert set(PUBLISHED) <= PAGE.shown_recipes()

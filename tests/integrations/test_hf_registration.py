"""Promises of `import numerate`: transformers opens exported runs after it, whichever of the two is imported first."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from hugging_face import DECODERS, QUIET, ids_of, recipe_of, run_of, transformers
from numerate import catalogue
from numerate.config import load_user_parts
from numerate.integrations import hf_registration
from numerate.integrations.hf_export import export
from numerate.models.decoder import Decoder
from numerate.runs.importing import import_folder

pytestmark = QUIET

TRANSFORMERS_FIRST = """
import sys
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

try:
    AutoModelForCausalLM.from_pretrained("exported")
except ValueError as error:
    assert "model type `numerate`" in str(error)
else:
    raise AssertionError("opened without numerate")
found = {"token_ids": AutoTokenizer.from_pretrained("exported")("12+34=", return_tensors="pt")["input_ids"]}
assert not {"numerate", "jaxtyping"} & sys.modules.keys()

import numerate

with torch.no_grad():
    found["logits"] = AutoModelForCausalLM.from_pretrained("exported")(found["token_ids"]).logits
save_file(found, "found.safetensors")
"""

NUMERATE_FIRST = """
import sys
import numerate

assert not {"torch", "transformers"} & sys.modules.keys()
import transformers

getattr(transformers, sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained("exported")
assert type(model).__name__ == "NumerateForCausalLM"
"""

OWN_PART = '''from dataclasses import dataclass

from numerate.mixers.recurrent import GRU


@dataclass(frozen=True)
class Own(GRU):
    """A mixer of a user."""
'''


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(catalogue.__file__).parents[1]))


def in_a_process(script: str, *words: str) -> None:
    subprocess.run([sys.executable, "-c", script, *words], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_a_program_opens_the_tokenizer_without_numerate_and_the_model_after_importing_it() -> None:
    run = run_of(recipe_of(DECODERS["abacus"]))
    export(run, "exported")
    assert not list(Path("exported").rglob("*.py"))
    in_a_process(TRANSFORMERS_FIRST)
    found = load_file("found.safetensors")
    ids = run.recipe.tokenizer.encode("12+34=", run.evaluation_data.vocabulary)
    assert found["token_ids"].tolist() == [ids]
    tokens, _ = ids_of((len(ids),))
    tokens.ids.copy_(found["token_ids"])
    with torch.no_grad():
        torch.testing.assert_close(found["logits"], run.load_model()(tokens).logits, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AutoConfig", "GenerationMixin", "Trainer", "pipeline", "LlamaForCausalLM"])
def test_it_is_registered_whatever_of_transformers_is_imported_first(name: str) -> None:
    export(run_of(recipe_of()), "exported")
    in_a_process(NUMERATE_FIRST, name)


def test_a_part_of_a_user_is_opened_where_its_file_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own_part.py").write_text(OWN_PART)
    monkeypatch.setattr(catalogue, "_user_classes", {})
    run = run_of(recipe_of(Decoder(hidden_size=16, mixer=load_user_parts("own_part.py").Own())))
    export(run, "exported")
    assert 'import numerate\nnumerate.config.load_user_parts("own_part.py")\n' in Path("exported/README.md").read_text()
    tokens, _ = ids_of((9,))
    model = transformers.AutoModelForCausalLM.from_pretrained("exported").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens.ids).logits, run.load_model()(tokens).logits, rtol=0, atol=1e-6)
    assert import_folder("exported").recipe.model == run.recipe.model


@pytest.mark.parametrize(("version", "registered"), [("4.57.1", False), ("5.3.0", False), ("5.10.0.dev0", True)])
def test_releases_of_transformers_whose_configurations_are_others_are_left_alone(
    version: str, registered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[str] = []
    older = ModuleType("transformers")
    older.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setattr(hf_registration, "import_module", imported.append)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setitem(sys.modules, "transformers", older)
    monkeypatch.setitem(sys.modules, "transformers.models.auto.modeling_auto", ModuleType("modeling_auto"))
    hf_registration.register_exported_models()
    assert ("numerate.integrations.hf_decoder" in imported) == registered

"""Promises of exported folders where numerate is not installed: they need torch and transformers, and say what the run
says."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hugging_face import CODE_SPECS, NATIVE_SPECS, QUIET, ids_of, on_the_left, recipe_of, run_of
from numerate import catalogue
from numerate.architectures.delta import GatedDeltaNet
from numerate.config import load_user_parts, to_tree
from numerate.errors import UserError
from numerate.evaluation.generate import greedy_decode
from numerate.experiments.exporting import export, import_folder
from numerate.integrations.hf_code import code_files
from numerate.models.decoder import Decoder

pytestmark = QUIET

OWN_PART = '''"""A mixer of a user."""

from dataclasses import dataclass

from beside import halved
from numerate.config import setting
from numerate.mixers import GRU
from numerate.mixers.mixer import Mixer, TokenMixer


@dataclass(frozen=True)
class Halves(Mixer):
    """Half of what another mixer computes."""

    inside: Mixer = setting(GRU(), "the other mixer")

    def build(self, width, layer, depth, positions):
        return HalvesMixer(self.inside.build(width, layer, depth, positions))


class HalvesMixer(TokenMixer):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x, context):
        return halved(self.inside(x, context))

    def prefill(self, x, context):
        x, state = self.inside.prefill(x, context)
        return halved(x), state

    def step(self, x, context, state):
        x, state = self.inside.step(x, context, state)
        return halved(x), state

    def flops(self, time):
        return self.inside.flops(time)


print("this file runs")
'''

WITHOUT_NUMERATE = """
import sys


class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numerate", "jaxtyping", "beside"):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)


sys.meta_path.insert(0, Refused())

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

given = load_file("given.safetensors")
how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
for argument in sys.argv[1:]:
    folder, trust = argument.split(":")
    if trust:
        try:
            AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
        except ValueError as error:
            assert "trust_remote_code=True" in str(error)
        else:
            raise AssertionError(f"{folder} was read without its code")
    model = AutoModelForCausalLM.from_pretrained(folder, **({"trust_remote_code": True} if trust else {})).eval()
    found = {}
    for side in ("left", "right"):
        ids, mask = given[f"{side}_ids"], given[f"{side}_mask"]
        with torch.no_grad():
            found[f"{side}_logits"] = model(ids, attention_mask=mask).logits[mask == 1]
        if trust or side == "left":  # transformers' own models continue rows behind their padding
            found[f"{side}_text"] = model.generate(ids, attention_mask=mask, **how)[:, ids.shape[1]:].contiguous()
    found["uncached_text"] = model.generate(
        given["left_ids"], attention_mask=given["left_mask"], use_cache=False, **how
    )[:, given["left_ids"].shape[1]:].contiguous()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found["token_ids"] = tokenizer(["12+34="], return_tensors="pt")["input_ids"]
    model.save_pretrained(f"{folder}-again")
    save_file(found, f"{folder}.safetensors")
assert not {"numerate", "jaxtyping"} & sys.modules.keys()
"""


NATIVE = ("llama", "stablelm", "gpt_neox", "gpt_neox_nope", "opt")
NAMES = ("dual_attention", "lstm", "loop", "abacus", "fire", "own", *NATIVE)


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Decoder]]:
    folder = tmp_path_factory.mktemp("parts")
    (folder / "beside.py").write_text("def halved(x):\n    return x / 2\n")
    (folder / "own_part.py").write_text(OWN_PART)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "_user_classes", {})
        own = load_user_parts(folder / "own_part.py").Halves()
        known = {**CODE_SPECS, "own": Decoder(hidden_size=16, mixer=own), **NATIVE_SPECS}
        yield {name: known[name] for name in NAMES}


@pytest.fixture(scope="module")
def elsewhere(specs: dict[str, Decoder], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a program without numerate has read all exported folders, and their runs."""
    folder = tmp_path_factory.mktemp("elsewhere")
    before = Path.cwd()
    os.chdir(folder)
    try:
        tokens, real = ids_of()
        left_ids, left_mask = on_the_left(tokens, real)
        given = {"right_ids": tokens.ids, "right_mask": real, "left_ids": left_ids, "left_mask": left_mask}
        save_file({name: tensor.long().contiguous() for name, tensor in given.items()}, "given.safetensors")
        arguments = []
        for name, spec in specs.items():
            run = run_of(recipe_of(spec))
            export(run, name)
            with torch.no_grad():
                logits = run.load_model()(tokens).logits[real]
            texts = greedy_decode(run.load_model(), tokens, 6, end_id=-1).ids
            ids = torch.tensor([run.recipe.tokenizer.encode("12+34=", run.evaluation_data.vocabulary)])
            save_file({"logits": logits, "text": texts, "token_ids": ids}, f"{name}-expected.safetensors")
            arguments.append(f"{name}:{'' if name in NATIVE else 'trusted'}")
        Path("without_numerate.py").write_text(WITHOUT_NUMERATE)
        subprocess.run(
            [sys.executable, "-I", "without_numerate.py", *arguments],
            check=True,
            env={**os.environ, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_program_without_numerate_computes_the_logits_and_texts_of_the_run(name: str, elsewhere: Path) -> None:
    expected = load_file(elsewhere / f"{name}-expected.safetensors")
    found = load_file(elsewhere / f"{name}.safetensors")
    for side in ("left", "right"):
        torch.testing.assert_close(found.pop(f"{side}_logits"), expected["logits"], rtol=0, atol=1e-5)
    assert torch.equal(found.pop("token_ids"), expected["token_ids"])
    assert "left_text" in found
    assert ("right_text" in found) == (name not in NATIVE)
    for kind, texts in found.items():
        assert torch.equal(texts, expected["text"]), kind


@pytest.mark.parametrize("name", NAMES)
def test_what_that_program_saves_is_the_same_folder_and_is_imported(
    name: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(elsewhere)
    code = {file.name: file.read_text() for file in Path(name).glob("*.py")}
    assert {file.name: file.read_text() for file in Path(f"{name}-again").glob("*.py")} == code
    config, again = (json.loads(Path(folder, "config.json").read_text()) for folder in (name, f"{name}-again"))
    assert again.get("auto_map") == config.get("auto_map")
    runs = [import_folder(folder, runs_dir="imported") for folder in (name, f"{name}-again")]
    assert runs[0].path == runs[1].path


def test_the_code_is_the_source_of_what_the_decoder_uses_and_no_more() -> None:
    lstm, fire = (code_files(CODE_SPECS[name], to_tree(CODE_SPECS[name])) for name in ("lstm", "fire"))
    assert "numerate_mixers_recurrent.py" in lstm.keys() - fire.keys()
    assert "numerate_positions_bias.py" in fire.keys() - lstm.keys()
    assert not {name for name in lstm.keys() | fire.keys() if "task" in name or "training" in name}
    source = (Path(__file__).parents[2] / "src/numerate/positions/bias.py").read_text()
    definition = source[source.index("class FIREBias") : source.index("@dataclass", source.index("class FIREBias"))]
    assert definition.split("\n\n\n")[0] in fire["numerate_positions_bias.py"]
    assert "ALiBi" not in fire["numerate_positions_bias.py"]


@pytest.mark.parametrize("name", ["dual_attention", "delta"])
def test_transformers_finds_all_files_and_no_package_that_may_be_missing(name: str, tmp_path: Path) -> None:
    """On the hub it looks at what every file imports, triton and fla included; releases up to 5.4 copy only files that
    the first one names."""
    dynamic_modules = import_module("transformers.dynamic_module_utils")
    spec = CODE_SPECS.get(name) or Decoder(hidden_size=16, mixer=GatedDeltaNet())
    files = code_files(spec, to_tree(spec))
    for file, text in files.items():
        (tmp_path / file).write_text(text)
        assert {*dynamic_modules.get_imports(tmp_path / file)} <= {"numpy", "torch", *sys.stdlib_module_names}, file
    named = dynamic_modules.get_relative_imports(tmp_path / "modeling_numerate.py")
    assert {f"{module}.py" for module in named} == files.keys() - {"modeling_numerate.py"}


def test_packages_of_parts_are_copied_and_what_cannot_be_copied_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "acme_parts"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "__init__.py").write_text("from .functions import halved as halved\n")
    (package / "inner" / "functions.py").write_text("def halved(x):\n    return x / 2\n\n\nUNUSED = 1\n")
    (package / "mixers.py").write_text(OWN_PART.replace("from beside import", "from .inner import"))
    monkeypatch.syspath_prepend(tmp_path)
    part = import_module("acme_parts.mixers").Halves
    spec = Decoder(mixer=part())
    tree = {"kind": "Decoder", "mixer": {"kind": "acme_parts:Halves"}}
    files = code_files(spec, tree)
    assert "from .acme_parts_inner_functions import halved\n" in files["acme_parts_mixers.py"]
    assert "UNUSED" not in files["acme_parts_inner_functions.py"]
    assert "this file runs" not in files["acme_parts_mixers.py"]
    assert "'acme_parts:Halves': Halves," in files["modeling_numerate.py"]
    refused = OWN_PART.replace("from numerate.mixers.mixer import Mixer, TokenMixer", "import numerate as Mixer")
    (package / "mixers.py").write_text(refused)
    with pytest.raises(UserError, match="cannot copy what `import numerate as Mixer` imports; write `from MODULE"):
        code_files(spec, tree)

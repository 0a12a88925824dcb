"""Promises of safety: what lies in the folder of a run, a study, a job or an exported model is data and never runs."""

import ast
import hashlib
import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import numerate
from failures import Payload
from newcomers import forget_parts_of_users
from numerate.cli import main
from numerate.errors import UserError
from numerate.records.schema import checksum
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.text.models.pretrained import PretrainedDecoder
from numerate.vocabulary import Vocabulary

torch.set_num_threads(1)

SRC = Path(numerate.__file__).parent

# What could run is listed ---------------------------------------------------------------------------------------------

NAMES = {"eval", "exec", "compile", "__import__"}
METHODS = {
    *("load", "loads", "load_module", "Unpickler", "read_pickle", "load_dataset", "load_from_disk"),
    *("run_path", "run_module", "spec_from_file_location", "module_from_spec", "exec_module", "import_module"),
    *("from_pretrained", "from_config", "system", "popen", "Popen", "check_output", "check_call"),
}
"""Calls that may run what they are given: as such, and as the last name of a longer one."""

PIPE = "from the command that began this worker, or the worker to its command, by a pipe"
HOUSE = "a module of numerate, by a name that stands in its own catalogues"
ALLOWED = {
    ("__init__.py", "import_module"): HOUSE,
    ("catalogue.py", "importlib.import_module"): HOUSE,
    ("cli.py", "import_module"): HOUSE,
    ("commands/catalogue.py", "import_module"): HOUSE,
    ("errors.py", "importlib.import_module"): "a package of an extra, as named in the call",
    ("integrations/hf_registration.py", "import_module"): HOUSE,
    ("recipes/__init__.py", "import_module"): HOUSE,
    ("recipes/rows.py", "import_module"): HOUSE,
    ("runs/presenting.py", "import_module"): HOUSE,
    ("config/packaged_parts.py", "entry.load"): "what an installed package declares",
    ("config/user_parts.py", "compile"): "a file that the user named, or approved before",
    ("config/user_parts.py", "exec"): "a file that the user named, or approved before",
    ("runs/engines/local.py", "pickle.loads"): PIPE,
    ("runs/engines/slurm_task.py", "pickle.loads"): "by submitit's own job file",
    ("runs/engines/worker.py", "pickle.loads"): f"{PIPE}, or by submitit's own job file",
    ("integrations/weight_files.py", "torch.load"): "weights_only=True",
    ("text/models/pretrained_weights.py", "auto_class.from_pretrained"): "trust_remote_code=False",
    ("text/models/pretrained_weights.py", "package.AutoConfig.from_pretrained"): "trust_remote_code=False",
    ("text/tokenizers/prompt_formats.py", "AutoTokenizer.from_pretrained"): "trust_remote_code=False",
    ("text/models/pretrained_weights.py", "package.GenerationConfig.from_pretrained"): "its class reads JSON",
    ("plain_yaml.py", "yaml.load"): "by a loader of plain data",
    ("tasks/corpus_files.py", "np.load"): "allow_pickle=False",
    ("runs/engines/slurm.py", "subprocess.run"): "scancel, for the jobs of a folder",
    ("runs/engines/slurm_queue.py", "subprocess.run"): "squeue, for the jobs of a folder",
    ("training/provenance.py", "subprocess.run"): "git, for the commit of the current folder",
    ("training/trainer.py", "self.load"): "a checkpoint, by safetensors and JSON",
}
KEYWORDS = {
    "torch.load": ("weights_only", "True"),
    "np.load": ("allow_pickle", "False"),
    "auto_class.from_pretrained": ("trust_remote_code", "False"),
    "package.AutoConfig.from_pretrained": ("trust_remote_code", "False"),
    "AutoTokenizer.from_pretrained": ("trust_remote_code", "False"),
}


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    for file in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield file.relative_to(SRC).as_posix(), node, ast.unparse(node.func)


def may_run(node: ast.Call, name: str) -> bool:
    last = name.rpartition(".")[2]
    if last == "import_module":
        return not isinstance(node.args[0], ast.Constant)
    if name.startswith("json.") or name == "platform.system":
        return False
    if name == "subprocess.run":
        return True
    return name in NAMES | METHODS - {"load"} or ("." in name and last in METHODS)


def test_whatever_may_run_what_it_is_given_is_listed_with_its_reason() -> None:
    found = {(file, name) for file, node, name in calls() if may_run(node, name)}
    assert found == ALLOWED.keys(), "read docs/security.md before this list grows"
    for _, node, name in calls():
        if name in KEYWORDS:
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert given[KEYWORDS[name][0]] == KEYWORDS[name][1], name


def test_what_unpickles_or_evaluates_is_called_by_the_name_of_its_module() -> None:
    suspicious = {"pickle", "cloudpickle", "marshal", "shelve", "runpy", "dill", "joblib", "torch", "numpy", "yaml"}
    for file in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in suspicious:
                assert not {name.name for name in node.names} & (METHODS | {"*", "safe_load", "unsafe_load"}), file
            if isinstance(node, ast.Import):
                renamed = {name.asname for name in node.names if name.name in suspicious}
                assert renamed <= {None, "np"}, file


def bomb(key: str) -> str:
    """A line of YAML whose aliases stand for 10 billion texts."""
    parts = [f", {b}: &{b} [{','.join([f'*{a}'] * 10)}]" for a, b in pairwise("abcdefghij")]
    return f"{key}: {{a: &a [{','.join('x' * 10)}]{''.join(parts)}}}\n"


@pytest.mark.parametrize("content", [bomb("recipe"), bomb("name"), "recipe: &a {<<: {b: 1}}\nname: *a\n"])
def test_aliases_in_yaml_of_somebody_else_are_refused_at_once(content: str, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "somebody" / "1"
    run.mkdir(parents=True)
    for file in (run / "recipe.yaml", run.parent / "study.yaml", tmp_path / "mine.yaml"):
        file.write_text(f"format: 3\n{content}")
    for command in (["list", "runs"], ["report", "mine"], ["report", "latest"], ["status", "somebody"]):
        main([*command, f"runs_dir={tmp_path / 'runs'}"])
    with pytest.raises(UserError, match=r"recipe\.yaml, line \d: damaged: cannot be read as YAML \(YAML aliases"):
        numerate.load(run).folder.metadata()
    with pytest.raises(UserError, match=r"mine\.yaml, line \d: invalid YAML: YAML aliases"):
        numerate.recipe(str(tmp_path / "mine.yaml"))


# Folders of somebody else ---------------------------------------------------------------------------------------------

EVIL = """
from pathlib import Path
(Path(__file__).parent.parent / "ran").touch()
from dataclasses import dataclass
from numerate.mixers.attention import Attention
from numerate.models.decoder import Decoder
from numerate.training.recipe import Recipe

@dataclass(frozen=True)
class Evil(Attention):
    pass

@dataclass(frozen=True)
class EvilDecoder(Decoder):
    pass

@dataclass(frozen=True)
class EvilRecipe(Recipe):
    pass
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("security") / "runs"
    small = "model.hidden_size=16 training.steps=2 training.batch_size=8 training.shuffle_window=1"
    tiny = [*small.split(), "evaluation.validation_examples=4"]
    numerate.train(numerate.recipe("addition_rotary", *tiny), runs_dir=runs, quiet=True)
    return runs


@pytest.fixture
def evil(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of somebody else with a file beside it, which writes `ran` when it runs; we stand in its folder."""
    (found,) = (path.parent for path in runs.glob("*/*/recipe.yaml"))
    evil = tmp_path / "evil"
    shutil.copytree(found, evil)
    (evil / "evil.py").write_text(EVIL)
    monkeypatch.chdir(evil)
    monkeypatch.setenv("NUMERATE_CONFIG", str(tmp_path / "configuration"))
    forget_parts_of_users(monkeypatch)
    return evil


def hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def poisoned(evil: Path, **kinds: Any) -> None:
    """Puts other kinds into its recipe: of the recipe itself, its model, or its mixer."""
    file = evil / "recipe.yaml"
    head = yaml.safe_load(file.read_text())
    recipe = head["recipe"]
    for where, kind in kinds.items():
        if isinstance(kind, str) and where == "mixer_text":
            recipe["model"]["mixer"] = kind
            continue
        node = {"recipe": recipe, "model": recipe["model"], "mixer": recipe["model"]["mixer"]}[where]
        node["kind"] = kind
        if ".py:" in kind:
            node["source"] = hash_of(evil / "evil.py")
    head["checksum"] = checksum(head)
    file.write_text(yaml.safe_dump(head, sort_keys=False))


KINDS = [
    {"mixer": "evil.py:Evil"},
    {"mixer_text": "evil.py:Evil"},
    {"mixer_text": "evil.py:Evil(num_heads=2)"},
    {"model": "evil.py:EvilDecoder"},
    {"recipe": "evil.py:EvilRecipe"},
    {"mixer": "evil:Evil"},
    {"recipe": "evil:EvilRecipe"},
]


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "-".join(map(str, *kinds.items())))
def test_a_run_folder_that_names_a_file_runs_nothing_of_it(
    evil: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kinds: dict[str, str]
) -> None:
    poisoned(evil, **kinds)
    refused = [["ask", str(evil), "1+2="], ["evaluate", str(evil), "grid=1:1", "count=2"], ["show", "recipe.yaml"]]
    refused += [["train", "recipe.yaml"], ["export", str(evil), "out=there"], ["maps", str(evil), "1+2="]]
    for words in refused:
        assert main(words) == 2, words
        said = capsys.readouterr().err
        assert "evil" in said
        assert "fault of the program" not in said
    for words in (["report", str(evil)], ["compare", str(evil)], ["list", "runs", f"runs_dir={tmp_path}"]):
        main(words)
    assert not (tmp_path / "ran").exists()
    assert "evil" not in sys.modules
    if "evil.py:" in str(kinds):
        assert main(["ask", str(evil), "1+2=", "--parts", "evil.py"]) == 0, "the user may name it"
        assert (tmp_path / "ran").exists()


def test_a_checkpoint_that_is_a_pickle_is_damaged_and_not_unpickled(evil: Path, tmp_path: Path) -> None:
    files = [file for file in (evil / "checkpoints").rglob("*") if file.is_file()]
    assert files
    for file in files:
        file.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    for words in (["ask", str(evil), "1+2="], ["evaluate", str(evil), "grid=1:1", "count=2"], ["train", "recipe.yaml"]):
        assert main([*words, f"runs_dir={tmp_path}"] if words[0] == "train" else words) in (0, 1, 2)
    assert not (tmp_path / "ran").exists()


def test_a_study_folder_whose_plan_names_a_file_runs_nothing_of_it(evil: Path, tmp_path: Path) -> None:
    recipe = yaml.safe_load((evil / "recipe.yaml").read_text())["recipe"]
    recipe["model"]["mixer"] = {"kind": "evil.py:Evil", "source": hash_of(evil / "evil.py")}
    study = StudyFolder(tmp_path / "runs" / "study")
    study.update([StudyRun.of("x/1", "k", recipe)])
    for command in ("status", "results", "compare"):
        main([command, str(study.path)])
    assert not (tmp_path / "ran").exists()


# Exported folders -----------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(evil: Path, tmp_path: Path) -> Path:
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from numerate.integrations.hf_export import export

    folder = export(numerate.load(evil), tmp_path / "exported", tokenizer=False)
    for name in ("payload.py", "evil.py", "modeling_numerate.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    return folder


def test_an_exported_folder_that_names_code_runs_nothing_of_it(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(exported)
    config = json.loads((exported / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "payload.C", "AutoModelForCausalLM": "payload.M"}
    (exported / "config.json").write_text(json.dumps(config))
    assert AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=False) is not None
    assert main(["import", str(exported), f"runs_dir={tmp_path / 'imported'}"]) == 0
    for kind in ("payload.py:Evil", "payload:Evil"):
        config["recipe"]["model"]["mixer"] = {"kind": kind, "source": hash_of(exported / "payload.py")}
        (exported / "config.json").write_text(json.dumps(config))
        assert main(["import", str(exported)]) == 2
        assert "payload" in capsys.readouterr().err
        with pytest.raises(UserError, match="payload"):
            AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "recipe.yaml", "checkpoints", "checkpoints/step-000002/state.json"])
def test_a_link_in_the_folder_of_a_run_is_not_followed_by_what_copies_it(name: str, evil: Path, tmp_path: Path) -> None:
    from numerate.integrations.hf_export import export

    (evil / name).rename(tmp_path / "secret")
    (evil / name).symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=f"{name}: must not be a link"):
        export(numerate.load(evil), tmp_path / "exported", tokenizer=False)
    assert not (tmp_path / "exported").exists()


def test_exported_weights_that_are_a_pickle_are_not_unpickled(exported: Path, tmp_path: Path) -> None:
    (exported / "model.safetensors").unlink()
    torch.save({"weights": Payload(tmp_path / "ran")}, exported / "pytorch_model.bin")
    assert main(["import", str(exported)]) == 2
    recipe = "tiny_stories_laptop_width"
    for name in ("ckpt.pt", "weights.bin"):
        shutil.copy(exported / "pytorch_model.bin", tmp_path / name)
        assert main(["import", str(tmp_path / name), f"recipe={recipe}"]) == 2
    assert not (tmp_path / "ran").exists()


def test_a_configuration_of_transformers_that_names_code_runs_nothing_of_it(exported: Path, tmp_path: Path) -> None:
    spoken = {"model_type": "t5", "auto_map": {"AutoModelForCausalLM": "payload.M"}, "_name_or_path": str(exported)}
    with pytest.raises(UserError):
        PretrainedDecoder(config=json.dumps(spoken)).build(Vocabulary.with_digits(["+", "="]), 0)
    (exported / "config.json").write_text(json.dumps({**spoken, "model_type": "unheard_of"}))
    with pytest.raises(UserError):
        PretrainedDecoder(weights=str(exported)).build(Vocabulary.with_digits(["+", "="]), 0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("named", ["evil/kernel", "sdpa|evil/kernel", {"": "evil/kernel"}])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_configuration_that_names_a_kernel_of_the_hub_does_not_fetch_it(
    key: str, named: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, modeling_utils
    from transformers.integrations import hub_kernels

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**small, vocab_size=30)).save_pretrained(tmp_path / "model")
    spoken = {**json.loads((tmp_path / "model" / "config.json").read_text()), key: named}
    (tmp_path / "model" / "config.json").write_text(json.dumps(spoken))
    fetched: list[str] = []
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda repository, *_, **__: fetched.append(repository))
    for module in (hub_kernels, modeling_utils):  # as where the package kernels is installed
        monkeypatch.setattr(module, "is_kernels_available", lambda *_, **__: True)
    vocabulary, weights = Vocabulary.with_digits(["+", "="]), PretrainedDecoder(weights=str(tmp_path / "model"))
    for build in (
        lambda: PretrainedDecoder(config=json.dumps(spoken)).build(vocabulary, 0),
        lambda: weights.build(vocabulary, 0),
        lambda: weights.build_from_config(vocabulary, 0, {"config": spoken, "tied": True}),
    ):
        with pytest.raises(UserError, match="names code of the hub"):
            build()
    assert not fetched

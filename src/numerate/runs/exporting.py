"""Export of a run as a Hugging Face folder, and import: `numerate export` and `numerate import`."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from numerate.config import check_same_defaults, from_tree, identity, override, to_tree, yaml_text
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.integrations.weight_files import DEFAULT_TOLERANCE, LogitCheck, read_weights
from numerate.models.decoder import Decoder
from numerate.models.strict_weights import StrictWeights, match_state_dict
from numerate.published.dual_attention_weights import from_published
from numerate.reports.card import card
from numerate.reports.groups import group_runs
from numerate.reports.records import read_run
from numerate.reports.sections import Subject
from numerate.runs.run import Run
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.data.new_folder import atomic_folder, check_not_existing
from numerate.text.models.pretrained_weights import import_transformers
from numerate.tokenizers.layout import Continuation, NextToken
from numerate.training import checkpoint, disk, provenance
from numerate.training.preflight import tokenizer_fingerprint
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, resolve_runs_dir

_INTRODUCTION = """The checkpoint of step {step:,} of a run of numerate. {needs}

```python
{numerate}from transformers import {classes}

folder = "{name}"  # or its repository on the Hub
{lines}
```"""
_NEEDS_NUMERATE = """transformers opens it in a program that imports numerate \
(`pip install 'numerate[huggingface]'`); without it, it says that it does not recognize the model type `numerate`. \
`numerate import {name}` makes a run of it again."""


def export(
    run: Run,
    out: str | Path,
    *,
    checkpoint_name: str = "final",
    tokenizer: bool = True,
    license: str | None = None,
) -> Path:
    """Writes a checkpoint of a run as a folder that `AutoModelForCausalLM` and `AutoTokenizer` open after `import
    numerate`.

    `checkpoint_name` is final, best or a step. The folder has a model card (README.md) with the results of the run, if
    it was evaluated, and metadata for the Hub, such as the identifier of a `license`. It is created by one rename, so
    that a partial export never has its name. A Hugging Face model is written as transformers has it: with the ids of
    its own tokenizer, and adapters merged into the weights. Raises `UserError` for a run whose model is not a causal
    decoder, for a tokenizer that cannot be converted to Hugging Face (`tokenizer=False` leaves it out), for a link
    among the files of the run, and if `out` already exists.
    """
    recipe, path = run.recipe, Path(out).expanduser()
    check_not_existing(path)
    run.folder.check_no_links()
    import_transformers("export")
    if recipe.model.is_hugging_face:
        return _export_pretrained(run, path, checkpoint_name, tokenizer, license)
    spec = _exportable_decoder(recipe)
    from numerate.integrations import hf_folders, hf_tokenizers

    vocabulary = run.evaluation_data.vocabulary
    special_ids = hf_tokenizers.special_ids(recipe.tokenizer, vocabulary)
    context_length = recipe.task.context_length if isinstance(recipe.task, LanguageModeling) else None
    hf_tokenizer = None
    if tokenizer:
        hf_tokenizer = hf_tokenizers.to_fast_tokenizer(recipe.tokenizer, recipe.task, vocabulary, context_length)
    stored_checkpoint = _one_checkpoint(run, checkpoint_name)
    config = hf_folders.make_config(recipe, spec, vocabulary, stored_checkpoint.step, special_ids, context_length)
    model = run.load_model(stored_checkpoint).cpu()
    with atomic_folder(path) as folder:
        hf_folders.write_folder(folder, config, model, hf_tokenizer)
        _write_card(folder, run, stored_checkpoint.step, path.name, license)
        _finish_files(folder)
    return path


def _export_pretrained(run: Run, path: Path, checkpoint_name: str, with_tokenizer: bool, license: str | None) -> Path:
    """Writes the Hugging Face model of a run as a folder that transformers opens by itself."""
    from numerate.integrations import hf_pretrained

    recipe, vocabulary, tokenizer = run.recipe, run.evaluation_data.vocabulary, None
    if with_tokenizer:
        tokenizer = hf_pretrained.to_transformers_tokenizer(recipe.tokenizer, recipe.task, vocabulary)
    stored_checkpoint = _one_checkpoint(run, checkpoint_name)
    model: Any = run.load_model(stored_checkpoint).cpu()
    with atomic_folder(path) as folder:
        hf_pretrained.write_pretrained_folder(folder, model, vocabulary, tokenizer)
        _write_card(folder, run, stored_checkpoint.step, path.name, license)
        _finish_files(folder)
    return path


def _one_checkpoint(run: Run, name: str) -> checkpoint.Checkpoint:
    checkpoints = run.checkpoints(name)
    if len(checkpoints) != 1:
        raise UserError(f"checkpoint: {name} means {len(checkpoints)} checkpoints; must be final, best or a step")
    return checkpoints[0]


def needed_lines(run: Run) -> list[str]:
    """What a program runs before transformers opens the export of a run: none for a model of transformers."""
    if run.recipe.model.is_hugging_face:
        return []
    files = re.findall(r"kind: (\S+\.py):", yaml_text(to_tree(run.recipe)))
    return ["import numerate", *(f'numerate.config.load_user_parts("{file}")' for file in dict.fromkeys(files))]


def _write_card(folder: Path, run: Run, step: int, name: str, license: str | None) -> None:
    """Writes README.md: metadata of the Hub, how the model is loaded, results with intervals, command and citation."""
    is_ours = not run.recipe.model.is_hugging_face
    metadata = {"license": license} if license else {}
    metadata |= {"library_name": "numerate" if is_ours else "transformers", "pipeline_tag": "text-generation"}
    weights = str(getattr(run.recipe.model, "weights", None) or "")
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", weights) and not Path(weights).exists():  # a name on the Hub
        metadata["base_model"] = weights
    is_seq2seq = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("is_encoder_decoder", False)
    opened = {"model": "AutoModelForSeq2SeqLM" if is_seq2seq else "AutoModelForCausalLM"}
    opened |= {"tokenizer": "AutoTokenizer"} if (folder / "tokenizer_config.json").is_file() else {}
    introduction = _INTRODUCTION.format(
        step=step,
        name=name,
        needs=_NEEDS_NUMERATE.format(name=name) if is_ours else "transformers alone opens it.",
        numerate="".join(f"{line}\n" for line in needed_lines(run)),
        classes=", ".join(opened.values()),
        lines="\n".join(f"{what} = {auto_class}.from_pretrained(folder)" for what, auto_class in opened.items()),
    )
    subject = Subject(group_runs([read_run(run.path)])[:1], "run")
    (folder / "README.md").write_text(card(subject, name, introduction, metadata | {"tags": ["numerate"]}), "utf-8")


def _finish_files(folder: Path) -> None:
    """Flushes the files of a new folder to disk, and makes them readable as the user's umask says: those of safetensors
    are the owner's alone."""
    mode = (folder / "config.json").stat().st_mode
    for file in folder.iterdir():
        file.chmod(mode)
        disk.fsync(file)
    disk.fsync(folder)


def import_folder(
    folder: str | Path,
    *,
    runs_dir: str | Path | None = None,
    name: str | None = None,
    settings: Sequence[str] = (),
    check: str | Path | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> Run:
    """Creates a run from a folder saved by Hugging Face, such as an exported and then fine-tuned model.

    It works like any other run, also for `init_from=`. Its id is a hash of recipe and weights: importing the same
    folder twice gives the same run, under its latest `name`. `settings` override settings of the recipe as on the
    command line, for a tokenizer or data at another path. `check` and `tolerance` are as for `import_published`. Raises
    `UserError` for any other folder, for weights that do not match the recipe (see `numerate.models.strict_weights`),
    and if the tokenizer or task now has other tokens.
    """
    import_transformers("import")
    from numerate.integrations import hf_folders

    path = Path(folder).expanduser()
    config = hf_folders.read_configuration(path)
    weight_file = read_weights(path)
    recipe = from_tree(config["recipe"], path / "config.json", expected_class=Recipe)
    recipe = override(replace(recipe, name=name), settings)
    assert isinstance(recipe, Recipe)
    evaluation_data = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    if config["vocabulary"].get("fingerprint") != hf_folders.fingerprint(evaluation_data.vocabulary):
        raise UserError(
            f"{path}: was exported with a vocabulary different from the one its {type(recipe.task).__name__} has here; "
            "the tokenizer and texts must be those it was trained with (set their location with task.tokenizer=)"
        )
    weights = StrictWeights(
        weight_file.weights, str(path), normalize_name=lambda tensor: tensor.removeprefix("model.")
    ).tensors
    logit_check = weight_file.logit_check(check, tolerance)
    return _create_run(recipe, evaluation_data, weights, config["step"], logit_check, path, runs_dir)


def import_published(
    file: str | Path,
    recipe: Recipe,
    *,
    runs_dir: str | Path | None = None,
    name: str | None = None,
    check: str | Path | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> Run:
    """Creates a run from weights of the published dual attention code, for a recipe with the same architecture.

    `file` is a checkpoint of its `train.py` (ckpt.pt), a file of weights (.pt, .bin, .safetensors), or a folder with
    one, as the package dual-attention writes for the hub. No code in pickles is executed.

    `check` is a file with reference logits, see `numerate.integrations.weight_files`: those of the model must not
    differ by more than `tolerance`. Without it, the logits in the file or folder itself are used, if any.

    Raises `UserError` for a file without weights, for weights that do not match the recipe (see
    `numerate.published.dual_attention_weights`), and if logits differ.
    """
    path = Path(file).expanduser()
    if not isinstance(recipe.model, Decoder):
        raise UserError(f"recipe: its model is a {type(recipe.model).__name__}; must be a Decoder")
    weight_file = read_weights(path)
    weights = from_published(weight_file.weights, recipe.model, where=str(path))
    evaluation_data = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    recipe = replace(recipe, name=name)
    return _create_run(recipe, evaluation_data, weights, 0, weight_file.logit_check(check, tolerance), path, runs_dir)


def _create_run(
    recipe: Recipe,
    evaluation_data: EvaluationData,
    weights: dict[str, Tensor],
    step: int,
    check: LogitCheck | None,
    path: Path,
    runs_dir: str | Path | None,
) -> Run:
    """The run of a recipe and imported weights, created unless it exists."""
    model = recipe.model.rebuild(evaluation_data.vocabulary, recipe.seed, None)
    weights = match_state_dict(model, weights, str(path))
    if check is not None:
        model.load_state_dict(weights)
        check.check(model, evaluation_data.vocabulary.size)
    source = str(path.resolve())
    state = {"tokenizer": tokenizer_fingerprint(recipe.tokenizer, recipe.task), "imported_from": source}
    run_folder = RunFolder.create(
        resolve_runs_dir(runs_dir),
        recipe.title,
        hashlib.sha256(f"{identity(recipe)} {_digest(weights)}".encode()).hexdigest()[:12],
        {
            "recipe": to_tree(recipe),
            "variant": identity(replace(recipe, seed=0)),
            "name": recipe.name,
            "group": recipe.group,
            **provenance.provenance(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "imported_from": source,
        },
    )
    with run_folder.lock("importing"):
        stored = run_folder.metadata()
        check_same_defaults(stored["recipe"], recipe, run_folder.path)
        if recipe.name not in (None, stored["name"]):
            run_folder.update_metadata(name=recipe.name, recipe={**stored["recipe"], "name": recipe.name})
        if checkpoint.latest_valid(run_folder.checkpoints)[0] is None:
            checkpoint.write(run_folder.checkpoints, step, {"weights": weights}, state)
    return Run(run_folder)


def _exportable_decoder(recipe: Recipe) -> Decoder:
    """The model of a recipe. Raises `UserError` for a run that is not autoregressive."""
    if not isinstance(recipe.model, Decoder):
        raise UserError(
            f"export: {type(recipe.model).__name__} is not a causal decoder of numerate; the model must be a Decoder, "
            "or a model of Hugging Face"
        )
    if not isinstance(recipe.layout, Continuation | NextToken):
        raise UserError(
            f"export: with the layout {type(recipe.layout).__name__} this run does not predict the next token; "
            "the layout must be Continuation or NextToken"
        )
    return recipe.model


def _digest(weights: dict[str, Tensor]) -> str:
    sha256 = hashlib.sha256()
    for name in sorted(weights):
        sha256.update(name.encode())
        sha256.update(weights[name].contiguous().cpu().numpy().tobytes())
    return sha256.hexdigest()

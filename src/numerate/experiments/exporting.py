"""Export of a run as a Hugging Face folder, and import: `numerate export` and `numerate import`."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from numerate.config import from_tree, identity, override, to_tree
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.experiments.run import Run
from numerate.experiments.weight_files import TOLERANCE, LogitCheck, read_weights
from numerate.models.decoder import Decoder
from numerate.models.strict_weights import StrictWeights, weights_of
from numerate.published.dual_attention_weights import from_published
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tokenizers.layout import Continuation, NextToken
from numerate.training import checkpoint, disk, provenance
from numerate.training.preflight import fingerprint_of
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, runs_directory


def export(run: Run, out: str | Path, *, name: str = "final", tokenizer: bool = True) -> Path:
    """Writes a checkpoint of a run as a folder that `AutoModelForCausalLM` and `AutoTokenizer` open.

    `name` is final, best or a step. The folder comes into being by one rename, so that a half-written one never has its
    name. Raises `UserError` for a run whose model is no causal decoder, for a tokenizer that Hugging Face cannot have
    (`tokenizer=False` leaves it out), and where something stands at `out` already.
    """
    recipe, path = run.recipe, Path(out).expanduser()
    if os.path.lexists(path):
        raise UserError(f"out: {path} is there already and is not written over; a new name is right")
    _refuse(recipe)
    hf = _hugging_face()
    vocabulary = run.exam.vocabulary
    special = hf.special_ids(recipe.tokenizer, vocabulary)
    context = recipe.task.context_length if isinstance(recipe.task, LanguageModeling) else None
    theirs = hf.tokenizer_of(recipe.tokenizer, recipe.task, vocabulary, context) if tokenizer else None
    found = run.checkpoints(name)
    if len(found) != 1:
        raise UserError(f"checkpoint: {name} are {len(found)} of them; final, best or a step is right")
    config = hf.config_of(
        to_tree(recipe),
        vocabulary,
        step=found[0].step,
        begin=special.begin,
        end=[*special.end],
        pad=special.pad,
        context=context,
    )
    model = run.model(found[0]).cpu()
    new = disk.beside(path)
    with disk.explained(path):
        try:
            new.mkdir(parents=True)
            hf.fill(new, config, model, special, theirs, path.name)
            mode = (new / "config.json").stat().st_mode
            for file in new.iterdir():
                os.chmod(file, mode)  # safetensors lets only the owner read; the user's umask is to decide
                disk.sync(file)
            disk.sync(new)
            os.rename(new, path)
            disk.sync(path.absolute().parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return path


def import_folder(
    folder: str | Path,
    *,
    runs_dir: str | Path | None = None,
    name: str | None = None,
    settings: Sequence[str] = (),
    check: str | Path | None = None,
    tolerance: float = TOLERANCE,
) -> Run:
    """Makes a run of a folder that Hugging Face saved, such as one that was exported and then fine-tuned.

    It works like any other run, also for `init_from=`. Its id is a hash of recipe and weights: importing the same
    folder twice gives the same run. `settings` change the recipe as on the
    command line, for a tokenizer or texts that lie elsewhere here. `check` and `tolerance` are as for
    `import_published`. Raises `UserError` for a folder that is none of these, for weights that are not the recipe's
    (see `numerate.models.strict_weights`), and for a tokenizer or task whose tokens are others here.
    """
    hf, path = _hugging_face(), Path(folder).expanduser()
    config = hf.configuration(path)
    file = read_weights(path)
    recipe = from_tree((config.recipe or {}), path / "config.json", declared=Recipe)
    recipe = override(replace(recipe, name=name), settings)
    assert isinstance(recipe, Recipe)
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    known = (config.vocabulary or {}).get("fingerprint")
    if known != hf.fingerprint(exam.vocabulary):
        raise UserError(
            f"{path}: was exported with other tokens than its {type(recipe.task).__name__} has here; the tokenizer "
            "and texts that it was trained with are right (task.tokenizer= says where they are)"
        )
    weights = StrictWeights(file.weights, str(path), plain=lambda tensor: tensor.removeprefix("model.")).tensors
    return _run(recipe, exam, weights, config.step, file.checked_by(check, tolerance), path, runs_dir)


def import_published(
    file: str | Path,
    recipe: Recipe,
    *,
    runs_dir: str | Path | None = None,
    name: str | None = None,
    check: str | Path | None = None,
    tolerance: float = TOLERANCE,
) -> Run:
    """Makes a run of weights of the published code of dual attention, for a recipe whose model is their architecture.

    `file` is a checkpoint of its `train.py` (ckpt.pt), a file of weights (.pt, .bin, .safetensors), or a folder of the
    hub, such as the package dual-attention writes, with one in it. Nothing that a pickle could run is run.

    `check` is a file with reference logits, see `numerate.experiments.weight_files`: the model's must not differ from
    them by more than `tolerance` anywhere. Without it those are compared that the file or folder itself has.

    Raises `UserError` for a file that holds no weights, where they are not the recipe's, see
    `numerate.published.dual_attention_weights`, and where logits differ.
    """
    path = Path(file).expanduser()
    if not isinstance(recipe.model, Decoder):
        raise UserError(f"recipe: its model is a {type(recipe.model).__name__}; one with a Decoder is right")
    found = read_weights(path)
    weights = from_published(found.weights, recipe.model, where=str(path))
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    recipe = replace(recipe, name=name)
    return _run(recipe, exam, weights, 0, found.checked_by(check, tolerance), path, runs_dir)


def _run(
    recipe: Recipe,
    exam: EvaluationData,
    weights: dict[str, Tensor],
    step: int,
    check: LogitCheck | None,
    path: Path,
    runs_dir: str | Path | None,
) -> Run:
    """The run of a recipe and weights that came from elsewhere, made where it is not there yet."""
    model = recipe.model.rebuild(exam.vocabulary, recipe.seed, None)
    weights = weights_of(model, weights, str(path))
    if check is not None:
        model.load_state_dict(weights)
        check.compare(model, exam.vocabulary.size)
    came = str(path.resolve())
    state = {"tokenizer": fingerprint_of(recipe.tokenizer, recipe.task), "imported_from": came}
    made = RunFolder.create(
        runs_directory(runs_dir),
        recipe.title,
        hashlib.sha256(f"{identity(recipe)} {_digest(weights)}".encode()).hexdigest()[:12],
        {
            "recipe": to_tree(recipe),
            "variant": identity(replace(recipe, seed=0)),
            "name": recipe.name,
            "group": recipe.group,
            **provenance.provenance(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "imported_from": came,
        },
    )
    with made.lock("importing"):
        if checkpoint.latest_good(made.checkpoints)[0] is None:
            checkpoint.write(made.checkpoints, step, {"weights": weights}, state)
    return Run(made)


class _HuggingFace:
    """The integrations, imported on first use: transformers is a heavy, optional dependency."""

    def __init__(self) -> None:
        from numerate.integrations import hf_folders, hf_models, hf_tokenizers

        self.fill, self.configuration = hf_folders.fill, hf_folders.configuration
        self.config_of, self.fingerprint = hf_models.config_of, hf_models.fingerprint
        self.special_ids, self.tokenizer_of = hf_tokenizers.special_ids, hf_tokenizers.tokenizer_of


def _hugging_face() -> _HuggingFace:
    try:
        return _HuggingFace()
    except ImportError as error:
        raise UserError(
            f"export: the package {error.name} is not here; pip install 'numerate[huggingface]' installs it"
        ) from error


def _refuse(recipe: Recipe) -> None:
    """Raises `UserError` for a run that is not autoregressive."""
    if not isinstance(recipe.model, Decoder):
        raise UserError(
            f"export: {type(recipe.model).__name__} is no causal decoder of numerate; a run of a Decoder is right "
            "(what a model holds of Hugging Face is saved by its own save_pretrained)"
        )
    if not isinstance(recipe.layout, Continuation | NextToken):
        raise UserError(
            f"export: with the layout {type(recipe.layout).__name__} this run does not predict the next token; "
            "a run with the layout Continuation or NextToken is right"
        )


def _digest(weights: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().cpu().numpy().tobytes())
    return found.hexdigest()

"""Runs from a Hugging Face folder or from published weights: `numerate import`."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from numerate.config import from_tree, override
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.integrations.weight_files import DEFAULT_TOLERANCE, LogitCheck, read_weights
from numerate.models.decoder import Decoder
from numerate.models.strict_weights import StrictWeights, match_state_dict
from numerate.published.dual_attention_weights import from_published
from numerate.runs.pretrained_run import untrained_folder
from numerate.runs.run import Run
from numerate.text.models.pretrained_weights import import_transformers
from numerate.training.recipe import Recipe


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

    Its id is a hash of recipe and weights: importing the same folder twice gives the same run, under its latest `name`.
    `settings` override settings of the recipe, for a tokenizer or data at another path. `check` and `tolerance` are as
    for `import_published`. Raises `UserError` for any other folder, for weights that do not match the recipe (see
    `numerate.models.strict_weights`), and if the tokenizer or task now has other tokens.
    """
    import_transformers("import")
    from numerate.integrations import hf_folders

    path = Path(folder).expanduser()
    config, weight_file = hf_folders.read_configuration(path), read_weights(path)
    recipe: Recipe = from_tree(config["recipe"], path / "config.json", Recipe)
    recipe = override(replace(recipe, name=name), settings)
    vocabulary = EvaluationData.from_recipe(recipe).vocabulary
    if config["vocabulary"].get("fingerprint") != hf_folders.fingerprint(vocabulary):
        raise UserError(
            f"{path}: was exported with a vocabulary different from the one its {type(recipe.task).__name__} has here; "
            "the tokenizer and texts must be those it was trained with (set their location with task.tokenizer=)"
        )
    weights = StrictWeights(
        weight_file.weights, str(path), normalize_name=lambda tensor: tensor.removeprefix("model.")
    ).tensors
    return _create_run(recipe, weights, config["step"], weight_file.logit_check(check, tolerance), path, runs_dir)


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
    check_logits = weight_file.logit_check(check, tolerance)
    return _create_run(replace(recipe, name=name), weights, 0, check_logits, path, runs_dir)


def _create_run(
    recipe: Recipe,
    weights: dict[str, Tensor],
    step: int,
    check: LogitCheck | None,
    path: Path,
    runs_dir: str | Path | None,
) -> Run:
    """The run of a recipe and imported weights, created unless it exists."""
    vocabulary = EvaluationData.from_recipe(recipe).vocabulary
    model = recipe.model.rebuild(vocabulary, recipe.seed, None)
    weights, sha256 = match_state_dict(model, weights, str(path)), hashlib.sha256()
    if check is not None:
        model.load_state_dict(weights)
        check.check(model, vocabulary.size)
    for name, tensor in sorted(weights.items()):
        sha256.update(name.encode())
        sha256.update(tensor.contiguous().cpu().numpy().tobytes())
    source = {"imported_from": str(path.resolve())}
    key, tensors = sha256.hexdigest(), {"weights": weights}
    return Run(untrained_folder(recipe, key, model, runs_dir, source, source, tensors, step))

"""Export of a run as a Hugging Face folder: `numerate export`."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from numerate.config import to_tree, yaml_text
from numerate.errors import UserError
from numerate.models.decoder import Decoder
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.data.new_folder import atomic_folder, check_not_existing
from numerate.text.models.pretrained_weights import import_transformers
from numerate.tokenizers.layout import Continuation, NextToken
from numerate.training import disk
from numerate.training.opened_run import OpenedRun
from numerate.training.recipe import Recipe

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
    run: OpenedRun,
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
    stored_checkpoint = run.checkpoint(checkpoint_name)
    config = hf_folders.make_config(recipe, spec, vocabulary, stored_checkpoint.step, special_ids, context_length)
    model = run.load_model(stored_checkpoint).cpu()
    with atomic_folder(path) as folder:
        hf_folders.write_folder(folder, config, model, hf_tokenizer)
        _write_card(folder, run, stored_checkpoint.step, path.name, license)
        _finish_files(folder)
    return path


def _export_pretrained(
    run: OpenedRun, path: Path, checkpoint_name: str, with_tokenizer: bool, license: str | None
) -> Path:
    """Writes the Hugging Face model of a run as a folder that transformers opens by itself."""
    from numerate.integrations import hf_pretrained

    recipe, vocabulary, tokenizer = run.recipe, run.evaluation_data.vocabulary, None
    if with_tokenizer:
        tokenizer = hf_pretrained.to_transformers_tokenizer(recipe.tokenizer, recipe.task, vocabulary)
    stored_checkpoint = run.checkpoint(checkpoint_name)
    model: Any = run.load_model(stored_checkpoint).cpu()
    with atomic_folder(path) as folder:
        hf_pretrained.write_pretrained_folder(folder, model, vocabulary, tokenizer)
        _write_card(folder, run, stored_checkpoint.step, path.name, license)
        _finish_files(folder)
    return path


def needed_lines(run: OpenedRun) -> list[str]:
    """What a program runs before transformers opens the export of a run: none for a model of transformers."""
    if run.recipe.model.is_hugging_face:
        return []
    files = re.findall(r"kind: (\S+\.py):", yaml_text(to_tree(run.recipe)))
    return ["import numerate", *(f'numerate.config.load_user_parts("{file}")' for file in dict.fromkeys(files))]


def _write_card(folder: Path, run: OpenedRun, step: int, name: str, license: str | None) -> None:
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
    card = import_module("numerate.results.page").card  # which stands above integrations
    (folder / "README.md").write_text(card(run.path, name, introduction, metadata | {"tags": ["numerate"]}), "utf-8")


def _finish_files(folder: Path) -> None:
    """Flushes the files of a new folder to disk, and makes them readable as the user's umask says: those of safetensors
    are the owner's alone."""
    mode = (folder / "config.json").stat().st_mode
    for file in folder.iterdir():
        file.chmod(mode)
        disk.fsync(file)
    disk.fsync(folder)


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

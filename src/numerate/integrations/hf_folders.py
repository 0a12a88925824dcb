"""Model folders for Hugging Face: written from a run's model and tokenizer; and reading their configuration."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.errors import UserError
from numerate.integrations.hf_models import NumerateConfig, NumerateForCausalLM
from numerate.integrations.hf_tokenizers import SpecialIds

_transformers: Any = import_module("transformers")  # of which little is typed

MODEL_CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- numerate
---

# {name}

A run of the recipe `{title}` of numerate, after {step:,} steps. With that package
installed:

```python
import numerate.integrations.hf_models
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
```

`numerate import {name}` makes a run of it again. Its recipe is in `config.json`.
"""


def write_folder(
    folder: Path, config: NumerateConfig, model: Model, special_ids: SpecialIds, tokenizer: Any, name: str
) -> None:
    """Writes the configuration, weights (safetensors), generation configuration, the tokenizer unless it is None, and a
    model card with instructions for loading it as `name`."""
    hf_model = NumerateForCausalLM(config)
    hf_model.model.load_state_dict(model.state_dict())
    hf_model.generation_config = _transformers.GenerationConfig(
        bos_token_id=special_ids.bos_token_id,
        eos_token_id=[*special_ids.eos_token_ids],
        pad_token_id=special_ids.pad_token_id,
    )
    with silence_transformers():
        hf_model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    title = (config.recipe or {}).get("title", "recipe")
    (folder / "README.md").write_text(MODEL_CARD.format(name=name, title=title, step=config.step), encoding="utf-8")


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Without the progress bars and logs of transformers: numerate reports errors itself."""
    logging = _transformers.utils.logging
    is_enabled, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if is_enabled:
            logging.enable_progress_bar()


def read_configuration(folder: Path) -> NumerateConfig:
    """The config.json of a folder. Raises `UserError` if it is not from a numerate run."""
    path = folder / "config.json"
    if not path.is_file():
        if (folder / "adapter_config.json").is_file():
            raise UserError(f"{folder}: holds an adapter, not a model; save the result of merge_and_unload() first")
        raise UserError(
            f"{folder}: has no config.json; it must be a folder that `numerate export` or save_pretrained wrote"
        )
    try:
        model_type = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path}: is not valid JSON; the folder may be incomplete") from error
    if model_type != NumerateConfig.model_type:
        raise UserError(
            f"{folder}: holds a model of the kind {model_type!r}, which is not a numerate run; `numerate train RECIPE "
            f"model=PretrainedDecoder model.weights={folder} training.steps=0` makes a run of a decoder of Hugging Face"
        )
    config = NumerateConfig.from_pretrained(folder)
    assert isinstance(config, NumerateConfig)
    return config

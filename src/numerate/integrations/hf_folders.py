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

_theirs: Any = import_module("transformers")  # of which little is typed

CARD = """---
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


def fill(folder: Path, config: NumerateConfig, model: Model, special: SpecialIds, tokenizer: Any, name: str) -> None:
    """Writes configuration, weights (safetensors), how to generate, the tokenizer unless it is None, and a model
    card that says how to load it as `name`."""
    wrapped = NumerateForCausalLM(config)
    wrapped.model.load_state_dict(model.state_dict())
    wrapped.generation_config = _theirs.GenerationConfig(
        bos_token_id=special.begin, eos_token_id=[*special.end], pad_token_id=special.pad
    )
    with _quiet():
        wrapped.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    title = (config.recipe or {}).get("title", "recipe")
    (folder / "README.md").write_text(CARD.format(name=name, title=title, step=config.step), encoding="utf-8")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and logs of transformers: numerate reports errors itself."""
    logging = _theirs.utils.logging
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def configuration(folder: Path) -> NumerateConfig:
    """The config.json of a folder. Raises `UserError` where it is none of a run of numerate."""
    file = folder / "config.json"
    if not file.is_file():
        if (folder / "adapter_config.json").is_file():
            raise UserError(
                f"{folder}: holds an adapter, not a model; what merge_and_unload() makes of it, saved, is right"
            )
        raise UserError(
            f"{folder}: has no config.json; a folder that `numerate export` or save_pretrained wrote is right"
        )
    try:
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file}: cannot be read as JSON; a folder that was saved whole is right") from error
    if kind != NumerateConfig.model_type:
        raise UserError(
            f"{folder}: holds a model of the kind {kind!r}, which is no run of numerate; `numerate train RECIPE "
            f"model=PretrainedDecoder model.weights={folder} training.steps=0` makes a run of a decoder of Hugging Face"
        )
    config = NumerateConfig.from_pretrained(folder)
    assert isinstance(config, NumerateConfig)
    return config

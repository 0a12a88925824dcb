"""A small corpus of text, and a small model of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from numerate.evaluation.evaluator import Evaluation
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.data.corpora import write_corpus
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER
from numerate.tokenizers.layout import NextToken
from numerate.training.recipe import Recipe, Training

STORIES = [f"Story {number}: once upon a time there were {number} cats." for number in range(120)]


def write_shards(folder: Path, shard_bytes: int) -> Path:
    """A folder of ours with 40 stories as letters, in shards."""
    text = folder / "stories.txt"
    text.write_text("\n<|endoftext|>\n".join(STORIES[:40]))
    write_corpus([text], folder / "tokens", CHARACTER_TOKENIZER, processes=1, shard_bytes=shard_bytes)
    return folder / "tokens"


def raw_ids(known: PretrainedTokenizer, texts: list[str]) -> NDArray[np.uint16]:
    """Ids as llama2.c writes them."""
    each = [[known.document_start_id, *known.encode([text])[0].tolist()] for text in texts]
    return np.concatenate(each).astype("<u2")


def task_in(folder: Path, context: int = 16) -> LanguageModeling:
    """Stories as letters, 90 to train on and 30 held out."""
    for name, part in (("train", STORIES[:90]), ("validation", STORIES[90:])):
        text = folder / f"{name}.txt"
        text.write_text("\n<|endoftext|>\n".join(part))
        write_corpus([text], folder / name, CHARACTER_TOKENIZER, processes=1)
    return LanguageModeling(
        str(folder / "train"), str(folder / "validation"), CHARACTER_TOKENIZER, context_length=context
    )


def recipe_of(task: LanguageModeling, steps: int = 4) -> Recipe:
    training = Training(steps=steps, batch_size=4, evaluate_every=2, log_every=1, threads=1)
    model = Decoder(hidden_size=16, backbone=Stack(num_layers=1))
    recipe = Recipe(
        task, TokenIds(), NextToken(), model, training=training, evaluation=Evaluation(validation_batches=3)
    )
    return replace(recipe, title="text")

"""Dual attention against Transformers on Tiny Stories, at a laptop's size: 4 layers of width 64, 5 MB of stories.

Both in the corrected code (`corrected`), with a vocabulary of 2,048 pieces learned from the stories: `numerate data
prepare tiny_stories_2048` makes both. The three Transformers are equal to it in something else each.
"""

from numerate.published.dual_attention_models import corrected
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.tokenizers.layout import NextToken
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Cosine

CONTEXT_LENGTH, BATCH_SIZE, STEPS = 256, 8, 1200
"""Tokens of a row, rows of a step, and steps: 2.5 million tokens, nearly two passes over the stories."""

STEP_TIME_RATIO = 1.7
"""So many times as long a step of dual attention takes as one of the Transformer equal to it, on one core."""

STEPS_MULTIPLE = 50
"""Steps are a multiple of it."""


def tiny_stories_laptop_dual() -> Recipe:
    """Dual attention, 4 + 4 heads with symbolic attention: 242,880 parameters beside the vocabulary's."""
    return _laptop("dual", num_layers=4, num_self_heads=4, num_relational_heads=4)


def tiny_stories_laptop_width() -> Recipe:
    """A Transformer of the same width and depth: 197,248 parameters beside the vocabulary's."""
    return _laptop("width", num_layers=4, num_self_heads=8, num_relational_heads=0)


def tiny_stories_laptop_parameters() -> Recipe:
    """A Transformer with one layer more: 246,528 parameters beside the vocabulary's, 1.5 % more than dual attention."""
    return _laptop("parameters", num_layers=5, num_self_heads=8, num_relational_heads=0)


def tiny_stories_laptop_time() -> Recipe:
    """A Transformer of the same width and depth for as long as dual attention takes: more steps."""
    steps = round(STEPS * STEP_TIME_RATIO / STEPS_MULTIPLE) * STEPS_MULTIPLE
    return _laptop("time", steps=steps, num_layers=4, num_self_heads=8, num_relational_heads=0)


def _laptop(
    name: str, *, num_layers: int, num_self_heads: int, num_relational_heads: int, steps: int = STEPS
) -> Recipe:
    return Recipe(
        task=LanguageModeling(
            "tiny_stories_2048/train",
            "tiny_stories_2048/validation",
            "tiny_stories_2048",
            context_length=CONTEXT_LENGTH,
        ),
        tokenizer=TokenIds(),
        layout=NextToken(),
        model=corrected(
            hidden_size=64,
            num_layers=num_layers,
            num_self_heads=num_self_heads,
            num_relational_heads=num_relational_heads,
            context_length=CONTEXT_LENGTH,
            dropout=0.0,
        ),
        optimizer=AdamW(learning_rate=5e-3, betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=1.0),
        schedule=Cosine(warmup=100),
        training=Training(steps=steps, batch_size=BATCH_SIZE, evaluate_every=100, checkpoint_every=500, threads=1),
        title=f"tiny_stories_laptop_{name}",
    )

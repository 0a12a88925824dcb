"""What the published Tiny Stories runs train: models, data order, optimizer, budget; and their controls.

Altabaa and Lafferty (2024), arXiv v1 of https://arxiv.org/abs/2405.16727, with the arguments that the records of
https://github.com/Awni00/abstract_transformer (branch `paper`) have. `tiny_stories_family` names them. `numerate data
prepare tiny_stories` makes their data; `task=tiny_stories_2048` takes a small part of it, with a vocabulary of its own.
`model=tiny_current_d64_l4_4+4_symbolic` and `model=tiny_corrected_...` are the same setting in today's code and in that
mended.

Otherwise than in the published code: loss in bfloat16 is summed in float32, and what is best is chosen as the lowest
loss of all evaluations. A seed is of this program; 1337 was published.
"""

from dataclasses import replace

from numerate.evaluation.evaluator import Evaluation
from numerate.models.decoder import Decoder
from numerate.published.dual_attention_models import published
from numerate.published.tiny_names import PublishedRun, matching_transformer
from numerate.recipes.tiny_stories_controls import MatchedTransformer, match_transformer
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.tokenizers.layout import NextToken
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Constant, Cosine, Schedule

STEPS = 100_001
"""Iterations 0 to 100,000, of 131,072 tokens each: some 13 passes."""

VOCABULARY_SIZE = 32_000
"""Vocabulary size used for counting operations."""


def published_run(run: PublishedRun) -> Recipe:
    """The recipe of a published setting."""
    cosine: Schedule = Cosine(warmup=1000, warmup_endpoints="from_zero", decay_end=STEPS - 1)
    return Recipe(
        task=LanguageModeling(
            "tiny_stories/tokens", tokenizer="tiny_stories", context_length=run.context_length, order="published"
        ),
        tokenizer=TokenIds(),
        layout=NextToken(),
        model=published(**run.model_arguments()),
        optimizer=AdamW(learning_rate=run.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=1.0),
        schedule=cosine if run.has_option("cosine") else Constant(warmup=0),
        training=Training(
            steps=STEPS,
            batch_size=run.micro_batch_size * run.gradient_accumulation_steps,
            gradient_accumulation_steps=run.gradient_accumulation_steps,
            shuffle_window=1,
            precision="bf16",
            tf32=True,
            log_every=10,
            evaluate_every=2000,
            evaluate_at_start=True,
            checkpoint_every=2000,
            checkpoint_minutes=30,
            best_metric="loss",
        ),
        evaluation=Evaluation(validation_batches=100),
        seed=1337,
        title=f"tiny_stories_{run.name}",
        paper="dual_attention",
    )


def matched_recipe(name: str, run: PublishedRun, control: str) -> Recipe:
    """The Transformer beside a run: `iso_parameters`, `iso_operations` or `iso_time`."""
    return replace(matched_transformer(run, control).recipe, title=name)


def matched_transformer(run: PublishedRun, control: str) -> MatchedTransformer:
    """The same with what it matched.

    Of equal parameters it is as deep, wider in steps of 16, then with a feed-forward that makes up the rest; of equal
    operations and of equal hours it is as wide and deep, and trained for more steps.
    """
    recipe, transformer = published_run(run), _transformer(run)
    if control == "iso_parameters":
        return match_transformer("parameters", recipe, vary="width", reference=transformer, vocabulary=VOCABULARY_SIZE)
    if control == "iso_operations":
        return match_transformer("flops", recipe, vary="steps", reference=transformer, vocabulary=VOCABULARY_SIZE)
    published_transformer = matching_transformer(run)
    assert published_transformer is not None
    ratio = (run.hours / run.last_step) / (published_transformer.hours / published_transformer.last_step)
    return match_transformer(
        "time", recipe, vary="steps", reference=transformer, vocabulary=VOCABULARY_SIZE, ratio=ratio
    )


def _transformer(run: PublishedRun) -> Decoder:
    settings = run.model_arguments() | {
        "num_self_heads": run.num_self_heads + run.num_relational_heads,
        "num_relational_heads": 0,
    }
    return published(**settings)

"""What the runs of the dual attention paper train: models, data order, optimizer, budget; and their controls.

Altabaa and Lafferty (2025), https://arxiv.org/abs/2405.16727, and https://github.com/Awni00/abstract_transformer.
"""

from numerate.evaluation.evaluator import Evaluation
from numerate.models.decoder import Decoder
from numerate.published.dual_attention_models import corrected, current, published
from numerate.published.tiny_names import PublishedRun, matching_transformer
from numerate.recipes.tiny_stories_controls import MatchedTransformer, match_transformer
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.tokenizers.layout import NextToken
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Constant, Cosine, Schedule

STEPS = 100_001
"""Iterations of Tiny Stories, 0 to 100,000, of 131,072 tokens each: some 13 passes."""


def fineweb_edu() -> Recipe:
    """Dual attention of width 1,024 on FineWeb-Edu: half of its heads relational, a frozen symbol library.

    The shards (`edufineweb_train_000001.npy` ..., 100 million tokens of GPT-2's each, and one with `val` in its name)
    are those of https://github.com/karpathy/build-nanogpt, in the folder `fineweb_edu` of the user's data;
    `task.train=FOLDER` names another. Heads are 64 wide, as which the published numbers of parameters come out.

    Differences from the published code (`fineweb/`): no tokens are left out at a shard's end, an evaluation reads
    batches of a whole step, of which 3 are some 1.6 million tokens, and rows of a part (`training.micro_batch_size`)
    are ours.
    """
    return Recipe(
        task=LanguageModeling("fineweb_edu", tokenizer="gpt2", context_length=1024, order="sequential"),
        tokenizer=TokenIds(pad_to_multiple_of=128),
        layout=NextToken(),
        model=current(
            hidden_size=1024,
            num_layers=24,
            num_self_heads=8,
            num_relational_heads=8,
            context_length=1024,
            activation="gelu",
            dropout=0.0,
            num_relations=64,
            num_key_value_heads=4,
            trainable_symbols=False,
            num_symbols=1024,
            num_symbol_heads=8,
        ),
        optimizer=AdamW(learning_rate=6e-4, betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=1.0),
        schedule=Cosine(warmup=715, min_lr_ratio=0.1, warmup_endpoints="to_one", decay_end=19_073),
        training=Training(
            steps=19_073,
            batch_tokens=524_288,
            micro_batch_size=16,
            shuffle_window=1,
            precision="bf16",
            tf32=True,
            compile=True,
            log_every=1,
            evaluate_every=250,
            checkpoint_every=1000,
            checkpoint_minutes=30,
            best_metric="loss",
            log_layer_grad_norms=True,
        ),
        evaluation=Evaluation(validation_batches=3),
        paper="dual_attention",
    )


def laptop_stories() -> Recipe:
    """Dual attention of 4 layers of width 64 on 5 MB of stories: 2.5 million tokens, nearly two passes over them.

    In the corrected code (`corrected`), with a vocabulary of 2,048 pieces learned from the stories: `numerate data
    prepare tiny_stories_2048` makes both.
    """
    return Recipe(
        task=LanguageModeling(
            "tiny_stories_2048/train", "tiny_stories_2048/validation", "tiny_stories_2048", context_length=256
        ),
        tokenizer=TokenIds(),
        layout=NextToken(),
        model=corrected(
            hidden_size=64,
            num_layers=4,
            num_self_heads=4,
            num_relational_heads=4,
            context_length=256,
            dropout=0.0,
        ),
        optimizer=AdamW(learning_rate=5e-3, betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=1.0),
        schedule=Cosine(warmup=100),
        training=Training(steps=1200, batch_size=8, evaluate_every=100, checkpoint_every=500, threads=1),
    )


def tiny_stories(run: PublishedRun) -> Recipe:
    """The recipe of a published setting, with the arguments that the records of the repository (branch `paper`) have.

    `numerate data prepare tiny_stories` makes the data; `task=tiny_stories_2048` takes a small part of it, with a
    vocabulary of its own. `model=tiny_current_d64_l4_4+4_symbolic` and `model=tiny_corrected_...` are the same setting
    in today's code and in that mended. Otherwise than in the published code, loss in bfloat16 is summed in float32, and
    what is best is chosen as the lowest loss of all evaluations. A seed is of this program; 1337 was published.
    """
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
        paper="dual_attention",
    )


def matched_recipe(run: PublishedRun, control: str) -> Recipe:
    """The Transformer beside a run: `iso_parameters`, `iso_operations` or `iso_time`."""
    return matched_transformer(run, control).recipe


def matched_transformer(run: PublishedRun, control: str) -> MatchedTransformer:
    """The same with what it matched.

    Of equal parameters it is as deep, wider in steps of 16, then with a feed-forward that makes up the rest; of equal
    operations and of equal hours it is as wide and deep, and trained for more steps.
    """
    recipe, transformer = tiny_stories(run), _transformer(run)
    if control == "iso_parameters":
        return match_transformer("parameters", recipe, vary="width", reference=transformer)
    if control == "iso_operations":
        return match_transformer("flops", recipe, vary="steps", reference=transformer)
    published_transformer = matching_transformer(run)
    assert published_transformer is not None
    ratio = (run.hours / run.last_step) / (published_transformer.hours / published_transformer.last_step)
    return match_transformer("time", recipe, vary="steps", reference=transformer, ratio=ratio)


def _transformer(run: PublishedRun) -> Decoder:
    settings = run.model_arguments() | {
        "num_self_heads": run.num_self_heads + run.num_relational_heads,
        "num_relational_heads": 0,
    }
    return published(**settings)
